"""How long a campaign took, as rows: minutes of this one, hours of one with as many cells as S4 measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.campaign import sizes
from gnnlab.campaign.campaign import CellAnswer, Finished
from gnnlab.campaign.cells import Cell
from gnnlab.campaign.table import device, within
from gnnlab.profiling import estimates
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability

S4_CELLS = 210 + 105  # of CPU and GPU, and of the NPU
LAYER, STAGES = ("sage", 500), range(1, 8)  # what S4 measures
SPENT = "with loading, parity and second attempts; without exporting, probing the units and the reference workload"


def duration_rows(done: Finished, available: Mapping[str, Availability]) -> pd.DataFrame:
    """Two rows. Neither has a value where cells were known before: their time is of an earlier run.

    The minutes need all 7 stages at all 15 sizes of S4 on every unit that is usable here. The hours are extrapolated
    from the mean time of the single stages of whole units; S4's own GPU and NPU are not among them, and no interval
    holds how they would differ. Cells of a unit share what it takes to load, so units are resampled.
    """
    minutes = {"form": "this campaign", "unit": "min", "origin": "measured", "statistic": "single"}
    hours = {"form": "as many cells as S4 measured", "unit": "h", "origin": "extrapolated", "statistic": "estimate"}
    asked = {answer.cell for answer in done.answers}
    tried = [unit for unit in available if _real(unit)]
    whole = [unit for unit in tried if _whole(unit, asked)]
    counted = [a for a in done.answers if _single(a.cell) and a.cell.unit in tried and available[a.cell.unit].usable]
    timed = [a for a in counted if a.cell.unit in whole and a.outcome.status == "measured"]
    if lacking := _lacking(tried, whole, available):
        minutes["reason"] = f"needs the 7 stages at S4's 15 sizes on every unit here; {lacking}; params/full"
    else:
        minutes |= {"value": sum(a.took_s for a in counted) / 60, "n": 1, "notes": f"{_counted(counted)}; {SPENT}"}
    if timed:
        hours |= _hours(timed)
    else:
        hours["reason"] = "needs a usable unit with the 7 stages at S4's 15 sizes; params/full measures them"
    if done.known:
        known = f"{done.known} of {len(done.answers)} cells were known from an earlier run; anew: true measures all"
        minutes, hours = ({"reason": known, **row} for row in (minutes, hours))
    shared = {"better": "lower", **_where(done)}
    rows = []
    for row in (minutes, hours):
        fixed = {name: row[name] for name in ("form", "unit", "origin", "statistic")}
        told = {"status": "unavailable", "reason": row["reason"]} if "reason" in row else {**row, "status": "ok"}
        rows.append({**fixed, **told, **shared})
    return pd.DataFrame(rows)


def _hours(timed: list[CellAnswer]) -> dict[str, Any]:
    found = estimates.over_clusters([a.took_s * S4_CELLS / 3600 for a in timed], [a.cell.unit for a in timed], "mean")
    samples = int(np.median([len(a.outcome.samples_ms) for a in timed]))
    notes = (
        f"{len(timed)} measured cells of {len({a.cell.unit for a in timed})} units took "
        f"{sum(a.took_s for a in timed) / 60:.2f} minutes, {SPENT}; scaled to S4's {S4_CELLS}; {samples} samples a "
        "cell in the median, S4 has 50 after 10"
    )
    ends = {"low": None, "high": None, "interval": "none"}
    if found.low is not None:
        ends = {"low": max(found.low, 0.0), "high": found.high, "interval": estimates.CONFIDENCE}
    return {"value": found.value, "n": found.n, **ends, "notes": notes}


def _lacking(tried: list[str], whole: list[str], available: Mapping[str, Availability]) -> str:
    """What was not asked for, of every real unit that is usable or was not tried."""
    if untried := [unit for unit in units.all_units() if _real(unit) and unit not in available]:
        return f"{', '.join(untried)} not tried"
    if lacking := [unit for unit in tried if available[unit].usable and unit not in whole]:
        return f"{', '.join(lacking)} not asked for all of them"
    return "" if any(available[unit].usable for unit in tried) else "no unit is usable"


def _real(unit: str) -> bool:
    return units.find(unit).origin == "measured"


def _whole(unit: str, asked: set[Cell]) -> bool:
    got = {(c.nodes, c.edges, c.first) for c in asked if c.unit == unit and _single(c)}
    return all((size.nodes, size.edges, stage) in got for size in sizes.read(["study"]) for stage in STAGES)


def _single(cell: Cell) -> bool:
    return cell.first == cell.last and cell.first in STAGES and (cell.layer, cell.features) == LAYER


def _counted(answers: list[CellAnswer]) -> str:
    """How many cells, what became of them, and how many intervals are within 2 %."""
    measured = [a.outcome for a in answers if a.outcome.status == "measured"]
    none = sum(a.outcome.status == "unavailable" for a in answers)
    narrow = sum(within(o.median_ms, o.ci_ms, len(o.samples_ms)) for o in measured)
    return (
        f"{len(answers)} cells of {len({a.cell.unit for a in answers})} units: {len(measured)} measured, {none} that "
        f"their unit does not have, {len(answers) - len(measured) - none} failed; {narrow} intervals within 2 %, "
        f"{len(measured) - narrow} wider and marked"
    )


def _where(done: Finished) -> dict[str, Any]:
    """The chips, runtimes, precisions and threads of the cells that were measured."""
    measured = [a for a in done.answers if a.outcome.status == "measured"]
    on = [(units.find(a.cell.unit).processor, a.outcome) for a in measured]
    return {
        "device": ", ".join(dict.fromkeys(device(p, o.device) for p, o in on)) or device("CPU", ""),
        "runtime": ", ".join(dict.fromkeys(o.runtime_version for _, o in on)),
        "precision": ", ".join(dict.fromkeys(o.precision for _, o in on)),
        "threads": max((o.threads for p, o in on if p == "CPU"), default=0),
    }
