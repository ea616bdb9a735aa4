"""The states of edge networks as arrays, many at once, with the edges sorted by target.

    networks = NetworkArrays.of([state, other])     # networks of any sizes as one graph without links between them
    networks.x, networks.source, networks.starts    # what a bag of neighbours reads

A state is Python objects, and turning those into arrays takes longer than a small network's forward pass. So numbers
are read by one iterator and checked as a table, and a network that keeps its links is known again by them. What does
not pass the table's checks goes to `state_checks`, which says in words what is wrong with it, or that nothing is.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnlab.inference import state_checks
from gnnlab.inference.state_checks import LIMITS, CheckedState
from gnnlab.workloads.edge_networks import FEATURES, State

_values, _node_id, _nodes, _links = (
    itemgetter(*FEATURES),
    itemgetter("node_id"),
    itemgetter("nodes"),
    itemgetter("links"),
)
_WIDTH, _KEYS = len(FEATURES), len(FEATURES) + 1
_QUEUE, _TYPE = FEATURES.index("queue_len"), FEATURES.index("node_type")
_MOST = np.array([LIMITS[name][1] for name in FEATURES], dtype=np.float64)  # the least is 0 throughout


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


class Topologies:
    """The edges of the networks seen last, known again by all of their node ids and links.

    At most `size` sets of node ids are kept, each with the eight sets of links that it had last.
    """

    def __init__(self, size: int = 256) -> None:
        self.size, self.hits, self.misses = size, 0, 0
        self._kept: OrderedDict[tuple[str, ...], deque[tuple[list, Topology]]] = OrderedDict()

    def of(self, ids: list[str], links: list) -> Topology | None:
        """The edges of `links` among `ids`; None where they need a closer look."""
        key = tuple(ids)
        for known, topology in self._kept.get(key, ()):
            if known == links:
                self.hits += 1
                self._kept.move_to_end(key)
                return topology
        self.misses += 1
        made = _topology([ids], [links])
        if made is not None and self.size:
            copied = [pair[:] for pair in links]  # the caller may change its own
            self._kept.setdefault(key, deque(maxlen=8)).appendleft((copied, made))
            if len(self._kept) > self.size:
                self._kept.popitem(last=False)
        return made


@dataclass(frozen=True)
class NetworkArrays:
    """B networks as one graph: `x` (N, 7) float32, their edges, `ptr` (B + 1,) where each begins, `ids` of nodes."""

    x: np.ndarray
    topology: Topology
    ptr: np.ndarray
    ids: list[str]

    @classmethod
    def of(cls, states: Sequence[State], topologies: Topologies | None = None) -> NetworkArrays:
        """Read one state or more; `topologies` are asked where there is one.

        Raises `GnnlabError`: a state is none; the message names node and field.
        """
        found = _as_table(states, topologies)
        return cls.of_checked([state_checks.check(state) for state in states]) if found is None else found

    @classmethod
    def of_checked(cls, states: Sequence[CheckedState]) -> NetworkArrays:
        """From states that `state_checks` has parsed already."""
        ptr = np.cumsum([0, *(len(state.x) for state in states)])
        edges = [state.edge_index + start for state, start in zip(states, ptr[:-1], strict=True)]
        x = np.concatenate([state.x for state in states])
        ids = list(chain.from_iterable(state.node_ids for state in states))
        return cls(x, Topology.of(np.concatenate(edges, axis=1), len(x)), ptr, ids)

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
        """(x, edges) of each network, edges (2, E) numbered from its first node: what tells it from any other."""
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


def _as_table(states: Sequence[State], topologies: Topologies | None) -> NetworkArrays | None:
    """The networks if all of them are as they should be at a glance, else None."""
    try:
        if set(map(type, states)) != {dict} or not set(map(len, states)) <= {1, 2}:
            return None
        nodes = list(map(_nodes, states))
        links = [_links(state) if len(state) == 2 else [] for state in states]  # which may be left out
        x, ids = _numbers(nodes[0] if len(nodes) == 1 else list(chain.from_iterable(nodes)))
        if x is None or set(map(type, nodes)) != {list} or set(map(type, links)) != {list}:
            return None
        ptr = np.cumsum([0, *map(len, nodes)])
        if topologies is not None and len(states) == 1:
            topology = topologies.of(ids, links[0])
        else:
            rows = ptr.tolist()
            topology = _topology([ids[a:b] for a, b in pairwise(rows)], links)
        return None if topology is None else NetworkArrays(x, topology, ptr, ids)
    except (KeyError, TypeError, ValueError, AttributeError, struct.error):
        return None


def _numbers(nodes: list[dict[str, Any]]) -> tuple[np.ndarray | None, list[str]]:
    """(features (N, 7) float32, ids), or (None, ids) where a closer look is needed."""
    ids, flat = list(map(_node_id, nodes)), list(chain.from_iterable(map(_values, nodes)))
    whole = {*map(type, flat[_QUEUE::_WIDTH]), *map(type, flat[_TYPE::_WIDTH])}
    usual = set(map(type, nodes)) == {dict} and set(map(len, nodes)) == {_KEYS} and set(map(type, ids)) == {str}
    if not usual or set(map(type, flat)) - {int, float} or whole != {int}:
        return None, ids
    # struct reads a list of numbers in two thirds of the time that numpy takes
    table = np.frombuffer(struct.pack(f"{len(flat)}d", *flat)).reshape(-1, _WIDTH)
    fits = bool(((table >= 0) & (table <= _MOST)).all())  # False for NaN
    return (table.astype(np.float32) if fits else None), ids


def _topology(ids: list[list[str]], links: list[list]) -> Topology | None:
    """The edges of several networks, each with its ids and its links; None: look closer."""
    ends = _ends(ids, links)
    if ends is None:
        return None
    nodes = sum(map(len, ids))
    least, most = np.minimum(*ends), np.maximum(*ends)
    pairs = np.sort(least * nodes + most)
    if (least == most).any() or (pairs[1:] == pairs[:-1]).any():  # a node with itself, a link twice
        return None
    return Topology.of(np.concatenate([ends, ends[::-1]], axis=1), nodes)


def _ends(ids: list[list[str]], links: list[list]) -> np.ndarray | None:
    """(2, links) rows of both ends of all links; `KeyError` where an end is no id of its own network."""
    pairs = links[0] if len(links) == 1 else list(chain.from_iterable(links))
    if set(map(type, pairs)) - {list, tuple} or set(map(len, pairs)) - {2}:
        return None
    rows: list[int] = []
    row_of: dict[str, int] = {}
    before: list[str] | None = None
    for own, some in zip(ids, links, strict=True):
        if own != before:  # states of one network in turn share their ids
            row_of, before = dict(zip(own, range(len(own)), strict=True)), own
            if len(row_of) != len(own) or "" in row_of or not own:
                return None
        rows += map(row_of.__getitem__, chain.from_iterable(some))
    within = np.fromiter(rows, np.int64, len(rows)).reshape(-1, 2).T
    if len(links) == 1:
        return within
    first = np.cumsum([0, *map(len, ids[:-1])])
    return within + first.repeat(list(map(len, links)))
