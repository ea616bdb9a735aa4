"""Attention over neighbours: scores of edges, their softmax, and the sum of values that it weighs.

    scores = pair_scores(source, target, neighbours, 0.2)              # GAT: LeakyReLU(source[j] + target[i])
    scores = additive_scores(source, target, vector, neighbours, 0.2)  # GATv2: vector . LeakyReLU(the same)
    scores = head_products(query, key, neighbours)                     # Transformer: query[i] . key[j]
    out = attend(scores, values, neighbours)                           # sum of softmax(scores) * values[j]

The layers are GATConv (Velickovic et al. 2018), GATv2Conv (Brody et al. 2022) and TransformerConv (Shi et al. 2021),
whose scores are these times C^-0.5. An edge e goes from a source j to a target i. In shapes N is `num_nodes`, the
targets, E the edges, H the heads, C the channels of a head.

Scores are (E, H), one for each edge and head, in the order of `neighbours.col`. Shapes are not checked: the tensors
come from a layer that was tested. No forward pass writes E x H x C numbers: they are made in pieces that fit into the
cache. Only derivatives of derivatives write them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

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
from gnnswap.errors import SwapError
from gnnswap.neighbours import Neighbours, index_type
from gnnswap.passes import triton_for
from gnnswap.sums import all_finite

SAFE_SCORE = 60.0  # exp of smaller scores needs no shift: sums over 2^31 edges are below 1e36, terms above 1e-27
NARROW = 32  # channels of heads that one segment sum adds together; wider heads are added one by one


def products(a: Tensor, b: Tensor, neighbours: Neighbours) -> Tensor:
    """a[target, h] . b[source, h] for each edge and head, (E, H) in the order of `neighbours.col`.

    `a` (N, H, C), `b` (num_sources, H or 1, C), where 1 is shared by the heads.

    One sampled product over the graph of all heads: 2.5 to 5 times as fast as one for each piece of the edges.
    """
    passes = triton_for(a)
    if passes is not None and not transformed(a, b) and not recorded(a, b):
        return passes.edge_products(a.detach(), b.detach(), neighbours)
    heads, width = a.shape[1:]
    many = neighbours.heads(heads, shared=b.shape[1] == 1)
    dots = edge_products(a.reshape(-1, width), b.reshape(-1, width), many)
    return dots.unsqueeze(1) if heads == 1 else dots.index_select(0, many.position).view(-1, heads)


def sums_by_head(values: Tensor, neighbours: Neighbours, weight: Tensor) -> Tensor:
    """Sums of weight[edge, h] * values[source, h] over the edges of each target, (N, H, C).

    `values` (num_sources, H or 1, C), `weight` (E, H) in the order of `neighbours.col`.
    """
    heads, width = weight.shape[1], values.shape[2]
    passes = triton_for(values)
    if passes is not None and not transformed(values, weight) and not recorded(values, weight):
        return passes.weighted_sum_by_head(values.detach(), neighbours, weight.detach())
    if heads > 1 and width <= NARROW:  # one call costs as much as the sum of a narrow head
        many = neighbours.heads(heads, shared=values.shape[1] == 1)
        weight = weight.reshape(-1).index_select(0, many.permutation)
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
    """vector[h] . LeakyReLU(source[j, h] + target[i, h] + edge[e, h]), (E, H): the scores of GATv2 (Brody et al. 2022).

    `source` (num_sources, H, C), `target` (num_nodes, H, C), `vector` (H, C); `edge` (E, H, C) or None; edges in the
    order of `neighbours.col`. All may want gradients. The backward pass computes each piece again, and has the gradient
    of the sums, E x H x C, in memory once.

    Raises:
        SwapError: on a CUDA device, where `fused_attention` computes these scores.
    """
    return _AdditiveScores.run(source, target, vector, edge, neighbours, slope)


def segment_softmax(scores: Tensor, neighbours: Neighbours) -> Tensor:
    """exp(score) / sum of exp(score) over the edges of the same target, for each head, as PyG's `utils.softmax`.

    `scores` (E,) or (E, H), floating, in the order of `neighbours.col` (`Neighbours.sorted_weight` brings them there);
    so is the result. The largest score of each target is subtracted first only where exp could overflow.

    Raises:
        SwapError: another number of edges, another device, or integers.
    """
    neighbours.require("scores", scores, (neighbours.num_edges, *scores.shape[1:]))
    return _softmax(scores, neighbours)


def _softmax(scores: Tensor, neighbours: Neighbours) -> Tensor:
    return _plain_softmax(scores, neighbours) if transformed(scores) else _Softmax.apply(scores, neighbours)


def _plain_softmax(scores: Tensor, neighbours: Neighbours) -> Tensor:
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


def fused_attention(
    kind: str,
    query: Tensor,
    key: Tensor | None,
    values: Tensor,
    neighbours: Neighbours,
    *,
    vector: Tensor | None = None,
    edge: Tensor | None = None,
    keep: Tensor | None = None,
    slope: float = 0.0,
    scale: float = 1.0,
) -> Tensor | None:
    """`attend` with scores computed in the same pass, by Triton; None where no kernel serves these tensors.

    "gat": LeakyReLU(key[j, h] + query[i, h] + edge[e, h]), of query (N, H), key (num_sources, H), edge (E, H).
    "gatv2": vector[h] . LeakyReLU(values[j, h] + query[i, h] + edge[e, h]), of query (N, H, C), no key, vector (H, C),
    edge (E, H, C). "transformer": scale * query[i, h] . key[j, h] + edge[e, h], of query (N, H, C), key (num_sources,
    H, C), edge (E, H). `slope` is that of LeakyReLU below 0. `edge`, in the order of `neighbours.col`, may be None.
    `values` and `keep` as in `attend`, but values of "gatv2" are not shared by heads. The result is (N, H, C).
    """
    passes = triton_for(values)
    heads, width = query.shape[1], values.shape[2]
    if passes is None or not passes.takes_heads(heads, width, values.shape[1] == 1 and heads > 1):
        return None
    return _FusedAttention.run(query, key, values, vector, edge, keep, neighbours, kind, slope, scale)


def end_scores(values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of each node as a source and as a target, (N, H) each: vectors[end, h] . values[i, h].

    `values` (N, H or 1, C), `vectors` (2, H, C): `att_src` and `att_dst` of GATConv. Heads are multiplied separately,
    else 0 * NaN would reach others.
    """
    if values.shape[1] == 1:
        source, target = F.linear(values.squeeze(1), vectors.flatten(0, 1)).chunk(2, dim=1)
    else:
        both = torch.bmm(vectors.transpose(0, 1), values.permute(1, 2, 0))  # (H, 2, N)
        source, target = both.permute(1, 2, 0).contiguous().unbind(0)
    return source, target


def dense_pairs(values: Tensor, vectors: Tensor, graph: Neighbours, slope: float) -> Tensor:
    """Over all pairs of nodes of a small graph, (N, H, C): what `attend` gives for `pair_scores` of `end_scores`.

    `values` (N, H or 1, C), `vectors` (2, H, C); `slope` is that of LeakyReLU below 0.
    """
    return _DensePairs.run(values, vectors, graph, slope)


def dense_products(values: Tensor, query: Tensor, key: Tensor, graph: Neighbours, scale: float) -> Tensor:
    """Over all pairs of nodes of a small graph, (N, H, C): what `attend` gives for `head_products` times `scale`.

    `values` (N, H or 1, C), `query` and `key` (N, H, D).
    """
    return _DenseProducts.run(values, query, key, graph, scale)


def dense_additive(source: Tensor, target: Tensor, vector: Tensor, graph: Neighbours, slope: float) -> Tensor:
    """Over all pairs of nodes of a small graph, (N, H, C): what `attend` gives for `additive_scores`.

    `source` (N, H, C), which are the values, too; `target` (N, H, C), `vector` (H, C); `slope` is that of LeakyReLU.
    """
    return _DenseAdditive.run(source, target, vector, graph, slope)


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
        return segment_sum(grad, back, back.permutation), segment_sum(grad, ctx.neighbours), None, None


class _FusedAttention(Kernel):
    """Attention in one pass over the edges of each target; its backward pass adds one over those of each source. No
    E x H x C numbers are in memory."""

    @staticmethod
    def plain(query, key, values, vector, edge, keep, neighbours: Neighbours, kind: str, slope: float, scale: float):
        col, row = neighbours.col, neighbours.row
        if kind == "transformer":
            scores = (query.index_select(0, row) * key.index_select(0, col)).sum(-1) * scale
        else:
            scores = query.index_select(0, row) + (values if key is None else key).index_select(0, col)
        scores = scores if edge is None else scores + edge
        scores = scores if kind == "transformer" else F.leaky_relu(scores, slope)
        scores = scores if vector is None else (scores * vector).sum(-1)
        weight = _plain_softmax(scores, neighbours)
        weight = weight if keep is None else weight * keep
        return aggregation.scattered(weight.unsqueeze(2) * values.index_select(0, col), neighbours)

    @staticmethod
    def forward(ctx, query, key, values, vector, edge, keep, neighbours, kind, slope, scale):
        passes = triton_for(values)
        tensors = [None if one is None else one.detach() for one in (query, key, values)]
        more = {"vector": vector, "edge": edge, "keep": keep}
        more = {name: None if one is None else one.detach() for name, one in more.items()}
        out, saved = passes.attend(kind, *tensors, neighbours, **more, slope=slope, scale=scale)
        ctx.settings = neighbours, kind, slope, scale
        ctx.save_for_backward(query, key, values, vector, edge, keep, *saved)
        return out

    @staticmethod
    def back(ctx, grad):
        (query, key, values, vector, edge, keep, *saved) = ctx.saved_tensors
        neighbours, kind, slope, scale = ctx.settings
        more = {"vector": vector, "edge": edge, "keep": keep, "slope": slope, "scale": scale}
        grads = triton_for(values).attend_back(
            kind, grad, saved, query, key, values, neighbours, **more, wanted=ctx.needs_input_grad[:5]
        )
        return *grads, *[None] * 5


class _AdditiveScores(Kernel):
    @staticmethod
    def plain(source, target, vector, edge, neighbours: Neighbours, slope: float) -> Tensor:
        both = source.index_select(0, neighbours.col) + target.index_select(0, neighbours.row)
        return (F.leaky_relu(both if edge is None else both + edge, slope) * vector).sum(-1)

    @staticmethod
    def forward(ctx, source, target, vector, edge, neighbours: Neighbours, slope: float) -> Tensor:
        if source.is_cuda:  # it would ask the device whether all is finite
            raise SwapError(f"no kernel for cuda: heads of {vector.shape[1]} channels do not fit into registers")
        ctx.settings = neighbours, slope
        ctx.save_for_backward(source, target, vector, edge)
        block = _block(vector)
        out = source.new_empty(vector.shape[0], neighbours.num_edges)
        for piece, both in _pair_sums(source, target, edge, neighbours):
            torch.mm(block, F.leaky_relu_(both, slope).t(), out=out[:, piece])
        if vector.shape[0] > 1 and not all_finite(out):  # 0 * NaN of one head reached the others
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
            segment_sum(sent, back, back.permutation).view_as(source) if ctx.needs_input_grad[0] else None,
            segment_sum(sent, neighbours).view_as(target) if ctx.needs_input_grad[1] else None,
            to_vector if ctx.needs_input_grad[2] else None,
            sent.view_as(edge) if ctx.needs_input_grad[3] else None,
            None,
            None,
        )


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.neighbours, passes = neighbours, triton_for(scores)
        if passes is not None:
            rows = scores.flatten(1) if scores.dim() > 1 else scores.unsqueeze(1)
            shift = passes.log_sum_exp(rows.detach(), neighbours).index_select(0, neighbours.row)
            weights = (rows - shift).exp().to(scores.dtype).view_as(scores)
            ctx.save_for_backward(weights)
            return weights
        small = scores.numel() == 0 or _largest(scores) <= SAFE_SCORE
        if small and scores.dtype is not torch.float16:  # which ends at 65,504
            weights = scores.exp()
        else:
            weights = (scores - segment_max(scores, neighbours).index_select(0, neighbours.row)).exp_()
        weights.div_(segment_sum(weights, neighbours).index_select(0, neighbours.row))
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
        return grad_query, _gradient_of_values(query, grad, key, neighbours), None


class _HeadSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, weight: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        ctx.save_for_backward(values, weight)
        return sums_by_head(values, neighbours, weight)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, weight = ctx.saved_tensors
        grad_values = _gradient_of_values(grad, weight, values, ctx.neighbours) if ctx.needs_input_grad[0] else None
        grad_weight = head_products(grad, values, ctx.neighbours) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weight, None


def _gradient_of_values(grad: Tensor, weight: Tensor, values: Tensor, neighbours: Neighbours) -> Tensor:
    """The gradient of the values from that of their sums."""
    back = neighbours.transposed
    sent = head_sum(grad, back, weight.index_select(0, back.permutation))
    return sent if values.shape[1] == sent.shape[1] else sent.sum(1, keepdim=True)


def _pair_sums(source, target, edge: Tensor | None, neighbours: Neighbours) -> Iterator[tuple[slice, Tensor]]:
    """(some edges, source[j] + target[i] + edge[e] of these (edges, H C)): `embedding_bag` over two rows an edge writes
    their sum once, in the time of one gather."""
    rows, edge = torch.cat([source.flatten(1), target.flatten(1)]), None if edge is None else edge.flatten(1)
    ends = neighbours.cached(_ends)
    # with pieces a quarter as large threads wait for each other: 1.8 times as long on two shared cores
    step = max(1, 2 * aggregation.CHUNK_NUMBERS * torch.get_num_threads() // max(rows.shape[1], 1))
    twos = torch.arange(0, 2 * min(step, neighbours.num_edges) + 1, 2, dtype=ends.dtype, device=ends.device)
    for start in range(0, neighbours.num_edges, step):
        of_piece = ends[start : start + step]
        places, starts = of_piece.reshape(-1), twos[: of_piece.shape[0] + 1]
        both = torch.embedding_bag(rows, places, starts, False, 0, False, None, include_last_offset=True)[0]
        piece = slice(start, start + step)
        yield piece, both if edge is None else both.add_(edge[piece])


def _ends(neighbours: Neighbours) -> Tensor:
    """(E, 2): the source and the target of each edge; targets are numbered after the sources."""
    kind = index_type(neighbours.num_sources + neighbours.num_nodes, 2 * neighbours.num_edges)
    return torch.stack([neighbours.col.to(kind), neighbours.row.to(kind) + neighbours.num_sources], dim=1)


def _block(vector: Tensor) -> Tensor:
    """(H, H C) block-diagonal: one product sums over the channels of each head. Its transpose takes BLAS 5 times as
    long."""
    return torch.block_diag(*vector.unsqueeze(1))


# ---- over all pairs of nodes of a small graph -----------------------------------------------------------------------


class _Dense(Kernel):
    """Attention of a small graph over all pairs of nodes, (N, H, C): a few products of small matrices.

    Pairs without an edge have the score -inf; an edge repeated k times adds log k to its score. Inputs are values
    (N, H or 1, C), more tensors that scores depend on, a graph and a number. A subclass has `scores`, with the mask
    added, and `scores_back`, the gradients of all tensors. As 0 * NaN is NaN, results and gradients that are not finite
    are computed by `plain`, over edges.
    """

    @classmethod
    def run(cls, *inputs: Any) -> Tensor:
        *tensors, graph, number = inputs
        if recorded(*tensors) or transformed(*tensors):
            return super().run(*inputs)
        out, *_ = cls.attention(tensors, graph, number)
        return cls.plain(*inputs) if out is None else out

    @classmethod
    def attention(cls, tensors: Sequence[Tensor], graph: Neighbours, number: float) -> tuple[Tensor | None, ...]:
        """(the result, None where it is not finite; weights (H, N, N) of (target, source); what `scores` saved)."""
        values = tensors[0]
        scores, *saved = cls.scores(graph.cast("log_counts", values.dtype), number, *tensors)
        alpha = scores.softmax(2)
        if graph.cached(_some_isolated):
            alpha.masked_fill_(graph.isolated, 0)
        out = torch.bmm(_columns(values, alpha.shape[0]), alpha.transpose(1, 2))  # (H, C, N)
        return out.permute(2, 0, 1).contiguous() if all_finite(out) else None, alpha, *saved

    @classmethod
    def forward(cls, ctx, *inputs):
        *tensors, graph, number = inputs
        out, *saved = cls.attention(tensors, graph, number)
        ctx.save_for_backward(*tensors, *([] if out is None else saved))
        ctx.settings = graph, number
        return cls.plain(*inputs) if out is None else out

    @classmethod
    def back(cls, ctx, grad):
        count, (_, number) = len(ctx.needs_input_grad) - len(ctx.settings), ctx.settings
        tensors, saved = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        if not saved:
            return cls.plain_back(ctx, grad)
        alpha, *saved = saved
        columns = grad.contiguous().permute(1, 2, 0)  # (H, C, N)
        to_alpha = torch.bmm(columns.transpose(1, 2), _columns(tensors[0], alpha.shape[0]))
        to_scores = torch._softmax_backward_data(to_alpha, alpha, 2, alpha.dtype)
        gradients = cls.scores_back(to_scores, torch.bmm(columns, alpha), *saved, number, *tensors)
        # a gradient of a pair's score that is not finite reaches those of all tensors that the score depends on
        finite = math.isfinite(sum(one.sum() for one in gradients[1:]))
        return (*gradients, None, None) if finite else cls.plain_back(ctx, grad)


class _DensePairs(_Dense):
    """Scores LeakyReLU(source[j] + target[i]), which are products of values with vectors (2, H, C)."""

    @staticmethod
    def plain(values, vectors, graph, slope):
        return attend(pair_scores(*end_scores(values, vectors), graph, slope), values, graph)

    @staticmethod
    def scores(mask, slope, values, vectors):
        source, target = torch.bmm(vectors.transpose(0, 1), _columns(values, vectors.shape[1])).unbind(1)  # (H, N)
        sums = target.unsqueeze(2) + source.unsqueeze(1)
        return F.leaky_relu(sums, slope).add_(mask), sums

    @staticmethod
    def scores_back(to_scores, to_values, sums, slope, values, vectors):
        to_sums = torch.ops.aten.leaky_relu_backward(to_scores, sums, slope, False)
        to_ends = torch.stack([to_sums.sum(1), to_sums.sum(2)], dim=1)  # (H, 2, N)
        to_values.baddbmm_(vectors.permute(1, 2, 0), to_ends)
        to_vectors = torch.bmm(to_ends, _columns(values, vectors.shape[1]).transpose(1, 2))
        return _rows(to_values, values), to_vectors.transpose(0, 1)


class _DenseProducts(_Dense):
    """Scores scale * query[i] . key[j], of query and key (N, H, D)."""

    @staticmethod
    def plain(values, query, key, graph, scale):
        return attend(head_products(query, key, graph) * scale, values, graph)

    @staticmethod
    def scores(mask, scale, values, query, key):
        return (torch.baddbmm(mask, query.transpose(0, 1), key.permute(1, 2, 0), alpha=scale),)

    @staticmethod
    def scores_back(to_scores, to_values, scale, values, query, key):
        to_scores.mul_(scale)
        to_query = torch.bmm(key.permute(1, 2, 0), to_scores.transpose(1, 2))
        to_key = torch.bmm(query.permute(1, 2, 0), to_scores)
        return _rows(to_values, values), _rows(to_query, query), _rows(to_key, key)


class _DenseAdditive(_Dense):
    """Scores vector[h] . LeakyReLU(source[j, h] + target[i, h]), where values are the sources; vector (H, C)."""

    @staticmethod
    def plain(source, target, vector, graph, slope):
        return attend(additive_scores(source, target, vector, graph, slope), source, graph)

    @staticmethod
    def scores(mask, slope, source, target, vector):
        sums = (target.flatten(1).unsqueeze(1) + source.flatten(1)).flatten(0, 1)  # (N N, H C)
        block, activated = _block(vector), F.leaky_relu(sums, slope)
        return torch.mm(block, activated.t()).view(-1, *mask.shape).add_(mask), sums, block, activated

    @staticmethod
    def scores_back(to_scores, to_values, sums, block, activated, slope, source, target, vector):
        to_scores = to_scores.flatten(1)
        to_block = torch.mm(to_scores, activated).view(-1, *vector.shape)
        to_sums = torch.ops.aten.leaky_relu_backward(torch.mm(to_scores.t(), block), sums, slope, False)
        to_sums = to_sums.view(-1, *source.shape)
        to_source, to_vector = _rows(to_values, source) + to_sums.sum(0), to_block.diagonal(dim1=0, dim2=1).t()
        return to_source, to_sums.sum(1), to_vector


def _columns(values: Tensor, heads: int) -> Tensor:
    """(N, H or 1, C) -> (H, C, N), a view: products of few channels take a third of the time with nodes in columns."""
    return values.permute(1, 2, 0).expand(heads, -1, -1)


def _rows(columns: Tensor, values: Tensor) -> Tensor:
    """(H, C, N) -> (N, H, C), a view; the sum of all heads where these share the values."""
    return (columns if values.shape[1] > 1 else columns.sum(0, keepdim=True)).permute(2, 0, 1)


def _some_isolated(graph: Neighbours) -> bool:
    return bool(graph.isolated.any())


def _largest(scores: Tensor) -> float:
    """The largest magnitude; NaN where one is NaN."""
    return max(map(abs, torch.stack(scores.aminmax()).tolist()))
