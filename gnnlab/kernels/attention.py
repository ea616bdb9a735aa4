"""Attention over neighbours: scores of edges, their softmax, and the sum of values that it weighs.

    scores = pair_scores(source, target, neighbours, 0.2)              # GAT: LeakyReLU(source[j] + target[i])
    scores = additive_scores(source, target, vector, neighbours, 0.2)  # GATv2: vector . LeakyReLU(the same)
    scores = head_products(query, key, neighbours)                     # Transformer: query[i] . key[j]
    out = attend(scores, values, neighbours)                           # sum of softmax(scores) * values[j]

Scores are (E, H), one for each edge and head, in the order of `neighbours.col`. No forward pass writes E x H x C
numbers: what is needed of them goes through the cache in pieces.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnnlab.kernels.additive import additive_scores
from gnnlab.kernels.aggregation import SAFE_SCORE, bag, edge_products, segment_max, segment_sum
from gnnlab.kernels.neighbours import Neighbours

# heads of up to so many channels are summed by one bag, wider ones each by itself
NARROW = 32


def products(a: Tensor, b: Tensor, neighbours: Neighbours) -> Tensor:
    """a[target, h] . b[source, h] for each edge and head, (E, H); a (N, H, C), b (num_sources, H or 1, C).

    One sampled product over the graph of all heads: 2.5 to 5 times as fast as one for each piece of the edges.
    """
    heads, width = a.shape[1:]
    many = neighbours.heads(heads, shared=b.shape[1] == 1)
    found = edge_products(a.reshape(-1, width), b.reshape(-1, width), many)
    return found.unsqueeze(1) if heads == 1 else found.index_select(0, many.place).view(-1, heads)


def sums_by_head(values: Tensor, neighbours: Neighbours, weight: Tensor) -> Tensor:
    """Sums of weight[edge, h] * values[source, h] over the edges of each target, (N, H, C).

    `values` (num_sources, H or 1, C), `weight` (E, H) in the order of `neighbours.col`.
    """
    heads, width = weight.shape[1], values.shape[2]
    if heads > 1 and width <= NARROW:  # one bag over all heads, for a call costs as much as the sum of a narrow head
        many = neighbours.heads(heads, shared=values.shape[1] == 1)
        summed = bag(values.reshape(-1, width), many, weight.reshape(-1).index_select(0, many.order))
        return summed.view(-1, heads, width)
    rows = [value.contiguous() for value in values.unbind(1)]
    sums = [bag(rows[h if len(rows) > 1 else 0], neighbours, one) for h, one in enumerate(weight.t().contiguous())]
    return torch.stack(sums, dim=1)


__all__ = ["additive_scores", "attend", "head_products", "head_sum", "pair_scores", "segment_softmax"]


def pair_scores(source: Tensor, target: Tensor, neighbours: Neighbours, slope: float = 1.0) -> Tensor:
    """LeakyReLU(source[j] + target[i]) for each edge (j -> i), (E, H) or (E,) in the order of `neighbours.col`.

    `source` (num_sources, H) or (num_sources,), `target` (num_nodes, H) or (num_nodes,); `slope` is that of LeakyReLU
    below 0; 1 adds only.

    Raises:
        GnnlabError: they do not belong to the prepared graph.
    """
    heads = ("heads",) if isinstance(source, Tensor) and source.dim() == 2 else ()
    neighbours.require("source", source, (neighbours.num_sources, *heads))
    neighbours.require("target", target, (neighbours.num_nodes, *source.shape[1:]), source.dtype)
    if torch.compiler.is_compiling():
        sent = source.index_select(0, neighbours.col.long())
        return F.leaky_relu(sent + target.index_select(0, neighbours.row.long()), slope)
    return _PairScores.apply(source, target, neighbours, slope)


def segment_softmax(scores: Tensor, neighbours: Neighbours) -> Tensor:
    """exp(score) / sum of exp(score) over the edges of the same target, for each head; shape and order of `scores`.

    `scores` (E,) or (E, H), floating, in the order of `neighbours.col` (`Neighbours.sorted_weight` brings them there).
    Where they could overflow, the largest of each target is taken off first, as usual; elsewhere that is left out.

    Raises:
        GnnlabError: another number of edges, another device.
    """
    heads = ("heads",) if isinstance(scores, Tensor) and scores.dim() == 2 else ()
    neighbours.require("scores", scores, (neighbours.num_edges, *heads))
    if torch.compiler.is_compiling():
        return _composed(scores, neighbours)
    return _Softmax.apply(scores, neighbours)


def head_products(query: Tensor, key: Tensor, neighbours: Neighbours) -> Tensor:
    """query[i, h] . key[j, h] for each edge (j -> i) and head h, (E, H) in the order of `neighbours.col`.

    `query` (num_nodes, H, C), `key` (num_sources, H, C).

    Raises:
        GnnlabError: they do not belong to the prepared graph.
    """
    neighbours.require("query", query, (neighbours.num_nodes, "heads", "channels"))
    neighbours.require("key", key, (neighbours.num_sources, *query.shape[1:]), query.dtype)
    if torch.compiler.is_compiling():
        asked = query.index_select(0, neighbours.row.long())
        return (asked * key.index_select(0, neighbours.col.long())).sum(-1)
    return _HeadProducts.apply(query, key, neighbours)


def head_sum(values: Tensor, neighbours: Neighbours, weight: Tensor) -> Tensor:
    """out[i, h] = sum over the edges (j -> i) of weight[edge, h] * values[j, h], (num_nodes, H, C).

    `values` (num_sources, H, C), or (num_sources, 1, C) where the heads share them; `weight` (E, H) in the order of
    `neighbours.col`. Both may want gradients.

    Raises:
        GnnlabError: they do not belong to the prepared graph.
    """
    _require_heads(weight, values, neighbours, "weight")
    if torch.compiler.is_compiling():
        return _composed_sum(values, neighbours, weight)
    return _HeadSum.apply(values, weight, neighbours)


def attend(scores: Tensor, values: Tensor, neighbours: Neighbours, keep: Tensor | None = None) -> Tensor:
    """out[i, h] = sum over the edges (j -> i) of softmax(scores)[edge, h] * values[j, h], (num_nodes, H, C).

    `scores` (E, H) in the order of `neighbours.col`; `values` (num_sources, H, C), or (num_sources, 1, C) where the
    heads share them; `keep` (E, H): what the softmax is multiplied with, as dropout does. 0 for targets without edges.

    Raises:
        GnnlabError: they do not belong to the prepared graph.
    """
    _require_heads(scores, values, neighbours, "scores")
    if keep is not None:
        _require_heads(keep, values, neighbours, "keep")
    if torch.compiler.is_compiling():
        weight = _composed(scores, neighbours)
        return _composed_sum(values, neighbours, weight if keep is None else weight * keep)
    return _Attend.apply(scores, values, keep, neighbours)


def softmaxed(scores: Tensor, neighbours: Neighbours) -> Tensor:
    """`segment_softmax` without autograd and checks, of scores (E, ...)."""
    if _needs_no_shift(scores):
        weights = scores.exp()
    else:
        weights = (scores - segment_max(scores, neighbours).index_select(0, neighbours.row)).exp_()
    return weights.div_(segment_sum(weights, neighbours).index_select(0, neighbours.row))


def softmaxed_back(grad: Tensor, weights: Tensor, neighbours: Neighbours) -> Tensor:
    """The gradient of the scores from that of their softmax, which is overwritten."""
    grad.mul_(weights)
    expected = segment_sum(grad, neighbours).index_select(0, neighbours.row)
    return grad.addcmul_(weights, expected, value=-1)


def _needs_no_shift(scores: Tensor) -> bool:
    if scores.device.type != "cpu" or scores.dtype is torch.float16:  # looking costs a wait; fp16 ends at 65,504
        return scores.numel() == 0
    return scores.numel() == 0 or max(map(abs, torch.stack(scores.aminmax()).tolist())) <= SAFE_SCORE


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, source: Tensor, target: Tensor, neighbours: Neighbours, slope: float) -> Tensor:
        scores = source.index_select(0, neighbours.col).add_(target.index_select(0, neighbours.row))
        ctx.neighbours, ctx.slope = neighbours, slope
        if slope == 1:
            return scores
        ctx.save_for_backward(scores)
        return F.leaky_relu(scores, slope)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        if ctx.slope != 1:
            grad = torch.ops.aten.leaky_relu_backward(grad, *ctx.saved_tensors, ctx.slope, False)
        back = ctx.neighbours.transposed
        return segment_sum(grad, back, back.order), segment_sum(grad, ctx.neighbours), None, None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, neighbours: Neighbours) -> Tensor:
        weights = softmaxed(scores, neighbours)
        ctx.neighbours = neighbours
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return softmaxed_back(grad.clone(), weights, ctx.neighbours), None


class _HeadProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        ctx.save_for_backward(query, key)
        return products(query, key, neighbours)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (query, key), neighbours = ctx.saved_tensors, ctx.neighbours
        grad_query = sums_by_head(key, neighbours, grad) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return grad_query, None, None
        back = neighbours.transposed
        return grad_query, sums_by_head(query, back, grad.index_select(0, back.order)), None


class _HeadSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, weight: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        ctx.save_for_backward(values, weight)
        return sums_by_head(values, neighbours, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, weight = ctx.saved_tensors
        grad_values = _sent_back(grad, weight, values, ctx.neighbours) if ctx.needs_input_grad[0] else None
        grad_weight = products(grad, values, ctx.neighbours) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weight, None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, values: Tensor, keep: Tensor | None, neighbours: Neighbours) -> Tensor:
        weights = softmaxed(scores, neighbours)
        ctx.neighbours = neighbours
        ctx.save_for_backward(values, keep, weights)
        return sums_by_head(values, neighbours, weights if keep is None else weights * keep)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (values, keep, weights), neighbours = ctx.saved_tensors, ctx.neighbours
        grad_scores = grad_values = None
        if ctx.needs_input_grad[0]:
            grad_scores = products(grad, values, neighbours)
            grad_scores = grad_scores if keep is None else grad_scores.mul_(keep)
            grad_scores = softmaxed_back(grad_scores, weights, neighbours)
        if ctx.needs_input_grad[1]:
            grad_values = _sent_back(grad, weights if keep is None else weights * keep, values, neighbours)
        return grad_scores, grad_values, None, None


def _sent_back(grad: Tensor, weight: Tensor, values: Tensor, neighbours: Neighbours) -> Tensor:
    """The gradient of the values from that of their sums."""
    back = neighbours.transposed
    sent = sums_by_head(grad, back, weight.index_select(0, back.order))
    return sent if values.shape[1] == sent.shape[1] else sent.sum(1, keepdim=True)


def _composed(scores: Tensor, neighbours: Neighbours) -> Tensor:
    """`segment_softmax` of operators that compile and export; autograd differentiates it by itself."""
    row = neighbours.row.long()
    floor = scores.new_full((neighbours.num_nodes, *scores.shape[1:]), -torch.inf)
    places = row.view(-1, *[1] * (scores.dim() - 1)).expand_as(scores)
    largest = floor.scatter_reduce(0, places, scores.detach(), "amax")
    weights = (scores - largest.index_select(0, row)).exp()
    if neighbours.present is not None:
        weights = weights * neighbours.present.view(-1, *[1] * (scores.dim() - 1))
    kind = torch.promote_types(scores.dtype, torch.float32)  # where bf16 and fp16 are added
    total = torch.zeros_like(floor, dtype=kind).index_add(0, row, weights.to(kind)).to(scores.dtype)
    return weights / total.index_select(0, row)


def _composed_sum(values: Tensor, neighbours: Neighbours, weight: Tensor) -> Tensor:
    heads = zip(values.expand(-1, weight.shape[1], -1).unbind(1), weight.unbind(1), strict=True)
    return torch.stack([bag(value, neighbours, one.contiguous()) for value, one in heads], dim=1)


def _require_heads(weight: Tensor, values: Tensor, neighbours: Neighbours, name: str) -> None:
    neighbours.require("values", values, (neighbours.num_sources, "heads", "channels"))
    heads = "heads" if values.shape[1] == 1 else values.shape[1]  # one for all, or one each
    neighbours.require(name, weight, (neighbours.num_edges, heads), values.dtype)
