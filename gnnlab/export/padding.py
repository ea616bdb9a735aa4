"""From the values of a graph to the inputs of an exported model, and from its outputs back.

    feed = Feed(layer, artefact, nodes, edges)                 # a model on graphs of one size
    outputs = feed.outputs(run(feed.inputs(values)))

Made once for a graph, outside the time: sorted edges for the models that read those. Made at
each run, inside it: padding for a model of another size than the graph's, and cropping, which copies nothing.

    size = bucket(1797, 24_678, "powers")                      # (2048, 32768)
    padded = pad(layer, values, *size)                         # every added edge goes from the ghost to the ghost
    means = crop(layer, {"means": run(padded)}, 1797, 24_678)

Edges that are added have to end somewhere. Between real nodes they would change sums and counts, so they join the first
row behind the graph, which is cropped: a model that is padded by edges has at least one node more than the graph.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gnnlab.errors import GnnlabError
from gnnlab.workloads.staged import EDGES, NODES, StagedLayer

if TYPE_CHECKING:
    from gnnlab.export.artefacts import Artefact

Arrays = dict[str, np.ndarray]
POLICIES = ("exact", "powers")


def bucket(nodes: int, edges: int, policy: str = "powers") -> tuple[int, int]:
    """The size (nodes, edges) of the model that serves a graph of this size.

    `exact`: its own size. `powers`: the next power of two. A node is added for the ghost where edges are.

    Raises `GnnlabError`: another policy, or a size that no graph has.
    """
    if policy not in POLICIES or nodes < 1 or edges < 1:
        raise GnnlabError(f"bucket({nodes}, {edges}, {policy!r}): 1 node, 1 edge at least and {'|'.join(POLICIES)}")
    if policy == "exact":
        return nodes, edges
    wide = 1 << (edges - 1).bit_length()
    return 1 << (nodes + (wide > edges) - 1).bit_length(), wide


def pad(layer: StagedLayer, values: Mapping[str, np.ndarray], nodes: int, edges: int) -> Arrays:
    """The values of one graph for a model of `nodes` and `edges`, which are no fewer than the graph's.

    Zeros are appended; in `edge_index` the number of the ghost. Values that the layer does not know are left out.

    Raises `GnnlabError`: the graph does not fit, or there is no row left for the ghost.
    """
    have_nodes, have_edges = values["x"].shape[0], values["edge_index"].shape[1]
    if have_nodes > nodes or have_edges > edges or (have_edges < edges and have_nodes == nodes):
        raise GnnlabError(
            f"a graph of {have_nodes} nodes and {have_edges} edges does not fit into {nodes} and {edges}: as many are "
            "needed, and a node more where edges are added"
        )
    grown = {}
    for name in values.keys() & layer.values.keys():
        array = values[name]
        grown[name] = np.zeros(layer.values[name].shape(nodes, edges), array.dtype)
        grown[name][tuple(map(slice, array.shape))] = array
    grown["edge_index"][:, have_edges:] = have_nodes
    return grown


def crop(layer: StagedLayer, values: Mapping[str, np.ndarray], nodes: int, edges: int) -> Arrays:
    """What belongs to the graph of `nodes` and `edges` in the values of a larger model."""
    keep = {NODES: slice(nodes), EDGES: slice(edges)}
    return {
        name: array[tuple(keep.get(dim, slice(None)) for dim in layer.values[name].dims)]
        for name, array in values.items()
    }


class Feed:
    """The inputs and outputs of one exported model on graphs of one size."""

    def __init__(self, layer: StagedLayer, artefact: Artefact, nodes: int, edges: int) -> None:
        self.layer, self.artefact, self.nodes, self.edges = layer, artefact, nodes, edges
        self.notes: list[str] = []
        self._pads = artefact.nodes is not None and (artefact.nodes, artefact.edges) != (nodes, edges)
        self._prepares = artefact.exporter == "handbuilt"
        self._graph: np.ndarray | None = None  # whose edges are sorted in `_sorted`
        self._sorted: Arrays = {}

    def inputs(self, values: Mapping[str, np.ndarray]) -> Arrays:
        """What the model reads, by name."""
        if self._pads:
            names = {"x", "edge_index", *self.artefact.reads} & values.keys()
            values = pad(self.layer, {n: values[n] for n in names}, self.artefact.nodes, self.artefact.edges)
        if self._prepares and self._graph is not values["edge_index"]:
            self._prepare(values)
        read = {name: (self._sorted if name in self._sorted else values)[name] for name in self.artefact.reads}
        # of these the number of rows is all that is wanted: one column goes to the device
        columns = {name: np.ascontiguousarray(read[name][:, :1]) for name in self.artefact.sized_by}
        return read | columns

    def outputs(self, results: Sequence[np.ndarray]) -> Arrays:
        """What the block writes, by name, from the model's outputs in order."""
        named = dict(zip(self.artefact.writes, results, strict=True))
        if self._pads or self._prepares:  # hand-built models may write a ghost's row
            return crop(self.layer, named, self.nodes, self.edges)
        return named

    def _prepare(self, values: Mapping[str, np.ndarray]) -> None:
        start = time.perf_counter()
        from gnnlab.export.openvino_graphs import prepared  # OpenVINO, which other artefacts do without

        self._sorted, self._graph = prepared(self.artefact.reads, values), values["edge_index"]
        names, ms = " and ".join(self._sorted), (time.perf_counter() - start) * 1e3
        self.notes[:] = [f"{names} made from the edges in {ms:.3g} ms, once, not timed"]
