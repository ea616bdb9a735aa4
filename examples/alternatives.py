"""What others would write today for a layer or model of PyG on one graph: the forms that it is raced with.

forms = forms_of(GCNConv(64, 64), edge_index, num_nodes, ["EdgeIndex", "sparse CSR", "torch.compile"])
forms["PyG, EdgeIndex"](x)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.utils import to_torch_csr_tensor

from gnnlab.errors import GnnlabError
from gnnlab.measure import conditions
from gnnlab.optimize import steps
from gnnswap.replace import swap

COMPILED, CAPTURED = "torch.compile", "captured"
PEERS = ("EdgeIndex", "sparse CSR", COMPILED)


class OnGraph(nn.Module):
    """A layer on one graph, and its edge features where it takes some: called with the features x (N, F) alone.

    `x`: the same features, as this form takes them.
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


def forms_of(
    layer: nn.Module,
    edge_index: Tensor,
    num_nodes: int,
    which: Sequence[str] = PEERS,
    edge_attr: Tensor | None = None,
    x: Tensor | None = None,
) -> dict[str, nn.Module]:
    """ "PyG" on `edge_index` (2, E), then those of `which`, then "gnnlab" with its fast layers; all have one's weights.

    Structure is prepared here, not in the calls: `EdgeIndex` is sorted by target, and a row of the CSR adjacency holds
    the sources of a target. An adjacency has no repeated edges and no `edge_attr` (E, D); where the layer sees them,
    results differ. Where `x` (N, F) is given, "gnnlab" is what `swap` makes with this example, and there is "sparse x",
    which is called with its nonzeros as a CSR matrix. "cached CSR" and "sparse x" are cached where a layer can be.
    "captured" is what `swap` makes as a CUDA graph, or, where that cannot be, a form that raises why.

    Raises:
        GnnlabError: `which` names another peer, or "sparse x" or "captured" without x.
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
        return conditions.compiled(OnGraph(layer, edge_index, edge_attr), dynamic=False, isolate_recompiles=True)

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
        raise GnnlabError(f"{', '.join(sorted(unknown))}: no such peer; there are {', '.join(known)}")
    named = {COMPILED: COMPILED, CAPTURED: f"gnnlab, {CAPTURED}"}
    others = {named.get(name, f"PyG, {name}"): make() for name, make in known.items() if name in which}
    return {"PyG": OnGraph(layer, edge_index, edge_attr), **others, "gnnlab": OnGraph(fast, edge_index, edge_attr)}


def _captured(form: OnGraph, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The form as a CUDA graph; where it cannot be captured, one that raises why."""
    try:
        return steps.captured(form, (x,))
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
