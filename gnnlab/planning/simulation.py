"""A stream of graphs through the units of a plan, as a discrete-event simulation (SimPy).

    machine = Machine(cores=2, slowdown=1.1)
    trace = simulate(works, machine, graphs=16)        # works: ms of each unit by block, as `Step.ms` gives them
    trace.latency_ms, trace.period_ms, trace.idle

Each unit takes the graphs in their order, one at a time. Graphs in flight are bounded, so a slow unit holds up those
before it. Units of the CPU are pinned to cores; those on one core share it, and work on several cores at once slows
all of it down by a factor that is measured (memory and caches are shared, and so may be the cores). Units that are
devices of their own slow nobody down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import simpy

from gnnlab.errors import GnnlabError

_EPSILON_MS = 1e-9


class Work(NamedTuple):
    """One unit's share of a block: ms for one graph while nothing else runs."""

    unit: str
    ms: float


Works = Sequence[Sequence[Work]]  # by block, by unit of the block


@dataclass(frozen=True)
class Machine:
    """`cores` of the CPU; `devices`: units that are hardware of their own; `slowdown`: how much longer work takes while
    one more core is at work, 1 for not at all."""

    cores: int = 2
    devices: frozenset[str] = frozenset()
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        if self.cores < 1 or not 1 <= self.slowdown < float("inf"):
            raise GnnlabError(
                f"a machine of {self.cores} cores with a slowdown of {self.slowdown}: at least 1 core, a factor from 1"
            )

    def factor(self, busy: int) -> float:
        """How much longer work on a core takes while so many cores are busy."""
        return 1 + (self.slowdown - 1) * max(0, busy - 1)

    def places(self, works: Mapping[str, float]) -> dict[str, int | str]:
        """A core for each unit by its ms of work for a graph, so that a stream flows fastest; devices are their own."""
        own = {unit: unit for unit in works if unit in self.devices}
        units = sorted(works.keys() - own.keys(), key=lambda unit: (-works[unit], unit))
        ways = [dict(zip(units, cores, strict=True)) | own for cores in _groupings(len(units), self.cores)]
        return ways[0] if len(ways) == 1 else min(ways, key=lambda way: float(self.period_ms(works, way)))

    def period_ms(self, works: Mapping[str, float | np.ndarray], places: Mapping[str, int | str]) -> float | np.ndarray:
        """ms from one graph to the next in a long stream; works are numbers or arrays of draws.

        The busiest core never waits; the others are busy beside it for all of their work, which is the most that they
        can be, so of loads a >= b >= c the part of a beyond b runs alone, that of b beyond c beside one more.
        """
        loads: dict[int | str, float | np.ndarray] = {}
        for unit, ms in works.items():
            loads[places[unit]] = loads.get(places[unit], 0.0) + ms
        cores = [load for place, load in loads.items() if not isinstance(place, str)]
        rising = np.sort(np.array(cores), axis=0)
        parts = np.diff(rising, axis=0, prepend=np.zeros_like(rising[:1]))  # by how much each load exceeds the next
        on_cores = sum(part * self.factor(len(cores) - rank) for rank, part in enumerate(parts))
        return reduce(np.maximum, (load for place, load in loads.items() if isinstance(place, str)), on_cores)


def _groupings(units: int, cores: int) -> Iterator[tuple[int, ...]]:
    """A core for each of so many units, each way once: cores are alike."""

    def grow(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(chosen) == units:
            yield chosen
            return
        for core in range(min(max(chosen, default=-1) + 2, cores)):
            yield from grow((*chosen, core))

    return grow(())


class Segment(NamedTuple):
    """A unit at work on a graph, ms from the start of the stream."""

    graph: int
    block: int
    unit: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Trace:
    """What became of a stream. `entered` and `left`: ms of each graph."""

    segments: tuple[Segment, ...]
    entered: tuple[float, ...]
    left: tuple[float, ...]

    @property
    def total_ms(self) -> float:
        return max(self.left)

    @property
    def latency_ms(self) -> float:
        """From entering to leaving, median."""
        return float(np.median(np.subtract(self.left, self.entered)))

    @property
    def period_ms(self) -> float:
        """Between graphs that leave, after the first; the latency where there is one alone."""
        return (self.left[-1] - self.left[0]) / (len(self.left) - 1) if len(self.left) > 1 else self.left[0]

    @property
    def busy_ms(self) -> dict[str, float]:
        units = dict.fromkeys(segment.unit for segment in self.segments)
        return {unit: sum(s.end_ms - s.start_ms for s in self.segments if s.unit == unit) for unit in units}

    @property
    def idle(self) -> dict[str, float]:
        """Share of the time in which a unit does nothing."""
        return {unit: 1 - busy / self.total_ms for unit, busy in self.busy_ms.items()}


def window(blocks: int) -> int:
    """How many graphs are in flight at once: one for each block, and one that waits."""
    return blocks + 1


def simulate(works: Works, machine: Machine, *, graphs: int = 16, in_flight: int | None = None) -> Trace:
    """Send `graphs` through; at most `in_flight` at once, by default the `window` of so many blocks.

    Raises:
        GnnlabError: no graphs, no units, or a time that is negative or no number.
    """
    if graphs < 1 or not works or (in_flight is not None and in_flight < 1):
        raise GnnlabError(f"a stream of {graphs} graphs through {len(works)} blocks, {in_flight} at once; 1 at least")
    for work in (work for block in works for work in block):
        if not (np.isfinite(work.ms) and work.ms >= 0):
            raise GnnlabError(
                f"{work.unit} takes {work.ms} ms for a block; a finite time that is not negative is needed"
            )
    return _Stream(works, machine, graphs, in_flight or window(len(works))).run()


class _Stream:
    def __init__(self, works: Works, machine: Machine, graphs: int, in_flight: int) -> None:
        self.env, self.graphs = simpy.Environment(), graphs
        loads = {work.unit: work.ms for block in works for work in block}
        self.cores = _Cores(self.env, machine, machine.places(loads))
        self.slots = simpy.Container(self.env, in_flight, in_flight)
        self.works = works
        self.queues = [[simpy.Store(self.env) for _ in block] for block in works]
        self.segments: list[Segment] = []
        self.entered, self.left = [0.0] * graphs, [0.0] * graphs
        self.open = {(graph, place): len(block) for graph in range(graphs) for place, block in enumerate(works)}

    def run(self) -> Trace:
        self.env.process(self._source())
        for place, block in enumerate(self.works):
            for queue, work in zip(self.queues[place], block, strict=True):
                self.env.process(self._unit(place, queue, work))
        self.env.run()
        return Trace(tuple(self.segments), tuple(self.entered), tuple(self.left))

    def _source(self) -> Iterator[simpy.Event]:
        for graph in range(self.graphs):
            yield self.slots.get(1)
            self.entered[graph] = self.env.now
            self._put(graph, 0)

    def _put(self, graph: int, place: int) -> None:
        for queue in self.queues[place]:
            queue.put(graph)

    def _unit(self, place: int, queue: simpy.Store, work: Work) -> Iterator[simpy.Event]:
        while True:
            graph = yield queue.get()
            start = self.env.now
            yield self.cores.work(work.unit, work.ms)
            self.segments.append(Segment(graph, place, work.unit, start, self.env.now))
            self._done(graph, place)

    def _done(self, graph: int, place: int) -> None:
        self.open[graph, place] -= 1
        if self.open[graph, place]:
            return
        if place + 1 < len(self.works):
            self._put(graph, place + 1)
            return
        self.left[graph] = self.env.now
        self.slots.put(1)


class _Cores:
    """Work in progress: what remains of each unit's, at rates that change whenever some begins or ends."""

    def __init__(self, env: simpy.Environment, machine: Machine, places: Mapping[str, int | str]) -> None:
        self.env, self.machine, self.places = env, machine, places
        self.running: dict[str, tuple[float, simpy.Event]] = {}
        self.since = 0.0
        self.changed = env.event()
        env.process(self._watch())

    def work(self, unit: str, ms: float) -> simpy.Event:
        """An event that comes when the work is done."""
        self._advance()
        done = self.env.event()
        self.running[unit] = (ms, done)
        if not self.changed.triggered:
            self.changed.succeed()
        return done

    def _rates(self) -> dict[str, float]:
        """ms of work done in a ms."""
        cores = [self.places[unit] for unit in self.running if unit not in self.machine.devices]
        factor = self.machine.factor(len(set(cores)))
        return {
            unit: 1.0 if unit in self.machine.devices else 1 / (cores.count(self.places[unit]) * factor)
            for unit in self.running
        }

    def _advance(self) -> None:
        passed, rates = self.env.now - self.since, self._rates()
        self.running = {u: (rest - passed * rates[u], done) for u, (rest, done) in self.running.items()}
        self.since = self.env.now

    def _watch(self) -> Iterator[simpy.Event]:
        while True:
            self._advance()
            for unit in [u for u, (rest, _) in self.running.items() if rest <= _EPSILON_MS]:
                self.running.pop(unit)[1].succeed()
            self.changed = self.env.event()
            rates = self._rates()
            next_ms = min((rest / rates[u] for u, (rest, _) in self.running.items()), default=None)
            yield self.changed if next_ms is None else self.changed | self.env.timeout(next_ms)
