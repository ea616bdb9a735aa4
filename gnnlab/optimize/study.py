"""Races between what a user has today and the fast forms: as tables, one row a form and size.

    installed, ours = set_conditions(threads=0, precision="highest")
    table = races([cases.sage(1000, 10_000)], budget_s=1, installed=installed, ours=ours)
    gain = geometric_mean(rounds_of(table, "fast"))         # over all sizes, with its interval

Every form is given twice: over the baseline as it is installed, and over the baseline under the conditions of the fast
forms. Where the conditions are the same, so are the two figures. With `relax`, float32 products may be relaxed for the
fast forms, size by size, where that is seen to be faster and its error is still float32's.
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
from gnnlab.profiling.conditions import PRECISIONS, Conditions
from gnnlab.profiling.intervals import median_interval
from gnnlab.profiling.parity import RTOL_FLOAT32, relative_error, require_equal
from gnnlab.profiling.timing import Comparison, race

Form = Callable[[], Any]
BASELINE, CONTROL, SAME = "baseline", "A/A", "baseline, our conditions"
RELAXED_RTOL = RTOL_FLOAT32 / 4  # what relaxed products may add; where "medium" means bf16, they add 100 times that
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
    """(as torch was when this was called, as it is from now on); 0 threads leaves their number.

    precision "auto" is the exact one here; `relax` of `races` then looks for a faster one.
    """
    installed = Conditions.now()
    ours = Conditions(threads or installed.threads, "highest" if precision == "auto" else precision)
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
    relax: bool = False,
) -> pd.DataFrame:
    """A row for each form of each case, the baseline's own first; everything in inference mode.

    With `relax` the forms of a case run under relaxed products where `relaxed` finds them faster and as accurate.

    Columns: those of the labels, form, ratio, ci_low, ci_high (over the baseline as installed; above 1 is faster),
    same_ratio, same_low, same_high (over it under our conditions), conditions (ours), n, parity_error, ms, ms_low,
    ms_high, notes, `rounds` and `same_rounds` (n, 2): ms of baseline and form in each round, and `under`, the
    `Conditions`. A form that does not run here has no numbers, and why in its notes. With `control` each case has an
    A/A control.
    """
    rows = []
    with torch.inference_mode():
        for case in cases:
            options = {"budget_s": budget_s, "device": device, "control": control}
            chosen = relaxed(case, ours, budget_s=budget_s / 4, device=device) if relax else ours
            with chosen.held():
                found = _raced(case, installed, chosen, options)
            rows += [{**row, "conditions": str(chosen), "under": chosen} for row in found]
    return pd.DataFrame(rows)


def relaxed(case: Case, ours: Conditions, *, budget_s: float, device: str = "cpu") -> Conditions:
    """Our conditions with the float32 products under which the first form of the case is fastest.

    A relaxed setting is taken only where the form differs by no more than `RELAXED_RTOL` from itself under ours, and is
    seen to be faster in a race of its own, so that what is measured afterwards was not selected by its own noise.
    """
    form = next(iter(case.forms.values()))
    others = [Conditions(ours.threads, p) for p in PRECISIONS[PRECISIONS.index(ours.precision) + 1 :]]
    try:
        expected = _under(ours, form)
        accurate = [other for other in others if relative_error(expected, _under(other, form)) <= RELAXED_RTOL]
    except (RuntimeError, NotImplementedError):  # it does not run here, which its row will say
        return ours
    candidates = {other: partial(_under, other, form) for other in accurate}
    if not candidates:
        return ours
    found = race(partial(_under, ours, form), candidates, parity=None, budget_s=budget_s, device=device, control=False)
    faster = {other: compared.ratio for other, compared in found.items() if compared.ci[0] > 1}
    return max(faster, key=faster.__getitem__, default=ours)


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


def under_conditions(
    cases: Mapping[str, Case], combinations: Sequence[Conditions], *, installed: Conditions, budget_s: float
) -> pd.DataFrame:
    """The first form of each case and its baseline under each of the conditions, all in one race a case.

    Columns: workload, conditions, ratio, ci_low, ci_high (form over the baseline as installed), same_ratio, same_low,
    same_high (over the baseline under the same conditions), baseline_ratio (baseline over itself as installed),
    parity_error, n, notes. What is in force before is in force afterwards.
    """
    rows = []
    with torch.inference_mode():
        for workload, case in cases.items():
            rows += _under_each(workload, case, combinations, installed, budget_s)
    return pd.DataFrame(rows)


def _under_each(
    workload: str, case: Case, combinations: Sequence[Conditions], installed: Conditions, budget_s: float
) -> list[dict[str, Any]]:
    form = next(iter(case.forms.values()))
    baseline = partial(_under, installed, case.baseline)
    expected, forms, errors = baseline(), {}, {}
    for chosen in combinations:
        forms["baseline", chosen] = partial(_under, chosen, case.baseline)
        forms["fast", chosen] = partial(_under, chosen, form)
        errors[chosen] = require_equal(expected, forms["fast", chosen](), 2e-2, f"{workload}, {chosen}")
    results = race(baseline, forms, parity=None, budget_s=budget_s)
    rows = []
    for chosen in combinations:
        plain, fast = results["baseline", chosen], results["fast", chosen]
        row = _row({"workload": workload, "conditions": str(chosen)}, "fast", fast, plain, errors[chosen])
        rows.append({**row, "baseline_ratio": plain.ratio})
    return rows


def combinations(installed: Conditions) -> list[Conditions]:
    """One thread; as many as installed; and those with relaxed products."""
    counts = dict.fromkeys([1, installed.threads])
    return [*(Conditions(threads, "highest") for threads in counts), Conditions(installed.threads, "medium")]


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
