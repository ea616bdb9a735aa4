"""A graph that a plan is carried out on, and its nodes cut into ranges for units that share it.

    for rows in ranges(edges_into_each_node, (0.3, 0.7)):
        edges = (rows.start <= target) & (target < rows.stop)      # of a part; x stays whole
        out[rows] = layer.run(x, edge_index[:, edges])[rows]

A part owns consecutive nodes and all edges that end in them. It reads the whole x, so its own rows are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gnnlab.errors import GnnlabError, one_line

if TYPE_CHECKING:
    from torch import Tensor
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

        inputs = random_inputs(nodes, edges, features, seed=seed)
        return cls(**{name: tensor.numpy() for name, tensor in inputs.items()})

    @property
    def size(self) -> tuple[int, int]:
        return len(self.x), self.edge_index.shape[1]

    def through(self, layer: StagedLayer) -> np.ndarray:
        """What the plain layer makes of it, (N, F')."""
        import torch

        with torch.no_grad():
            return layer.run(torch.from_numpy(self.x), torch.from_numpy(self.edge_index)).numpy()

    @cached_property
    def shared(self) -> dict[str, Tensor]:
        """Both in memory that processes share."""
        return {"x": shared(self.x), "edge_index": shared(self.edge_index)}


def shared(array: np.ndarray) -> Tensor:
    """A copy in memory that processes share. Raises `GnnlabError` where there is none left."""
    import torch

    try:
        return torch.tensor(array).share_memory_()
    except RuntimeError as error:
        raise GnnlabError(
            f"no shared memory of {array.nbytes / 1e6:,.2f} MB ({one_line(error)}); use fewer or smaller graphs, or "
            "give the system more (/dev/shm; --shm-size of a container)"
        ) from None


def ranges(weights: np.ndarray, ratios: Sequence[float]) -> list[slice]:
    """Consecutive rows, a range for each ratio, whose `weights` (N,) add up as nearly as can be in these ratios.

    Every range has a row at least.

    Raises:
        GnnlabError: fewer rows than ranges.
    """
    rows, count = len(weights), len(ratios)
    if rows < count:
        raise GnnlabError(f"a graph of {rows} nodes cannot be shared by {count} units; each needs a node of its own")
    reached = np.concatenate([[0], np.cumsum(weights)])  # by the first n rows
    aims = np.cumsum(ratios) / sum(ratios) * reached[-1]
    ends = [int(np.abs(reached - aim).argmin()) for aim in aims[:-1]]
    starts = [0]
    for place, end in enumerate(ends, 1):
        starts.append(min(max(end, starts[-1] + 1), rows - (count - place)))
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], rows], strict=True)]
