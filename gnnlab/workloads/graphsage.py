"""Two layers as the seven stages of S4: GraphSAGE's (Hamilton et al. 2017, mean aggregation), and GAT's beside it.

| # | stage | computes | bytes in and out |
|---|---|---|---|
| 1 | GATHER | x_j = x[source], (E, F) | 4 N F + 16 E + 4 E F |
| 2 | MESSAGE | messages = x_j | 8 E F |
| 3 | REDUCE_SUM | sums over targets, (N, F) | 4 E F + 16 E + 4 N F |
| 4 | REDUCE_COUNT | counts: edges into each node, (N) | 16 E + 4 N |
| 5 | NORMALIZE | means = sums / max(counts, 1) | 8 N F + 4 N |
| 6 | TRANSFORM | hidden = W_l means + b + W_r x, (N, F') | 8 N F + 4 N F' |
| 7 | ACTIVATE | out = max(hidden, 0) | 8 N F' |

Together they equal PyG's `SAGEConv` followed by ReLU. Stages 3 and 4 need N as a number only: they look at the shape of
x, which moves nothing. A graph attention layer (Velickovic et al. 2018):

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

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.workloads.staged import EDGES, NODES, Reduction, Stage, StagedLayer, Step, Value

if TYPE_CHECKING:
    from torch_geometric.data import Data  # every worker of a unit imports this module, and PyG takes seconds

GRAPH_SEED = 42
NEGATIVE_SLOPE = 0.2
TINY = 1e-16  # what PyG adds to a softmax's denominator
Add = Callable[[Tensor, Tensor, Tensor], Tensor]  # as `Reduction.add`


def sage(features: int = 500, out_features: int | None = None, seed: int = 0) -> StagedLayer:
    """GraphSAGE's layer with weights drawn from `seed`; `out_features` is `features` where it is None.

    Raises `GnnlabError`: a width below 1.
    """
    f, o = features, features if out_features is None else out_features
    whole_numbers(1, features=int(f), out_features=int(o))  # which a table gives as numbers of numpy
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transform = SageTransform(f, o).requires_grad_(False)
    gather = Step(lambda x, edge_index: x.index_select(0, edge_index[0]))
    normalize = Step(lambda sums, counts: sums / counts.clamp(min=1).view(-1, 1))
    count = Reduction(lambda add, edge_index, x: sum_over_targets(add, x.new_ones(edge_index.shape[1]), edge_index, x))
    stages = (
        Stage(1, "GATHER", ("x", "edge_index"), "x_j", gather, lambda n, e: 0),
        Stage(2, "MESSAGE", ("x_j",), "messages", nn.Identity(), lambda n, e: 0),
        Stage(
            3, "REDUCE_SUM", ("messages", "edge_index"), "sums", Reduction(sum_over_targets), lambda n, e: e * f, "x"
        ),
        Stage(4, "REDUCE_COUNT", ("edge_index",), "counts", count, lambda n, e: e, "x"),
        Stage(5, "NORMALIZE", ("sums", "counts"), "means", normalize, lambda n, e: n * f + n),
        Stage(6, "TRANSFORM", ("means", "x"), "hidden", transform, lambda n, e: 4 * n * f * o + 2 * n * o),
        Stage(7, "ACTIVATE", ("hidden",), "out", nn.ReLU(), lambda n, e: n * o),
    )
    per_edge, per_node, out = Value((EDGES, f)), Value((NODES, f)), Value((NODES, o))
    values = {"x": per_node, "edge_index": Value((2, EDGES), torch.int64), "x_j": per_edge, "messages": per_edge}
    values |= {"sums": per_node, "counts": Value((NODES,)), "means": per_node, "hidden": out, "out": out}
    return StagedLayer("sage", f, stages, values)


class SageTransform(nn.Module):
    """The weights of `SAGEConv`, under its names."""

    def __init__(self, features: int, out_features: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(features, out_features)
        self.lin_r = nn.Linear(features, out_features, bias=False)

    def forward(self, means: Tensor, x: Tensor) -> Tensor:
        return self.lin_l(means) + self.lin_r(x)


def sum_over_targets(add: Add, rows: Tensor, edge_index: Tensor, x: Tensor) -> Tensor:
    """Of `rows` (E, ...), one for each edge, the sums over the edges into each node, (N, ...)."""
    return add(rows.new_zeros(x.shape[0], *rows.shape[1:]), edge_index[1], rows)


def gat(features: int = 500, heads: int = 4, channels: int = 64, seed: int = 0) -> StagedLayer:
    """A GAT layer whose heads are concatenated, with weights drawn from `seed`.

    Raises `GnnlabError`: a width below 1.
    """
    whole_numbers(1, features=int(features), heads=int(heads), channels=int(channels))
    h, w = heads, heads * channels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        linear, score, activate = nn.Linear(features, w, bias=False), GatScore(heads, channels), GatActivate(w)
    for module in (linear, score, activate):
        module.requires_grad_(False)
    gather = Step(lambda h, edge_index: h.index_select(0, edge_index.reshape(-1)).view(2, -1, w))  # (2, E, H C)
    weight = Step(lambda pairs, alpha: (pairs[0].view(-1, heads, channels) * alpha.unsqueeze(-1)).flatten(1))
    stages = (
        Stage(1, "LINEAR", ("x",), "h", linear, lambda n, e: 2 * n * features * w),
        Stage(2, "GATHER_BOTH", ("h", "edge_index"), "pairs", gather, lambda n, e: 0),
        Stage(3, "SCORE", ("pairs",), "scores", score, lambda n, e: 4 * e * w + e * h),
        Stage(4, "SOFTMAX", ("scores", "edge_index"), "alpha", Reduction(softmax), lambda n, e: 5 * e * h, "x"),
        Stage(5, "WEIGHT", ("pairs", "alpha"), "weighted", weight, lambda n, e: e * w),
        Stage(6, "SUM", ("weighted", "edge_index"), "sums", Reduction(sum_over_targets), lambda n, e: e * w, "x"),
        Stage(7, "ACTIVATE", ("sums",), "out", activate, lambda n, e: 3 * n * w),
    )
    per_node, per_head = Value((NODES, w)), Value((EDGES, h))
    values = {"x": Value((NODES, features)), "edge_index": Value((2, EDGES), torch.int64), "h": per_node}
    values |= {"pairs": Value((2, EDGES, w)), "scores": per_head, "alpha": per_head}
    values |= {"weighted": Value((EDGES, w)), "sums": per_node, "out": per_node}
    return StagedLayer("gat", features, stages, values)


class GatScore(nn.Module):
    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.att = nn.Parameter(torch.empty(2, 1, heads, channels))  # of source, of target
        nn.init.xavier_uniform_(self.att)

    def forward(self, pairs: Tensor) -> Tensor:
        scores = (pairs.view(2, -1, *self.att.shape[2:]) * self.att).sum(dim=-1)  # (2, E, H)
        return F.leaky_relu(scores[0] + scores[1], NEGATIVE_SLOPE)


def softmax(add: Add, scores: Tensor, edge_index: Tensor, x: Tensor) -> Tensor:
    """Of `scores` (E, H) over the edges into the same target, in the same shape."""
    target = edge_index[1]
    index = target.view(-1, 1).expand_as(scores)
    lowest = scores.new_full((x.shape[0], scores.shape[1]), torch.finfo(scores.dtype).min)
    highest = lowest.scatter_reduce(0, index, scores, "amax", include_self=True)  # (N, H)
    exponential = (scores - highest.index_select(0, target)).exp()
    total = add(torch.zeros_like(lowest), target, exponential)
    return exponential / (total.index_select(0, target) + TINY)


class GatActivate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width) / 10)  # zeros, as PyG has it, would be optimized away

    def forward(self, sums: Tensor) -> Tensor:
        return F.elu(sums + self.bias)


LAYERS = {"sage": sage, "gat": gat}


def inputs_of(graph: Data, features: int) -> dict[str, Tensor]:
    """`x` (N, F) and `edge_index` (2, E) of a graph: its own features where they have that width, else drawn ones."""
    own = graph.x is not None and graph.x.dim() == 2 and graph.x.shape[1] == features
    x = graph.x.float() if own else random_inputs(int(graph.num_nodes), 0, features)["x"]
    return {"x": x.contiguous(), "edge_index": graph.edge_index.contiguous()}


def random_inputs(nodes: int, edges: int, features: int, seed: int = GRAPH_SEED) -> dict[str, Tensor]:
    """`x` (N, F) standard normal and `edge_index` (2, E) int64 in random order; the same for the same numbers.

    Ends are drawn with replacement, so that targets repeat, edges may occur twice, and the last node (of two and more)
    is no edge's target.
    Raises `GnnlabError`: no node, or edges without a node to end in.
    """
    if nodes < 1 or edges < 0 or features < 1:
        raise GnnlabError(f"random graph of {nodes} nodes, {edges} edges, {features} features: 1, 0, 1 at least")
    random = torch.Generator().manual_seed(seed * 1_000_003 + nodes * 7_919 + edges)
    x = torch.randn(nodes, features, generator=random)
    source = torch.randint(nodes, (edges,), generator=random)
    target = torch.randint(max(nodes - 1, 1), (edges,), generator=random)
    return {"x": x, "edge_index": torch.stack([source, target])}
