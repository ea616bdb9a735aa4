"""Graphs of any size in models of a fixed one: padded with a ghost node, cropped afterwards.

    size = bucket(1797, 24_678, "powers")                      # (2048, 32768)
    padded = pad(layer, values, *size)                         # every added edge goes from the ghost to the ghost
    means = crop(layer, {"means": run(padded)}, 1797, 24_678)

Edges that are added have to end somewhere. Between real nodes they would change sums and counts, so they join the first
row behind the graph, which is cropped: a model that is padded by edges has at least one node more than the graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnlab.errors import GnnlabError
from gnnlab.workloads.staged import EDGES, NODES, StagedLayer

Arrays = dict[str, np.ndarray]
POLICIES = ("exact", "steps", "powers")
STEPS_PER_DOUBLING = 8


def bucket(nodes: int, edges: int, policy: str = "powers") -> tuple[int, int]:
    """The size (nodes, edges) of the model that serves a graph of this size.

    `exact`: its own size. `powers`: the next power of two. `steps`: the next of eight equal steps between powers of
    two, so that no side is more than an eighth larger. A node is added for the ghost where edges are.

    Raises:
        GnnlabError: another policy, or a size that no graph has.
    """
    if policy not in POLICIES or nodes < 1 or edges < 1:
        raise GnnlabError(f"bucket({nodes}, {edges}, {policy!r}): 1 node, 1 edge at least and {'|'.join(POLICIES)}")
    up = {"exact": int, "powers": _power, "steps": _step}[policy]
    wide = up(edges)
    return up(nodes + (wide > edges)), wide


def pad(layer: StagedLayer, values: Mapping[str, np.ndarray], nodes: int, edges: int) -> Arrays:
    """The values of one graph for a model of `nodes` and `edges`, which are no fewer than the graph's.

    Zeros are appended; in `edge_index` the number of the ghost. Values that the layer does not know are left out.

    Raises:
        GnnlabError: the graph does not fit, or there is no row left for the ghost.
    """
    have_nodes, have_edges = values["x"].shape[0], values["edge_index"].shape[1]
    if have_nodes > nodes or have_edges > edges or (have_edges < edges and have_nodes == nodes):
        raise GnnlabError(
            f"a graph of {have_nodes} nodes and {have_edges} edges does not fit into {nodes} and {edges}: as many are "
            "needed, and a node more where edges are added"
        )
    grown = {
        name: _grown(values[name], layer.values[name].dims, nodes, edges) for name in values if name in layer.values
    }
    grown["edge_index"][:, have_edges:] = have_nodes
    return grown


def crop(layer: StagedLayer, values: Mapping[str, np.ndarray], nodes: int, edges: int) -> Arrays:
    """What belongs to the graph of `nodes` and `edges` in the values of a larger model."""
    keep = {NODES: slice(nodes), EDGES: slice(edges)}
    return {
        name: array[tuple(keep.get(dim, slice(None)) for dim in layer.values[name].dims)]
        for name, array in values.items()
    }


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _step(count: int) -> int:
    step = max(1, _power(count) // (2 * STEPS_PER_DOUBLING))
    return -(-count // step) * step


def _grown(array: np.ndarray, dims: tuple[int | str, ...], nodes: int, edges: int) -> np.ndarray:
    shape = [{NODES: nodes, EDGES: edges}.get(dim, dim) for dim in dims]
    grown = np.zeros(shape, array.dtype)
    grown[tuple(slice(length) for length in array.shape)] = array
    return grown
