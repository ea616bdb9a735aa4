"""The model of S0: a graph attention network that embeds the symptom graph, as it was, flaws included.

Embedding(N, 64) -> GATConv(64, 128, heads=4) -> ELU -> dropout 0.1 -> GATConv(512, 256, heads=1) -> mean over nodes
-> one row a batch entry. On the 58 symptoms: 169,856 parameters.

What a reader should notice, and the lab's detectors do: the edge weights are stored and never used; nothing goes in,
so in eval the output is a constant; and all rows of a batch are the same. These are left as they are, because the
claims of the study are measured against them.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from gnnlab.errors import whole_numbers

FACTS = Path(__file__).parent / "data" / "symptom_cliques.json"


class SymptomGAT(nn.Module):
    """`model(batch_size)` -> (batch_size, 256), the embedding of a fixed graph, once a row.

    Buffers: `edge_index` int64 (2, E) and `edge_weight` float32 (E,), ones where the graph has none. What the study
    calls optimized are variants of it in notebook 02, which shows them. `RewrittenSymptomGAT` computes the same faster.
    """

    def __init__(self, num_nodes: int, edge_index: Tensor, edge_weight: Tensor | None = None):
        super().__init__()
        self.num_nodes = num_nodes
        self.node_embeddings = nn.Embedding(num_nodes, 64)
        self.gat1 = GATConv(64, 128, heads=4)
        self.dropout = nn.Dropout(0.1)
        self.gat2 = GATConv(4 * 128, 256, heads=1)
        weight = torch.ones(edge_index.size(1)) if edge_weight is None else edge_weight
        self.register_buffer("edge_index", edge_index.clone())
        self.register_buffer("edge_weight", weight.clone())

    @classmethod
    def from_graph(cls, data: Data) -> SymptomGAT:
        """The same network on any graph; of `data` only the edges and their weights are taken."""
        return cls(int(data.num_nodes), data.edge_index, data.get("edge_weight"))

    def forward(self, batch_size: int = 1) -> Tensor:
        whole_numbers(1, batch_size=batch_size)
        ids = torch.arange(self.num_nodes, device=self.edge_index.device)
        x = self.node_embeddings(ids)  # (N, 64)
        x = self.dropout(F.elu(self.gat1(x, self.edge_index)))  # (N, 512)
        x = self.gat2(x, self.edge_index)  # (N, 256)
        return x.mean(dim=0, keepdim=True).repeat(batch_size, 1)


def symptom_graph() -> Data:
    """The graph of the study: 58 nodes, 776 directed edges, degree 8..43, from the ten cliques of its conditions.

    Symptoms are nodes; those of one condition are all joined with each other, edges ordered by source, then target.
    `edge_weight` (E,) is the number of cliques that hold both ends, divided by the largest such number.
    """
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    counts = torch.zeros(facts["nodes"], facts["nodes"])
    for clique in facts["cliques"]:
        members = torch.tensor(clique, dtype=torch.int64)
        counts[members[:, None], members] += 1
    counts.fill_diagonal_(0)
    edge_index = counts.nonzero().t().contiguous()  # (2, E)
    weight = counts[edge_index[0], edge_index[1]]
    return Data(edge_index=edge_index, edge_weight=weight / counts.max(), num_nodes=facts["nodes"])


class RewrittenSymptomGAT(nn.Module):
    """`rewritten(batch_size)` -> (batch_size, 256), what `SymptomGAT` gives in eval on the edges that it has now, with
    less work: what is computed at every call, in products over N nodes. Weights are shared.

    Each step is exact up to rounding (H heads, C channels a head, F inputs):

    - The ids are 0..N-1, so the embedding table itself is x: nothing is gathered.
    - Scores are folded into the weights: a . (W x) = (a W) . x, two rows a head instead of H C columns.
    - Attention is a dense masked softmax over all nodes, where an edge that comes k times counts as + log k.
    - Layer 1 sums 64 columns a head before the product with W, not 128 behind it.
    - The mean over nodes is taken before the product of layer 2, which shrinks from N rows to one.

    The result is one row expanded, which must not be written to. Time and memory grow with N^2.
    """

    def __init__(self, model: SymptomGAT) -> None:
        super().__init__()
        self.model = model
        (source, target), nodes = model.edge_index, model.num_nodes
        ones = torch.ones(source.shape, dtype=model.node_embeddings.weight.dtype, device=source.device)
        counts = ones.new_zeros(nodes, nodes).index_put_((target, source), ones, accumulate=True)
        log_counts = counts.fill_diagonal_(1).log()  # (N, N), -inf without an edge; GATConv gives each node one loop
        self.register_buffer("log_counts", log_counts, persistent=False)
        self.eval()

    def forward(self, batch_size: int = 1) -> Tensor:
        gat1, gat2, x = self.model.gat1, self.model.gat2, self.model.node_embeddings.weight  # x (N, 64)
        weight = gat1.lin.weight.view(gat1.heads, -1, x.shape[1])  # (H, C, 64)
        summed = self._attention(gat1, x) @ x  # (H, N, 64)
        x = F.elu(torch.baddbmm(gat1.bias.view(gat1.heads, 1, -1), summed, weight.mT))  # (H, N, C)
        x = x.transpose(0, 1).flatten(1)  # (N, H C)
        mean = self._attention(gat2, x).mean(1) @ x  # (1, H C)
        return F.linear(mean, gat2.lin.weight, gat2.bias).expand(batch_size, -1)

    def _attention(self, layer: GATConv, x: Tensor) -> Tensor:
        """The weight of each node in the sum of each node, (H, targets, sources), of x (N, F)."""
        weight = layer.lin.weight.view(layer.heads, -1, x.shape[1])  # (H, C, F)
        folded = torch.cat([layer.att_src, layer.att_dst]).transpose(0, 1) @ weight  # (H, 2, F)
        source, target = (folded @ x.t()).unbind(1)  # (H, N) each
        scores = F.leaky_relu(target.unsqueeze(2) + source.unsqueeze(1), layer.negative_slope)
        return (scores + self.log_counts).softmax(-1)
