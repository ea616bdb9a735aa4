"""A stream of graphs through the units of a plan: when each works on which graph, by its expected times alone.

    works = [Work(0, "fast:CPU", 3.0), Work(1, "openvino:CPU", 2.0)]        # block, unit, ms for a graph; or `works_of`
    places = places_of(works, cores=2)
    stream(works, places, graphs=16)

Each unit takes the graphs in their order, one at a time, and graphs in flight are bounded, so a slow unit holds up
those before it: a unit of block b begins graph g when it has ended g - 1, when all units of block b - 1 have ended g,
and, in the first block, when graph g - `window` has left. Units on one core take turns.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from gnnlab.planning.steps import Work

SEGMENTS = ["graph", "block", "unit", "start_ms", "end_ms"]  # a unit at work on a graph, ms from the stream's start
Places = Mapping[str, int | str]  # the core of each unit; a device is its own place


def window(blocks: int) -> int:
    """How many graphs are in flight at once: one for each block, and one that waits."""
    return blocks + 1


def places_of(works: Sequence[Work], cores: int, devices: Collection[str] = ()) -> dict[str, int | str]:
    """A core for each unit, the longest work first, each on the core that has least to do (Graham 1969); `devices` are
    hardware of their own."""
    places: dict[str, int | str] = {}
    busy = [0.0] * cores
    for work in sorted(works, key=lambda work: (-work.ms, work.unit)):
        core = busy.index(min(busy))
        places[work.unit] = work.unit if work.unit in devices else core
        busy[core] += 0.0 if work.unit in devices else work.ms
    return places


def stream(works: Sequence[Work], places: Places, graphs: int) -> list[tuple]:
    """The `SEGMENTS` of a stream of `graphs`, in the order in which they begin."""
    last = works[-1].block
    units = Counter(work.block for work in works)
    free = dict.fromkeys(places.values(), 0.0)  # ms from which on each core or device is free
    ended: dict[tuple[int, int], list[float]] = defaultdict(list)  # ms at which units ended a graph, by it and block
    waiting = dict.fromkeys(range(len(works)), 0)  # the graph that each unit takes next
    segments = []

    def start(place: int) -> tuple[float, int, int]:
        """ms at which a unit can begin its next graph, infinite where that is not known yet; of several units that can
        begin, the one with the graph that came first does."""
        graph, block = waiting[place], works[place].block
        before = (graph, block - 1) if block else (graph - window(last + 1), last)
        known = before[0] < 0 or len(ended[before]) == units[before[1]]
        ready = max(ended[before], default=0.0) if known else math.inf
        return max(ready, free[places[works[place].unit]]), graph, -block

    while waiting:
        place = min(waiting, key=start)
        (block, unit, ms, *_), (start_ms, graph, _) = works[place], start(place)
        segments.append((graph, block, unit, start_ms, start_ms + ms))
        ended[graph, block].append(start_ms + ms)
        free[places[unit]], waiting[place] = start_ms + ms, graph + 1
        if graph + 1 == graphs:
            del waiting[place]
    return segments


def flow(segments: pd.DataFrame) -> pd.Series:
    """Of a stream: median ms of a graph from entering to leaving, ms between graphs that leave after the first (of a
    lone graph its latency), and the share of the time in which each unit is idle."""
    left = segments.groupby("graph")["end_ms"].max().to_numpy()
    most = window(segments["block"].max() + 1)
    entered = np.concatenate([np.zeros(min(most, len(left))), left[:-most]])  # at once, or when another one left
    period = (left[-1] - left[0]) / (len(left) - 1) if len(left) > 1 else left[0]
    busy = (segments["end_ms"] - segments["start_ms"]).groupby(segments["unit"], sort=False).sum()
    idle = (1 - busy / left.max()).rename(index="idle: {}".format)
    lone = {"latency of a graph, with its wait": np.median(left - entered), "from graph to graph": period}
    return pd.concat([pd.Series(lone), idle])
