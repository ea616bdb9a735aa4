"""Layers drawn at random: PyG's of layer_cases, subclasses of them, and own layers from a grammar of messages.

All take (N, WIDTH), so that any of them can follow any other whose output is cut or padded to WIDTH columns.
"""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from layer_cases import CASES
from layer_cases import IN as WIDTH
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

GAIN = 1.0  # a global that messages read, changed between calls
SETTINGS = {"slope": 0.5}  # a dictionary that messages read
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "leaky": nn.LeakyReLU, "none": nn.Identity}


def network(rng: random.Random, given: int = WIDTH, out: int = WIDTH) -> nn.Module:
    """A small network from `given` to `out` columns."""
    kind = rng.choice(["one", "two", "norm", "mlp", "dropout", "activation first"])
    act = ACTIVATIONS[rng.choice(["relu", "tanh", "leaky"])]
    parts = {
        "one": [nn.Linear(given, out)],
        "two": [nn.Linear(given, 8), act(), nn.Linear(8, out)],
        "norm": [nn.Linear(given, 8), nn.BatchNorm1d(8), act(), nn.Linear(8, out)],
        "dropout": [nn.Linear(given, 8), nn.Dropout(0.3), nn.Linear(8, out)],
        "activation first": [act(), nn.Linear(given, out, bias=False)],
    }
    if kind == "mlp":
        return pyg.MLP([given, 5, out], norm=rng.choice([None, "layer_norm"]), dropout=rng.choice([0.0, 0.2]))
    return nn.Sequential(*parts[kind])


# layers of PyG with options; what they take beside x and edges has a name in `random_models.Inputs`
STOCK = {name: kind for name, (_, kind) in CASES.items() if kind in ("", "weight", "attr", "types", "wide")}
# the layers that most people use come more often
OFTEN = [name for name in STOCK if name.startswith(("GCN", "GAT", "SAGE", "GIN", "Graph", "Transformer", "Edge"))]

# what a message may do to its rows: (layer, rows, what else the message was given) -> rows
STEPS = {
    "times weight": lambda layer, rows, given: rows * given["weight"].view(-1, 1),
    "over tau": lambda layer, rows, given: rows / given["tau"],
    "times gain": lambda layer, rows, given: rows * GAIN,
    "times setting": lambda layer, rows, given: SETTINGS["slope"] * rows,
    "times scale": lambda layer, rows, given: rows * layer.scale,
    "times numpy scale": lambda layer, rows, given: rows * np.float64(layer.scale),
    "times factor": lambda layer, rows, given: rows * layer.factor,
    "times closure": lambda layer, rows, given: layer.closure(rows),
    "mode": lambda layer, rows, given: rows if given["mode"] == "plain" else rows * given["weight"].view(-1, 1),
    "epoch": lambda layer, rows, given: rows if layer.epoch < 2 else rows.relu(),
    "double": lambda layer, rows, given: rows + rows,
    "minus": lambda layer, rows, given: -rows,
    "count": lambda layer, rows, given: _count(layer, rows),
    "note": lambda layer, rows, given: _note(layer, rows),
    "inner": lambda layer, rows, given: layer.inner(rows),
    "plus weight": lambda layer, rows, given: rows + given["weight"].view(-1, 1),
    "plus tau": lambda layer, rows, given: rows + given["tau"],
    "relu": lambda layer, rows, given: rows.relu(),
    "clamp": lambda layer, rows, given: rows.clamp(-10, 10),
    "where": lambda layer, rows, given: torch.where(rows.abs() < 5, rows, torch.zeros_like(rows)),
    "tanh": lambda layer, rows, given: torch.tanh(rows),
    "square": lambda layer, rows, given: rows * rows,
    "nan to num": lambda layer, rows, given: torch.nan_to_num(rows),
    "dropout": lambda layer, rows, given: F.dropout(rows, 0.3, layer.training),
    "noise": lambda layer, rows, given: rows * torch.rand(rows.shape[-2], 1, dtype=rows.dtype),
}
LINEAR_STEPS = list(STEPS)[: list(STEPS).index("plus weight")]
NEEDS_WEIGHT = {"times weight", "over tau", "mode", "plus weight", "plus tau"}


def _count(layer, rows):
    layer.calls += 1
    return rows


def _note(layer, rows):
    layer.log.append(float(rows.detach().sum()))
    return rows


class Own(MessagePassing):
    """What own layers share: the attributes that their messages read, and the steps of a message."""

    def __init__(self, rng: random.Random, aggr: str | None = None):
        super().__init__(aggr=aggr or rng.choice(["add", "add", "mean", "max"]))
        self.lin = nn.Linear(WIDTH, WIDTH) if rng.random() < 0.7 else nn.Identity()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=rng.random() < 0.5)
        self.factor = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.scale, self.epoch, self.calls, self.log = rng.choice([0.5, 2.0]), 0, 0, []
        share = rng.choice([0.0, 0.0, 0.3])  # of steps that are not linear in the rows
        names = [name for name in STEPS if self.weighted or name not in NEEDS_WEIGHT]
        linear = [name for name in names if name in LINEAR_STEPS]
        self.steps = [rng.choice(names if rng.random() < share else linear) for _ in range(rng.randint(0, 3))]
        factor = rng.choice([0.5, 3.0])
        self.closure = lambda rows: rows * factor

    weighted = False

    def stepped(self, rows, **given):
        for step in self.steps:
            rows = STEPS[step](self, rows, given)
        return rows


# Each of these makes a new class: what is known of a class must not decide what becomes of the next sequence.
# Of two classes with one name PyG uses the first one's `propagate`: so the name goes with the arguments.


def _plain(rng):
    class OwnPlain(Own):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_j):
            return self.stepped(x_j)

    return OwnPlain(rng), ()


def _weighted(rng):
    class OwnWeighted(Own):
        weighted = True

        def forward(self, x, edge_index, weight, tau=1.0, mode="plain"):
            return self.propagate(edge_index, x=self.lin(x), weight=weight, tau=tau, mode=mode)

        def message(self, x_j, weight, tau, mode):
            return self.stepped(x_j, weight=weight, tau=tau, mode=mode)

    return OwnWeighted(rng), ("weight", "tau", "mode")


def _ends(rng):
    joined = rng.choice(["difference", "sum", "product", "concatenated"])

    class OwnEnds(Own):
        def __init__(self, rng):
            super().__init__(rng)
            self.joined, self.pair = joined, nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_i, x_j):
            if self.joined == "concatenated":
                rows = self.pair(torch.cat([x_i, x_j], -1))
            elif self.joined == "product":
                rows = x_i * x_j
            else:
                rows = x_j - x_i if self.joined == "difference" else x_i + x_j
            return self.stepped(rows)

    return OwnEnds(rng), ()


def _attention(rng):
    class OwnAttention(Own):
        def __init__(self, rng):
            super().__init__(rng, "add")
            self.source, self.target = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

        def forward(self, x, edge_index):
            h = self.lin(x)
            s, t = (h @ self.source).unsqueeze(-1), (h @ self.target).unsqueeze(-1)
            return self.propagate(edge_index, h=h, s=s, t=t)

        def message(self, h_j, s_j, t_i, index, ptr, size_i):
            return self.stepped(h_j) * softmax(torch.tanh(s_j + t_i) / GAIN, index, ptr, size_i)

    return OwnAttention(rng), ()


def _updated(rng):
    class OwnUpdated(Own):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return self.stepped(x_j)

        def update(self, inputs, x):
            return self.lin(inputs) + self.scale * x

    return OwnUpdated(rng), ()


def _counting_gcn(rng):
    class CountingGCN(pyg.GCNConv):
        def __init__(self):
            super().__init__(WIDTH, WIDTH)
            self.calls, self.log = 0, []

        def forward(self, x, edge_index, edge_weight=None):
            self.calls += 1
            return super().forward(x, edge_index, edge_weight)

    return CountingGCN(), rng.choice([(), ("weight",)])


def _renamed_sage(rng):
    class PlainSAGE(pyg.SAGEConv):  # overrides nothing
        pass

    return PlainSAGE(WIDTH, WIDTH), ()


def _message_of_its_own(rng):
    class ScaledGraph(pyg.GraphConv):
        def message(self, x_j, edge_weight):
            return GAIN * (x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j)

    return ScaledGraph(WIDTH, WIDTH), rng.choice([(), ("weight",)])


def _noting_gatv2(rng):
    class NotingGATv2(pyg.GATv2Conv):
        def __init__(self):
            super().__init__(WIDTH, 3, heads=2)
            self.calls, self.log = 0, []

        def edge_update(self, x_j, x_i, edge_attr, index, ptr, dim_size):
            alpha = super().edge_update(x_j, x_i, edge_attr, index, ptr, dim_size)
            self.log.append(float(alpha.detach().sum()))
            return alpha

    return NotingGATv2(), ()


OWN = [_plain, _weighted, _ends, _attention, _updated]
SUBCLASSES = [_counting_gcn, _renamed_sage, _message_of_its_own, _noting_gatv2]


def layer(rng: random.Random) -> tuple[nn.Module, tuple[str, ...]]:
    """(a layer, the names of what it is called with beside x and edges)."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(OWN)(rng)
    if kind < 0.6:
        return rng.choice(SUBCLASSES)(rng)
    name = rng.choice(OFTEN if rng.random() < 0.5 else list(STOCK))
    optional = STOCK[name] == "weight" and rng.random() < 0.5
    return CASES[name][0](), (STOCK[name],) if STOCK[name] and not optional else ()
