"""One sum in place of message and aggregation, for any layer whose message is a weight times a row of the source.

PyG's `propagate` gathers a row for each edge, asks `message` what becomes of it, and scatters. Where the message is
linear in one argument `x_j`, and the aggregation is a sum or a mean, the weight of an edge is what `message` gives for
a row of ones, and one bag does the rest. Whether that is so `equivalence` tells, for the layers of PyG and for
anybody's own. This is what the trial runs:

    summed(layer, graphs, "x", edge_index, size, arguments)     # what propagate gives, None where it is not covered

PyG's functions that derive edges or norms from edges (`gcn_norm`, `add_self_loops`, ...) are called again and again
with the same tensors: `rebound` gives a layer's code ones that remember what they computed, and a softmax that knows
the graph.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex, utils
from torch_geometric.nn import HGTConv, aggr
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnswap import fused, pushdown
from gnnswap.aggregation import weighted_sum_sorted
from gnnswap.attention import attend, head_products, head_sum, segment_softmax
from gnnswap.cache import TensorCache
from gnnswap.inputs import tensors_in
from gnnswap.neighbours import GraphCache, Moved, Neighbours
from gnnswap.sums import Largest, fixed_sum

AGGREGATIONS = {aggr.SumAggregation: "sum", aggr.MeanAggregation: "mean", aggr.MaxAggregation: "max"}
HOOKS = [f"_{place}_forward_{when}hooks" for place in ("propagate", "message", "aggregate", "edge_update")
         for when in ("", "pre_")]  # fmt: skip
SOURCE, TARGET = 0, 1
PRECISE = torch.float32, torch.float64  # of which there is a pass for maxima


def plain(edge_index: Any) -> bool:
    """Is it a tensor of edges (2, E) on the CPU, and nothing that PyG takes in its place?"""
    return (
        isinstance(edge_index, Tensor)
        and not isinstance(edge_index, EdgeIndex)
        and edge_index.layout is torch.strided
        and edge_index.device.type == "cpu"
        and edge_index.dim() == 2
        and edge_index.shape[0] == 2
        and edge_index.dtype in (torch.int64, torch.int32)
    )


def covered(layer: MessagePassing, edge_index: Any) -> bool:
    """Can this call of `propagate` be one sum? Not where it is traced, explained, or has hooks within it."""
    attributes = layer.__dict__
    return (
        plain(edge_index)
        and edge_index.shape[1] > 0
        and layer.flow == "source_to_target"
        and layer.decomposed_layers == 1
        and type(layer.aggr_module) in AGGREGATIONS
        and type(layer).aggregate is MessagePassing.aggregate
        and not torch.is_autocast_enabled("cpu")
        and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
        and not (attributes["_explain"] or any(attributes[hooks] for hooks in HOOKS))
    )


def sources_of(layer: MessagePassing, arguments: dict[str, Any]) -> list[str]:
    """Arguments of this call that `message` wants at the source of each edge: x for `x_j`."""
    names = layer.inspector.get_param_names("message")
    whole = [WHOLE] if isinstance(layer, tuple(WHOLES)) else []
    sources = [name[:-2] for name in names if name.endswith("_j") and name[:-2] in arguments]
    return [*whole, *sources, ON_NODES] if sources else whole


def sizes(layer: MessagePassing, size: Any, arguments: dict[str, Any]) -> tuple[int, int] | None:
    """(sources, targets) of this call as PyG finds them; None where they do not fit together."""
    known: list[int | None] = list(size) if size is not None else [None, None]
    for name in layer.inspector.get_flat_param_names(["message", "update"]):
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
) -> Tensor | None:
    """What the layer's `propagate` gives, by one sum over the argument `name`; None where this call is not covered."""
    both = sizes(layer, size, arguments)
    if name == WHOLE:
        form = next(form for kind, form in WHOLES.items() if isinstance(layer, kind))
        return None if both is None else form(layer, graphs.get(edge_index, both[TARGET], both[SOURCE]), **arguments)
    if name == ON_NODES:
        graph = both and graphs.get(edge_index, both[TARGET], both[SOURCE])
        out = None if both is None else _on_nodes(layer, graph, both, arguments)
        return None if out is None else _updated(layer, out, edge_index, both, arguments)
    given = arguments[name]
    x = given[SOURCE] if isinstance(given, (tuple, list)) else given
    if both is None or not isinstance(x, Tensor) or x.dim() not in (2, 3) or not x.is_floating_point():
        return None
    graph, static = graphs.get(edge_index, both[TARGET], both[SOURCE]), node_dimension(layer, x) == 1
    if static and (given is not x or type(layer).update is not MessagePassing.update):
        return None
    rows = x.transpose(0, 1).reshape(x.shape[1], -1) if static else x  # (B, N, F): one bag over B F numbers a node
    call = _Call(layer, name, graph, both, arguments, x, static)
    out = call.total(rows)
    if out is None:
        return None
    if static:
        return out.view(-1, x.shape[0], x.shape[2]).transpose(0, 1).contiguous()  # may be viewed
    return _updated(layer, out, edge_index, both, arguments)


def _updated(layer: MessagePassing, out: Tensor, edge_index: Tensor, both: tuple[int, int], arguments: dict) -> Tensor:
    if type(layer).update is MessagePassing.update:
        return out
    wanted = set(layer._user_args) & set(layer.inspector.get_flat_param_names(["update"]))
    wanted = layer._collect(wanted, edge_index, list(both), arguments)
    return layer.update(out, **layer.inspector.collect_param_data("update", wanted))


def _on_nodes(layer: MessagePassing, graph: Neighbours, both: tuple[int, int], arguments: dict) -> Tensor | None:
    """What the layer aggregates, where its message begins with a linear layer over rows of both ends."""
    names, ends = layer.inspector.get_flat_param_names(["message"]), Ends.of(graph)
    rows = pushdown.of_arguments(graph, names, arguments)
    if not rows:
        return None
    given = layer._collect(set(names) - rows.keys(), ends.index, list(both), arguments) | rows
    given["index"] = given["edge_index_i"] = ends.target
    out = layer.message(**layer.inspector.collect_param_data("message", given))
    if not any(one.linears for one in rows.values()):
        return None
    if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[0] != graph.num_edges or out.dtype not in PRECISE:
        return None
    return _aggregated(out, graph.of_given_edges, AGGREGATIONS[type(layer.aggr_module)])


def _aggregated(rows: Tensor, graph: Neighbours, how: str) -> Tensor | None:
    """The sum, mean or maximum of the rows of the sources; None where there is no pass for it."""
    if how == "max":
        return Largest(graph)(rows) if rows.dim() == 2 and rows.dtype in PRECISE else None
    weight = None if how == "sum" else graph.cast("mean_weight", rows.dtype)
    return weighted_sum_sorted(rows.reshape(rows.shape[0], -1), graph, weight).view(-1, *rows.shape[1:])


class Ends:
    """The edges of a prepared graph as they were given: `index` (2, E), and `target` (E,), by which `softmax` knows the
    graph."""

    def __init__(self, graph: Neighbours) -> None:
        self.index = graph.edge_index
        self.target = self.index[TARGET]
        self.target._gnnlab_graph = graph

    @classmethod
    def of(cls, graph: Neighbours) -> Ends:
        return graph.once("ends", lambda: cls(graph))


def sorted_values(values: Tensor, graph: Neighbours) -> Tensor:
    """Values of edges (E, ...) in the order of `graph.col`; gradients go back."""
    return values if graph.in_order else Moved.apply(values, graph.order, graph.place)


def _hgt(layer: HGTConv, graph: Neighbours, k: Tensor, q: Tensor, v: Tensor, edge_attr: Tensor) -> Tensor:
    """Sums of softmax(k[j] . q[i] * edge_attr / sqrt(D)) * v[j]; k, q, v (N, H, D), edge_attr (E, H)."""
    scores = head_products(q, k, graph) * sorted_values(edge_attr, graph) * q.shape[-1] ** -0.5
    return attend(scores, v, graph).flatten(1)


ON_NODES = "rows of both ends"  # in place of an argument's name: `pushdown`
WHOLE = "*"  # in place of an argument's name: all that `propagate` does, for layers of these classes
WHOLES: dict[type[MessagePassing], Callable[..., Tensor]] = {HGTConv: _hgt}


class _Call:
    """One call of `propagate`: what `message` makes of rows of ones, and the sum that it weighs."""

    def __init__(
        self, layer, name, graph: Neighbours, both: tuple[int, int], arguments, x: Tensor, static: bool
    ) -> None:
        self.layer, self.name, self.graph, self.both = layer, name, graph, both
        self.arguments, self.x, self.static = arguments, x, static
        self.how = AGGREGATIONS[type(layer.aggr_module)]

    def total(self, rows: Tensor) -> Tensor | None:
        """The sum over `rows`, (num_nodes, ...); None where the message is no weighted row."""
        others = list(tensors_in({name: value for name, value in self.arguments.items() if name != self.name}))
        fixed = not any(value.requires_grad or value.is_inference() for value in others)
        if fixed and _needs_arguments_alone(type(self.layer).message):
            key = type(self.layer), self.how, self.x.dtype, self.x.dim() == 3 and self.x.shape[1], self.static
            cache = self.graph.once("sums of messages", TensorCache)
            total = cache.get(others, key, self.fixed_sum)
            if total is None:
                return None
            if total is not _CHANGING:
                return total(rows.reshape(rows.shape[0], -1)).view(self.graph.num_nodes, *rows.shape[1:])
        joined, weight = self.weights()
        out = None if weight is None else self.weighted(rows, weight if weight is not _ONES else None)
        return out.flatten(1) if joined and out is not None else out

    def fixed_sum(self) -> Any:
        """The sum with its weights, where they are the same in every call with these arguments."""
        state = torch.get_rng_state()
        with torch.no_grad():
            joined, weight = self.weights()
        if not torch.equal(state, torch.get_rng_state()):  # they are drawn at random
            torch.set_rng_state(state)
            return _CHANGING
        if weight is None:
            return None
        if joined or (weight is not _ONES and weight.dim() == 2 and weight.shape[1] > 1):
            return _CHANGING
        weight = None if weight is _ONES else weight.detach().reshape(-1)
        if self.how == "max":
            return Largest(self.graph) if weight is None and self.x.dtype in PRECISE else None
        return fixed_sum(self.graph, weight, self.x.dtype, mean=self.how == "mean")

    def weights(self) -> tuple[bool, Any]:
        """(are heads joined, the weight of each edge (E,) or (E, H) in the order given; None: the message has none).
        Where each entry of a row has a weight of its own it is (E, F).

        Heads are joined where `message` views (E, H, C) as (E, H C), as HGT and HAN do.
        """
        x, edges = self.x, self.graph.num_edges
        shape = (1, edges, 1) if self.static else (edges, 1) if x.dim() == 2 else (edges, x.shape[1], 1)
        with torch.inference_mode(False):  # they count writes then
            ones = torch.ones(shape, dtype=x.dtype)
        if x.dim() == 3 and not self.static:
            ones = ones.as_subclass(_Row)
            ones.width, ones.joined = x.shape[1] * x.shape[2], [False]
        wanted = set(self.layer.inspector.get_flat_param_names(["message"])) - {self.name + "_j"}
        ends = Ends.of(self.graph)
        given = self.layer._collect(wanted, ends.index, list(self.both), self.arguments)
        given["index"] = given["edge_index_i"] = ends.target
        given[self.name + "_j"] = ones
        fresh = ones._version
        out = self.layer.message(**self.layer.inspector.collect_param_data("message", given))
        joined = isinstance(ones, _Row) and ones.joined[0]
        if out is ones and ones._version == fresh:
            return joined, _ONES
        if not isinstance(out, Tensor) or out.dtype != x.dtype:
            return False, None
        if x.shape[1] > 1 and out.shape == (edges, x.shape[1]) and x.dtype in PRECISE:
            return False, out
        if out.shape != ones.shape:
            return False, None
        if ones._version != fresh and out is not ones:
            return False, None
        out = out.as_subclass(Tensor) if isinstance(out, _Row) else out
        return joined, out[0, :, 0] if self.static else out.squeeze(-1)

    def weighted(self, rows: Tensor, weight: Tensor | None) -> Tensor | None:
        """The sum, mean or maximum of the rows of the sources, weighted in the order given."""
        graph = self.graph
        if weight is None:
            return _aggregated(rows, graph, self.how)
        if self.how == "max":
            return None
        if weight.dim() == 2 and rows.dim() == 2:
            out = fused.scaled(rows, weight, graph)
        elif weight.dim() == 2:
            out = head_sum(rows, graph, sorted_values(weight, graph))
        else:
            weight = sorted_values(weight, graph).reshape(-1)
            out = weighted_sum_sorted(rows.reshape(rows.shape[0], -1), graph, weight).view(-1, *rows.shape[1:])
        if self.how == "sum":
            return out
        count = graph.once(("count", out.dtype), lambda: graph.degree.clamp(min=1).to(out.dtype))
        return out / count.view(-1, *(1,) * (out.dim() - 1))


_ONES, _CHANGING = object(), object()  # the rows as they are; weights that differ from call to call


class _Row(Tensor):
    """Rows of ones (E, H, 1) that stand for rows (E, H, C): viewed as (E, H C), they stay as they are."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        row = args[0] if args else None
        viewed = function in (Tensor.view, Tensor.reshape) and isinstance(row, _Row) and hasattr(row, "width")
        if viewed and tuple(args[1:]) == (-1, row.width):
            row.joined[0] = True
            return row
        out = super().__torch_function__(function, types, args, kwargs or {})
        parent = next((a for a in args if isinstance(a, _Row) and hasattr(a, "width")), None)
        if parent is not None and isinstance(out, _Row):
            out.width, out.joined = parent.width, parent.joined
        return out


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
    graph = getattr(index, "_gnnlab_graph", None)
    if graph is None or dim != 0 or src.dim() not in (1, 2) or torch.compiler.is_compiling():
        return utils.softmax(src, index, ptr, num_nodes, dim)
    shares = segment_softmax(sorted_values(src, graph), graph)
    return shares if graph.in_order else Moved.apply(shares, graph.place, graph.order)


_REMEMBERED = TensorCache(64)


def _remembering(function: Callable) -> Callable:
    """The same function of edges; what it made of the same tensors stays while nothing wants a gradient."""

    @functools.wraps(function)
    def remembering(*args: Any, **named: Any) -> Any:
        values = [*args, *named.values()]
        tensors = [value for value in values if isinstance(value, Tensor)]
        usual = all(t.layout is torch.strided and not t.requires_grad and not t.is_inference() for t in tensors)
        if torch.compiler.is_compiling() or not tensors or not usual:
            return function(*args, **named)
        key = function.__name__, *named, *("tensor" if isinstance(v, Tensor) else v for v in values)

        def compute() -> tuple[Any, list[tuple[Tensor, int]]]:
            result = function(*args, **named)
            return result, [(made, made._version) for made in result if isinstance(made, Tensor)]

        result, versions = _REMEMBERED.get(tensors, key, compute)
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


def rebound(function: types.FunctionType) -> types.FunctionType:
    """The same code, which finds the functions above where it names PyG's."""
    names = function.__globals__
    replaced = {
        name: _FUNCTIONS[names[name]]
        for name in function.__code__.co_names
        if isinstance(names.get(name), types.FunctionType) and names[name] in _FUNCTIONS
    }
    if not replaced:
        return function
    copied = types.FunctionType(
        function.__code__, {**names, **replaced}, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copied, function)
