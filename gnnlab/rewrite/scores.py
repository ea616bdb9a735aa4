"""What layers compute by kernels that their own code does not come to: scores of attention, sums of rectified rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GATv2Conv, GINEConv

from gnnlab.kernels.attention import additive_scores, segment_softmax
from gnnlab.rewrite.edges import Edges
from gnnlab.rewrite.rectified import gine_sum


def gatv2_scores(layer: GATv2Conv, edges: Edges, x: tuple[Tensor, Tensor], edge_attr: Any) -> Tensor | None:
    """The attention weights of GATv2 (Brody et al. 2022), (E, H); `x` (sources, H, C) and (targets, H, C).

    None with edge features, where the code of the layer is as fast.
    """
    graph = edges.neighbours
    if edge_attr is not None or x[0].dtype != layer.att.dtype or x[1].dtype != layer.att.dtype:
        return None
    weights = segment_softmax(additive_scores(*x, layer.att[0], graph, layer.negative_slope), graph)
    return F.dropout(weights, p=layer.dropout, training=layer.training)


SCORES = {GATv2Conv: gatv2_scores}  # tried before `edge_update`
SUMS = {GINEConv: gine_sum}  # tried before `message`
