"""Sums over neighbours at the speed of the memory.

    neighbours = Neighbours.prepare(edge_index, num_nodes)
    weighted_sum(x, neighbours, weight)     # out[i] = sum over the edges (j -> i) of weight[edge] * x[j]
    mean(x, neighbours)                     # out[i] = mean over the edges (j -> i) of x[j], 0 where there are none

The usual form gathers a row for each edge, multiplies, and scatters: it writes and reads E x F numbers three times.
Here one embedding bag reads each source row as it adds, so only x and the result move. The backward pass is the same
bag on the transposed graph, and a dot product for each edge where weights want gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnlab.kernels.errors import OptimizeError
from gnnlab.kernels.neighbours import Neighbours

__all__ = ["FORMS", "Neighbours", "bag", "edge_products", "mean", "weighted_sum", "weighted_sum_sorted"]

CHUNK_NUMBERS = 1 << 18  # of a product per edge that are in memory at once: 1 MiB of float32, within the L2 cache


def weighted_sum(x: Tensor, neighbours: Neighbours, weight: Tensor | None = None) -> Tensor:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j].

    `x` (num_sources, F), floating; `weight` (E,) in the order of `edge_index`, ones where it is None; the result is
    (num_nodes, F), in the type of `x`. Both may want gradients. In bf16 and fp16 sums are kept in float32.

    Raises:
        OptimizeError: `x` or `weight` do not belong to the prepared graph.
    """
    neighbours.require_features(x)
    if weight is not None:
        _check_weight(weight, neighbours, x)
        weight = weight.index_select(0, neighbours.order)
    return weighted_sum_sorted(x, neighbours, weight)


def mean(x: Tensor, neighbours: Neighbours) -> Tensor:
    """out[i] = mean over the edges (j -> i) of x[j], 0 where there are none; shapes as in `weighted_sum`."""
    neighbours.require_features(x)
    return weighted_sum_sorted(x, neighbours, neighbours.cast("mean_weight", x.dtype))


def weighted_sum_sorted(x: Tensor, neighbours: Neighbours, weight: Tensor | None) -> Tensor:
    """`weighted_sum` with weights that are in the order of `neighbours.col` already, and no checks."""
    wanted = torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad))
    if wanted and not torch.compiler.is_compiling():
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

    In pieces that fit into the cache, so that the E x F products are never in memory.
    """
    edges, width = neighbours.num_edges, a.shape[1]
    step = max(1, CHUNK_NUMBERS // max(width, 1))
    out = a.new_empty(edges)
    for start in range(0, edges, step):
        piece = slice(start, start + step)
        product = a.index_select(0, neighbours.row[piece]).mul_(b.index_select(0, neighbours.col[piece]))
        torch.sum(product, dim=1, out=out[piece])
    return out


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


def _check_weight(weight: Tensor, neighbours: Neighbours, x: Tensor) -> None:
    if neighbours.order is None:
        raise OptimizeError("weights belong to the edges given, and these neighbours have self-loops added; prepare "
                            "them without self_loops, with the loops and their weights in edge_index")  # fmt: skip
    if weight.shape != (neighbours.num_edges,):
        raise OptimizeError(f"weight must have shape ({neighbours.num_edges},), one an edge, not {tuple(weight.shape)}")
    if weight.dtype != x.dtype or weight.device != x.device:
        raise OptimizeError(
            f"weight is {weight.dtype} on {weight.device} and x {x.dtype} on {x.device}; make them alike"
        )


def _messages(x: Tensor, neighbours: Neighbours, weight: Tensor | None) -> Tensor:
    gathered = x.index_select(0, neighbours.edge_index[0])
    return gathered if weight is None else gathered * weight.view(-1, 1)


def _gather_scatter(x: Tensor, neighbours: Neighbours, weight: Tensor | None = None) -> Tensor:
    target = neighbours.edge_index[1].view(-1, 1).expand(-1, x.shape[1])
    return x.new_zeros(neighbours.num_nodes, x.shape[1]).scatter_add(0, target, _messages(x, neighbours, weight))


def _gather_index_add(x: Tensor, neighbours: Neighbours, weight: Tensor | None = None) -> Tensor:
    out = x.new_zeros(neighbours.num_nodes, x.shape[1])
    return out.index_add(0, neighbours.edge_index[1], _messages(x, neighbours, weight))


def _csr_mm(x: Tensor, neighbours: Neighbours, weight: Tensor | None = None) -> Tensor:
    return torch.sparse.mm(_csr(neighbours.rowptr, neighbours.col, x, neighbours, weight), x)


def _csr_reduce(x: Tensor, neighbours: Neighbours, weight: Tensor | None = None) -> Tensor:
    col = neighbours.cast("col", torch.int64)
    return torch.sparse.mm(_csr(neighbours.offsets, col, x, neighbours, weight), x, "sum")


def _csr(rowptr: Tensor, col: Tensor, x: Tensor, neighbours: Neighbours, weight: Tensor | None) -> Tensor:
    values = x.new_ones(col.shape[0]) if weight is None else weight.index_select(0, neighbours.order)
    size = (neighbours.num_nodes, neighbours.num_sources)
    return torch.sparse_csr_tensor(rowptr, col, values, size, check_invariants=False)


# the forms of a weighted sum, all of them callable(x, neighbours, weight or None); the first is what a user has
FORMS: dict[str, Callable[..., Tensor]] = {
    "gather, scatter_add": _gather_scatter,
    "gather, index_add": _gather_index_add,
    "sparse CSR product": _csr_mm,
    "sparse CSR reduce": _csr_reduce,
    "bag": weighted_sum,
}
