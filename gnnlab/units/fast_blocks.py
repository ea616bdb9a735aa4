"""Blocks of a GraphSAGE layer that sum over neighbours, with the sum done by one bag over sorted edges.

Where the block begins with the gather, x goes straight into the sums and the E x F messages are never in memory; where
it begins behind it, the bag adds the messages that it is given.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gnnlab.errors import Unavailable
from gnnlab.kernels import aggregation
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.workloads.staged import StageBlock, StagedLayer

GATHER, MESSAGE, SUM, COUNT, NORMALIZE = range(1, 6)


def prepare(edge_index: Tensor, nodes: int) -> Neighbours:
    """Sort `edge_index` (2, E) by target, and what else does not depend on the features."""
    neighbours = Neighbours.prepare(edge_index, nodes)
    neighbours.cast("mean_weight", torch.float32)
    neighbours.cast("degree", torch.float32)
    return neighbours


def fast_block(layer: StagedLayer, block: StageBlock) -> Callable[[dict[str, Tensor], Neighbours], dict[str, Tensor]]:
    """The fast form of a block: of the values that it reads, by name, and the prepared graph, those that it writes.

    Raises:
        Unavailable: there is none.
    """
    if layer.name != "sage":
        raise Unavailable(f"the fast forms are of GraphSAGE's stages, not of {layer.name}'s")
    if not block.first <= SUM <= block.last:
        raise Unavailable(f"{block.name} has no sum over neighbours in it, so there is no faster form; use torch:CPU")

    def forward(values: dict[str, Tensor], neighbours: Neighbours) -> dict[str, Tensor]:
        known = dict(values)
        for stage in block.stages:
            if stage.number == SUM:
                known |= _sums(block, known, neighbours)
            elif stage.number == COUNT:
                known["counts"] = neighbours.cast("degree", torch.float32)
            elif stage.number > SUM and stage.writes not in known:
                known[stage.writes] = stage.module(*(known[name] for name in stage.takes))
        return {name: known[name] for name in block.writes}

    return forward


def _sums(block: StageBlock, known: dict[str, Tensor], neighbours: Neighbours) -> dict[str, Tensor]:
    if block.first == GATHER and block.last >= NORMALIZE:
        return {"means": aggregation.mean(known["x"], neighbours)}
    if block.first == GATHER:
        return {"sums": aggregation.weighted_sum(known["x"], neighbours)}
    messages = known["messages" if block.first == SUM else "x_j"]  # one for each edge as it was given
    order = neighbours.cast("order", neighbours.rowptr.dtype)
    return {"sums": aggregation.segment_sum(messages, neighbours, order)}
