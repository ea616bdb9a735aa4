"""Rows of the lab's one table, from the measurements of the stages (`journal.read`).

    lab.record("latency", measurement_rows(frame, available), keys=["size", "stage"])
    lab.record("device_gains", gain_rows(frame), keys=["stage"])         # times as fast as torch
    lab.record("stage_sums", sum_rows(frame), keys=["size", "block"])    # one by one over fused

What has no time has none here either: nothing is filled in from another device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.measure.estimates import CONFIDENCE, Estimate, cluster_bootstrap, geometric_mean, quotient
from gnnlab.measure.timing import TARGET
from gnnlab.stages import sizes
from gnnlab.stages.devices import Availability, all_devices

MEASURED = "measured"
STATUSES = {MEASURED: "ok", "unavailable": "unavailable", "timeout": "timeout"}
CONDITIONS = ["variant", "origin", "device", "runtime", "precision", "threads"]  # of a row
SETTINGS = ["layer", "features", "precision", "threads"]  # which measurements share that are compared
ONE_BY_ONE = "measured one by one; what the machine changed between them is not in the interval"
BASELINE = "torch:CPU"  # of gains
S4_LAYER, S4_STAGES = "features == 500", 7
S4_MEASUREMENTS = 210 + 105  # on CPU and GPU, and on the NPU
SPENT = "with loading and parity; without exporting, probing the devices and the reference workload"
NEEDED = "needs the 7 stages at S4's 15 sizes, all measured by this run (params/full, force: true); the minutes need "
NEEDED += "them of every device that is usable here"


def measured_on_cpu(frame: pd.DataFrame) -> pd.DataFrame:
    """The measurements with a time on a CPU."""
    return frame[(frame["status"] == MEASURED) & (frame["processor"] == "CPU")]


def chip(processor: str, name: str) -> str:
    """ "CPU AMD EPYC", the device of a row."""
    return f"{processor} {name or '(none here)'}"


def measurement_rows(frame: pd.DataFrame, available: Mapping[str, Availability] | None = None) -> pd.DataFrame:
    """A row for each measurement, with every sample or the reason why it has none. Keys are stage and size.

    `available` names chip and runtime of a device that is not here. An interval wider than wanted is noted.
    """
    probed = [(available or {}).get(name, Availability(False)) for name in frame["device"]]
    chips = frame["chip"].where(frame["chip"] != "", [each.chip for each in probed])
    unnamed = [each.version or name.partition(":")[0] for each, name in zip(probed, frame["device"], strict=True)]
    timed = frame["status"] == MEASURED
    half = (50 * (frame["ms_high"] - frame["ms_low"]) / frame["ms"]).round(1).astype(str)
    wide = "interval is ±" + half + " % after " + frame["n"].astype(str) + f" samples, wanted ±{100 * TARGET:.0f} %"
    noted = frame["within"] | frame["notes"].str.contains("interval is") | ~timed
    return frame[["stage", "size", "parity_error", "precision"]].assign(
        variant=frame["device"],
        origin=MEASURED,
        statistic="median",
        unit="ms",
        better="lower",
        samples=frame["samples_ms"],
        status=frame["status"].map(STATUSES).fillna("failed"),
        reason=frame["reason"].where(~timed),
        device=list(map(chip, frame["processor"], chips)),
        runtime=frame["runtime_version"].where(frame["runtime_version"] != "", unnamed),
        threads=frame["threads"].where(frame["processor"] == "CPU", 0),
        notes=frame["notes"].where(noted, frame["notes"] + "; " + wide),
    )


def gain_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as torch each device of the CPU is at each stage: the geometric mean over the sizes.

    Only devices that were measured at all sizes of a stage; where torch was not, the first of them is the baseline.
    """
    on_cpu, rows = measured_on_cpu(frame), []
    conditions = measurement_rows(on_cpu)[CONDITIONS]
    for (stage, *_), part in on_cpu.groupby(["stage", *SETTINGS], sort=False):
        count = len(part[["size", "graph"]].drop_duplicates())
        whole = {name: times for name, times in part.groupby("device", sort=False) if len(times) == count}
        baseline = BASELINE if BASELINE in whole else next(iter(whole), None)
        slow = whole.pop(baseline, None)
        for fast in whole.values():
            gain = geometric_mean(list(map(quotient, _estimates(slow), _estimates(fast))))
            row = {**conditions.loc[fast.index[0]], **_compared(gain), "stage": stage, "better": "higher"}
            row |= {"baseline": baseline, "ratio": gain.value, "ratio_low": gain.low, "ratio_high": gain.high}
            row |= {"parity_error": fast["parity_error"].max(), "notes": f"over {count} sizes; {ONE_BY_ONE}"}
            rows.append(row)
    return pd.DataFrame(rows)


def sum_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Stages by themselves, added up, over the same stages fused on the same device: above 1, fusing pays.

    Only where all of them have a time. Keys are size and block; `n` is the least of their samples.
    """
    timed, rows = frame[frame["status"] == MEASURED], []
    conditions = measurement_rows(timed)[CONDITIONS]
    for (size, *_), part in timed.groupby(["size", "graph", "device", *SETTINGS], sort=False):
        for at, block in part[part["fused"]].iterrows():
            alone = part[~part["fused"] & part["first"].between(block["first"], block["last"])]
            if len(alone) == block["last"] - block["first"] + 1:
                ms, below, above = alone["ms"].sum(), alone["ms"] - alone["ms_low"], alone["ms_high"] - alone["ms"]
                ends = ms - np.linalg.norm(below), ms + np.linalg.norm(above)  # each is measured by itself
                gain = quotient(Estimate(ms, *ends, alone["n"].min()), *_estimates(part.loc[[at]]))
                row = {**conditions.loc[at], **_compared(gain), "size": size, "block": block["stage"]}
                rows.append(row | {"better": "neither", "notes": ONE_BY_ONE})
    return pd.DataFrame(rows)


def _estimates(measured: pd.DataFrame) -> list[Estimate]:
    return [Estimate(*each) for each in measured[["ms", "ms_low", "ms_high", "n"]].itertuples(index=False)]


def _compared(estimate: Estimate) -> dict[str, Any]:
    """Fields of a row that compares times."""
    return {**asdict(estimate), "unit": "x", "statistic": "estimate", "interval": CONFIDENCE}


def duration_rows(frame: pd.DataFrame, available: Mapping[str, Availability], known: int) -> pd.DataFrame:
    """Minutes of this sweep, and hours of one with as many measurements as S4's; variants of two rows.

    They count devices with the 7 stages at S4's 15 sizes, and need all to be of this run (`known`: those that are not).
    The minutes need every device that is usable here; the hours are extrapolated from the mean time of a measurement.
    Those of a device share what it takes to load, so devices are resampled.
    """
    usable, study = [name for name, probed in available.items() if probed.usable], list(map(str, sizes.read(["study"])))
    here = frame.query(f"not fused and graph == 'random' and {S4_LAYER} and size in @study and device in @usable")
    whole = here.groupby("device").filter(lambda part: len(part) == S4_STAGES * len(study))
    devices, timed = set(whole["device"]), whole[whole["status"] == MEASURED]
    minutes, hours = ({"status": "unavailable", "reason": NEEDED} for _ in range(2))
    counted = f"{len(whole)} measurements of {len(devices)} devices"
    if len(timed) and not known:
        mean = cluster_bootstrap(timed["took_s"] * S4_MEASUREMENTS / 3600, timed["device"], "mean")
        notes = f"{counted}, scaled to S4's {S4_MEASUREMENTS}; {SPENT}"
        hours = {**asdict(mean), "interval": CONFIDENCE, "notes": notes}
        if devices == set(usable) and set(all_devices()) <= set(available):
            notes = f"{counted}, {whole['within'].sum()} intervals within 2 %; {SPENT}"
            minutes = {"value": whole["took_s"].sum() / 60, "n": 1, "notes": notes}
    minutes |= {"variant": "this sweep", "unit": "min", "origin": MEASURED, "statistic": "single"}
    hours |= {"variant": "as many cells as S4 measured", "unit": "h", "origin": "extrapolated", "statistic": "estimate"}
    about = measurement_rows(frame[frame["status"] == MEASURED])
    alike = {name: ", ".join(about[name].unique()) for name in ("device", "runtime", "precision")}
    alike |= {"device": alike["device"] or chip("CPU", ""), "threads": max(about["threads"], default=0)}
    return pd.DataFrame([minutes, hours]).assign(better="lower", **alike)


# ---- in words --------------------------------------------------------------------------------------------------------


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """What has no time, and why: device, status, reason, measurements (how many), stages."""
    lacking = frame[frame["status"] != MEASURED].sort_values(["device", "fused", "first", "last"], kind="stable")
    alike = lacking.assign(stages=lacking["stage"].str.split().str[0]).groupby(
        ["device", "status", "reason"], sort=False
    )["stages"]
    return alike.agg(measurements="size", stages=lambda numbers: ", ".join(numbers.unique())).reset_index()


def conclusion(frame: pd.DataFrame, reference: pd.DataFrame) -> list[str]:
    """One sentence of what is fastest on this CPU at the largest size, and one of what has no time and how far the
    reference workload changed (`Sweep.reference`)."""
    on_cpu, lost, sentences = measured_on_cpu(frame), int((frame["status"] != MEASURED).sum()), []
    if len(on_cpu):
        largest = on_cpu[on_cpu["size"] == on_cpu["size"].iloc[-1]]
        best = largest.loc[largest.groupby("stage", sort=False)["ms"].idxmin()]
        won = ", ".join(f"{device} ({count})" for device, count in best["device"].value_counts().items())
        widest = best.loc[(best["last"] - best["first"]).idxmax()]
        takes = f"{widest['stage']} takes {widest['ms']:.3g} ms on {widest['device']}"
        sentences.append(f"**At {widest['size']}, stages and blocks are fastest on {won}; {takes}.**")
    remarks = [f"{lost} of {len(frame)} measurements have no time"] * (lost > 0)
    if len(reference):
        ms = reference.assign(ms=reference["samples"].map(np.median)).groupby("phase")["ms"]
        change = f"{100 * float((ms.max() / ms.min() - 1).max()):.0f} %"
        remarks.append(
            f"the reference workload changed by {change}, so smaller differences between devices say nothing"
        )
    return sentences + ["; ".join(remarks).capitalize() + "."] * (len(remarks) > 0)
