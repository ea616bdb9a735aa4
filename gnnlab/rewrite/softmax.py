"""PyG's `softmax` over the edges of each target; where the edges are sorted, over neighbouring rows."""

from __future__ import annotations

from torch import Tensor
from torch_geometric import utils

from gnnlab.kernels.attention import segment_softmax
from gnnlab.rewrite.edges import segment_of


def softmax(
    src: Tensor, index: Tensor | None = None, ptr: Tensor | None = None, num_nodes: int | None = None, dim: int = 0
) -> Tensor:
    """As `torch_geometric.utils.softmax`; `src` (E,) or (E, H) with the targets of sorted edges takes the fast way."""
    edges = None if index is None else segment_of(index)
    if edges is None or dim != 0 or src.dim() not in (1, 2):
        return utils.softmax(src, index, ptr, num_nodes, dim)
    return segment_softmax(src, edges.neighbours)
