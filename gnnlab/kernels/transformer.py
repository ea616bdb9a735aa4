"""The graph transformer of S1 on faster kernels: the same parameters, the same results.

    fast = FastGraphTransformer(model)
    fast(data)                                        # as model(data)

Against PyG's `GPSConv`: attention by `scaled_dot_product_attention` on each graph as it is, where `to_dense_batch`
copies every graph into a padded block, masks it and takes it out again; graphs of one size that follow each other go
in one call. GIN aggregation is one bag over edges that were sorted once, where PyG gathers and scatters (E, hidden)
messages. Everything in between is done in as few passes over (N, hidden) as autograd allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GPSConv
from torch_geometric.nn.norm import LayerNorm

from gnnlab.errors import GnnlabError
from gnnlab.kernels import aggregation
from gnnlab.kernels.neighbours import GraphCache, Neighbours
from gnnlab.workloads.graph_transformer import GraphTransformer

SizedGraphs = tuple[int, int, int]  # first node, graphs that follow each other, nodes of each


class FastGraphTransformer(GraphTransformer):
    """`fast(data)` as `GraphTransformer`: (N, out_features), or (B, out_features) with the readout "graph".

    Parameters are those of the model itself: same objects, same state_dict keys, so training one trains the other. In
    training mode dropout is active at the same places with the same rates; it draws its masks in the same order, so
    that equal random states give equal results. Local message passing by GIN is rewritten; "gat" and "gcn" run PyG's
    own layer inside. The edges of the last graphs are kept prepared, and prepared anew where they changed.

    Raises:
        GnnlabError: a layer is not as expected.
    """

    def __init__(self, model: GraphTransformer):
        nn.Module.__init__(self)  # nothing is made anew: layers and sizes are those of the model
        _check(model)
        self.embed, self.embed_pe, self.layers, self.head = model.embed, model.embed_pe, model.layers, model.head
        self.in_features, self.pe_type, self.pe_dim = model.in_features, model.pe_type, model.pe_dim
        self.mpnn_type, self.readout = model.mpnn_type, model.readout
        self.graphs = GraphCache()
        self.train(model.training)

    def _through_layers(self, x: Tensor, data: Data) -> Tensor:
        neighbours = self.graphs.get(data.edge_index, x.size(0))
        blocks = _blocks(data.batch, x.size(0))
        for layer in self.layers:
            x = self._layer(layer, x, data.edge_index, neighbours, blocks)
        return x

    def _layer(
        self, layer: GPSConv, x: Tensor, edge_index: Tensor, neighbours: Neighbours, blocks: Sequence[SizedGraphs]
    ) -> Tensor:
        rate, training = layer.dropout, self.training
        if self.mpnn_type == "gin":
            summed = aggregation.weighted_sum_sorted(x, neighbours, None)
            local = layer.conv.nn(torch.addcmul(summed, x, 1 + layer.conv.eps))
        else:
            local = layer.conv(x, edge_index)
        if training and rate:
            local = F.dropout(local, rate, True)
        local = layer.norm1(local + x)
        everywhere = _attention(layer.attn, x, blocks)
        if training and rate:
            everywhere = F.dropout(everywhere, rate, True)
        both = local + layer.norm2(everywhere + x)
        return layer.norm3(both + layer.mlp(both))


def _blocks(batch: Tensor | None, nodes: int) -> list[SizedGraphs]:
    """The batch as runs of graphs of one size."""
    if batch is None:
        return [(0, 1, nodes)]
    if batch.numel() > 1 and bool((batch[1:] < batch[:-1]).any()):
        raise GnnlabError("batch must be sorted: the nodes of a graph lie together, as torch_geometric.Batch has it")
    blocks, first = [], 0
    for size, run in groupby(torch.bincount(batch).tolist()):
        graphs = len(list(run))
        if size:
            blocks.append((first, graphs, size))
        first += graphs * size
    return blocks


def _attention(attention: nn.MultiheadAttention, x: Tensor, blocks: Sequence[SizedGraphs]) -> Tensor:
    heads, hidden = attention.num_heads, attention.embed_dim
    qkv = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)  # (N, 3 * hidden)
    rate = attention.dropout if attention.training else 0.0
    parts = []
    for first, graphs, size in blocks:
        block = qkv[first : first + graphs * size].view(graphs, size, 3, heads, hidden // heads)
        query, key, value = block.permute(2, 0, 3, 1, 4)  # each (graphs, heads, size, hidden / heads)
        part = F.scaled_dot_product_attention(query, key, value, dropout_p=rate)
        parts.append(part.transpose(1, 2).reshape(graphs * size, hidden))
    mixed = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else qkv[:, :hidden]
    return attention.out_proj(mixed)


def _check(model: GraphTransformer) -> None:
    if not isinstance(model, GraphTransformer):
        raise GnnlabError(f"a GraphTransformer is needed, got {type(model).__name__}")
    for i, layer in enumerate(model.layers):
        attention = getattr(layer, "attn", None)
        if not isinstance(layer, GPSConv) or not isinstance(attention, nn.MultiheadAttention):
            raise GnnlabError(f"layer {i} is not a GPSConv with multi-head attention, nothing else is rewritten")
        if not all(
            isinstance(norm, LayerNorm) and norm.mode == "node" for norm in (layer.norm1, layer.norm2, layer.norm3)
        ):
            raise GnnlabError(f"layer {i}: all three norms must be layer norms of mode 'node'")
        if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
            raise GnnlabError(f"layer {i}: attention with kdim, vdim, bias_kv or zero attention is not rewritten")
