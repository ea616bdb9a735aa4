"""Measures one cell: a block of stages, at a size, on a unit.

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
from functools import partial
from typing import Any, Literal

import numpy as np

from gnnlab.campaign.cell_inputs import Cell, layer_of, load, values_of
from gnnlab.errors import ParityError, Unavailable, one_line
from gnnlab.profiling import timing
from gnnlab.profiling.context import Conditions
from gnnlab.profiling.estimates import median_interval
from gnnlab.profiling.races import relative_error
from gnnlab.units.registry import find
from gnnlab.units.unit import TOLERANCES, Loaded
from gnnlab.worker import Worker
from gnnlab.worker_process import DETAIL


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
        return cls(status, samples_ms=samples_ms, ci_ms=median_interval(samples_ms), notes=notes, **numbers)

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
    values = values_of(cell)
    if loaded.simulated_ms is not None:
        return CellResult.timed("simulated", loaded.simulated_ms, tuple(loaded.notes))
    error, why = parity(cell, loaded.run(values), precision)
    if why is not None:
        return CellResult("wrong", why, parity_error=error, notes=tuple(loaded.notes))
    times = timing.measure(partial(loaded.run, values), budget_s=budget_s)
    outcome = CellResult.timed("measured", times.samples_ms, (*loaded.notes, *times.notes))
    return replace(outcome, parity_error=error)


def parity(cell: Cell, outputs: Mapping[str, np.ndarray], precision: str) -> tuple[float | None, str | None]:
    """The relative error of a unit's outputs against torch's float32 block (None where it is not finite), and the
    reason not to time the cell (None where they agree)."""
    values, block = values_of(cell), layer_of(cell.layer, cell.features).block(cell.first, cell.last)
    try:
        error = relative_error({name: values[name] for name in block.writes}, outputs, cell.unit)
    except ParityError as other_shape:
        return None, str(other_shape)
    if error <= TOLERANCES[precision]:
        return error, None
    allowed = f"allowed is {TOLERANCES[precision]:.0e} in {precision}"
    why = f"differs from torch's float32 block by {error:.2e} relative, {allowed}"
    return error if math.isfinite(error) else None, why
