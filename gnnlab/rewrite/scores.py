"""Scores of attention layers by kernels that their own code does not come to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GATv2Conv

from gnnlab.kernels.attention import additive_scores, segment_softmax
from gnnlab.rewrite.edges import Edges

# numbers of a row an edge up to which training keeps them all: measured, 1.3 times as fast at 0.7 million, 0.7 at 8
KEPT_NUMBERS = 1 << 21


def gatv2_scores(layer: GATv2Conv, edges: Edges, x: tuple[Tensor, Tensor], edge_attr: Any) -> Tensor | None:
    """The attention weights of GATv2 (Brody et al. 2022), (E, H); `x` (sources, H, C) and (targets, H, C).

    None where the code of the layer is as fast: with edge features, and in training where its rows stay in the cache.
    """
    graph = edges.neighbours
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (*x, layer.att))
    if edge_attr is not None or (wanted and graph.num_edges * layer.att.numel() <= KEPT_NUMBERS):
        return None
    if x[0].dtype != layer.att.dtype or x[1].dtype != layer.att.dtype:
        return None
    weights = segment_softmax(additive_scores(*x, layer.att[0], graph, layer.negative_slope), graph)
    return F.dropout(weights, p=layer.dropout, training=layer.training)


SCORES = {GATv2Conv: gatv2_scores}  # tried before `edge_update`
