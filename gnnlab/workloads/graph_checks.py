"""What every graph of the lab has to be, whoever made it; `checked` makes it so or says why it cannot."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import LocalDegreeProfile

from gnnlab.workloads.errors import GraphError, shown


def checked(data: Data, source: str) -> Data:
    """A copy of `data` (or of a `Batch`) in the form that all of the lab relies on.

    - `x` float32 (N, F), finite. A graph without features gets PyG's `LocalDegreeProfile` (F = 5: the degree of a
      node, and minimum, maximum, mean and standard deviation of its neighbours' degrees; Cai & Wang 2018).
    - `edge_index` int64 (2, E), contiguous, N > 0 and E > 0, every index in 0..N-1.
    - `edge_weight` float32 (E,), finite, where there is one.

    Other fields pass through. The tensors of the argument are shared, never written to.
    Raises `GraphError` in one line that begins with `source` and names the offending edge, node or value.
    """
    if not isinstance(data, Data):
        raise GraphError(f"{source}: a torch_geometric Data with one kind of node is needed, got {type(data).__name__}")
    if isinstance(data, Batch) and data.x is None:  # profiles belong into each graph, or they are lost when it is split
        parts = [checked(part, f"{source}, graph {i}") for i, part in enumerate(data.to_data_list())]
        return Batch.from_data_list(parts)
    data = copy.copy(data)
    num_nodes = _num_nodes(data, source)
    data.edge_index = _edges(data.edge_index, num_nodes, source)
    if data.get("edge_weight") is not None:
        data.edge_weight = _weights(data.edge_weight, data.num_edges, source)
    if data.x is None:
        data.num_nodes = num_nodes
        data = LocalDegreeProfile()(data)
    data.x = _features(data.x, num_nodes, source)
    return data


def _num_nodes(data: Data, source: str) -> int:
    with warnings.catch_warnings():  # PyG warns where it reads the number of nodes from the edges: so do we mean it
        warnings.simplefilter("ignore")
        num_nodes = data.num_nodes
    if not num_nodes:
        raise GraphError(f"{source}: the graph has no nodes; at least one is needed")
    return int(num_nodes)


def _edges(edge_index: object, num_nodes: int, source: str) -> Tensor:
    if not isinstance(edge_index, Tensor):
        raise GraphError(f"{source}: the graph has no edges; edge_index, int64 of shape (2, E), is needed")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise GraphError(f"{source}: edge_index must have shape (2, E), got {tuple(edge_index.shape)}")
    if edge_index.size(1) == 0:
        raise GraphError(f"{source}: the graph has no edges; at least one is needed")
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise GraphError(f"{source}: edge_index must hold integers, got {edge_index.dtype}")
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if outside.any():
        edge = int(outside.any(dim=0).nonzero()[0])
        start, end = edge_index[:, edge].tolist()
        what = "negative" if min(start, end) < 0 else "out of range"
        raise GraphError(
            f"{source}: edge {edge} ({start} -> {end}): index {what}; "
            f"the graph has {num_nodes} nodes, 0..{num_nodes - 1} are allowed"
        )
    return edge_index.to(torch.int64).contiguous()


def _weights(weight: object, num_edges: int, source: str) -> Tensor:
    if not isinstance(weight, Tensor) or weight.is_complex() or weight.numel() != num_edges:
        got = tuple(weight.shape) if isinstance(weight, Tensor) else shown(weight)
        raise GraphError(f"{source}: edge_weight must be one number an edge ({num_edges} edges), got {got}")
    weight = weight.reshape(-1).to(torch.float32)
    bad = ~weight.isfinite()
    if bad.any():
        edge = int(bad.nonzero()[0])
        raise GraphError(f"{source}: the weight of edge {edge} is {weight[edge].item()}; finite float32 is needed")
    return weight.contiguous()


def _features(x: object, num_nodes: int, source: str) -> Tensor:
    if not isinstance(x, Tensor) or x.is_complex():
        raise GraphError(f"{source}: x must be a tensor of real numbers, got {shown(x)}")
    x = x.to_dense() if x.layout != torch.strided else x
    x = x.view(-1, 1) if x.dim() == 1 else x
    if x.dim() != 2 or x.size(0) != num_nodes or x.size(1) == 0:
        raise GraphError(f"{source}: x must have shape ({num_nodes}, F) with F > 0, got {tuple(x.shape)}")
    x = x.to(torch.float32)
    bad = ~x.isfinite()
    if bad.any():
        node, feature = bad.nonzero()[0].tolist()
        value = x[node, feature].item()
        raise GraphError(f"{source}: feature {feature} of node {node} is {value}; finite float32 is needed")
    return x.contiguous()
