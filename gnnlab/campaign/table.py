"""The measurements of a campaign as a table, and rows for the lab's one table that follow from it.

    cells = table(checkpoints.raw(folder))
    lab.record("latency", cell_rows(cells, available), keys=["size", "stage"])
    lab.record("stage_sums", sum_rows(cells), keys=["size", "block"])
    winners(cells)            # which unit is fastest at which stage, by how much

A cell that has no time has none in the table either: nothing is filled in from another unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.campaign import sizes
from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.profiling.estimates import CONFIDENCE, LEAST_SAMPLES, over_clusters
from gnnlab.profiling.sampling import TARGET, half_width
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability

MEASURED, SIMULATED = "measured", "simulated"
TIMED = (MEASURED, SIMULATED)
NOWHERE = "(none here)"  # the chip of a unit that is not here
CONSTANTS = "published constants"
DRAWN = "the spread of its samples is drawn, not seen"
ONE_BY_ONE = "cells were measured one by one; what the machine changed between them is not in the interval"
S4_CELLS = 210 + 105  # of CPU and GPU, and of the NPU
S4_LAYER = ("sage", 500)
SPENT = "with loading and parity; without exporting, probing the units and the reference workload"
STATUSES = {MEASURED: "ok", SIMULATED: "ok", "unavailable": "unavailable", "timeout": "timeout"}


def table(measurements: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each cell, by stage, size and unit.

    Columns: key, layer, features, size, nodes, edges, first, last, fused, stage ("3 REDUCE_SUM"), unit,
    processor, origin, status, ms, ms_low, ms_high, std_ms, n, samples_ms (n,), within (is the interval within 2 %?),
    parity_error, precision, threads, device, runtime_version, took_s (loading included), reason, notes; of cells
    without a time the numbers are NaN.

    Raises:
        GnnlabError: there are no measurements.
    """
    if not measurements:
        raise GnnlabError("no measurements; measure first: gnnlab stages --measure")
    rows = [_row(key, each["cell"], each["outcome"], each["took_s"]) for key, each in measurements.items()]
    order = ["nodes", "edges", "fused", "first", "last"]
    return pd.DataFrame(rows).sort_values(order, kind="stable", ignore_index=True)


def _row(key: str, cell: Mapping[str, Any], outcome: Mapping[str, Any], took_s: float) -> dict[str, Any]:
    unit, samples = units.find(cell["unit"]), outcome["samples_ms"]
    median, ci = outcome["median_ms"], outcome["ci_ms"] or (np.nan, np.nan)
    timed = outcome["status"] in TIMED
    first, last = cell["first"], cell["last"]
    block = layer_of(cell["layer"], cell["features"]).block(first, last)
    return {
        **{name: cell[name] for name in ("layer", "features", "nodes", "edges", "first", "last", "unit")},
        **{name: outcome[name] for name in ("status", "parity_error", "precision", "threads", "device")},
        "key": key,
        "size": f"{cell['nodes']}/{cell['edges']}",
        "fused": first != last,
        "stage": f"{first if first == last else f'{first}-{last}'} {block.name}",
        "processor": unit.processor,
        "origin": unit.origin,
        "ms": median if timed else np.nan,
        "ms_low": ci[0],
        "ms_high": ci[1],
        "std_ms": outcome["std_ms"] if timed else np.nan,
        "n": len(samples),
        "samples_ms": tuple(samples),
        "within": timed and within(median, ci, len(samples)),
        "runtime_version": outcome["runtime_version"],
        "took_s": took_s,
        "reason": outcome["reason"] or "",
        "notes": "; ".join(outcome["notes"]),
    }


def within(median: float, ci: tuple[float, float], n: int) -> bool:
    """Is the interval of `n` samples within 2 % of their median?"""
    return n >= LEAST_SAMPLES and half_width(median, ci) <= TARGET


def measured(cells: pd.DataFrame) -> pd.DataFrame:
    return cells[cells["status"] == MEASURED]


def reasons(cells: pd.DataFrame) -> str:
    """The reasons of cells without a time, by unit."""
    return "; ".join(dict.fromkeys(cells["unit"] + ": " + cells["reason"]))


def need_times(cells: pd.DataFrame, skip: Callable[[str], None]) -> None:
    """Call `skip` with the reasons of the units where no cell has a time."""
    if timed(cells).empty:
        skip(f"no cell has a time: {reasons(cells)}")


def timed(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with a time, measured or simulated."""
    return cells[cells["status"].isin(TIMED)]


# ---- rows of the lab's one table ------------------------------------------------------------------------------------


def cell_rows(cells: pd.DataFrame, available: Mapping[str, Availability]) -> pd.DataFrame:
    """A row for each cell, with every sample or the reason why it has none; the form is the unit, keys stage, size.

    A cell whose interval is wider than wanted says so in its notes.
    """
    return pd.DataFrame([_cell_row(cell, available.get(cell["unit"])) for cell in cells.to_dict("records")])


def _cell_row(cell: Mapping[str, Any], available: Availability | None) -> dict[str, Any]:
    """`available`: by the probe, which gives chip and runtime of a unit that is not here."""
    known, simulated = available or Availability(False), cell["origin"] == SIMULATED
    runtime = cell["runtime_version"] or known.version or units.find(cell["unit"]).runtime
    given = {name: cell[name] for name in ("stage", "size", "parity_error", "precision", "origin")}
    given |= {
        "form": cell["unit"],
        "unit": "ms",
        "better": "lower",
        "statistic": "median",
        "device": device(cell["processor"], cell["device"] or known.device),
        "runtime": CONSTANTS if simulated else runtime,
        "threads": cell["threads"] if cell["processor"] == "CPU" else 0,
        "status": STATUSES.get(cell["status"], "failed"),
    }
    if cell["status"] not in TIMED:
        return {**given, "reason": cell["reason"], "samples": ()}
    return {**given, "samples": cell["samples_ms"], "notes": "; ".join(_notes(cell))}


def device(processor: str, chip: str) -> str:
    """ "CPU AMD EPYC"."""
    return f"{processor} {chip or NOWHERE}"


def _notes(cell: Mapping[str, Any]) -> list[str]:
    notes = cell["notes"].split("; ") if cell["notes"] else []
    if cell["origin"] == SIMULATED:
        return [*notes, DRAWN]
    if cell["within"] or any(note.startswith("interval is") for note in notes):
        return notes
    half = half_width(cell["ms"], (cell["ms_low"], cell["ms_high"]))
    return [*notes, f"interval is ±{100 * half:.1f} % after {cell['n']} samples, wanted ±{100 * TARGET:.0f} %"]


def roof_rows(cells: pd.DataFrame, bound_ms: Callable[[int, int, int, int], float], samples: int) -> pd.DataFrame:
    """Share of a bound that each cell measured on this CPU reaches: the bound over each of its times.

    `bound_ms(first, last, nodes, edges)`; `samples`: of each ceiling behind it, of which the best counts.
    """
    on_cpu = measured(cells)
    on_cpu = on_cpu[on_cpu["processor"] == "CPU"]
    at = zip(*(on_cpu[name] for name in ("first", "last", "nodes", "edges", "samples_ms")), strict=True)
    shares = [bound_ms(first, last, n, e) / np.asarray(ms) for first, last, n, e, ms in at]
    rows = cell_rows(on_cpu, {})
    if rows.empty:
        return rows
    note = f"the ceilings are the best of {samples} samples and have no interval; this is that of the time alone"
    notes = [f"{own}; {note}" if own else note for own in rows["notes"]]
    return rows.assign(samples=shares, unit="share", better="higher", notes=notes)


def sum_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """Stages by themselves, added up, over the same stages fused on the same unit: above 1, fusing pays.

    Only where all of them have a time. Keys are size and block, the form is the unit. The interval goes from the sum's
    low end over the block's high end to the opposite, which holds 95 % at the least; `n` is the least of their samples.
    """
    rows = []
    for (_, _), part in timed(cells).groupby(["size", "unit"], sort=False):
        alone = part[~part["fused"]].set_index("first", drop=False)
        for block in part[part["fused"]].to_dict("records"):
            numbers = range(block["first"], block["last"] + 1)
            if set(numbers) <= set(alone.index):
                rows.append(_sum_row(alone.loc[list(numbers)], block))
    return pd.DataFrame(rows)


def _sum_row(alone: pd.DataFrame, block: Mapping[str, Any]) -> dict[str, Any]:
    total = float(alone["ms"].sum())
    below = float(np.linalg.norm(alone["ms"] - alone["ms_low"]))
    above = float(np.linalg.norm(alone["ms_high"] - alone["ms"]))
    given = _cell_row(block, None)
    conditions = {name: given[name] for name in ("size", "form", "origin", "device", "runtime", "precision", "threads")}
    return {
        **conditions,
        "block": block["stage"],
        "value": total / block["ms"],
        "low": (total - below) / block["ms_high"],
        "high": (total + above) / block["ms_low"],
        "n": min(int(alone["n"].min()), block["n"]),
        "unit": "x",
        "better": "neither",
        "statistic": "estimate",
        "interval": CONFIDENCE,
        "notes": DRAWN if block["origin"] == SIMULATED else ONE_BY_ONE,
    }


def duration_rows(cells: pd.DataFrame, available: Mapping[str, Availability], known: int) -> pd.DataFrame:
    """Minutes of this campaign, and hours of one with as many cells as S4 measured; forms of two rows.

    They count units with the 7 stages at S4's 15 sizes, and need all cells to be of this run (`known`: those that are
    not). The minutes need every unit that is usable here; the hours are extrapolated from the mean time of a stage.
    Cells of a unit share what it takes to load, so units are resampled. S4's own GPU and NPU are not among them.
    """
    usable = [name for name, probed in available.items() if probed.usable and units.find(name).origin == MEASURED]
    study = [f"{size.nodes}/{size.edges}" for size in sizes.read(["study"])]
    stages = cells[~cells["fused"] & cells["unit"].isin(usable) & cells["size"].isin(study)]
    stages = stages[(stages["layer"] == S4_LAYER[0]) & (stages["features"] == S4_LAYER[1])]
    counts = stages["unit"].value_counts()
    whole = [unit for unit in usable if counts.get(unit) == len(study) * len(layer_of(*S4_LAYER).stages)]
    on = measured(stages[stages["unit"].isin(whole)])
    tried = {name for name, unit in units.all_units().items() if unit.origin == MEASURED} <= set(available)
    every = measured(cells)
    shared = {
        "better": "lower",
        "device": ", ".join(dict.fromkeys(map(device, every["processor"], every["device"]))) or device("CPU", ""),
        "runtime": ", ".join(dict.fromkeys(every["runtime_version"])),
        "precision": ", ".join(dict.fromkeys(every["precision"])),
        "threads": int(max(every.loc[every["processor"] == "CPU", "threads"], default=0)),
    }
    minutes = {"form": "this campaign", "unit": "min", "origin": MEASURED, "statistic": "single"}
    hours = {"form": "as many cells as S4 measured", "unit": "h", "origin": "extrapolated", "statistic": "estimate"}
    needed = "the 7 stages at S4's 15 sizes, all measured by this run (params/full, anew: true)"
    if known or not (whole == usable and tried and len(on)):
        minutes |= {"status": "unavailable", "reason": f"needs, of every unit that is usable here, {needed}"}
    else:
        narrow = int(stages["within"].sum())
        notes = f"{len(stages)} cells of {len(whole)} units, {narrow} intervals within 2 %; {SPENT}"
        minutes |= {"status": "ok", "value": stages["took_s"].sum() / 60, "n": 1, "notes": notes}
    if known or on.empty:
        hours |= {"status": "unavailable", "reason": f"needs, of a usable unit, {needed}"}
    else:
        estimate = over_clusters(on["took_s"] * S4_CELLS / 3600, on["unit"], "mean")
        ends = {"low": None, "high": None, "interval": "none"}
        if estimate.low is not None:
            ends = {"low": max(estimate.low, 0.0), "high": estimate.high, "interval": CONFIDENCE}
        notes = f"{len(on)} cells of {len(whole)} units, scaled to S4's {S4_CELLS}; {SPENT}"
        hours |= {"status": "ok", "value": estimate.value, "n": estimate.n, **ends, "notes": notes}
    return pd.DataFrame([minutes | shared, hours | shared])


# ---- what a reader asks ---------------------------------------------------------------------------------------------


def winners(cells: pd.DataFrame) -> pd.DataFrame:
    """For each stage the CPU's fastest unit and the next one, of those that were measured at all sizes.

    Columns: stage, unit, next, ratio (time of the next over that of the fastest, geometric mean over the sizes), sizes,
    spread (slowest unit over fastest). The fastest is chosen by the samples that it is shown with, so these ratios are
    for reading and are not recorded.
    """
    rows = []
    timed = measured(cells)
    for stage, part in timed[timed["processor"] == "CPU"].groupby("stage", sort=False):
        wide = part.pivot(index="size", columns="unit", values="ms").dropna(axis="columns").pipe(np.log)
        means = wide.mean().sort_values()
        if len(means) < 2:
            continue
        ratio, spread = np.exp(means.iloc[[1, -1]] - means.iloc[0])
        named = {"stage": stage, "unit": means.index[0], "next": means.index[1]}
        rows.append({**named, "ratio": ratio, "sizes": len(wide), "spread": spread})
    return pd.DataFrame(rows)


def gaps(cells: pd.DataFrame) -> pd.DataFrame:
    """What could not be measured, and why: unit, status, reason, cells, stages."""
    lacking = cells[~cells["status"].isin(TIMED)].sort_values("unit", kind="stable")
    grouped = lacking.groupby(["unit", "status", "reason"], sort=False)
    rows = [
        {"unit": u, "status": s, "reason": r, "cells": len(part), "stages": ", ".join(_numbers(part))}
        for (u, s, r), part in grouped
    ]
    return pd.DataFrame(rows, columns=["unit", "status", "reason", "cells", "stages"])


def cpu_reference(cells: pd.DataFrame) -> pd.DataFrame:
    """The fastest time on a CPU for each cell without a time, as a CPU's figure.

    Columns: size, stage, unit, status, cpu_unit, cpu_ms, cpu_low, cpu_high (NaN where no CPU unit was measured either).
    """
    on_cpu = measured(cells)
    on_cpu = on_cpu[on_cpu["processor"] == "CPU"].sort_values("ms").drop_duplicates(["size", "stage"])
    figures = on_cpu[["size", "stage", "unit", "ms", "ms_low", "ms_high"]]
    figures = figures.set_axis(["size", "stage", "cpu_unit", "cpu_ms", "cpu_low", "cpu_high"], axis="columns")
    lacking = cells[~cells["status"].isin(TIMED)]
    return lacking[["size", "stage", "unit", "status"]].merge(figures, on=["size", "stage"], how="left")


def _numbers(part: pd.DataFrame) -> Sequence[str]:
    order = ["fused", "first", "last"]
    pairs = part[order].drop_duplicates().sort_values(order)[["first", "last"]].itertuples(index=False)
    return [str(first) if first == last else f"{first}-{last}" for first, last in pairs]
