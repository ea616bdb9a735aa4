"""Rows of the lab's one table, from the measurements of the stages (`journal.read`).

    lab.record("latency", measurement_rows(frame, available), keys=["size", "stage"])
    lab.record("device_gains", gain_rows(frame), keys=["stage"])         # times as fast as torch
    lab.record("stage_sums", sum_rows(frame), keys=["size", "block"])    # one by one over fused

What has no time has none here either: nothing is filled in from another device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.measure.estimates import CONFIDENCE, Estimate, cluster_bootstrap, geometric_mean, quotient
from gnnlab.measure.timing import TARGET
from gnnlab.stages import sizes
from gnnlab.stages.devices import Availability, all_devices

MEASURED = "measured"
ONE_BY_ONE = "measured one by one; what the machine changed between them is not in the interval"
BASELINE = "torch:CPU"  # of gains
S4_MEASUREMENTS = 210 + 105  # on CPU and GPU, and on the NPU
S4_LAYER = ("sage", 500)
SPENT = "with loading and parity; without exporting, probing the devices and the reference workload"
STATUSES = {MEASURED: "ok", "unavailable": "unavailable", "timeout": "timeout"}


def measured_on_cpu(frame: pd.DataFrame) -> pd.DataFrame:
    """The measurements with a time on a CPU."""
    return frame[(frame["status"] == MEASURED) & (frame["processor"] == "CPU")]


def geometric(ms: pd.Series) -> float:
    """The geometric mean of times."""
    return float(np.exp(np.log(ms).mean()))


def chip(processor: str, name: str) -> str:
    """ "CPU AMD EPYC", the device of a row."""
    return f"{processor} {name or '(none here)'}"


def measurement_rows(frame: pd.DataFrame, available: Mapping[str, Availability] | None = None) -> pd.DataFrame:
    """A row for each measurement, with every sample or the reason why it has none. Keys are stage and size.

    `available` names chip and runtime of a device that is not here. An interval wider than wanted is noted.
    """
    return pd.DataFrame([_row(each, (available or {}).get(each["device"])) for each in frame.to_dict("records")])


def _row(each: Mapping[str, Any], available: Availability | None = None) -> dict[str, Any]:
    probed = available or Availability(False)
    given = {name: each[name] for name in ("stage", "size", "parity_error", "precision")}
    given |= {"form": each["device"], "origin": MEASURED, "unit": "ms", "better": "lower", "statistic": "median"}
    given |= {
        "device": chip(each["processor"], each["chip"] or probed.chip),
        "runtime": each["runtime_version"] or probed.version or each["device"].partition(":")[0],
        "threads": each["threads"] if each["processor"] == "CPU" else 0,
        "status": STATUSES.get(each["status"], "failed"),
    }
    if each["status"] != MEASURED:
        return {**given, "reason": each["reason"], "samples": ()}
    notes = each["notes"].split("; ") if each["notes"] else []
    if not each["within"] and not any(note.startswith("interval is") for note in notes):
        half = 50 * (each["ms_high"] - each["ms_low"]) / each["ms"]
        notes.append(f"interval is ±{half:.1f} % after {each['n']} samples, wanted ±{100 * TARGET:.0f} %")
    return {**given, "samples": each["samples_ms"], "notes": "; ".join(notes)}


def roof_rows(frame: pd.DataFrame, bound_ms: Callable[[int, int, int, int], float], samples: int) -> pd.DataFrame:
    """The share of a bound that each measurement on this CPU reaches: the bound over each of its times.

    `bound_ms(first, last, nodes, edges)`; `samples`: of each ceiling behind it, of which the best counts.
    """
    on_cpu = measured_on_cpu(frame)
    rows = measurement_rows(on_cpu)
    if rows.empty:
        return rows
    at = zip(*(on_cpu[name] for name in ("first", "last", "nodes", "edges", "samples_ms")), strict=True)
    shares = [bound_ms(first, last, n, e) / np.asarray(ms) for first, last, n, e, ms in at]
    note = f"the ceilings are the best of {samples} samples and have no interval; this is that of the time alone"
    notes = [f"{own}; {note}" if own else note for own in rows["notes"]]
    return rows.assign(samples=shares, unit="share", better="higher", notes=notes)


def gain_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as torch each device of the CPU is at each stage: the geometric mean over the sizes.

    Only devices that were measured at all sizes of a stage; where torch was not, the first of them is the baseline.
    """
    rows = []
    for stage, part in measured_on_cpu(frame).groupby("stage", sort=False):
        sizes_of = part.groupby("device", sort=False)["key"].nunique()
        whole = list(sizes_of.index[sizes_of == len(part[["size", "graph"]].drop_duplicates())])
        baseline = BASELINE if BASELINE in whole else next(iter(whole), None)
        at = {name: part[part["device"] == name].sort_values(["size", "graph"]).to_dict("records") for name in whole}
        for name in (name for name in whole if name != baseline):
            pairs = zip(at[baseline], at[name], strict=True)
            gain = geometric_mean([quotient(_estimate(slow), _estimate(fast)) for slow, fast in pairs])
            row = _compared(at[name][0], gain) | {"stage": stage, "baseline": baseline, "better": "higher"}
            row |= {"ratio": gain.value, "ratio_low": gain.low, "ratio_high": gain.high}
            row["parity_error"] = max(each["parity_error"] for each in at[name])
            rows.append(row | {"notes": f"over {len(at[name])} sizes; {ONE_BY_ONE}"})
    return pd.DataFrame(rows)


def sum_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Stages by themselves, added up, over the same stages fused on the same device: above 1, fusing pays.

    Only where all of them have a time. Keys are size and block; `n` is the least of their samples.
    """
    rows = []
    for _, part in frame[frame["status"] == MEASURED].groupby(["size", "graph", "device"], sort=False):
        stages = part[~part["fused"]].set_index("first")
        for block in part[part["fused"]].to_dict("records"):
            numbers = list(range(block["first"], block["last"] + 1))
            if set(numbers) <= set(stages.index):
                alone = stages.loc[numbers]
                ms, ends = alone["ms"].sum(), [np.linalg.norm(alone["ms"] - alone[e]) for e in ("ms_low", "ms_high")]
                total = Estimate(float(ms), float(ms - ends[0]), float(ms + ends[1]), int(alone["n"].min()))
                row = _compared(block, quotient(total, _estimate(block)))
                row |= {"size": block["size"], "block": block["stage"], "better": "neither", "notes": ONE_BY_ONE}
                rows.append(row)
    return pd.DataFrame(rows)


def _estimate(each: Mapping[str, Any]) -> Estimate:
    return Estimate(each["ms"], each["ms_low"], each["ms_high"], each["n"])


def _compared(each: Mapping[str, Any], estimate: Estimate) -> dict[str, Any]:
    """Fields of a row that compares times, under the conditions of `each`."""
    given = _row(each)
    conditions = {name: given[name] for name in ("form", "origin", "device", "runtime", "precision", "threads")}
    ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}
    return conditions | ends | {"unit": "x", "statistic": "estimate", "interval": CONFIDENCE}


def duration_rows(frame: pd.DataFrame, available: Mapping[str, Availability], known: int) -> pd.DataFrame:
    """Minutes of this sweep, and hours of one with as many measurements as S4's; forms of two rows.

    They count devices with the 7 stages at S4's 15 sizes, and need all to be of this run (`known`: those that are not).
    The minutes need every device that is usable here; the hours are extrapolated from the mean time of a measurement.
    Those of a device share what it takes to load, so devices are resampled.
    """
    usable = [name for name, probed in available.items() if probed.usable]
    study, (layer, features) = list(map(str, sizes.read(["study"]))), S4_LAYER
    stages = frame[~frame["fused"] & (frame["layer"] == layer) & (frame["features"] == features)]
    stages = stages[stages["device"].isin(usable) & stages["size"].isin(study) & (stages["graph"] == sizes.RANDOM)]
    needed_of_each = len(study) * len(sizes.layer_of(layer, features).stages)
    whole = [name for name in usable if (stages["device"] == name).sum() == needed_of_each]
    stages = stages[stages["device"].isin(whole)]
    timed = stages[stages["status"] == MEASURED]
    minutes = {"form": "this campaign", "unit": "min", "origin": MEASURED, "statistic": "single"}
    hours = {"form": "as many cells as S4 measured", "unit": "h", "origin": "extrapolated", "statistic": "estimate"}
    counted = f"{len(stages)} measurements of {len(whole)} devices"
    for row, of in ((minutes, "every device that is usable here"), (hours, "a usable device")):
        if known or timed.empty or (row is minutes and not (whole == usable and set(all_devices()) <= set(available))):
            reason = (
                f"needs, of {of}, the 7 stages at S4's 15 sizes, all measured by this run (params/full, force: true)"
            )
            row |= {"status": "unavailable", "reason": reason}
        elif row is minutes:
            row |= {"value": stages["took_s"].sum() / 60, "n": 1}
            row["notes"] = f"{counted}, {stages['within'].sum()} intervals within 2 %; {SPENT}"
        else:
            mean = cluster_bootstrap(timed["took_s"] * S4_MEASUREMENTS / 3600, timed["device"], "mean")
            ends = {} if mean.low is None else {"low": max(mean.low, 0.0), "high": mean.high, "interval": CONFIDENCE}
            row |= {"value": mean.value, "n": mean.n, **ends}
            row["notes"] = f"{counted}, scaled to S4's {S4_MEASUREMENTS}; {SPENT}"
    every, on_cpu = frame[frame["status"] == MEASURED], measured_on_cpu(frame)
    return pd.DataFrame([minutes, hours]).assign(
        better="lower",
        device=", ".join(dict.fromkeys(map(chip, every["processor"], every["chip"]))) or chip("CPU", ""),
        runtime=", ".join(dict.fromkeys(every["runtime_version"])),
        precision=", ".join(dict.fromkeys(every["precision"])),
        threads=int(on_cpu["threads"].max()) if len(on_cpu) else 0,
    )


# ---- in words --------------------------------------------------------------------------------------------------------


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """What has no time, and why: device, status, reason, measurements (how many), stages."""
    lacking = frame[frame["status"] != MEASURED].sort_values(["device", "fused", "first", "last"], kind="stable")
    rows = []
    for (device, status, reason), part in lacking.groupby(["device", "status", "reason"], sort=False):
        numbers = dict.fromkeys(stage.partition(" ")[0] for stage in part["stage"])
        rows.append((device, status, reason, len(part), ", ".join(numbers)))
    return pd.DataFrame(rows, columns=["device", "status", "reason", "measurements", "stages"])


def conclusion(frame: pd.DataFrame, reference: pd.DataFrame) -> list[str]:
    """Sentences: what is fastest on this CPU at the largest size, which stage takes longest, what has no time, and how
    far the reference workload changed (`Sweep.reference`)."""
    on_cpu, lost, sentences = measured_on_cpu(frame), int((frame["status"] != MEASURED).sum()), []
    if len(on_cpu):
        at = on_cpu["size"].iloc[-1]
        largest = on_cpu[on_cpu["size"] == at].sort_values("ms")
        fused, single = largest[largest["fused"]], largest[~largest["fused"]].groupby("stage")
        won = ", ".join(f"{name} ({count})" for name, count in single["device"].first().value_counts().items())
        found = [_widest(fused)] * (len(fused) > 0) + [f"single stages are fastest on {won}"] * (len(single) > 0)
        sentences.append(f"**At {at}, {'; '.join(found)}.**")
        if len(least := single["ms"].min()):
            share = f"{100 * least.max() / least.sum():.0f} % of the time of single stages"
            sentences.append(f"At {at}, {least.idxmax()} takes {share}, each on its fastest device.")
    if lost:
        sentences.append(f"{lost} of {len(frame)} measurements have no time; nothing is filled in from another device.")
    if len(reference):
        ms = reference.assign(ms=reference["samples"].map(np.median)).groupby("phase")["ms"]
        change = f"changed by {100 * float((ms.max() / ms.min() - 1).max()):.0f} % over the sweep"
        sentences.append(f"The reference workload {change}: differences between devices that are smaller say nothing.")
    return sentences


def _widest(fused: pd.DataFrame) -> str:
    """What the fastest device takes for the widest block, and torch beside it; the fastest come first in `fused`."""
    best = fused.loc[(fused["last"] - fused["first"]).idxmax()]
    torch = fused[(fused["stage"] == best["stage"]) & (fused["device"] == BASELINE)]
    words = f"{best['stage']} is fastest on {best['device']} ({best['ms']:.3g} ms"
    if torch.empty or best["device"] == BASELINE:
        return f"{words})"
    return f"{words}, {torch['ms'].iloc[0] / best['ms']:.2g} times as fast as {BASELINE})"
