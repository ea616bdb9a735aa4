"""What a plan costs: which calls each unit makes for one graph, which bytes go along, how long that takes.

    model = Model(layer, costs)                       # costs: predicted times of blocks, and of transfers
    steps = model.steps(plan, nodes=4000, edges=9000)
    steps[0][0].ms(costs)                             # the first unit of the first block

A unit runs a block as one fused call where one was measured, else as the fewest measured calls that make it up. Units
that share a graph get parts of it with their halo; the halo is dropped as soon as no later stage looks at edges and
before the layer's products. What a block writes is copied once, into memory that the next unit can read;
the copy is on the account of the unit that writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnnlab.errors import GnnlabError
from gnnlab.planning.partition import PartSize, expected_shares
from gnnlab.planning.plans import Block, Plan
from gnnlab.workloads.staged import EDGES

if TYPE_CHECKING:
    from gnnlab.planning.table_costs import TableCosts
    from gnnlab.workloads.staged import StagedLayer

HOST = "host"  # where graphs come from and results go to
Span = tuple[int, int]


@dataclass(frozen=True)
class Call:
    """Stages `first`..`last` on a graph of this size, in one call."""

    first: int
    last: int
    nodes: int
    edges: int


@dataclass(frozen=True)
class Step:
    """What one unit does for one graph: its calls, and the ms of copies in and out of the memory that units share."""

    unit: str
    block: int
    calls: tuple[Call, ...]
    copies_ms: float

    def times(self, costs: TableCosts) -> tuple[float, float, float]:
        """Expected ms, and both ends: those of all calls at once."""
        times = [costs.predict(self.unit, c.first, c.last, c.nodes, c.edges) for c in self.calls]
        return tuple(
            self.copies_ms + sum(getattr(time, end) for time in times) for end in ("time_ms", "low_ms", "high_ms")
        )


Steps = tuple[tuple[Step, ...], ...]  # by block, by unit of the block
Shares = Callable[[Sequence[float]], Sequence[PartSize]]  # of the ratios in which units share a graph


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


def halo_ends(layer: StagedLayer) -> int | None:
    """The stage behind which a part no longer needs its halo: the last before the sums are multiplied by weights.

    None where no such product follows the sums: rows are then dropped from the result alone.
    """
    last = max((stage.number for stage in layer.stages if "edge_index" in stage.reads), default=len(layer.stages))
    products = (s.number for s in layer.stages[last:] if any(weight.dim() > 1 for weight in s.module.parameters()))
    return next((number - 1 for number in products), None)


def looks_at_edges(layer: StagedLayer, first: int, last: int) -> bool:
    """Does a part of the graph need a halo for these stages?"""
    block = layer.block(first, last)
    return any(EDGES in layer.values[name].dims for name in (*block.reads, *block.writes))


@dataclass(frozen=True, eq=False)
class Model:
    """A layer and the times of its blocks. `separate`: units with a memory of their own, to which a whole cut travels;
    all others read what lies in this machine's memory."""

    layer: StagedLayer
    costs: TableCosts
    separate: frozenset[str] = frozenset()
    _calls: dict[tuple, tuple[Span, ...] | None] = field(default_factory=dict, init=False, repr=False)

    def pieces(self, unit: str, first: int, last: int, shared: bool) -> tuple[Span, ...] | None:
        """The calls by which a unit runs a block; None where a time is missing."""
        key = (unit, first, last, shared)
        if key in self._calls:
            return self._calls[key]
        known, cut = self.costs.blocks(unit), halo_ends(self.layer)
        if not shared or cut is None or not first <= cut < last:
            found = cover(known, first, last)
        else:
            halves = cover(known, first, cut), cover(known, cut + 1, last)
            found = None if None in halves else (*halves[0], *halves[1])
        self._calls[key] = found
        return found

    def runs(self, plan: Plan) -> bool:
        """Are the times of all its calls known?"""
        return all(self.pieces(u, b.first, b.last, b.shared) is not None for b in plan.blocks for u in b.units)

    def steps(self, plan: Plan, nodes: int, edges: int, shares: Shares | None = None) -> Steps:
        """What each unit does for one graph of this size. `shares`: how it is cut; by default as a random graph is.

        Raises:
            GnnlabError: the time of a block is not known.
        """
        shares = shares or (lambda ratios: expected_shares(nodes, edges, ratios))
        after = [block.units for block in plan.blocks[1:]] + [(HOST,)]
        found = []
        for place, (block, targets) in enumerate(zip(plan.blocks, after, strict=True)):
            sizes = shares(block.ratios) if block.shared else [PartSize(nodes, 0, edges)]
            group = []
            for unit, ratio, size in zip(block.units, block.ratios, sizes, strict=True):
                copies = self._in_ms(unit, block, place, size, nodes, edges)
                handed = [(target, self.moved_bytes(block, unit, target, nodes, edges)) for target in targets]
                copies += ratio * max(self.costs.transfer_ms(unit, *each) for each in handed)  # to the slowest reader
                group.append(Step(unit, place, self._calls_of(unit, block, size), copies))
            found.append(tuple(group))
        return tuple(found)

    def _calls_of(self, unit: str, block: Block, share: PartSize) -> tuple[Call, ...]:
        spans = self.pieces(unit, block.first, block.last, block.shared)
        if spans is None:
            raise GnnlabError(
                f"no time of stages {block.first}-{block.last} on {unit}: neither fused nor in parts; measure the "
                "missing cells (notebook 05)"
            )
        cut = halo_ends(self.layer) or block.last
        halo = share.halo if looks_at_edges(self.layer, block.first, block.last) else 0
        return tuple(Call(a, b, share.targets + halo * (a <= cut), share.edges) for a, b in spans)

    def _in_ms(self, unit: str, block: Block, place: int, share: PartSize, nodes: int, edges: int) -> float:
        """Bringing in: rows of a part that do not lie side by side; the graph itself where a device comes first."""
        if unit in self.separate:
            return self.costs.transfer_ms(HOST, unit, self.layer.cut_bytes(0, nodes, edges)) if place == 0 else 0.0
        if not block.shared or not looks_at_edges(self.layer, block.first, block.last):
            return 0.0
        return self.costs.transfer_ms(HOST, unit, self.gathered_bytes(block, share))

    def gathered_bytes(self, block: Block, share: PartSize) -> int:
        """Bytes of the rows that a part of the graph is given, halo included; its edges are renumbered beforehand."""
        found = self.layer.block(block.first, block.last)
        names = set(found.reads) - found.shape_only - {"edge_index"}
        return sum(self.layer.values[name].bytes(share.targets + share.halo, share.edges) for name in names)

    def moved_bytes(self, block: Block, source: str, target: str, nodes: int, edges: int) -> int:
        """Between units of this machine's memory: what the block writes. To or from another memory: all that later
        stages still read, the graph included."""
        if {source, target} & self.separate:
            return self.layer.cut_bytes(block.last, nodes, edges)
        names = self.layer.block(block.first, block.last).writes
        return sum(self.layer.values[name].bytes(nodes, edges) for name in names)

    def origins(self, steps: Steps) -> set[str]:
        """Where the times of these steps come from."""
        every = [(step.unit, call) for group in steps for step in group for call in step.calls]
        return {self.costs.predict(unit, c.first, c.last, c.nodes, c.edges).origin for unit, c in every}
