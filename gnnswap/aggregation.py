"""Sums over neighbours at the speed of the memory.

    neighbours = Neighbours.prepare(edge_index, num_nodes)
    weighted_sum(x, neighbours, weight)     # out[i] = sum over the edges (j -> i) of weight[edge] * x[j]
    mean(x, neighbours)                     # out[i] = mean over the edges (j -> i) of x[j], 0 where there are none

The usual form gathers a row for each edge, multiplies, and scatters: it writes and reads E x F numbers three times.
Here one embedding bag reads each source row as it adds, so only x and the result move. The backward pass is the same
bag on the transposed graph, and a dot product for each edge where weights want gradients.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnswap.neighbours import Neighbours

CHUNK_NUMBERS = 1 << 18  # of a product per edge that a thread has in memory at once: 1 MiB of float32, within the cache


def weighted_sum(x: Tensor, neighbours: Neighbours, weight: Tensor | None = None) -> Tensor:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j].

    `x` (num_sources, F), floating; `weight` (E,) in the order of `edge_index`, ones where it is None; the result is
    (num_nodes, F), in the type of `x`. Both may want gradients. In bf16 and fp16 sums are kept in float32. Weights that
    want none are sorted once and kept with the graph (`Neighbours.sorted_weight`).

    Raises:
        SwapError: `x` or `weight` do not belong to the prepared graph.
    """
    neighbours.require("x", x, (neighbours.num_sources, -1))
    if weight is not None:
        neighbours.require("weight", weight, (neighbours.num_edges,), x.dtype)
        weight = neighbours.sorted_weight(weight)
    return weighted_sum_sorted(x, neighbours, weight)


def mean(x: Tensor, neighbours: Neighbours) -> Tensor:
    """out[i] = mean over the edges (j -> i) of x[j], 0 where there are none; shapes as in `weighted_sum`."""
    neighbours.require("x", x, (neighbours.num_sources, -1))
    return weighted_sum_sorted(x, neighbours, neighbours.cast("mean_weight", x.dtype))


def weighted_sum_sorted(x: Tensor, neighbours: Neighbours, weight: Tensor | None) -> Tensor:
    """`weighted_sum` with weights that are in the order of `neighbours.col` already, and no checks."""
    wanted = torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad))
    if wanted:
        return _WeightedSum.apply(x, weight, neighbours)
    return bag(x, neighbours, weight)


def bag(x: Tensor, neighbours: Neighbours, weight: Tensor | None) -> Tensor:
    """One fused call, weights in the order of `neighbours.col`."""
    if x.shape[1] == 0 or x.shape[0] == 0:
        return x.new_zeros(neighbours.num_nodes, x.shape[1])
    # torch.embedding_bag is F.embedding_bag below its checks, which cost as much as a small graph: mode 0 is the sum
    return torch.embedding_bag(
        x.contiguous(), neighbours.col, neighbours.rowptr, False, 0, False, weight, include_last_offset=True
    )[0]


def edge_products(a: Tensor, b: Tensor, neighbours: Neighbours) -> Tensor:
    """a[target] . b[source] for each edge, (E,) in the order of `neighbours.col`; a (N, F), b (num_sources, F).

    The E x F products are never in memory: torch's sampled product sums each edge's as it makes them; on other devices
    and in precisions that it lacks they are made in pieces that fit into the cache.
    """
    precise = a.device.type == "cpu" and a.dtype in (torch.float32, torch.float64)
    if precise and has_csr(neighbours):
        edges = csr(neighbours, a.new_zeros(neighbours.num_edges), neighbours.col.dtype)
        return torch.sparse.sampled_addmm(edges, a, b.t(), beta=0.0, out=edges).values()
    step = max(1, CHUNK_NUMBERS // max(a.shape[1], 1))
    out = a.new_empty(neighbours.num_edges)
    for start in range(0, neighbours.num_edges, step):
        piece = slice(start, start + step)
        product = a.index_select(0, neighbours.row[piece]).mul_(b.index_select(0, neighbours.col[piece]))
        torch.sum(product, dim=1, out=out[piece])
    return out


def segment_sum(values: Tensor, neighbours: Neighbours, order: Tensor | None = None) -> Tensor:
    """Sums over the edges of each target of `values` (E,) or (E, H), (N,) or (N, H), without autograd.

    The values stand in the order of `neighbours.col`; or anywhere, and `order` (E,) says where. Rows of more dimensions
    are summed as they are.
    """
    if values.shape[0] == 0 or values.numel() == 0:
        return values.new_zeros(neighbours.num_nodes, *values.shape[1:])
    precise = values.dtype in (torch.float32, torch.float64)  # in others segment_reduce adds in the type of the values
    if precise and values.shape[1:].numel() == 1:
        values = values if order is None else values.index_select(0, order)
        return torch.segment_reduce(values, "sum", offsets=neighbours.offsets, unsafe=True)
    order = neighbours.places if order is None else order
    rows = values.reshape(values.shape[0], -1)
    summed = torch.embedding_bag(rows, order, neighbours.rowptr, False, 0, False, None, include_last_offset=True)[0]
    return summed.view(-1, *values.shape[1:])


def segment_max(values: Tensor, neighbours: Neighbours) -> Tensor:
    """The largest of `values` (E,) or (E, H), in the order of `neighbours.col`, of each target; -inf without edges."""
    if values.numel() == 0:
        return values.new_full((neighbours.num_nodes, *values.shape[1:]), -torch.inf)
    return torch.segment_reduce(values.contiguous(), "max", offsets=neighbours.offsets, unsafe=True)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor | None, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return bag(x, neighbours, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        neighbours: Neighbours = ctx.neighbours
        grad = grad.contiguous()
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            back = neighbours.transposed
            grad_x = bag(grad, back, None if weight is None else weight.index_select(0, back.order))
        if ctx.needs_input_grad[1]:
            grad_weight = edge_products(grad, x, neighbours)
        return grad_x, grad_weight, None


def has_csr(neighbours: Neighbours) -> bool:
    """Can torch hold the graph as a sparse matrix? With more edges than pairs of nodes it cuts the indices."""
    return neighbours.num_edges <= neighbours.num_nodes * neighbours.num_sources


def csr(neighbours: Neighbours, values: Tensor, index: torch.dtype) -> Tensor:
    """The graph as torch's sparse matrix (N, num_sources), `values` (E,) in the order of `neighbours.col`."""
    places = neighbours.rowptr.to(index), neighbours.col.to(index)
    size = (neighbours.num_nodes, neighbours.num_sources)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        return torch.sparse_csr_tensor(*places, values, size=size, check_invariants=False)
