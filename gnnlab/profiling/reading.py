"""What the tables of `survey` say, in sentences. Nothing here is written before the numbers are known.

Each function takes a table and returns one or two sentences (a figure's title: the function's `_title` twin).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from .intervals import percentile, statistic_interval
from .operators import OperatorProfile
from .roofline import Ceilings, size_text
from .timing import Control


def control(run: Control) -> dict[str, Any]:
    """The 95th percentile of what an A/A control reported (percent), with its interval; None below 130 repetitions."""
    p95 = percentile(run.differences, 95)
    interval = None
    if p95 is not None:
        interval = statistic_interval(lambda x, axis: np.percentile(x, 95, axis=axis), run.differences)
    found = {"p95": p95, "ci": interval, "n": len(run.differences)}
    return found | {"median": float(np.median(run.differences)), "pairs": float(np.median(run.pairs))}


def control_title(found: Mapping[str, Any]) -> str:
    if found["p95"] is None:
        return f"The same form against itself differs by {found['median']:.2f} % (median of {found['n']})"
    return f"The same form against itself differs by less than {found['p95']:.2g} % in 95 of 100 comparisons"


def control_why(found: Mapping[str, Any]) -> str:
    if found["p95"] is None:
        return f"{found['n']} comparisons do not support a 95th percentile; it takes 130"
    return (
        f"{found['n']} comparisons of one form with itself, of {found['pairs']:.0f} pairs each (median); half of them "
        f"report less than {found['median']:.2f} %, and more pairs would report less"
    )


def deterministic(share: float) -> str:
    """What the share of bit-equal outputs says."""
    if share == 1:
        return "every output was bit-equal to the first under the same seed"
    return f"{1 - share:.1%} of the outputs differed in at least one bit from the first under the same seed"


def calls(profile: OperatorProfile, *operators: str) -> str:
    """Share and calls of single operators, one after another."""
    frame, counted = profile.frame.set_index("operator"), profile.calls(*operators)
    return "; ".join(
        f"{name.removeprefix('aten::')} {frame.loc[name, 'share']:.1%} in {counted[name]:g} calls a forward pass"
        for name in operators
        if name in frame.index
    )


def machine(ceilings: Ceilings) -> str:
    """What this machine can do at most."""
    rates = [rate for _, rate in ceilings.copy_gb_s]
    small, large = ceilings.copy_gb_s[int(np.argmax(rates))], ceilings.copy_gb_s[-1]
    return (
        f"Copies reach {small[1]:.0f} GB/s with a working set of {size_text(small[0])} and {large[1]:.0f} GB/s with "
        f"{size_text(large[0])}; matrix products reach {ceilings.gemm_gflop_s:.0f} GFLOP/s in {ceilings.precision} on "
        f"{ceilings.threads} {'thread' if ceilings.threads == 1 else 'threads'}."
    )


def times(timed: pd.DataFrame) -> str:
    """How forward pass, backward pass and training step relate, and which rows are not stable."""
    wide = timed.pivot(index="workload", columns="phase", values="median_ms").reindex(timed["workload"].unique())
    parts = [f"{label}: forward {_number(row['forward'])} ms{_training(row)}" for label, row in wide.iterrows()]
    unstable = timed[timed["notes"].str.contains("wanted")]
    trust = "Every interval is within 2 %." if unstable.empty else _unstable(unstable)
    return f"{_items(parts)}\n\n{trust}"


def _training(row: pd.Series) -> str:
    if "training step" not in row or not np.isfinite(row["training step"]):
        return ""
    times = row["training step"] / row["forward"]
    less = ", less than the forward pass by itself, which runs in inference mode" if times < 1 else ""
    return f", a training step takes {times:.1f} times that{less}"


def _unstable(rows: pd.DataFrame) -> str:
    worst = ((rows["ci_high"] - rows["ci_low"]) / 2 / rows["median_ms"]).max()
    return (
        f"{len(rows)} of the rows did not come within 2 % in the time they were given (the widest is ±{worst:.0%}); "
        "read those by their intervals."
    )


def times_title(timed: pd.DataFrame) -> str:
    forward = timed[timed["phase"] == "forward"].sort_values("median_ms")
    first, last = forward.iloc[0], forward.iloc[-1]
    if len(forward) == 1:
        return f"{first['workload']}: a forward pass takes {_number(first['median_ms'])} ms"
    return (
        f"A forward pass takes {_number(first['median_ms'])} ms ({first['workload']}) "
        f"to {_number(last['median_ms'])} ms ({last['workload']})"
    )


def operators(profiles: Mapping[str, OperatorProfile]) -> str:
    """The largest operator of each workload, and how much of a run is no operator's at all."""
    parts = []
    for label, profile in profiles.items():
        top = profile.frame.iloc[0]
        outside = profile.outside_ms / profile.run_ms
        parts.append(
            f"{label}: {top['operator']} takes {top['share']:.0%} of the operators' time "
            f"({top['share_low']:.0%} to {top['share_high']:.0%}); {outside:.0%} of the run is Python and dispatch"
        )
    return _items(parts)


def operators_title(profiles: Mapping[str, OperatorProfile]) -> str:
    tops = {label: profile.frame.iloc[0]["operator"] for label, profile in profiles.items()}
    if len(set(tops.values())) == 1:
        return f"{next(iter(tops.values()))} is the largest operator everywhere"
    return "The largest operator: " + ", ".join(f"{operator} ({label})" for label, operator in tops.items())


def modules(top: pd.DataFrame) -> str:
    """The module of each workload that keeps most time to itself."""
    first = top.groupby("workload", sort=False).first()
    return _items(f"{label}: {row['module']} keeps {row['share']:.0f} % of the time" for label, row in first.iterrows())


def memory(parts: pd.DataFrame) -> str:
    """What of the memory is weights, and what training needs beside them."""
    wide = parts.pivot(index="workload", columns="part", values="mib").reindex(parts["workload"].unique())
    return _items(_held(label, row["parameters"], row["forward activations"]) for label, row in wide.iterrows())


def _held(label: str, parameters: float, kept: float) -> str:
    factor = f" ({kept / parameters:.1f} times the parameters)" if parameters else ""
    return f"{label}: {_number(parameters)} MiB of parameters, {_number(kept)} MiB kept for the backward pass{factor}"


def memory_title(parts: pd.DataFrame) -> str:
    largest = parts.loc[parts["mib"].idxmax()]
    return f"Most memory at once: {_number(largest['mib'])} MiB ({largest['workload']}, {largest['part']})"


def roof(table: pd.DataFrame) -> str:
    """How far each forward pass is from the limit of this machine."""
    parts = [
        f"{row['workload']} takes {1 / row['reached']:.1f} times its roofline time "
        f"({_number(row['bound_ms'])} of {_number(row['measured_ms'])} ms)"
        for _, row in table.iterrows()
    ]
    covered = table["coverage"].min()
    return f"{_items(parts)}\n\nThe counted operators account for at least {covered:.1%} of the bytes."


def roof_title(table: pd.DataFrame) -> str:
    low, high = table["reached"].min(), table["reached"].max()
    if len(table) == 1:
        return f"{low:.0%} of this machine's limit is reached"
    return f"{low:.0%} to {high:.0%} of this machine's limit is reached"


def scaling(found: pd.DataFrame) -> str:
    """The exponents, and whether the held-out size came out as predicted."""
    parts = [_growth(row) for _, row in found.iterrows()]
    if not parts:
        return "Too few sizes for an exponent: it takes four, and a fifth to test the prediction."
    tested = found.dropna(subset=["inside"]) if "inside" in found else found.iloc[:0]
    inside = int(tested["inside"].sum()) if len(tested) else 0
    loose = int(tested["exponent"].isna().sum()) if len(tested) else 0
    check = f"The largest size was left out and predicted: {inside} of {len(tested)} lie inside their interval"
    check += f", {loose} of these by fits too loose to tell an exponent." if loose else "."
    return _items(parts) + (f"\n\n{check}" if len(tested) else "")


def _growth(row: pd.Series) -> str:
    if pd.isna(row["exponent"]):
        return f"how {row['workload']} grows with {row['parameter']} these sizes do not tell"
    interval = f"{row['ci_low']:.2f} to {row['ci_high']:.2f}"
    return f"{row['workload']} grows with {row['parameter']}^{row['exponent']:.2f} ({interval})"


def scaling_title(found: pd.DataFrame, parameter: str) -> str:
    rows = found[(found["parameter"] == parameter) & found["exponent"].notna()] if len(found) else found
    if not len(rows):
        return f"Time of a forward pass over {parameter}"
    return "Time grows with " + ", ".join(
        f"{parameter}^{row['exponent']:.1f} ({row['workload']})" for _, row in rows.iterrows()
    )


def named_title(points: pd.DataFrame) -> str:
    """How far apart the named values are, for the workload where they are furthest."""
    if points.empty:
        return "No degree distributions or encodings were asked for"
    spread = points.groupby(["workload", "parameter"])["median_ms"].agg(lambda t: t.max() / t.min())
    (workload, parameter), factor = spread.idxmax(), spread.max()
    part = points[(points["workload"] == workload) & (points["parameter"] == parameter)]
    fast, slow = part.loc[part["median_ms"].idxmin()], part.loc[part["median_ms"].idxmax()]
    if slow["ci_low"] <= fast["ci_high"]:
        return f"{parameter.capitalize()}: no difference seen (intervals of the fastest and the slowest overlap)"
    return f"{parameter.capitalize()}: the slowest takes {factor:.2f} times as long as the fastest ({workload})"


def _items(parts: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {part}" for part in parts)


def _number(value: float) -> str:
    """Three digits, and never an exponent where a reader expects a number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
