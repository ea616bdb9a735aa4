"""The same profile of several workloads, as tables: what notebooks and the command line show side by side.

A subject is anything with `label`, `model` and `batch`; every function here takes a list of them and gives a frame
with the column `workload`. Models are in eval mode, without dropout and under a fixed seed while they are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from torch import nn

from . import findings as detectors
from .context import ProfilingContext, call
from .counting import Count, count
from .flops import FLOPsEstimator
from .memory import get_memory_breakdown
from .operators import OperatorProfile, profile_operators
from .roofline import Ceilings, bound_ms
from .runtime import RuntimeProfiler, RuntimeStats
from .scaling import Build, ScalingResult, sweep

PHASES = ("forward", "backward", "training_step")


@dataclass(frozen=True)
class Swept:
    """One sweep and what it was of."""

    workload: str
    parameter: str
    result: ScalingResult


class Subject(Protocol):
    label: str
    model: nn.Module
    batch: Any


def times(
    subjects: Sequence[Subject], *, num_runs: int | None = None, warmup_runs: int = 10, budget_s: float = 1.0
) -> pd.DataFrame:
    """Forward pass, backward pass and training step: workload, phase, median_ms, ci_low, ci_high, n, notes, stats.

    `num_runs=None` samples until the interval is within 2 % or `budget_s` is spent, for each row.
    """
    options = {"num_runs": num_runs, "warmup_runs": warmup_runs, "budget_s": budget_s}
    rows = []
    for subject in subjects:
        with ProfilingContext(subject.model):
            stats = RuntimeProfiler(subject.model, **options).profile_all(subject.batch)
        rows += [_time_row(subject.label, phase, stats[phase]) for phase in PHASES if phase in stats]
    return pd.DataFrame(rows)


def roofline_points(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of `against_the_roof` as the points of a roofline figure."""
    return pd.DataFrame(
        {
            "label": table["workload"],
            "flops_per_byte": table["flops_per_byte"],
            "gflop_s": table["gflop_s"],
            "ci_low": table["gflop_s"] * table["reached_low"] / table["reached"],
            "ci_high": table["gflop_s"] * table["reached_high"] / table["reached"],
        }
    )


def _time_row(label: str, phase: str, stats: RuntimeStats) -> dict[str, Any]:
    low, high = stats.ci
    return {
        "workload": label,
        "phase": phase.replace("_", " "),
        "median_ms": stats.median,
        "ci_low": low,
        "ci_high": high,
        "n": stats.num_runs,
        "notes": "; ".join(stats.notes),
        "stats": stats,
    }


def operators(
    subjects: Sequence[Subject], *, runs: int = 20, trace_folder: Path | None = None
) -> dict[str, OperatorProfile]:
    """The operator profile of each workload, by label; traces are written as `<label>.json.gz` if a folder is given."""
    profiles = {}
    for subject in subjects:
        trace = None if trace_folder is None else Path(trace_folder) / f"{_file_name(subject.label)}.json.gz"
        with ProfilingContext(subject.model):
            profiles[subject.label] = profile_operators(subject.model, subject.batch, runs=runs, trace=trace)
    return profiles


def top_operators(profiles: Mapping[str, OperatorProfile], k: int = 5) -> pd.DataFrame:
    """The k operators with the largest share in each profile, in percent of the operators' time."""
    frames = [profile.top(k).assign(workload=label) for label, profile in profiles.items()]
    table = pd.concat(frames, ignore_index=True)
    return _in_percent(table)


def top_modules(profiles: Mapping[str, OperatorProfile], k: int = 6) -> pd.DataFrame:
    """The k modules with the largest own share in each profile, in percent."""
    frames = [
        profile.modules.sort_values("share", ascending=False).head(k).assign(workload=label)
        for label, profile in profiles.items()
    ]
    table = pd.concat(frames, ignore_index=True)
    names = [path or "(the model itself)" for path in table["module"]]
    return _in_percent(table.assign(module=names))


def modules_table(top: pd.DataFrame) -> pd.DataFrame:
    """`top_modules` for a reader: one column for share and interval, indexed by workload and module."""
    share = [f"{r.share:.0f} % ({r.ci_low:.0f} to {r.ci_high:.0f})" for r in top.itertuples()]
    table = top.assign(**{"own ms": top["self_ms"].round(3), "share of the time": share})
    return table.set_index(["workload", "module"])[["class", "own ms", "share of the time"]]


def _in_percent(table: pd.DataFrame) -> pd.DataFrame:
    """Shares in percent, and their intervals under the names that figures take."""
    table = table.rename(columns={"share_low": "ci_low", "share_high": "ci_high"})
    return table.assign(**{name: table[name] * 100 for name in ("share", "ci_low", "ci_high")})


def memory(subjects: Sequence[Subject]) -> pd.DataFrame:
    """A row for each workload and part: workload, part, mib (MiB)."""
    rows = []
    for subject in subjects:
        with ProfilingContext(subject.model):
            parts = get_memory_breakdown(subject.model, subject.batch)
        rows += [
            {"workload": subject.label, "part": part.replace("_", " "), "mib": size} for part, size in parts.items()
        ]
    return pd.DataFrame(rows)


def counts(subjects: Sequence[Subject]) -> dict[str, Count]:
    """What one forward pass of each workload computes and moves, by label."""
    found = {}
    for subject in subjects:
        with ProfilingContext(subject.model):
            found[subject.label] = count(subject.model, subject.batch)
    return found


def against_the_roof(counted: Mapping[str, Count], timed: pd.DataFrame, ceilings: Ceilings) -> pd.DataFrame:
    """Each forward pass beside its limit on this machine.

    Columns: workload, gflop, mb (10^6 bytes moved at least), flops_per_byte, measured_ms, gflop_s, bound_ms, reached
    (share of the limit, low and high from the interval of the time), coverage (share of the bytes that were counted).
    """
    forward = timed[timed["phase"] == "forward"].set_index("workload")
    rows = []
    for label, counts_ in counted.items():
        time = forward.loc[label]
        bound = bound_ms(counts_, ceilings)
        rows.append(
            {
                "workload": label,
                "gflop": counts_.flops / 1e9,
                "mb": counts_.bytes / 1e6,
                "flops_per_byte": counts_.flops / max(counts_.bytes, 1),
                "measured_ms": time["median_ms"],
                "gflop_s": counts_.flops / time["median_ms"] / 1e6,
                "bound_ms": bound,
                "reached": bound / time["median_ms"],
                "reached_low": bound / time["ci_high"],
                "reached_high": bound / time["ci_low"],
                "coverage": counts_.coverage_bytes,
            }
        )
    return pd.DataFrame(rows)


def sweeps(plan: Mapping[tuple[str, str], tuple[Sequence[Any], Build]], *, budget_s: float = 0.5) -> list[Swept]:
    """Run every sweep of a plan: (workload, parameter) -> (values, builder). `budget_s` bounds each point."""
    return [
        Swept(workload, parameter, sweep(parameter, values, build, budget_s=budget_s))
        for (workload, parameter), (values, build) in plan.items()
    ]


def sweep_points(swept: Sequence[Swept], *parameters: str) -> pd.DataFrame:
    """The measured points of the sweeps over these parameters, one row each, with the columns of `ScalingResult.rows`
    and `workload`."""
    rows = [{"workload": s.workload, **row} for s in swept if s.parameter in parameters for row in s.result.rows()]
    return pd.DataFrame(rows, columns=["workload", "parameter", "value", "median_ms", "ci_low", "ci_high", "n"])


def sweep_curves(swept: Sequence[Swept], parameter: str, points: int = 60) -> pd.DataFrame | None:
    """The fitted curves over `parameter` with their prediction intervals; None where nothing was fitted."""
    rows = []
    for s in swept:
        if s.parameter == parameter and s.result.fit and s.result.fit.identified:
            low, high = min(s.result.parameter_values), max(s.result.parameter_values)
            for value in np.geomspace(low, high, points):
                predicted, interval = s.result.fit.predict(value)
                row = {"workload": s.workload, "value": value, "median_ms": predicted}
                rows.append(row | {"ci_low": interval[0], "ci_high": interval[1]})
    return pd.DataFrame(rows) if rows else None


def exponents(swept: Sequence[Swept]) -> pd.DataFrame:
    """A row for each fitted sweep: workload, parameter, exponent, ci_low, ci_high (None where the sizes do not tell
    it), and the held-out largest size: predicted_ms, predicted_low, predicted_high, measured_ms, inside."""
    rows = []
    for s in swept:
        if s.result.fit is None:
            continue
        fit = s.result.fit
        low, high = fit.exponent_ci if fit.identified else (None, None)
        row = {"workload": s.workload, "parameter": s.parameter, "exponent": fit.exponent if fit.identified else None}
        row |= {"ci_low": low, "ci_high": high}
        if held := s.result.held_out:
            row |= {"held_out": held.value, "predicted_ms": held.predicted_ms}
            row |= {"predicted_low": held.interval_ms[0], "predicted_high": held.interval_ms[1]}
            row |= {"measured_ms": held.measured.median, "inside": held.inside}
        rows.append(row)
    return pd.DataFrame(rows)


def named_points(swept: Sequence[Swept], *parameters: str) -> pd.DataFrame:
    """Points of sweeps over named values, with values that read by themselves: "degrees: uniform"."""
    points = sweep_points(swept, *parameters)
    return points.assign(value=points["parameter"] + ": " + points["value"].astype(str))


def findings(subjects: Sequence[Subject]) -> pd.DataFrame:
    """What a reader would not think to ask: workload, kind, where, sentence."""
    rows = [
        {"workload": subject.label, "kind": found.kind, "where": found.where, "sentence": found.sentence}
        for subject in subjects
        for found in detectors.inspect(subject.model, subject.batch)
    ]
    return pd.DataFrame(rows, columns=["workload", "kind", "where", "sentence"])


def deterministic_share(subjects: Sequence[Subject], runs: int = 10) -> float:
    """Share of forward passes, over all subjects, whose output is bit-equal to the first under the same seed."""
    return sum(detectors.deterministic_share(s.model, s.batch, runs=runs) for s in subjects) / len(subjects)


def forward_form(subject: Subject) -> Callable[[], Any]:
    """A function without arguments that runs the subject's forward pass; its model is put into eval mode."""
    subject.model.eval()
    return lambda: call(subject.model, subject.batch)


def estimated_flops(subject: Subject, num_nodes: int, num_edges: int) -> Any:
    """The closed formulas of document 001 for a subject whose model they describe."""
    return FLOPsEstimator(subject.model).estimate(num_nodes=num_nodes, num_edges=num_edges)


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in label)
