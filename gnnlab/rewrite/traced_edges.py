"""A graph of ATen operators whose sums over edges read the edges sorted.

The order of edges is free: a sum over the edges of each node does not depend on it. So the edges are sorted once by the
node that they are summed into, everything that a sum is made of is computed for the sorted edges, and each sum reads
consecutive rows, or, where its terms are gathered rows times weights, no terms at all but the rows themselves.

    scatter_add(zeros, 0, dst, weight * x[src])  ->  weighted_sum(x, rowptr, col, weight[order])
    scatter_add(zeros, 0, dst, any(terms))       ->  segment_sum(any(terms[order]), rowptr)
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node
from torch.fx.node import map_arg

import gnnlab.rewrite.operators  # noqa: F401  (defines torch.ops.gnnlab)
from gnnlab.rewrite import patterns
from gnnlab.rewrite.patterns import (
    Product,
    Scatter,
    SoftmaxNode,
    dot_of,
    gather_of,
    gradients_of,
    product_of,
    rows_of,
    softmaxes_of,
    strip,
    value,
)
from gnnlab.rewrite.traced_structure import structure_of

aten, ours = torch.ops.aten, torch.ops.gnnlab

NARROW = 32  # numbers a row that are sorted at every call rather than summed in the order they came in


@dataclass(frozen=True)
class TracedChange:
    """One operator of a graph: what it is now, or why it stayed."""

    where: str  # operator, and the line of the model that called it
    now: str  # "" where it stayed
    why: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.now}" if self.now else f"{self.where} stays: {self.why}"


@dataclass
class EdgeSet:
    """Edges that are computed with together: the list of nodes they are sorted by, and what was sorted so far."""

    key: Node
    rowptr: Node
    order: Node
    sorted: dict[Node, Node] = field(default_factory=dict)


class SortedEdges:
    """Rewrites `graph`, functional and with shapes, in place; `changes` says what became of each scatter.

    `fused`: what runs the graph fuses gathers with what follows, so that products of rows need no operator of ours.
    """

    def __init__(self, graph: Graph, fused: bool = False) -> None:
        self.graph, self.fused = graph, fused
        self.changes: list[TracedChange] = []
        self.structure = structure_of(graph)
        self._sets: dict[Node, EdgeSet] = {}  # by list of nodes
        self._known: dict[tuple, Node] = {}  # structure that was made here
        self._indices: dict[Node, frozenset[Node]] = {}
        self._local: dict[Node, bool] = {}
        self._anchor: Node | None = None
        self._softmaxes = softmaxes_of(graph)
        self._gradients = gradients_of(graph, self._softmaxes)

    def run(self) -> None:
        """Replace what can be replaced, and take out what is no longer used."""
        for node in list(self.graph.nodes):
            self._anchor = node
            if node not in self.structure and node.op == "call_function":
                new = self._replacement(node)
                if new is not None:
                    node.replace_all_uses_with(new)
                    self.graph.erase_node(node)
        self.graph.eliminate_dead_code()

    def _replacement(self, node: Node) -> Node | None:
        if node.target in patterns.SCATTERS:
            new, why = self._scattered(node)
            self.changes.append(TracedChange(_where(node), _name(new) if new else "", why))
            return new
        if node.target == aten.sum.dim_IntList and self._sums_edges(node):
            terms = self._sorted(node.args[0], self._set_of(node.args[0]))
            return self._emit(node.target, terms, *node.args[1:], **node.kwargs)
        return None

    def _scattered(self, node: Node) -> tuple[Node | None, str]:
        """(what takes a scatter's place or None, why it stays)."""
        found = patterns.scatter_of(node)
        if found is None:
            return None, "no sum of rows into rows"
        if found.index not in self.structure:
            return None, "its edges are computed from features or drawn at random"
        if value(node).device.type != "cpu":
            return None, f"it runs on {value(node).device.type}"
        if found.kind == "max" and not _shifts_a_softmax(node):
            return None, "a maximum is no sum"
        nodes = self._rows(found.base)
        new = self._maximum(found, nodes) if found.kind == "max" else self._sum(found, nodes)
        if found.kind == "mean":
            new = self._emit(aten.div.Tensor, new, self._counts(found, nodes, value(new)))
        return (new if patterns.is_zero(found.base) else self._emit(aten.add.Tensor, found.base, new)), ""

    # sums

    def _sum(self, found: Scatter, nodes: int | Node) -> Node:
        edges = self._edges(found)
        rowptr, order = self._sort(found.index, nodes, edges)
        product = product_of(found.values)
        if product is not None:
            return self._weighted_sum(product, edges, rowptr, order)
        terms = strip(found.values)
        if not self._worth_sorting(terms, edges):
            rowptr, order = self._sort(found.index, nodes, None)
            return self._emit(ours.weighted_sum.default, terms, rowptr, order, None)
        if order is None:
            return self._emit(ours.segment_sum.default, self._sorted(terms, edges), rowptr)
        return self._emit(ours.weighted_sum.default, self._sorted(terms, edges), rowptr, order, None)

    def _weighted_sum(self, product: Product, edges: EdgeSet, rowptr: Node, order: Node | None) -> Node:
        gather = product.gather
        col, weight = self._nodes(gather.index, edges), self._weight(product, edges)
        if order is not None:
            col = self._emit(aten.index_select.default, col, 0, order)
            weight = None if weight is None else self._emit(aten.index_select.default, weight, 0, order)
        if product.heads == 1:
            return self._emit(ours.weighted_sum.default, gather.x, rowptr, col, weight)
        heads = product.heads if type(product.heads) is int else self._emit(aten.sym_size.int, gather.x, 1)
        made = self._parts(ours.sort_heads.default, 3, rowptr, col, heads)
        return self._emit(ours.weighted_sum_heads.default, gather.x, *made, weight)

    def _weight(self, product: Product, edges: EdgeSet) -> Node | None:
        total = None
        for weight, divides in product.weights:
            weight = self._sorted(weight, edges)
            if total is None:
                total = self._emit(aten.reciprocal.default, weight) if divides else weight
            else:
                total = self._emit(aten.div.Tensor if divides else aten.mul.Tensor, total, weight)
        return total

    def _maximum(self, found: Scatter, nodes: int | Node) -> Node:
        edges = self._edges(found)
        rowptr, order = self._sort(found.index, nodes, edges)
        terms = self._sorted(found.values, edges)
        if order is not None:
            terms = self._emit(aten.index_select.default, terms, 0, order)
        return self._emit(ours.segment_max.default, terms, rowptr)

    def _counts(self, found: Scatter, nodes: int | Node, made: torch.Tensor) -> Node:
        rowptr, _ = self._sort(found.index, nodes, None)
        counts = self._emit(aten.clamp_min.default, self._emit(aten.diff.default, rowptr), 1)
        counts = self._emit(aten._to_copy.default, counts, dtype=made.dtype)
        for _ in range(made.dim() - 1):
            counts = self._emit(aten.unsqueeze.default, counts, -1)
        return counts

    def _sums_edges(self, node: Node) -> bool:
        terms, dims = node.args[:2]
        whole = not dims or any(dim % value(terms).dim() == 0 for dim in dims)
        return whole and self._set_of(terms) is not None and self._is_local(terms)

    def _worth_sorting(self, terms: Node, edges: EdgeSet) -> bool:
        width = value(terms).shape[1:].numel()
        return terms in edges.sorted or self._is_local(terms) or (type(width) is int and width <= NARROW)

    # edges in order

    def _sorted(self, node: Node, edges: EdgeSet) -> Node:
        """What `node` (E, ...) is for the edges in their order; made at most once."""
        node = strip(node)
        if node not in edges.sorted:
            edges.sorted[node] = self._make_sorted(node, edges)
        return edges.sorted[node]

    def _make_sorted(self, node: Node, edges: EdgeSet) -> Node:
        if node in self.structure:
            return self._emit(aten.index_select.default, node, 0, edges.order)
        if found := gather_of(node):
            return self._emit(aten.index_select.default, found.x, 0, self._nodes(found.index, edges))
        if dot := self._dot(node, edges):
            return dot
        if node in self._softmaxes or node in self._gradients:
            return self._softmax(node, edges)
        rows = rows_of(node)
        if rows is None:
            return self._emit(aten.index_select.default, node, 0, edges.order)
        args = map_arg(node.args, lambda n: self._sorted(n, edges) if n in rows else n)
        return self._emit(node.target, *args, **node.kwargs)

    def _dot(self, node: Node, edges: EdgeSet) -> Node | None:
        """Products of gathered rows where one of them is gathered by what the edges are sorted by."""
        found = None if self.fused else dot_of(node)
        if found is None or value(found[0].x).dim() not in (2, 3):
            return None
        a, b = found if found[0].index is edges.key else reversed(found)
        if a.index is not edges.key:
            return None
        indices = self._nodes(a.index, edges), self._nodes(b.index, edges)
        made = self._emit(ours.edge_dot.default, a.x, b.x, edges.rowptr, *indices)
        keeps = value(made).dim() < value(node).dim()
        return self._emit(aten.unsqueeze.default, made, -1) if keeps else made

    def _softmax(self, node: Node, edges: EdgeSet) -> Node:
        """A softmax over edges, or its gradient; one over other edges than these are sorted by is permuted."""
        found = self._softmaxes.get(node) or self._gradients[node]
        if found.index is not edges.key:
            return self._emit(aten.index_select.default, node, 0, edges.order)
        segments = edges.rowptr, self._nodes(found.index, edges)
        if isinstance(found, SoftmaxNode):
            return self._emit(ours.segment_softmax.default, self._sorted(found.scores, edges), *segments)
        grad, weight = self._sorted(found.grad, edges), self._sorted(found.weight, edges)
        return self._emit(ours.segment_softmax_backward.default, grad, weight, *segments)

    def _nodes(self, index: Node, edges: EdgeSet) -> Node:
        """A list of nodes in the order of the edges, int32."""
        made = self._emit(aten.index_select.default, index, 0, edges.order)
        return self._emit(aten._to_copy.default, made, dtype=torch.int32)

    def _edges(self, found: Scatter) -> EdgeSet:
        """The edges that a scatter belongs to; new ones are sorted by its index."""
        indices = {found.index, *self._indices_in(found.values)}
        edges = next((self._sets[index] for index in indices if index in self._sets), None)
        if edges is None:
            edges = EdgeSet(found.index, *self._sort(found.index, self._rows(found.base), None))
        for index in indices:
            self._sets.setdefault(index, edges)
        return edges

    def _set_of(self, node: Node) -> EdgeSet | None:
        return next((self._sets[index] for index in self._indices_in(node) if index in self._sets), None)

    def _indices_in(self, node: Node) -> frozenset[Node]:
        """The lists of nodes whose k-th entries decide the k-th row of `node`."""
        node = strip(node)
        if node not in self._indices:
            found = gather_of(node)
            if node in self.structure:
                self._indices[node] = frozenset()
            elif found:
                self._indices[node] = frozenset([found.index] if found.index in self.structure else [])
            else:
                rows = rows_of(node) or ()
                self._indices[node] = frozenset().union(*map(self._indices_in, rows))
        return self._indices[node]

    def _is_local(self, node: Node) -> bool:
        """Is `node` made of gathered rows and structure alone, so that sorting it permutes nothing?"""
        node = strip(node)
        if node not in self._local:
            if found := gather_of(node):
                self._local[node] = found.index in self.structure
            else:
                rows = rows_of(node)
                self._local[node] = node in self.structure or (bool(rows) and all(map(self._is_local, rows)))
        return self._local[node]

    def _sort(self, index: Node, nodes: int | Node, edges: EdgeSet | None) -> tuple[Node, Node | None]:
        """(rowptr, order) of edges by `index`; of those of a set by their place in it, None where it is the same."""
        if edges is None or index is edges.key:
            rowptr, order = self._parts(ours.sort_edges.default, 2, index, nodes)
            return rowptr, None if edges else order
        return self._parts(ours.sort_edges.default, 2, self._nodes(index, edges), nodes)

    def _rows(self, base: Node) -> int | Node:
        size = value(base).shape[0]
        if type(size) is int:
            return size
        return base.args[0][0] if base.target == aten.full.default else self._emit(aten.sym_size.int, base, 0)

    # nodes

    def _emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node before the one that is being replaced; structure is made once."""
        given = list(_nodes_in((args, tuple(kwargs.values()))))
        fixed = all(n in self.structure for n in given)
        key = (target, _frozen(args), _frozen(tuple(kwargs.items())))
        if fixed and key in self._known:
            return self._known[key]
        values = map_arg((args, kwargs), lambda n: n.meta["val"])
        with _fake_mode(given):
            made = target(*values[0], **values[1])
        with self.graph.inserting_before(self._anchor):
            node = self.graph.call_function(target, args, kwargs)
        kept = {k: self._anchor.meta[k] for k in ("partitioner_tag", "stack_trace") if k in self._anchor.meta}
        node.meta = kept | {"val": made}
        if fixed:
            self.structure.add(node)
            self._known[key] = node
        return node

    def _parts(self, target: Any, count: int, *args: Any) -> list[Node]:
        whole = self._emit(target, *args)
        return [self._part(whole, place) for place in range(count)]

    def _part(self, whole: Node, place: int) -> Node:
        key = ("part", whole, place)
        if key not in self._known:
            with self.graph.inserting_after(whole):
                node = self.graph.call_function(operator.getitem, (whole, place))
            node.meta = {**whole.meta, "val": whole.meta["val"][place]}
            self._known[key] = node
            if whole in self.structure:
                self.structure.add(node)
        return self._known[key]


def _fake_mode(nodes: list[Node]) -> AbstractContextManager:
    """What lets operators run on shapes alone."""
    mode = detect_fake_mode([n.meta["val"] for n in nodes])
    return contextlib.nullcontext() if mode is None else mode


def _nodes_in(found: Any) -> Iterator[Node]:
    if isinstance(found, Node):
        yield found
    elif isinstance(found, tuple | list):
        for part in found:
            yield from _nodes_in(part)


def _frozen(found: Any) -> Any:
    return tuple(map(_frozen, found)) if isinstance(found, tuple | list) else found


def _shifts_a_softmax(node: Node) -> bool:
    """Is a maximum taken off scores before exp, and nothing else, so that its last bits do not matter?"""
    gathers = list(node.users)
    if not gathers or any((found := gather_of(user)) is None or found.x is not node for user in gathers):
        return False
    shifted = [user for gather in gathers for user in gather.users]
    fits = all(user.target == aten.sub.Tensor and user.args[1] in gathers for user in shifted)
    return fits and all(user.target == aten.exp.default for sub in shifted for user in sub.users)


def _name(node: Node) -> str:
    return str(node.target).removeprefix("gnnlab.").removesuffix(".default")


def _where(node: Node) -> str:
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip(" \t~^")]
    part = " (backward)" if node.meta.get("partitioner_tag") == "is_backward" else ""
    return _name(node).removeprefix("aten.") + part + (f" in `{lines[-1]}`" if lines else "")
