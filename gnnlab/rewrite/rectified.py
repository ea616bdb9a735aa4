"""The sum of GINE (Hu et al. 2020), relu(x[j] + W e), with rows of the edges of some targets in the cache at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch_geometric import nn as pyg
from torch_geometric.nn.aggr import SumAggregation

from gnnlab.kernels.aggregation import segment_sum
from gnnlab.rewrite.edges import SOURCE, Edges
from gnnlab.rewrite.pieces import pieces


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
