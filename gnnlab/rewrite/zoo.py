"""Which mechanism serves which layer of PyG, and why not.

    mechanism(layer)     # ("bag", "") or ("none", "the messages are ...")

A layer is known by its class and by a digest of the code of that class: never a subclass, nor code that was changed,
for what was proven equal is that code. `digest` of a class prints what stands here.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass

from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn.conv import MessagePassing

from gnnlab.kernels import layers

LAYER, BAG, PART, SORTED, TILED, NONE = "layer", "bag", "bag in part", "sorted edges", "tiles", "none"
MEANING = {
    LAYER: "a hand-made layer of gnnlab.kernels",
    BAG: "one sum or maximum over neighbours that gathers nothing",
    PART: "scores and softmax on sorted edges, their weighted sum as a bag",
    SORTED: "its own messages, on edges sorted by target, gathered and summed by segments",
    TILED: "attention to all nodes in tiles, without their matrix",
    NONE: "as PyG computes it",
}


@dataclass(frozen=True)
class Entry:
    """What serves a class of layers: the mechanism, why not a better one, the digest of the code that was proven."""

    mechanism: str
    why: str = ""
    digest: str = ""


ZOO = {
    "AGNNConv": Entry(PART, "the softmax needs all scores of a target first", "8bdc6a35c589a26d"),
    "APPNP": Entry(BAG, "", "d63f5992028b543a"),
    "ARMAConv": Entry(NONE, "its nodes stand in the second dimension"),
    "CGConv": Entry(NONE, "a gate and a softplus of both ends; sorted edges were no faster"),
    "ChebConv": Entry(BAG, "", "86c1b67c387804d8"),
    "ClusterGCNConv": Entry(BAG, "", "d315639310c249b1"),
    "DNAConv": Entry(NONE, "attention over layers within each message"),
    "DynamicEdgeConv": Entry(NONE, "a new graph in each call"),
    "EGConv": Entry(SORTED, "several aggregations of each row", "5405b00b1074fc39"),
    "EdgeConv": Entry(NONE, "a network of both ends of each edge; sorted edges were no faster"),
    "FAConv": Entry(PART, "the scores need both ends", "a6baae73edf30232"),
    "FastRGCNConv": Entry(NONE, "a matrix for each relation and edge"),
    "FeaStConv": Entry(NONE, "a softmax over heads of both ends; sorted edges were no faster"),
    "FiLMConv": Entry(NONE, "ReLU of each message; sorted edges were no faster"),
    "FusedGATConv": Entry(NONE, "it needs CUDA and a package of its own"),
    "GATConv": Entry(PART, "the softmax needs all scores of a target first", "107156a34042e9b8"),
    "GATv2Conv": Entry(PART, "the softmax needs all scores of a target first", "e816be7b628c1092"),
    "GCN2Conv": Entry(BAG, "", "7a0e838b6af82ca1"),
    "GCNConv": Entry(BAG, "", "17474b01d878572b"),
    "GENConv": Entry(SORTED, "ReLU of each message, a softmax over them", "acb11a428588a38d"),
    "GINConv": Entry(BAG, "", "9114982bdd76010b"),
    "GINEConv": Entry(SORTED, "ReLU of x_j + edge_attr", "689795f659b89fe9"),
    "GMMConv": Entry(NONE, "Gaussians of edge features weight each row; sorted edges were no faster"),
    "GatedGraphConv": Entry(BAG, "", "08b4e2782db9c499"),
    "GeneralConv": Entry(NONE, "options that are no weighted sum; sorted edges were no faster"),
    "GraphConv": Entry(BAG, "", "9df5d5f64406fe7c"),
    "GravNetConv": Entry(NONE, "a new graph in each call"),
    "HANConv": Entry(NONE, "several kinds of nodes and edges in one call"),
    "HEATConv": Entry(NONE, "a network of both ends of each edge"),
    "HGTConv": Entry(NONE, "several kinds of nodes and edges in one call"),
    "HypergraphConv": Entry(NONE, "its edges join any number of nodes"),
    "LEConv": Entry(NONE, "a difference of both ends; sorted edges were no faster"),
    "LGConv": Entry(BAG, "", "74e47fa4222fc648"),
    "LabelPropagation": Entry(NONE, "no layer with parameters; it runs once"),
    "MFConv": Entry(BAG, "", "3ec91c650dfaf722"),
    "MeshCNNConv": Entry(NONE, "four neighbours in fixed places, no sum"),
    "MixHopConv": Entry(BAG, "", "05e85a4b971c795e"),
    "NNConv": Entry(NONE, "a matrix of its own for each edge; sorted edges were no faster"),
    "PANConv": Entry(NONE, "it takes a sparse adjacency only"),
    "PDNConv": Entry(BAG, "", "01c82c89eef91b33"),
    "PNAConv": Entry(SORTED, "a network of both ends, and maxima", "a88c6fbee7d1d4aa"),
    "PPFConv": Entry(NONE, "geometry of each edge, then a network, then a maximum"),
    "PointGNNConv": Entry(NONE, "a network of each edge, then a maximum"),
    "PointNetConv": Entry(NONE, "a network of each edge, then a maximum"),
    "PointTransformerConv": Entry(NONE, "a softmax for each number of a row"),
    "RGATConv": Entry(NONE, "a matrix for each relation and edge"),
    "RGCNConv": Entry(NONE, "a new graph for each relation in each call"),
    "ResGatedGraphConv": Entry(SORTED, "a gate for each number of a row", "ee25fd233d208486"),
    "SAGEConv": Entry(BAG, "", "5fac320201907bd2"),
    "SGConv": Entry(BAG, "", "92f5b0a153648e5a"),
    "SSGConv": Entry(BAG, "", "77f7911b984f03ba"),
    "SignedConv": Entry(BAG, "", "17239cdf9a800521"),
    "SimpleConv": Entry(BAG, "", "3d84ce2abb4c7684"),
    "SplineConv": Entry(NONE, "splines of edge features weight each row"),
    "SuperGATConv": Entry(NONE, "it draws edges at random while training"),
    "TAGConv": Entry(BAG, "", "bb3d45906c5d5fdd"),
    "TransformerConv": Entry(PART, "the softmax needs all scores of a target first", "07bc2457da84be1c"),
    "WLConvContinuous": Entry(BAG, "", "4ce8e58592510ba8"),
}


def mechanism(layer: MessagePassing | nn.MultiheadAttention) -> tuple[str, str]:
    """(mechanism, why): one of `MEANING` for this layer with its options, and why it is not a better one."""
    kind = type(layer)
    if isinstance(layer, nn.MultiheadAttention):
        return (TILED, "") if kind is nn.MultiheadAttention else (NONE, "a subclass of MultiheadAttention")
    entry = ZOO.get(kind.__name__)
    if entry is None or getattr(pyg, kind.__name__, None) is not kind:
        parent = next((f", a subclass of {t.__name__}" for t in kind.__mro__[1:] if t.__name__ in ZOO), "")
        return NONE, f"it is not known{parent}: only layers of PyG itself are"
    if entry.mechanism == NONE:
        return NONE, entry.why
    reason = _changed(layer) or (
        "its code is not the code that was proven equal" if digest(kind) != entry.digest else ""
    )
    if reason:
        return NONE, reason
    if form(layer) is not None:
        return LAYER, ""
    if entry.mechanism == BAG and layer.aggr not in ("add", "sum", "mean", "max"):
        return SORTED, f"aggr={layer.aggr!r} is no sum or maximum"
    return entry.mechanism, entry.why


def form(layer: nn.Module) -> type[nn.Module] | None:
    """The hand-made layer that computes this one, if there is one."""
    kind = layers.FAST.get(type(layer))
    return None if kind is None or layers.why_not(layer) else kind


def digest(kind: type[MessagePassing]) -> str:
    """A digest of the code of a class of layers: every function that stands in it or in its bases up to PyG's base."""
    text = hashlib.sha256()
    for base in kind.__mro__[: kind.__mro__.index(MessagePassing) + 1]:
        for name, function in sorted(vars(base).items()):
            if inspect.isfunction(function) and name not in GENERATED:
                text.update(_source(function).encode())
    return text.hexdigest()[:16]


# made by PyG from templates and the signatures of the others when the first layer of a class is
GENERATED = {"propagate", "edge_updater", "collect", "edge_collect", "_orig_propagate", "_jinja_propagate",
             "_orig_edge_updater", "_jinja_edge_updater", "__repr__"}  # fmt: skip


def _source(function: object) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return f"no source of {function!r}"


def _changed(layer: MessagePassing) -> str:
    own = [name for name in vars(layer) if inspect.isfunction(getattr(type(layer), name, None))]
    if own:
        return f"this instance has its own {own[0]}"
    if layer.decomposed_layers != 1:
        return f"decomposed_layers={layer.decomposed_layers}"
    return "" if layer.flow == "source_to_target" else f"flow={layer.flow!r}"
