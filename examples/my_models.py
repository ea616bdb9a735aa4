"""Models of one's own: a function that is given the graph (a PyG `Data`) and returns a torch module."""

from torch_geometric.nn import GAT


def make_gat(data):
    return GAT(data.num_features, hidden_channels=64, num_layers=2, out_channels=7, heads=4)
