"""The sum over neighbours or the attention of a fast layer as one operator of torch, for torch.compile.

    torch.compile(swap(model).model, fullgraph=True)

Within a trace a layer passes its tensors, the edges, and the name and options of its kernel to the operator. So a
compiled program refers to no layer, and other layers or sizes need no new compilation. The operator has a fake kernel,
for shapes, and a gradient, for which it computes its forward pass again.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gnnswap import backends
from gnnswap.aggregation import weighted_sum
from gnnswap.cache import cuda_tensors
from gnnswap.direct import LayerKernel, Options
from gnnswap.errors import SwapError
from gnnswap.fused_layers import KERNELS
from gnnswap.guards import PLAIN, plain_call
from gnnswap.neighbours import GraphCache, Neighbours

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NEIGHBOUR_SUM = "neighbour_sum"
_RECORDING = [getattr(torch._C.DispatchKey, name) for name in ("AutogradFunctionality", "AutogradOther")]
# operators of a compiled program take only tensors and numbers, so sorted graphs are in one cache of the process,
# bounded by bytes; they follow from the edges alone
_GRAPHS = GraphCache()
_CAPTURED: list[Tensor] = []  # read by CUDA graphs that captured these operators
# keeps Inductor from capturing them in a CUDA graph: the graph is found by the tensor of edges, another one there
_TAGS = [getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name)]


def forget() -> None:
    """Drop the sorted edges that compiled models and `neighbour_sum` have kept."""
    _GRAPHS.forget()


def _graph_of(edge_index: Tensor, num_nodes: int, num_sources: int) -> Neighbours:
    """The sorted edges. While a CUDA graph is captured, which will read them, all sorted graphs are kept for good."""
    graph = _GRAPHS.get(edge_index, num_nodes, num_sources)
    if edge_index.is_cuda and backends.capturing():
        _CAPTURED.extend(cuda_tensors(_GRAPHS))
    return graph


class Traced:
    """Stands for the prepared graph of a layer while it is traced."""

    targets = None

    def __init__(
        self, kernel: LayerKernel, options: Options, edge_index: Tensor, values: Tensor | None, sum_kernel: str = ""
    ) -> None:
        if torch.compiler.is_compiling():  # a float that changed once is a symbol in a trace, unless it is guarded
            guard = torch.fx.experimental.symbolic_shapes.guard_scalar
            options = tuple(guard(one) if isinstance(one, float) else one for one in options)
        self.spec, self.edge_index, self.features = repr((kernel.name, options, sum_kernel)), edge_index, values

    def __call__(self, x: Tensor) -> Tensor:
        return aggregate([x.contiguous()], self.edge_index, self.features, self.spec, list(x.shape))

    def attend(self, attend: Callable, options: Options, tensors: Sequence[Tensor], rows: int = 1) -> Tensor:
        """As `direct.Edges.attend`; the operator finds the kernel's `attend` by its name."""
        shape = [tensors[0].shape[0], rows, tensors[0].shape[2]]
        return aggregate(list(tensors), self.edge_index, self.features, self.spec, shape)


@functools.lru_cache(256)
def _read(spec: str) -> tuple[LayerKernel, Options, str]:
    name, options, sum_kernel = ast.literal_eval(spec)
    return next(kernel for kernel in KERNELS.values() if kernel.name == name), options, sum_kernel


def _aggregated(
    tensors: Sequence[Tensor], edge_index: Tensor, values: Tensor | None, spec: str, shape: Sequence[int]
) -> Tensor:
    x = tensors[0]
    if spec == NEIGHBOUR_SUM:
        return weighted_sum(x, _graph_of(edge_index, shape[0], x.shape[0]), *tensors[1:])
    kernel, options, sum_kernel = _read(spec)
    with torch.inference_mode(False):
        graph = _graph_of(edge_index, x.shape[0], x.shape[0])
        prepared = kernel.prepared(options, graph, values, x.dtype, sum_kernel)
    if prepared is None:
        raise SwapError(f"{kernel.name} within torch.compile: its {kernel.values} do not fit its options")
    return prepared(x) if kernel.attend is None else kernel.attend(options, tensors, prepared)


@torch.library.custom_op("gnnswap::aggregate", mutates_args=(), tags=_TAGS)
def aggregate(
    tensors: Sequence[Tensor], edge_index: Tensor, values: Tensor | None, spec: str, shape: Sequence[int]
) -> Tensor:
    """What the kernel in `spec` aggregates, of this `shape`: a sum, x (N, F) -> (N, F), or attention, tensors[0]
    (N, H or 1, C) -> (N, H, C). NEIGHBOUR_SUM: the sum of x, weighted if weights are given."""
    return _aggregated([t.detach() for t in tensors], edge_index, values, spec, shape).contiguous()


@aggregate.register_fake
def _(tensors, edge_index, values, spec, shape):
    return tensors[0].new_empty(shape)


@torch.library.custom_op("gnnswap::aggregate_back", mutates_args=(), tags=_TAGS)
def aggregate_back(
    grad: Tensor,
    tensors: Sequence[Tensor],
    edge_index: Tensor,
    values: Tensor | None,
    spec: str,
    shape: Sequence[int],
) -> list[Tensor]:
    """The gradient of each of the tensors."""

    with torch.inference_mode(False), _recording():
        grads = _gradients(grad, [t.detach() for t in tensors], edge_index, values, spec, shape, again=False)[1]
    return [one.contiguous() for one in grads]


@contextmanager
def _recording() -> Iterator[None]:
    """Autograd records within it; inside an operator torch switches that off below `enable_grad`.

    Another thread would not do: the one that computes gradients on a CUDA device would wait for itself.
    """
    keys = [key for key in _RECORDING if torch._C._dispatch_tls_is_dispatch_key_excluded(key)]
    try:
        for key in keys:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield
    finally:
        for key in keys:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)


def _gradients(
    grad: Tensor,
    tensors: Sequence[Tensor],
    edge_index: Tensor,
    values: Tensor | None,
    spec: str,
    shape: Sequence[int],
    again: bool,
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """(what the gradients are of, the gradients); `again`: gradients are recorded, so that they have gradients."""
    with torch.enable_grad():
        leaves = [t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in tensors]
        out = _aggregated(leaves, edge_index, values, spec, shape)
        return leaves, torch.autograd.grad(out, leaves, grad, create_graph=again, materialize_grads=True)


@aggregate_back.register_fake
def _(grad, tensors, edge_index, values, spec, shape):
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]


def _save_back(ctx, inputs, output) -> None:
    grad, tensors, edge_index, values, ctx.spec, ctx.shape = inputs
    ctx.save_for_backward(grad, edge_index, values, *tensors)


def _second(ctx, grads):
    """Gradients of gradients, by those of the kernels; torch.compile itself has none with its usual backends."""
    grad, edge_index, values, *tensors = ctx.saved_tensors
    with torch.enable_grad():
        grad = grad.view_as(grad) if grad.requires_grad else grad.detach().requires_grad_()
    leaves, firsts = _gradients(grad, tensors, edge_index, values, ctx.spec, ctx.shape, again=True)
    again = torch.is_grad_enabled()
    first, *others = torch.autograd.grad(firsts, [grad, *leaves], grads, create_graph=again, materialize_grads=True)
    return first, others, None, None, None, None


aggregate_back.register_autograd(_second, setup_context=_save_back)


def _save(ctx, inputs, output) -> None:
    tensors, edge_index, values, ctx.spec, ctx.shape = inputs
    ctx.save_for_backward(edge_index, values, *tensors)


def _backward(ctx, grad):
    if ctx.needs_input_grad[2]:
        raise SwapError("values of edges that want gradients have none within torch.compile: detach them")
    edge_index, values, *tensors = ctx.saved_tensors
    return aggregate_back(grad.contiguous(), tensors, edge_index, values, ctx.spec, ctx.shape), None, None, None, None


aggregate.register_autograd(_backward, setup_context=_save)


def neighbour_sum(
    x: Tensor, edge_index: Tensor | Neighbours, weight: Tensor | None = None, num_nodes: int | None = None
) -> Tensor:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j], (num_nodes, F): what is often written by hand as

        torch.zeros(num_nodes, F).index_add(0, edge_index[1], weight[:, None] * x[edge_index[0]])

    Args:
        x: (N, F).
        edge_index: (2, E), sources in row 0, sorted when they are first seen; or `Neighbours`, sorted already.
        weight: (E,), ones where it is None.
        num_nodes: how many targets there are, N unless given.

    x and weight may want gradients, and gradients of these. torch.compile keeps the call whole. Calls that the sorted
    sum does not cover, such as an export, vmap or numbers of other types, are computed as above.

    Raises:
        SwapError: shapes do not fit together, or an edge names a node that there is not.

    >>> x, edge_index = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0, 1, 2], [2, 2, 0]])
    >>> neighbour_sum(x, edge_index, weight=torch.tensor([1.0, 0.5, 1.0])).tolist()
    [[4.0], [0.0], [2.0]]
    """
    if torch.jit.is_tracing():  # where sizes are tensors, too
        return _by_index_add(x, edge_index, weight, x.shape[0] if num_nodes is None else num_nodes)
    graph = edge_index if isinstance(edge_index, Neighbours) else None
    edges = edge_index if graph is None else graph.edges
    nodes = _checked(x, edges, weight, num_nodes if graph is None or num_nodes is not None else graph.num_nodes)
    if graph is not None and (nodes, x.shape[0]) != (graph.num_nodes, graph.num_sources):
        sizes = f"{graph.num_sources} sources and {graph.num_nodes} targets"
        raise SwapError(f"x has {x.shape[0]} rows and num_nodes is {nodes}, the neighbours have {sizes}")
    if not _covered(x, edges, weight):
        return _by_index_add(x, edges, weight, nodes)
    if torch.compiler.is_compiling():
        tensors = [x] if weight is None else [x, weight]
        return aggregate(tensors, edges, None, NEIGHBOUR_SUM, [nodes, x.shape[1]])
    return weighted_sum(x, _graph_of(edges, nodes, x.shape[0]) if graph is None else graph, weight)


def _checked(x: Tensor, edge_index: Tensor, weight: Tensor | None, num_nodes: int | None) -> int:
    """The number of targets."""
    if x.dim() == 0:
        raise SwapError("x must have a row for each node, (N, F), not one number")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise SwapError(f"edge_index must have shape (2, edges), not {tuple(edge_index.shape)}")
    if weight is not None and weight.shape != edge_index.shape[1:]:
        raise SwapError(f"weight must have shape ({edge_index.shape[1]},), one an edge, not {tuple(weight.shape)}")
    return x.shape[0] if num_nodes is None else num_nodes


def _covered(x: Tensor, edge_index: Tensor, weight: Tensor | None) -> bool:
    """Are these plain tensors that the sorted sum takes, in a call that it can serve?"""
    if weight is not None and (weight.dtype is not x.dtype or weight.device != x.device):
        return False
    if x.dim() != 2 or x.dtype not in FLOATING or edge_index.dtype not in (torch.int64, torch.int32):
        return False
    if x.device != edge_index.device or any(one.layout is not torch.strided for one in (x, edge_index)):
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    return plain_call() and all(type(one) in PLAIN for one in (x, edge_index, weight) if one is not None)


def _by_index_add(x: Tensor, edge_index: Tensor, weight: Tensor | None, nodes: int) -> Tensor:
    rows = x.index_select(0, edge_index[0])
    if weight is not None:
        rows = rows * weight.view(-1, *(1,) * (x.dim() - 1))
    return rows.new_zeros(nodes, *x.shape[1:]).index_add(0, edge_index[1], rows)
