"""Where units work side by side: a worker for each, which takes graphs in the order in which they come, and the window
of the graphs that are at work.

    with UnitWorkers() as workers:
        workers.open("openvino:CPU", "plan", task, arrays)             # loads; GnnlabError says what it cannot run
        workers.pin({"openvino:CPU": 0})
        workers.submit("openvino:CPU", "plan", graph=0, slot=0, tell=print)

No unit shares an interpreter with another, each may be pinned to a core, and values travel in shared memory alone.

A graph of a stream enters when there is a free slot, goes from block to block when all units of the block are done with
it, and leaves in the order in which it came. Where a unit fails, the graphs before that one still leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from gnnlab.errors import GnnlabError
from gnnlab.planning.block_runner import BlockTask, SharedArrays
from gnnlab.planning.simulation import window
from gnnlab.worker import Answer, Worker

if TYPE_CHECKING:
    from gnnlab.campaign.cells import Cell, CellResult, Settings
    from gnnlab.planning.execution import Executor

OPEN_S = 180  # for models to compile on a busy machine
_RUNNER = "gnnlab.planning.block_runner"


class UnitWorkers(AbstractContextManager):
    """A worker for each unit that is asked for, by name; closed together. One that died is replaced when a plan opens.

    Whatever a plan opened is known by its `key`.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._pinned: dict[str, tuple[int | None, int]] = {}  # process and core: one that died is replaced silently

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        while self._workers:
            self._workers.popitem()[1].close()

    def start(self, units: Collection[str]) -> None:
        """Start what is not running, side by side."""
        for unit in units:
            self._workers.setdefault(unit, Worker(OMP_NUM_THREADS="1")).start()

    def pin(self, cores: Mapping[str, int | None]) -> None:
        """Keep units on cores from their next graph on; nobody waits for that. None leaves one where it is."""
        for unit, core in cores.items():
            worker = self[unit]
            if core is not None and self._pinned.get(unit) != (worker.pid, core):
                self._pinned[unit] = worker.pid, core
                worker.submit("gnnlab.worker_process:pin", {"core": core})

    def open(self, unit: str, key: str, task: BlockTask, arrays: SharedArrays) -> None:
        """Load the block of a plan. Raises `GnnlabError` where the unit cannot run it."""
        given = {"key": key, "task": asdict(task), "layout": arrays.layout}
        self[unit].call(f"{_RUNNER}:open_block", given, timeout_s=OPEN_S).get(unit)

    def submit(self, unit: str, key: str, graph: int, slot: int, tell: Callable[[Answer], None]) -> None:
        """Hand a graph of the plan to a unit; `tell` is called with the answer, in a thread of this process."""
        task = self[unit].submit(f"{_RUNNER}:run_block", {"key": key, "graph": graph, "slot": slot})
        task.add_done_callback(lambda done: tell(done.result()))

    def forget(self, unit: str, key: str) -> None:
        worker = self._workers.get(unit)
        if worker is not None and worker.alive:
            worker.call(f"{_RUNNER}:close_block", {"key": key}, timeout_s=OPEN_S)

    def measure(self, cell: Cell, settings: Settings) -> CellResult:
        """A call by itself, in the process that plans use."""
        from gnnlab.campaign import cells

        return cells.ask(self[cell.unit], cell, settings, OPEN_S)

    def __getitem__(self, unit: str) -> Worker:
        if unit not in self._workers:
            self.start([unit])
        return self._workers[unit]


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
        self.pending = 0  # reports that have yet to come
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
                item, place, unit, answer = self.failed
                block = self.executor.plan.blocks[place]
                raise GnnlabError(
                    f"{unit} failed at graph {item} of the stream (stages {block.first}-{block.last}): "
                    f"{answer.reason}; the {self.next} before it came out"
                )
            if self.flying:
                self._take(self.executor.next_report())

    def drain(self) -> None:
        """Wait for what is still at work, so that the next stream begins on idle units."""
        while self.pending and self.executor.next_report() is not None:
            self.pending -= 1

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
        self.pending += units
        self.executor.send(block, item, self.flying[item].graph, self.flying[item].slot)

    def _take(self, report: Report | None) -> None:
        if report is None:
            self._lost()
        self.pending -= 1
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
        """Nothing came in time: end the processes that gave no answer."""
        self.pending = 0
        waiting = sorted({b for (item, b), parts in self.open.items() if parts and item in self.flying})
        units = [unit for b in waiting for unit in self.executor.plan.blocks[b].units]
        for unit in units:
            self.executor.workers[unit].kill()
        raise GnnlabError(
            f"{' or '.join(units)} gave no answer within {self.executor.timeout_s:g} s; {self.next} graphs came out"
        )
