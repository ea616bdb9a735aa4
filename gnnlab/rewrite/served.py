"""A layer of PyG that runs its own code on sorted edges, with rows that are gathered by the sum itself.

    serve(layer, graphs)       # this one instance; its class, other instances and PyG stay as they are

The layer gets a class of its own, made from its class: `forward` sorts the edges by target (once a graph), and runs the
layer's code with functions in place of PyG's `gcn_norm`, `softmax` and those of self-loops that keep what depends on
the graph alone. PyG's `propagate` collects for `message` what its arguments name; this one hands rows over before they
are gathered (`lazy.Rows`), or gathered for some targets at a time (`pieces`). A call that this does not cover (a sparse
adjacency, attention weights to return, explanations, hooks, another device, torch.compile) runs PyG's code as it is.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.nn import aggr
from torch_geometric.nn.conv import MessagePassing

from gnnlab.kernels.neighbours import GraphCache
from gnnlab.rewrite import lazy
from gnnlab.rewrite.edges import SOURCE, TARGET, Edges, edges_of, rebound, total
from gnnlab.rewrite.lazy import Rows
from gnnlab.rewrite.pieces import EDGE, OWN_SCORES, OWN_SUMS, PIECE_NUMBERS, pieces

SUMS = {aggr.SumAggregation: "sum", aggr.MeanAggregation: "mean"}
ROW_MODULES = (
    nn.Linear, pyg.Linear, nn.Sequential, nn.ModuleList, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Sigmoid, nn.Tanh
)  # fmt: skip
# aggregations of each target apart from the others
BY_TARGET = (
    aggr.SumAggregation, aggr.MeanAggregation, aggr.MaxAggregation, aggr.MinAggregation, aggr.MulAggregation,
    aggr.VarAggregation, aggr.StdAggregation, aggr.SoftmaxAggregation, aggr.MultiAggregation,
    aggr.DegreeScalerAggregation,
)  # fmt: skip
# what PyG gives a method beside the arguments of `propagate`
SPECIAL = {
    "index", "ptr", "size", "size_i", "size_j", "dim_size", "edge_index", "edge_index_i", "edge_index_j", "adj_t"
}  # fmt: skip
SIDES = {"_j": SOURCE, "_i": TARGET}
NOTHING: Mapping[str, Tensor] = types.MappingProxyType({})
# layers that make rows an edge, with the modules that make them
PIECED = {
    "GATConv": ("lin_edge",), "GATv2Conv": ("lin_edge",), "GENConv": ("lin_edge",), "GINEConv": ("lin",),
    "PNAConv": ("pre_nns", "edge_encoder"), "ResGatedGraphConv": ("lin_key", "lin_query", "lin_value", "act"),
}  # fmt: skip

# of these the rows are only those of scores: their messages are weighted rows, which one bag takes in 0.7 of the time
WEIGHTED = ("GATConv", "GATv2Conv")


def ends(layer: MessagePassing, method: str, kwargs: dict[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """What a method wants of the nodes at one end of each edge: its name for it, SOURCE or TARGET, the nodes' rows."""
    for name in layer.inspector.get_param_names(method):
        if name not in SPECIAL and name[-2:] in SIDES:
            side, x = SIDES[name[-2:]], kwargs.get(name[:-2])
            yield name, side, x[side] if isinstance(x, (tuple, list)) else x


def fits(layer: MessagePassing, edges: Edges, kwargs: dict[str, Any], methods: list[str]) -> bool:
    """Whether all that is to be gathered has its nodes in the first dimension, as many as the graph has."""
    counts = edges.neighbours.num_sources, edges.neighbours.num_nodes
    given = [(side, x) for method in methods for _, side, x in ends(layer, method, kwargs) if x is not None]
    return all(
        isinstance(x, Tensor) and layer.node_dim in (0, -x.dim()) and x.shape[0] == counts[side] for side, x in given
    )


def collected(
    layer: MessagePassing, method: str, edges: Edges, kwargs: dict[str, Any], ready: Mapping[str, Tensor] = NOTHING
) -> dict[str, Any]:
    """What PyG would collect for this method, rows not gathered, but for those that are `ready`."""
    graph = edges.neighbours
    special = {
        "index": edges.target, "edge_index_i": edges.target, "edge_index_j": edges.index[SOURCE],
        "edge_index": edges.index, "size": [graph.num_sources, graph.num_nodes], "size_j": graph.num_sources,
        "size_i": graph.num_nodes, "dim_size": graph.num_nodes,
    }  # fmt: skip
    rows = {n: None if x is None else Rows(x, edges, side) for n, side, x in ends(layer, method, kwargs)}
    found = kwargs | dict.fromkeys(SPECIAL) | special | rows | ready
    parameters = layer.inspector.get_param_dict(method).items()
    return {
        name: found.get(name, p.default)
        for name, p in parameters
        if name in found or p.default is not inspect.Parameter.empty
    }


def in_pieces(
    layer: MessagePassing, kind: type[MessagePassing], method: str, edges: Edges, kwargs: dict[str, Any]
) -> Tensor | None:
    """What the method gives, piece by piece; None where a gradient is wanted or all fits into the cache anyway."""
    if method == "message" and not _whole_in_pieces(layer, kind):
        return None
    roles = _roles(layer, method, edges, kwargs)
    tensors = [given for _, given in roles.values()]
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *layer.parameters()))
    width = max((math.prod(t.shape[1:]) for t in tensors), default=0)
    if wanted or edges.neighbours.num_edges * width <= PIECE_NUMBERS or not _by_rows(layer, kind):
        return None
    out = []
    for piece in pieces(edges, width):
        ready = {name: piece.taken(given, role, edges) for name, (role, given) in roles.items()}
        made = getattr(layer, method)(**collected(layer, method, piece.edges, kwargs, ready))
        out.append(made if method == "edge_update" else aggregated(layer, made, piece.edges))
    return torch.cat(out)


def _whole_in_pieces(layer: MessagePassing, kind: type[MessagePassing]) -> bool:
    """Whether messages of this class are rows an edge that no bag takes, and their aggregation can be cut."""
    if (kind.update, kind.aggregate) != (MessagePassing.update, MessagePassing.aggregate):
        return False
    inner = [m for m in layer.aggr_module.modules() if isinstance(m, aggr.Aggregation)]
    gathers = kind.__name__ in PIECED and kind.__name__ not in WEIGHTED
    rows = gathers or type(layer.aggr_module) not in (*SUMS, aggr.MaxAggregation)
    return rows and all(isinstance(m, BY_TARGET) for m in inner)


def _by_rows(layer: MessagePassing, kind: type[MessagePassing]) -> bool:
    """Whether the modules in its messages compute each row apart from the others, and nothing is drawn at random."""
    if layer.training and getattr(layer, "dropout", 0):
        return False
    made_by = [getattr(layer, name, None) for name in PIECED.get(kind.__name__, ())]
    inner = [m for module in made_by if module is not None for m in getattr(module, "modules", lambda m=module: [m])()]
    return all(isinstance(m, ROW_MODULES) and not m._forward_hooks and not m._forward_pre_hooks for m in inner)


def _roles(layer: MessagePassing, method: str, edges: Edges, kwargs: dict[str, Any]) -> dict[str, tuple[int, Tensor]]:
    """What the method wants that has rows for sources, targets or edges."""
    at_ends = {name: (side, x) for name, side, x in ends(layer, method, kwargs)}
    given = {name: kwargs.get(name) for name in layer.inspector.get_param_names(method) if name not in SPECIAL}
    of_edges = {
        name: (EDGE, x)
        for name, x in given.items()
        if name not in at_ends and isinstance(x, Tensor) and x.dim() > 0 and len(x) == edges.neighbours.num_edges
    }
    return {name: role for name, role in at_ends.items() if role[1] is not None} | of_edges


def aggregated(layer: MessagePassing, out: Any, edges: Edges) -> Tensor:
    """Messages, rows or gathered, put together at their targets by the aggregation of the layer."""
    kind = type(layer.aggr_module)
    name = SUMS.get(kind)
    if isinstance(out, Rows):
        found = lazy.largest_of(out) if kind is aggr.MaxAggregation else lazy.summed(out, name)
        if found is not NotImplemented:
            return found
    out = lazy.real(out)
    if name is None or layer.node_dim + out.dim() not in (0, out.dim()):
        return layer.aggr_module(out, edges.target, ptr=None, dim_size=edges.neighbours.num_nodes, dim=layer.node_dim)
    out = total(out, edges)
    return out if name == "sum" else out / edges.count(out.dtype).view(-1, *(1,) * (out.dim() - 1))


EDGE_VALUES = ("edge_weight", "edge_attr", "edge_type")
HOOKS = [f"_{place}_forward_{when}hooks" for place in ("propagate", "message", "aggregate", "edge_update")
         for when in ("", "pre_")]  # fmt: skip

# a layer that makes a row for each edge runs the code of PyG where these are fewer numbers; measured: with 25,000 PyG
# takes 0.6 to 0.9 of the time, from a million on it takes longer
SMALL_NUMBERS = 1 << 17


def serve(
    layer: MessagePassing, graphs: GraphCache, form: type[nn.Module] | None = None, *, gathers: bool = False
) -> None:
    """Give this layer its fast class. `form`: the hand-made layer that takes the calls that it knows.

    `gathers`: it still makes rows an edge, so that on small graphs the code of PyG is as fast.
    """
    layer.graphs, layer.gathers = graphs, gathers
    if form is not None:
        layer.form = "auto"
    layer.__class__ = served_class(type(layer), form)


@functools.cache
def served_class(kind: type[MessagePassing], form: type[nn.Module] | None = None) -> type[MessagePassing]:
    body = {name: rebound(f) for name, f in vars(kind).items() if inspect.isfunction(f)}
    code = body.get("forward", kind.forward)
    made = {name: f for name, f in body.items() if name not in ("propagate", "edge_updater", "collect", "edge_collect")}
    made |= {
        "__module__": __name__,
        "__doc__": kind.__doc__,
        "forward": _forward(kind, code, form),
        "propagate": _propagate(kind),
        "edge_updater": _edge_updater(kind),
        "__reduce_ex__": lambda self, protocol: (_blank, (kind, form), self.__dict__),
    }
    bases = (kind,) if form is None else (form, kind)
    return type(f"Fast{kind.__name__}", bases, made)


def _blank(kind: type[MessagePassing], form: type[nn.Module] | None) -> MessagePassing:
    made = served_class(kind, form)
    return made.__new__(made)


def _forward(kind: type[MessagePassing], code: types.FunctionType, form: type[nn.Module] | None):
    parameters = inspect.signature(kind.forward).parameters
    names = list(parameters)[1:]
    graphs = [n for n in names if n.endswith("edge_index") and parameters[n].default is inspect.Parameter.empty]

    @functools.wraps(kind.forward)
    def forward(self, *args, **kwargs):
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(args) > len(names) or not _covered(self, given, graphs):
            return kind.forward(self, *args, **kwargs)
        x = given["x"]
        # without edges, PyG gives the parameters of edge features no gradient, not even 0
        if form is not None and isinstance(x, Tensor) and given.get("size") is None and given["edge_index"].numel():
            return form.forward(self, **given)
        sizes = _sizes(x, given.get("size"))
        if sizes is None or (self.gathers and _small(x, given[graphs[0]])):
            return kind.forward(self, *args, **kwargs)
        for name in graphs:
            edges = Edges.of(self.graphs.get(given[name], sizes[1], sizes[0]))
            if name == "edge_index":
                _arrange(given, edges)
            given[name] = edges.index
        return code(self, **given)

    return forward


def _covered(layer: MessagePassing, given: dict[str, Any], graphs: list[str]) -> bool:
    if watched(layer) or given.get("return_attention_weights") is not None:
        return False
    return "x" in given and all(plain(given.get(name)) for name in graphs)


def watched(layer: MessagePassing) -> bool:
    """Is it traced, explained, or does it have hooks within `propagate`?"""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return traced or bool(layer._explain) or any(getattr(layer, hooks) for hooks in HOOKS)


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


def _sizes(x: Any, size: Any) -> tuple[int, int] | None:
    """(sources, targets), None where this call is not one on (nodes, features)."""
    source, target = x if isinstance(x, (tuple, list)) and len(x) == 2 else (x, x)
    if not isinstance(source, Tensor) or source.dim() != 2 or source.device.type != "cpu":
        return None
    if target is not None and not (isinstance(target, Tensor) and target.dim() == 2):
        return None
    known = tuple(size) if size is not None else (None, None)
    targets = target.shape[0] if target is not None else source.shape[0] if known[1] is None else known[1]
    found = source.shape[0], targets
    return found if all(k in (None, f) for k, f in zip(known, found, strict=True)) else None


def _small(x: Any, edge_index: Tensor) -> bool:
    source = x if isinstance(x, Tensor) else x[0]
    return edge_index.shape[1] * source.shape[1] < SMALL_NUMBERS


def _arrange(given: dict[str, Any], edges: Edges) -> None:
    for name in EDGE_VALUES:
        values = given.get(name)
        if isinstance(values, Tensor) and values.dim() > 0 and values.shape[0] == edges.neighbours.num_edges:
            given[name] = edges.arranged(values)


def _propagate(kind: type[MessagePassing]):
    own = OWN_SUMS.get(kind)

    def propagate(self, edge_index, size=None, **kwargs):
        edges = edges_of(edge_index)
        if edges is None or not fits(self, edges, kwargs, ["message", "aggregate", "update"]):
            plain = kind._orig_propagate if self._explain else kind.propagate
            return plain(self, edge_index, size=size, **kwargs)
        out = None if own is None else own(self, edges, **kwargs)
        out = in_pieces(self, kind, "message", edges, kwargs) if out is None else out
        if out is not None:
            return out
        out = self.message(**collected(self, "message", edges, kwargs))
        if kind.aggregate is MessagePassing.aggregate:
            out = aggregated(self, out, edges)
        else:
            out = self.aggregate(lazy.real(out), **collected(self, "aggregate", edges, kwargs))
        if kind.update is MessagePassing.update:
            return out
        return self.update(out, **collected(self, "update", edges, kwargs))

    return propagate


def _edge_updater(kind: type[MessagePassing]):
    own = OWN_SCORES.get(kind)

    def edge_updater(self, edge_index, size=None, **kwargs):
        edges = edges_of(edge_index)
        if edges is None or not fits(self, edges, kwargs, ["edge_update"]):
            return kind.edge_updater(self, edge_index, size=size, **kwargs)
        out = None if own is None else own(self, edges, **kwargs)
        out = in_pieces(self, kind, "edge_update", edges, kwargs) if out is None else out
        return self.edge_update(**collected(self, "edge_update", edges, kwargs)) if out is None else out

    return edge_updater
