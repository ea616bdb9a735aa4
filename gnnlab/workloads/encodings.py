"""Positional encodings of graph transformers, computed once a graph by PyG's transforms.

`lap`: the first non-trivial eigenvectors of the symmetrically normalized Laplacian (Dwivedi et al. 2020).
`rwse`: the chances that a random walk of 1, 2, ... steps is back where it began (Dwivedi et al. 2021).
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from gnnlab.workloads.errors import ModelError, shown

FIELDS = {"lap": "laplacian_eigenvector_pe", "rwse": "random_walk_pe"}  # the names that PyG gives them
PE_TYPES = ("none", *FIELDS)


class Encodings(BaseTransform):
    """`Encodings("lap", 16)(data)`: a copy of `data` with a float32 field (N, dim), named as in `FIELDS`.

    A `Batch` is encoded graph by graph. The encodings speak of structure alone: weights are left out and duplicate
    edges count once; the Laplacian takes the graph as undirected and without self-loops, the walk follows the edges.
    The same graph always gets the same encoding: an eigenvector is as good as its negative, so its largest entry is
    made positive. A graph of N nodes has N - 1 non-trivial eigenvectors; missing columns are 0.
    Raises `ModelError` for an unknown kind or a size below 1.
    """

    def __init__(self, kind: str, dim: int):
        if kind not in PE_TYPES:
            raise ModelError(f"encodings: {shown(kind)} is not known; one of {', '.join(PE_TYPES)} is needed")
        if kind != "none" and (not isinstance(dim, int) or dim < 1):
            raise ModelError(f"encodings: dim must be an integer of 1 or more, got {shown(dim)}")
        self.kind, self.dim = kind, dim

    def forward(self, data: Data) -> Data:
        if self.kind == "none":
            return data
        encode = _laplacian if self.kind == "lap" else _random_walk
        graphs = data.to_data_list() if isinstance(data, Batch) else [data]
        data[FIELDS[self.kind]] = torch.cat([encode(graph, self.dim) for graph in graphs])
        return data

    def __repr__(self) -> str:
        return f"Encodings({self.kind!r}, {self.dim})"


def _laplacian(data: Data, dim: int) -> Tensor:
    nodes = int(data.num_nodes)
    edge_index = to_undirected(remove_self_loops(data.edge_index)[0], num_nodes=nodes)
    plain = Data(edge_index=edge_index.cpu(), num_nodes=nodes)
    found = min(dim, nodes - 1)
    start = np.random.default_rng(0).standard_normal(nodes).astype(np.float32)  # ARPACK's own is random
    iterative = {"v0": start} if nodes >= AddLaplacianEigenvectorPE.SPARSE_THRESHOLD else {}
    with torch.random.fork_rng(devices=[]):  # the transform draws signs, which are undone below
        transform = AddLaplacianEigenvectorPE(found, FIELDS["lap"], is_undirected=True, **iterative)
        vectors = transform(plain)[FIELDS["lap"]].float()  # (N, found)
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    vectors = torch.where(largest < 0, -vectors, vectors)
    return F.pad(vectors, (0, dim - found)).to(data.edge_index.device)


def _random_walk(data: Data, dim: int) -> Tensor:
    plain = Data(edge_index=coalesce(data.edge_index, num_nodes=data.num_nodes), num_nodes=data.num_nodes)
    with warnings.catch_warnings():  # torch calls its CSR tensors a beta; PyG uses them from 2,000 nodes on
        warnings.simplefilter("ignore", UserWarning)
        return AddRandomWalkPE(dim, FIELDS["rwse"])(plain)[FIELDS["rwse"]].float()
