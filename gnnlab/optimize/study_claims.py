"""The rows of the ledger that notebook 02 records, each with a reason computed from the numbers.

`catalogue` is the claim catalogue: id -> an entry with `claimed` (low, high), either of which may be None. A row holds
the arguments of `Session.claim`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch

from gnnlab.optimize.study import CONTROL, Gain, geometric_mean, rounds_of
from gnnlab.optimize.study_reading import beyond_cache, gain_text, interval_text, under
from gnnlab.profiling.goals import reached
from gnnlab.profiling.operators import profile_operators

Row = dict[str, Any]
Goal = tuple[str, pd.DataFrame, str]  # id, table of races, form
ON_CUDA = {"gat.compile": "gat.compile_cuda", "gat.optimized": "gat.optimized_cuda"}


def roof_claim(roof: pd.DataFrame, form: str = "bag") -> Row:
    """The row of the ledger on the share of the roofline."""
    rows, where = beyond_cache(roof, form)
    rounds = [
        np.column_stack([np.full(len(r), bound), r[:, 1]])
        for r, bound in zip(rows["rounds"], rows["bound_ms"], strict=True)
    ]
    gain = geometric_mean(rounds)
    every = float((4 * rows["nodes"] * rows["features"] * 2 + 8 * rows["edges"] + 4 * rows["nodes"]).mean())
    counted = gain.value * every / float(rows["bytes"].mean())
    why = (
        f"{where}: {rows['gb_s'].median():.1f} GB/s of what must move; with rows that no edge names counted as read, "
        f"it would be {counted:.2f}"
    )
    return measured("goal.aggregation_roof", gain, why, figure="aggregation")


def ladder_claims(summary: pd.DataFrame, failed: Mapping[str, str], device: str = "cpu") -> list[Row]:
    """Rows of the ledger on the study's optimizations: those stated for this kind of device, the others untestable."""
    noise = summary[summary["rung"] == CONTROL]
    floor = "" if noise.empty else f"; the A/A control shows {interval_text(noise.iloc[0])}"
    found = {row["id"]: row for row in summary.to_dict("records") if row["id"]}
    rows = []
    for id in ("gat.optimized", "gat.throughput", "gat.expand", "gat.cached_ids", "gat.compile"):
        row = found.get(id)
        reason = next(iter(failed.values()), "the rung is missing")
        if row is None:
            rows.append({"id": id, "measured": None, "why": f"needs torch.compile to work here: {reason}"})
        elif device != "cpu":
            rows.append({"id": id, "measured": None, "why": f"stated for a CPU; this run is on {device}"})
        else:
            rows.append(_rung_claim(id, row, floor))
    for id, other in ON_CUDA.items():
        if device == "cpu":
            rows.append({"id": other, "measured": None, "why": "needs a CUDA device; params/gpu measures it there"})
        elif id in found:
            rows.append(_rung_claim(other, found[id], floor))
        else:
            reason = next(iter(failed.values()), "the rung is missing")
            rows.append({"id": other, "measured": None, "why": f"needs torch.compile to work here: {reason}"})
    return rows


def _rung_claim(id: str, row: Mapping[str, Any], floor: str) -> Row:
    change = row["ratio"] - 1
    effect = "no difference seen" if row["ci_low"] <= 1 <= row["ci_high"] else f"{change:+.1%} calls in the same time"
    why = f"equal weights, interleaved, geometric mean over the batch sizes: {effect}{floor}"
    ci = (row["ci_low"], row["ci_high"])
    return {"id": id, "measured": row["ratio"], "ci": ci, "n": row["n"], "why": why, "figure": "ladder"}


def holds(form: Callable[[], Any], runs: int = 4) -> Row:
    """The operator that takes most of a form's time: operator, share, ci, and a sentence."""

    def work(*_: Any) -> Any:
        with torch.inference_mode():
            return form()

    spent = profile_operators(work, (), runs=runs)
    operator = str(spent.frame.iloc[0]["operator"])
    share = spent.joint_share(operator)
    (low, high), name = share["ci"], operator.removeprefix("aten::")
    sentence = f"{name} takes {share['value']:.0%} of the fast form's operator time ({low:.0%} to {high:.0%})"
    faults = page_faults(work)
    if faults > 100:
        sentence += f", and each call faults {faults:,.0f} pages of memory in anew"
    return {"operator": operator, "share": share["value"], "ci": share["ci"], "sentence": sentence}


def page_faults(form: Callable[[], Any], calls: int = 3) -> float:
    """Pages that a call makes the system map in, the allocator having given them back; 0 where none are counted."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        form()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls


def spent(
    goals: Sequence[Goal], forms: Mapping[str, Callable[[], Callable[[], Any]]], catalogue: Mapping[str, Any]
) -> dict[str, Row]:
    """Where the time of the fast form goes, for each goal that is missed and that `forms` makes a form for."""
    missed = [
        id
        for id, table, form in goals
        if rounds_of(table, form) and geometric_mean(rounds_of(table, form)).value < catalogue[id].claimed[0]
    ]
    found = {}
    for id, table, form in goals:
        if id in missed and id in forms:
            with table.loc[table["form"] == form, "under"].iloc[-1].held():
                found[id] = holds(forms[id]())
    return found


def goal(
    id: str,
    table: pd.DataFrame,
    form: str,
    catalogue: Mapping[str, Any],
    spent: Mapping[str, Row] = MappingProxyType({}),
    notes: Mapping[str, str] = MappingProxyType({}),
    figures: Mapping[str, str] = MappingProxyType({}),
) -> Row:
    """The row of a goal: `form` over the baseline as installed; why says how far it is and what holds it.

    `spent` (of `spent`), `notes` and `figures` are looked up by the id of the goal.
    """
    rounds = rounds_of(table, form)
    if not rounds:
        reason = table.loc[table["form"] == form, "notes"]
        return {"id": id, "measured": None, "why": f"{form}: {next(iter(reason), 'not among the forms of this run')}"}
    gain, same = geometric_mean(rounds), geometric_mean(rounds_of(table, form, same=True))
    target = catalogue[id].claimed[0]
    where = f", geometric mean over {gain.sizes} sizes" if gain.sizes > 1 else ""
    parts = [distance(gain, target) + where, f"ours under {under(table, form)}"]
    parts += [f"over PyG under the same conditions {gain_text(same)}"]
    error = table.loc[table["form"] == form, "parity_error"].max()
    if not pd.isna(error):
        parts.append(f"largest relative error {error:.1e}")
    if id in spent:
        parts += [spent[id]["sentence"], f"with all else free it would reach {gain.value / spent[id]['share']:.3g}"]
    if notes.get(id):
        parts.append(notes[id])
    precision = "bfloat16" if "bf16" in form else "float32"
    return measured(id, gain, "; ".join(parts), figure=figures.get(id), precision=precision)


def distance(gain: Gain, target: float) -> str:
    """Met or missed, by how much, and what the interval says to it."""
    found = reached(gain.value, gain.ci, (target, None))
    by = f" by {1 - gain.value / target:.0%}" if found == "missed" else ""
    return f"{found}{by}: {gain.value:.3g} of {target:g}"


def record(claim: Callable[..., Any], rows: Sequence[Row]) -> int:
    """Hand every row to `Session.claim`; how many."""
    for row in rows:
        claim(**row)
    return len(rows)


def measured(id: str, gain: Gain, why: str, **options: Any) -> Row:
    """The row of a claim that has a figure; `options`: figure, precision."""
    return {"id": id, "measured": gain.value, "ci": gain.ci, "n": gain.n, "why": why, **options}
