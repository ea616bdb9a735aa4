"""The rows of the ledger that notebook 06 records, each with a reason computed from the numbers.

A row holds the arguments of `Session.claim`. `catalogue` is the claim catalogue: id -> an entry with `claimed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from gnnlab.profiling.goals import reached
from gnnlab.profiling.intervals import statistic_interval
from gnnlab.stages.bandwidth.bandwidth import AGAIN, NEW
from gnnlab.stages.bandwidth.study_frames import COPY, STUDY

Row = dict[str, Any]


def rows(
    compared: pd.DataFrame,
    rates: pd.DataFrame,
    regressed: pd.DataFrame,
    entries: pd.DataFrame,
    planted: pd.DataFrame,
    catalogue: Mapping[str, Any],
) -> list[Row]:
    """`compared` of the study, `rates` of `side_by_side`, `regressed`, `entries` of the lookup table, `planted` of
    `recovered`."""
    return [
        bandwidth(rates),
        intercept(regressed, entries),
        transfer_truth(planted, catalogue),
        predictor(compared, catalogue),
    ]


def bandwidth(rates: pd.DataFrame) -> Row:
    """The study's figure over that of a measured copy, geometric mean over stages where both exist."""
    id = "stages.bandwidth"
    wide = rates.pivot(index=["unit", "stage"], columns="method", values=["gb_s", "ci_low", "ci_high"])
    both = wide[wide["gb_s"].notna().all(axis=1)] if STUDY in rates["method"].values else wide.iloc[:0]
    if both.empty:
        return {"id": id, "measured": None, "why": "needs times at three sizes, and copies that can be told from noise"}
    logs = np.log(both["gb_s"][STUDY] / both["gb_s"][COPY])
    open_end = both["ci_high"][STUDY].fillna(both["gb_s"][STUDY])
    below = np.hypot(
        np.log(both["gb_s"][STUDY] / both["ci_low"][STUDY]), _half(both[("ci_high", COPY)], both[("gb_s", COPY)])
    )
    above = np.hypot(np.log(open_end / both["gb_s"][STUDY]), _half(both[("gb_s", COPY)], both[("ci_low", COPY)]))
    count, value = len(logs), float(logs.mean())
    ends = (value - np.linalg.norm(below) / count, value + np.linalg.norm(above) / count)
    low, high = logs.idxmin(), logs.idxmax()
    none = int(rates.loc[rates["method"] == STUDY, "gb_s"].isna().sum())
    why = (
        f"geometric mean over {count} stages; from {np.exp(logs[low]):.3g} at {low[1]} to {np.exp(logs[high]):.3g} at "
        f"{high[1]}" + (f"; {none} slopes are not above 0 and give no bandwidth" if none else "")
    )
    ci = (float(np.exp(ends[0])), float(np.exp(ends[1])))
    return {"id": id, "measured": float(np.exp(value)), "ci": ci, "n": count, "why": why, "figure": "bandwidth"}


def _half(high: pd.Series, low: pd.Series) -> pd.Series:
    return np.log(high / low)


def intercept(regressed: pd.DataFrame, entries: pd.DataFrame) -> Row:
    """The intercept over the time that remains when a measured copy of the bytes is taken off; median over stages.

    The study's compute time is one number for all sizes, so it is held against the median over them.
    """
    id = "stages.intercept"
    if regressed.empty:
        return {"id": id, "measured": None, "why": "needs times of GraphSAGE's stages at three sizes and more"}
    compute = entries.groupby(["unit", "stage"])["compute_time_ms"].median().rename("compute_ms")
    both = regressed.merge(compute.reset_index(), on=["unit", "stage"])
    known = both[both["compute_ms"] > 0]
    if known.empty:
        return {"id": id, "measured": None, "why": "needs stages that take longer than a copy of their bytes"}
    ratios = {name: known[f"intercept_{name}"] / known["compute_ms"] for name in ("ms", "low", "high")}
    negative = int((known["intercept_ms"] < 0).sum())
    left_out = f", {len(both) - len(known)} stages take no longer than a copy" if len(both) > len(known) else ""
    why = (
        f"median over {len(known)} stages of intercept over measured compute time (total less a copy of the stage's "
        f"bytes, median over sizes), from {ratios['ms'].min():.3g} to {ratios['ms'].max():.3g}; {negative} intercepts "
        f"are negative{left_out}"
    )
    ci = (float(ratios["low"].median()), float(ratios["high"].median()))
    return {"id": id, "measured": float(ratios["ms"].median()), "ci": ci, "n": len(known), "why": why}


def transfer_truth(planted: pd.DataFrame, catalogue: Mapping[str, Any]) -> Row:
    """Mean error of the bandwidth recovered from copies, over planted machines."""
    id = "goal.transfer_truth"
    value, ci = float(planted["error"].mean()), statistic_interval(np.mean, planted["error"])
    low, high, r2 = planted["study_times"].min(), planted["study_times"].max(), planted["r2"].min()
    why = (
        f"{reached(value, ci, catalogue[id].claimed)}: {len(planted)} planted machines of "
        f"{planted['planted_gb_s'].min():.3g} to {planted['planted_gb_s'].max():.3g} GB/s, worst size "
        f"{planted['worst'].max():.2g} %; the study's method, given its own model, is {low:.3g} to {high:.3g} times "
        f"too "
        f"low for TRANSFORM, at R2 {r2:.4f} and more"
    )
    return {"id": id, "measured": value, "ci": ci, "n": len(planted), "why": why}


def predictor(compared: pd.DataFrame, catalogue: Mapping[str, Any]) -> Row:
    """Share of cells at sizes never fitted that are predicted within 10 %."""
    id = "goal.predictor"
    new, again = (compared[compared["kind"] == kind] for kind in (NEW, AGAIN))
    if new.empty:
        return {"id": id, "measured": None, "why": "needs sizes inside the measured hull that were not fitted"}
    hits, count = int(new["within"].sum()), len(new)
    found = binomtest(hits, count).proportion_ci(method="wilson")
    ci = (float(found.low), float(found.high))
    parts = [
        f"{reached(hits / count, ci, catalogue[id].claimed)}: {hits} of {count} cells at "
        f"{new['size'].nunique()} sizes within 10 %, median error {100 * new['error'].abs().median():.2g} %",
        f"{new['covered'].mean():.0%} of them in their 90 % intervals",
        f"{new['wide'].mean():.0%} have intervals of their own wider than 10 %",
    ]
    if len(again):
        parts.append(
            f"measured a second time, {again['within'].mean():.0%} of {len(again)} known cells come within 10 %"
        )
    return {"id": id, "measured": hits / count, "ci": ci, "n": count, "why": "; ".join(parts), "figure": "off_grid"}


def record(claim: Callable[..., Any], rows: Sequence[Row]) -> int:
    """Hand every row to `Session.claim`; how many."""
    for row in rows:
        claim(**row)
    return len(rows)
