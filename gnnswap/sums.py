"""Sums over the neighbours of one graph with fixed weights, prepared once: out = A x.

    total = NeighbourSum(neighbours, weight, x.dtype)   # weight (E,) in the order of neighbours.col, or None
    total(x)                                            # (num_nodes, F); differentiable in x
    Largest(neighbours)(x)                              # the largest over the edges of each target, as PyG's max

`weighted_sum` of `aggregation` takes weights that change from call to call. Here they stay, so the weights of the
transposed graph stay as well, and from Python to the kernel a call takes a few microseconds. A graph of some tens of
nodes is a product with a dense matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnswap.aggregation import bag, segment_sum
from gnnswap.fused import moments
from gnnswap.neighbours import Neighbours

# graphs of up to so many nodes, and of so many pairs of nodes an edge at most, are a dense matrix; measured with one
# AVX2 core: 1.2 times as fast as the bag at 32 to 48 nodes, 1.1 at 64, alike at 96, behind it from 128 on
DENSE_NODES = 64
DENSE_PAIRS_PER_EDGE = 16


def is_dense(graph: Neighbours) -> bool:
    """Is a dense (N, N) matrix the faster form of this graph?"""
    n = graph.num_nodes
    return n <= DENSE_NODES and graph.num_sources == n and n * n <= DENSE_PAIRS_PER_EDGE * graph.num_edges


class NeighbourSum:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j], (num_nodes, F); `weight` wants no gradient."""

    def __init__(self, graph: Neighbours, weight: Tensor | None, dtype: torch.dtype) -> None:
        self.graph, self.weight = graph, weight
        self.matrix = _dense_matrix(graph, weight, dtype) if is_dense(graph) else None
        occupied = graph.degree.nonzero().view(
            -1
        )  # targets with edges; where a tenth has none, products leave them out
        self.targets = occupied if occupied.shape[0] < 0.9 * graph.num_nodes else None
        self._transposed: tuple[Neighbours, Tensor | None] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self.matrix is not None:
            return self.matrix @ x
        if x.requires_grad and torch.is_grad_enabled():
            return _Sum.apply(x, self)
        return bag(x, self.graph, self.weight)

    def back(self, grad: Tensor) -> Tensor:
        """The gradient of x (num_sources, F) from that of the sum: the same over the edges the other way round."""
        if self.matrix is not None:
            return self.matrix.t() @ grad
        if self._transposed is None:
            with torch.inference_mode(False):  # what is cached must serve training, too
                back = self.graph.transposed
                self._transposed = back, None if self.weight is None else self.weight.index_select(0, back.order)
        return bag(grad, *self._transposed)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, total: NeighbourSum) -> Tensor:
        ctx.total = total
        return bag(x.detach(), total.graph, total.weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.total.back(grad), None


def fixed_sum(graph: Neighbours, weight: Tensor | None, dtype: torch.dtype, mean: bool = False) -> NeighbourSum:
    """The sum with weights (E,) of the edges as given, ones where they are None; with `mean` over the number of edges
    of each target."""
    weight = None if weight is None else weight.index_select(0, graph.order)
    if mean:
        share = graph.cast("mean_weight", dtype)
        weight = share if weight is None else weight * share
    return NeighbourSum(graph, weight, dtype)


def gcn_sum(graph: Neighbours, weight: Tensor | None, dtype: torch.dtype, loop: float | None) -> NeighbourSum:
    """D^-1/2 A D^-1/2 x, the sum of GCN (Kipf and Welling 2017), where D is the weight that each target gets.

    `weight` (E,), of the edges as given, in `dtype`; ones where it is None. `loop`: the weight of the self-loop that
    every node gets which has none, 1 where edges have no weights; None: the graph stays as it is.
    """
    edges = graph if loop is None else graph.looped
    if weight is None:
        degree = edges.degree.to(dtype)
    else:
        weight = weight.detach()
        if loop is not None:
            own = weight.new_full((graph.num_nodes,), loop)
            own[graph.edges[0, graph.loops].long()] = weight[graph.loops]
            weight = torch.cat([weight[~graph.loops], own])
        weight = weight.index_select(0, edges.order)
        degree = segment_sum(weight, edges)
    scale = degree.pow(-0.5)
    scale.masked_fill_(scale.isinf(), 0)
    norm = scale.index_select(0, edges.col).mul_(
        torch.repeat_interleave(scale, edges.degree, output_size=edges.num_edges)
    )
    return NeighbourSum(edges, norm if weight is None else norm.mul_(weight), dtype)


class Largest:
    """The largest x[j] over the edges (j -> i) of each target, (num_nodes, F); 0 for targets without edges. Ties share
    the gradient as PyG's (`fused.moments`)."""

    def __init__(self, graph: Neighbours) -> None:
        self.graph = graph

    def __call__(self, x: Tensor) -> Tensor:
        return moments(x, self.graph, ("max",))[0]


def _dense_matrix(graph: Neighbours, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A (N, N): A[i, j] is the sum of the weights of the edges j -> i."""
    values = torch.ones(graph.num_edges, dtype=dtype, device=graph.device) if weight is None else weight
    places = graph.row.long() * graph.num_sources + graph.col
    flat = values.new_zeros(graph.num_nodes * graph.num_sources).index_add_(0, places, values)
    return flat.view(graph.num_nodes, graph.num_sources)
