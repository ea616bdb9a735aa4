"""What the units of a plan do for one graph: the calls that each makes, how long they take, which bytes go along.

    works = works_of(plan, costs, nodes=4000, edges=9000)
    works[0].unit, works[0].ms, works[0].calls

A unit runs a block as one call where one was measured, else as a few measured calls that make it up. Units that share a
graph read the whole x; each has a range of the target nodes and the edges into them, in their ratios. Rows of other
nodes are dropped before the layer's products. What a block writes is copied once, into memory that the next unit can
read; the copy is on the account of the unit that writes.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import HOST, LEAST_FIRST, Costs, Span
from gnnlab.planning.plans import Block, Plan
from gnnlab.workloads.staged import EDGES

if TYPE_CHECKING:
    from gnnlab.workloads.staged import StageBlock, StagedLayer


class Call(NamedTuple):
    """Stages `first`..`last` on a graph of this size, in one call."""

    first: int
    last: int
    nodes: int
    edges: int


class Work(NamedTuple):
    """One unit's share of a block: ms for one graph while nothing else runs, all of its times at their lower and upper
    ends, and of their origins the one that says least about this machine."""

    block: int
    unit: str
    ms: float
    low_ms: float = 0.0
    high_ms: float = 0.0
    calls: tuple[Call, ...] = ()
    origin: str = ""


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


@lru_cache(maxsize=1024)
def pieces(costs: Costs, unit: str, first: int, last: int, shared: bool) -> tuple[Span, ...]:
    """The calls by which a unit runs a block.

    Raises:
        GnnlabError: a time is missing, or the block cannot be shared.
    """
    whole = whole_until(costs.layer, first, last) if shared else 0
    spans = [(first, whole), (whole + 1, last)] if first <= whole < last else [(first, last)]
    parts = [cover(costs.blocks(unit), *span) for span in spans]
    if () in parts:
        raise GnnlabError(
            f"no time of stages {first}-{last} on {unit}: neither fused nor in parts; measure the missing cells "
            "(notebook 05)"
        )
    return tuple(call for part in parts for call in part)


def runs(plan: Plan, costs: Costs) -> bool:
    """Are the times of all its calls known?"""
    try:
        return all(pieces(costs, u, b.first, b.last, b.shared) for b in plan.blocks for u in b.units)
    except GnnlabError:
        return False


def works_of(plan: Plan, costs: Costs, nodes: int, edges: int) -> tuple[Work, ...]:
    """What each unit does for one graph of this size, in the order of the plan.

    Raises:
        GnnlabError: the time of a block is not known, or it cannot be shared.
    """
    readers = [block.units for block in plan.blocks[1:]] + [(HOST,)]
    works = []
    for place, (block, targets) in enumerate(zip(plan.blocks, readers, strict=True)):
        for unit, ratio in zip(block.units, block.ratios, strict=True):
            spans = pieces(costs, unit, block.first, block.last, block.shared)
            whole = whole_until(costs.layer, block.first, block.last) if block.shared else 0
            own, into = max(1, round(ratio * nodes)), max(1, round(ratio * edges))
            calls = tuple(Call(*span, nodes if span[0] <= whole else own, into) for span in spans)
            times = [costs.predict(unit, *call) for call in calls]
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
