"""Blocks of a GraphSAGE layer that sum over neighbours, with the sum done by one bag over sorted edges.

Where the block begins with the gather, x goes straight into the sums and the E x F messages are never in memory; where
it begins behind it, the bag adds the messages that it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnnlab.errors import Unavailable
from gnnlab.kernels import aggregation
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.workloads.staged import StageBlock, StagedLayer

GATHER, MESSAGE, SUM, COUNT, NORMALIZE = range(1, 6)


@dataclass(frozen=True)
class FastBlock:
    """`forward(values, neighbours)` gives the values that the block writes, by name."""

    block: StageBlock

    def prepare(self, edge_index: Tensor, nodes: int) -> Neighbours:
        """Sort `edge_index` (2, E) by target, and what else does not depend on the features."""
        neighbours = Neighbours.prepare(edge_index, nodes)
        neighbours.cast("mean_weight", torch.float32)
        neighbours.cast("degree", torch.float32)
        return neighbours

    def __call__(self, values: dict[str, Tensor], neighbours: Neighbours) -> dict[str, Tensor]:
        known = dict(values)
        for stage in self.block.stages:
            if stage.number in (GATHER, MESSAGE) and self._covers(SUM):
                continue
            if stage.number == SUM:
                known.update(self._sums(known, neighbours))
            elif stage.number == COUNT:
                known["counts"] = neighbours.cast("degree", torch.float32)
            elif stage.writes not in known:
                known[stage.writes] = stage.module(*(known[name] for name in stage.takes))
        return {name: known[name] for name in self.block.writes}

    def _sums(self, known: dict[str, Tensor], neighbours: Neighbours) -> dict[str, Tensor]:
        if not self._covers(GATHER):  # messages, one for each edge as it was given
            messages = known["messages"] if "messages" in known else known["x_j"]
            return {"sums": _sum_of_edges(messages, neighbours)}
        if self._covers(NORMALIZE):
            return {"means": aggregation.mean(known["x"], neighbours)}
        return {"sums": aggregation.weighted_sum(known["x"], neighbours)}

    def _covers(self, number: int) -> bool:
        return self.block.first <= number <= self.block.last


def fast_block(layer: StagedLayer, block: StageBlock) -> FastBlock:
    """The fast form of a block. Raises `Unavailable` where there is none."""
    if layer.name != "sage":
        raise Unavailable(f"the fast forms are of GraphSAGE's stages, not of {layer.name}'s")
    if not block.first <= SUM <= block.last:
        raise Unavailable(f"{block.name} has no sum over neighbours in it, so there is no faster form; use torch:CPU")
    return FastBlock(block)


def _sum_of_edges(messages: Tensor, neighbours: Neighbours) -> Tensor:
    """Sums over targets of messages (E, F) that stand in the order of `edge_index`."""
    if messages.shape[0] == 0:
        return messages.new_zeros(neighbours.num_nodes, messages.shape[1])
    order = neighbours.cast("order", neighbours.rowptr.dtype)
    return torch.embedding_bag(messages, order, neighbours.rowptr, False, 0, False, None, include_last_offset=True)[0]
