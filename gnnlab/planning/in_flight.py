"""The in-flight window: which graphs of a stream are between the first block of a plan and the last, and what is next.

A graph enters when there is a free slot, goes from block to block when all units of the block are done with it, and
leaves in the order in which it came. Where a unit fails, the graphs before that one still leave.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from gnnlab.errors import GnnlabError
from gnnlab.planning.simulation import window

if TYPE_CHECKING:
    from gnnlab.planning.execution import Executor
    from gnnlab.worker import Answer


class Report(NamedTuple):
    """What became of a graph in a block on a unit; `item` is its place in the stream."""

    item: int
    block: int
    unit: str
    answer: Answer


class Flying(NamedTuple):
    """A graph in flight: which of the graphs it is, the slot for its values, when it entered."""

    graph: int
    slot: int
    entered_s: float


class Window:
    """The in-flight window of one stream: graphs between entering the first block and leaving the last."""

    def __init__(self, executor: Executor, stream: Iterator[tuple[int, int]]) -> None:
        self.executor, self.stream = executor, stream
        self.free = list(range(window(len(executor.plan.blocks))))
        self.open: dict[tuple[int, int], int] = {}  # parts that are not done, by item and block
        self.flying: dict[int, Flying] = {}
        self.done: set[int] = set()
        self.failed: Report | None = None
        self.owing = 0  # reports that have yet to come
        self.next = 0

    def results(self) -> Iterator[tuple[int, Flying]]:
        self._enter()
        while self.flying:
            while self.next in self.done:
                flying = self.flying.pop(self.next)
                yield self.next, flying
                self.free.append(flying.slot)
                self.next += 1
                self._enter()
            if self.failed is not None and self.next >= self.failed.item:
                raise GnnlabError(self._why())
            if self.flying:
                self._take(self.executor.next_report())

    def drain(self) -> None:
        """Wait for what is still at work, so that the next stream begins on idle units."""
        while self.owing and self.executor.next_report() is not None:
            self.owing -= 1

    def _enter(self) -> None:
        """Let graphs in while there are slots."""
        while self.free and self.failed is None:
            following = next(self.stream, None)
            if following is None:
                return
            item, graph = following
            self.flying[item] = Flying(graph, self.free.pop(), time.perf_counter())
            self._send(0, item)

    def _send(self, block: int, item: int) -> None:
        units = len(self.executor.plan.blocks[block].units)
        self.open[item, block] = units
        self.owing += units
        self.executor.send(block, item, self.flying[item].graph, self.flying[item].slot)

    def _take(self, report: Report | None) -> None:
        if report is None:
            self._lost()
        self.owing -= 1
        item, block = report.item, report.block
        if report.answer.status != "done":
            if self.failed is None or item < self.failed.item:
                self.failed = report
            return
        self.open[item, block] -= 1
        if self.open[item, block]:
            return
        if block + 1 == len(self.executor.plan.blocks):
            self.done.add(item)
        elif self.failed is None or item < self.failed.item:
            self._send(block + 1, item)

    def _lost(self) -> None:
        """Nothing came in time: end the processes that owe an answer."""
        self.owing = 0
        waiting = sorted({b for (item, b), parts in self.open.items() if parts and item in self.flying})
        units = [unit for b in waiting for unit in self.executor.plan.blocks[b].units]
        for unit in units:
            self.executor.workers[unit].kill()
        raise GnnlabError(
            f"{' or '.join(units)} gave no answer within {self.executor.timeout_s:g} s; {self.next} graphs came out"
        )

    def _why(self) -> str:
        item, place, unit, answer = self.failed
        block = self.executor.plan.blocks[place]
        return (
            f"{unit} failed at graph {item} of the stream (stages {block.first}-{block.last}): {answer.reason}; "
            f"the {self.next} before it came out"
        )
