"""The graph transformer of study 2 on faster kernels: the same parameters, the same results.

    fast = FastGraphTransformer.from_model(model)
    fast(data)                                        # as model(data)
    fast(data, bias=distances)                        # an additive attention bias, which the original has not

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
from torch_geometric.nn import GINConv, GPSConv, global_mean_pool
from torch_geometric.nn.norm import LayerNorm

from gnnlab.workloads.encodings import FIELDS
from gnnlab.workloads.graph_transformer import GraphTransformer

_INT32_MAX = 2**31 - 1


class TransformerError(ValueError):
    """A graph transformer that cannot be had in the fast form, or is called with data that does not fit."""


class FastGraphTransformer(nn.Module):
    """`fast(data)` as `GraphTransformer`: (N, out_features), or (B, out_features) with the readout "graph".

    Parameters are those of the model itself: same objects, same state_dict keys, so training one trains the other. In
    training mode dropout is active at the same places with the same rates; it draws its masks in the same order, so
    that equal random states give equal results. Local message passing by GIN is rewritten; "gat" and "gcn" run PyG's
    own layer inside.

    `bias` adds to the attention logits: (heads or 1, N, N) for a single graph, a sequence of such, one a graph, for a
    batch. The prepared edges of the last graph are kept and made anew when another one comes or it changes in place.
    """

    def __init__(self, model: GraphTransformer):
        super().__init__()
        _check(model)
        self.embed, self.embed_pe, self.layers, self.head = model.embed, model.embed_pe, model.layers, model.head
        self.in_features, self.pe_type, self.pe_dim = model.in_features, model.pe_type, model.pe_dim
        self.mpnn_type, self.readout = model.mpnn_type, model.readout
        self._prepared: tuple[tuple, tuple, Prepared] | None = None
        self.train(model.training)

    @classmethod
    def from_model(cls, model: GraphTransformer) -> FastGraphTransformer:
        """The fast form of `model`, sharing its parameters; `TransformerError` where a layer is not as expected."""
        return cls(model)

    def forward(self, data: Data, bias: Tensor | Sequence[Tensor] | None = None) -> Tensor:
        if data.x is None or data.x.size(-1) != self.in_features:
            got = "none" if data.x is None else f"shape {tuple(data.x.shape)}"
            raise TransformerError(f"x must have shape (N, {self.in_features}), got {got}")
        x = self.embed(data.x)  # (N, hidden)
        if self.embed_pe is not None:
            x = x + self.embed_pe(self._encoding(data))
        prepared = self._prepare(data)
        masks = _masks(bias, prepared.blocks, x)
        for layer in self.layers:
            x = self._layer(layer, x, data.edge_index, prepared, masks)
        if self.readout == "graph":
            x = global_mean_pool(x, data.batch)  # (B, hidden)
        return self.head(x)

    def _layer(
        self, layer: GPSConv, x: Tensor, edge_index: Tensor, prepared: Prepared, masks: Sequence[Tensor | None]
    ) -> Tensor:
        rate, training = layer.dropout, self.training
        local = _gin(layer.conv, x, prepared) if self.mpnn_type == "gin" else layer.conv(x, edge_index)
        if training and rate:
            local = F.dropout(local, rate, True)
        local = layer.norm1(local + x)
        everywhere = _attention(layer.attn, x, prepared.blocks, masks)
        if training and rate:
            everywhere = F.dropout(everywhere, rate, True)
        both = local + layer.norm2(everywhere + x)
        return layer.norm3(both + layer.mlp(both))

    def _encoding(self, data: Data) -> Tensor:
        encoding = data.get(FIELDS[self.pe_type])
        if encoding is None or encoding.size(-1) != self.pe_dim:
            raise TransformerError(
                f"the {self.pe_type} encoding of {self.pe_dim} columns is needed; call model.prepare(data) first"
            )
        return encoding

    def _prepare(self, data: Data) -> Prepared:
        tensors = (data.edge_index, data.batch)
        key = (int(data.x.size(0)), *(_version(t) for t in tensors))
        known = self._prepared
        if known is None or known[0] != key or any(a is not b for a, b in zip(known[1], tensors, strict=True)):
            with torch.inference_mode(False), torch.no_grad():  # normal tensors, which training can use as well
                self._prepared = known = (key, tensors, Prepared(data.edge_index, data.batch, key[0]))
        return known[2]

    def __getstate__(self) -> dict:
        return super().__getstate__() | {"_prepared": None}


class Prepared:
    """Edges sorted by target, and the batch as runs of graphs of one size.

    `source` (E) and `offsets` (N + 1), int32 where that suffices; `blocks` [(first node, graphs, nodes of each)].
    """

    def __init__(self, edge_index: Tensor, batch: Tensor | None, nodes: int):
        source, target = edge_index
        if source.numel() and int(edge_index.max()) >= nodes:
            raise TransformerError(f"an edge names node {int(edge_index.max())}, the graph has {nodes} nodes")
        target, order = torch.sort(target, stable=True)
        small = torch.int32 if max(source.numel(), nodes) <= _INT32_MAX else torch.int64
        self.source = source[order].to(small)
        self.offsets = torch.searchsorted(target, torch.arange(nodes + 1, device=target.device)).to(small)
        self.blocks = _blocks(batch, nodes)


def _blocks(batch: Tensor | None, nodes: int) -> list[tuple[int, int, int]]:
    if batch is None:
        return [(0, 1, nodes)]
    if batch.numel() > 1 and bool((batch[1:] < batch[:-1]).any()):
        raise TransformerError(
            "batch must be sorted: the nodes of a graph lie together, as torch_geometric.Batch has it"
        )
    blocks, first = [], 0
    for size, run in groupby(torch.bincount(batch).tolist()):
        graphs = len(list(run))
        if size:
            blocks.append((first, graphs, size))
        first += graphs * size
    return blocks


def _gin(conv: GINConv, x: Tensor, prepared: Prepared) -> Tensor:
    neighbours = F.embedding_bag(prepared.source, x, prepared.offsets, mode="sum", include_last_offset=True)
    return conv.nn(torch.addcmul(neighbours, x, 1 + conv.eps))


def _attention(
    attention: nn.MultiheadAttention,
    x: Tensor,
    blocks: Sequence[tuple[int, int, int]],
    masks: Sequence[Tensor | None],
) -> Tensor:
    heads, hidden = attention.num_heads, attention.embed_dim
    qkv = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)  # (N, 3 * hidden)
    rate = attention.dropout if attention.training else 0.0
    parts = []
    for (first, graphs, size), mask in zip(blocks, masks, strict=True):
        block = qkv[first : first + graphs * size].view(graphs, size, 3, heads, hidden // heads)
        query, key, value = block.permute(2, 0, 3, 1, 4)  # each (graphs, heads, size, hidden / heads)
        part = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        parts.append(part.transpose(1, 2).reshape(graphs * size, hidden))
    mixed = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else qkv[:, :hidden]
    return attention.out_proj(mixed)


def _masks(
    bias: Tensor | Sequence[Tensor] | None, blocks: Sequence[tuple[int, int, int]], like: Tensor
) -> list[Tensor | None]:
    """The bias as one (graphs, heads or 1, size, size) a block."""
    if bias is None:
        return [None] * len(blocks)
    given = [bias] if isinstance(bias, Tensor) else list(bias)
    sizes = [size for _, graphs, size in blocks for _ in range(graphs)]
    if len(given) != len(sizes):
        raise TransformerError(f"bias: {len(given)} given, one a graph is needed, the batch has {len(sizes)}")
    for i, (part, size) in enumerate(zip(given, sizes, strict=True)):
        if part.dim() != 3 or part.shape[1:] != (size, size):
            raise TransformerError(
                f"bias of graph {i} must have shape (heads or 1, {size}, {size}), got {tuple(part.shape)}"
            )
    masks, at = [], 0
    for _, graphs, _ in blocks:
        masks.append(torch.stack(given[at : at + graphs]).to(like))
        at += graphs
    return masks


def _version(tensor: Tensor | None) -> tuple | None:
    if tensor is None:
        return None
    return tensor.data_ptr(), tuple(tensor.shape), -1 if tensor.is_inference() else tensor._version


def _check(model: GraphTransformer) -> None:
    if not isinstance(model, GraphTransformer):
        raise TransformerError(f"a GraphTransformer is needed, got {type(model).__name__}")
    for i, layer in enumerate(model.layers):
        attention = getattr(layer, "attn", None)
        if not isinstance(layer, GPSConv) or not isinstance(attention, nn.MultiheadAttention):
            raise TransformerError(f"layer {i} is not a GPSConv with multi-head attention, nothing else is rewritten")
        if not all(
            isinstance(norm, LayerNorm) and norm.mode == "node" for norm in (layer.norm1, layer.norm2, layer.norm3)
        ):
            raise TransformerError(f"layer {i}: all three norms must be layer norms of mode 'node'")
        if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
            raise TransformerError(f"layer {i}: attention with kdim, vdim, bias_kv or zero attention is not rewritten")
