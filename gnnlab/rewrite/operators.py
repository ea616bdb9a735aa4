"""What torch.compile keeps whole of a fast layer: its sum over neighbours, or its attention, as an operator of torch.

    torch.compile(swap(model).model, fullgraph=True)

Within a trace a layer hands its tensors to an operator that gets the edges and a number by which it finds the layer
when it runs; the prepared graph never stands in the trace, so other sizes need no compilation of their own. Operators
have a fake form, for shapes, and a gradient; attention computes its forward pass once more for that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from gnnlab.kernels.aggregation import edge_products, weighted_sum, weighted_sum_sorted
from gnnlab.kernels.neighbours import GraphCache
from gnnlab.kernels.sums import NeighbourSum

_THREAD = ThreadPoolExecutor(1)
_LAYERS: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_NUMBERS = itertools.count(1)
_GRAPHS = GraphCache()  # of `neighbour_sum`


def numbered(layer: nn.Module) -> int:
    """A number by which operators find this layer while it lives."""
    number = next(_NUMBERS)
    _LAYERS[number] = layer
    return number


class Traced:
    """Stands for the prepared graph of a layer while it is traced."""

    def __init__(self, layer: nn.Module, edge_index: Tensor, values: Tensor | None) -> None:
        self.number, self.edge_index, self.values = layer._number, edge_index, values

    def __call__(self, x: Tensor) -> Tensor:
        return aggregate([x.contiguous()], self.edge_index, self.values, self.number, 0)

    def attend(self, layer: nn.Module, tensors: Sequence[Tensor], rows: int = 1) -> Tensor:
        """What the layer makes of its tensors, (N, heads or `rows`, F)."""
        return aggregate(list(tensors), self.edge_index, self.values, self.number, getattr(layer, "heads", rows))


def _gradients(run: Callable[[list[Tensor]], Tensor], tensors: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """The gradients of the tensors from that of `run(tensors)`.

    On a thread of its own: on that of an operator torch records nothing for gradients.
    """

    def compute() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in tensors]
            return torch.autograd.grad(run(leaves), leaves, grad, materialize_grads=True)

    return _THREAD.submit(compute).result()


def _prepared(tensors: Sequence[Tensor], edge_index: Tensor, values: Tensor | None, number: int, heads: int):
    """(what the layer makes of its tensors, the prepared graph)."""
    layer, x = _LAYERS[number], tensors[0]
    with torch.inference_mode(False):
        graph = layer._fast.graphs.get(edge_index, x.shape[0])
        prepared = layer._form.prepare(layer, graph, values, x.dtype)
    return (partial(prepared.attend, layer) if heads else lambda one: prepared(*one)), prepared


@torch.library.custom_op("gnnlab::aggregate", mutates_args=())
def aggregate(tensors: Sequence[Tensor], edge_index: Tensor, values: Tensor | None, number: int, heads: int) -> Tensor:
    """What the layer with this number makes of its neighbours: a sum, x (N, F) -> (N, F), where `heads` is 0; else what
    it attends to, tensors[0] (N, H or 1, C) -> (N, heads, C)."""
    run, _ = _prepared(tensors, edge_index, values, number, heads)
    return run([t.detach() for t in tensors]).contiguous()


@aggregate.register_fake
def _(tensors, edge_index, values, number, heads):
    first = tensors[0]
    return first.new_empty(first.shape[0], heads, first.shape[2]) if heads else torch.empty_like(first)


@torch.library.custom_op("gnnlab::aggregate_back", mutates_args=())
def aggregate_back(
    grad: Tensor, tensors: Sequence[Tensor], edge_index: Tensor, values: Tensor | None, number: int, heads: int
) -> list[Tensor]:
    """The gradient of each of the tensors."""
    run, prepared = _prepared(tensors, edge_index, values, number, heads)
    grads = [prepared.back(grad)] if isinstance(prepared, NeighbourSum) else _gradients(run, tensors, grad)
    return [g.contiguous() for g in grads]


@aggregate_back.register_fake
def _(grad, tensors, edge_index, values, number, heads):
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]


def _save(ctx, inputs, output) -> None:
    tensors, edge_index, values, ctx.number, ctx.heads = inputs
    ctx.save_for_backward(edge_index, values, *tensors)


def _backward(ctx, grad):
    edge_index, values, *tensors = ctx.saved_tensors
    grads = aggregate_back(grad.contiguous(), tensors, edge_index, values, ctx.number, ctx.heads)
    return grads, None, None, None, None


aggregate.register_autograd(_backward, setup_context=_save)


@torch.library.custom_op("gnnlab::neighbour_sum", mutates_args=())
def _neighbour_sum(x: Tensor, edge_index: Tensor, weight: Tensor | None, num_nodes: int) -> Tensor:
    return weighted_sum(x.detach(), _GRAPHS.get(edge_index, num_nodes, x.shape[0]), weight)


@_neighbour_sum.register_fake
def _(x, edge_index, weight, num_nodes):
    return x.new_empty(num_nodes, x.shape[1])


@torch.library.custom_op("gnnlab::neighbour_sum_back", mutates_args=())
def _neighbour_sum_back(
    x: Tensor, grad: Tensor, edge_index: Tensor, weight: Tensor | None, num_nodes: int
) -> tuple[Tensor, Tensor]:
    graph = _GRAPHS.get(edge_index, num_nodes, x.shape[0])
    sent = None if weight is None else graph.sorted_weight(weight.detach()).index_select(0, graph.transposed.order)
    to_x = weighted_sum_sorted(grad, graph.transposed, sent)
    if weight is None:
        return to_x, grad.new_empty(0)
    return to_x, edge_products(grad, x, graph).index_select(0, graph.place)


@_neighbour_sum_back.register_fake
def _(x, grad, edge_index, weight, num_nodes):
    return torch.empty_like(x), grad.new_empty(0) if weight is None else torch.empty_like(weight)


def _save_neighbour_sum(ctx, inputs, output) -> None:
    x, edge_index, weight, ctx.num_nodes = inputs
    ctx.save_for_backward(x, edge_index, weight)


def _neighbour_sum_backward(ctx, grad):
    x, edge_index, weight = ctx.saved_tensors
    to_x, to_weight = _neighbour_sum_back(x, grad.contiguous(), edge_index, weight, ctx.num_nodes)
    return to_x, None, None if weight is None else to_weight, None


_neighbour_sum.register_autograd(_neighbour_sum_backward, setup_context=_save_neighbour_sum)


def neighbour_sum(x: Tensor, edge_index: Tensor, weight: Tensor | None = None, num_nodes: int | None = None) -> Tensor:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j], (num_nodes, F): what is often written by hand as

        torch.zeros(num_nodes, F).index_add(0, edge_index[1], weight[:, None] * x[edge_index[0]])

    `x` (N, F); `edge_index` (2, E), sources in row 0; `weight` (E,), ones where it is None; `num_nodes` targets, N
    unless given. x and weight may want gradients. The edges are sorted when they are first seen; torch.compile keeps
    the call whole.

    Raises:
        GnnlabError: shapes or types do not fit together, or an edge names a node that there is not.
    """
    nodes = x.shape[0] if num_nodes is None else num_nodes
    if torch.compiler.is_compiling():
        return _neighbour_sum(x, edge_index, weight, nodes)
    return weighted_sum(x, _GRAPHS.get(edge_index, nodes, x.shape[0]), weight)
