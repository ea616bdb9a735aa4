"""Sums over neighbours at the speed of the memory, and the attention weights of such sums.

    neighbours = Neighbours.prepare(edge_index, num_nodes)
    weighted_sum(x, neighbours, weight)     # out[i] = sum over the edges (j -> i) of weight[edge] * x[j]
    mean(x, neighbours)                     # out[i] = mean over the edges (j -> i) of x[j], 0 where there are none
    edge_softmax(a, b, neighbours, 0.2)     # softmax over the edges of each i of LeakyReLU(a[j] + b[i])

The usual form gathers a row for each edge, multiplies, and scatters: it writes and reads E x F numbers three times.
Here one embedding bag reads each source row as it adds, so only x and the result move. The backward pass is the same
bag on the transposed graph, and a dot product for each edge where weights want gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnnlab.errors import GnnlabError
from gnnlab.kernels.neighbours import Neighbours

__all__ = ["Neighbours", "bag", "edge_products", "edge_softmax", "mean", "weighted_sum", "weighted_sum_sorted"]

CHUNK_NUMBERS = 1 << 18  # of a product per edge that are in memory at once: 1 MiB of float32, within the L2 cache
# exp of scores up to it needs no shift: sums over 2^31 edges stay below 1e36, and nothing falls below 1e-27
SAFE_SCORE = 60.0


def weighted_sum(x: Tensor, neighbours: Neighbours, weight: Tensor | None = None) -> Tensor:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j].

    `x` (num_sources, F), floating; `weight` (E,) in the order of `edge_index`, ones where it is None; the result is
    (num_nodes, F), in the type of `x`. Both may want gradients. In bf16 and fp16 sums are kept in float32. Weights that
    want none are sorted once and kept with the graph (`Neighbours.sorted_weight`).

    Raises:
        GnnlabError: `x` or `weight` do not belong to the prepared graph.
    """
    neighbours.require_features(x)
    if weight is not None:
        _check_weight(weight, neighbours, x)
        weight = neighbours.sorted_weight(weight)
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
    if neighbours.order is not None and weight.shape != (neighbours.num_edges,):
        raise GnnlabError(f"weight must have shape ({neighbours.num_edges},), one an edge, not {tuple(weight.shape)}")
    if weight.dtype != x.dtype or weight.device != x.device:
        raise GnnlabError(f"weight is {weight.dtype} on {weight.device} and x {x.dtype} on {x.device}; make them alike")


def edge_softmax(source: Tensor, target: Tensor, neighbours: Neighbours, slope: float) -> Tensor:
    """softmax over the edges (j -> i) of each i of LeakyReLU(source[j] + target[i]), (E,) in order of `neighbours.col`.

    `source` (num_sources,), `target` (num_nodes,); `slope` is that of LeakyReLU below 0. Where scores could overflow,
    the largest of each target is taken off first, as usual; elsewhere that step is left out.
    """
    if torch.compiler.is_compiling():
        return _composed(source, target, neighbours, slope)
    if torch.is_grad_enabled() and (source.requires_grad or target.requires_grad):
        return _EdgeSoftmax.apply(source, target, neighbours, slope)
    return _softmax(source, target, neighbours, slope)[0]


def _softmax(source: Tensor, target: Tensor, neighbours: Neighbours, slope: float) -> tuple[Tensor, Tensor]:
    """(weights, scores before LeakyReLU where a backward pass needs them)."""
    scores = source.index_select(0, neighbours.col).add_(target.index_select(0, neighbours.row))
    if scores.shape[0] == 0:
        return scores, scores
    weights = F.leaky_relu(scores, slope)
    if not _needs_no_shift(source, target, slope):
        largest = torch.segment_reduce(weights, "max", offsets=neighbours.offsets, unsafe=True)
        weights.sub_(largest.index_select(0, neighbours.row))
    weights.exp_()
    if neighbours.present is not None:
        weights.mul_(neighbours.present)
    total = _sums(weights, neighbours).reciprocal_()
    return weights.mul_(total.index_select(0, neighbours.row)), scores


def _needs_no_shift(source: Tensor, target: Tensor, slope: float) -> bool:
    if source.device.type != "cpu" or source.dtype is torch.float16:  # looking costs a wait; fp16 ends at 65,504
        return False
    bound = source.abs().max() + target.abs().max()
    return float(bound) * max(1.0, abs(slope)) <= SAFE_SCORE


def _sums(values: Tensor, neighbours: Neighbours) -> Tensor:
    return torch.segment_reduce(values, "sum", offsets=neighbours.offsets, unsafe=True)


def _composed(source: Tensor, target: Tensor, neighbours: Neighbours, slope: float) -> Tensor:
    """The same of operators that compile and export; autograd differentiates it by itself."""
    row = neighbours.row.long()
    scores = F.leaky_relu(source.index_select(0, neighbours.col.long()) + target.index_select(0, row), slope)
    floor = scores.new_full((neighbours.num_nodes,), -torch.inf)
    largest = floor.scatter_reduce(0, row, scores.detach(), "amax")
    weights = (scores - largest.index_select(0, row)).exp()
    if neighbours.present is not None:
        weights = weights * neighbours.present
    total = weights.new_zeros(neighbours.num_nodes).index_add(0, row, weights)
    return weights / total.index_select(0, row)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, source: Tensor, target: Tensor, neighbours: Neighbours, slope: float) -> Tensor:
        weights, scores = _softmax(source, target, neighbours, slope)
        ctx.neighbours, ctx.slope = neighbours, slope
        ctx.save_for_backward(weights, scores)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weights, scores = ctx.saved_tensors
        neighbours: Neighbours = ctx.neighbours
        if scores.shape[0] == 0:
            return grad.new_zeros(neighbours.num_sources), grad.new_zeros(neighbours.num_nodes), None, None
        grad = grad * weights
        expected = _sums(grad, neighbours).index_select(0, neighbours.row)
        grad = torch.addcmul(grad, weights, expected, value=-1)
        grad = torch.where(scores > 0, grad, grad * ctx.slope)
        back = neighbours.transposed
        return _sums(grad.index_select(0, back.order), back), _sums(grad, neighbours), None, None
