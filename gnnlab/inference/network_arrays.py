"""The states of edge networks as arrays, many at once.

networks = NetworkArrays.of([state, other])     # networks of any sizes as one graph without links between them
networks.x, networks.topology.by_target         # what an engine reads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from gnnlab.inference.state_checks import CheckedState, check
from gnnlab.inference.topology import Topology
from gnnlab.workloads.edge_networks import FEATURES, State

_features = attrgetter(*FEATURES)


@dataclass(frozen=True, eq=False)
class NetworkArrays:
    """B networks as one graph: `x` (N, 7) float32, their edges, `starts` (B + 1) where each begins, `ids` of nodes."""

    x: np.ndarray
    topology: Topology
    starts: list[int]
    ids: Sequence[str]

    @classmethod
    def of(cls, states: Sequence[State | bytes]) -> NetworkArrays:
        """Read one state or more, dicts or JSON. Raises `GnnlabError`: one is invalid; the message names the node."""
        return cls.of_checked([check(state) for state in states])

    @classmethod
    def of_checked(cls, states: Sequence[CheckedState]) -> NetworkArrays:
        """From one state or more that `check` has read."""
        x = features(states)
        starts = list(accumulate((len(state.nodes) for state in states), initial=0))
        if len(states) == 1:
            return cls(x, states[0].topology, starts, states[0].node_ids)
        edges = np.concatenate([state.topology.edge_index for state in states], axis=1)
        edges += np.repeat(starts[:-1], [state.topology.edge_index.shape[1] for state in states])
        return cls(x, Topology(edges, len(x)), starts, list(chain.from_iterable(state.node_ids for state in states)))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def edge_index(self) -> np.ndarray:
        """(2, E) int64, as the states have their links: first as given, then reversed."""
        return self.topology.edge_index

    @property
    def network_of(self) -> np.ndarray:
        """(N,) the network of each node."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(x, source, target, starts), the edges sorted by target, sharing the memory."""
        return torch.from_numpy(self.x), *map(torch.from_numpy, self.topology.by_target)

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """`values` (N, ...) of the nodes of each network."""
        return [values[a:b] for a, b in pairwise(self.starts)]

    def decide(self, scores: np.ndarray) -> list[int]:
        """(B) the row of the highest of `scores` (N,) in each network; of equal scores the first."""
        return [a + int(part.argmax()) for a, part in zip(self.starts, self.split(scores), strict=False)]


def features(states: Sequence[CheckedState]) -> np.ndarray:
    """(N, 7) float32, a row for each node of all states, columns as in `FEATURES`."""
    values = chain.from_iterable(_features(node) for state in states for node in state.nodes)
    count = sum(len(state.nodes) for state in states)
    return np.fromiter(values, np.float32, count * len(FEATURES)).reshape(-1, len(FEATURES))
