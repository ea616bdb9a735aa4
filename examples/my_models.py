"""Models of one's own: a function that is given the graph (a PyG `Data`) and returns a torch module.

What else it takes are sizes to vary, as notebook 09 does: `make_gat(data, heads=8)`.
"""

from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN


def make_gat(data, hidden=64, layers=2, heads=4):
    return GAT(data.num_features, hidden, layers, out_channels=classes(data), heads=heads)


def make_gcn(data, hidden=64, layers=2):
    return GCN(data.num_features, hidden, layers, out_channels=classes(data))


def classes(data: Data) -> int:
    """Of the labels y (N,) of the nodes; 7 where there are none."""
    return 7 if data.get("y") is None else int(data.y.max()) + 1
