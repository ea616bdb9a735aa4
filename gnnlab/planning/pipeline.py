"""A stream of graphs through the units of a plan: when each works on which graph, by its expected times alone.

    machine = Machine(cores=2)
    trace = simulate(works, machine, graphs=16)        # works: ms of each unit, by block
    trace.latency_ms, trace.period_ms, trace.idle

Each unit takes the graphs in their order, one at a time, and graphs in flight are bounded, so a slow unit holds up
those before it: a unit of block b begins graph g when it has ended g - 1, when all units of block b - 1 have ended g,
and, in the first block, when graph g - `window` has left. Units that have one core take turns on it. Units that are
devices of their own have no core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gnnlab.errors import GnnlabError


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

    def places(self, works: Iterable[Work]) -> dict[str, int | str]:
        """A core for each unit by its ms of work for a graph, so that a stream flows fastest."""
        works = sorted(works, key=lambda work: (-work.ms, work.unit))
        devices = {work.unit: work.unit for work in works if work.unit in self.devices}
        units = [work.unit for work in works if work.unit not in devices]
        ways = [dict(zip(units, cores, strict=True)) | devices for cores in _groupings(len(units), self.cores)]
        return ways[0] if len(ways) == 1 else min(ways, key=lambda way: self.period_ms(works, way))

    def period_ms(self, works: Iterable[Work], places: Places) -> float:
        """ms from one graph to the next in a long stream: the busiest core or device never waits."""
        busy: dict[int | str, float] = {}
        for work in works:
            busy[places[work.unit]] = busy.get(places[work.unit], 0.0) + work.ms
        return max(busy.values())


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


def window(blocks: int) -> int:
    """How many graphs are in flight at once: one for each block, and one that waits."""
    return blocks + 1


@dataclass(frozen=True)
class Trace:
    """What became of a stream."""

    segments: tuple[Segment, ...]

    def times(self, factor: float) -> Trace:
        """The same stream with all of its times so many times as long."""
        longer = (s._replace(start_ms=s.start_ms * factor, end_ms=s.end_ms * factor) for s in self.segments)
        return Trace(tuple(longer))

    @property
    def left(self) -> list[float]:
        """ms at which each graph left."""
        ends: dict[int, float] = {}
        for segment in self.segments:
            ends[segment.graph] = max(ends.get(segment.graph, 0.0), segment.end_ms)
        return [ends[graph] for graph in sorted(ends)]

    @property
    def entered(self) -> list[float]:
        """ms at which each graph could enter: at once, or when another one left."""
        most = window(1 + max(segment.block for segment in self.segments))
        return [0.0] * min(most, len(self.left)) + self.left[:-most]

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
        left = self.left
        return (left[-1] - left[0]) / (len(left) - 1) if len(left) > 1 else left[0]

    @property
    def idle(self) -> dict[str, float]:
        """Share of the time in which a unit does nothing."""
        busy: dict[str, float] = {}
        for segment in self.segments:
            busy[segment.unit] = busy.get(segment.unit, 0.0) + segment.end_ms - segment.start_ms
        return {unit: 1 - ms / self.total_ms for unit, ms in busy.items()}


def simulate(works: Works, machine: Machine, *, graphs: int = 16) -> Trace:
    """Send `graphs` through, as many at once as the `window` of so many blocks holds.

    Raises:
        GnnlabError: no graphs, no units, or a time that is negative or no number.
    """
    if graphs < 1 or not works:
        raise GnnlabError(f"a stream of {graphs} graphs through {len(works)} blocks; 1 of each at least")
    units = [(block, work) for block, group in enumerate(works) for work in group]
    for _, (unit, ms) in units:
        if not (np.isfinite(ms) and ms >= 0):
            raise GnnlabError(f"{unit} takes {ms} ms for a block; a finite time that is not negative is needed")
    places = machine.places([work for _, work in units])
    free = dict.fromkeys(places.values(), 0.0)  # ms from which on each core or device is free
    following = dict.fromkeys(places, 0)  # the graph that each unit takes next
    ends: dict[tuple[int, int], list[float]] = {}  # by graph and block, of the units that have ended it
    segments = []

    def ready(graph: int, block: int) -> float:
        """ms from which on a block can begin a graph; infinite where that is not known yet."""
        before = (graph, block - 1) if block else (graph - window(len(works)), len(works) - 1)
        if before[0] < 0:
            return 0.0
        ended = ends.get(before, [])
        return max(ended) if len(ended) == len(works[before[1]]) else np.inf

    for _ in range(graphs * len(units)):
        starts = [
            (max(ready(following[work.unit], block), free[places[work.unit]]), following[work.unit], -block, place)
            for place, (block, work) in enumerate(units)
            if following[work.unit] < graphs
        ]
        start, graph, _, place = min(starts)  # who can begin first; of several, with the graph that came first
        block, (unit, ms) = units[place]
        segments.append(Segment(graph, block, unit, start, start + ms))
        ends.setdefault((graph, block), []).append(start + ms)
        free[places[unit]], following[unit] = start + ms, graph + 1
    return Trace(tuple(segments))
