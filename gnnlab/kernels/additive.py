"""Scores of GATv2 (Brody et al. 2022): vector . LeakyReLU(source[j] + target[i]), in pieces that fit into the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnnlab.errors import GnnlabError
from gnnlab.kernels import aggregation
from gnnlab.kernels.aggregation import segment_sum
from gnnlab.kernels.neighbours import Neighbours


def additive_scores(
    source: Tensor, target: Tensor, vector: Tensor, neighbours: Neighbours, slope: float, edge: Tensor | None = None
) -> Tensor:
    """vector[h] . LeakyReLU(source[j, h] + target[i, h] + edge[e, h]), (E, H) in the order of `neighbours.col`.

    `source` (num_sources, H, C), `target` (num_nodes, H, C), `vector` (H, C); `edge` (E, H, C) in the order of
    `neighbours.col`, or None. All may want gradients; the backward pass computes each piece again.

    Raises:
        GnnlabError: they do not belong to the prepared graph.
    """
    shapes = {"source": (source, neighbours.num_sources), "target": (target, neighbours.num_nodes)}
    if edge is not None:
        shapes["edge"] = (edge, neighbours.num_edges)
    for name, (tensor, count) in shapes.items():
        wanted = (count, *vector.shape)
        if tuple(tensor.shape) != wanted or tensor.dtype != vector.dtype or tensor.device != neighbours.device:
            raise GnnlabError(
                f"{name} must be {wanted}, {vector.dtype} on {neighbours.device}, "
                f"not {tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
            )
    if torch.compiler.is_compiling():
        both = source.index_select(0, neighbours.col.long()) + target.index_select(0, neighbours.row.long())
        return (F.leaky_relu(both if edge is None else both + edge, slope) * vector).sum(-1)
    return _AdditiveScores.apply(source, target, vector, edge, neighbours, slope)


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, source, target, vector, edge, neighbours: Neighbours, slope: float) -> Tensor:
        ctx.neighbours, ctx.slope = neighbours, slope
        ctx.save_for_backward(source, target, vector, edge)
        flat, block = _flat(source, target, edge), _block(vector)
        out = source.new_empty(neighbours.num_edges, vector.shape[0])
        step = _step(vector)
        for start in range(0, neighbours.num_edges, step):
            piece = slice(start, start + step)
            both = _added(flat, neighbours.col[piece], neighbours.row[piece], piece)
            torch.mm(F.leaky_relu_(both, slope), block, out=out[piece])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        source, target, vector, edge = ctx.saved_tensors
        flat, grad = _flat(source, target, edge), grad.contiguous()
        wants_source, wants_target, wants_vector, wants_edge = ctx.needs_input_grad[:4]
        found: list[Tensor | None] = [None] * 6
        if wants_target or wants_vector or wants_edge:
            found[1:4] = _to_targets(flat, vector, grad, ctx.neighbours, ctx.slope, wants_edge)
            found[1], found[2] = found[1].view_as(target), found[2] if wants_vector else None
            found[3] = found[3].view_as(edge) if wants_edge else None
        if wants_source:
            found[0] = _to_sources(flat, vector, grad, ctx.neighbours, ctx.slope).view_as(source)
        return tuple(found)


def _to_targets(flat, vector: Tensor, grad: Tensor, neighbours: Neighbours, slope: float, wants_edge: bool):
    """Gradients of target (N, H C), vector (H, C) and edge (E, H C) or None."""
    block = _block(vector)
    to_target, to_edge = torch.empty_like(flat[1]), torch.empty_like(flat[2]) if wants_edge else None
    to_block = torch.zeros_like(block)
    for nodes, piece in _pieces(neighbours, _step(vector)):
        both = _added(flat, neighbours.col[piece], neighbours.row[piece], piece)
        sent = torch.ops.aten.leaky_relu_backward(grad[piece] @ block.t(), both, slope, False)
        to_block.addmm_(F.leaky_relu_(both, slope).t(), grad[piece])
        to_target[nodes] = _piece_sums(sent, neighbours, nodes, piece)
        if wants_edge:
            to_edge[piece] = sent
    heads, width = vector.shape
    return to_target, to_block.view(heads, width, heads).diagonal(dim1=0, dim2=2).t(), to_edge


def _to_sources(flat, vector: Tensor, grad: Tensor, neighbours: Neighbours, slope: float) -> Tensor:
    block, back = _block(vector), neighbours.transposed
    to_source = torch.empty_like(flat[0])
    for nodes, piece in _pieces(back, _step(vector)):
        order = back.order[piece]
        both = _added(flat, back.row[piece], back.col[piece], order)
        sent = grad.index_select(0, order) @ block.t()
        sent = torch.ops.aten.leaky_relu_backward(sent, both, slope, False)
        to_source[nodes] = _piece_sums(sent, back, nodes, piece)
    return to_source


def _flat(source: Tensor, target: Tensor, edge: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    return source.flatten(1), target.flatten(1), None if edge is None else edge.flatten(1)


def _added(flat, col: Tensor, row: Tensor, edges: slice | Tensor) -> Tensor:
    """source[j] + target[i] + edge[e] of some edges, (edges, H C)."""
    source, target, edge = flat
    both = source.index_select(0, col).add_(target.index_select(0, row))
    if edge is None:
        return both
    return both.add_(edge[edges] if isinstance(edges, slice) else edge.index_select(0, edges))


def _block(vector: Tensor) -> Tensor:
    """(H C, H): the vector of each head in its own column, so that one product sums over the channels of each head."""
    heads, width = vector.shape
    return torch.diag_embed(vector.t()).permute(1, 0, 2).reshape(heads * width, heads)


def _step(vector: Tensor) -> int:
    return max(1, aggregation.CHUNK_NUMBERS // max(vector.numel(), 1))


def _pieces(neighbours: Neighbours, step: int) -> Iterator[tuple[slice, slice]]:
    """(nodes, their edges), of about `step` edges each, more where one node has more."""
    ends = neighbours.offsets
    first = 0
    while first < neighbours.num_nodes:
        start = int(ends[first])
        last = int(torch.searchsorted(ends, start + step, right=True)) - 1
        last = min(max(last, first + 1), neighbours.num_nodes)
        yield slice(first, last), slice(start, int(ends[last]))
        first = last


def _piece_sums(values: Tensor, neighbours: Neighbours, nodes: slice, piece: slice) -> Tensor:
    """Sums of the values of some edges over the nodes whose edges these all are."""
    rowptr = neighbours.rowptr[nodes.start : nodes.stop + 1] - piece.start
    part = Neighbours(rowptr, neighbours.col[piece], None, None, neighbours.num_sources)
    return segment_sum(values, part)
