"""Requests gathered into batches while the batch before them runs.

    async with AsyncBatcher(predictor.predict_batch, max_batch=64) as batcher:
        answers = await asyncio.gather(*(batcher.predict(state) for state in states))

Nothing waits for company: a request that finds the batcher idle goes at once, with those that came in the same turn of
the event loop; those that come while a batch runs make the next one. So a lone caller pays no waiting time, and the
batches grow by themselves as the load does. A batch runs in one thread, which leaves the event loop free, or in the
event loop itself, where it is `short`: handing it over would take longer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gnnlab.errors import GnnlabError
from gnnswap.errors import one_line


class AsyncBatcher:
    """`predict(state)` from any number of tasks; `predict_batch` sees up to `max_batch` states at once.

    `predict_batch(states)` blocks and returns one answer for each state, in their order. An answer that is an exception
    is raised in its own caller alone; an exception raised by `predict_batch` reaches every caller of that batch as a
    `GnnlabError`. `short(states)`: whether a batch is computed in the event loop. `unanswered` requests wait or are in
    the batch that runs.
    """

    def __init__(
        self,
        predict_batch: Callable[[list[Any]], Sequence[Any]],
        *,
        max_batch: int = 64,
        short: Callable[[list[Any]], bool] = lambda states: False,
    ) -> None:
        self._predict_batch, self._max_batch, self._short = predict_batch, max_batch, short
        self._waiting: deque[tuple[Any, asyncio.Future]] = deque()
        self._open, self.unanswered = False, 0

    async def __aenter__(self) -> AsyncBatcher:
        self._loop, self._idle = asyncio.get_running_loop(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gnnlab-batch")
        self._idle.set()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Take no further request, answer those that wait, and return when that is done."""
        self._open = False
        await self._idle.wait()
        self._thread.shutdown(wait=False)

    def predict(self, state: Any) -> asyncio.Future:
        """A future of the answer to one state, or of its error.

        Raises `GnnlabError`: the batcher is not running.
        """
        if not self._open:
            raise GnnlabError("the batcher takes no requests; enter it with `async with`")
        answer = self._loop.create_future()
        self._waiting.append((state, answer))
        self.unanswered += 1
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._next)  # after those that come in this turn of the loop
        return answer

    def _next(self) -> None:
        """Begin the next batch, if anybody waits."""
        batch = []
        while self._waiting and len(batch) < self._max_batch:
            state, answer = self._waiting.popleft()
            if answer.cancelled():
                self.unanswered -= 1
            else:
                batch.append((state, answer))
        states = [state for state, _ in batch]
        if not batch:
            self._idle.set()
        elif self._short(states):
            self._answer(batch, self._compute(states))
        else:
            computing = self._loop.run_in_executor(self._thread, self._compute, states)
            computing.add_done_callback(lambda done: self._answer(batch, done.result()))

    def _answer(self, batch: list[tuple[Any, asyncio.Future]], values: Sequence[Any]) -> None:
        self.unanswered -= len(batch)
        for (_, answer), value in zip(batch, values, strict=True):
            if answer.done():  # its caller has gone
                continue
            if isinstance(value, BaseException):
                answer.set_exception(value)
            else:
                answer.set_result(value)
        self._loop.call_soon(self._next)

    def _compute(self, states: list[Any]) -> Sequence[Any]:
        """One answer, or error, for each state."""
        try:
            values = list(self._predict_batch(states))
            if len(values) == len(states):
                return values
            why = f"{len(values)} answers were given to {len(states)} states; one for each is needed"
        except Exception as error:
            why = one_line(error)
        return [GnnlabError(f"the batch of {len(states)} requests failed: {why}") for _ in states]
