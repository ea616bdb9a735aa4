"""The edges of a graph in the order of their targets, and what depends on them alone, computed once.

    edges = Edges.of(graphs.get(edge_index, num_nodes))
    edges.index                      # (2, E) sorted by target; it carries `edges`, see `edges_of`
    edges.arranged(edge_weight)      # values of the edges in that order
    gather(x, edges, SOURCE)         # x[j] of each edge; its gradient is a sum over sorted edges
    total(values, edges)             # sum over the edges of each target

A layer that gets `edges.index` in place of its own edges does all its work in this order: softmax and sums run over
neighbouring rows, and weights need no permutation. PyG's functions that derive edges from edges keep what they make:

    code = rebound(GCNConv.forward)     # the same code; where it says `gcn_norm` it finds the one that keeps

Edges that are not sorted ones go to PyG's function as they are.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch_geometric import utils
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnlab.kernels.aggregation import segment_sum
from gnnlab.kernels.attention import segment_softmax
from gnnlab.kernels.kept import Kept
from gnnlab.kernels.neighbours import Neighbours

KEPT = 16  # values of edges and what was made of them, a graph
SOURCE, TARGET = 0, 1  # rows of edge_index


class Edges:
    """Sorted edges: `index` (2, E), `target` (E,), and `neighbours`, the same in compressed rows."""

    def __init__(self, neighbours: Neighbours) -> None:
        self.neighbours = neighbours
        self.index = torch.stack([neighbours.col, neighbours.row]).long()
        self.target = self.index[TARGET]
        self.index._gnnlab_edges = self.target._gnnlab_segments = self
        self.moved = not torch.equal(neighbours.order, torch.arange(neighbours.num_edges, dtype=neighbours.order.dtype))
        self._kept = Kept(KEPT)

    @classmethod
    def of(cls, neighbours: Neighbours) -> Edges:
        """The edges of a prepared graph, made when first asked for and kept with it."""
        return neighbours.once("edges", lambda: cls(neighbours))

    def arranged(self, values: Tensor) -> Tensor:
        """`values` (E, ...) of the edges as they were given, in the order of the sorted ones; kept where they stay."""
        return self.neighbours.sorted_weight(values) if self.moved else values

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` derives from these edges alone."""
        return self.neighbours.once(key, make)

    def kept(self, key: Any, given: Tensor | None, make: Callable[[], Any]) -> Any:
        """What `make` derives from these edges and `given`; a changed `given`, also in place, is seen.

        What wants a gradient is made anew in each call.
        """
        if given is None:
            return self.once(key, make)
        return make() if given.requires_grad else self._kept.get(given, make, key)

    def count(self, dtype: torch.dtype) -> Tensor:
        """The edges of each target, at least 1, (num_nodes,)."""
        return self.once(("count", dtype), lambda: self.neighbours.degree.clamp(min=1).to(dtype))

    def __deepcopy__(self, memo: dict) -> Edges:
        return self  # immutable


def edges_of(edge_index: Any) -> Edges | None:
    """The sorted edges that this very tensor is the index of; None for any other."""
    return getattr(edge_index, "_gnnlab_edges", None)


def segment_of(index: Any) -> Edges | None:
    """The sorted edges that this very tensor holds the targets of; None for any other."""
    return getattr(index, "_gnnlab_segments", None)


def gather(x: Tensor, edges: Edges, side: int) -> Tensor:
    """x[source] or x[target] of each edge, (E, ...) for x (nodes, ...)."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _Gather.apply(x, edges, side)
    return x.index_select(0, edges.index[side])


def total(values: Tensor, edges: Edges) -> Tensor:
    """The sum over the edges of each target, (num_nodes, ...) of values (E, ...)."""
    if torch.is_grad_enabled() and values.requires_grad:
        return _Total.apply(values, edges)
    return segment_sum(values, edges.neighbours)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, edges: Edges, side: int) -> Tensor:
        ctx.edges, ctx.side = edges, side
        return x.index_select(0, edges.index[side])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        graph = ctx.edges.neighbours
        if ctx.side == TARGET:
            return segment_sum(grad, graph), None, None
        return segment_sum(grad, graph.transposed, graph.transposed.order), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        return segment_sum(values, edges.neighbours)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad.index_select(0, ctx.edges.index[TARGET]), None


def keeping(function: Callable) -> Callable:
    """`function(edge_index, edge_values, ...) -> (edge_index, edge_values)` whose edges depend on the edges alone."""

    @functools.wraps(function)
    def kept(edge_index: Any, values: Tensor | None = None, *args: Any, **named: Any) -> tuple[Any, Tensor | None]:
        edges = edges_of(edge_index)
        values = named.pop("edge_attr", named.pop("edge_weight", values))
        if edges is None or any(isinstance(a, Tensor) for a in (*args, *named.values())):
            return function(edge_index, values, *args, **named)
        key = (function.__name__, args, tuple(sorted(named.items(), key=lambda item: item[0])))
        made = edges.once((key, "edges"), lambda: _edges(edges.neighbours, function(edges.index, None, *args, **named)))

        def arranged() -> Tensor | None:
            new = function(edges.index, values, *args, **named)[1]
            return None if new is None else made.arranged(new)

        return made.index, edges.kept((key, "values"), values, arranged)

    return kept


def _edges(graph: Neighbours, result: tuple[Tensor, Tensor | None]) -> Edges:
    return Edges.of(Neighbours.prepare(result[0], graph.num_nodes, num_sources=graph.num_sources))


def softmax(
    src: Tensor, index: Tensor | None = None, ptr: Tensor | None = None, num_nodes: int | None = None, dim: int = 0
) -> Tensor:
    """As `torch_geometric.utils.softmax`; `src` (E,) or (E, H) with the targets of sorted edges takes the fast way."""
    edges = None if index is None else segment_of(index)
    if edges is None or dim != 0 or src.dim() not in (1, 2):
        return utils.softmax(src, index, ptr, num_nodes, dim)
    return segment_softmax(src, edges.neighbours)


REPLACED = {
    gcn_norm: keeping(gcn_norm),
    utils.add_self_loops: keeping(utils.add_self_loops),
    utils.add_remaining_self_loops: keeping(utils.add_remaining_self_loops),
    utils.remove_self_loops: keeping(utils.remove_self_loops),
    utils.get_laplacian: keeping(utils.get_laplacian),
    utils.softmax: softmax,
}


def rebound(function: types.FunctionType) -> types.FunctionType:
    """The same code, which finds the functions that keep where it names PyG's."""
    names = function.__globals__
    replaced = {
        name: REPLACED[names[name]]
        for name in function.__code__.co_names
        if isinstance(names.get(name), types.FunctionType) and names[name] in REPLACED
    }
    if not replaced:
        return function
    made = types.FunctionType(
        function.__code__, {**names, **replaced}, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)
