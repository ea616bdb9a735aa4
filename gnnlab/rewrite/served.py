"""A layer of PyG that runs its own code on sorted edges, with rows that are gathered by the sum itself.

    serve(layer, graphs)       # this one instance; its class, other instances and PyG stay as they are

The layer gets a class of its own, made from its class: `forward` sorts the edges by target (once a graph), and runs the
layer's code with functions in place of PyG's `gcn_norm`, `softmax` and those of self-loops that keep what depends on
the graph alone; `propagate` hands `message` rows that are not gathered yet. A call that this does not cover (a sparse
adjacency, attention weights to return, explanations, hooks, another device, torch.compile) runs PyG's code as it is.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv import MessagePassing

from gnnlab.kernels.neighbours import GraphCache
from gnnlab.rewrite import lazy, messages
from gnnlab.rewrite.edges import Edges, edges_of, rebound
from gnnlab.rewrite.pieces import SCORES, SUMS

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
        layer.form, layer.precision = "auto", "float32"
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
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or layer._explain:
        return False
    if given.get("return_attention_weights") is not None or any(getattr(layer, hooks) for hooks in HOOKS):
        return False
    return "x" in given and all(_plain(given.get(name)) for name in graphs)


def _plain(edge_index: Any) -> bool:
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
    own = SUMS.get(kind)

    def propagate(self, edge_index, size=None, **kwargs):
        edges = edges_of(edge_index)
        if edges is None or not messages.fits(self, edges, kwargs, ["message", "aggregate", "update"]):
            plain = kind._orig_propagate if self._explain else kind.propagate
            return plain(self, edge_index, size=size, **kwargs)
        out = None if own is None else own(self, edges, **kwargs)
        out = messages.in_pieces(self, kind, "message", edges, kwargs) if out is None else out
        if out is not None:
            return out
        out = self.message(**messages.collected(self, "message", edges, kwargs))
        if kind.aggregate is MessagePassing.aggregate:
            out = messages.aggregated(self, out, edges)
        else:
            out = self.aggregate(lazy.real(out), **messages.collected(self, "aggregate", edges, kwargs))
        if kind.update is MessagePassing.update:
            return out
        return self.update(out, **messages.collected(self, "update", edges, kwargs))

    return propagate


def _edge_updater(kind: type[MessagePassing]):
    own = SCORES.get(kind)

    def edge_updater(self, edge_index, size=None, **kwargs):
        edges = edges_of(edge_index)
        if edges is None or not messages.fits(self, edges, kwargs, ["edge_update"]):
            return kind.edge_updater(self, edge_index, size=size, **kwargs)
        out = None if own is None else own(self, edges, **kwargs)
        out = messages.in_pieces(self, kind, "edge_update", edges, kwargs) if out is None else out
        return self.edge_update(**messages.collected(self, "edge_update", edges, kwargs)) if out is None else out

    return edge_updater
