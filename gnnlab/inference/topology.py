"""The edges of a graph as its engines read them: a dense matrix for few nodes, sorted by target for many.

topology = Topology(edge_index, nodes)
topology.adjacency               # (N, N), for `DenseAllocator`
topology.by_target.starts        # for a bag of neighbours
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np


class SortedEdges(NamedTuple):
    """Edges sorted by target: `source`, `target` (E,) int64; target i's begin at `starts`[i] (N,)."""

    source: np.ndarray
    target: np.ndarray
    starts: np.ndarray


@dataclass(frozen=True, eq=False)
class Topology:
    """`edge_index` (2, E) int64 in any order, from its first row to its second, between `nodes` nodes."""

    edge_index: np.ndarray
    nodes: int

    @cached_property
    def adjacency(self) -> np.ndarray:
        """(N, N) float32, [i, j] the number of edges from j to i; for few nodes."""
        source, target = self.edge_index
        counts = np.bincount(target * self.nodes + source, minlength=self.nodes**2)
        return counts.astype(np.float32).reshape(self.nodes, self.nodes)

    @cached_property
    def by_target(self) -> SortedEdges:
        source, target = self.edge_index
        small = self.nodes < 1 << 16
        order = (target.astype(np.uint16) if small else target).argsort(kind="stable")  # 16 bits: by radix
        ends = np.bincount(target, minlength=self.nodes).cumsum()
        starts = np.concatenate([[0], ends[:-1]]) if self.nodes else ends
        return SortedEdges(source.take(order), target.take(order), starts)

    def with_ghost(self) -> SortedEdges:
        """One node more at the end, with two edges to itself: then every node's edges begin before the last edge, and
        there are two edges at least."""
        source, target, starts = self.by_target
        source, target = (np.append(ends, [self.nodes, self.nodes]) for ends in (source, target))
        return SortedEdges(source, target, np.append(starts, len(source) - 2))
