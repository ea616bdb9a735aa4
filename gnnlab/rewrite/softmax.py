"""PyG's `softmax` over the edges of each target; where the edges are sorted, over neighbouring rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch_geometric import utils

from gnnlab.kernels.aggregation import SAFE_SCORE
from gnnlab.rewrite.edges import Edges, segment_of, sums_at_targets


def softmax(
    src: Tensor, index: Tensor | None = None, ptr: Tensor | None = None, num_nodes=None, dim: int = 0
) -> Tensor:
    """As `torch_geometric.utils.softmax`; `src` (E, ...) with the targets of sorted edges takes the fast way."""
    edges = None if index is None else segment_of(index)
    if edges is None or dim != 0 or src.numel() == 0:
        return utils.softmax(src, index, ptr, num_nodes, dim)
    if torch.is_grad_enabled() and src.requires_grad:
        return _Softmax.apply(src, edges)
    return _softmax(src, edges)


def _softmax(src: Tensor, edges: Edges) -> Tensor:
    if float(src.abs().max()) <= SAFE_SCORE:
        weights = src.exp()
    else:
        rows = src.reshape(src.shape[0], -1)
        largest = torch.segment_reduce(rows, "max", offsets=edges.neighbours.offsets, unsafe=True, axis=0)
        weights = (rows - largest.index_select(0, edges.target)).exp_().view_as(src)
    return weights.mul_(sums_at_targets(weights, edges).reciprocal_().index_select(0, edges.target))


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, src: Tensor, edges: Edges) -> Tensor:
        weights = _softmax(src, edges)
        ctx.edges = edges
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        grad = grad * weights
        expected = sums_at_targets(grad, ctx.edges).index_select(0, ctx.edges.target)
        return torch.addcmul(grad, weights, expected, value=-1), None
