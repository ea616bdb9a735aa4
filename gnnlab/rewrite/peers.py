"""What others would write today for a layer or model of PyG on one graph: the forms that it is raced with.

forms = peers(GCNConv(64, 64), edge_index, num_nodes, ["EdgeIndex", "sparse CSR", "torch.compile"])
forms["PyG, EdgeIndex"](x)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.utils import to_torch_csr_tensor

from gnnlab.errors import GnnlabError
from gnnlab.rewrite.swap import swap

PEERS = ("EdgeIndex", "sparse CSR", "torch.compile")


class OnGraph(nn.Module):
    """A layer on one graph, and its edge features where it takes some: called with the features x (N, F) alone."""

    def __init__(self, layer: nn.Module, edges: object, edge_attr: Tensor | None = None) -> None:
        super().__init__()
        self.layer, self.edges = layer, edges
        self.more = {} if edge_attr is None else {"edge_attr": edge_attr}

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, self.edges, **self.more)


def peers(
    layer: nn.Module,
    edge_index: Tensor,
    num_nodes: int,
    which: Sequence[str] = PEERS,
    edge_attr: Tensor | None = None,
) -> dict[str, nn.Module]:
    """ "PyG" on `edge_index` (2, E), then those of `which`, then "gnnlab" with its fast layers; all have one's weights.

    Structure is prepared here, not in the calls: `EdgeIndex` is sorted by target, and a row of the CSR adjacency holds
    the sources of a target. An adjacency has no repeated edges and no `edge_attr` (E, D); where the layer sees them,
    results differ.

    Raises:
        GnnlabError: `which` names another peer.
    """
    if unknown := set(which) - set(PEERS):
        raise GnnlabError(f"{', '.join(sorted(unknown))}: no such peer; there are {', '.join(PEERS)}")
    shape = (num_nodes, num_nodes)
    forms: dict[str, nn.Module] = {"PyG": OnGraph(layer, edge_index, edge_attr)}
    if "EdgeIndex" in which:
        edges, order = EdgeIndex(edge_index, sparse_size=shape).sort_by("col")
        forms["PyG, EdgeIndex"] = OnGraph(layer, edges, None if edge_attr is None else edge_attr[order])
    if "sparse CSR" in which:
        forms["PyG, sparse CSR"] = OnGraph(layer, to_torch_csr_tensor(edge_index.flip(0), size=shape), edge_attr)
    if "torch.compile" in which:
        # by itself: all are compiled from one code, and after eight of those torch would run the ninth uncompiled
        compiled = torch.compile(OnGraph(layer, edge_index, edge_attr), dynamic=False, isolate_recompiles=True)
        forms["torch.compile"] = compiled
    fast = swap(layer).model
    return forms | {"gnnlab": OnGraph(fast if fast is not layer else copy.copy(layer), edge_index, edge_attr)}
