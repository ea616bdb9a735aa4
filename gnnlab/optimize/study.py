"""Races between what a user has today and the fast forms: as tables, one row a form and size.

    installed, ours = set_conditions(threads=0, precision="highest")
    table = races([Case({"size": "1000/10000"}, baseline, {"fast": form})], budget_s=1, installed=installed, ours=ours)
    gain = geometric_mean(rounds_of(table, "fast"))         # over all sizes, with its interval

Every form is given twice: over the baseline as it is installed, and over the baseline under the conditions of the fast
forms. Where the conditions are the same, so are the two figures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from gnnlab.kernels.errors import OptimizeError
from gnnlab.profiling.conditions import Conditions
from gnnlab.profiling.intervals import median_interval
from gnnlab.profiling.parity import RTOL_FLOAT32, require_equal
from gnnlab.profiling.races import LEAST_ROUNDS
from gnnlab.profiling.timing import Comparison, race

Form = Callable[[], Any]
BASELINE, CONTROL, SAME = "baseline", "A/A", "baseline, our conditions"
_RESAMPLES = 999
HIDDEN = ["rounds", "same_rounds", "under"]  # columns for computing, not for a reader


@dataclass(frozen=True)
class Case:
    """One race: the columns that name it, what a user has, and the forms that give the same within `tolerance`.

    `tolerances` holds the bound of forms that are allowed another one.
    """

    label: Mapping[str, Any]
    baseline: Form
    forms: Mapping[str, Form]
    tolerances: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Gain:
    """How much faster over several sizes: geometric mean with its 95 % interval; `n` rounds at the least."""

    value: float
    ci: tuple[float, float]
    n: int
    sizes: int


def set_conditions(threads: int, precision: str) -> tuple[Conditions, Conditions]:
    """(as torch was when this was called, as it is from now on); 0 threads leaves their number."""
    installed = Conditions.now()
    ours = Conditions(threads or installed.threads, precision)
    ours.set()
    return installed, ours


def races(
    cases: Iterable[Case],
    *,
    budget_s: float,
    installed: Conditions,
    ours: Conditions,
    device: str = "cpu",
    control: bool = True,
) -> pd.DataFrame:
    """A row for each form of each case, the baseline's own first; everything in inference mode.

    Columns: those of the labels, form, ratio, ci_low, ci_high (over the baseline as installed; above 1 is faster),
    same_ratio, same_low, same_high (over it under our conditions), conditions (ours), n, parity_error, ms, ms_low,
    ms_high, notes, `rounds` and `same_rounds` (n, 2): ms of baseline and form in each round, and `under`, the
    `Conditions`. A form that does not run here has no numbers, and why in its notes. With `control` each case has an
    A/A control.
    """
    rows = []
    with torch.inference_mode():
        for case in cases:
            options = {"budget_s": budget_s, "device": device, "control": control, "least": LEAST_ROUNDS}
            with ours.held():
                found = _raced(case, installed, ours, options)
            rows += [{**row, "conditions": str(ours), "under": ours} for row in found]
    return pd.DataFrame(rows)


def _raced(case: Case, installed: Conditions, ours: Conditions, options: dict[str, Any]) -> list[dict[str, Any]]:
    apart = installed != ours
    baseline = partial(_under, installed, case.baseline) if apart else case.baseline
    forms, errors, failed = _agreeing(case, baseline)
    if apart:
        forms = {SAME: case.baseline, **forms}
    results = race(baseline, forms, parity=None, **options) if forms or options["control"] else {}
    same = results.get(SAME)
    rows = [_row(case.label, name, found, same, errors.get(name)) for name, found in results.items()]
    if rows:
        rows.insert(0, _baseline_row(case.label, next(iter(results.values()))))
    return rows + [{**case.label, "form": name, "ratio": np.nan, "notes": why} for name, why in failed.items()]


def _agreeing(case: Case, baseline: Form) -> tuple[dict[str, Form], dict[str, float], dict[str, str]]:
    """Forms that run and agree, their errors, and why others do not run. A form that differs raises `ParityError`."""
    expected = baseline()
    forms, errors, failed = {}, {}, {}
    for name, form in case.forms.items():
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
                got = form()
        except (RuntimeError, NotImplementedError) as error:  # this torch or this device has no such kernel
            failed[name] = f"does not run here: {(str(error).strip().splitlines() or [type(error).__name__])[0][:120]}"
            continue
        errors[name] = require_equal(expected, got, case.tolerances.get(name, RTOL_FLOAT32), name)
        forms[name] = form
    return forms, errors, failed


def _under(conditions: Conditions, form: Form) -> Any:
    with conditions.held():
        return form()


def _row(
    label: Mapping[str, Any], name: str, found: Comparison, same: Comparison | None, error: float | None
) -> dict[str, Any]:
    rounds = np.column_stack([found.baseline.samples_ms, found.candidate.samples_ms])  # (n, 2)
    same_rounds = rounds if same is None else np.column_stack([same.candidate.samples_ms, found.candidate.samples_ms])
    ratios = same_rounds[:, 0] / same_rounds[:, 1]
    low, high = found.ci if same is None else median_interval(ratios)
    return {
        **label,
        "form": name,
        "ratio": found.ratio,
        "ci_low": found.ci[0],
        "ci_high": found.ci[1],
        "same_ratio": float(np.median(ratios)),
        "same_low": low,
        "same_high": high,
        "n": found.n,
        "parity_error": error,
        "ms": found.candidate.median_ms,
        "ms_low": found.candidate.ci_ms[0],
        "ms_high": found.candidate.ci_ms[1],
        "notes": "; ".join(found.notes),
        "rounds": rounds,
        "same_rounds": same_rounds,
    }


def _baseline_row(label: Mapping[str, Any], found: Comparison) -> dict[str, Any]:
    timing = found.baseline
    times = {"n": timing.n, "ms": timing.median_ms, "ms_low": timing.ci_ms[0], "ms_high": timing.ci_ms[1]}
    return {**label, "form": BASELINE, "ratio": 1.0, "ci_low": 1.0, "ci_high": 1.0, **times, "notes": ""}


def rounds_of(table: pd.DataFrame, form: str, *, same: bool = False) -> list[np.ndarray]:
    """The rounds of one form at each size where it ran, (n, 2) each: ms of baseline and form."""
    column = table.loc[table["form"] == form, HIDDEN[same]]
    return [rounds for rounds in column if isinstance(rounds, np.ndarray)]


def geometric_mean(rounds: Sequence[np.ndarray], *, of: str = "median", seed: int = 0) -> Gain:
    """Over sizes, the geometric mean of each one's ratio, baseline over form.

    The ratio of a size is the median over its rounds, or with `of="mean"` that of the mean times, which is the ratio of
    throughputs. The interval: rounds are resampled within each size, 999 times; as a bootstrap of medians is too narrow
    for few rounds, the intervals of the sizes, which are not, are added in quadrature, and the wider of the two counts.

    Raises:
        OptimizeError: no rounds, or an unknown `of`.
    """
    if not len(rounds) or of not in ("median", "mean"):
        raise OptimizeError(f"geometric_mean needs rounds of at least one size and of=median|mean, not {of!r}")
    random = np.random.default_rng(seed)
    centres, resampled, below, above = [], [], [], []
    for table in rounds:
        table = np.asarray(table, dtype=float)  # (n, 2)
        logs = np.log(table[:, 0] / table[:, 1])
        centre = np.median(logs) if of == "median" else np.log(table[:, 0].mean() / table[:, 1].mean())
        drawn = random.integers(0, len(table), (_RESAMPLES, len(table)))
        if of == "median":
            resampled.append(np.median(logs[drawn], axis=1))
        else:
            resampled.append(np.log(table[:, 0][drawn].mean(axis=1) / table[:, 1][drawn].mean(axis=1)))
        low, high = median_interval(logs)
        below.append(np.median(logs) - low)
        above.append(high - np.median(logs))
        centres.append(centre)
    value, sizes = float(np.mean(centres)), len(rounds)
    low, high = np.percentile(np.mean(resampled, axis=0), [2.5, 97.5])
    low = min(low, value - np.linalg.norm(below) / sizes)
    high = max(high, value + np.linalg.norm(above) / sizes)
    ends = (float(np.exp(low)), float(np.exp(high)))
    return Gain(float(np.exp(value)), ends, min(map(len, rounds)), sizes)


def shown(table: pd.DataFrame, digits: int = 3) -> pd.DataFrame:
    """The table for a reader: without the columns that are for computing, numbers to so many digits."""
    kept = table.drop(columns=[c for c in HIDDEN if c in table])
    return kept.map(lambda v: float(f"{v:.{digits}g}") if isinstance(v, float) and np.isfinite(v) else v)
