"""What the units of a plan do for one graph: which calls each makes, on how many nodes and edges, which bytes go along.

    steps = steps_of(plan, costs, nodes=4000, edges=9000)
    steps[0][0].times(costs)                  # of the first unit of the first block: ms, lower and upper end

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
    from gnnlab.workloads.staged import StagedLayer


class Call(NamedTuple):
    """Stages `first`..`last` on a graph of this size, in one call."""

    first: int
    last: int
    nodes: int
    edges: int


class Step(NamedTuple):
    """What one unit does for one graph: its calls, and the ms of copies in and out of the memory that units share."""

    unit: str
    calls: tuple[Call, ...]
    copies_ms: float

    def times(self, costs: Costs) -> tuple[float, float, float]:
        """Expected ms, and both ends: those of all calls at once."""
        times = [costs.predict(self.unit, *call) for call in self.calls]
        ends = ("time_ms", "low_ms", "high_ms")
        return tuple(self.copies_ms + sum(getattr(time, end) for time in times) for end in ends)


Steps = tuple[tuple[Step, ...], ...]  # by block, by unit of the block


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


def whole_until(layer: StagedLayer) -> int:
    """The stage up to which a part computes all rows: the last before the sums are multiplied by weights.

    Where no such product follows the sums that is the last stage, and rows are dropped from the result alone.
    """
    last = max((stage.number for stage in layer.stages if "edge_index" in stage.reads), default=len(layer.stages))
    products = (s.number for s in layer.stages[last:] if any(weight.dim() > 1 for weight in s.module.parameters()))
    return next((number - 1 for number in products), len(layer.stages))


def looks_at_edges(layer: StagedLayer, first: int, last: int) -> bool:
    """Does a part need rows of other nodes for these stages?"""
    block = layer.block(first, last)
    return any(EDGES in layer.values[name].dims for name in (*block.reads, *block.writes))


@lru_cache(maxsize=1024)
def pieces(costs: Costs, unit: str, first: int, last: int, shared: bool) -> tuple[Span, ...] | None:
    """The calls by which a unit runs a block; None where a time is missing."""
    known, whole = costs.blocks(unit), whole_until(costs.layer)
    if not (shared and first <= whole < last and looks_at_edges(costs.layer, first, last)):
        return cover(known, first, last)
    halves = cover(known, first, whole), cover(known, whole + 1, last)
    return None if None in halves else (*halves[0], *halves[1])


def runs(plan: Plan, costs: Costs) -> bool:
    """Are the times of all its calls known?"""
    return all(pieces(costs, u, b.first, b.last, b.shared) is not None for b in plan.blocks for u in b.units)


def steps_of(plan: Plan, costs: Costs, nodes: int, edges: int) -> Steps:
    """What each unit does for one graph of this size.

    Raises:
        GnnlabError: the time of a block is not known.
    """
    readers = [block.units for block in plan.blocks[1:]] + [(HOST,)]
    steps = []
    for place, (block, targets) in enumerate(zip(plan.blocks, readers, strict=True)):
        group = []
        for unit, ratio in zip(block.units, block.ratios, strict=True):
            handed = [(target, moved_bytes(costs, block, unit, target, nodes, edges)) for target in targets]
            copies_ms = ratio * max(costs.transfer_ms(unit, *each) for each in handed)  # to the slowest reader
            if unit in costs.separate and place == 0:  # the graph itself
                copies_ms += costs.transfer_ms(HOST, unit, costs.layer.cut_bytes(0, nodes, edges))
            elif block.shared and unit not in costs.separate:  # rows that do not lie side by side
                copies_ms += costs.transfer_ms(HOST, unit, gathered_bytes(costs, block, ratio * edges))
            group.append(Step(unit, _calls(costs, block, unit, ratio, nodes, edges), copies_ms))
        steps.append(tuple(group))
    return tuple(steps)


def _calls(costs: Costs, block: Block, unit: str, ratio: float, nodes: int, edges: int) -> tuple[Call, ...]:
    spans = pieces(costs, unit, block.first, block.last, block.shared)
    if spans is None:
        raise GnnlabError(
            f"no time of stages {block.first}-{block.last} on {unit}: neither fused nor in parts; measure the "
            "missing cells (notebook 05)"
        )
    own, into = max(1, round(ratio * nodes)), max(1, round(ratio * edges))
    whole = whole_until(costs.layer) if looks_at_edges(costs.layer, block.first, block.last) else 0
    return tuple(Call(first, last, nodes if first <= whole else own, into) for first, last in spans)


def gathered_bytes(costs: Costs, block: Block, edges: float) -> int:
    """Bytes of the values of edges that a part of a graph is given: those of its edges lie apart."""
    reads = set(costs.layer.block(block.first, block.last).reads) - {"edge_index"}
    values = [costs.layer.values[name] for name in reads]
    return sum(value.bytes(0, round(edges)) for value in values if EDGES in value.dims)


def moved_bytes(costs: Costs, block: Block, source: str, target: str, nodes: int, edges: int) -> int:
    """Between units of this machine's memory: what the block writes. To or from another memory: all that later stages
    still read, the graph included."""
    if {source, target} & costs.separate:
        return costs.layer.cut_bytes(block.last, nodes, edges)
    names = costs.layer.block(block.first, block.last).writes
    return sum(costs.layer.values[name].bytes(nodes, edges) for name in names)
