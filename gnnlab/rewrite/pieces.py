"""Messages that need a row for each edge, computed for some targets at a time, so that those rows stay in the cache.

A piece is a run of targets with all their edges: a softmax over the edges of a target and sums over them are complete
within it. For inference: training would have to compute each piece again for its gradients, and measured, that costs
what it saves. The sum of GINE holds for training, too: its rows are cheap to compute again.

    OWN_SCORES, OWN_SUMS    # layers with scores or sums of their own, tried before `edge_update` and `message`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.nn import GATv2Conv, GINEConv
from torch_geometric.nn.aggr import SumAggregation

from gnnlab.kernels.aggregation import segment_sum
from gnnlab.kernels.attention import additive_scores, segment_softmax
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.rewrite.edges import SOURCE, Edges

PIECE_NUMBERS = 1 << 18  # of a tensor with a row an edge: 1 MiB of float32; measured, from 2^17 to 2^19 is alike
EDGE = 2  # beside SOURCE and TARGET: a tensor with a row for each edge


@dataclass(frozen=True)
class Piece:
    """Some targets and their edges, as slices of those of the graph, and as a graph of their own.

    Sources of that graph are its edges: rows of sources are gathered for it.
    """

    targets: slice
    of_edges: slice
    edges: Edges

    def taken(self, x: Tensor, role: int, whole: Edges) -> Tensor:
        """The rows for each edge of this piece, of a tensor with rows for sources, targets or edges."""
        if role == EDGE:
            return x[self.of_edges]
        return x.index_select(0, whole.index[role, self.of_edges])


def pieces(edges: Edges, width: int) -> Iterator[Piece]:
    """The pieces of a graph whose edges carry `width` numbers each; made once."""
    step = max(1, PIECE_NUMBERS // max(width, 1))
    return edges.once(("pieces", step), lambda: _cut(edges.neighbours, step))


def _cut(graph: Neighbours, step: int) -> list[Piece]:
    wanted = torch.arange(step, max(step, graph.num_edges), step)
    cuts = torch.searchsorted(graph.offsets, wanted).clamp(max=graph.num_nodes)
    places = [0, *cuts.unique().tolist(), graph.num_nodes]
    starts = graph.offsets[torch.tensor(places)].tolist()
    return [
        _piece(graph, slice(first, last), slice(begin, end))
        for (first, begin), (last, end) in pairwise(zip(places, starts, strict=True))
        if last > first
    ]


def _piece(graph: Neighbours, targets: slice, of_edges: slice) -> Piece:
    rowptr = graph.rowptr[targets.start : targets.stop + 1] - of_edges.start
    count = of_edges.stop - of_edges.start
    order = torch.arange(count, dtype=graph.col.dtype)
    row = graph.row[of_edges] - targets.start
    return Piece(targets, of_edges, Edges.of(Neighbours(rowptr, order, row, order, count)))


def gine_sum(layer: pyg.GINEConv, edges: Edges, x: Any, edge_attr: Any) -> Tensor | None:
    """What `propagate` of this layer gives, (targets, F) of x[0] (sources, F) and `edge_attr` (E, D), sorted.

    None for what only the code of the layer knows: another aggregation, types that differ, a wrong width.
    """
    source, lin = x[SOURCE], layer.lin
    alike = isinstance(edge_attr, Tensor) and edge_attr.dim() == source.dim() == 2 and edge_attr.dtype == source.dtype
    if not alike or type(layer.aggr_module) is not SumAggregation or not source.is_floating_point():
        return None
    if lin is None:
        return None if edge_attr.shape[1] != source.shape[1] else _RectifiedSum.apply(source, edge_attr, None, edges)
    hooks = any(value for name, value in vars(lin).items() if name.endswith("_hooks"))
    fits = edge_attr.shape[1] == lin.weight.shape[1] and lin.weight.shape[0] == source.shape[1]
    if type(lin) not in (nn.Linear, pyg.Linear) or hooks or not fits or lin.weight.dtype != source.dtype:
        return None
    shifted = source if lin.bias is None else source + lin.bias  # once a node instead of once an edge
    return _RectifiedSum.apply(shifted, edge_attr, lin.weight, edges)


class _RectifiedSum(torch.autograd.Function):
    """Sums over the edges of each target of relu(x[source] + edge), or of relu(x[source] + W edge).

    The backward pass computes the rows again and holds their gradient, E x F, once.
    """

    @staticmethod
    def forward(ctx, x: Tensor, edge: Tensor, weight: Tensor | None, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(x, edge, weight)
        out = x.new_zeros(edges.neighbours.num_nodes, x.shape[1])
        for piece in pieces(edges, x.shape[1]):
            rows = _rows(x, edge, weight, edges, piece.of_edges).relu_()
            out[piece.targets] = segment_sum(rows, piece.edges.neighbours)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, edge, weight), edges = ctx.saved_tensors, ctx.edges
        graph, back, grad = edges.neighbours, edges.neighbours.transposed, grad.contiguous()
        sent = grad.new_empty(graph.num_edges, grad.shape[1])
        for piece in pieces(edges, x.shape[1]):
            rows, here = _rows(x, edge, weight, edges, piece.of_edges), sent[piece.of_edges]
            arrived = grad.index_select(0, graph.row[piece.of_edges])
            torch.ops.aten.threshold_backward(arrived, rows, 0, grad_input=here)
        to_x = segment_sum(sent, back, back.order) if ctx.needs_input_grad[0] else None
        to_edge = to_weight = None
        if ctx.needs_input_grad[1]:
            to_edge = sent if weight is None else sent @ weight
        if ctx.needs_input_grad[2]:
            to_weight = sent.t() @ edge
        return to_x, to_edge, to_weight, None


def _rows(x: Tensor, edge: Tensor, weight: Tensor | None, edges: Edges, of_edges: slice) -> Tensor:
    rows = x.index_select(0, edges.neighbours.col[of_edges])
    return rows.add_(edge[of_edges]) if weight is None else rows.addmm_(edge[of_edges], weight.t())


def gatv2_scores(layer: GATv2Conv, edges: Edges, x: tuple[Tensor, Tensor], edge_attr: Any) -> Tensor | None:
    """The attention weights of GATv2 (Brody et al. 2022), (E, H); `x` (sources, H, C) and (targets, H, C).

    None with edge features, where the code of the layer is as fast.
    """
    graph = edges.neighbours
    if edge_attr is not None or x[0].dtype != layer.att.dtype or x[1].dtype != layer.att.dtype:
        return None
    weights = segment_softmax(additive_scores(*x, layer.att[0], graph, layer.negative_slope), graph)
    return F.dropout(weights, p=layer.dropout, training=layer.training)


OWN_SCORES = {GATv2Conv: gatv2_scores}  # tried before `edge_update`
OWN_SUMS = {GINEConv: gine_sum}  # tried before `message`
