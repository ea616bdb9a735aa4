"""Requests gathered into batches while the batch before them runs.

    async with AsyncBatcher(predictor.predict_batch, max_batch=64, max_queue=1024) as batcher:
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

# what a future cannot carry, or what its caller would take for an end of its own
_NOT_CARRIED = (StopIteration, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
PredictBatch = Callable[[list[Any]], Sequence[Any]]


class AsyncBatcher:
    """`await predict(state)` from any number of tasks; `predict_batch` sees up to `max_batch` states at once.

    `predict_batch(states)` blocks and returns one answer for each state, in their order. An answer that is an exception
    is raised in its own caller alone; an exception raised by `predict_batch` reaches every caller of that batch as a
    `GnnlabError` with the exception as its cause. At most `max_queue` requests wait; further callers are held up in
    `predict` until there is room. A caller that is cancelled loses its place, and nobody else anything.
    Raises `GnnlabError`: `max_batch` or `max_queue` is no integer of 1 or more.
    """

    def __init__(
        self, predict_batch: PredictBatch, *, max_batch: int = 64, max_queue: int = 1024, window_s: float | None = None
    ) -> None:
        whole_numbers(1, max_batch=max_batch, max_queue=max_queue)
        self._predict_batch = predict_batch
        self._max_batch, self._max_queue, self._window_s = max_batch, max_queue, window_s
        self._unanswered: set[asyncio.Future] = set()
        self._running = False
        self._worker: asyncio.Task | None = None
        self._open = False

    async def __aenter__(self) -> AsyncBatcher:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Take requests from now on, on the running event loop. Raises `GnnlabError`: it runs already."""
        if self._worker is not None:
            raise GnnlabError("the batcher runs already; stop it first")
        self._queue: asyncio.Queue[tuple[Any, asyncio.Future]] = asyncio.Queue()
        self._room = asyncio.Semaphore(self._max_queue)
        self._unanswered, self._running = set(), False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gnnlab-batch")
        self._worker = asyncio.create_task(self._work(), name="gnnlab-batch")
        self._open = True

    async def stop(self) -> None:
        """Take no further request, answer those that are there, and return when that is done."""
        self._open = False
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            while self._unanswered and not worker.done():
                await asyncio.wait([*self._unanswered, worker], return_when=asyncio.FIRST_COMPLETED)
        finally:
            worker.cancel()
            await asyncio.wait([worker])

    @property
    def unanswered(self) -> int:
        """How many requests have no answer yet: held up, waiting, or in the batch that runs."""
        return len(self._unanswered)

    @property
    def idle(self) -> bool:
        """Whether no request waits and no batch runs, be it one whose callers have all gone."""
        return not self._unanswered and not self._running

    async def predict(self, state: Any) -> Any:
        """The answer to one state, or its error raised.

        Raises `GnnlabError`: the batcher is not running, or the batch that held this request failed.
        """
        if not self._open:
            raise GnnlabError("the batcher takes no requests; start it, or enter it with `async with`")
        answer = asyncio.get_running_loop().create_future()
        self._unanswered.add(answer)
        try:
            await self._room.acquire()
            self._queue.put_nowait((state, answer))
            return await answer
        finally:
            answer.cancel()  # where it is not there yet, its caller has gone
            self._unanswered.discard(answer)

    async def _work(self) -> None:
        try:
            while True:
                await self._answer(await self._next_batch())
        finally:
            self._open = False
            for answer in self._unanswered:
                self._room.release()  # for those who are still held up
                _settle(answer, GnnlabError("the batcher was stopped before this request was answered; send it again"))
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _next_batch(self) -> list[tuple[Any, asyncio.Future]]:
        """What is there, at least one or, in a window, perhaps none; without those that were cancelled."""
        waiting = [await self._queue.get()] if self._window_s is None else await self._in_window(self._window_s)
        while len(waiting) < self._max_batch and not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        for _ in waiting:
            self._room.release()
        return [(state, answer) for state, answer in waiting if not answer.done()]

    async def _in_window(self, seconds: float) -> list[tuple[Any, asyncio.Future]]:
        waiting: list[tuple[Any, asyncio.Future]] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(waiting) < self._max_batch:
                    waiting.append(await self._queue.get())
        return waiting

    async def _answer(self, batch: list[tuple[Any, asyncio.Future]]) -> None:
        if not batch:
            return
        loop = asyncio.get_running_loop()
        self._running = True
        values = await loop.run_in_executor(self._thread, self._values, [state for state, _ in batch])
        self._running = False
        for (_, answer), value in zip(batch, values, strict=True):
            _settle(answer, value)

    def _values(self, states: list[Any]) -> list[Any]:
        """An answer or an exception for each state, whatever `predict_batch` does; runs in the thread."""
        try:
            values = list(self._predict_batch(states))
            if len(values) != len(states):
                raise GnnlabError(f"{len(values)} answers were given to {len(states)} states; one for each is needed")
        except BaseException as error:  # in a thread of ours, Ctrl-C does not come this way
            return [_failed(error, len(states)) for _ in states]  # each its own: raising adds to a traceback
        return [_failed(value, 1) if isinstance(value, _NOT_CARRIED) else value for value in values]


def _failed(error: BaseException, requests: int) -> GnnlabError:
    failure = GnnlabError(f"the batch of {requests} requests failed: {one_line(error)}")
    failure.__cause__ = error
    return failure


def _settle(answer: asyncio.Future, value: Any) -> None:
    if answer.done():
        return
    if isinstance(value, BaseException):
        answer.set_exception(value)
    else:
        answer.set_result(value)
