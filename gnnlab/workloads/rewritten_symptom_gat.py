"""The symptom encoder of S0 with less work: what it computes at every call, in products over 58 nodes.

    rewritten = RewrittenSymptomGAT(model)    # shares the weights of the SymptomGAT
    rewritten(32)                             # as model(32), (32, 256)

Each step is exact up to rounding (N nodes, H heads, C channels a head, F inputs):

- The ids are 0..N-1, so the embedding table itself is x: nothing is gathered.
- Scores are folded into the weights: a . (W x) = (a W) . x, two rows a head instead of H C columns.
- Attention is a dense masked softmax over all nodes, where an edge that comes k times counts as + log k.
- Layer 1 sums 64 columns a head before the product with W, not 128 behind it.
- The mean over nodes is taken before the product of layer 2, which shrinks from N rows to one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv

from gnnlab.workloads.symptom_gat import SymptomGAT


class RewrittenSymptomGAT(nn.Module):
    """`rewritten(batch_size)` -> (batch_size, 256), what `SymptomGAT` gives in eval, on the edges that it has now.

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
