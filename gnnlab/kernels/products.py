"""Products and sums over edges for each head apart, without autograd: what the backward passes are made of."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnlab.kernels import aggregation
from gnnlab.kernels.aggregation import bag, edge_products
from gnnlab.kernels.neighbours import Neighbours

# heads of up to so many channels are multiplied together and summed by one product with ones, wider ones each by itself
NARROW = 32


def products(a: Tensor, b: Tensor, neighbours: Neighbours) -> Tensor:
    """a[target, h] . b[source, h] for each edge and head, (E, H); a (N, H, C), b (num_sources, H or 1, C)."""
    heads, width = a.shape[1:]
    if heads > 1 and b.shape[1] == heads and width <= NARROW:
        return _narrow(a, b, neighbours)
    out = a.new_empty(neighbours.num_edges, heads)
    for head in range(heads):
        out[:, head] = edge_products(a[:, head], b[:, head if b.shape[1] > 1 else 0], neighbours)
    return out


def sums_by_head(values: Tensor, neighbours: Neighbours, weight: Tensor) -> Tensor:
    """Sums of weight[edge, h] * values[source, h] over the edges of each target, (N, H, C).

    `values` (num_sources, H or 1, C), `weight` (E, H) in the order of `neighbours.col`.
    """
    heads, width = weight.shape[1], values.shape[2]
    if heads > 1 and width <= NARROW:  # one bag over all heads, for a call costs as much as the sum of a narrow head
        many = neighbours.heads(heads, shared=values.shape[1] == 1)
        summed = bag(values.reshape(-1, width), many, weight.reshape(-1).index_select(0, many.order))
        return summed.view(-1, heads, width)
    rows = [value.contiguous() for value in values.unbind(1)]
    sums = [bag(rows[h if len(rows) > 1 else 0], neighbours, one) for h, one in enumerate(weight.t().contiguous())]
    return torch.stack(sums, dim=1)


def _narrow(a: Tensor, b: Tensor, neighbours: Neighbours) -> Tensor:
    heads, width = a.shape[1:]
    ones = torch.eye(heads, dtype=a.dtype, device=a.device).repeat_interleave(width, dim=0)  # (H C, H)
    a, b = a.reshape(-1, heads * width), b.reshape(-1, heads * width)
    step = max(1, aggregation.CHUNK_NUMBERS // max(heads * width, 1))
    out = a.new_empty(neighbours.num_edges, heads)
    for start in range(0, neighbours.num_edges, step):
        piece = slice(start, start + step)
        product = a.index_select(0, neighbours.row[piece]).mul_(b.index_select(0, neighbours.col[piece]))
        torch.mm(product, ones, out=out[piece])
    return out
