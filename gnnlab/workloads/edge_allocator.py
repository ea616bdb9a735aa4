"""The edge allocator: on which node of an edge network should the next task run?

    state = random_states(1, (20, 20), seed=0)[0]
    x, edge_index = torch.from_numpy(features(state)), torch.from_numpy(edges(state))
    scores = load("hybrid")(x, edge_index)               # (20,), the highest is the choice
    state["nodes"][int(scores.argmax())]["node_id"]

`dqn` gives the value of each node and `ppo` a policy over the nodes, both from the nodes alone. `hybrid` sees what
stands around a node too: an encoder of three graph layers, and the sum of a value head and a policy head as score.
What a placement costs is stated in `edge_networks`; how the shipped weights were trained, and how to train others, in
`examples/train_edge_allocator.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from gnnlab.errors import GnnlabError
from gnnlab.workloads.edge_networks import NODE_TYPES, costs
from gnnswap.errors import quoted

MODEL_TYPES = ("dqn", "ppo", "hybrid")
LAYERS = 3
WIDTH = 2 + 4 + len(NODE_TYPES)  # numbers that the network sees of a node
DATA = Path(__file__).parent / "data"
SCALE = (5.0, 3.0, 5.0, 2.0)  # divisors of the logarithms, so that usual values come out about 1


class EdgeAllocator(nn.Module):
    """Scores of the nodes of a network, (N,), higher is better.

    `forward(x, edge_index, batch)`: x (N, 7) float as `features` gives it, unscaled; edge_index (2, E), both directions
    of each link; networks of a batch are one graph without links between them, so `batch` changes nothing: it is
    taken so that a PyG batch can be passed whole. The score of dqn is minus the logarithm of the expected cost in
    units of 100 ms, that of ppo a log-probability up to a constant of the network, that of hybrid the sum of both.
    """

    def __init__(self, model_type: str, hidden: int = 64) -> None:
        super().__init__()
        self.model_type = _known(model_type)
        self.register_buffer("scale", torch.tensor(SCALE), persistent=False)
        self.register_buffer("kinds", torch.arange(len(NODE_TYPES), dtype=torch.float32), persistent=False)
        if model_type == "hybrid":
            from torch_geometric.nn import SAGEConv  # seconds, which the weights alone do not need

            widths = [WIDTH] + [hidden] * LAYERS
            self.layers = nn.ModuleList(SAGEConv(a, b, aggr="sum") for a, b in pairwise(widths))
        else:
            self.layers = nn.ModuleList([nn.Linear(WIDTH, hidden), nn.Linear(hidden, hidden)])
        self.value = nn.Linear(hidden, 1) if model_type != "ppo" else None
        self.policy = nn.Linear(hidden, 1) if model_type != "dqn" else None

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        heads = [head for head in (self.value, self.policy) if head is not None]
        hidden = self.encode(x, edge_index)
        return sum(head(hidden) for head in heads).squeeze(-1)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """What the heads read, (N, hidden)."""
        out = self.scaled(x)
        for layer in self.layers:
            out = F.relu(layer(out, edge_index) if self.model_type == "hybrid" else layer(out))
        return out

    def scaled(self, x: Tensor) -> Tensor:
        """(N, 9): the utilizations as they are, logarithms of the four quantities, one column for each node type."""
        return torch.cat([x[:, :2], x[:, 2:6].log1p() / self.scale, (x[:, 6:] == self.kinds).to(x.dtype)], dim=1)


def load(model_type: str) -> EdgeAllocator:
    """The trained allocator, in evaluation mode on the CPU; raises `GnnlabError` for an unknown type."""
    return model_of(weights(model_type))


def weights(model_type: str) -> dict[str, Tensor]:
    """The trained weights by their names in a state_dict; raises `GnnlabError` for an unknown type."""
    return load_file(DATA / f"edge_allocator_{_known(model_type)}.safetensors")


def model_of(weights: Mapping[str, Tensor]) -> EdgeAllocator:
    """The allocator of these weights, in evaluation mode on the CPU."""
    heads = [name for name in ("value", "policy") if f"{name}.weight" in weights]
    model = EdgeAllocator("hybrid" if len(heads) == 2 else {"value": "dqn", "policy": "ppo"}[heads[0]])
    model.load_state_dict(weights)
    return model.eval()


def _known(model_type: str) -> str:
    if model_type not in MODEL_TYPES:
        raise GnnlabError(f"model_type {quoted(model_type)}: one of {', '.join(MODEL_TYPES)} is needed")
    return model_type


def regret(x: np.ndarray, edge_index: np.ndarray, chosen: Any, batch: np.ndarray | None = None) -> np.ndarray:
    """How many ms more than the best node the chosen one costs, (B,), at least 0.

    `x` (N, 7), `edge_index` (2, E), `chosen` (B,) a row of each network; `batch` (N,) the network of each row,
    0..B-1; None: all rows are one.
    """
    cost = costs(x, edge_index)
    network = np.zeros(len(cost), dtype=np.int64) if batch is None else np.asarray(batch)
    best = np.full(network.max() + 1, np.inf)
    np.minimum.at(best, network, cost)
    chosen = np.atleast_1d(np.asarray(chosen))
    return cost[chosen] - best[network[chosen]]
