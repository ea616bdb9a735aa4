"""The operators that a rewritten graph calls: `torch.ops.gnnlab.*`, each with what a trace needs to know of its result.

They read edges that are sorted by the node where they end: `rowptr` (N + 1) says where the edges of each node begin, as
in `gnnlab.kernels.neighbours`. They have no gradients of their own: backward passes are rewritten as graphs, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnnlab.errors import GnnlabError
from gnnlab.kernels import aggregation, attention
from gnnlab.kernels.neighbours import Neighbours

_INT32 = 2**31 - 1
_LIBRARY = torch.library.Library("gnnlab", "DEF")


def _operator(shape: Callable[..., Any]) -> Callable[[Callable], Callable]:
    """Makes a function an operator of its name; `shape` gives what it does, empty, for a trace."""

    def define(function: Callable) -> Callable:
        name = f"gnnlab::{function.__name__}"
        torch.library.define(name, torch.library.infer_schema(function, mutates_args=()), lib=_LIBRARY)
        run = torch.compiler.disable(function)  # what Inductor's code calls, torch.compile would else compile again
        torch.library.impl(name, "CompositeExplicitAutograd", run, lib=_LIBRARY)
        torch.library.register_fake(name, shape, lib=_LIBRARY)
        return function

    return define


def _rows(x: Tensor) -> Tensor:
    return x.unsqueeze(1) if x.dim() == 1 else x.flatten(1)


def _edges(values: Tensor, rowptr: Tensor, row: Tensor | None = None) -> Neighbours:
    """Edges alone, which the rows of `values` belong to in their order."""
    places = torch.arange(values.shape[0], dtype=rowptr.dtype, device=rowptr.device)
    return Neighbours(rowptr, places, row, None, values.shape[0])


def _sorted_shape(index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    return tuple(index.new_empty(size, dtype=torch.int32) for size in (nodes + 1, index.shape[0]))


def _heads_shape(rowptr: Tensor, col: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    edges = col.shape[0] * heads
    place = col.new_empty(edges, dtype=torch.int64)
    return rowptr.new_empty((rowptr.shape[0] - 1) * heads + 1), col.new_empty(edges), place


def _like(values: Tensor, *others: Tensor) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _row_a_node(x: Tensor, rowptr: Tensor, *others: Tensor | None) -> Tensor:
    return x.new_empty(rowptr.shape[0] - 1, *x.shape[1:])


@_operator(_sorted_shape)
def sort_edges(index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """(rowptr (nodes + 1), order (E)) of the edges that end at `index` (E), both int32: edge order[k] is the k-th.

    Raises:
        GnnlabError: `index` names a node that there is not, or there are more than 2^31 edges or nodes.
    """
    edges = index.shape[0]
    if max(edges, nodes) >= _INT32:
        raise GnnlabError(f"{nodes} nodes and {edges} edges; a rewritten graph takes fewer than {_INT32} of each")
    places = torch.arange(edges, dtype=index.dtype, device=index.device)
    found = Neighbours.prepare(torch.stack([places, index]), nodes, num_sources=edges)
    return found.rowptr.int(), found.col.int()


@_operator(_heads_shape)
def sort_heads(rowptr: Tensor, col: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(rowptr, col, place) of the graph in which node i of head h is number i * heads + h.

    `place` (E * heads) says where the weight of each edge stands in weights (E, heads) that are read row by row.
    """
    edges = col.shape[0]
    row = torch.arange(rowptr.shape[0] - 1, dtype=torch.int32).repeat_interleave(rowptr.diff())
    found = Neighbours(rowptr, torch.arange(edges, dtype=torch.int32), row, None, edges).heads(heads)
    place = found.col.long()
    return found.rowptr.int(), (col[place // heads] * heads + place % heads).int(), place


@_operator(_row_a_node)
def weighted_sum(x: Tensor, rowptr: Tensor, col: Tensor, weight: Tensor | None) -> Tensor:
    """out[i] = sum over the edges k of i of weight[k] * x[col[k]], (N, ...) for x (sources, ...), weight E numbers."""
    graph = Neighbours(rowptr, col, None, None, x.shape[0])
    weight = None if weight is None else weight.reshape(-1)
    return aggregation.bag(_rows(x), graph, weight).view(graph.num_nodes, *x.shape[1:])


@_operator(lambda x, rowptr, *others: x.new_empty((rowptr.shape[0] - 1) // x.shape[1], *x.shape[1:]))
def weighted_sum_heads(x: Tensor, rowptr: Tensor, col: Tensor, place: Tensor, weight: Tensor) -> Tensor:
    """The same for each head: x (sources, heads, C), weight (E, heads, 1); the others as `sort_heads` makes them."""
    heads, width = x.shape[1:]
    weight = weight.reshape(-1).index_select(0, place)
    graph = Neighbours(rowptr, col, None, None, x.shape[0] * heads)
    return aggregation.bag(x.reshape(-1, width), graph, weight).view(-1, heads, width)


@_operator(_row_a_node)
def segment_sum(values: Tensor, rowptr: Tensor) -> Tensor:
    """out[i] = sum of values[k] over the edges k of i; `values` (E, ...), sorted."""
    return aggregation.segment_sum(values, _edges(values, rowptr))


@_operator(_row_a_node)
def segment_max(values: Tensor, rowptr: Tensor) -> Tensor:
    """out[i] = the largest of values[k] over the edges k of i, 0 where there are none; `values` (E, ...), sorted."""
    largest = aggregation.segment_max(_rows(values), _edges(values, rowptr))
    lonely = (rowptr.diff() == 0).unsqueeze(1)
    return largest.masked_fill_(lonely, 0).view(-1, *values.shape[1:])


@_operator(_like)
def segment_softmax(scores: Tensor, rowptr: Tensor, row: Tensor) -> Tensor:
    """softmax of `scores` (E, ...) over the edges of each node; `row` (E) is the node of each edge."""
    return attention.softmaxed(scores, _edges(scores, rowptr, row))


@_operator(_like)
def segment_softmax_backward(grad: Tensor, weights: Tensor, rowptr: Tensor, row: Tensor) -> Tensor:
    """The gradient of the scores of `segment_softmax`, from that of its weights."""
    return attention.softmaxed_back(grad.clone(), weights, _edges(grad, rowptr, row))


@_operator(lambda a, b, rowptr, row, col: a.new_empty(row.shape[0], *a.shape[1:-1]))
def edge_dot(a: Tensor, b: Tensor, rowptr: Tensor, row: Tensor, col: Tensor) -> Tensor:
    """sum over the last dimension of a[row[k]] * b[col[k]] for each edge k, (E) or (E, heads); `row` (E) sorted."""
    if a.numel() == 0 or row.numel() == 0:
        return a.new_zeros(row.shape[0], *a.shape[1:-1])
    graph = Neighbours(rowptr, col, row, None, b.shape[0])
    if a.dim() == 2:
        return aggregation.edge_products(a, b, graph)
    heads = zip(a.unbind(1), b.unbind(1), strict=True)
    return torch.stack([aggregation.edge_products(one, other, graph) for one, other in heads], dim=1)
