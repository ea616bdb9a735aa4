"""Where units work side by side: a thread or a process for each, which takes graphs in the order in which they come.

    with Lanes() as lanes:
        lane = lanes["openvino:CPU"]
        lane.open("plan", block, order, arrays)        # loads; GnnlabError says what the unit cannot run
        lane.submit("plan", Task(item=0, graph=0, slot=0), report)

Processes are the real thing: each is pinned to a core, and none shares an interpreter with another. Threads serve small
graphs and tests.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gnnlab.errors import GnnlabError, one_line
from gnnlab.planning.shared_arrays import LocalArrays, SharedArrays
from gnnlab.planning.station import Order, Station
from gnnlab.worker import Answer, Worker

if TYPE_CHECKING:
    from gnnlab.campaign.cells import Cell, CellResult, Settings

OPEN_S = 180  # for models to compile on a busy machine


class Task(NamedTuple):
    """A graph of the stream: its place in the stream, which of the graphs it is, and the slot for its values."""

    item: int
    graph: int
    slot: int


class Report(NamedTuple):
    """What became of a task, seconds of `time.perf_counter`. `error`: why there is no result."""

    unit: str
    block: int
    task: Task
    start_s: float
    end_s: float
    error: str | None = None


Tell = Callable[[Report], None]


class ThreadLane:
    """A unit in a thread of this process."""

    alive = True

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._stations: dict[str, tuple[Station, int]] = {}
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def open(self, key: str, block: int, order: Order, arrays: LocalArrays) -> None:
        self._stations[key] = Station(order, arrays), block

    def pin(self, core: int | None) -> None:
        """Threads of one process stay where the system puts them."""

    def submit(self, key: str, task: Task, tell: Tell) -> None:
        self._tasks.put((key, task, tell))

    def measure(self, cell: Cell, settings: Settings) -> CellResult:
        from gnnlab.campaign import cells

        return cells.measure(cell, settings)

    def forget(self, key: str) -> None:
        if key in self._stations:
            self._stations.pop(key)[0].close()

    def kill(self) -> None:
        """A thread cannot be ended; what it does is lost to the stream alone."""

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join()
        for key in list(self._stations):
            self.forget(key)

    def _serve(self) -> None:
        while (given := self._tasks.get()) is not None:
            key, task, tell = given
            station, block = self._stations[key]
            start, error = time.perf_counter(), None
            try:
                station.run(task.graph, task.slot)
            except Exception as failed:  # whatever a runtime raises belongs to this graph
                error = one_line(failed)
            tell(Report(self.unit, block, task, start, time.perf_counter(), error))


class ProcessLane:
    """A unit in a process of its own, which ends with this one. Tensors travel in shared memory alone."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._worker = Worker(OMP_NUM_THREADS="1")
        self._worker.start()
        self._blocks: dict[str, int] = {}
        self._pinned: tuple[int | None, int] | None = None  # process and core: one that died is replaced silently
        self._killed = False

    @property
    def alive(self) -> bool:
        return self._worker.alive

    def open(self, key: str, block: int, order: Order, arrays: SharedArrays) -> None:
        self._blocks[key] = block
        given = {"key": key, "order": order.to_json(), "layout": arrays.layout}
        answer = self._worker.call("gnnlab.planning.station:open_station", given, timeout_s=OPEN_S)
        if answer.status != "done":
            raise GnnlabError(f"{self.unit}: {answer.reason}")

    def pin(self, core: int | None) -> None:
        """Keep the process on a core from its next task on; nobody waits for that."""
        if core is None or self._killed:
            return
        self._worker.start()
        if self._pinned != (self._worker.pid, core):
            self._pinned = self._worker.pid, core
            self._worker.submit("gnnlab.worker:pin", {"core": core}, lambda answer: None)

    def submit(self, key: str, task: Task, tell: Tell) -> None:
        block = self._blocks[key]

        def told(answer: Answer) -> None:
            tell(Report(self.unit, block, task, answer.start_s, answer.end_s, answer.reason))

        if self._killed:
            now = time.perf_counter()
            told(Answer("failed", reason="its process was ended", start_s=now, end_s=now))
            return
        given = {"key": key, "graph": task.graph, "slot": task.slot}
        self._worker.submit("gnnlab.planning.station:run_station", given, told)

    def measure(self, cell: Cell, settings: Settings) -> CellResult:
        """A call by itself, in the process that plans use."""
        from gnnlab.campaign import cells

        return cells.ask(self._worker, cell, settings, OPEN_S)

    def forget(self, key: str) -> None:
        if self._blocks.pop(key, None) is not None and self.alive:
            self._worker.call("gnnlab.planning.station:close_station", {"key": key}, timeout_s=OPEN_S)

    def kill(self) -> None:
        """End it at once; what it was working on is reported as failed."""
        self._killed = True
        self._worker.close()

    close = kill


class Lanes:
    """A lane for each unit that is asked for, by name; closed together. One that died is replaced when asked for."""

    def __init__(self, *, processes: bool = True) -> None:
        self.processes = processes
        self._lanes: dict[str, ThreadLane | ProcessLane] = {}

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    def start(self, units: Sequence[str]) -> None:
        """Start what is not running, side by side."""
        for unit in units:
            if unit in self._lanes and not self._lanes[unit].alive:
                self._lanes.pop(unit).close()
            if unit not in self._lanes:
                self._lanes[unit] = ProcessLane(unit) if self.processes else ThreadLane(unit)

    def arrays(self, fields: Any) -> SharedArrays | LocalArrays:
        """Arrays that all lanes see, by shape and dtype."""
        return (SharedArrays if self.processes else LocalArrays).create(fields)

    def measure(self, cell: Cell, settings: Settings) -> CellResult:
        """A cell on the lane of its unit."""
        self.start([cell.unit])
        return self._lanes[cell.unit].measure(cell, settings)

    def __getitem__(self, unit: str) -> ThreadLane | ProcessLane:
        if unit not in self._lanes:
            self.start([unit])
        return self._lanes[unit]
