"""The rows of the ledger that notebook 07 records, each with a reason computed from the numbers.

A row holds the arguments of `Session.claim`. `catalogue` is the claim catalogue: id -> an entry with `claimed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling.goals import reached
from gnnlab.profiling.intervals import median_interval, statistic_interval
from gnnlab.stages.plans.plans import Space

Row = dict[str, Any]
STUDY = Space(("CPU", "GPU", "NPU"), unable={"NPU": {3, 4}}, ratios=(0.5,))  # study 5's machine


def rows(raced: pd.DataFrame, catalogue: Mapping[str, Any]) -> list[Row]:
    return [peps(), regret(raced, catalogue), error(raced, catalogue), gain(raced, catalogue)]


def peps() -> Row:
    """Candidates by the study's rules."""
    plans = STUDY.candidates()
    alone = sum(len(plan.blocks) == 1 for plan in plans)
    wider = replace(STUDY, ratios=(0.3, 0.5, 0.7))
    more = [len(wider.candidates(max_blocks=most, one_unit=True)) for most in (2, 3)]
    why = (
        f"counted: {alone} of one shared block and {len(plans) - alone} of two blocks, at one ratio; with three ratios "
        f"and one-unit plans {more[0]}, with three blocks too {more[1]}"
    )
    return {"id": "stages.peps", "measured": len(plans), "why": why}


def regret(raced: pd.DataFrame, catalogue: Mapping[str, Any]) -> Row:
    """Executed time of the chosen plan over the best of all executed plans, the worst of the sizes."""
    found = []
    for size, part in raced.groupby("size", sort=False):
        best = part.loc[part["ratio"].idxmax()]
        chosen = part[part["chosen"]].iloc[0]
        rounds = (np.asarray(best["rounds"]) / np.asarray(chosen["rounds"]) - 1) * 100
        found.append((float(np.median(rounds)), median_interval(rounds), len(rounds), size, best, chosen))
    value, ci, n, size, best, chosen = max(found, key=lambda one: one[0])
    what = "the chosen plan is the best" if best["plan"] == chosen["plan"] else f"the best is {best['words']}"
    met = reached(value, ci, catalogue["goal.plan_regret"].claimed)
    why = f"{met}: {size}, {what} of {_count(raced, size)} executed, interleaved"
    return {"id": "goal.plan_regret", "measured": value, "ci": ci, "n": n, "why": why, "figure": "raced"}


def error(raced: pd.DataFrame, catalogue: Mapping[str, Any]) -> Row:
    """Median error of predicted against executed plan times."""
    off = raced["error"].abs().to_numpy() * 100
    ci = statistic_interval(np.median, off)
    met = reached(float(np.median(off)), ci, catalogue["goal.plan_error"].claimed)
    beyond = int((raced["origin"] == "extrapolated").sum())
    why = (
        f"{met}: {len(off)} plans at {raced['size'].nunique()} sizes, "
        f"{off.max():.0f} % at most; {by_units(raced)}; streams simulated from blocks' times, {beyond} of them "
        "extrapolated"
    )
    return {
        "id": "goal.plan_error",
        "measured": float(np.median(off)),
        "ci": ci,
        "n": len(off),
        "why": why,
        "figure": "raced",
    }


def by_units(raced: pd.DataFrame) -> str:
    """How far predictions of plans of one unit are off, and how far those of several: these also need what units that
    run together cost each other."""
    parts = []
    for several, part in raced.groupby(raced["units"] > 1):
        held = int(((part["predicted_low"] <= part["ms"]) & (part["ms"] <= part["predicted_high"])).sum())
        fast = int((part["error"] < 0).sum())
        parts.append(
            f"plans of {'several units' if several else 'one unit'} {100 * part['error'].abs().median():.2g} % in the "
            f"median, {fast} of {len(part)} predicted too fast, {held} within their intervals"
        )
    return ", ".join(parts)


def gain(raced: pd.DataFrame, catalogue: Mapping[str, Any]) -> Row:
    """The chosen plan over the best executed plan of one unit, geometric mean over the sizes."""
    logs, each = [], []
    for size, part in raced.groupby("size", sort=False):
        alone, chosen = part[part["units"] == 1], part[part["chosen"]].iloc[0]
        best = alone.loc[alone["ratio"].idxmax()]
        rounds = np.asarray(chosen["rounds"]) / np.asarray(best["rounds"])
        logs.append(np.log(rounds))
        each.append(f"{size}: {np.median(rounds):.3g} over {best['words'].removeprefix('stages ')}")
    value, ci = _mean(logs)
    met = reached(value, ci, catalogue["goal.plan_gain"].claimed)
    why = f"{met}: {'; '.join(each)}; one thread for each unit, interleaved"
    return {
        "id": "goal.plan_gain",
        "measured": value,
        "ci": ci,
        "n": sum(map(len, logs)),
        "why": why,
        "figure": "raced",
    }


def _mean(logs: list[np.ndarray]) -> tuple[float, tuple[float, float]]:
    """Geometric mean over sizes of the median ratios, and its interval from those of the sizes, in quadrature."""
    middles = np.array([np.median(rounds) for rounds in logs])
    ends = np.array([median_interval(rounds) for rounds in logs])
    below, above = (float(np.linalg.norm(side)) / len(logs) for side in (middles - ends[:, 0], ends[:, 1] - middles))
    middle = float(middles.mean())
    return float(np.exp(middle)), (float(np.exp(middle - below)), float(np.exp(middle + above)))


def _count(raced: pd.DataFrame, size: str) -> int:
    return int((raced["size"] == size).sum())
