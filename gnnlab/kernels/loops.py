"""Values of edges for a graph that got self-loops: each loop has the mean of the edges that end at its node."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnlab.kernels.aggregation import weighted_sum_sorted
from gnnlab.kernels.neighbours import Neighbours


def fill_loops(values: Tensor, neighbours: Neighbours) -> Tensor:
    """`values` (E, H), in the order of `neighbours.col`, for the edges of `neighbours.looped()`, in their order.

    Loops that were there count for nothing, a node without other edges gets 0: as PyG's
    `add_self_loops(fill_value="mean")` behind `remove_self_loops`. Values may want gradients.
    """
    if torch.compiler.is_compiling():
        return _composed(values, neighbours)
    entries, weight = neighbours.once("filled loops", lambda: _filled(neighbours))
    return weighted_sum_sorted(values, entries, weight.to(values.dtype))


def _filled(neighbours: Neighbours) -> tuple[Neighbours, Tensor]:
    """A graph from the edges to those of the graph with loops, and the weight of each of its entries, float64."""
    edges, nodes = neighbours.num_edges, neighbours.num_nodes
    row, loop = neighbours.row.long(), torch.arange(nodes, device=neighbours.device)
    kept = (neighbours.col != neighbours.row).nonzero().view(-1)
    ends = row.index_select(0, kept)
    # the edges of the graph with loops: those kept and then the loops, sorted by target (`Neighbours.looped`)
    order = torch.cat([ends, loop]).argsort(stable=True)
    place = torch.empty_like(order).index_copy_(0, order, torch.arange(order.shape[0], device=order.device))
    targets = torch.cat([place[: kept.shape[0]], place[kept.shape[0] :].index_select(0, ends)])
    entries = Neighbours.prepare(torch.stack([kept.repeat(2), targets]), order.shape[0], num_sources=edges)
    share = 1 / torch.bincount(ends, minlength=nodes).double().index_select(0, ends)
    return entries, torch.cat([torch.ones_like(share), share]).index_select(0, entries.order)


def _composed(values: Tensor, neighbours: Neighbours) -> Tensor:
    """The same of operators that compile and export, for a traced graph, in which loops stay and do not count."""
    row, loop = neighbours.row.long(), torch.arange(neighbours.num_nodes, device=neighbours.device)
    kept = (neighbours.col != neighbours.row).to(values.dtype)
    total = values.new_zeros(neighbours.num_nodes, values.shape[1]).index_add(0, row, values * kept[:, None])
    count = kept.new_zeros(neighbours.num_nodes).index_add(0, row, kept).clamp(min=1)
    order = torch.cat([row, loop]).argsort(stable=True)
    return torch.cat([values, total / count[:, None]]).index_select(0, order)
