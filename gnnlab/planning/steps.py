"""What the units of a plan do: the calls that each makes for a graph, what they take, and a stream of graphs by that.

    works = works_of(plan, costs, nodes=4000, edges=9000)
    works[0].unit, works[0].ms, works[0].calls
    stream(works, places_of(works, cores=2), graphs=16)         # when each unit works on which graph

A unit runs a block as one call where one was measured, else as a few measured calls that make it up. Units that share a
graph read the whole x; each has a range of the target nodes and the edges into them, in their ratios. Rows of other
nodes are dropped before the layer's products. What a block writes is copied once, into memory that the next unit can
read; the copy is on the account of the unit that writes.

In a stream each unit takes the graphs in their order, one at a time, and graphs in flight are bounded, so a slow unit
holds up those before it: a unit of block b begins graph g when it has ended g - 1, when all units of block b - 1 have
ended g, and, in the first block, when graph g - `window` has left. Units on one core take turns.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import HOST, LEAST_FIRST, Costs, Key, Span
from gnnlab.planning.plans import Block, Plan
from gnnlab.workloads.staged import EDGES

if TYPE_CHECKING:
    from gnnlab.workloads.staged import StageBlock, StagedLayer

SEGMENTS = ["graph", "block", "unit", "start_ms", "end_ms"]  # a unit at work on a graph, ms from the stream's start
Places = Mapping[str, int | str]  # the core of each unit; a device is its own place


class Work(NamedTuple):
    """One unit's share of a block: ms for one graph while nothing else runs, all of its times at their lower and upper
    ends, and of their origins the one that says least about this machine. `calls`: as `Costs.predict` takes them."""

    block: int
    unit: str
    ms: float
    low_ms: float = 0.0
    high_ms: float = 0.0
    calls: tuple[Key, ...] = ()
    origin: str = ""


@lru_cache(maxsize=256)
def block_of(layer: StagedLayer, first: int, last: int) -> StageBlock:
    """The stages `first`..`last` as a module, made once."""
    return layer.block(first, last)


@lru_cache(maxsize=256)
def whole_until(layer: StagedLayer, first: int, last: int) -> int:
    """The stage of a shared block up to which each part computes all rows: the last before the sums over edges are
    multiplied by weights, or `last` where no such product follows. 0 where no stage of the block looks at edges.

    Raises:
        GnnlabError: the block reads or writes values of edges, which are no rows of nodes.
    """
    block = block_of(layer, first, last)
    handed = {*block.reads, *block.writes} - {"edge_index"}
    if any(EDGES in layer.values[name].dims for name in handed):
        raise GnnlabError(
            f"stages {first}-{last} hand on values of edges, so units cannot share them; share a block that reads and "
            "writes values of nodes"
        )
    if "edge_index" not in block.reads:
        return 0
    sums = max(stage.number for stage in layer.stages if "edge_index" in stage.reads)
    products = (s.number for s in layer.stages[sums:] if any(weight.dim() > 1 for weight in s.module.parameters()))
    return min(last, next((number - 1 for number in products), len(layer.stages)))


def cover(blocks: Collection[Span], first: int, last: int) -> tuple[Span, ...]:
    """Those of `blocks` that make up first..last, the longest at each place; none where they do not.

    >>> cover({(1, 5), (6, 6), (7, 7), (1, 1)}, 1, 7)
    ((1, 5), (6, 6), (7, 7))
    """
    spans = []
    while first <= last:
        end = max((b for a, b in blocks if a == first and b <= last), default=0)
        if not end:
            return ()
        spans.append((first, end))
        first = end + 1
    return tuple(spans)


@lru_cache(maxsize=1024)
def spans_of(costs: Costs, unit: str, first: int, last: int, shared: bool) -> tuple[Span, ...]:
    """The stages of each call by which a unit runs a block.

    Raises:
        GnnlabError: a time is missing, or the block cannot be shared.
    """
    whole = whole_until(costs.layer, first, last) if shared else 0
    halves = [(first, whole), (whole + 1, last)] if first <= whole < last else [(first, last)]
    parts = [cover(costs.blocks(unit), *half) for half in halves]
    if () in parts:
        raise GnnlabError(
            f"no time of stages {first}-{last} on {unit}: neither fused nor in parts; measure the missing cells "
            "(notebook 05)"
        )
    return tuple(span for part in parts for span in part)


def works_of(plan: Plan, costs: Costs, nodes: int, edges: int) -> tuple[Work, ...]:
    """What each unit does for one graph of this size, in the order of the plan.

    Raises:
        GnnlabError: the time of a block is not known, or it cannot be shared.
    """
    readers = [block.units for block in plan.blocks[1:]] + [(HOST,)]
    works = []
    for place, (block, targets) in enumerate(zip(plan.blocks, readers, strict=True)):
        whole = whole_until(costs.layer, block.first, block.last) if block.shared else 0
        for unit, ratio in zip(block.units, block.ratios, strict=True):
            own, into = max(1, round(ratio * nodes)), max(1, round(ratio * edges))
            spans = spans_of(costs, unit, block.first, block.last, block.shared)
            calls = tuple((unit, *span, nodes if span[0] <= whole else own, into) for span in spans)
            times = [costs.predict(*call) for call in calls]
            handed = [(target, moved_bytes(costs, block, unit, target, nodes, edges)) for target in targets]
            copies_ms = ratio * max(costs.transfer_ms(unit, *each) for each in handed)  # to the slowest reader
            if unit in costs.separate and place == 0:  # the graph itself
                copies_ms += costs.transfer_ms(HOST, unit, costs.layer.cut_bytes(0, nodes, edges))
            ends = (copies_ms + sum(getattr(t, end) for t in times) for end in ("time_ms", "low_ms", "high_ms"))
            origin = min((time.origin for time in times), key=LEAST_FIRST.index)
            works.append(Work(place, unit, *ends, calls, origin))
    return tuple(works)


def moved_bytes(costs: Costs, block: Block, source: str, target: str, nodes: int, edges: int) -> int:
    """Between units of this machine's memory: what the block writes. To or from another memory: all that later stages
    still read, the graph included."""
    if {source, target} & costs.separate:
        return costs.layer.cut_bytes(block.last, nodes, edges)
    names = block_of(costs.layer, block.first, block.last).writes
    return sum(costs.layer.values[name].bytes(nodes, edges) for name in names)


# ---- a stream of graphs ----------------------------------------------------------------------------------------------


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
