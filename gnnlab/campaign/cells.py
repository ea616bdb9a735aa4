"""A cell: a block of stages, at a size, on a unit; its inputs, and how it is measured.

    cell = Cell("sage", 500, nodes=1000, edges=5000, first=1, last=5, unit="openvino:CPU")
    outcome = measure(cell, Settings(models="outputs/quick/exported_models"))
    outcome.status, outcome.median_ms, outcome.ci_ms

Parity comes first: what differs from torch's float32 block on the cell's own graph is `wrong` and not timed. No cell is
ever filled from another unit.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gnnlab.child import DETAIL, Worker
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.measure import timing
from gnnlab.measure.conditions import Conditions
from gnnlab.measure.estimates import LEAST_SAMPLES, median_interval
from gnnlab.units.registry import find
from gnnlab.units.unit import TOLERANCES, Loaded, Unit
from gnnswap import parity
from gnnswap.errors import one_line

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


# ---- measured -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """How cells are measured. `models`: the folder of exported models, for units that run those; `budget_s`: seconds of
    sampling for a cell."""

    models: str | None = None
    budget_s: float = 1.0


@dataclass(frozen=True)
class CellResult:
    """The outcome of a cell. Times in ms; `precision`: the one that it computed in; `detail`: the end of the traceback
    of what a unit raised."""

    status: Literal["measured", "simulated", "failed", "timeout", "unavailable", "wrong"]
    reason: str | None = None
    samples_ms: tuple[float, ...] = ()
    median_ms: float | None = None
    ci_ms: tuple[float, float] | None = None
    std_ms: float | None = None
    parity_error: float | None = None
    device: str = ""
    runtime_version: str = ""
    precision: str = ""
    threads: int = 0
    notes: tuple[str, ...] = ()
    detail: str = ""

    @classmethod
    def unmeasured(cls, cell: Cell, status: str, reason: str | None, detail: str = "") -> CellResult:
        """The outcome of a cell that has no time."""
        return cls(status, reason, precision=cell.precision, threads=cell.threads, detail=detail)

    @classmethod
    def timed(cls, status: str, samples_ms: tuple[float, ...], notes: tuple[str, ...] = ()) -> CellResult:
        """The outcome of these samples, with their median, its interval and their standard deviation."""
        numbers = {"median_ms": float(np.median(samples_ms)), "std_ms": float(np.std(samples_ms))}
        interval = median_interval(samples_ms) if len(samples_ms) >= LEAST_SAMPLES else None
        return cls(status, samples_ms=samples_ms, ci_ms=interval, notes=notes, **numbers)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CellResult:
        """Reads `to_json` back."""
        lists = {name: tuple(data[name]) for name in ("samples_ms", "ci_ms", "notes") if data[name] is not None}
        return cls(**{**data, **lists})


def measure(cell: Cell, settings: Settings) -> CellResult:
    """Measure a cell in this process. Whatever goes wrong with the cell is an outcome, too.

    Raises:
        GnnlabError: the unit or the layer is not known.
    """
    unit = find(cell.unit)
    layer_of(cell.layer, cell.features)  # an unknown one is refused
    loaded: Loaded | None = None
    about: dict[str, Any] = {"precision": cell.precision, "threads": cell.threads}
    before = Conditions.now()
    Conditions(cell.threads, "highest").set()  # for the values, too: idle threads of one runtime get in another's way
    try:
        about["precision"] = unit.computes_in(cell.precision)
        loaded = load(unit, cell, settings.models, about["precision"])
        about |= {"device": loaded.device, "runtime_version": loaded.version}
        outcome = _measured(loaded, cell, settings.budget_s, about["precision"])
    except Unavailable as error:
        outcome = CellResult("unavailable", str(error))
    except MemoryError:
        outcome = CellResult("failed", "out of memory")
    except Exception as error:
        outcome = CellResult("failed", one_line(error), detail=traceback.format_exc()[-DETAIL:])
    finally:
        if loaded is not None:
            loaded.close()
        before.set()
    return replace(outcome, **about)


def measure_here(cell: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`measure` for a worker: from JSON to JSON."""
    return measure(Cell(**cell), Settings(**settings)).to_json()


def ask(worker: Worker, cell: Cell, settings: Settings, timeout_s: float) -> CellResult:
    """Measure a cell in a worker. A process that hangs gives the outcome `timeout`, one that ends `failed`."""
    request = {"cell": asdict(cell), "settings": asdict(settings)}
    answer = worker.call(f"{__name__}:measure_here", request, timeout_s=timeout_s)
    if answer.status == "done":
        return CellResult.from_json(answer.value)
    status = "timeout" if answer.status == "timeout" else "failed"
    return CellResult.unmeasured(cell, status, answer.reason, answer.detail)


def _measured(loaded: Loaded, cell: Cell, budget_s: float, precision: str) -> CellResult:
    if loaded.simulated_ms is not None:
        return CellResult.timed("simulated", loaded.simulated_ms, tuple(loaded.notes))
    values = values_of(cell)
    error, why = compared(cell, loaded.run(values), precision)
    if why is not None:
        return CellResult("wrong", why, parity_error=error, notes=tuple(loaded.notes))
    times = timing.measure(partial(loaded.run, values), budget_s=budget_s)
    outcome = CellResult.timed("measured", times.samples_ms, (*loaded.notes, *times.notes))
    return replace(outcome, parity_error=error)


def compared(cell: Cell, outputs: Mapping[str, np.ndarray], precision: str) -> tuple[float | None, str | None]:
    """The relative error of a unit's outputs against torch's float32 block (None where it is not finite), and the
    reason not to time the cell (None where they agree)."""
    values, block = values_of(cell), layer_of(cell.layer, cell.features).block(cell.first, cell.last)
    error = parity.error(outputs, {name: values[name] for name in block.writes}, name=cell.unit)
    if error.why:
        return None, f"{error.of}: {error.why}"
    if error <= TOLERANCES[precision]:
        return float(error), None
    allowed = f"allowed is {TOLERANCES[precision]:.0e} in {precision}"
    why = f"differs from torch's float32 block by {error:.2e} relative, {allowed}"
    return float(error) if math.isfinite(error) else None, why
