"""What a layer of PyG computes with rows of sources, targets and edges, on sorted edges.

PyG collects for `message` what its arguments name; here rows are handed over before they are gathered (`lazy.Rows`), or
gathered for some targets at a time (`pieces`).
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn import aggr
from torch_geometric.nn.conv import MessagePassing

from gnnlab.rewrite import lazy
from gnnlab.rewrite.edges import SOURCE, TARGET, Edges, total
from gnnlab.rewrite.lazy import Rows
from gnnlab.rewrite.pieces import EDGE, PIECE_NUMBERS, pieces

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
SPECIAL = {
    "index",
    "ptr",
    "size",
    "size_i",
    "size_j",
    "dim_size",
    "edge_index",
    "edge_index_i",
    "edge_index_j",
    "adj_t",
}
NOTHING: Mapping[str, Tensor] = types.MappingProxyType({})
# layers that make rows an edge, with the modules that make them
PIECED = {
    "GATConv": ("lin_edge",), "GATv2Conv": ("lin_edge",), "GENConv": ("lin_edge",), "GINEConv": ("lin",),
    "PNAConv": ("pre_nns", "edge_encoder"), "ResGatedGraphConv": ("lin_key", "lin_query", "lin_value", "act"),
}  # fmt: skip

# of these the rows are only those of scores: their messages are weighted rows, which one bag takes in 0.7 of the time
WEIGHTED = ("GATConv", "GATv2Conv")


def fits(layer: MessagePassing, edges: Edges, kwargs: dict[str, Any], methods: list[str]) -> bool:
    """Whether all that is to be gathered has its nodes in the first dimension, as many as the graph has."""
    counts = edges.neighbours.num_sources, edges.neighbours.num_nodes
    for method in methods:
        for name in layer.inspector.get_param_names(method):
            if name[-2:] not in ("_i", "_j") or name in SPECIAL:
                continue
            side = SOURCE if name.endswith("_j") else TARGET
            x = _end(kwargs.get(name[:-2]), side)
            if x is None:
                continue
            first = layer.node_dim == 0 or layer.node_dim + x.dim() == 0
            if not isinstance(x, Tensor) or not first or x.shape[0] != counts[side]:
                return False
    return True


def _end(x: Any, side: int) -> Any:
    return x[side] if isinstance(x, (tuple, list)) else x


def collected(
    layer: MessagePassing, method: str, edges: Edges, kwargs: dict[str, Any], ready: Mapping[str, Tensor] = NOTHING
) -> dict[str, Any]:
    """What PyG would collect for this method, rows not gathered, but for those that are `ready`."""
    graph = edges.neighbours
    found: dict[str, Any] = {}
    for name, parameter in layer.inspector.get_param_dict(method).items():
        if name in ready:
            found[name] = ready[name]
        elif name in SPECIAL:
            found[name] = {
                "index": edges.target, "edge_index_i": edges.target, "edge_index_j": edges.index[SOURCE],
                "edge_index": edges.index, "size": [graph.num_sources, graph.num_nodes], "size_j": graph.num_sources,
                "size_i": graph.num_nodes, "dim_size": graph.num_nodes,
            }.get(name)  # fmt: skip
        elif name[-2:] in ("_i", "_j"):
            side = SOURCE if name.endswith("_j") else TARGET
            x = _end(kwargs.get(name[:-2]), side)
            found[name] = None if x is None else Rows(x, edges, side)
        elif name in kwargs:
            found[name] = kwargs[name]
        elif parameter.default is not inspect.Parameter.empty:
            found[name] = parameter.default
    return found


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
    roles = {}
    for name in layer.inspector.get_param_names(method):
        side = {"_j": SOURCE, "_i": TARGET}.get(name[-2:], EDGE)
        given = kwargs.get(name) if side == EDGE else _end(kwargs.get(name[:-2]), side)
        of_edges = isinstance(given, Tensor) and given.dim() > 0 and given.shape[0] == edges.neighbours.num_edges
        if name not in SPECIAL and (of_edges if side == EDGE else given is not None):
            roles[name] = side, given
    return roles


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
