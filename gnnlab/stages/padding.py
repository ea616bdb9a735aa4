"""From the values of a graph to the inputs of an exported model, and from its outputs back.

    adapter = InputAdapter(layer, model, nodes, edges)         # a model on graphs of one size
    outputs = adapter.outputs(run(adapter.inputs(values)))

A model of fixed size serves smaller graphs by padding. Edges that are added have to end somewhere; between real nodes
they would change sums and counts. So they join the padding node, the first row behind the graph, and it is cropped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gnnlab.errors import GnnlabError
from gnnlab.workloads.staged import EDGES, NODES, StagedLayer

if TYPE_CHECKING:
    from gnnlab.stages.export import Model

Arrays = dict[str, np.ndarray]


def pad(layer: StagedLayer, values: Mapping[str, np.ndarray], nodes: int, edges: int) -> Arrays:
    """The values of a graph for a model of `nodes` and `edges`: zeros are appended, edges join the padding node.

    Raises `GnnlabError`: the graph does not fit, or there is no row for the padding node.
    """
    own_nodes, own_edges = values["x"].shape[0], values["edge_index"].shape[1]
    if own_edges > edges or own_nodes + (own_edges < edges) > nodes:
        fits = f"does not fit into {nodes}x{edges}, with a node more where edges are added"
        raise GnnlabError(f"a graph of {own_nodes}x{own_edges} {fits}; take a larger model")
    padded = {}
    for name in values.keys() & layer.values.keys():
        array = values[name]
        padded[name] = np.zeros(layer.values[name].shape(nodes, edges), array.dtype)
        padded[name][tuple(map(slice, array.shape))] = array
    padded["edge_index"][:, own_edges:] = own_nodes
    return padded


def crop(layer: StagedLayer, values: Mapping[str, np.ndarray], nodes: int, edges: int) -> Arrays:
    """Views of what belongs to the graph of `nodes` and `edges` in the values of a larger model."""
    keep = {NODES: slice(nodes), EDGES: slice(edges)}
    dims = {name: layer.values[name].dims for name in values}
    return {name: array[tuple(keep.get(dim, slice(None)) for dim in dims[name])] for name, array in values.items()}


class InputAdapter:
    """The inputs and outputs of an exported model on graphs of one size. `notes`: what is done once and not timed."""

    def __init__(self, layer: StagedLayer, model: Model, nodes: int, edges: int) -> None:
        self.layer, self.model, self.nodes, self.edges = layer, model, nodes, edges
        self.notes: list[str] = []
        self._pads = model.nodes is not None and (model.nodes, model.edges) != (nodes, edges)
        self._graph, self._sorted = None, {}  # an edge_index, and what was made from it

    def inputs(self, values: Mapping[str, np.ndarray]) -> Arrays:
        """What the model reads, by name: padded, sorted for hand-built graphs, one column where rows alone count."""
        if self._pads:
            names = {"x", "edge_index", *self.model.reads} & values.keys()
            values = pad(self.layer, {n: values[n] for n in names}, self.model.nodes, self.model.edges)
        if self.model.exporter == "handbuilt" and self._graph is not values["edge_index"]:
            self._sort(values)
        read = {name: (self._sorted if name in self._sorted else values)[name] for name in self.model.reads}
        return read | {name: np.ascontiguousarray(read[name][:, :1]) for name in self.model.sized_by}

    def outputs(self, results: Sequence[np.ndarray]) -> Arrays:
        """What the block writes, by name, from the model's outputs in order; rows of padding nodes are cut off."""
        named = dict(zip(self.model.writes, results, strict=True))
        has_padding = self._pads or self.model.exporter == "handbuilt"
        return crop(self.layer, named, self.nodes, self.edges) if has_padding else named

    def _sort(self, values: Mapping[str, np.ndarray]) -> None:
        from gnnlab.stages.openvino_bags import preprocess  # SciPy, which other models do without

        start = time.perf_counter()
        self._sorted, self._graph = preprocess(self.model.reads, values), values["edge_index"]
        names, ms = " and ".join(self._sorted), (time.perf_counter() - start) * 1e3
        self.notes[:] = [f"{names} made from the edges in {ms:.3g} ms, once, not timed"]
