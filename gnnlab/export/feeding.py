"""From the values of a graph to the inputs of an exported model, and from its outputs back.

Made once for a graph, outside the time: sorted edges or an adjacency matrix for the models that read those. Made at
each run, inside it: padding for a model of another size than the graph's, and cropping, which copies nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gnnlab.export.openvino_graphs import prepared
from gnnlab.export.padding import crop, pad

if TYPE_CHECKING:
    from gnnlab.export.artefacts import Artefact
    from gnnlab.workloads.staged import StagedLayer

Values = Mapping[str, np.ndarray]


class Feed:
    """The inputs and outputs of one exported model on graphs of one size."""

    def __init__(self, layer: StagedLayer, artefact: Artefact, nodes: int, edges: int) -> None:
        self.layer, self.artefact, self.nodes, self.edges = layer, artefact, nodes, edges
        self.notes: list[str] = []
        self._pads = artefact.nodes is not None and (artefact.nodes, artefact.edges) != (nodes, edges)
        self._prepares = artefact.exporter == "handbuilt"
        self._graph: np.ndarray | None = None
        self._made: dict[str, np.ndarray] = {}

    def inputs(self, values: Values) -> dict[str, np.ndarray]:
        """What the model reads, by name."""
        if self._pads:
            names = {"x", "edge_index", *self.artefact.reads} & values.keys()
            values = pad(self.layer, {n: values[n] for n in names}, self.artefact.nodes, self.artefact.edges)
        if self._prepares and (self._pads or self._graph is not values["edge_index"]):
            self._prepare(values)
        return {
            name: self._made[name] if name in self._made else self._input(name, values) for name in self.artefact.reads
        }

    def outputs(self, results: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """What the block writes, by name, from the model's outputs in order."""
        found = dict(zip(self.artefact.writes, results, strict=True))
        if self._pads or self._prepares:  # hand-built models may write a ghost's row
            return crop(self.layer, found, self.nodes, self.edges)
        return found

    def _input(self, name: str, values: Values) -> np.ndarray:
        if name in self.artefact.sized_by:  # its number of rows is all that is wanted: one column goes to the device
            return np.ascontiguousarray(values[name][:, :1])
        return values[name]

    def _prepare(self, values: Values) -> None:
        start = time.perf_counter()
        self._made = prepared(self.artefact.reads, values)
        self._graph = values["edge_index"]
        made = " and ".join(name for name in self.artefact.reads if name in self._made)
        when = "at each run" if self._pads else "once, not timed"
        self.notes[:] = [f"{made} made from the edges in {(time.perf_counter() - start) * 1e3:.3g} ms, {when}"]
