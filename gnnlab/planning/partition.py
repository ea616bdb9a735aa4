"""Graphs cut into parts, each with the nodes that its edges come from (its halo): parts give what the whole gives.

    parts = by_ranges(edge_index, nodes, (0.5, 0.5))       # for units that share one graph
    parts = by_metis(edge_index, nodes, 8)                 # for graphs that are too large for one piece
    out[part.own] = layer.run(x[part.nodes], part.edge_index)[: part.targets]

A part owns some nodes and all edges that end in them. One layer looks one edge back, so with the sources of these edges
beside them the rows of its own nodes are exact; those of the halo are not, and are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnnlab.errors import GnnlabError

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from gnnlab.workloads.staged import StagedLayer


@dataclass(frozen=True, eq=False)
class Graph:
    """`x` (N, F) float32 and `edge_index` (2, E) int64."""

    x: np.ndarray
    edge_index: np.ndarray

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.x.dtype != np.float32 or not len(self.x):
            raise GnnlabError(f"x is {self.x.dtype} of shape {self.x.shape}; (nodes, features) of float32 is needed")
        edges = self.edge_index
        if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype != np.int64 or not edges.shape[1]:
            raise GnnlabError(f"edge_index is {edges.dtype} of shape {edges.shape}; (2, edges) of int64 is needed")
        if edges.min() < 0 or edges.max() >= len(self.x):
            raise GnnlabError(f"edges name nodes {edges.min()} to {edges.max()}, the graph has 0 to {len(self.x) - 1}")

    @classmethod
    def of(cls, data: Data, features: int) -> Graph:
        """A graph of the lab, with its own features where they have that width, else with drawn ones."""
        from gnnlab.workloads.graphsage import inputs_of

        return cls(**{name: tensor.numpy() for name, tensor in inputs_of(data, features).items()})

    @classmethod
    def drawn(cls, nodes: int, edges: int, features: int, seed: int = 0) -> Graph:
        """A random graph of that size, the same for the same numbers."""
        from gnnlab.workloads.graphsage import random_inputs

        made = random_inputs(nodes, edges, features, seed=seed)
        return cls(**{name: tensor.numpy() for name, tensor in made.items()})

    @property
    def size(self) -> tuple[int, int]:
        return len(self.x), self.edge_index.shape[1]

    def through(self, layer: StagedLayer) -> np.ndarray:
        """What the plain layer makes of it, (N, F')."""
        import torch

        with torch.no_grad():
            return layer.run(torch.from_numpy(self.x), torch.from_numpy(self.edge_index)).numpy()


class PartSize(NamedTuple):
    """The size of a part: nodes of its own, nodes of its halo, edges."""

    targets: int
    halo: int
    edges: int


@dataclass(frozen=True)
class Part:
    """A part of a graph.

    `nodes` (n): their numbers in the whole, its own `targets` first, then the halo. `edges` (e): the places of its
    edges in the whole. `edge_index` (2, e): the same edges between places in `nodes`.
    """

    nodes: np.ndarray
    targets: int
    edges: np.ndarray
    edge_index: np.ndarray

    @property
    def own(self) -> np.ndarray:
        return self.nodes[: self.targets]

    @property
    def share(self) -> PartSize:
        return PartSize(self.targets, len(self.nodes) - self.targets, len(self.edges))


def by_ranges(edge_index: np.ndarray, nodes: int, ratios: Sequence[float]) -> list[Part]:
    """Parts of consecutive nodes in these ratios.

    Raises:
        GnnlabError: fewer nodes than parts.
    """
    ends = _ends(nodes, ratios)
    owner = np.repeat(np.arange(len(ratios)), np.diff([0, *ends]))
    return _parts(edge_index, owner, len(ratios))


def by_metis(edge_index: np.ndarray, nodes: int, count: int) -> list[Part]:
    """`count` parts of about equal size with few edges between them, by METIS; fewer where METIS leaves one empty.

    Raises:
        GnnlabError: METIS is not installed, or fewer nodes than parts.
    """
    try:
        import pymetis
    except ImportError:
        raise GnnlabError("cutting a graph by METIS needs the package pymetis; install it, or cut by ranges") from None
    _ends(nodes, (1 / count,) * count)
    pairs = np.concatenate([edge_index, edge_index[::-1]], axis=1)
    pairs = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)  # both directions once, no loops: what METIS asks for
    rowptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[0], minlength=nodes))])
    _, owner = pymetis.part_graph(count, pymetis.CSRAdjacency(rowptr, pairs[1]))
    _, owner = np.unique(np.asarray(owner), return_inverse=True)
    return _parts(edge_index, owner, int(owner.max()) + 1)


def expected_shares(nodes: int, edges: int, ratios: Sequence[float]) -> list[PartSize]:
    """What `by_ranges` gives on average where edges join any two nodes alike; for a graph that is not there yet.

    Of the M nodes outside a part with e edges, M (1 - (1 - 1/N)^e) are a source of one of them.
    """
    found = []
    for targets in np.diff([0, *_ends(nodes, ratios)]):
        inside = max(1, round(edges * int(targets) / nodes))
        halo = (nodes - targets) * -np.expm1(inside * np.log1p(-1 / nodes)) if nodes > 1 else 0
        found.append(PartSize(int(targets), round(float(halo)), inside))
    return found


def _ends(nodes: int, ratios: Sequence[float]) -> list[int]:
    """Behind which node each part ends; every part has one at least."""
    count = len(ratios)
    if nodes < count or count < 1:
        raise GnnlabError(f"a graph of {nodes} nodes cannot be cut into {count} parts; at most {nodes}, at least 1")
    ends = np.rint(np.cumsum(ratios) / sum(ratios) * nodes).astype(int)
    for place in range(count):  # a part of its own for the smallest ratio, too
        ends[place] = min(max(ends[place], (ends[place - 1] if place else 0) + 1), nodes - (count - 1 - place))
    return ends.tolist()


def _parts(edge_index: np.ndarray, owner: np.ndarray, count: int) -> list[Part]:
    parts, into, place = [], owner[edge_index[1]], np.empty(len(owner), np.int64)
    for number in range(count):
        own, edges = np.flatnonzero(owner == number), np.flatnonzero(into == number)
        if not len(edges) and edge_index.shape[1]:
            edges = np.zeros(1, np.int64)  # runtimes refuse graphs without edges: one within the halo harms none
        inside = edge_index[:, edges]
        members = np.concatenate([own, np.setdiff1d(inside, own)])
        place[members] = np.arange(len(members))
        parts.append(Part(members, len(own), edges, np.ascontiguousarray(place[inside])))
    return parts
