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
from contextlib import suppress
from functools import partial
from itertools import chain
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from gnnlab.errors import GnnlabError
from gnnswap.errors import one_line


class Request(NamedTuple):
    """A state that waits for its answer."""

    state: Any
    answer: asyncio.Future


class AsyncBatcher:
    """`predict(state)` from any number of tasks; `predict_batch` sees up to `max_batch` states at once.

    `predict_batch(states)` blocks and returns one answer for each state, in their order. An answer that is an exception
    is raised in its own caller alone; whatever `predict_batch` raises reaches every caller of that batch as a
    `GnnlabError`, and the next batch is computed all the same. `short(states)`: whether a batch is computed in the
    event loop.

    A request whose caller is cancelled, as by `asyncio.timeout`, is not computed if that has not begun. `stop_s`: how
    long the end of the `async with` waits for answers before what is left fails. `unanswered` requests wait, or are in
    the batch that runs.
    """

    def __init__(
        self,
        predict_batch: Callable[[list[Any]], Sequence[Any]],
        *,
        max_batch: int = 64,
        short: Callable[[list[Any]], bool] = lambda states: False,
        stop_s: float = 30.0,
    ) -> None:
        self._predict_batch, self._max_batch, self._short = predict_batch, max_batch, short
        self._stop_s = stop_s
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._open = False

    async def __aenter__(self) -> AsyncBatcher:
        """Start the thread. Raises `GnnlabError`: it cannot start."""
        self._loop, self._idle = asyncio.get_running_loop(), asyncio.Event()
        self._idle.set()
        self._canary = self._loop.create_future()
        self._canary.set_result(None)
        self._jobs: SimpleQueue[tuple[list[Any], Callable[[Sequence[Any]], None]] | None] = SimpleQueue()
        try:
            Thread(target=self._work, name="gnnlab-batch", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            remedy = "allow more (ulimit -u, a container's pids)"
            raise GnnlabError(f"the batcher has no thread: {one_line(error)}; {remedy}") from error
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Take no further request, answer those that wait, and return when that is done, after `stop_s` at the latest;
        what has no answer then fails."""
        self._open = False
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), self._stop_s)
        finally:
            self._jobs.put(None)  # the thread ends, once it comes back
            for request in chain(self._running, self._waiting):
                _settle(request.answer, GnnlabError("the batcher stopped before it came to an answer"))
            self._waiting.clear()

    @property
    def unanswered(self) -> int:
        return len(self._waiting) + len(self._running)

    def predict(self, state: Any) -> asyncio.Future:
        """A future of the answer to one state, or of its error.

        Raises `GnnlabError`: the batcher is not running.
        """
        if not self._open:
            raise GnnlabError("the batcher takes no requests; enter it with `async with`")
        while self._waiting and self._waiting[0].answer.done():  # its caller has gone, while a batch hangs
            self._waiting.popleft()
        request = Request(state, self._loop.create_future())
        self._waiting.append(request)
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._next)  # after those that come in this turn of the loop
        return request.answer

    async def alive(self, timeout_s: float) -> bool:
        """Whether an empty batch passes through the thread within that time, behind the one that runs there."""
        if not self._open:
            return False
        if self._canary.done():
            self._canary = self._loop.create_future()
            self._jobs.put(([], partial(_settle, self._canary)))
        done, _ = await asyncio.wait([self._canary], timeout=timeout_s)
        return bool(done)

    def _next(self) -> None:
        """Begin the next batch, if anybody waits."""
        try:
            self._running = self._taken()
            states = [request.state for request in self._running]
            if not states:
                return self._idle.set()
            if not self._short(states):
                return self._jobs.put((states, self._answer))
            values = self._compute(states)
        except BaseException as error:
            values = _failed(self._running, one_line(error))
        self._answer(values)

    def _taken(self) -> list[Request]:
        """Of those that wait the first that still want an answer, a batch at most; they no longer wait."""
        taken: list[Request] = []
        while self._waiting and len(taken) < self._max_batch:
            request = self._waiting.popleft()
            if not request.answer.done():
                taken.append(request)
        return taken

    def _answer(self, values: Sequence[Any]) -> None:
        """Give the batch that runs its answers, and go on with the next one."""
        batch, self._running = self._running, []
        for request, value in zip(batch, values, strict=True):
            _settle(request.answer, value)
        if self._waiting:
            self._loop.call_soon(self._next)
        else:
            self._idle.set()

    def _work(self) -> None:
        """The thread: one batch after the other."""
        while (job := self._jobs.get()) is not None:
            states, answer = job
            values = self._compute(states) if states else []
            try:
                self._loop.call_soon_threadsafe(answer, values)
            except RuntimeError:  # the loop is closed, nobody waits any more
                return

    def _compute(self, states: list[Any]) -> Sequence[Any]:
        """One answer, or error, for each state, whatever is raised: `SystemExit` would end the thread."""
        try:
            values = list(self._predict_batch(states))
            if len(values) == len(states):
                return values
            why = f"{len(values)} answers were given to {len(states)} states; one for each is needed"
        except BaseException as error:
            why = one_line(error)
        return _failed(states, why)


def _failed(states: Sequence[Any], why: str) -> list[GnnlabError]:
    return [GnnlabError(f"the batch of {len(states)} requests failed: {why}") for _ in states]


def _settle(answer: asyncio.Future, value: Any) -> None:
    """Give a future its answer or error, unless its caller has gone."""
    if answer.done():
        return
    if isinstance(value, BaseException) and (not isinstance(value, Exception) or isinstance(value, StopIteration)):
        value = GnnlabError(f"the request failed: {one_line(value)}")  # raised in a task, they would end more than it
    if isinstance(value, BaseException):
        answer.set_exception(value)
    else:
        answer.set_result(value)
