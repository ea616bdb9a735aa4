"""Attention of all nodes to all others, as GPS has it, without a matrix of nodes by nodes in memory.

In inference torch's `MultiheadAttention` takes a path that makes that matrix, and with a mask, also one that masks
nothing, adds to it. What it does in training, `scaled_dot_product_attention` in tiles, is several times as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TiledAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` that goes by tiles where no attention weights are asked for."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        nested = any(getattr(one, "is_nested", False) for one in (query, key, value))
        if not (need_weights or nested or torch.compiler.is_compiling() or torch.jit.is_tracing()):
            if key_padding_mask is not None and key_padding_mask.dtype is torch.bool and not key_padding_mask.any():
                key_padding_mask = None
            if query is key and key is value:  # a query of its own rules out the path with the matrix
                query = query.view_as(query)
        return super().forward(query, key, value, key_padding_mask, need_weights, attn_mask, **named)
