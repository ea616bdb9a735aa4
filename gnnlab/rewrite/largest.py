"""The largest of the rows of the sources of each target, without a row in memory for each edge.

As `scatter_reduce` with `amax` does, and PyG with it: 0 for targets without edges, and where several sources have the
largest number, its gradient goes to all of them in equal parts. Where that number is 0, torch counts the 0 that PyG
lets it start from as one more of them, whose part is lost; so does this.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnlab.kernels.aggregation import segment_sum
from gnnlab.rewrite.edges import Edges


def largest(x: Tensor, edges: Edges) -> Tensor | None:
    """max over the edges (j -> i) of x[j], (num_nodes, F) for x (num_sources, F); None where torch has no product."""
    graph = edges.neighbours
    known = x.dim() == 2 and x.dtype in (torch.float32, torch.float64) and x.numel() > 0
    # with more edges than pairs of nodes, torch cuts the indices that it is given
    if not known or not 0 < graph.num_edges <= graph.num_nodes * graph.num_sources:
        return None
    return _Largest.apply(x, edges)


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, edges: Edges) -> Tensor:
        out = torch.sparse.mm(_adjacency(edges, x.dtype), x.contiguous(), "amax")
        ctx.edges = edges
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (x, out), edges = ctx.saved_tensors, ctx.edges
        graph, back = edges.neighbours, edges.neighbours.transposed
        sent = (x.index_select(0, graph.col) == out.index_select(0, graph.row)).to(x.dtype)
        share = grad / segment_sum(sent, graph).view_as(grad).add_(out == 0).clamp_(min=1)
        sent.mul_(share.index_select(0, graph.row))
        return segment_sum(sent, back, back.order).view_as(x), None


def _adjacency(edges: Edges, dtype: torch.dtype) -> Tensor:
    return edges.once(("adjacency", dtype), lambda: _csr(edges, dtype))


def _csr(edges: Edges, dtype: torch.dtype) -> Tensor:
    graph = edges.neighbours
    size, ones = (graph.num_nodes, graph.num_sources), torch.ones(graph.num_edges, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        return torch.sparse_csr_tensor(graph.rowptr.long(), graph.col.long(), ones, size=size, check_invariants=False)
