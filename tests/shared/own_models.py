"""Models as a user writes them, for what takes `module:factory`: of PyG, by hand, with mistakes."""

import os
import time

import torch
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, GCNConv, HeteroConv, SAGEConv, global_mean_pool
from torch_geometric.nn.models import GAT, GCN, GIN, PNA


def two_layers(kind, **options):
    """The factory of a model of two layers of PyG."""
    return lambda data: kind(data.num_features, 8, 2, 3, **options)


gcn, gin = two_layers(GCN), two_layers(GIN)
gat, gatv2 = two_layers(GAT, heads=2), two_layers(GAT, heads=2, v2=True)


def pna(data):
    scale = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"]}
    return PNA(data.num_features, 8, 2, 3, deg=torch.tensor([0, 1, 4, 2]), **scale)


class WithEdges(nn.Module):
    """Edge features, a norm, dropout in training, two outputs."""

    def __init__(self, data):
        super().__init__()
        self.conv = GATConv(data.num_features, 8, edge_dim=1)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x, edge_index, edge_weight):
        h = self.norm(self.conv(x, edge_index, edge_weight.view(-1, 1)).relu())
        h = nn.functional.dropout(h, 0.5, self.training)
        return {"classes": self.out(h), "hidden": (h,)}


class Bipartite(nn.Module):
    """Sources and targets each with an encoder of their own; the whole graph goes in."""

    def __init__(self, data):
        super().__init__()
        self.source, self.target = nn.Linear(data.num_features, 6), nn.Linear(data.num_features, 4)
        self.conv = SAGEConv((6, 4), 3)

    def forward(self, data):
        return self.conv((self.source(data.x), self.target(data.x)), data.edge_index)


class Pooled(nn.Module):
    """A linear layer, then a mean over the nodes of each graph."""

    def __init__(self, features):
        super().__init__()
        self.conv, self.lin = GCNConv(features, 8), nn.Linear(8, 3)

    def forward(self, x, edge_index, batch):
        return global_mean_pool(self.lin(self.conv(x, edge_index).relu()), batch)


class Altered(nn.Module):
    """`mistake` is what its forward does to a linear layer's output, or besides."""

    def __init__(self, features, mistake):
        super().__init__()
        self.lin, self.mistake = nn.Linear(features, 3), mistake
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, edge_index):
        return self.mistake(self, x, self.lin(x))


def with_mistake(mistake):
    """The factory of a model with it; `mistake` may decorate its own definition."""
    return lambda data: Altered(data.num_features, mistake)


class Weighted(nn.Module):
    """A GCN whose edges have weights."""

    def __init__(self, features):
        super().__init__()
        self.conv = GCNConv(features, 3)

    def forward(self, x, edge_index, edge_weight):
        return self.conv(x, edge_index, edge_weight)


def gcn_with_weights(data):
    return Weighted(data.num_features)


with_edges, bipartite = WithEdges, Bipartite


def pooled(data):
    return Pooled(data.num_features)


def purchases():
    """Nodes and edges of two kinds."""
    data, pairs = HeteroData(), torch.tensor([[0, 1, 2, 5], [0, 0, 4, 3]])
    data["user"].x, data["item"].x = torch.rand(6, 4), torch.rand(5, 3)
    data["user", "buys", "item"].edge_index, data["item", "of", "user"].edge_index = pairs, pairs.flip(0)
    return data


class Buys(nn.Module):
    """A layer for each kind of edge."""

    def __init__(self, data):
        super().__init__()
        buys, of = SAGEConv((4, 3), 2), SAGEConv((3, 4), 2)
        self.conv = HeteroConv({("user", "buys", "item"): buys, ("item", "of", "user"): of})

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)


def own_sum(data):
    """Edges that come twice are counted twice, by `index_add`."""

    class Sum(nn.Module):
        def forward(self, x, edge_index):
            return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])

    return Sum()


def fails(data):
    raise RuntimeError("no such file")


@with_mistake
def fails_later(model, x, y):
    if model.calls.add_(1) > 3:
        raise RuntimeError("later")
    return y


def ends(data):
    raise SystemExit(3)


def exits(data):
    os._exit(7)


def no_module(data):
    return lambda x: x


@with_mistake
def hangs(model, x, y):
    time.sleep(60)
    return y


@with_mistake
def scales_its_weight(model, x, y):
    with torch.no_grad():
        model.lin.weight.mul_(0.9)
    return y


always_drops = with_mistake(lambda model, x, y: nn.functional.dropout(y, 0.5))
counts_its_calls = with_mistake(lambda model, x, y: y + model.calls.add_(1))
writes_to_x = with_mistake(lambda model, x, y: y + x.clamp_(max=0.5).sum())
gives_a_number = with_mistake(lambda model, x, y: (y, 3.0))
gives_nothing = with_mistake(lambda model, x, y: None)
gives_nan = with_mistake(lambda model, x, y: y / 0 - y / 0)


class wants_more(nn.Module):
    def forward(self, x, edge_index, positions):
        return x


def wants_other_sizes(data):
    return nn.Linear(data.num_features + 1, 3)
