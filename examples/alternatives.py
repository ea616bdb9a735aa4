"""What others would write today for a layer or model of PyG on one graph, and the models and layers that notebook 09
compares with it.

variants = variants_of(GCNConv(64, 64), edge_index, num_nodes, ["EdgeIndex", "sparse CSR", "torch.compile"])
variants["PyG, EdgeIndex"](x)
for study, keys, cells, make in studies(COLLECTIONS["few"]):
    variants, inputs = make(*cells[0])      # what one benchmark compares
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.utils import to_torch_csr_tensor

from examples.public_models import LAYERS, MODELS, TWO_LAYERS, WITH_EDGES
from gnnlab.errors import GnnlabError
from gnnlab.optimize import steps
from gnnlab.workloads import graphs
from gnnlab.workloads.models import Workload, converted
from gnnswap.replace import swap

COMPILED, CAPTURED = "torch.compile", "captured"
ALTERNATIVES = ("EdgeIndex", "sparse CSR", COMPILED)
PASSES = ("forward", "training")
WORDS = "random:nodes=2708,edges=10556,features=1433,density=0.0127"  # of Cora's size
GRAPHS = {"bags of words": WORDS, "dense features": "random:nodes=20000,edges=127000,features=500"}
ARXIV = "random:nodes=169343,edges=1166243,features=128,degrees=powerlaw"  # of the size of ogbn-arxiv
SIZES = ((2_000, 10_000), (20_000, 100_000), (100_000, 1_000_000), (500_000, 10_000_000), (2_400_000, 62_000_000))
FEW: dict[str, Sequence[Any]] = {  # names in examples/public_models.py; models, nodes and edges of examples/growth.py
    "public": ("molecules_gin",),
    "whole": ("GCN 64",),
    "whole graphs": ("bags of words",),
    "layers": ("GATv2",),
    "layer graphs": ("digits",),
    "growth": (),
    "alternatives": ("cached CSR", "EdgeIndex", "sparse CSR"),
}
WHOLE = {
    "public": tuple(MODELS),
    "whole": tuple(TWO_LAYERS),
    "whole graphs": ("bags of words", "dense features"),
    "layers": ("GCN", "SAGE", "GIN", "GAT", "GATv2"),
    "layer graphs": ("random:nodes=20000,edges=127000,degrees=powerlaw,features=64",),
    "growth": [(model, *size) for model in ("GCN", "SAGE") for size in SIZES[2:4]],
    "alternatives": ("cached", "cached CSR", "sparse x", *ALTERNATIVES),
}
COLLECTIONS = {
    "few": FEW,
    "models": WHOLE,
    "full": WHOLE
    | {
        "layers": tuple(name for name in LAYERS if name != "GPS"),
        "growth": [(model, *size) for model in ("GCN", "SAGE") for size in SIZES],
    },
    "gpu": FEW
    | {
        "whole": ("GCN 64", "SAGE 64", "GAT 8x8"),
        "whole graphs": ("bags of words", ARXIV),
        "layers": ("GCN", "GIN", "GINE", "GAT", "GATv2", "SAGE", "Transformer"),
        "layer graphs": ("digits", ARXIV),
        "growth": [("GCN", *size) for size in (*SIZES[:2], (169_343, 1_166_243))],
        "alternatives": ("cached", "cached CSR", "EdgeIndex", "sparse CSR", CAPTURED),
    },
}


class OnGraph(nn.Module):
    """A layer on one graph, and its edge features where it takes some: called with the features x (N, F) alone.

    `x`: the same features, as this variant takes them.
    """

    def __init__(
        self, layer: nn.Module, edges: object, edge_attr: Tensor | None = None, x: Tensor | None = None
    ) -> None:
        super().__init__()
        self.layer, self.edges, self.x = layer, edges, x
        self.register_buffer("edge_attr", edge_attr)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer is None:
            raise GnnlabError("no layer of it can be cached")
        more = {} if self.edge_attr is None else {"edge_attr": self.edge_attr}
        return self.layer(x if self.x is None else self.x, self.edges, **more)


def variants_of(
    layer: nn.Module,
    edge_index: Tensor,
    num_nodes: int,
    which: Sequence[str] = ALTERNATIVES,
    edge_attr: Tensor | None = None,
    x: Tensor | None = None,
) -> dict[str, nn.Module]:
    """ "PyG" on `edge_index` (2, E), then those of `which`, then "gnnlab" with its fast layers; all have one's weights.

    Structure is prepared here, not in the calls: `EdgeIndex` is sorted by target, and a row of the CSR adjacency holds
    the sources of a target. An adjacency has no repeated edges and no `edge_attr` (E, D); where the layer sees them,
    results differ. Where `x` (N, F) is given, "gnnlab" is what `swap` makes with this example, and there is "sparse x",
    which is called with its nonzeros as a CSR matrix. "cached CSR" and "sparse x" are cached where a layer can be.
    "captured" is what `swap` makes as a CUDA graph, or, where that cannot be, a variant that raises why.

    Raises:
        GnnlabError: `which` names another alternative, or "sparse x" or "captured" without x.
    """
    cached = _cached(layer)

    def sorted_edges() -> nn.Module:
        edges, order = EdgeIndex(edge_index, sparse_size=(num_nodes, num_nodes)).sort_by("col")
        return OnGraph(layer, edges, None if edge_attr is None else edge_attr[order])

    def on_adjacency(one: nn.Module, rows: Tensor | None = None) -> nn.Module:
        adjacency = to_torch_csr_tensor(edge_index.flip(0), size=(num_nodes, num_nodes))
        return OnGraph(one, adjacency, edge_attr, rows)

    def compiled() -> nn.Module:
        # by itself: all are compiled from one code, and after eight of those torch would run the ninth uncompiled
        return torch.compile(OnGraph(layer, edge_index, edge_attr), dynamic=False, isolate_recompiles=True)

    known: dict[str, Callable[[], nn.Module]] = {
        "EdgeIndex": sorted_edges,
        "sparse CSR": lambda: on_adjacency(layer),
        "cached": lambda: OnGraph(cached, edge_index, edge_attr),
        "cached CSR": lambda: on_adjacency(cached or layer),
        COMPILED: compiled,
    }
    more = {} if edge_attr is None else {"edge_attr": edge_attr}
    fast = swap(layer, None if x is None else {"x": x, "edge_index": edge_index, **more}).model
    if x is not None:
        known[CAPTURED] = lambda: _captured(OnGraph(fast, edge_index, edge_attr), x)
        known["sparse x"] = lambda: on_adjacency(cached or layer, x.to_sparse_csr())
    if unknown := set(which) - known.keys():
        raise GnnlabError(f"{', '.join(sorted(unknown))}: no such alternative; there are {', '.join(known)}")
    named = {COMPILED: COMPILED, CAPTURED: f"gnnlab, {CAPTURED}"}
    others = {named.get(name, f"PyG, {name}"): make() for name, make in known.items() if name in which}
    return {"PyG": OnGraph(layer, edge_index, edge_attr), **others, "gnnlab": OnGraph(fast, edge_index, edge_attr)}


def _captured(variant: OnGraph, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The variant as a CUDA graph; where it cannot be captured, one that raises why."""
    try:
        return steps.captured(variant, (x,))
    except GnnlabError as error:
        refused = error

    def missing(x: Tensor) -> Tensor:
        raise refused

    return missing


def _cached(model: nn.Module) -> nn.Module | None:
    """A copy whose layers keep what they compute of the graph; None where no layer can. It serves one graph only."""
    if not any(hasattr(layer, "cached") for layer in model.modules()):
        return None
    model = copy.deepcopy(model)
    for layer in model.modules():
        if hasattr(layer, "cached"):
            layer.cached = True
    return model


# ---- the models and layers of notebook 09 ---------------------------------------------------------------------------


def of_model(workload: Workload, of: Mapping[str, Any]) -> tuple[dict[str, nn.Module], Any]:
    """The variants of a user's model in eval mode, and their inputs: of one that takes x and edge_index alone the
    alternatives of a collection, of others "PyG", the model as it is, and "gnnlab"."""
    model, batch = workload.model.eval(), workload.batch
    if isinstance(batch, dict) and set(batch) == {"x", "edge_index"} and isinstance(batch["x"], Tensor):
        x, edge_index = batch["x"], batch["edge_index"]
        return variants_of(model, edge_index, workload.graph.num_nodes, of["alternatives"], x=x), {"x": x}
    return {"PyG": model, "gnnlab": swap(model, batch).model}, batch


def studies(of: Mapping[str, Any], device: str = "cpu") -> Iterator[tuple[str, tuple, list, Callable]]:
    """Studies of one of the `COLLECTIONS`: name, names of the keys, keys of each cell, and the function that makes the
    variants and inputs of a cell.

    Of its alternatives layers are not cached, and models have "cached CSR" in place of "sparse CSR". "new_graph" has a
    copy of the edges in each call, as sampled subgraphs come.
    """
    of_models = [name for name in of["alternatives"] if name not in ("sparse CSR", CAPTURED)]
    of_layers = [name for name in of["alternatives"] if name in (*ALTERNATIVES, CAPTURED)]

    def on(name: str) -> Any:
        return graphs.load(GRAPHS.get(name, name)).to(device)

    def prepared(layer: nn.Module, which: str) -> nn.Module:
        return layer.eval().to(device).requires_grad_(which == "training")

    def public_model(name: str, which: str) -> tuple[dict[str, Any], Any]:
        make, inputs_of = MODELS[name]
        model, batch = make().eval().to(device), converted(inputs_of(), lambda tensor: tensor.to(device))
        return {"PyG": model, "gnnlab": swap(model, batch).model}, batch

    def whole_model(name: str, graph: str, which: str) -> tuple[dict[str, Any], Any]:
        data = on(graph)
        model = prepared(TWO_LAYERS[name](data.num_features), which)
        return variants_of(model, data.edge_index, data.num_nodes, of_models, x=data.x), {"x": data.x}

    def layer(name: str, graph: str, which: str) -> tuple[dict[str, Any], Any]:
        data, conv = on(graph), prepared(LAYERS[name](on(graph).num_features), which)
        edge_attr = torch.rand(data.num_edges, 16, device=device) if name in WITH_EDGES else None
        x = data.x.clone().requires_grad_(which == "training")
        return variants_of(conv, data.edge_index, data.num_nodes, of_layers, edge_attr, x), {"x": x}

    def on_new_graph(name: str, graph: str) -> tuple[dict[str, Any], Any]:
        data, conv = on(graph), LAYERS[name](on(graph).num_features).eval().to(device)
        fast = swap(conv).model
        variants = {"PyG": lambda x, edges: conv(x, edges.clone()), "gnnlab": lambda x, edges: fast(x, edges.clone())}
        return variants, {"x": data.x, "edges": data.edge_index}

    yield "public_models", ("model", "pass"), [*product(of["public"], PASSES)], public_model
    cells = [*product(of["whole"], of["whole graphs"], PASSES)]
    yield "whole_models", ("model", "graph", "pass"), cells, whole_model
    yield "layers", ("layer", "graph", "pass"), [*product(of["layers"], of["layer graphs"], PASSES)], layer
    plain = [name for name in of["layers"] if name not in WITH_EDGES]
    yield "new_graph", ("layer", "graph"), [*product(plain, of["layer graphs"])], on_new_graph
