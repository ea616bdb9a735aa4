"""Where units work side by side: a worker for each, which takes graphs in the order in which they come.

    with UnitWorkers() as workers:
        workers.open("openvino:CPU", "plan", task, arrays)             # loads; GnnlabError says what it cannot run
        workers.pin({"openvino:CPU": 0})
        workers.submit("openvino:CPU", "plan", graph=0, slot=0, tell=print)

No unit shares an interpreter with another, each may be pinned to a core, and values travel in shared memory alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from gnnlab.planning.block_runner import BlockTask
from gnnlab.planning.shared_arrays import SharedArrays
from gnnlab.worker import Answer, Worker

if TYPE_CHECKING:
    from gnnlab.campaign.cells import Cell, CellResult, Settings

OPEN_S = 180  # for models to compile on a busy machine
_RUNNER = "gnnlab.planning.block_runner"


class UnitWorkers:
    """A worker for each unit that is asked for, by name; closed together. One that died is replaced when a plan opens.

    Whatever a plan opened is known by its `key`.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._pinned: dict[str, tuple[int | None, int]] = {}  # process and core: one that died is replaced silently

    def __enter__(self) -> UnitWorkers:
        return self

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
                worker.submit("gnnlab.worker_process:pin", {"core": core}, lambda answer: None)

    def open(self, unit: str, key: str, task: BlockTask, arrays: SharedArrays) -> None:
        """Load the block of a plan. Raises `GnnlabError` where the unit cannot run it."""
        given = {"key": key, "task": task.to_json(), "layout": arrays.layout}
        self[unit].call(f"{_RUNNER}:open_block", given, timeout_s=OPEN_S).get(unit)

    def submit(self, unit: str, key: str, graph: int, slot: int, tell: Callable[[Answer], None]) -> None:
        """Hand a graph of the plan over; `tell` gets the answer in a thread of ours."""
        self[unit].submit(f"{_RUNNER}:run_block", {"key": key, "graph": graph, "slot": slot}, tell)

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
