"""The model of S1: a graph transformer of the GPS kind (Rampasek et al. 2022) on PyG's own layers, as large.

Each layer: local message passing (GIN, GAT or GCN) and multi-head attention over all nodes of a graph, side by side,
each with a residual and a layer norm; their sum goes through a feed-forward network with another.

Positional encodings are computed once a graph by PyG's transforms. `lap`: the first non-trivial eigenvectors of the
symmetrically normalized Laplacian (Dwivedi et al. 2020). `rwse`: the chances that a random walk of 1, 2, ... steps is
back where it began (Dwivedi et al. 2021).
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, GPSConv
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from gnnlab.errors import GnnlabError, whole_numbers
from gnnswap.errors import quoted

FIELDS = {"lap": "laplacian_eigenvector_pe", "rwse": "random_walk_pe"}  # the names that PyG gives them
PE_TYPES = ("none", *FIELDS)
MPNN_TYPES = ("gin", "gat", "gcn")


class GraphTransformer(nn.Module):
    """`model(data)` -> (N, out_features).

    `data` is a PyG `Data` or `Batch` with `x` (N, in_features) and `edge_index`; with `pe_type` "lap" or "rwse" it
    carries the encoding (N, pe_dim) that `model.prepare(data)` adds. Edge weights are not used. The sizes default to
    the worked example of the seed. Raises `GnnlabError` for sizes that do not fit together, and in `forward` for data
    that lacks what is needed.

    >>> model = GraphTransformer.from_graph(data, num_layers=2, pe_type="rwse")
    >>> model(model.prepare(data)).shape
    torch.Size([1797, 1])
    """

    def __init__(
        self,
        in_features: int,
        *,
        hidden_dim: int = 256,
        num_layers: int = 6,
        num_heads: int = 8,
        ffn_dim: int = 512,
        mpnn_type: str = "gin",  # gin|gat|gcn
        pe_type: str = "none",  # none|lap|rwse
        pe_dim: int = 16,
        out_features: int = 1,
        dropout: float = 0.1,
    ):
        super().__init__()
        sizes = {"in_features": in_features, "hidden_dim": hidden_dim, "num_layers": num_layers}
        sizes |= {"num_heads": num_heads, "ffn_dim": ffn_dim, "pe_dim": pe_dim, "out_features": out_features}
        whole_numbers(1, **sizes)
        choices = {"mpnn_type": (mpnn_type, MPNN_TYPES), "pe_type": (pe_type, PE_TYPES)}
        for name, (given, allowed) in choices.items():
            if given not in allowed:
                needed = f"{name} must be one of {', '.join(allowed)}"
                raise GnnlabError(f"graph_transformer: {needed}, got {quoted(given)}")
        for name, size in sizes.items():
            setattr(self, name, size)
        self.mpnn_type, self.pe_type = mpnn_type, pe_type
        self.embed = nn.Linear(in_features, hidden_dim)
        self.embed_pe = nn.Linear(pe_dim, hidden_dim) if pe_type != "none" else None
        self.layers = nn.ModuleList(
            gps_layer(hidden_dim, num_heads, ffn_dim, mpnn_type, dropout) for _ in range(num_layers)
        )
        self.head = nn.Linear(hidden_dim, out_features)

    @classmethod
    def from_graph(cls, data: Data, **options: Any) -> GraphTransformer:
        """A model whose input fits the features of `data`; options as in the constructor."""
        return cls(int(data.num_features), **options)

    def prepare(self, data: Data) -> Data:
        """A copy of `data` with the encoding that this model reads: once a graph, before anything is timed."""
        return encoded(data, self.pe_type, self.pe_dim)

    def forward(self, data: Data) -> Tensor:
        x = self.embed(data.x)  # (N, hidden)
        if self.embed_pe is not None:
            encoding = data.get(FIELDS[self.pe_type])
            if encoding is None:
                raise GnnlabError(f"the graph has no {self.pe_type} encoding; call model.prepare(data) first")
            x = x + self.embed_pe(encoding)
        for layer in self.layers:
            x = layer(x, data.edge_index, data.batch)
        return self.head(x)


def gps_layer(hidden: int, heads: int, ffn: int, mpnn_type: str, dropout: float = 0.0) -> GPSConv:
    """PyG's `GPSConv` with layer norms, and GELU in a feed-forward network of any width (PyG's own is 2 * hidden)."""
    if mpnn_type == "gin":
        local = GINConv(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
    else:
        local = GATConv(hidden, hidden // heads, heads=heads) if mpnn_type == "gat" else GCNConv(hidden, hidden)
    norm = {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}}
    layer = GPSConv(hidden, local, heads=heads, dropout=dropout, attn_type="multihead", **norm)
    layer.mlp = nn.Sequential(
        nn.Linear(hidden, ffn), nn.GELU(), nn.Dropout(dropout), nn.Linear(ffn, hidden), nn.Dropout(dropout)
    )
    return layer


def encoded(data: Data, kind: str, dim: int) -> Data:
    """A copy of `data` with its encoding, a float32 field (N, dim) named as in `FIELDS`; "none" adds nothing.

    A `Batch` is encoded graph by graph. The encodings speak of structure alone: weights are left out and duplicate
    edges count once; the Laplacian takes the graph as undirected and without self-loops, the walk follows the edges.
    The same graph always gets the same encoding: an eigenvector is as good as its negative, so its largest entry is
    made positive. A graph of N nodes has N - 1 non-trivial eigenvectors; missing columns are 0.
    """
    data = copy.copy(data)
    if kind != "none":
        encode = {"lap": _laplacian, "rwse": _random_walk}[kind]
        graphs = data.to_data_list() if isinstance(data, Batch) else [data]
        data[FIELDS[kind]] = torch.cat([encode(graph, dim) for graph in graphs])
    return data


def _laplacian(data: Data, dim: int) -> Tensor:
    nodes, count = int(data.num_nodes), min(dim, int(data.num_nodes) - 1)
    edge_index = to_undirected(remove_self_loops(data.edge_index)[0], num_nodes=nodes)
    start = np.random.default_rng(0).standard_normal(nodes).astype(np.float32)  # ARPACK's own is random
    iterative = {"v0": start} if nodes >= AddLaplacianEigenvectorPE.SPARSE_THRESHOLD else {}
    transform = AddLaplacianEigenvectorPE(count, FIELDS["lap"], is_undirected=True, **iterative)
    with torch.random.fork_rng(devices=[]):  # the transform draws signs
        vectors = transform(Data(edge_index=edge_index.cpu(), num_nodes=nodes))[FIELDS["lap"]].float()  # (N, count)
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    vectors = torch.where(largest < 0, -vectors, vectors)
    return F.pad(vectors, (0, dim - count)).to(data.edge_index.device)


def _random_walk(data: Data, dim: int) -> Tensor:
    plain = Data(edge_index=coalesce(data.edge_index, num_nodes=data.num_nodes), num_nodes=data.num_nodes)
    with warnings.catch_warnings():  # torch calls its CSR tensors a beta; PyG uses them from 2,000 nodes on
        warnings.simplefilter("ignore", UserWarning)
        return AddRandomWalkPE(dim, FIELDS["rwse"])(plain)[FIELDS["rwse"]].float()
