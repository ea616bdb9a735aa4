"""The measurements of a campaign as a table, and rows for the lab's one table that follow from it.

    cells = table(checkpoints.raw(folder))
    lab.record("latency", cell_rows(cells, available), keys=["size", "stage"])
    lab.record("unit_gains", gain_rows(cells), keys=["stage"])       # which unit is fastest at which stage, by how much
    lab.record("stage_sums", sum_rows(cells), keys=["size", "block"])

A cell that has no time has none in the table either: nothing is filled in from another unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.campaign import sizes
from gnnlab.campaign.cells import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.measure.estimates import (
    CONFIDENCE,
    LEAST_SAMPLES,
    Estimate,
    cluster_bootstrap,
    geometric_mean,
    quotient,
)
from gnnlab.measure.timing import TARGET
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability

MEASURED, SIMULATED = "measured", "simulated"
TIMED = (MEASURED, SIMULATED)
NOWHERE = "(none here)"  # the chip of a unit that is not here
CONSTANTS = "published constants"
DRAWN = "the spread of its samples is drawn, not seen"
ONE_BY_ONE = "cells were measured one by one; what the machine changed between them is not in the interval"
BASELINE = "torch:CPU"  # of gains
S4_CELLS = 210 + 105  # of CPU and GPU, and of the NPU
S4_LAYER = ("sage", 500)
SPENT = "with loading and parity; without exporting, probing the units and the reference workload"
STATUSES = {MEASURED: "ok", SIMULATED: "ok", "unavailable": "unavailable", "timeout": "timeout"}


def table(measurements: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each cell, by stage, size and unit.

    Columns: key, layer, features, size ("1000/2000"), nodes, edges, graph, first, last, fused, stage ("3 REDUCE_SUM"),
    unit, processor, origin, status, ms, ms_low, ms_high, std_ms, n, samples_ms (n,), within (is the interval within
    2 %?), parity_error, precision, threads, device, runtime_version, took_s (loading included), reason, notes; of cells
    without a time the numbers are NaN.

    Raises:
        GnnlabError: there are no measurements.
    """
    if not measurements:
        raise GnnlabError("no measurements; measure first: gnnlab stages --measure")
    flat = [
        {"key": key, "took_s": each["took_s"], **each["cell"], **each["outcome"]} for key, each in measurements.items()
    ]
    cells = pd.DataFrame(flat).rename(columns={"median_ms": "ms"}).drop(columns="detail")
    of_unit = {name: units.find(name) for name in cells["unit"].unique()}
    low, high = zip(*((np.nan, np.nan) if ci is None else ci for ci in cells.pop("ci_ms")), strict=True)
    cells = cells.assign(
        size=[f"{nodes}/{edges}" for nodes, edges in zip(cells["nodes"], cells["edges"], strict=True)],
        fused=cells["first"] != cells["last"],
        stage=[_stage(row) for row in cells[["layer", "features", "first", "last"]].itertuples(index=False)],
        processor=[of_unit[name].processor for name in cells["unit"]],
        origin=[of_unit[name].origin for name in cells["unit"]],
        ms_low=low,
        ms_high=high,
        n=cells["samples_ms"].map(len),
        reason=cells["reason"].fillna(""),
        notes=cells["notes"].map("; ".join),
    ).astype({"ms": float, "std_ms": float})
    half = (cells["ms_high"] - cells["ms_low"]) / 2
    cells["within"] = (cells["n"] >= LEAST_SAMPLES) & (half <= TARGET * cells["ms"])
    order = ["nodes", "edges", "fused", "first", "last"]
    return cells.sort_values(order, kind="stable", ignore_index=True)


def _stage(cell: Any) -> str:
    """`3 REDUCE_SUM`, or `1-5 GATHER..NORMALIZE`."""
    numbers = cell.first if cell.first == cell.last else f"{cell.first}-{cell.last}"
    return f"{numbers} {layer_of(cell.layer, cell.features).block(cell.first, cell.last).name}"


def timed(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with a time, measured or simulated."""
    return cells[cells["status"].isin(TIMED)]


def measured(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells whose time was measured."""
    return cells[cells["status"] == MEASURED]


def measured_on_cpu(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells whose time was measured on a CPU."""
    return cells[(cells["status"] == MEASURED) & (cells["processor"] == "CPU")]


def reasons(cells: pd.DataFrame) -> str:
    """The reasons of cells without a time, by unit."""
    return "; ".join(dict.fromkeys(cells["unit"] + ": " + cells["reason"]))


def need_times(cells: pd.DataFrame, skip: Callable[[str], None]) -> None:
    """Call `skip` with the reasons of the units where no cell has a time."""
    if timed(cells).empty:
        skip(f"no cell has a time: {reasons(cells)}")


def changed(reference: pd.DataFrame) -> float:
    """How much the time of the reference workload changed over a phase, at most (a share); 0 where none was measured.
    `reference`: phase, form (before, after), samples in ms."""
    ms = reference.assign(ms=reference["samples"].map(np.median)).groupby("phase")["ms"]
    return float((ms.max() / ms.min() - 1).max()) if len(reference) else 0.0


def conclusion(cells: pd.DataFrame, reference: pd.DataFrame) -> list[str]:
    """Sentences: which runtime of this CPU is fastest at how many blocks, which stage takes longest, what was not
    measured, and what the reference workload says of it all."""
    on_cpu, (lost, every) = measured_on_cpu(cells), ((~cells["status"].isin(TIMED)).sum(), len(cells))
    sentences = []
    if len(on_cpu):
        logs = on_cpu.assign(log=np.log(on_cpu["ms"])).pivot_table("log", "stage", "unit")
        won = logs.idxmin(axis=1).value_counts()
        wins = ", ".join(f"{unit} at {count}" for unit, count in won.items())
        some = "One runtime of this CPU is" if len(won) == 1 else "No runtime of this CPU is"
        sentences.append(f"**{some} fastest everywhere: of {len(logs)} stages and blocks, {wins}.**")
        largest = on_cpu[on_cpu["size"] == on_cpu["size"].iloc[-1]].sort_values("ms")
        if len(least := largest[~largest["fused"]].groupby("stage")["ms"].min()):
            share = f"{100 * least.max() / least.sum():.0f} % of the time of single stages"
            sentences.append(
                f"At {on_cpu['size'].iloc[-1]}, {least.idxmax()} takes {share}, each on its fastest runtime."
            )
        if len(fused := largest[largest["fused"]]):
            whole = fused.loc[(fused["last"] - fused["first"]).idxmax()]  # the largest block; its fastest comes first
            sentences.append(f"In one block, {whole['stage']} is fastest on {whole['unit']}.")
    sentences.append(f"{lost} of {every} cells have no time; each says why, and none is filled in from another unit.")
    if change := changed(reference):
        words = "differences between units that are smaller say nothing"
        sentences.append(f"The reference workload changed by {100 * change:.0f} % over the campaign: {words}.")
    return sentences


def gaps(cells: pd.DataFrame) -> pd.DataFrame:
    """What could not be measured, and why: unit, status, reason, cells (how many), stages."""
    lacking = cells[~cells["status"].isin(TIMED)].sort_values(["unit", "fused", "first", "last"], kind="stable")
    rows = []
    for (unit, status, reason), part in lacking.groupby(["unit", "status", "reason"], sort=False):
        numbers = dict.fromkeys(stage.partition(" ")[0] for stage in part["stage"])
        rows.append((unit, status, reason, len(part), ", ".join(numbers)))
    return pd.DataFrame(rows, columns=["unit", "status", "reason", "cells", "stages"])


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
    given |= {"form": cell["unit"], "unit": "ms", "better": "lower", "statistic": "median"}
    given |= {
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
    half = (cell["ms_high"] - cell["ms_low"]) / 2 / cell["ms"]
    return [*notes, f"interval is ±{100 * half:.1f} % after {cell['n']} samples, wanted ±{100 * TARGET:.0f} %"]


def roof_rows(cells: pd.DataFrame, bound_ms: Callable[[int, int, int, int], float], samples: int) -> pd.DataFrame:
    """Share of a bound that each cell measured on this CPU reaches: the bound over each of its times.

    `bound_ms(first, last, nodes, edges)`; `samples`: of each ceiling behind it, of which the best counts.
    """
    on_cpu = measured_on_cpu(cells)
    at = zip(*(on_cpu[name] for name in ("first", "last", "nodes", "edges", "samples_ms")), strict=True)
    shares = [bound_ms(first, last, n, e) / np.asarray(ms) for first, last, n, e, ms in at]
    rows = cell_rows(on_cpu, {})
    if rows.empty:
        return rows
    note = f"the ceilings are the best of {samples} samples and have no interval; this is that of the time alone"
    notes = [f"{own}; {note}" if own else note for own in rows["notes"]]
    return rows.assign(samples=shares, unit="share", better="higher", notes=notes)


def gain_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as torch each unit of a CPU is at each stage: the geometric mean over the sizes.

    The key is stage, the form the unit. Only units that were measured at all sizes of a stage; where torch was not, the
    first of them is the baseline. Cells were measured one by one, so the intervals of both times count.
    """
    rows = []
    for stage, part in measured_on_cpu(cells).groupby("stage", sort=False):
        sizes_of = part.groupby("unit", sort=False)["size"].nunique()
        whole = list(sizes_of.index[sizes_of == part["size"].nunique()])
        baseline = BASELINE if BASELINE in whole else whole[0] if whole else None
        at = {unit: part[part["unit"] == unit].sort_values("size").to_dict("records") for unit in whole}
        for unit in (unit for unit in whole if unit != baseline):
            pairs = zip(at[baseline], at[unit], strict=True)
            gain = geometric_mean([quotient(_estimate(slow), _estimate(fast)) for slow, fast in pairs])
            row = _factor(at[unit][0], gain) | {"stage": stage, "baseline": baseline, "better": "higher"}
            row |= {"ratio": gain.value, "ratio_low": gain.low, "ratio_high": gain.high}
            row["parity_error"] = max(cell["parity_error"] for cell in at[unit])
            rows.append(row | {"notes": f"over {len(at[unit])} sizes; {ONE_BY_ONE}"})
    return pd.DataFrame(rows)


def _estimate(cell: Mapping[str, Any]) -> Estimate:
    return Estimate(cell["ms"], cell["ms_low"], cell["ms_high"], cell["n"])


def sum_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """Stages by themselves, added up, over the same stages fused on the same unit: above 1, fusing pays.

    Only where all of them have a time. Keys are size and block, the form is the unit; `n`: the least of their samples.
    """
    rows = []
    for _, part in timed(cells).groupby(["size", "unit"], sort=False):
        stages = part[~part["fused"]].set_index("first")
        for block in part[part["fused"]].to_dict("records"):
            numbers = range(block["first"], block["last"] + 1)
            if not set(numbers) <= set(stages.index):
                continue
            alone = stages.loc[list(numbers)]
            ms, ends = alone["ms"].sum(), [np.linalg.norm(alone["ms"] - alone[end]) for end in ("ms_low", "ms_high")]
            total = Estimate(float(ms), float(ms - ends[0]), float(ms + ends[1]), int(alone["n"].min()))
            row = _factor(block, quotient(total, _estimate(block))) | {"size": block["size"], "block": block["stage"]}
            notes = DRAWN if block["origin"] == SIMULATED else ONE_BY_ONE
            rows.append(row | {"better": "neither", "notes": notes})
    return pd.DataFrame(rows)


def _factor(cell: Mapping[str, Any], estimate: Estimate) -> dict[str, Any]:
    """Fields of a row that compares times, under the conditions of `cell`."""
    given = _cell_row(cell, None)
    conditions = {name: given[name] for name in ("form", "origin", "device", "runtime", "precision", "threads")}
    ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}
    return conditions | ends | {"unit": "x", "statistic": "estimate", "interval": CONFIDENCE}


def duration_rows(cells: pd.DataFrame, available: Mapping[str, Availability], known: int) -> pd.DataFrame:
    """Minutes of this campaign, and hours of one with as many cells as S4 measured; forms of two rows.

    They count units with the 7 stages at S4's 15 sizes, and need all cells to be of this run (`known`: those that are
    not). The minutes need every unit that is usable here; the hours are extrapolated from the mean time of a stage.
    Cells of a unit share what it takes to load, so units are resampled. S4's own GPU and NPU are not among them.
    """
    usable = [name for name, probed in available.items() if probed.usable and units.find(name).origin == MEASURED]
    study, every = list(map(str, sizes.read(["study"]))), measured(cells)
    layer, features = S4_LAYER
    stages = cells[~cells["fused"] & (cells["layer"] == layer) & (cells["features"] == features)]
    stages = stages[stages["unit"].isin(usable) & stages["size"].isin(study)]
    counts = stages["unit"].value_counts()
    whole = [unit for unit in usable if counts.get(unit) == len(study) * len(layer_of(layer, features).stages)]
    on = measured(stages[stages["unit"].isin(whole)])
    tried = {name for name, unit in units.all_units().items() if unit.origin == MEASURED} <= set(available)
    minutes = {"form": "this campaign", "unit": "min", "origin": MEASURED, "statistic": "single"}
    hours = {"form": "as many cells as S4 measured", "unit": "h", "origin": "extrapolated", "statistic": "estimate"}
    for row in (minutes, hours):
        of = "every unit that is usable here" if row is minutes else "a usable unit"
        needed = f"needs, of {of}, the 7 stages at S4's 15 sizes, all measured by this run (params/full, anew: true)"
        if known or on.empty or (row is minutes and not (whole == usable and tried)):
            row |= {"status": "unavailable", "reason": needed}
        elif row is minutes:
            notes = f"{len(stages)} cells of {len(whole)} units, {stages['within'].sum()} intervals within 2 %; {SPENT}"
            row |= {"value": stages["took_s"].sum() / 60, "n": 1, "notes": notes}
        else:
            mean = cluster_bootstrap(on["took_s"] * S4_CELLS / 3600, on["unit"], "mean")
            ends = {} if mean.low is None else {"low": max(mean.low, 0.0), "high": mean.high, "interval": CONFIDENCE}
            notes = f"{len(on)} cells of {len(whole)} units, scaled to S4's {S4_CELLS}; {SPENT}"
            row |= {"value": mean.value, "n": mean.n, "notes": notes, **ends}
    return pd.DataFrame([minutes, hours]).assign(
        better="lower",
        device=", ".join(dict.fromkeys(map(device, every["processor"], every["device"]))) or device("CPU", ""),
        runtime=", ".join(dict.fromkeys(every["runtime_version"])),
        precision=", ".join(dict.fromkeys(every["precision"])),
        threads=int(measured_on_cpu(cells)["threads"].max()) if len(measured_on_cpu(cells)) else 0,
    )
