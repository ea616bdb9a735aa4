"""A graph attention layer (Velickovic et al. 2018) as seven stages.

| # | stage | computes |
|---|---|---|
| 1 | LINEAR | h = W x, (N, H C) |
| 2 | GATHER_BOTH | pairs: h[source] and h[target], (2, E, H C) |
| 3 | SCORE | scores = LeakyReLU(a_src . h[source] + a_dst . h[target]), (E, H) |
| 4 | SOFTMAX | alpha: scores over the edges into the same target, (E, H) |
| 5 | WEIGHT | weighted = alpha h[source], (E, H C) |
| 6 | SUM | sums over targets, (N, H C) |
| 7 | ACTIVATE | out = ELU(sums + b) |

Together they equal PyG's `GATConv(features, channels, heads, add_self_loops=False)` followed by ELU. Self-loops are
edges like others: who wants them puts them into `edge_index`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnnlab.errors import GnnlabError
from gnnlab.workloads.staged import EDGES, NODES, Reduction, Stage, StagedLayer, Value

NEGATIVE_SLOPE = 0.2
TINY = 1e-16  # what PyG adds to a softmax's denominator


def gat(features: int = 500, heads: int = 4, channels: int = 64, seed: int = 0) -> StagedLayer:
    """A GAT layer whose heads are concatenated, with weights drawn from `seed`.

    Raises:
        GnnlabError: a width below 1.
    """
    if min(features, heads, channels) < 1:
        raise GnnlabError(f"gat: features={features}, heads={heads}, channels={channels}; at least 1 each is needed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        linear, score, activate = Linear(features, heads * channels), Score(heads, channels), Activate(heads * channels)
    for module in (linear, score, activate):
        module.requires_grad_(False)
    h, w = heads, heads * channels
    stages = (
        Stage(1, "LINEAR", ("x",), "h", linear, lambda n, e: 2 * n * features * w),
        Stage(2, "GATHER_BOTH", ("h", "edge_index"), "pairs", GatherBoth(), lambda n, e: 0),
        Stage(3, "SCORE", ("pairs",), "scores", score, lambda n, e: 4 * e * w + e * h),
        Stage(4, "SOFTMAX", ("scores", "edge_index"), "alpha", Softmax(), lambda n, e: 5 * e * h, "x"),
        Stage(5, "WEIGHT", ("pairs", "alpha"), "weighted", Weight(heads, channels), lambda n, e: e * w),
        Stage(6, "SUM", ("weighted", "edge_index"), "sums", Sum(), lambda n, e: e * w, "x"),
        Stage(7, "ACTIVATE", ("sums",), "out", activate, lambda n, e: 3 * n * w),
    )
    per_node, per_head = Value((NODES, w)), Value((EDGES, h))
    values = {"x": Value((NODES, features)), "edge_index": Value((2, EDGES), torch.int64), "h": per_node}
    values |= {"pairs": Value((2, EDGES, w)), "scores": per_head, "alpha": per_head}
    values |= {"weighted": Value((EDGES, w)), "sums": per_node, "out": per_node}
    return StagedLayer("gat", features, stages, values)


class Linear(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(features, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x)


class GatherBoth(nn.Module):
    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        return h.index_select(0, edge_index.reshape(-1)).view(2, -1, h.shape[1])  # (2, E, H C)


class Score(nn.Module):
    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.att = nn.Parameter(torch.empty(2, 1, heads, channels))  # of source, of target
        nn.init.xavier_uniform_(self.att)

    def forward(self, pairs: Tensor) -> Tensor:
        heads, channels = self.att.shape[2:]
        scores = (pairs.view(2, -1, heads, channels) * self.att).sum(dim=-1)  # (2, E, H)
        return F.leaky_relu(scores[0] + scores[1], NEGATIVE_SLOPE)


class Softmax(Reduction):
    def forward(self, scores: Tensor, edge_index: Tensor, x: Tensor) -> Tensor:
        target = edge_index[1]
        index = target.view(-1, 1).expand_as(scores)
        lowest = scores.new_full((x.shape[0], scores.shape[1]), torch.finfo(scores.dtype).min)
        highest = lowest.scatter_reduce(0, index, scores, "amax", include_self=True)  # (N, H)
        exponential = (scores - highest.index_select(0, target)).exp()
        total = self.summed(torch.zeros_like(lowest), target, exponential)
        return exponential / (total.index_select(0, target) + TINY)


class Weight(nn.Module):
    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.heads, self.channels = heads, channels

    def forward(self, pairs: Tensor, alpha: Tensor) -> Tensor:
        return (pairs[0].view(-1, self.heads, self.channels) * alpha.unsqueeze(-1)).flatten(1)


class Sum(Reduction):
    def forward(self, weighted: Tensor, edge_index: Tensor, x: Tensor) -> Tensor:
        return self.summed(weighted.new_zeros(x.shape[0], weighted.shape[1]), edge_index[1], weighted)


class Activate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width) / 10)  # zeros, as PyG has it, would be optimized away

    def forward(self, sums: Tensor) -> Tensor:
        return F.elu(sums + self.bias)
