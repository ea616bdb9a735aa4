"""A stream of graphs through the units of a plan, as a discrete-event simulation (SimPy).

    machine = Machine(cores=2)
    trace = simulate(works, machine, graphs=16)        # works: ms of each unit by block, as `Step.ms` gives them
    trace.latency_ms, trace.period_ms, trace.idle

Each unit takes the graphs in their order, one at a time. Graphs in flight are bounded, so a slow unit holds up those
before it. Units of the CPU are pinned to cores; those on one core share it. Units that are devices of their own have
no core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
Places = Mapping[str, int | str]  # the core of each unit; a device is its own


@dataclass(frozen=True)
class Machine:
    """`cores` of the CPU; `devices`: units that are hardware of their own."""

    cores: int = 2
    devices: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise GnnlabError(f"a machine of {self.cores} cores; at least 1 is needed")

    def places(self, works: Sequence[Work]) -> dict[str, int | str]:
        """A core for each unit by its ms of work for a graph, so that a stream flows fastest."""
        own = {work.unit: work.unit for work in works if work.unit in self.devices}
        order = sorted((work for work in works if work.unit not in own), key=lambda work: (-work.ms, work.unit))
        units = list(dict.fromkeys(work.unit for work in order))
        ways = [dict(zip(units, cores, strict=True)) | own for cores in _groupings(len(units), self.cores)]
        return ways[0] if len(ways) == 1 else min(ways, key=lambda way: self.period_ms(works, way))

    def period_ms(self, works: Sequence[Work], places: Places) -> float:
        """ms from one graph to the next in a long stream: the busiest core or device never waits."""
        busy = [sum(work.ms for work in own) for own in self.by_core(works, places).values()]
        return max([*busy, *(work.ms for work in works if work.unit in self.devices)])

    def by_core(self, works: Iterable[Work], places: Places) -> dict[int | str, list[Work]]:
        """The work on each core; what devices do is on none."""
        found: dict[int | str, list[Work]] = {}
        for work in works:
            if work.unit not in self.devices:
                found.setdefault(places[work.unit], []).append(work)
        return found


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

    def times(self, factor: float) -> Trace:
        """The same stream with all of its times so many times as long."""
        segments = (s._replace(start_ms=s.start_ms * factor, end_ms=s.end_ms * factor) for s in self.segments)
        return Trace(tuple(segments), *(tuple(ms * factor for ms in each) for each in (self.entered, self.left)))

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


def simulate(works: Works, machine: Machine, *, graphs: int = 16) -> Trace:
    """Send `graphs` through, as many at once as the `window` of so many blocks holds.

    Raises:
        GnnlabError: no graphs, no units, or a time that is negative or no number.
    """
    if graphs < 1 or not works:
        raise GnnlabError(f"a stream of {graphs} graphs through {len(works)} blocks; 1 of each at least")
    for work in (work for block in works for work in block):
        if not (np.isfinite(work.ms) and work.ms >= 0):
            raise GnnlabError(
                f"{work.unit} takes {work.ms} ms for a block; a finite time that is not negative is needed"
            )
    return _Stream(works, machine, graphs).run()


class _Stream:
    def __init__(self, works: Works, machine: Machine, graphs: int) -> None:
        self.env, self.graphs = simpy.Environment(), graphs
        every = [work for block in works for work in block]
        self.cores = _Cores(self.env, machine, machine.places(every))
        self.slots = simpy.Container(self.env, window(len(works)), window(len(works)))
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
            yield self.cores.work(work)
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

    def __init__(self, env: simpy.Environment, machine: Machine, places: Places) -> None:
        self.env, self.machine, self.places = env, machine, places
        self.running: dict[str, tuple[Work, simpy.Event]] = {}
        self.since = 0.0
        self.changed = env.event()
        env.process(self._watch())

    def work(self, work: Work) -> simpy.Event:
        """An event that comes when the work is done."""
        self._advance()
        done = self.env.event()
        self.running[work.unit] = (work, done)
        if not self.changed.triggered:
            self.changed.succeed()
        return done

    def _rates(self) -> dict[str, float]:
        """ms of work done in a ms: all of it for a device and for one unit on a core, a part where several share it."""
        on_core = self.machine.by_core([work for work, _ in self.running.values()], self.places)
        shared = {work.unit: 1 / len(own) for own in on_core.values() for work in own}
        return dict.fromkeys(self.running, 1.0) | shared

    def _advance(self) -> None:
        passed, rates = self.env.now - self.since, self._rates()
        self.running = {
            u: (work._replace(ms=work.ms - passed * rates[u]), done) for u, (work, done) in self.running.items()
        }
        self.since = self.env.now

    def _watch(self) -> Iterator[simpy.Event]:
        while True:
            self._advance()
            for unit in [u for u, (work, _) in self.running.items() if work.ms <= _EPSILON_MS]:
                self.running.pop(unit)[1].succeed()
            self.changed = self.env.event()
            rates = self._rates()
            next_ms = min((work.ms / rates[u] for u, (work, _) in self.running.items()), default=None)
            yield self.changed if next_ms is None else self.changed | self.env.timeout(next_ms)
