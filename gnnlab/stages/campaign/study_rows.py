"""What notebook 05 records in the lab's one table: frames whose columns are named as the fields of a row are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.optimize.study import BASELINE
from gnnlab.optimize.study_rows import race_rows
from gnnlab.profiling import estimates
from gnnlab.profiling.sampling import TARGET, half_width
from gnnlab.stages.campaign import sizes
from gnnlab.stages.campaign import table as tables
from gnnlab.stages.campaign.campaign import Answer, Done
from gnnlab.stages.campaign.cells import Cell
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.unit import Availability

S4_CELLS = 210 + 105  # of CPU and GPU, and of the NPU
LAYER, STAGES = ("sage", 500), range(1, 8)  # what S4 measures
NOWHERE = "(none here)"  # the chip of a unit that is not here
EXPORTED = "exported"  # the baseline of the race
SIMULATED, CONSTANTS = "simulated", "published constants"
DRAWN = "the spread of its samples is drawn, not seen"
STATUSES = {"measured": "ok", "simulated": "ok", "unavailable": "unavailable", "timeout": "timeout"}
_MS = {"unit": "ms", "better": "lower", "statistic": "median"}
ONE_BY_ONE = "cells were measured one by one; what the machine changed between them is not in the interval"


def cells(table: pd.DataFrame, available: Mapping[str, Availability]) -> pd.DataFrame:
    """A row for each cell, with every sample or the reason why it has none; the form is the unit, keys stage, size.

    A cell whose interval is wider than wanted says so in its notes.
    """
    return pd.DataFrame([_cell(row, available.get(row["unit"])) for row in table.to_dict("records")])


def _cell(row: Mapping[str, Any], found: Availability | None) -> dict[str, Any]:
    timed = row["status"] in tables.TIMED
    given = {name: row[name] for name in ("stage", "size", "parity_error", "precision")}
    given |= {"form": row["unit"], "origin": row["origin"], **_MS, **_conditions(row, found)}
    if not timed:
        return {**given, "status": STATUSES.get(row["status"], "failed"), "reason": row["reason"], "samples": ()}
    return {**given, "status": "ok", "samples": row["samples_ms"], "notes": "; ".join(_notes(row))}


def _conditions(row: Mapping[str, Any], found: Availability | None) -> dict[str, Any]:
    """Chip, runtime with its version, threads of the CPU; of a unit that is not here what its probe says."""
    known = found or Availability(False)
    runtime = row["runtime_version"] or known.version or units.find(row["unit"]).runtime
    runtime = CONSTANTS if row["origin"] == SIMULATED else runtime
    threads = row["threads"] if row["processor"] == "CPU" else 0
    return {"device": device(row["processor"], row["device"] or known.device), "runtime": runtime, "threads": threads}


def device(processor: str, chip: str) -> str:
    """ "CPU AMD EPYC"."""
    return f"{processor} {chip or NOWHERE}"


def _notes(row: Mapping[str, Any]) -> list[str]:
    notes = row["notes"].split("; ") if row["notes"] else []
    if row["origin"] == SIMULATED:
        return [*notes, DRAWN]
    if row["within"] or any(note.startswith("interval is") for note in notes):
        return notes
    half = half_width(row["ms"], (row["ms_low"], row["ms_high"]))
    return [*notes, f"interval is ±{half:.1%} after {row['n']} samples, wanted ±{TARGET:.0%}"]


def roof(found: pd.DataFrame, samples: int) -> pd.DataFrame:
    """Share of the roofline that each cell measured on this CPU reaches: its bound over each of its times.

    `samples`: of each ceiling, of which the best counts.
    """
    rows = cells(found, {})
    if rows.empty:
        return rows
    shares = [bound / np.asarray(ms) for bound, ms in zip(found["bound_ms"], found["samples_ms"], strict=True)]
    note = f"the ceilings are the best of {samples} samples and have no interval; this is that of the time alone"
    notes = [f"{own}; {note}" if own else note for own in rows["notes"]]
    return rows.assign(samples=shares, unit="share", better="higher", notes=notes)


def sums(found: pd.DataFrame) -> pd.DataFrame:
    """How many times as long stages one by one take as fused, for each block, size and unit."""
    names = {"unit": "form", "ratio": "value", "ci_low": "low", "ci_high": "high", "stage": "block"}
    told = {"unit": "x", "better": "neither", "statistic": "estimate", "interval": "95 % confidence"}
    made_up = found["origin"] == SIMULATED
    notes, runtimes = np.where(made_up, DRAWN, ONE_BY_ONE), found["runtime"].where(~made_up, CONSTANTS)
    return found.rename(columns=names).assign(**told, notes=notes, runtime=runtimes)


def fused(raced: pd.DataFrame, threads: int) -> pd.DataFrame:
    """The races between the graph built by hand and the exported one, which is the baseline."""
    rows = race_rows(raced, ["size"]).replace({c: {BASELINE: EXPORTED} for c in ("form", "baseline")})
    return rows.assign(runtime=f"OpenVINO {version('openvino')}", threads=threads)


# ---- what the campaign itself took ----------------------------------------------------------------------------------


def campaign_time(done: Done, available: Mapping[str, Availability]) -> pd.DataFrame:
    """Two rows: minutes of this campaign, hours of one with as many cells as S4 has.

    Neither has a value where cells were known before: their time is of an earlier run, and no further sample.
    """
    known = f"{done.known} of {len(done.answers)} cells were known from an earlier run; anew: true measures all again"
    minutes, hours = _minutes(done, available), _hours(done, available)
    if done.known:
        minutes, hours = (_unavailable(row, row.get("reason") or known) for row in (minutes, hours))
    return pd.DataFrame([{**row, **_where(done, available)} for row in (minutes, hours)])


def _minutes(done: Done, available: Mapping[str, Availability]) -> dict[str, Any]:
    """Only where all 7 stages were asked for at all 15 sizes, on every unit that is usable here."""
    row = {"form": "this campaign", "unit": "min", "better": "lower", "origin": "measured", "statistic": "single"}
    if lacking := _lacking(done, available):
        return _unavailable(row, f"needs the 7 stages at S4's 15 sizes on every unit here; {lacking}; params/full")
    counted = [a for a in done.answers if _real(a.cell.unit) and available[a.cell.unit].usable and _single(a.cell)]
    minutes = sum(a.took_s for a in counted) / 60
    return {**row, "status": "ok", "value": minutes, "n": 1, "notes": f"{_counted(counted)}; {_SPENT}"}


_SPENT = "with loading, parity and second attempts; without exporting, probing the units and the canary"


def _hours(done: Done, available: Mapping[str, Availability]) -> dict[str, Any]:
    """At the mean time of the single stages measured here, on units that were asked for all of S4's sizes.

    Cells of a unit share what it takes to load, so units are resampled. S4's own GPU and NPU are not among them, and no
    interval holds how they would differ: the origin is extrapolated.
    """
    row = {"form": "as many cells as S4 measured", "unit": "h", "better": "lower", "origin": "extrapolated"}
    row |= {"statistic": "estimate"}
    asked = {answer.cell for answer in done.answers}
    whole = [unit for unit in available if _real(unit) and _whole(unit, asked)]
    counted = [a for a in done.answers if a.cell.unit in whole and _single(a.cell) and a.outcome.status == "measured"]
    if not counted:
        return _unavailable(row, "needs a usable unit with the 7 stages at S4's 15 sizes; params/full measures them")
    hours, of_unit = [a.took_s * S4_CELLS / 3600 for a in counted], [a.cell.unit for a in counted]
    found = estimates.over_clusters(hours, of_unit, "mean")
    low, high = (None, None) if found.low is None else (max(found.low, 0.0), found.high)
    samples = int(np.median([len(a.outcome.samples_ms) for a in counted]))
    minutes = sum(a.took_s for a in counted) / 60
    notes = f"{len(counted)} measured cells of {len(set(of_unit))} units took {minutes:.2f} minutes, {_SPENT}; scaled "
    notes += f"to S4's {S4_CELLS}; {samples} samples a cell in the median, S4 has 50 after 10"
    kind = "none" if low is None else "95 % confidence"
    ends = {"value": found.value, "low": low, "high": high, "n": found.n, "interval": kind}
    return {**row, "status": "ok", **ends, "notes": notes}


def _unavailable(row: Mapping[str, Any], reason: str) -> dict[str, Any]:
    kept = {name: row[name] for name in ("form", "unit", "better", "origin", "statistic")}
    return {**kept, "status": "unavailable", "reason": reason}


def _lacking(done: Done, available: Mapping[str, Availability]) -> str:
    """What was not asked for, of every real unit that is usable or was not tried."""
    tried = [unit for unit in available if _real(unit)]
    if untried := [unit for unit in units.all_units() if _real(unit) and unit not in available]:
        return f"{', '.join(untried)} not tried"
    asked = {answer.cell for answer in done.answers}
    lacking = [unit for unit in tried if available[unit].usable and not _whole(unit, asked)]
    if lacking:
        return f"{', '.join(lacking)} not asked for all of them"
    return "" if any(available[unit].usable for unit in tried) else "no unit is usable"


def _real(unit: str) -> bool:
    return units.find(unit).origin == "measured"


def _whole(unit: str, asked: set[Cell]) -> bool:
    got = {(c.nodes, c.edges, c.first) for c in asked if c.unit == unit and _single(c)}
    return all((size.nodes, size.edges, stage) in got for size in sizes.read(["study"]) for stage in STAGES)


def _single(cell: Cell) -> bool:
    return cell.first == cell.last and cell.first in STAGES and (cell.layer, cell.features) == LAYER


def _counted(answers: Sequence[Answer]) -> str:
    """How many cells, what became of them, and how many intervals are within 2 %."""
    measured = [a.outcome for a in answers if a.outcome.status == "measured"]
    none = sum(a.outcome.status == "unavailable" for a in answers)
    within = sum(tables.within(o.median_ms, o.ci_ms, len(o.samples_ms)) for o in measured)
    failed = len(answers) - len(measured) - none
    return (
        f"{len(answers)} cells of {len({a.cell.unit for a in answers})} units: {len(measured)} measured, {none} that "
        f"their unit does not have, {failed} failed; {within} intervals within 2 %, {len(measured) - within} wider and "
        "marked"
    )


def _where(done: Done, available: Mapping[str, Availability]) -> dict[str, Any]:
    """The chips, runtimes, precisions and threads of the cells that were measured."""
    measured = [a for a in done.answers if a.outcome.status == "measured"]
    chips = [device(units.find(a.cell.unit).processor, a.outcome.device) for a in measured]
    threads = {a.outcome.threads for a in measured if units.find(a.cell.unit).processor == "CPU"}
    return {
        "device": ", ".join(dict.fromkeys(chips)) or device("CPU", ""),
        "runtime": ", ".join(dict.fromkeys(a.outcome.runtime_version for a in measured)),
        "precision": ", ".join(dict.fromkeys(a.outcome.precision for a in measured)),
        "threads": max(threads, default=0),
    }
