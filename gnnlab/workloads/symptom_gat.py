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
    calls optimized are forms of it in notebook 02, which shows them.
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
