"""Sums over the neighbours of one graph with fixed weights: out = A x.

    total = NeighbourSum(neighbours, weight)            # weight (E,) in the order of neighbours.col, or None
    total(x)                                            # (num_nodes, F); differentiable in x
    NeighbourMax(neighbours)(x)                              # the largest over the edges of each target, as PyG's max

`aggregation.weighted_sum` takes weights that change from call to call. Here they are fixed, so those of the transposed
graph are prepared once, and a call takes a few microseconds of Python.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from gnnswap import backends
from gnnswap.aggregation import (
    csr,
    embedding_bag_sum,
    has_csr,
    segment_sum,
    transformed,
    unrecorded_sum,
    weighted_sum_sorted,
)
from gnnswap.fused import multi_aggregate
from gnnswap.neighbours import Neighbours

# up to so many nodes, and pairs of nodes an edge, attention is faster over all pairs
DENSE_NODES = 96
DENSE_PAIRS_PER_EDGE = 16


def is_dense(graph: Neighbours) -> bool:
    """Is attention over all pairs of nodes faster than over the edges of this graph?"""
    n = graph.num_nodes
    return 0 < n <= DENSE_NODES and graph.num_sources == n and n * n <= DENSE_PAIRS_PER_EDGE * graph.num_edges


def all_finite(tensor: Tensor) -> bool:
    """Has it neither NaN nor infinity? One reduction; also False where the sum overflows."""
    return math.isfinite(tensor.detach().sum().item())


class NeighbourSum:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j], (num_nodes, F); `weight` wants no gradient.

    `kernel`: one of `backends.sum_kernels`; "": the default of the device.
    """

    def __init__(self, graph: Neighbours, weight: Tensor | None, kernel: str = "") -> None:
        self.graph, self.weight, self.kernel = graph, weight, kernel
        self._by: dict[str, NeighbourSum] = {}

    def by(self, kernel: str) -> NeighbourSum:
        """The same sum by this kernel."""
        if kernel == self.kernel:
            return self
        return self._by.setdefault(kernel, NeighbourSum(self.graph, self.weight, kernel))

    @cached_property
    def matrix(self) -> Tensor:
        """The graph with its weights as a sparse matrix (num_nodes, num_sources), for cuSPARSE."""
        with torch.inference_mode(False):
            return csr(self.graph, self.weight, self.graph.dtype)

    @cached_property
    def targets(self) -> Tensor | None:
        """Targets with edges, if a tenth or more has none, so that products may skip these; else None."""
        with torch.inference_mode(False):  # what is kept must serve training, too
            occupied = self.graph.degree.nonzero().view(-1)
        return occupied if occupied.shape[0] < 0.9 * self.graph.num_nodes else None

    @cached_property
    def transposed(self) -> NeighbourSum:
        """The sum over reversed edges: the gradient of x from that of the sum."""
        with torch.inference_mode(False):
            back = self.graph.transposed
            weight = None if self.weight is None else self.weight.index_select(0, back.permutation)
            return NeighbourSum(back, weight, self.kernel)

    def __call__(self, x: Tensor) -> Tensor:
        if transformed(x):
            return weighted_sum_sorted(x, self.graph, self.weight)
        recording = x.requires_grad and torch.is_grad_enabled()
        return _Sum.apply(x, self) if recording else self.unrecorded(x)

    def unrecorded(self, x: Tensor) -> Tensor:
        """The sum without autograd."""
        if not self.kernel or not x.numel() or not backends.on_gpu(x):
            return unrecorded_sum(x, self.graph, self.weight)
        if self.kernel == backends.CUSPARSE and x.dtype in backends.ON_CPU and has_csr(self.graph):
            matrix = self.graph.cached(_matrix_of_ones, x.dtype) if self.weight is None else self.matrix
            return torch.mm(matrix, x.detach())
        if self.kernel == backends.BAG:
            return embedding_bag_sum(x, self.graph, self.weight)
        return unrecorded_sum(x, self.graph, self.weight)


def _matrix_of_ones(graph: Neighbours, dtype: torch.dtype) -> Tensor:
    return csr(graph, torch.ones(graph.num_edges, dtype=dtype, device=graph.device), graph.dtype)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, total: NeighbourSum) -> Tensor:
        ctx.total = total
        return total.unrecorded(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.total.transposed(grad), None


def fixed_sum(graph: Neighbours, weight: Tensor | None, dtype: torch.dtype, mean: bool = False) -> NeighbourSum:
    """The sum with weights (E,) of the edges as given, None: ones; with `mean` divided by the edges of each target."""
    weight = None if weight is None else weight.index_select(0, graph.permutation)
    if mean:
        share = graph.cast("mean_weight", dtype)
        weight = share if weight is None else weight * share
    return NeighbourSum(graph, weight)


def gcn_sum(graph: Neighbours, weight: Tensor | None, dtype: torch.dtype, loop: float | None) -> NeighbourSum:
    """D^-1/2 A D^-1/2 x, the sum of GCN (Kipf and Welling 2017), where D is the weighted in-degree.

    `weight` (E,), of the edges as given, in `dtype`; None: ones. `loop`: the weight of the self-loop that is added to
    nodes without one; None: none are added. Norms are computed in float32 at least: bfloat16 counts only to 256.
    """
    edges = graph if loop is None else graph.with_self_loops
    kind, dtype = dtype, torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    weight = None if weight is None else weight.to(dtype)
    if weight is None:
        degree = edges.degree.to(dtype)
    else:
        weight = weight.detach()
        if loop is not None:
            own = weight.new_full((graph.num_nodes,), loop)
            own[graph.edges[0, graph.loops].long()] = weight[graph.loops]
            weight = torch.cat([weight[~graph.loops], own])
        weight = weight.index_select(0, edges.permutation)
        degree = segment_sum(weight, edges)
    scale = degree.pow(-0.5)
    scale.masked_fill_(scale.isinf(), 0)
    of_target = torch.repeat_interleave(scale, edges.degree, output_size=edges.num_edges)
    norm = scale.index_select(0, edges.col).mul_(of_target)
    return NeighbourSum(edges, (norm if weight is None else norm.mul_(weight)).to(kind))


class NeighbourMax:
    """The largest x[j] over the edges (j -> i) of each target, (num_nodes, F); 0 for targets without edges. Ties share
    the gradient as PyG's (`fused.multi_aggregate`)."""

    def __init__(self, graph: Neighbours) -> None:
        self.graph = graph

    def __call__(self, x: Tensor) -> Tensor:
        return multi_aggregate(x, self.graph, ("max",))[0]
