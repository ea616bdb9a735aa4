"""The states of edge networks as arrays, many at once, with the edges sorted by target.

networks = NetworkArrays.of([state, other])     # networks of any sizes as one graph without links between them
networks.x, networks.topology.source            # what a bag of neighbours reads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from gnnlab.inference.state_checks import CheckedState, Pairs, check
from gnnlab.workloads.edge_networks import FEATURES, State

_features = attrgetter(*FEATURES)
_WIDTH = len(FEATURES)


@dataclass(frozen=True)
class Topology:
    """The edges of a graph, sorted by target: `source`, `target` (E,) int64; target i's begin at `starts`[i] (N,)."""

    source: np.ndarray
    target: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, edge_index: np.ndarray, nodes: int) -> Topology:
        """From edges (2, E) int64 in any order."""
        target = edge_index[1]
        order = (target.astype(np.uint16) if nodes < 1 << 16 else target).argsort(kind="stable")  # 16 bits: by radix
        ends = np.bincount(target, minlength=nodes).cumsum()
        starts = np.concatenate([[0], ends[:-1]]) if nodes else ends
        return cls(edge_index[0].take(order), target.take(order), starts)

    @cached_property
    def with_ghost(self) -> Topology:
        """One node more at the end, with two edges to itself: then every node's edges begin before the last edge, and
        there are two edges at least."""
        nodes, edges = len(self.starts), len(self.source)
        source, target = (np.append(ends, [nodes, nodes]) for ends in (self.source, self.target))
        return Topology(source, target, np.append(self.starts, edges))

    @cached_property
    def adjacency(self) -> np.ndarray:
        """(N, N) float32, [i, j] the number of edges from j to i; for few nodes."""
        nodes = len(self.starts)
        counts = np.bincount(self.target * nodes + self.source, minlength=nodes * nodes)
        return counts.astype(np.float32).reshape(nodes, nodes)

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """(source, target, starts) as tensors that share the memory."""
        return torch.from_numpy(self.source), torch.from_numpy(self.target), torch.from_numpy(self.starts)


@dataclass(frozen=True)
class NetworkArrays:
    """B networks as one graph: `x` (N, 7) float32, their edges, `ptr` (B + 1,) where each begins, `ids` of nodes."""

    x: np.ndarray
    topology: Topology
    ptr: np.ndarray
    ids: list[str]

    @classmethod
    def of(cls, states: Sequence[State | bytes]) -> NetworkArrays:
        """Read one state or more, dicts or JSON. Raises `GnnlabError`: one is invalid; the message names the node."""
        return cls.of_checked([check(state) for state in states])

    @classmethod
    def of_checked(cls, states: Sequence[CheckedState]) -> NetworkArrays:
        """From one state or more that `check` has read."""
        ids = list(chain.from_iterable(state.node_ids for state in states))
        values = chain.from_iterable(_features(node) for state in states for node in state.nodes)
        x = np.fromiter(values, np.float32, len(ids) * _WIDTH).reshape(-1, _WIDTH)
        ptr = np.cumsum([0, *(len(state.nodes) for state in states)])
        if len(states) == 1:
            return cls(x, _topology(len(ids), states[0].pairs), ptr, ids)
        pairs = tuple(chain.from_iterable(state.pairs for state in states))
        first = np.repeat(ptr[:-1], [len(state.pairs) for state in states])
        return cls(x, Topology.of(_both_ways(pairs) + np.tile(first, 2), len(ids)), ptr, ids)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @property
    def edge_index(self) -> np.ndarray:
        """(2, E) int64, sorted by target."""
        return np.stack([self.topology.source, self.topology.target])

    @property
    def network_of(self) -> np.ndarray:
        """(N,) the network of each node."""
        return np.repeat(np.arange(len(self)), np.diff(self.ptr))

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(x, source, target, starts), sharing the memory."""
        return torch.from_numpy(self.x), *self.topology.tensors

    def with_ghost(self) -> NetworkArrays:
        """The same with a network of one node behind it, for programs that need some edge to be the last."""
        x = np.concatenate([self.x, np.zeros((1, _WIDTH), dtype=np.float32)])
        return NetworkArrays(x, self.topology.with_ghost, np.append(self.ptr, len(x)), [*self.ids, ""])

    def pieces(self, most_nodes: int) -> list[NetworkArrays]:
        """The same networks in groups of up to `most_nodes` nodes, a larger network by itself."""
        if len(self.x) <= most_nodes:
            return [self]
        rows, begins = self.ptr.tolist(), [0]
        for place in range(1, len(self)):
            if rows[place + 1] - rows[begins[-1]] > most_nodes:
                begins.append(place)
        return [self._span(a, b) for a, b in pairwise([*begins, len(self)])]

    def _span(self, first: int, end: int) -> NetworkArrays:
        a, b = self.ptr[first], self.ptr[end]
        edges, starts = self.topology, self.topology.starts
        begin = starts[a]
        some = slice(begin, starts[b] if b < len(starts) else None)
        topology = Topology(edges.source[some] - a, edges.target[some] - a, starts[a:b] - begin)
        return NetworkArrays(self.x[a:b], topology, self.ptr[first : end + 1] - a, self.ids[a:b])

    def take(self, places: Sequence[int]) -> NetworkArrays:
        """These networks alone, in this order."""
        sizes = np.diff(self.ptr)[places]
        ptr = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.concatenate([np.arange(self.ptr[p], self.ptr[p + 1]) for p in places])
        number = np.full(len(self.x), -1)
        number[rows] = np.arange(len(rows))
        edges = number[self.edge_index]
        edges = edges[:, edges[1] >= 0]
        return NetworkArrays(self.x[rows], Topology.of(edges, len(rows)), ptr, [self.ids[row] for row in rows])

    def parts(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(x, edges) of each network, edges (2, E) numbered from its first node: what a cache's key is made of."""
        if len(self) == 1:
            return [(self.x, self.edge_index)]
        ends = np.append(self.topology.starts, len(self.topology.source))[self.ptr].tolist()
        rows, edges = self.ptr.tolist(), self.edge_index
        spans = zip(rows, rows[1:], ends, ends[1:], strict=False)
        return [(self.x[a:b], edges[:, start:end] - a) for a, b, start, end in spans]

    def decide(self, scores: np.ndarray) -> np.ndarray:
        """The row of the highest score in each network, (B,); of equal scores the first. `scores` (N,), no NaN."""
        if len(self) == 1:
            return scores.argmax(keepdims=True)
        best = np.maximum.reduceat(scores, self.ptr[:-1])
        at_best = np.flatnonzero(scores == np.repeat(best, np.diff(self.ptr)))
        return at_best[at_best.searchsorted(self.ptr[:-1])]


@lru_cache(maxsize=256)
def _topology(nodes: int, pairs: Pairs) -> Topology:
    """The edges of one network; cached, as a network mostly keeps its links from one state to the next."""
    return Topology.of(_both_ways(pairs), nodes)


def _both_ways(pairs: Pairs) -> np.ndarray:
    """(2, E) int64: first all links as given, then all reversed."""
    ends = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * len(pairs)).reshape(-1, 2).T
    return np.concatenate([ends, ends[::-1]], axis=1)
