"""Requests gathered into batches while the batch before them runs.

    async with AsyncBatcher(predictor.predict_batch, max_batch=64) as batcher:
        answers = await asyncio.gather(*(batcher.predict(state) for state in states))

Nothing waits for company: a request that finds the worker idle goes at once, alone; those that come while a batch runs
make the next one. So a lone caller pays no waiting time, and the batches grow by themselves as the load does. The
predictions run in one thread, which leaves the event loop free. `window_s` is S2's way instead, for comparison: windows
of a fixed length, one after the other, and what came in one of them is a batch, or `max_batch` if those come sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from gnnlab.errors import GnnlabError, one_line, whole_numbers

Waiting = list[tuple[Any, asyncio.Future]]


class AsyncBatcher:
    """`await predict(state)` from any number of tasks; `predict_batch` sees up to `max_batch` states at once.

    `predict_batch(states)` blocks and returns one answer for each state, in their order. An answer that is an exception
    is raised in its own caller alone; an exception raised by `predict_batch` reaches every caller of that batch as a
    `GnnlabError` with the exception as its cause. `unanswered` requests wait or are in the batch that runs.
    Raises `GnnlabError`: `max_batch` is not an integer of 1 or more.
    """

    def __init__(
        self, predict_batch: Callable[[list[Any]], Sequence[Any]], *, max_batch: int = 64, window_s: float | None = None
    ) -> None:
        whole_numbers(1, max_batch=max_batch)
        self._predict_batch, self._max_batch, self._window_s = predict_batch, max_batch, window_s
        self._open = False
        self.unanswered = 0

    async def __aenter__(self) -> AsyncBatcher:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Take requests from now on, on the running event loop."""
        self._queue: asyncio.Queue[tuple[Any, asyncio.Future]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gnnlab-batch")
        self._worker = asyncio.create_task(self._work(), name="gnnlab-batch")
        self._open = True

    async def stop(self) -> None:
        """Take no further request, answer those that wait, and return when that is done."""
        self._open = False
        try:
            await self._queue.join()
        finally:
            self._worker.cancel()
            self._thread.shutdown(wait=False)

    async def predict(self, state: Any) -> Any:
        """The answer to one state, or its error raised.

        Raises `GnnlabError`: the batcher is not running, or the batch that held this request failed.
        """
        if not self._open:
            raise GnnlabError("the batcher takes no requests; start it, or enter it with `async with`")
        answer = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((state, answer))
        self.unanswered += 1
        return await answer

    async def _work(self) -> None:
        while True:
            batch = await self._next_batch()
            asked = [(state, answer) for state, answer in batch if not answer.cancelled()]
            if asked:
                await self._answer(asked)
            for _ in batch:
                self.unanswered -= 1
                self._queue.task_done()

    async def _next_batch(self) -> Waiting:
        """The requests that wait, at least one or, in a window, perhaps none."""
        waiting = [await self._queue.get()] if self._window_s is None else await self._in_window(self._window_s)
        while len(waiting) < self._max_batch and not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        return waiting

    async def _in_window(self, seconds: float) -> Waiting:
        waiting: Waiting = []
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(waiting) < self._max_batch:
                    waiting.append(await self._queue.get())
        return waiting

    async def _answer(self, batch: Waiting) -> None:
        states = [state for state, _ in batch]
        loop = asyncio.get_running_loop()
        try:
            values = list(await loop.run_in_executor(self._thread, self._predict_batch, states))
            if len(values) != len(states):
                raise GnnlabError(f"{len(values)} answers were given to {len(states)} states; one for each is needed")
        except Exception as error:
            values = [_failure(error, len(states)) for _ in states]  # each its own: raising adds to a traceback
        for (_, answer), value in zip(batch, values, strict=True):
            if answer.done():  # its caller has gone
                continue
            if isinstance(value, BaseException):
                answer.set_exception(value)
            else:
                answer.set_result(value)


def _failure(error: Exception, requests: int) -> GnnlabError:
    failure = GnnlabError(f"the batch of {requests} requests failed: {one_line(error)}")
    failure.__cause__ = error
    return failure
