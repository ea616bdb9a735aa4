"""Scores of GATv2 (Brody et al. 2022): vector . LeakyReLU(source[j] + target[i]), in pieces that fit into the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnnlab.kernels import aggregation
from gnnlab.kernels.aggregation import segment_sum
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.kernels.sorting import index_type


def additive_scores(
    source: Tensor, target: Tensor, vector: Tensor, neighbours: Neighbours, slope: float, edge: Tensor | None = None
) -> Tensor:
    """vector[h] . LeakyReLU(source[j, h] + target[i, h] + edge[e, h]), (E, H) in the order of `neighbours.col`.

    `source` (num_sources, H, C), `target` (num_nodes, H, C), `vector` (H, C); `edge` (E, H, C) in the order of
    `neighbours.col`, or None. All may want gradients; the backward pass computes each piece again, and holds the
    gradient of the sums, E x H x C, once.

    Raises:
        GnnlabError: they do not belong to the prepared graph.
    """
    neighbours.require("source", source, (neighbours.num_sources, *vector.shape), vector.dtype)
    neighbours.require("target", target, (neighbours.num_nodes, *vector.shape), vector.dtype)
    if edge is not None:
        neighbours.require("edge", edge, (neighbours.num_edges, *vector.shape), vector.dtype)
    if torch.compiler.is_compiling():
        both = source.index_select(0, neighbours.col.long()) + target.index_select(0, neighbours.row.long())
        return (F.leaky_relu(both if edge is None else both + edge, slope) * vector).sum(-1)
    return _AdditiveScores.apply(source, target, vector, edge, neighbours, slope)


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, source, target, vector, edge, neighbours: Neighbours, slope: float) -> Tensor:
        ctx.neighbours, ctx.slope = neighbours, slope
        ctx.save_for_backward(source, target, vector, edge)
        block = _block(vector)
        out = source.new_empty(vector.shape[0], neighbours.num_edges)
        for piece, both in _pieces(source, target, edge, neighbours):
            torch.mm(block, F.leaky_relu_(both, slope).t(), out=out[:, piece])
        return out.t().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (source, target, vector, edge), neighbours = ctx.saved_tensors, ctx.neighbours
        block, back = _block(vector), neighbours.transposed
        to_block, sent = torch.zeros_like(block), grad.new_empty(neighbours.num_edges, vector.numel())
        for piece, both in _pieces(source, target, edge, neighbours):
            torch.mm(grad[piece], block, out=sent[piece])
            torch.ops.aten.leaky_relu_backward(sent[piece], both, ctx.slope, False, grad_input=sent[piece])
            if ctx.needs_input_grad[2]:
                to_block.addmm_(grad[piece].t(), F.leaky_relu_(both, ctx.slope))
        to_vector = to_block.view(-1, *vector.shape).diagonal(dim1=0, dim2=1).t()
        return (
            segment_sum(sent, back, back.order).view_as(source) if ctx.needs_input_grad[0] else None,
            segment_sum(sent, neighbours).view_as(target) if ctx.needs_input_grad[1] else None,
            to_vector if ctx.needs_input_grad[2] else None,
            sent.view_as(edge) if ctx.needs_input_grad[3] else None,
            None,
            None,
        )


def _pieces(source, target, edge: Tensor | None, neighbours: Neighbours) -> Iterator[tuple[slice, Tensor]]:
    """(some edges, source[j] + target[i] + edge[e] of these (edges, H C)).

    A bag of two rows an edge reads both and writes their sum once, in the time of one of two gathers.
    """
    rows, edge = torch.cat([source.flatten(1), target.flatten(1)]), None if edge is None else edge.flatten(1)
    ends = neighbours.once("ends", lambda: _ends(neighbours))
    step = max(1, 2 * aggregation.CHUNK_NUMBERS // max(rows.shape[1], 1))
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
