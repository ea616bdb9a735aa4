"""GraphSAGE's layer (Hamilton et al. 2017, mean aggregation) as the seven stages of S4.

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
x, which moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.workloads.staged import EDGES, NODES, Reduction, Stage, StagedLayer, Step, Value

if TYPE_CHECKING:
    from torch_geometric.data import Data  # every worker of a unit imports this module, and PyG takes seconds

GRAPH_SEED = 42
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
