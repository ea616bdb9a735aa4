"""Attention weights over edges: a softmax over those of each target, safe at any spread of scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnnlab.kernels.neighbours import Neighbours

# exp of scores up to it needs no shift: sums over 2^31 edges stay below 1e36, and nothing falls below 1e-27
SAFE_SCORE = 60.0


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
