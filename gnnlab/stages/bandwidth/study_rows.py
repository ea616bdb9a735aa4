"""What notebook 06 records: frames whose columns are named as the fields of a row of the lab's one table.

lab.record("copies", copies(transfers, study.copies, at_units), keys=["mib"])      # a row for each size and unit

Every number is of the unit that its row names: a key `pu` (processing unit, in S4's words), or the form. Where there is
none, the row has a status and says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling import estimates
from gnnlab.stages.bandwidth.bandwidth import AGAIN, NEW
from gnnlab.stages.bandwidth.prediction import INTERPOLATED
from gnnlab.stages.bandwidth.study_frames import COPY, STUDY, copy_rates
from gnnlab.stages.bandwidth.transfer import PLAIN_COPY, Transfers, lent
from gnnlab.stages.units import registry as units

S4, A_COPY, COPIES = "S4", "measured copy", "measured copies"
CONFIDENCE, PREDICTION = "95 % confidence", "90 % prediction"
PLANTED = {"device": "planted machine", "runtime": "planted times", "precision": "float32", "threads": 0}
Fields = dict[str, Any]
Conditions = Mapping[str, Fields]


def conditions(cells: pd.DataFrame) -> dict[str, Fields]:
    """device, runtime, precision and threads of each unit that has a time."""
    timed = cells[cells["ms"].notna()].drop_duplicates("unit")
    return {row["unit"]: under(row) for row in timed.to_dict("records")}


def under(row: Mapping[str, Any]) -> Fields:
    """The conditions of a measured cell as fields."""
    processor = "CPU" if row["unit"] == PLAIN_COPY else units.find(row["unit"]).processor
    threads = row["threads"] if processor == "CPU" else 0
    found = {"device": f"{processor} {row['device']}", "runtime": row["runtime_version"]}
    return {**found, "precision": row["precision"], "threads": threads}


def copy_times(copies: pd.DataFrame) -> pd.DataFrame:
    """ms of the copies by size (mib) and unit (form)."""
    return pd.DataFrame([{"mib": _mib(row["size_bytes"]), "form": row["unit"], **_timed(row)}
                         for row in copies.to_dict("records")])  # fmt: skip


def copies(transfers: Transfers, measured: pd.DataFrame, at: Conditions) -> pd.DataFrame:
    """GB/s of copies by size (mib) and unit (form); no unit has the number of another one."""
    samples = measured.set_index(["unit", "size_bytes"])
    rows = []
    for row in copy_rates(transfers).to_dict("records"):
        of = samples.loc[(row["unit"], row["size_bytes"])]
        found = {"origin": "measured", "n": int(of["n"]), **_gb_s(row, "launch or noise hide it at this size")}
        rows.append(
            {"mib": _mib(row["size_bytes"]), "form": row["unit"], **under({"unit": row["unit"], **of}), **found}
        )
    sizes = {row["mib"] for row in rows if row["form"] != PLAIN_COPY}
    for unit in filter(lent, transfers.through):
        none = {"status": "unavailable", "reason": lent(unit), "origin": "measured"}
        rows += [{"mib": mib, "form": unit, **at[unit], **_RATE, **none} for mib in sorted(sizes)]
    return pd.DataFrame(rows)


def bandwidth(both: pd.DataFrame, regressed: pd.DataFrame, measured: pd.DataFrame, at: Conditions) -> pd.DataFrame:
    """GB/s of a stage by S4's slope, and of a copy of as many bytes as it moves; by unit and stage.

    `both`: of `study_frames.side_by_side`, `regressed`: of `seed_regression`, `measured`: copies with n.
    """
    sizes = _sizes(regressed)
    copied = measured.groupby("unit")["n"].min()
    rows = []
    for row in both.to_dict("records"):
        s4 = row["method"] == STUDY
        origin, n = (_origin(row["unit"]), sizes.get(_key(row))) if s4 else (INTERPOLATED, copied.get(row["unit"]))
        found = {"origin": origin, "n": n, **_gb_s(row, row["why"])}
        if s4 and np.isfinite(row["gb_s"]) and np.isnan(row["ci_high"]):
            found["notes"] = f"no upper end, as the slope may be 0: at least {row['ci_low']:.3g} GB/s"
        rows.append({**_of(row), "form": S4 if s4 else A_COPY, **at[row["unit"]], **found})
    return pd.DataFrame(rows)


def bandwidth_ratio(both: pd.DataFrame, regressed: pd.DataFrame, at: Conditions) -> pd.DataFrame:
    """How far S4's bandwidth and that of a measured copy agree, by unit and stage: the smaller over the larger."""
    wide = both.pivot(index=["unit", "stage"], columns="method", values=["gb_s", "ci_low", "ci_high", "why"])
    sizes, rows = _sizes(regressed), []
    for (unit, stage), row in wide.iterrows():
        s4, copy = ([float(row[name, method]) for name in ("gb_s", "ci_low", "ci_high")] for method in (STUDY, COPY))
        found = {"n": sizes.get(_key({"unit": unit, "stage": stage}))}
        if why := row["why", STUDY] or row["why", COPY]:
            found = _none(why)
        elif np.isnan(s4[2]):
            found = _none("its slope is not told from 0, so that its bandwidth has no upper end")
        else:
            found |= agreement(*_ratio(s4, copy))
        rows.append({"pu": unit, "stage": stage, "form": S4, **_agrees(unit), **at[unit], **found})
    return _with_lacking(rows)


def intercept_ratio(
    regressed: pd.DataFrame, entries: pd.DataFrame, names: Mapping[int, str], at: Conditions
) -> pd.DataFrame:
    """How far S4's intercept and the measured compute time agree, by unit and stage: the smaller over the larger.

    The compute time is what a measured copy of the stage's bytes leaves of its time. S4 has one for all sizes, so that
    it is held against the median over them. `names`: of the stages, by number.
    """
    rows = []
    for row in regressed.to_dict("records"):
        part = entries[(entries["unit"] == row["unit"]) & (entries["stage"] == row["stage"])]
        times = part[["low_ms", "total_time_ms", "high_ms"]].sub(part["transfer_time_ms"], axis=0)
        rest = times.median().tolist()
        stage = f"{row['stage']} {names[row['stage']]}"
        if lent(row["unit"]) or part["diagnosis"].str.contains("no copies").any():
            found = _none(f"no copies through {row['unit']} were measured")
        elif not rest[0] > 0:
            found = _none("no compute time can be told beside a copy of its bytes")
        else:
            ends = [row[f"intercept_{name}"] / time for name in ("low", "high") for time in rest]
            found = {"n": row["sizes"], **agreement(row["intercept_ms"] / rest[1], min(ends), max(ends))}
            found["notes"] = [
                f"{int((regressed['intercept_ms'] < 0).sum())} of {len(regressed)} intercepts are negative"
            ]
        unit = row["unit"]
        rows.append({"pu": unit, "stage": stage, "form": S4, **_agrees(unit), **at[unit], **found})
    return _with_lacking(rows)


def agreement(ratio: float, low: float, high: float) -> Fields:
    """The smaller of two numbers over the larger, from their ratio and its interval: 1 where they are equal, 0 where
    one of them is not above 0. A ratio that is too high in one place makes up for none that is too low in another.
    """
    value, *ends = (min(r, 1 / r) if r > 0 else 0.0 for r in (ratio, low, high))
    top = 1.0 if low <= 1 <= high else max(value, *ends)
    return {"value": value, "low": min(value, *ends), "high": top}


def planted(machines: pd.DataFrame) -> pd.DataFrame:
    """Error of the bandwidth that copies recover on each planted machine (%), mean over the sizes that tell one."""
    fixed = {"form": COPIES, "statistic": "mean", "unit": "%", "better": "lower", "origin": "simulated", **PLANTED}
    found = machines.assign(machine=range(len(machines)), value=machines["error"], n=machines["told"], **fixed)
    times = machines["study_times"]
    note = (
        f"worst size {machines['worst'].max():.2g} %; S4's method, given its own model, is {times.min():.3g} to "
        f"{times.max():.3g} times too low for TRANSFORM, at R2 {machines['r2'].min():.4f} and more"
    )
    return found.assign(interval="none", notes=note)


def planted_s4(machines: pd.DataFrame) -> pd.DataFrame:
    """How many times too low S4's bandwidth of TRANSFORM is on each of them, with latencies by its own model."""
    fixed = {"form": S4, "statistic": "estimate", "unit": "x", "better": "lower", "origin": "simulated", **PLANTED}
    numbers = {"machine": range(len(machines)), "value": machines["study_times"], "n": machines["study_sizes"]}
    found = machines.assign(**numbers, **fixed)
    told = machines["study_times"].notna()
    return found.assign(
        interval="none",
        status=np.where(told, "ok", "unavailable"),
        reason=np.where(told, None, "its slope is not above 0, so that it gives no bandwidth"),
        notes=[f"R2 {r2:.4f}" for r2 in machines["r2"]],
    )


def held_out(errors: pd.DataFrame, at: Conditions) -> pd.DataFrame:
    """Median error at sizes left out of the fit (%), by unit and stage; of `study_frames.held_out`."""
    rows = []
    for row in errors.to_dict("records"):
        where = "between the others" if row["inside"] else "beyond the others"
        found = {"value": row["percent"], "low": row["ci_low"], "high": row["ci_high"], "n": row["n"]}
        found |= {"notes": f"form: {row['form']}; {row['sizes']} sizes left out, {where}"}
        rows.append({**_of(row), "form": "predicted", "statistic": "median", **_ERROR, **at[row["unit"]], **found})
    return pd.DataFrame(rows)


def off_grid(compared: pd.DataFrame) -> pd.DataFrame:
    """ms of cells at sizes never fitted, by unit, stage and size: measured, and as it had been predicted."""
    rows = []
    for row in compared[compared["kind"] == NEW].to_dict("records"):
        key = _of(row) | {"size": row["size"]}
        found = {"value": row["predicted_ms"], "low": row["low_ms"], "high": row["high_ms"], "n": row["fitted"]}
        found |= {"origin": INTERPOLATED, "statistic": "estimate", "interval": PREDICTION, **_MS, **under(row)}
        found |= {"notes": f"form: {row['form']}; fitted at {row['fitted']} sizes"}
        rows += [{**key, "form": "measured", **_timed(row)}, {**key, "form": "predicted", **found}]
    return pd.DataFrame(rows)


def off_grid_error(compared: pd.DataFrame) -> pd.DataFrame:
    """How far predictions are off at sizes never fitted (% of the measured time), by unit, stage and size.

    The interval is what the measured time leaves open.
    """
    new, again = (compared[compared["kind"] == kind] for kind in (NEW, AGAIN))
    if new.empty:
        return _errors(new, "predicted")
    note = f"{new['covered'].mean():.0%} of the measured times lie in their 90 % intervals"
    if len(again):
        note += (
            f"; {again['within'].mean():.0%} of {len(again)} known cells come within 10 % of themselves a second time"
        )
    return _errors(new, "predicted").assign(notes=note)


def repeat_error(compared: pd.DataFrame) -> pd.DataFrame:
    """How far a first measurement is off a second one of the same cell (% of the second)."""
    return _errors(compared[compared["kind"] == AGAIN], "first measurement")


def _errors(compared: pd.DataFrame, form: str) -> pd.DataFrame:
    rows = []
    for row in compared.to_dict("records"):
        expected = [row[name] if row["kind"] == AGAIN else row["predicted_ms"] for name in ("low_ms", "high_ms")]
        ratio = row["predicted_ms"] / row["ms"]
        ends = expected[0] / row["ms_high"], expected[1] / row["ms_low"]
        found = {"statistic": "estimate", "n": row["n"], **apart(ratio, *ends), **under(row)}
        rows.append({**_of(row), "size": row["size"], "form": form, **_ERROR, **found})
    return pd.DataFrame(rows)


def apart(ratio: float, low: float, high: float) -> Fields:
    """How far a ratio is off 1, either way, in percent, and between which ends."""
    value, *ends = (100 * abs(r - 1) for r in (ratio, low, high))
    least = 0.0 if low <= 1 <= high else min(value, *ends)
    return {"value": value, "low": least, "high": max(value, *ends)}


_MS = {"unit": "ms", "better": "lower"}
_RATE = {"unit": "GB/s", "better": "higher", "statistic": "estimate", "interval": CONFIDENCE}
_ERROR = {"unit": "%", "better": "lower", "origin": "measured", "interval": CONFIDENCE}


def _agrees(unit: str) -> Fields:
    fixed = {"unit": "x", "better": "neither", "statistic": "estimate", "interval": CONFIDENCE}
    return {**fixed, "origin": _origin(unit)}


def _origin(unit: str) -> str:
    """measured|simulated"""
    return units.find(unit).origin


def _mib(size_bytes: float) -> float:
    return round(size_bytes / 2**20, 4)


def _of(row: Mapping[str, Any]) -> Fields:
    return {"pu": row["unit"], "stage": row["stage"]}


def _key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["unit"], int(row["stage"].split()[0])


def _sizes(regressed: pd.DataFrame) -> dict[tuple[str, int], int]:
    return {(row["unit"], row["stage"]): row["sizes"] for row in regressed.to_dict("records")}


def _timed(row: Mapping[str, Any]) -> Fields:
    """A measured time with its samples. Those of several visits share their moments, so that the interval, which holds
    those of all visits, is wider than the samples by themselves say."""
    own = estimates.summary(row["samples_ms"])
    found = {"origin": "measured", **_MS, **under(row)}
    if own.interval is None or np.allclose(own.interval, (row["ms_low"], row["ms_high"])):
        return {**found, "statistic": "median", "samples": np.array(row["samples_ms"])}
    found |= {
        "statistic": "estimate",
        "interval": CONFIDENCE,
        "n": row["n"],
        "notes": "the interval holds those of all visits",
    }
    return {**found, "value": row["ms"], "low": row["ms_low"], "high": row["ms_high"]}


def _gb_s(row: Mapping[str, Any], why: str) -> Fields:
    if np.isnan(row["gb_s"]):
        return {**_RATE, **_none(why)}
    return {**_RATE, "value": row["gb_s"], "low": row["ci_low"], "high": row["ci_high"]}


def _none(reason: str) -> Fields:
    return {"status": "unavailable", "reason": reason}


def _ratio(above: list[float], below: list[float]) -> tuple[float, float, float]:
    """A ratio of two numbers, each (value, low, high), measured apart: their ends add as squares of logarithms."""
    value = above[0] / below[0]
    down = np.hypot(np.log(above[0] / above[1]), np.log(below[2] / below[0]))
    up = np.hypot(np.log(above[2] / above[0]), np.log(below[0] / below[1]))
    return value, value * float(np.exp(-down)), value * float(np.exp(up))


def _with_lacking(rows: list[Fields]) -> pd.DataFrame:
    """Each row with a note on the stages that have none, since a mean over the others says nothing of these."""
    found = pd.DataFrame(rows, columns=None if rows else ["pu", "stage", "form"])
    lacking = [row for row in rows if row.get("status")]
    if not lacking:
        return found
    reasons = Counter(row["reason"] for row in lacking)
    told = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
    note = f"{len(lacking)} of {len(rows)} stages have no such ratio: {told}"
    return found.assign(notes=[[] if row.get("status") else [*row.get("notes", []), note] for row in rows])
