"""The tables of the inference study as rows of the lab's one table, for `Lab.record(study, frame, keys=...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from gnnlab.optimize.inference.options import ORIGINAL, PREDICTOR, Option
from gnnlab.optimize.inference.study import ALONE, TIMES

Conditions = Callable[[str, str], Mapping[str, Any]]  # (device, precision) -> fields of a row, as `Lab.conditions` has
SINGLE = {"statistic": "single", "interval": "none", "n": 1, "better": "lower"}
COUNTED = {"statistic": "count", "interval": "exact", "origin": "counted", "n": 1, "better": "lower"}
COSTS = {  # column: what it is, unit, fields
    "build_s": ("build", "s", {**SINGLE, "origin": "measured"}),
    "load_s": ("load", "s", {**SINGLE, "origin": "measured"}),
    "first_call_ms": ("first call", "ms", {**SINGLE, "origin": "measured"}),
    "stored_kib": ("stored", "KiB", COUNTED),
}
MODELLED = "ms of the model of the networks, not of a clock"


def of_race(
    raced: pd.DataFrame, options: Mapping[str, Option], accurate: pd.DataFrame, bound: float, conditions: Conditions
) -> pd.DataFrame:
    """The rows of a race with the conditions, the error and the notes of each form.

    A form that changes more decisions than the share `bound` says so in its notes. The error is the larger of those on
    the raced states and on the states that decisions are counted over.
    """
    decided = accurate.set_index("option")
    rows = []
    for row in raced.to_dict("records"):
        option = _option(options, row["form"])
        row |= {"status": "ok", **_runs_on(option, conditions)}
        if row["form"] in options and row["form"] != ORIGINAL:
            by = decided.loc[decides_as(row["form"], option)]
            row |= {"notes": notes(option, by, bound), "parity_error": _larger(row["parity_error"], by["score_error"])}
        rows.append(row)
    return pd.DataFrame(rows)


def decides_as(name: str, option: Option) -> str:
    """The option whose row of `accuracy` says how this one decides: itself where it has scores of its own."""
    return option.decides_as if option.scores is None else name


def notes(option: Option, accurate: Mapping[str, Any], bound: float) -> list[str]:
    """The option's own, and whether it changes more decisions than the bound; `accurate` is its row of `accuracy`."""
    return [part for part in (*option.note.split("; "), beyond_bound(accurate, bound)) if part]


def beyond_bound(row: Mapping[str, Any], bound: float) -> str:
    """What to say of an option that changes more decisions than the share `bound`; else nothing."""
    changed, least, most = 1 - row["same_share"], 1 - row["same_high"], 1 - row["same_low"]
    if row["exact"] or changed <= bound + 1e-9:  # as far as a difference of floats tells
        return ""
    word = "changes" if least > bound else "may change"
    return f"{word} {changed:.1%} of the decisions ({least:.1%} to {most:.1%}), the bound is {100 * bound:.3g}%"


def of_missing(missing: Mapping[str, str], sizes: Sequence[int]) -> pd.DataFrame:
    """A row of status "failed" at each size for each option that is not here, with its reason."""
    rows = []
    for name, why in missing.items():
        precision = "bfloat16" if name.endswith("bf16") else "int8" if "int8" in name else "float32"
        failed = {"form": name, "status": "failed", "reason": why, "precision": precision, "runtime": "", **TIMES}
        rows += [{"race": ALONE, "nodes": nodes, **failed} for nodes in sizes]
    return pd.DataFrame(rows)


def of_decisions(
    accurate: pd.DataFrame, options: Mapping[str, Option], nodes: str, conditions: Conditions
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(share of decisions that are the original's, regret in ms): a row each for every option that scores by itself."""
    shares, regrets = [], []
    for row in accurate.to_dict("records"):
        shared = {"form": row["option"], "nodes": nodes, **_runs_on(options[row["option"]], conditions)}
        share = {"unit": "share", "better": "higher", "origin": "counted", "statistic": "share"}
        regret = {"unit": "ms", "better": "lower", "origin": "simulated", "statistic": "mean", "notes": [MODELLED]}
        if row["option"] != ORIGINAL:
            shares.append({**shared, **share, "samples": row["same"], "parity_error": row["score_error"]})
        regrets.append({**shared, **regret, "samples": row["regret"]})
    return pd.DataFrame(shares), pd.DataFrame(regrets)


def of_engine_costs(costs: pd.DataFrame, options: Mapping[str, Option], conditions: Conditions) -> pd.DataFrame:
    """Each cost of each engine as a row; what was in the store was not built, and nothing is said of it."""
    rows = []
    for engine in costs.to_dict("records"):
        shared = {"form": engine["engine"], **_runs_on(options[PREDICTOR + engine["engine"]], conditions)}
        for column, (cost, unit, fields) in COSTS.items():
            if engine[column] > 0:
                rows.append({**shared, **fields, "cost": cost, "unit": unit, "value": engine[column]})
    return pd.DataFrame(rows)


def of_memory(held: pd.DataFrame) -> pd.DataFrame:
    """What a pass holds beside the model, counted by the bytes of its tensors."""
    return pd.DataFrame(
        {"form": row["path"], "states": row["states"], "value": row["rise_mib"], "unit": "MiB", **COUNTED}
        for row in held.to_dict("records")
    )


def _option(options: Mapping[str, Option], form: str) -> Option:
    """That of the form; else the original, or the fast predictor where the name says that it is a predictor's."""
    return options.get(form, options[PREDICTOR + "fast" if form.startswith(PREDICTOR) else ORIGINAL])


def _runs_on(option: Option, conditions: Conditions) -> dict[str, Any]:
    found = {**conditions(option.device, option.precision), "runtime": option.runtime}
    return found if option.threads is None else {**found, "threads": option.threads}


def _larger(raced: float | None, counted: float) -> float:
    return counted if raced is None or pd.isna(raced) else max(raced, counted)
