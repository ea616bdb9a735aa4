"""What torch.compile keeps whole of a fast layer: its sum over neighbours, or its attention, as an operator of torch.

    torch.compile(swap(model).model, fullgraph=True)

Within a trace a layer hands its tensors to an operator that gets the edges and a number by which it finds the layer
when it runs; the prepared graph never stands in the trace, so other sizes need no compilation of their own. The
operator has a fake form, for shapes, and a gradient, for which it computes its forward pass once more.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from gnnswap.aggregation import weighted_sum
from gnnswap.neighbours import GraphCache

_THREAD = ThreadPoolExecutor(1)
_LAYERS: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_NUMBERS = itertools.count(1)
_NEIGHBOUR_SUM, _GRAPHS = 0, GraphCache()


def numbered(layer: nn.Module) -> int:
    """A number by which the operator finds this layer while it lives."""
    number = next(_NUMBERS)
    _LAYERS[number] = layer
    return number


class Traced:
    """Stands for the prepared graph of a layer while it is traced."""

    targets = None

    def __init__(self, layer: nn.Module, edge_index: Tensor, values: Tensor | None) -> None:
        self.number, self.edge_index, self.features = layer._number, edge_index, values

    def __call__(self, x: Tensor) -> Tensor:
        return aggregate([x.contiguous()], self.edge_index, self.features, self.number, list(x.shape))

    def attend(self, layer: nn.Module, tensors: Sequence[Tensor], rows: int = 1) -> Tensor:
        """What the layer makes of its tensors, (N, heads or `rows`, F)."""
        shape = [tensors[0].shape[0], getattr(layer, "heads", rows), tensors[0].shape[2]]
        return aggregate(list(tensors), self.edge_index, self.features, self.number, shape)


def _aggregated(tensors: Sequence[Tensor], edge_index: Tensor, values: Tensor | None, number: int, shape) -> Tensor:
    x = tensors[0]
    if number == _NEIGHBOUR_SUM:
        return weighted_sum(x, _GRAPHS.get(edge_index, shape[0], x.shape[0]), *tensors[1:])
    layer = _LAYERS[number]
    with torch.inference_mode(False):
        graph = layer._fast.graphs.get(edge_index, x.shape[0])
        prepared = layer._form.prepare(layer, graph, values, x.dtype)
    return prepared(x) if len(shape) == 2 else prepared.attend(layer, tensors)


@torch.library.custom_op("gnnswap::aggregate", mutates_args=())
def aggregate(
    tensors: Sequence[Tensor], edge_index: Tensor, values: Tensor | None, number: int, shape: Sequence[int]
) -> Tensor:
    """What the layer with this number makes of its neighbours, of this `shape`: a sum, x (N, F) -> (N, F); or what it
    attends to, tensors[0] (N, H or 1, C) -> (N, H, C). Number 0: `neighbour_sum` of x and of weights, if given."""
    return _aggregated([t.detach() for t in tensors], edge_index, values, number, shape).contiguous()


@aggregate.register_fake
def _(tensors, edge_index, values, number, shape):
    return tensors[0].new_empty(shape)


@torch.library.custom_op("gnnswap::aggregate_back", mutates_args=())
def aggregate_back(
    grad: Tensor,
    tensors: Sequence[Tensor],
    edge_index: Tensor,
    values: Tensor | None,
    number: int,
    shape: Sequence[int],
) -> list[Tensor]:
    """The gradient of each of the tensors."""

    def compute() -> list[Tensor]:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in tensors]
            out = _aggregated(leaves, edge_index, values, number, shape)
            return [g.contiguous() for g in torch.autograd.grad(out, leaves, grad, materialize_grads=True)]

    return _THREAD.submit(compute).result()  # on the thread of an operator torch records nothing for gradients


@aggregate_back.register_fake
def _(grad, tensors, edge_index, values, number, shape):
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]


def _save(ctx, inputs, output) -> None:
    tensors, edge_index, values, ctx.number, ctx.shape = inputs
    ctx.save_for_backward(edge_index, values, *tensors)


def _backward(ctx, grad):
    edge_index, values, *tensors = ctx.saved_tensors
    return aggregate_back(grad.contiguous(), tensors, edge_index, values, ctx.number, ctx.shape), None, None, None, None


aggregate.register_autograd(_backward, setup_context=_save)


def neighbour_sum(x: Tensor, edge_index: Tensor, weight: Tensor | None = None, num_nodes: int | None = None) -> Tensor:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j], (num_nodes, F): what is often written by hand as

        torch.zeros(num_nodes, F).index_add(0, edge_index[1], weight[:, None] * x[edge_index[0]])

    `x` (N, F); `edge_index` (2, E), sources in row 0; `weight` (E,), ones where it is None; `num_nodes` targets, N
    unless given. x and weight may want gradients. The edges are sorted when they are first seen; torch.compile keeps
    the call whole.

    Raises:
        SwapError: shapes or types do not fit together, or an edge names a node that there is not.
    """
    nodes = x.shape[0] if num_nodes is None else num_nodes
    if torch.compiler.is_compiling():
        tensors = [x] if weight is None else [x, weight]
        return aggregate(tensors, edge_index, None, _NEIGHBOUR_SUM, [nodes, x.shape[1]])
    return weighted_sum(x, _GRAPHS.get(edge_index, nodes, x.shape[0]), weight)
