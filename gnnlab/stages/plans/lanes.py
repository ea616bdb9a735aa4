"""Where units work side by side: a thread or a process for each, which takes graphs in the order in which they come.

    with Lanes(processes=True) as lanes:
        lane = lanes["openvino:CPU"]
        lane.open("plan", order, arrays)              # loads; StageError says what the unit cannot run
        lane.submit("plan", Task(item=0, graph=0, slot=0), report)

Processes are the real thing: each is pinned to a core, and none shares an interpreter with another. Threads serve small
graphs and tests.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from gnnlab.stages.child_environment import child_environment
from gnnlab.stages.errors import StageError
from gnnlab.stages.plans.station import Arrays, Order, Station
from gnnlab.stages.units.unit import first_line

OPEN_S = 180  # for packages to load and models to compile on a busy machine
_TAIL_BYTES = 4096


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

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._stations: dict[str, tuple[Station, int]] = {}
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def open(self, key: str, block: int, order: Order, arrays: Arrays) -> None:
        self._stations[key] = Station(order, arrays), block

    def pin(self, core: int | None) -> None:
        """Threads of one process stay where the system puts them."""

    def submit(self, key: str, task: Task, tell: Tell) -> None:
        self._tasks.put((key, task, tell))

    def forget(self, key: str) -> None:
        if key in self._stations:
            self._stations.pop(key)[0].close()

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
                error = f"{type(failed).__name__}: {first_line(failed)}"
            tell(Report(self.unit, block, task, start, time.perf_counter(), error))


class ProcessLane:
    """A unit in a process of its own, which ends with this one."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "gnnlab.stages.plans.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(OMP_NUM_THREADS="1"),
            bufsize=0,
        )
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._open: dict[str, tuple[int, dict[Task, Tell]]] = {}
        self._printed = bytearray()
        self._ended = False
        self._core: int | None = None
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_printed, self._read)]
        for reader in self._readers:
            reader.start()

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def open(self, key: str, block: int, order: Order, arrays: Any) -> None:
        self._open[key] = block, {}
        self._ask({"do": "open", "key": key, "order": order.to_json(), "layout": arrays.layout})

    def pin(self, core: int | None) -> None:
        """Keep the process on a core from its next task on; nobody waits for that."""
        if core is not None and core != self._core:
            self._core = core
            with suppress(OSError):  # a process that is gone says so at its next task
                self._send({"do": "pin", "core": core})

    def submit(self, key: str, task: Task, tell: Tell) -> None:
        _, waiting = self._open[key]
        waiting[task] = tell
        try:
            self._send({"do": "run", "key": key, "task": task})
        except OSError:
            self._give_up(self._death())
        if self._ended:
            self._give_up(self._death())

    def forget(self, key: str) -> None:
        if self._open.pop(key, None) is not None and self.alive:
            with suppress(StageError):
                self._ask({"do": "forget", "key": key})

    def close(self) -> None:
        with suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.kill()
        for reader in self._readers:
            reader.join(timeout=1)
        for pipe in (self._popen.stdout, self._popen.stderr):
            pipe.close()

    def kill(self) -> None:
        """End it at once; what it was working on is reported as failed."""
        self._popen.kill()
        self._popen.wait()

    def _ask(self, request: dict[str, Any]) -> None:
        """Send a request and wait until it is done. Raises `StageError` with the worker's reason."""
        try:
            self._send(request)
            answer = self._answers.get(timeout=OPEN_S)
        except (OSError, queue.Empty):
            answer = {"error": self._death() if not self.alive else f"no answer within {OPEN_S} s"}
        if error := answer.get("error"):
            raise StageError(f"{self.unit}: {error}")

    def _send(self, message: dict[str, Any]) -> None:
        self._popen.stdin.write(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        rest = b""
        with suppress(OSError, ValueError):
            while chunk := self._popen.stdout.read(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
        why, self._ended = self._death(), True
        self._answers.put({"error": why})
        self._give_up(why)

    def _take(self, answer: dict[str, Any]) -> None:
        if "task" not in answer:
            self._answers.put(answer)
            return
        block, waiting = self._open.get(answer["key"], (0, {}))
        task = Task(*answer["task"])
        if tell := waiting.pop(task, None):
            tell(Report(self.unit, block, task, answer["start"], answer["end"], answer.get("error")))

    def _give_up(self, why: str) -> None:
        now = time.perf_counter()
        for block, waiting in list(self._open.values()):
            for task in list(waiting):
                if tell := waiting.pop(task, None):
                    tell(Report(self.unit, block, task, now, now, why))

    def _death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=5)
        code = self._popen.poll()
        self._readers[0].join(timeout=1)
        lines = [line.strip() for line in bytes(self._printed).decode(errors="replace").splitlines() if line.strip()]
        said = f"; it last said: {' | '.join(lines[-2:])[-200:]}" if lines else ""
        return f"its process ended with code {code}{said}"

    def _read_printed(self) -> None:
        with suppress(OSError, ValueError):
            while chunk := self._popen.stderr.read(65536):
                self._printed += chunk
                del self._printed[:-_TAIL_BYTES]


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

    def start(self, units: list[str]) -> None:
        """Start what is not running yet, side by side."""
        for unit in units:
            lane = self._lanes.get(unit)
            if lane is not None and self.processes and not lane.alive:
                lane.close()
                lane = None
            if lane is None:
                self._lanes[unit] = ProcessLane(unit) if self.processes else ThreadLane(unit)

    def __getitem__(self, unit: str) -> ThreadLane | ProcessLane:
        if unit not in self._lanes:
            self.start([unit])
        return self._lanes[unit]
