"""From the values of a graph to the inputs of an exported model, and from its outputs back.

    adapter = InputAdapter(layer, model, nodes, edges)         # a model on graphs of one size
    outputs = adapter.outputs(run(adapter.inputs(values)))

A model of fixed size serves smaller graphs by padding. Edges that are added have to end somewhere; between real nodes
they would change sums and counts. So they join the padding node, the first row behind the graph, and it is cropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gnnlab.errors import GnnlabError
from gnnlab.stages.devices import once_per_graph
from gnnlab.workloads.staged import EDGES, NODES, StagedLayer

if TYPE_CHECKING:
    from gnnlab.stages.export import Model

Arrays = dict[str, np.ndarray]


def fits(nodes: int, edges: int, size: tuple[int, int]) -> bool:
    """Does a graph fit into a model of `size` (nodes, edges)? Where edges are added, the padding node needs a row."""
    return edges <= size[1] and nodes + (edges < size[1]) <= size[0]


def pad(layer: StagedLayer, values: Mapping[str, np.ndarray], nodes: int, edges: int) -> Arrays:
    """The values of a graph for a model of `nodes` and `edges`: zeros are appended, edges join the padding node.

    Raises `GnnlabError`: the graph does not fit, or there is no row for the padding node.
    """
    own_nodes, own_edges = values["x"].shape[0], values["edge_index"].shape[1]
    if not fits(own_nodes, own_edges, (nodes, edges)):
        room = f"does not fit into {nodes}x{edges}, with a node more where edges are added"
        raise GnnlabError(f"a graph of {own_nodes}x{own_edges} {room}; take a larger model")
    padded = {}
    for name, array in values.items():
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
        self.layer, self.model, self.size = layer, model, (nodes, edges)
        self.pads = model.size not in (None, self.size)
        self.notes: list[str] = []
        self._sorted = once_per_graph(self._sort, self.notes)

    def inputs(self, values: Mapping[str, np.ndarray]) -> Arrays:
        """What the model reads, by name: padded, sorted for hand-built graphs, one column where rows alone count."""
        if self.pads:
            values = pad(self.layer, {n: values[n] for n in {"x", "edge_index", *self.model.reads}}, *self.model.size)
        if self.model.exporter == "handbuilt":
            values = {**values, **self._sorted(values)}
        read = {name: values[name] for name in self.model.reads}
        read |= {name: read[name][:, :1] for name in self.model.sized_by}
        return {name: np.ascontiguousarray(array) for name, array in read.items()}

    def outputs(self, results: Sequence[np.ndarray]) -> Arrays:
        """What the block writes, by name, from the model's outputs in order; rows of padding nodes are cut off."""
        return crop(self.layer, dict(zip(self.model.writes, results, strict=True)), *self.size)

    def _sort(self, values: Mapping[str, np.ndarray]) -> Arrays:
        from gnnlab.stages.segment_sums import preprocess  # SciPy, which other models do without

        return preprocess(self.model.reads, values)
