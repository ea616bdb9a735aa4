"""Messages that need a row for each edge, computed for some targets at a time, so that those rows stay in the cache.

A piece is a run of targets with all their edges: a softmax over the edges of a target and sums over them are complete
within it. For inference: training would have to compute each piece again for its gradients, and measured, that costs
what it saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gnnlab.kernels.neighbours import Neighbours
from gnnlab.rewrite.edges import Edges

PIECE_NUMBERS = 1 << 18  # of a tensor with a row an edge: 1 MiB of float32; measured, from 2^17 to 2^19 is alike
EDGE = 2  # beside SOURCE and TARGET: a tensor with a row for each edge


@dataclass(frozen=True)
class Piece:
    """Some targets and their edges, as slices of those of the graph, and as a graph of their own.

    Sources of that graph are its edges: rows of sources are gathered for it.
    """

    targets: slice
    of_edges: slice
    edges: Edges

    def taken(self, x: Tensor, role: int, whole: Edges) -> Tensor:
        """The rows for each edge of this piece, of a tensor with rows for sources, targets or edges."""
        if role == EDGE:
            return x[self.of_edges]
        return x.index_select(0, whole.index[role, self.of_edges])


def pieces(edges: Edges, width: int) -> Iterator[Piece]:
    """The pieces of a graph whose edges carry `width` numbers each; made once."""
    step = max(1, PIECE_NUMBERS // max(width, 1))
    return edges.once(("pieces", step), lambda: _cut(edges.neighbours, step))


def _cut(graph: Neighbours, step: int) -> list[Piece]:
    wanted = torch.arange(step, max(step, graph.num_edges), step)
    cuts = torch.searchsorted(graph.offsets, wanted).clamp(max=graph.num_nodes)
    places = [0, *cuts.unique().tolist(), graph.num_nodes]
    starts = graph.offsets[torch.tensor(places)].tolist()
    return [
        _piece(graph, slice(first, last), slice(begin, end))
        for (first, begin), (last, end) in pairwise(zip(places, starts, strict=True))
        if last > first
    ]


def _piece(graph: Neighbours, targets: slice, of_edges: slice) -> Piece:
    rowptr = graph.rowptr[targets.start : targets.stop + 1] - of_edges.start
    count = of_edges.stop - of_edges.start
    order = torch.arange(count, dtype=graph.col.dtype)
    row = graph.row[of_edges] - targets.start
    return Piece(targets, of_edges, Edges.of(Neighbours(rowptr, order, row, order, count)))
