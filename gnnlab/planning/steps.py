"""What the units of a plan do for one graph: which calls each makes, on how many nodes and edges, which bytes go along.

    steps = steps_of(plan, costs, nodes=4000, edges=9000)
    steps[0].times(costs)                     # of the first unit: ms, lower and upper end

A unit runs a block as one call where one was measured, else as the fewest measured calls that make it up. Units that
share a graph read the whole x; each has a range of the target nodes and the edges into them, in their ratios. Rows of
other nodes are dropped as soon as no later stage looks at edges and before the layer's products. What a block writes is
copied once, into memory that the next unit can read; the copy is on the account of the unit that writes.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import HOST, Costs, Span
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


class Step(NamedTuple):
    """What one unit does for one graph in its block of the plan: its calls, and the ms of copies in and out of the
    memory that units share."""

    block: int
    unit: str
    calls: tuple[Call, ...]
    copies_ms: float

    def times(self, costs: Costs) -> tuple[float, float, float]:
        """Expected ms, and both ends: those of all calls at once."""
        times = [costs.predict(self.unit, *call) for call in self.calls]
        return tuple(
            self.copies_ms + sum(getattr(time, end) for time in times) for end in ("time_ms", "low_ms", "high_ms")
        )


def cover(blocks: Collection[Span], first: int, last: int) -> tuple[Span, ...] | None:
    """The fewest of `blocks` that make up first..last, the longest first; None where they do not.

    >>> cover({(1, 5), (6, 6), (7, 7), (1, 1)}, 1, 7)
    ((1, 5), (6, 6), (7, 7))
    """
    best: dict[int, tuple[Span, ...]] = {last + 1: ()}
    for start in range(last, first - 1, -1):
        ways = [
            ((start, end), *best[end + 1])
            for end in range(last, start - 1, -1)
            if (start, end) in blocks and end + 1 in best
        ]
        if ways:
            best[start] = min(ways, key=len)
    return best.get(first)


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
        raise GnnlabError(f"stages {first}-{last} hand on values of edges; units share rows of nodes alone")
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
    if None in parts:
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


def steps_of(plan: Plan, costs: Costs, nodes: int, edges: int) -> tuple[Step, ...]:
    """What each unit does for one graph of this size, in the order of the plan.

    Raises:
        GnnlabError: the time of a block is not known, or it cannot be shared.
    """
    readers = [block.units for block in plan.blocks[1:]] + [(HOST,)]
    steps = []
    for place, (block, targets) in enumerate(zip(plan.blocks, readers, strict=True)):
        for unit, ratio in zip(block.units, block.ratios, strict=True):
            spans = pieces(costs, unit, block.first, block.last, block.shared)
            whole = whole_until(costs.layer, block.first, block.last) if block.shared else 0
            own, into = max(1, round(ratio * nodes)), max(1, round(ratio * edges))
            calls = tuple(Call(*span, nodes if span[0] <= whole else own, into) for span in spans)
            handed = [(target, moved_bytes(costs, block, unit, target, nodes, edges)) for target in targets]
            copies_ms = ratio * max(costs.transfer_ms(unit, *each) for each in handed)  # to the slowest reader
            if unit in costs.separate and place == 0:  # the graph itself
                copies_ms += costs.transfer_ms(HOST, unit, costs.layer.cut_bytes(0, nodes, edges))
            steps.append(Step(place, unit, calls, copies_ms))
    return tuple(steps)


def moved_bytes(costs: Costs, block: Block, source: str, target: str, nodes: int, edges: int) -> int:
    """Between units of this machine's memory: what the block writes. To or from another memory: all that later stages
    still read, the graph included."""
    if {source, target} & costs.separate:
        return costs.layer.cut_bytes(block.last, nodes, edges)
    names = block_of(costs.layer, block.first, block.last).writes
    return sum(costs.layer.values[name].bytes(nodes, edges) for name in names)
