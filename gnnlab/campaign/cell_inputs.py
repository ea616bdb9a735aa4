"""A cell, and the inputs of its measurement: its layer, the values on its graph, the exported model of its unit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.units.unit import Loaded, Unit

if TYPE_CHECKING:
    from torch import Tensor

    from gnnlab.export.artefacts import Artefact
    from gnnlab.workloads.staged import StagedLayer

RANDOM = "random"  # the graph of a cell that names none: drawn for its size


@dataclass(frozen=True)
class Cell:
    """A block of stages, `first`..`last`, at a size, on a unit. `graph`: "random", or one of that size (`graphs.load`).

    `precision`: float32|bfloat16|float16, set on the unit; `threads` of the CPU.
    """

    layer: str
    features: int
    nodes: int
    edges: int
    first: int
    last: int
    unit: str
    precision: str = "float32"
    threads: int = 1
    graph: str = RANDOM

    @property
    def key(self) -> str:
        """`1000,1000,openvino:CPU,1`: nodes, edges, unit, stage; "1-5" for a block of several."""
        stages = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.nodes},{self.edges},{self.unit},{stages}"


@lru_cache(maxsize=4)
def layer_of(name: str, features: int) -> StagedLayer:
    """The layer of that name and width. Its weights are always the same."""
    from gnnlab.workloads.graphsage import LAYERS

    if name not in LAYERS:
        raise GnnlabError(f"layer {name!r} is not known; one of {', '.join(LAYERS)}")
    return LAYERS[name](features)


def values_of(cell: Cell) -> dict[str, np.ndarray]:
    """Every value of the layer on the cell's graph, by name, computed by torch's float32 blocks. Read only."""
    return _values(cell.layer, cell.features, cell.nodes, cell.edges, cell.graph)


@lru_cache(maxsize=2)  # a cell reads its values several times
def _values(layer: str, features: int, nodes: int, edges: int, graph: str) -> dict[str, np.ndarray]:
    import torch

    with torch.inference_mode(False), torch.no_grad():
        tensors = layer_of(layer, features).trace(**graph_of(nodes, edges, features, graph))
        return {name: tensor.numpy() for name, tensor in tensors.items()}


@lru_cache(maxsize=2)
def graph_of(nodes: int, edges: int, features: int, graph: str) -> dict[str, Tensor]:
    """`x` (N, F) and `edge_index` (2, E) of a cell; a graph of another size than the cell's is a `GnnlabError`."""
    from gnnlab.workloads.graphsage import inputs_of, random_inputs

    if graph == RANDOM:
        return random_inputs(nodes, edges, features)
    from gnnlab.workloads import graphs

    loaded = graphs.load(graph)
    has = (int(loaded.num_nodes), int(loaded.edge_index.shape[1]))
    if has != (nodes, edges):
        raise GnnlabError(f"graph {graph} has {has[0]} nodes and {has[1]} edges, the cell says {nodes} and {edges}")
    return inputs_of(loaded, features)


def load(unit: Unit, cell: Cell, models: str | None, precision: str) -> Loaded:
    """The stages of a cell on its unit, ready for its size. Raises `Unavailable` where the unit cannot run them."""
    layer, model = layer_of(cell.layer, cell.features), model_for(unit, cell, models)
    size = {"nodes": cell.nodes, "edges": cell.edges}
    return unit.load(layer, cell.first, cell.last, model, **size, threads=cell.threads, precision=precision)


def model_for(unit: Unit, cell: Cell, models: str | None) -> Artefact | None:
    """The exported model that a unit runs for a cell, from the folder `models`; None where there is none.

    A ready one comes before others, and of static ones the smallest that the cell's graph fits. Raises `Unavailable`
    where no folder is given.
    """
    if unit.exporter is None:
        return None
    if models is None:
        raise Unavailable(f"{unit.name} runs exported models, and no folder of them was given (notebook 04 makes one)")
    from gnnlab.export.artefacts import of_block

    of_stages = of_block(Path(models), cell.layer, cell.features, cell.first, cell.last, unit.exporter)
    fitting = [m for m in of_stages if m.form == (unit.form or m.form) and _holds(m, cell, unit.static_shapes)]
    return min(fitting, key=lambda model: (not model.ready, model.edges or 0, model.nodes or 0), default=None)


def _holds(model: Artefact, cell: Cell, static: bool) -> bool:
    """Does a graph of the cell's size fit? Padded edges need one more node for their ends."""
    if model.dynamic or not static:
        return model.dynamic and not static
    return model.edges >= cell.edges and model.nodes >= cell.nodes + (model.edges > cell.edges)
