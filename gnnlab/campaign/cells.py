"""Measures one cell: a block of stages, at a size, on a unit.

    cell = Cell("sage", 500, nodes=1000, edges=5000, first=1, last=5, unit="openvino:CPU")
    outcome = measure(cell, Settings(models="outputs/quick/exported_models"))
    outcome.status, outcome.median_ms, outcome.ci_ms

Parity comes first: what differs from torch's float32 block on the cell's own graph is `wrong` and not timed. No cell is
ever filled from another unit.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import numpy as np

from gnnlab.campaign.cell_inputs import Cell, layer_of, load, values_of
from gnnlab.errors import GnnlabError, ParityError, Unavailable, one_line
from gnnlab.profiling import timing
from gnnlab.profiling.context import Conditions
from gnnlab.profiling.estimates import median_interval
from gnnlab.profiling.races import relative_error
from gnnlab.units.registry import find
from gnnlab.units.simulated import SCATTERS, SimulatedUnit
from gnnlab.units.unit import TOLERANCES, Loaded, Unit
from gnnlab.worker import Worker
from gnnlab.worker_process import DETAIL


@dataclass(frozen=True)
class Settings:
    """How cells are measured. `models`: the folder of exported models, for units that run those.

    `budget_s`: seconds of sampling for a cell; `target`: half-width of the interval over the median at which it is
    enough; `npu_cannot`: names of stages that the simulated NPU does not run.
    """

    models: str | None = None
    budget_s: float = 1.0
    target: float = timing.TARGET
    npu_cannot: tuple[str, ...] = SCATTERS

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        return cls(**{**data, "npu_cannot": tuple(data["npu_cannot"])})


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
    started: str = ""
    seconds: float = 0.0
    detail: str = ""

    @classmethod
    def unmeasured(cls, cell: Cell, status: str, reason: str | None, **fields: Any) -> CellResult:
        """The outcome of a cell that has no time."""
        return cls(status, reason, precision=cell.precision, threads=cell.threads, **fields)

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
        GnnlabError: the unit, the layer or the graph is not known, or the cell's numbers make no sense.
    """
    unit = _checked_unit(cell, settings)
    layer_of(cell.layer, cell.features)  # an unknown one is refused
    started, start = datetime.now(UTC), time.perf_counter()
    loaded: Loaded | None = None
    about: dict[str, Any] = {"precision": cell.precision, "threads": cell.threads}
    before = Conditions.now()
    Conditions(cell.threads, "highest").set()  # for the values, too: idle threads of one runtime get in another's way
    try:
        about["precision"] = unit.computes_in(cell.precision)
        loaded = load(unit, cell, settings.models, about["precision"])
        about |= {"device": loaded.device, "runtime_version": loaded.version}
        outcome = _measured(loaded, cell, settings, about["precision"])
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
    seconds = round(time.perf_counter() - start, 4)
    return replace(outcome, **about, started=started.isoformat(timespec="milliseconds"), seconds=seconds)


def measure_here(cell: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`measure` for a worker: from JSON to JSON."""
    return measure(Cell(**cell), Settings.from_json(settings)).to_json()


def ask(worker: Worker, cell: Cell, settings: Settings, timeout_s: float) -> CellResult:
    """Measure a cell in a worker. A process that hangs gives the outcome `timeout`, one that ends `failed`."""
    started, start = datetime.now(UTC), time.perf_counter()
    request = {"cell": asdict(cell), "settings": settings.to_json()}
    answer = worker.call(f"{__name__}:measure_here", request, timeout_s=timeout_s)
    if answer.status == "done":
        return CellResult.from_json(answer.value)
    when = {"started": started.isoformat(timespec="milliseconds"), "seconds": round(time.perf_counter() - start, 4)}
    status = "timeout" if answer.status == "timeout" else "failed"
    return CellResult.unmeasured(cell, status, answer.reason, detail=answer.detail, **when)


def _measured(loaded: Loaded, cell: Cell, settings: Settings, precision: str) -> CellResult:
    values = values_of(cell)
    if loaded.simulated_ms is not None:
        return timed("simulated", loaded.simulated_ms, tuple(loaded.notes))
    error, why = parity(cell, loaded.run(values), precision)
    if why is not None:
        return CellResult("wrong", why, parity_error=error, notes=tuple(loaded.notes))
    found = timing.measure(partial(loaded.run, values), target=settings.target, budget_s=settings.budget_s)
    return replace(timed("measured", found.samples_ms, (*loaded.notes, *found.notes)), parity_error=error)


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


def timed(status: str, samples: tuple[float, ...], notes: tuple[str, ...]) -> CellResult:
    """An outcome of these samples in ms."""
    return CellResult(
        status,
        samples_ms=samples,
        median_ms=float(np.median(samples)),
        ci_ms=median_interval(samples),
        std_ms=float(np.std(samples)),
        notes=notes,
    )


def _checked_unit(cell: Cell, settings: Settings) -> Unit:
    """The cell's unit. Raises `GnnlabError` where a number or the precision of the cell is invalid."""
    numbers = {name: getattr(cell, name) for name in ("features", "nodes", "edges", "first", "last", "threads")}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise GnnlabError(f"cell {cell.key}: {name}={value!r}; a whole number above 0 is needed")
    if cell.precision not in TOLERANCES:
        raise GnnlabError(f"cell {cell.key}: precision {cell.precision!r}; one of {', '.join(TOLERANCES)} is needed")
    unit = find(cell.unit)
    if isinstance(unit, SimulatedUnit) and unit.processor == "NPU":
        unit = replace(unit, cannot=frozenset(settings.npu_cannot))
    return unit
