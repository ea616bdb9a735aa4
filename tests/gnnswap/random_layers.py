"""Layers drawn at random: PyG's with drawn options, subclasses of them, and own layers from a grammar of messages.

Every layer maps (N, WIDTH) to (N, WIDTH), so that any of them can follow any other.
"""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

WIDTH, EDGE, TYPES = 6, 3, 3
GAIN = 1.0  # a global that messages read, changed between calls
SETTINGS = {"slope": 0.5}  # a dictionary that messages read
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "leaky": nn.LeakyReLU, "none": nn.Identity}
DEGREES = torch.tensor([2, 3, 4, 1])


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


def _attention_options(rng: random.Random, edges: bool) -> dict:
    return {
        "edge_dim": EDGE if edges else None,
        "negative_slope": rng.choice([0.2, 0.5]),
        "dropout": rng.choice([0.0, 0.0, 0.3]),
        "add_self_loops": rng.random() < 0.7,
        "fill_value": rng.choice(["mean", "max", 0.5]),
        "bias": rng.random() < 0.7,
        "residual": rng.random() < 0.3,
        **rng.choice([{"heads": 2, "out_channels": 3}, {"heads": 2, "out_channels": WIDTH, "concat": False}]),
    }


def _gat(rng):
    edges = rng.random() < 0.3
    return pyg.GATConv(WIDTH, **_attention_options(rng, edges)), {"edge_attr": "attr"} if edges else {}


def _gatv2(rng):
    edges = rng.random() < 0.3
    layer = pyg.GATv2Conv(WIDTH, share_weights=rng.random() < 0.3, **_attention_options(rng, edges))
    return layer, {"edge_attr": "attr"} if edges else {}


def _transformer(rng):
    edges = rng.random() < 0.3
    layer = pyg.TransformerConv(
        WIDTH,
        3,
        heads=2,
        beta=rng.random() < 0.4,
        dropout=rng.choice([0.0, 0.3]),
        edge_dim=EDGE if edges else None,
        root_weight=rng.random() < 0.7,
    )
    return layer, {"edge_attr": "attr"} if edges else {}


def _gcn(rng):
    normalize = rng.random() < 0.8
    layer = pyg.GCNConv(
        WIDTH,
        WIDTH,
        improved=rng.random() < 0.3,
        add_self_loops=normalize and rng.random() < 0.7,
        normalize=normalize,
        bias=rng.random() < 0.7,
        aggr=rng.choice(["add", "add", "add", "mean", "max"]),
    )
    return layer, _maybe_weighted(rng)


def _sage(rng):
    aggr = rng.choice(["mean", "mean", "sum", "max", "std", ["mean", "max"]])
    layer = pyg.SAGEConv(
        WIDTH,
        WIDTH,
        aggr=aggr,
        normalize=rng.random() < 0.3,
        root_weight=rng.random() < 0.7,
        project=rng.random() < 0.2,
    )
    return layer, {}


def _pna(rng):
    aggregators = rng.sample(["mean", "min", "max", "std", "sum", "var"], 3)
    scalers = rng.sample(["identity", "amplification", "attenuation", "linear", "inverse_linear"], 2)
    towers = rng.choice([1, 2])
    layer = pyg.PNAConv(WIDTH, WIDTH, aggregators, scalers, DEGREES, towers=towers, pre_layers=rng.choice([1, 2]))
    return layer, {}


def _rgcn(rng):
    kind = rng.choice([pyg.RGCNConv, pyg.FastRGCNConv])
    more = rng.choice([{}, {"num_bases": 2}, {"num_blocks": 2}])
    return kind(WIDTH, WIDTH, TYPES, aggr=rng.choice(["mean", "add"]), **more), {"edge_type": "types"}


def _gen(rng):
    edges = rng.random() < 0.3
    aggr = rng.choice(["softmax", "softmax", "powermean", "max", "mean"])
    layer = pyg.GENConv(
        WIDTH, WIDTH, aggr=aggr, norm="layer", learn_t=rng.random() < 0.5, edge_dim=EDGE if edges else None
    )
    return layer, {"edge_attr": "attr"} if edges else {}


def _cg(rng):
    edges = rng.random() < 0.5
    layer = pyg.CGConv(WIDTH, EDGE if edges else 0, aggr=rng.choice(["add", "mean"]), batch_norm=rng.random() < 0.3)
    return layer, {"edge_attr": "attr"} if edges else {}


def _maybe_weighted(rng, name: str = "edge_weight") -> dict:
    return {name: "weight"} if rng.random() < 0.5 else {}


STOCK = {
    "GCN": _gcn,
    "GAT": _gat,
    "GATv2": _gatv2,
    "Transformer": _transformer,
    "SAGE": _sage,
    "PNA": _pna,
    "RGCN": _rgcn,
    "GEN": _gen,
    "CG": _cg,
    "GIN": lambda rng: (pyg.GINConv(network(rng), eps=rng.choice([0.0, 0.3]), train_eps=rng.random() < 0.5), {}),
    "GINE": lambda rng: (
        pyg.GINEConv(nn.Sequential(nn.Linear(WIDTH, 8), network(rng, 8)), edge_dim=EDGE),
        {"edge_attr": "attr"},
    ),
    "Graph": lambda rng: (pyg.GraphConv(WIDTH, WIDTH, aggr=rng.choice(["add", "mean", "max"])), _maybe_weighted(rng)),
    "Edge": lambda rng: (pyg.EdgeConv(network(rng, 2 * WIDTH), aggr=rng.choice(["max", "add", "mean"])), {}),
    "NN": lambda rng: (
        pyg.NNConv(WIDTH, WIDTH, network(rng, EDGE, WIDTH * WIDTH), aggr=rng.choice(["add", "mean"])),
        {"edge_attr": "attr"},
    ),
    "TAG": lambda rng: (pyg.TAGConv(WIDTH, WIDTH, K=2, normalize=rng.random() < 0.8), _maybe_weighted(rng)),
    "Cheb": lambda rng: (pyg.ChebConv(WIDTH, WIDTH, 3), _maybe_weighted(rng)),
    "APPNP": lambda rng: (pyg.APPNP(2, 0.1, dropout=rng.choice([0.0, 0.3])), _maybe_weighted(rng)),
    "SG": lambda rng: (pyg.SGConv(WIDTH, WIDTH, K=2), _maybe_weighted(rng)),
    "SSG": lambda rng: (pyg.SSGConv(WIDTH, WIDTH, alpha=0.1, K=2), _maybe_weighted(rng)),
    "ARMA": lambda rng: (pyg.ARMAConv(WIDTH, WIDTH, num_stacks=2, num_layers=2), _maybe_weighted(rng)),
    "LG": lambda rng: (pyg.LGConv(normalize=rng.random() < 0.7), _maybe_weighted(rng)),
    "LE": lambda rng: (pyg.LEConv(WIDTH, WIDTH), _maybe_weighted(rng)),
    "ClusterGCN": lambda rng: (pyg.ClusterGCNConv(WIDTH, WIDTH, diag_lambda=rng.choice([0.0, 0.5])), {}),
    "ResGated": lambda rng: (pyg.ResGatedGraphConv(WIDTH, WIDTH), {}),
    "FiLM": lambda rng: (pyg.FiLMConv(WIDTH, WIDTH), {}),
    "SuperGAT": lambda rng: (pyg.SuperGATConv(WIDTH, 3, heads=2), {}),
    "GatedGraph": lambda rng: (pyg.GatedGraphConv(WIDTH, 2), _maybe_weighted(rng)),
    "EG": lambda rng: (pyg.EGConv(WIDTH, WIDTH, num_heads=2, aggregators=["sum", "max", "symnorm"]), {}),
    "MF": lambda rng: (pyg.MFConv(WIDTH, WIDTH), {}),
    "AGNN": lambda rng: (pyg.AGNNConv(), {}),
    "Simple": lambda rng: (pyg.SimpleConv(aggr=rng.choice(["sum", "mean", "max"])), _maybe_weighted(rng)),
    "GMM": lambda rng: (pyg.GMMConv(WIDTH, WIDTH, EDGE, 2), {"edge_attr": "attr"}),
    "General": lambda rng: (pyg.GeneralConv(WIDTH, WIDTH, attention=rng.random() < 0.5), {}),
}
# the layers that most people use come more often
OFTEN = ["GCN", "GAT", "GATv2", "SAGE", "GIN", "Graph", "Transformer", "Edge"]

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

    return OwnPlain(rng), {}


def _weighted(rng):
    class OwnWeighted(Own):
        weighted = True

        def forward(self, x, edge_index, weight, tau=1.0, mode="plain"):
            return self.propagate(edge_index, x=self.lin(x), weight=weight, tau=tau, mode=mode)

        def message(self, x_j, weight, tau, mode):
            return self.stepped(x_j, weight=weight, tau=tau, mode=mode)

    return OwnWeighted(rng), {"weight": "weight", "tau": "tau", "mode": "mode"}


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

    return OwnEnds(rng), {}


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

    return OwnAttention(rng), {}


def _updated(rng):
    class OwnUpdated(Own):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return self.stepped(x_j)

        def update(self, inputs, x):
            return self.lin(inputs) + self.scale * x

    return OwnUpdated(rng), {}


def _counting_gcn(rng):
    class CountingGCN(pyg.GCNConv):
        def __init__(self):
            super().__init__(WIDTH, WIDTH)
            self.calls, self.log = 0, []

        def forward(self, x, edge_index, edge_weight=None):
            self.calls += 1
            return super().forward(x, edge_index, edge_weight)

    return CountingGCN(), _maybe_weighted(rng)


def _renamed_sage(rng):
    class PlainSAGE(pyg.SAGEConv):  # overrides nothing
        pass

    return PlainSAGE(WIDTH, WIDTH), {}


def _message_of_its_own(rng):
    class ScaledGraph(pyg.GraphConv):
        def message(self, x_j, edge_weight):
            return GAIN * (x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j)

    return ScaledGraph(WIDTH, WIDTH), _maybe_weighted(rng)


def _noting_gatv2(rng):
    class NotingGATv2(pyg.GATv2Conv):
        def __init__(self):
            super().__init__(WIDTH, 3, heads=2)
            self.calls, self.log = 0, []

        def edge_update(self, x_j, x_i, edge_attr, index, ptr, dim_size):
            alpha = super().edge_update(x_j, x_i, edge_attr, index, ptr, dim_size)
            self.log.append(float(alpha.detach().sum()))
            return alpha

    return NotingGATv2(), {}


OWN = [_plain, _weighted, _ends, _attention, _updated]
SUBCLASSES = [_counting_gcn, _renamed_sage, _message_of_its_own, _noting_gatv2]


def layer(rng: random.Random) -> tuple[MessagePassing, dict[str, str]]:
    """(a layer, what it is called with beside x and edges: {its argument: a name of `random_models.Inputs`})."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(OWN)(rng)
    if kind < 0.6:
        return rng.choice(SUBCLASSES)(rng)
    return STOCK[rng.choice(OFTEN if rng.random() < 0.5 else list(STOCK))](rng)
