"""Attention over neighbours: scores of edges, their softmax, and the sum of values that it weighs.

    scores = pair_scores(source, target, neighbours, 0.2)              # GAT: LeakyReLU(source[j] + target[i])
    scores = additive_scores(source, target, vector, neighbours, 0.2)  # GATv2: vector . LeakyReLU(the same)
    scores = head_products(query, key, neighbours)                     # Transformer: query[i] . key[j]
    out = attend(scores, values, neighbours)                           # sum of softmax(scores) * values[j]

Scores are (E, H), one for each edge and head, in the order of `neighbours.col`. Tensors come from a layer that was
tried on other graphs, so their shapes are not looked at again. No forward pass writes E x H x C numbers: what is needed
of them goes through the cache in pieces. Only derivatives of derivatives do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnswap import aggregation
from gnnswap.aggregation import (
    Kernel,
    edge_products,
    recorded,
    segment_max,
    segment_sum,
    transformed,
    weighted_sum_sorted,
)
from gnnswap.neighbours import Neighbours, index_type
from gnnswap.sums import all_finite

# exp of scores up to it needs no shift: sums over 2^31 edges stay below 1e36, and nothing falls below 1e-27
SAFE_SCORE = 60.0
# heads of up to so many channels are summed by one bag, wider ones each by itself
NARROW = 32


def products(a: Tensor, b: Tensor, neighbours: Neighbours) -> Tensor:
    """a[target, h] . b[source, h] for each edge and head, (E, H); a (N, H, C), b (num_sources, H or 1, C).

    One sampled product over the graph of all heads: 2.5 to 5 times as fast as one for each piece of the edges.
    """
    heads, width = a.shape[1:]
    many = neighbours.heads(heads, shared=b.shape[1] == 1)
    dots = edge_products(a.reshape(-1, width), b.reshape(-1, width), many)
    return dots.unsqueeze(1) if heads == 1 else dots.index_select(0, many.place).view(-1, heads)


def sums_by_head(values: Tensor, neighbours: Neighbours, weight: Tensor) -> Tensor:
    """Sums of weight[edge, h] * values[source, h] over the edges of each target, (N, H, C).

    `values` (num_sources, H or 1, C), `weight` (E, H) in the order of `neighbours.col`.
    """
    heads, width = weight.shape[1], values.shape[2]
    if heads > 1 and width <= NARROW:  # one bag over all heads, for a call costs as much as the sum of a narrow head
        many = neighbours.heads(heads, shared=values.shape[1] == 1)
        weight = weight.reshape(-1).index_select(0, many.order)
        summed = weighted_sum_sorted(values.reshape(-1, width), many, weight)
        return summed.view(-1, heads, width)
    rows = [value.contiguous() for value in values.unbind(1)]
    sums = [
        weighted_sum_sorted(rows[h if len(rows) > 1 else 0], neighbours, one)
        for h, one in enumerate(weight.t().contiguous())
    ]
    return torch.stack(sums, dim=1)


def pair_scores(source: Tensor, target: Tensor, neighbours: Neighbours, slope: float = 1.0) -> Tensor:
    """LeakyReLU(source[j] + target[i]) for each edge (j -> i), (E, H) or (E,) in the order of `neighbours.col`.

    `source` (num_sources, H) or (num_sources,), `target` (num_nodes, H) or (num_nodes,); `slope` is that of LeakyReLU
    below 0; 1 adds only.
    """
    if transformed(source, target):
        scores = source.index_select(0, neighbours.col) + target.index_select(0, neighbours.row)
        return F.leaky_relu(scores, slope)
    return _PairScores.apply(source, target, neighbours, slope)


def additive_scores(
    source: Tensor, target: Tensor, vector: Tensor, neighbours: Neighbours, slope: float, edge: Tensor | None = None
) -> Tensor:
    """vector[h] . LeakyReLU(source[j, h] + target[i, h] + edge[e, h]), (E, H) in the order of `neighbours.col`.

    The scores of GATv2 (Brody et al. 2022).
    `source` (num_sources, H, C), `target` (num_nodes, H, C), `vector` (H, C); `edge` (E, H, C) in the order of
    `neighbours.col`, or None. All may want gradients; the backward pass computes each piece again, and holds the
    gradient of the sums, E x H x C, once.
    """
    return _AdditiveScores.run(source, target, vector, edge, neighbours, slope)


def segment_softmax(scores: Tensor, neighbours: Neighbours) -> Tensor:
    """exp(score) / sum of exp(score) over the edges of the same target, for each head; shape and order of `scores`.

    `scores` (E,) or (E, H), floating, in the order of `neighbours.col` (`Neighbours.sorted_weight` brings them there).
    Where they could overflow, the largest of each target is taken off first, as usual; elsewhere that is left out.

    Raises:
        SwapError: another number of edges, another device.
    """
    neighbours.require("scores", scores, (neighbours.num_edges, *scores.shape[1:]))
    return _softmax(scores, neighbours)


def _softmax(scores: Tensor, neighbours: Neighbours) -> Tensor:
    if not transformed(scores):
        return _Softmax.apply(scores, neighbours)
    index = neighbours.row.long().view(-1, *[1] * (scores.dim() - 1)).expand_as(scores)
    largest = scores.new_zeros(neighbours.num_nodes, *scores.shape[1:]).detach()
    largest = largest.scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
    weights = (scores - largest.index_select(0, neighbours.row)).exp()
    return weights / segment_sum(weights, neighbours).index_select(0, neighbours.row)


def head_products(query: Tensor, key: Tensor, neighbours: Neighbours) -> Tensor:
    """query[i, h] . key[j, h] for each edge (j -> i) and head h, (E, H) in the order of `neighbours.col`.

    `query` (num_nodes, H, C), `key` (num_sources, H, C), or (num_sources, 1, C) where the heads share them.
    """
    if recorded(query, key) and not transformed(query, key):
        return _HeadProducts.apply(query, key, neighbours)
    return products(query, key, neighbours)


def head_sum(values: Tensor, neighbours: Neighbours, weight: Tensor) -> Tensor:
    """out[i, h] = sum over the edges (j -> i) of weight[edge, h] * values[j, h], (num_nodes, H, C).

    `values` (num_sources, H, C), or (num_sources, 1, C) where the heads share them; `weight` (E, H) in the order of
    `neighbours.col`. Both may want gradients.
    """
    if recorded(values, weight) and not transformed(values, weight):
        return _HeadSum.apply(values, weight, neighbours)
    return sums_by_head(values, neighbours, weight)


def attend(scores: Tensor, values: Tensor, neighbours: Neighbours, keep: Tensor | None = None) -> Tensor:
    """out[i, h] = sum over the edges (j -> i) of softmax(scores)[edge, h] * values[j, h], (num_nodes, H, C).

    `scores` (E, H) in the order of `neighbours.col`; `values` (num_sources, H, C), or (num_sources, 1, C) where the
    heads share them; `keep` (E, H): what the softmax is multiplied with, as dropout does. 0 for targets without edges.
    """
    weight = _softmax(scores, neighbours)
    return head_sum(values, neighbours, weight if keep is None else weight * keep)


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
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        if ctx.slope != 1:
            grad = torch.ops.aten.leaky_relu_backward(grad, *ctx.saved_tensors, ctx.slope, False)
        back = ctx.neighbours.transposed
        return segment_sum(grad, back, back.order), segment_sum(grad, ctx.neighbours), None, None


class _AdditiveScores(Kernel):
    @staticmethod
    def plain(source, target, vector, edge, neighbours: Neighbours, slope: float) -> Tensor:
        both = source.index_select(0, neighbours.col) + target.index_select(0, neighbours.row)
        return (F.leaky_relu(both if edge is None else both + edge, slope) * vector).sum(-1)

    @staticmethod
    def forward(ctx, source, target, vector, edge, neighbours: Neighbours, slope: float) -> Tensor:
        ctx.settings = neighbours, slope
        ctx.save_for_backward(source, target, vector, edge)
        block = _block(vector)
        out = source.new_empty(vector.shape[0], neighbours.num_edges)
        for piece, both in _pair_sums(source, target, edge, neighbours):
            torch.mm(block, F.leaky_relu_(both, slope).t(), out=out[:, piece])
        if vector.shape[0] > 1 and not all_finite(out):  # 0 * NaN of one head is in the sums of all
            return _AdditiveScores.plain(source, target, vector, edge, neighbours, slope)
        return out.t().contiguous()

    @staticmethod
    def back(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (source, target, vector, edge), (neighbours, slope) = ctx.saved_tensors, ctx.settings
        if vector.shape[0] > 1 and not all_finite(grad):
            return _AdditiveScores.plain_back(ctx, grad)
        block, back = _block(vector), neighbours.transposed
        to_block, sent = torch.zeros_like(block), grad.new_empty(neighbours.num_edges, vector.numel())
        for piece, both in _pair_sums(source, target, edge, neighbours):
            torch.mm(grad[piece], block, out=sent[piece])
            torch.ops.aten.leaky_relu_backward(sent[piece], both, slope, False, grad_input=sent[piece])
            if ctx.needs_input_grad[2]:
                to_block.addmm_(grad[piece].t(), F.leaky_relu_(both, slope))
        to_vector = to_block.view(-1, *vector.shape).diagonal(dim1=0, dim2=1).t()
        return (
            segment_sum(sent, back, back.order).view_as(source) if ctx.needs_input_grad[0] else None,
            segment_sum(sent, neighbours).view_as(target) if ctx.needs_input_grad[1] else None,
            to_vector if ctx.needs_input_grad[2] else None,
            sent.view_as(edge) if ctx.needs_input_grad[3] else None,
            None,
            None,
        )


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, neighbours: Neighbours) -> Tensor:
        small = scores.numel() == 0 or max(map(abs, torch.stack(scores.aminmax()).tolist())) <= SAFE_SCORE
        if small and scores.dtype is not torch.float16:  # which ends at 65,504
            weights = scores.exp()
        else:
            weights = (scores - segment_max(scores, neighbours).index_select(0, neighbours.row)).exp_()
        weights.div_(segment_sum(weights, neighbours).index_select(0, neighbours.row))
        ctx.neighbours = neighbours
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (weights,), neighbours = ctx.saved_tensors, ctx.neighbours
        grad = grad * weights
        expected = segment_sum(grad, neighbours).index_select(0, neighbours.row)
        return torch.addcmul(grad, weights, expected, value=-1), None


class _HeadProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        ctx.save_for_backward(query, key)
        return products(query, key, neighbours)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (query, key), neighbours = ctx.saved_tensors, ctx.neighbours
        grad_query = head_sum(key, neighbours, grad) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return grad_query, None, None
        return grad_query, _sent_back(query, grad, key, neighbours), None


class _HeadSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, weight: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        ctx.save_for_backward(values, weight)
        return sums_by_head(values, neighbours, weight)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, weight = ctx.saved_tensors
        grad_values = _sent_back(grad, weight, values, ctx.neighbours) if ctx.needs_input_grad[0] else None
        grad_weight = head_products(grad, values, ctx.neighbours) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weight, None


def _sent_back(grad: Tensor, weight: Tensor, values: Tensor, neighbours: Neighbours) -> Tensor:
    """The gradient of the values from that of their sums."""
    back = neighbours.transposed
    sent = head_sum(grad, back, weight.index_select(0, back.order))
    return sent if values.shape[1] == sent.shape[1] else sent.sum(1, keepdim=True)


def _pair_sums(source, target, edge: Tensor | None, neighbours: Neighbours) -> Iterator[tuple[slice, Tensor]]:
    """(some edges, source[j] + target[i] + edge[e] of these (edges, H C)).

    A bag of two rows an edge reads both and writes their sum once, in the time of one of two gathers.
    """
    rows, edge = torch.cat([source.flatten(1), target.flatten(1)]), None if edge is None else edge.flatten(1)
    ends = neighbours.once(_ends)
    # smaller pieces have threads wait for each other: on two shared cores 1.8 times as long, a quarter as large
    step = max(1, 2 * aggregation.CHUNK_NUMBERS * torch.get_num_threads() // max(rows.shape[1], 1))
    twos = torch.arange(0, 2 * min(step, neighbours.num_edges) + 1, 2, dtype=ends.dtype, device=ends.device)
    for start in range(0, neighbours.num_edges, step):
        of_piece = ends[start : start + step]
        places, starts = of_piece.reshape(-1), twos[: of_piece.shape[0] + 1]
        both = torch.embedding_bag(rows, places, starts, False, 0, False, None, include_last_offset=True)[0]
        piece = slice(start, start + step)
        yield piece, both if edge is None else both.add_(edge[piece])


def _ends(neighbours: Neighbours) -> Tensor:
    """(E, 2): the source of each edge and its target, targets counted on from the sources."""
    kind = index_type(neighbours.num_sources + neighbours.num_nodes, 2 * neighbours.num_edges)
    return torch.stack([neighbours.col.to(kind), neighbours.row.to(kind) + neighbours.num_sources], dim=1)


def _block(vector: Tensor) -> Tensor:
    """(H, H C): the vector of each head in its own columns, so that one product sums over the channels of each head.

    Heads in its rows: BLAS takes a fifth of the time that the same product takes with heads in columns.
    """
    return torch.block_diag(*vector.unsqueeze(1))
