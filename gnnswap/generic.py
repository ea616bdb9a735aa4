"""One sum in place of message and aggregation, for any layer whose message is a weight times a row of the source.

PyG's `propagate` gathers a row for each edge, asks `message` what becomes of it, and scatters. Where the message is
linear in one argument `x_j`, and the aggregation is a sum or a mean, the weight of an edge is what `message` gives for
a row of ones, and one sum over neighbours does the rest:

    summed(layer, graphs, "x", edge_index, size, arguments)     # what propagate gives; raises NotLinear

The message runs in every call, on rows that say whether it is linear in them (`probe`): so a value, a mode or a
global that it reads is seen. Of PyG's own messages, whose code is known, what follows from the arguments alone is kept.
PyG's functions that derive edges or norms from edges (`gcn_norm`, `add_self_loops`, ...) are called again and again
with the same tensors: `remembering_code` gives PyG's own code ones that remember what they computed.
"""

from __future__ import annotations

import dis
import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch_geometric import utils
from torch_geometric.nn import HGTConv, aggr
from torch_geometric.nn.aggr import base as aggr_base
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnswap import backends, fused, pushdown
from gnnswap.aggregation import weighted_sum_sorted
from gnnswap.attention import attend, head_products, head_sum, segment_softmax
from gnnswap.cache import TensorCache
from gnnswap.guards import PLAIN, SCALARS, hooked_within, is_edge_index, written_by_pyg
from gnnswap.inputs import tensors_in
from gnnswap.neighbours import GraphCache, Neighbours, Permute
from gnnswap.probe import NotLinear, NotThisCall, ProbeRow, weight_of
from gnnswap.sums import NeighbourMax, NeighbourSum, fixed_sum

AGGREGATIONS = {aggr.SumAggregation: "sum", aggr.MeanAggregation: "mean", aggr.MaxAggregation: "max"}
_AGGREGATE = {kind: (kind.forward, kind.reduce, kind.__call__) for kind in AGGREGATIONS}  # as PyG wrote them
_SCATTER = aggr_base.scatter
SOURCE, TARGET = 0, 1
ON_NODES = "rows of both ends"  # in place of an argument's name: `pushdown`
WHOLE = "*"  # in place of an argument's name: all that `propagate` does, for layers of these classes
_REPLACEABLE = {"aggregate", "update", "propagate", "edge_update", "edge_updater", "_collect"}  # on an instance


def supported(layer: MessagePassing, kind: type[MessagePassing], edge_index: Any) -> bool:
    """Can this call of `propagate` be one sum, of a layer of the class `kind`? Not where PyG's code between message and
    result is replaced, explained, or has hooks within it or in a module inside."""
    how = type(layer._modules.get("aggr_module"))
    return (
        is_edge_index(edge_index)
        and edge_index.shape[1] > 0
        and layer.flow == "source_to_target"
        and layer.decomposed_layers == 1
        and how in AGGREGATIONS
        and (how.forward, how.reduce, how.__call__) == _AGGREGATE[how]
        and aggr_base.scatter is _SCATTER
        and _by_template(kind, kind.propagate)
        and kind.aggregate is MessagePassing.aggregate
        and kind._collect is MessagePassing._collect
        and not (_REPLACEABLE & layer.__dict__.keys())
        and not hooked_within(layer, deep=not _alone(layer, kind.message))
    )


def _alone(layer: MessagePassing, message: Any) -> bool:
    """Is it a message of PyG's that follows from its arguments alone, and so calls no module of the layer?"""
    return "message" not in layer.__dict__ and is_pyg_code(message) and _needs_arguments_alone(message)


@functools.cache
def _by_template(kind: type[MessagePassing], propagate: Any) -> bool:
    """Is the `propagate` of the class what PyG writes from its template, and nobody's own?"""
    name = propagate.__globals__.get("__name__") if isinstance(propagate, types.FunctionType) else None
    written = {f"{one.__module__}_{one.__name__}_propagate" for one in kind.__mro__}
    return propagate is MessagePassing.propagate or name in written


def comparable(arguments: dict[str, Any], device: torch.device) -> bool:
    """Are the tensors of this call such as sums are for, on this device? If not, nothing can be learned from it."""
    tensors = [value for value in tensors_in(arguments) if value.is_floating_point()]
    return all(type(value) in PLAIN and backends.computes(value) and value.device == device for value in tensors)


def sources_of(layer: MessagePassing, arguments: dict[str, Any]) -> list[str]:
    """Arguments of this call that `message` wants at the source of each edge: x for `x_j`."""
    names = names_of(layer, "message")
    whole = [WHOLE] if _whole(layer) else []
    sources = [name[:-2] for name in names if name.endswith("_j") and name[:-2] in arguments]
    return [*whole, *sources, ON_NODES] if sources else whole


def names_of(layer: MessagePassing, *functions: str) -> list[str]:
    """The arguments that these functions of a layer take, by its inspector, which looked when the layer was made."""
    known = _NAMES.setdefault(layer.inspector, {})
    if functions not in known:
        known[functions] = layer.inspector.get_flat_param_names([*functions])
    return known[functions]


_NAMES: WeakKeyDictionary[Any, dict[tuple[str, ...], list[str]]] = WeakKeyDictionary()


def sizes(layer: MessagePassing, size: Any, arguments: dict[str, Any]) -> tuple[int, int] | None:
    """(sources, targets) of this call as PyG finds them; None where they do not fit together."""
    known: list[int | None] = list(size) if size is not None else [None, None]
    for name in names_of(layer, "message", "update"):
        if name[-2:] not in ("_j", "_i") or name[:-2] not in arguments:
            continue
        given = arguments[name[:-2]]
        pair = given if isinstance(given, (tuple, list)) else None
        for side, value in enumerate(pair) if pair else [(SOURCE if name.endswith("_j") else TARGET, given)]:
            if isinstance(value, Tensor):
                place = node_dimension(layer, value)
                if place is None or known[side] not in (None, value.shape[place]):
                    return None
                known[side] = value.shape[place]
    sources, targets = (known[side] if known[side] is not None else known[1 - side] for side in (SOURCE, TARGET))
    return None if sources is None or targets is None else (sources, targets)


def node_dimension(layer: MessagePassing, x: Tensor) -> int | None:
    """0, or 1 in (B, N, F), what PyG calls a static graph; None for others."""
    if not -x.dim() <= layer.node_dim < x.dim():
        return None
    place = layer.node_dim % x.dim()
    return place if place == 0 or (place == 1 and x.dim() == 3) else None


def summed(
    layer: MessagePassing, graphs: GraphCache, name: str, edge_index: Tensor, size: Any, arguments: dict[str, Any]
) -> Tensor:
    """What the layer's `propagate` gives, by one sum over the argument `name`.

    Raises:
        NotLinear: this call is none that one sum can do.
    """
    both = sizes(layer, size, arguments)
    if both is None:
        raise NotThisCall("its nodes stand in a dimension of their own")
    graph = graphs.get(edge_index, both[TARGET], both[SOURCE])
    if name == WHOLE:
        return _WHOLES[_whole(layer)](layer, graph, **arguments)
    if name == ON_NODES:
        return _updated(layer, _on_nodes(layer, graph, edge_index, both, arguments), edge_index, both, arguments)
    given = arguments[name]
    x = given[SOURCE] if isinstance(given, (tuple, list)) else given
    if type(x) not in PLAIN or not backends.computes(x) or x.dim() not in (2, 3):
        raise NotThisCall("its rows have another type or shape")
    if x.device != graph.device:
        raise NotThisCall("its edges are on another device")
    static = node_dimension(layer, x) == 1
    if static and (given is not x or type(layer).update is not MessagePassing.update):
        raise NotThisCall("its nodes stand in a dimension of their own")
    rows = x.transpose(0, 1).reshape(x.shape[1], -1) if static else x  # (B, N, F): one sum over B F numbers a node
    out = _Call(layer, name, graph, edge_index, both, arguments, x, static).total(rows)
    if static:
        return out.view(-1, x.shape[0], x.shape[2]).transpose(0, 1).contiguous()  # may be viewed
    return _updated(layer, out, edge_index, both, arguments)


def _updated(layer: MessagePassing, out: Tensor, edge_index: Tensor, both: tuple[int, int], arguments: dict) -> Tensor:
    if type(layer).update is MessagePassing.update:
        return out
    wanted = set(layer._user_args) & set(names_of(layer, "update"))
    wanted = layer._collect(wanted, edge_index, list(both), arguments)
    return layer.update(out, **layer.inspector.collect_param_data("update", wanted))


def _on_nodes(
    layer: MessagePassing, graph: Neighbours, edge_index: Tensor, both: tuple[int, int], arguments: dict
) -> Tensor:
    """What the layer aggregates, where its message begins with a linear layer over rows of both ends."""
    names = names_of(layer, "message")
    rows = pushdown.of_arguments(graph, names, arguments)
    if not rows:
        raise NotLinear("its message reads no rows of nodes")
    out = _message(layer, graph, edge_index, both, arguments, rows)
    trace = next(iter(rows.values())).trace
    if not trace.linears:
        raise NotLinear("its message begins with no linear layer")
    if trace.kept(rows.values()):
        raise NotLinear("it keeps its rows")
    if type(out) is not Tensor or out.dim() != 2 or out.shape[0] != graph.num_edges or not backends.computes(out):
        raise NotLinear("its message has another type or shape")
    return _aggregated(out, graph.of_given_edges, AGGREGATIONS[type(layer.aggr_module)])


def _message(
    layer: MessagePassing, graph: Neighbours, edge_index: Tensor, both: tuple[int, int], arguments: dict, rows: dict
) -> Any:
    """What the layer's `message` gives, with `rows` for some of its arguments; PyG's own code gets edges by which its
    softmax knows the graph."""
    names = names_of(layer, "message")
    code = own_code(layer, "message")
    ends = edge_index if code is None else ends_of(graph).index
    given = layer._collect(set(names) - rows.keys(), ends, list(both), arguments) | rows
    if code is not None:
        given["index"] = given["edge_index_i"] = ends_of(graph).target
        return code(layer, **layer.inspector.collect_param_data("message", given))
    return layer.message(**layer.inspector.collect_param_data("message", given))


def own_code(layer: MessagePassing, name: str) -> Callable | None:
    """PyG's own function of this name, with functions that remember; None where it is anybody else's."""
    function = None if name in layer.__dict__ else getattr(type(layer), name)
    return remembering_code(function) if is_pyg_code(function) else None


def _aggregated(rows: Tensor, graph: Neighbours, how: str) -> Tensor:
    """The sum, mean or maximum of the rows of the sources."""
    if how == "max":
        if rows.dim() != 2 or not backends.computes(rows):
            raise NotLinear("a maximum over rows of several heads")
        return NeighbourMax(graph)(rows)
    weight = None if how == "sum" else graph.cast("mean_weight", rows.dtype)
    return weighted_sum_sorted(rows.reshape(rows.shape[0], -1), graph, weight).view(-1, *rows.shape[1:])


class Ends:
    """The edges of a prepared graph as they were given: `index` (2, E), and `target` (E,), by which `softmax` knows the
    graph. For PyG's own code alone: anybody else's might keep them or write to them."""

    def __init__(self, graph: Neighbours) -> None:
        self.index = graph.edge_index
        self.target = self.index[TARGET]
        self.target._gnnswap_graph = graph


def ends_of(graph: Neighbours) -> Ends:
    return graph.cached(Ends)


def sorted_values(values: Tensor, graph: Neighbours) -> Tensor:
    """Values of edges (E, ...) in the order of `graph.col`; gradients go back."""
    return values if graph.in_order else Permute.apply(values, graph.order, graph.place)


def _hgt(layer: HGTConv, graph: Neighbours, k: Tensor, q: Tensor, v: Tensor, edge_attr: Tensor) -> Tensor:
    """Sums of softmax(k[j] . q[i] * edge_attr / sqrt(D)) * v[j]; k, q, v (N, H, D), edge_attr (E, H)."""
    alike = k.dtype, graph.device
    if any(type(one) not in PLAIN or (one.dtype, one.device) != alike for one in (k, q, v, edge_attr)):
        raise NotThisCall("its rows have another type or device")
    scores = head_products(q, k, graph) * sorted_values(edge_attr, graph) * q.shape[-1] ** -0.5
    return attend(scores, v, graph).flatten(1)


_WHOLES: dict[type[MessagePassing], Callable[..., Tensor]] = {HGTConv: _hgt}


def _whole(layer: MessagePassing) -> type[MessagePassing] | None:
    """The class whose whole `propagate` is known, where this layer is of it and overrides nothing."""
    for kind in _WHOLES:
        if isinstance(layer, kind) and type(layer).message is kind.message and "message" not in layer.__dict__:
            return kind if is_pyg_code(kind.message) and kind.update is MessagePassing.update else None
    return None


class _Call:
    """One call of `propagate`: what `message` makes of rows that it cannot tell from ones, and the sum of it."""

    def __init__(
        self, layer, name, graph: Neighbours, edge_index: Tensor, both: tuple, arguments, x: Tensor, static: bool
    ) -> None:
        self.layer, self.name, self.graph, self.edge_index, self.both = layer, name, graph, edge_index, both
        self.arguments, self.x, self.static = arguments, x, static
        self.how = AGGREGATIONS[type(layer.aggr_module)]

    def total(self, rows: Tensor) -> Tensor:
        """The sum over `rows`, (num_nodes, ...)."""
        known = self._known()
        if known is not None:
            total = self.graph.of_tensors(*known, self._fixed_sum)
            if total is not _CHANGING:
                self.layer._fast.by_kernel = type(total) is NeighbourSum
                return total(rows.reshape(rows.shape[0], -1)).view(self.graph.num_nodes, *rows.shape[1:])
        joined, weight = self.weights()
        out = self.weighted(rows, weight)
        return out.flatten(1) if joined else out

    def _known(self) -> tuple[list[Tensor], tuple] | None:
        """(tensors, all else) that the weights follow from, where the message is PyG's own and they follow from its
        arguments alone; None else."""
        message = type(self.layer).message
        if not _alone(self.layer, message):
            return None
        key: list[Any] = [
            message,
            self.name,
            self.how,
            self.x.dtype,
            self.x.dim() == 3 and self.x.shape[1],
            self.static,
            self.layer._fast.kernel,
        ]
        tensors = []
        for name, value in self.arguments.items():
            if name == self.name:
                continue
            parts = value if isinstance(value, (tuple, list)) else (value,)
            key.append((name, type(value), len(parts)))
            for part in parts:
                if type(part) in PLAIN:
                    if part.requires_grad or part.is_inference():
                        return None
                    tensors.append(part)
                elif isinstance(part, SCALARS):
                    key.append((type(part), part))
                else:
                    return None
        key += [message.__globals__.get(name) for name in message.__code__.co_names]
        return tensors, tuple(key)

    def _fixed_sum(self) -> Any:
        """The sum with its weights, where they are the same in every call with these arguments."""
        back = backends.random_state(self.x.device)
        with torch.no_grad():
            joined, weight = self.weights()
        if back():  # they are drawn at random
            return _CHANGING
        if joined or (weight is not None and weight.dim() == 2 and weight.shape[1] > 1):
            return _CHANGING
        if self.how == "max":
            return NeighbourMax(self.graph) if weight is None else _CHANGING
        weight = None if weight is None else weight.detach().reshape(-1)
        return fixed_sum(self.graph, weight, self.x.dtype, mean=self.how == "mean").by(self.layer._fast.kernel)

    def weights(self) -> tuple[bool, Tensor | None]:
        """(are heads joined, the weight of each edge (E,) or (E, H) in the order given; None: the message has none).
        Where each entry of a row has a weight of its own it is (E, F).

        Heads are joined where `message` views (E, H, C) as (E, H C), as HGT and HAN do.
        """
        x, edges = self.x, self.graph.num_edges
        if self.static:
            rows, factor = (x.shape[0], edges, x.shape[2]), (1, edges, 1)
        else:
            rows, factor = (edges, *x.shape[1:]), (edges, *x.shape[1:-1], 1)
        probe = ProbeRow.ones(rows, factor, x.dtype, x.device)
        out = _message(self.layer, self.graph, self.edge_index, self.both, self.arguments, {f"{self.name}_j": probe})
        joined, weight = weight_of(probe, out)
        if weight is None:
            return joined, None
        if self.static:
            weight = weight[0] if weight.shape[0] == 1 else _refuse("a weight for each graph of a static batch")
            return joined, weight.squeeze(-1) if weight.shape[-1] == 1 else _refuse("a weight for each entry")
        if weight.shape == factor:
            return joined, weight.squeeze(-1)
        if x.dim() == 2 and weight.shape == rows:
            return joined, weight
        return _refuse("a weight for each entry of several heads")

    def weighted(self, rows: Tensor, weight: Tensor | None) -> Tensor:
        """The sum, mean or maximum of the rows of the sources, weighted in the order given."""
        graph = self.graph
        if weight is None:
            return _aggregated(rows, graph, self.how)
        if self.how == "max":
            raise NotLinear("a maximum of weighted rows")
        if weight.dim() == 2 and rows.dim() == 2:
            out = fused.edge_weighted_sum(rows, weight, graph)
        elif weight.dim() == 2:
            out = head_sum(rows, graph, sorted_values(weight, graph))
        else:
            weight = sorted_values(weight, graph).reshape(-1)
            out = weighted_sum_sorted(rows.reshape(rows.shape[0], -1), graph, weight).view(-1, *rows.shape[1:])
        if self.how == "sum":
            return out
        count = graph.cast("count", out.dtype)
        return out / count.view(-1, *(1,) * (out.dim() - 1))


def _refuse(what: str) -> Any:
    raise NotLinear(what)


_CHANGING = object()  # weights that differ from call to call


# ---- PyG's own code -------------------------------------------------------------------------------------------------


def is_pyg_code(function: Any) -> bool:
    """Is it a function that PyG wrote?"""
    return isinstance(function, types.FunctionType) and written_by_pyg(function)


@functools.cache
def _needs_arguments_alone(message: types.FunctionType) -> bool:
    """Is it a function of its arguments: code that never reads `self`, nor a variable around it?"""
    code = message.__code__
    first = code.co_varnames[0]
    reads = any(step.opname.startswith("LOAD") and step.argval == first for step in dis.get_instructions(code))
    return not reads and not code.co_freevars


def softmax(
    src: Tensor, index: Tensor | None = None, ptr: Tensor | None = None, num_nodes: int | None = None, dim: int = 0
) -> Tensor:
    """As `torch_geometric.utils.softmax`; where `index` is that of a prepared graph, over its sorted edges."""
    graph = getattr(index, "_gnnswap_graph", None)
    if graph is None or dim != 0 or src.dim() not in (1, 2) or not backends.computes(src):
        return utils.softmax(src, index, ptr, num_nodes, dim)
    shares = segment_softmax(sorted_values(src, graph), graph)
    return shares if graph.in_order else Permute.apply(shares, graph.place, graph.order)


class _Active(threading.local):
    results: TensorCache | None = None


_ACTIVE = _Active()  # the cache of the layer whose code runs on this thread


@contextmanager
def remembered_in(results: TensorCache) -> Iterator[None]:
    """Within it PyG's functions of edges keep what they compute in `results`."""
    before, _ACTIVE.results = _ACTIVE.results, results
    try:
        yield
    finally:
        _ACTIVE.results = before


def _remembering(function: Callable) -> Callable:
    """The same function of edges; what it made of the same tensors stays while nothing wants a gradient."""

    @functools.wraps(function)
    def remembering(*args: Any, **named: Any) -> Any:
        values, results = [*args, *named.values()], _ACTIVE.results
        tensors = [value for value in values if isinstance(value, Tensor)]
        usual = all(type(t) in PLAIN and not t.requires_grad and not t.is_inference() for t in tensors)
        usual = usual and all(isinstance(value, (Tensor, *SCALARS)) for value in values)
        if results is None or not tensors or not usual or not all(t.layout is torch.strided for t in tensors):
            return function(*args, **named)
        key = function, *named, *("tensor" if isinstance(v, Tensor) else (type(v), v) for v in values)

        def compute() -> tuple[Any, list[tuple[Tensor, int]]]:
            result = function(*args, **named)
            return result, [(made, made._version) for made in tensors_in(result)]

        result, versions = results.get(tensors, key, compute)
        if any(made._version != version for made, version in versions):  # somebody wrote to what was handed out
            return function(*args, **named)
        return result

    return remembering


_FUNCTIONS: dict[Callable, Callable] = {
    function: _remembering(function)
    for function in (
        gcn_norm,
        utils.add_self_loops,
        utils.add_remaining_self_loops,
        utils.remove_self_loops,
        utils.get_laplacian,
    )
} | {utils.softmax: softmax}


def remembering_code(function: types.FunctionType) -> types.FunctionType:
    """PyG's own code, which finds the functions above where it names PyG's; the code itself where it names none.

    Another function under one of these names in PyG's module, put there by anybody, gives the code itself, too.
    """
    made, read = _remembering_code(function)
    names = function.__globals__
    return made if all(names.get(name) is value for name, value in read) else function


def remembering_names(kind: type[MessagePassing]) -> list[str]:
    """The functions of a class, PyG's own, that name such functions; `message` and `edge_update` are called here."""
    found = {name: getattr(kind, name) for one in kind.__mro__ for name, f in vars(one).items() if is_pyg_code(f)}
    apart = ("message", "edge_update", "__init__", "propagate", "edge_updater")
    return [name for name, f in found.items() if name not in apart and is_pyg_code(f) and _remembering_code(f)[1]]


@functools.cache
def _remembering_code(function: types.FunctionType) -> tuple[types.FunctionType, tuple[tuple[str, Any], ...]]:
    names = function.__globals__
    read = {name: names[name] for name in function.__code__.co_names if name in names}
    replaced = {
        name: _FUNCTIONS[value]
        for name, value in read.items()
        if isinstance(value, types.FunctionType) and value in _FUNCTIONS
    }
    if not replaced:
        return function, ()
    copied = types.FunctionType(
        function.__code__, {**names, **replaced}, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copied, function), tuple(read.items())
