"""What changed between two results, row by row, and what else was not the same.

    compare(Path("outputs/quick"), Path("elsewhere/quick")).changes

A folder with several runs of a notebook (`gnnlab run --runs 5`) counts with all of them, pooled row by row. The two
sides were not interleaved, so their ratio also holds what the machine did in between; the comparison says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gnnlab.errors import GnnlabError
from gnnlab.measure import estimates
from gnnlab.measure.estimates import Estimate

from . import provenance, results
from .results import ResultFile
from .table import Interval, Row

NOT_INTERLEAVED = (
    "The runs were not interleaved: on a shared machine that alone changes times by 5 to 20 %. "
    "Intervals hold the noise within a run and, where there are several, between runs, not what happened between A and "
    "B. Of rows that did not change, about one in twenty is told to have."
)
SAME = "no difference seen"
WORDS = {"lower": ("better", "worse"), "higher": ("worse", "better"), "neither": ("lower", "higher")}  # fell, rose
NO_CONDITIONS = ("State", "At its end", "Software")  # of an environment: how busy it was, and what versions say
Runs = Mapping[str, Sequence[ResultFile]]  # by notebook, the latest first


@dataclass(frozen=True)
class Change:
    """How a row's value, or its ratio over the baseline, changed from A to B; None where a side has none.

    `change` and `ci` are the ratio B / A, or with `scale` "difference" B - A in `unit` (a ratio has no meaning where a
    value or its interval reaches zero). They are None where the two cannot be compared, `ci` where a side has none.
    """

    notebook: str
    study: str
    keys: dict[str, Any]
    form: str
    of: str
    unit: str
    a: float | None
    b: float | None
    runs: tuple[int, int]
    word: str = ""
    note: str = ""  # conditions that are not the same, why a side has no number
    scale: str | None = None  # "ratio" or "difference"
    change: float | None = None
    ci: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        return f"{self.notebook[:2]} {', '.join([self.study, *map(str, self.keys.values())])}: {self.form}, {self.of}"


@dataclass(frozen=True)
class RunComparison:
    """Everything that can be said of A and B. `differences` are the conditions that were not the same."""

    run_a: str
    run_b: str
    differences: list[str]
    changes: list[Change]
    problems: list[str]
    caution: str = NOT_INTERLEAVED


def compare(run_a: Path, run_b: Path) -> RunComparison:
    """Compare two folders of results, or of single runs. Raises `GnnlabError` when one holds no readable result."""
    (runs_a, problems_a), (runs_b, problems_b) = _read(Path(run_a)), _read(Path(run_b))
    both = [name for name in runs_a if name in runs_b]
    left, right = _conditions(runs_a, both), _conditions(runs_b, both)
    unlike = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    differences = [f"{key}: {left.get(key, 'not there')} | {right.get(key, 'not there')}" for key in unlike]
    a, b = _figures(runs_a, both), _figures(runs_b, both)
    pairs = {key: (a.get(key), b.get(key)) for key in {**a, **b}}
    changes = [_change(key, *pair, differences) for key, pair in pairs.items() if key[-1] == "value" or all(pair)]
    measured = [change for change in changes if (change.a, change.b) != (None, None)]
    return RunComparison(str(run_a), str(run_b), differences, measured, [*problems_a, *problems_b])


def _read(folder: Path) -> tuple[Runs, list[str]]:
    """The runs of each notebook, and a line for each that could not be read."""
    if (folder / results.RESULT).is_file():
        result = results.read(folder / results.RESULT)
        return {result.notebook: [result]}, []
    runs, problems = results.runs_of(folder)
    if not runs:
        raise GnnlabError(problems[0] if problems else f"{folder} holds no results; run the notebooks: gnnlab run")
    return {name: [result for result, _ in of_notebook] for name, of_notebook in runs.items()}, problems


# ---- rows -----------------------------------------------------------------------------------------------------------


class Figure(NamedTuple):
    """A number of a row, pooled over the runs of a side that have it; none without any."""

    row: Row
    of: str
    unit: str
    estimate: Estimate | None
    runs: int


Key = tuple[str, tuple[Any, ...], str]  # notebook, identity of the row, "value" or "ratio"


def _figures(runs: Runs, both: Sequence[str]) -> dict[Key, Figure]:
    """The value of each row and, of a race, its ratio over the baseline."""
    rows: dict[tuple[str, tuple[Any, ...]], list[Row]] = {}
    for name in both:
        for row in [row for result in runs[name] for row in result.rows]:
            rows.setdefault((name, row.id), []).append(row)
    figures = {}
    for id, same in rows.items():
        measured = [row for row in same if row.status == "ok"]
        first, ratios = (measured or same)[0], [row.gain for row in measured if row.gain is not None]
        estimate = _pooled([row.estimate for row in measured])
        figures[*id, "value"] = Figure(first, first.statistic, first.unit, estimate, len(measured))
        if ratios:
            figures[*id, "ratio"] = Figure(first, f"ratio over {first.baseline}", "x", _pooled(ratios), len(ratios))
    return figures


def _pooled(runs: Sequence[Estimate]) -> Estimate | None:
    """In logarithms where all is above zero; None without runs."""
    return estimates.combine_runs(runs, log=all(min(_ends(run)) > 0 for run in runs)) if runs else None


def _change(key: Key, a: Figure | None, b: Figure | None, differences: Sequence[str]) -> Change:
    """The change of a figure from A to B; conditions that differ are named where they are not among the `differences`
    of the runs."""
    a, b = a or b._replace(estimate=None, runs=0), b or a._replace(estimate=None, runs=0)
    row, of, unit, *_ = a if a.estimate else b
    at_a, at_b = (side.estimate and side.estimate.value for side in (a, b))
    known = Change(key[0], row.study, row.keys, row.form, of, unit, at_a, at_b, (a.runs, b.runs))
    if at_a is None or at_b is None:
        lacking, side = (a, "B") if at_a is None else (b, "A")
        why = f"the other is {lacking.row.status}: {lacking.row.reason}" if lacking.row.reason else ""
        return replace(known, word=f"only in {side}", note=why)
    notes = [f"A is {a.row.origin.value}, B is {b.row.origin.value}"] * (a.row.origin is not b.row.origin)
    pairs = {name: (getattr(a.row, name), getattr(b.row, name)) for name in ("device", "precision", "threads")}
    notes += [f"{name}: {one} | {other}" for name, (one, other) in pairs.items() if one != other]
    known = replace(known, note="; ".join(note for note in notes if note not in differences))
    for what, one, other in (("units", a.unit, b.unit), ("statistics", a.of, b.of)):
        if one != other:
            return replace(known, unit=f"{one} | {other}", word=f"not comparable because {what} differ")
    scale, change, ci = b_over_a(a.estimate, b.estimate)
    known = replace(known, scale=scale, change=change)
    for side, one in (("A", a), ("B", b)):
        of_new_values = key[-1] == "value" and one.row.interval is Interval.PREDICTION
        if one.estimate.interval is None or of_new_values:
            return replace(known, word=f"unknown: {side} has no 95 % interval")
    better = "higher" if key[-1] == "ratio" else row.better if row.better == b.row.better else "neither"
    neutral = 1.0 if scale == "ratio" else 0.0
    unchanged = change == neutral or ci[0] <= neutral <= ci[1]
    return replace(known, ci=ci, word=SAME if unchanged else WORDS[better][change > neutral])


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return (estimate.value, *(estimate.interval or (estimate.value, estimate.value)))


def b_over_a(a: Estimate, b: Estimate) -> tuple[str, float, tuple[float, float]]:
    """("ratio", B / A, its interval), or ("difference", B - A, its interval) where one reaches zero.

    Half-widths of independent runs add as squares, by side: of a ratio, in logarithms.
    """
    ratio = min(*_ends(a), *_ends(b)) > 0
    one, other = ([math.log(end) if ratio else end for end in _ends(side)] for side in (a, b))
    below = math.hypot(max(0.0, other[0] - other[1]), max(0.0, one[2] - one[0]))
    above = math.hypot(max(0.0, other[2] - other[0]), max(0.0, one[0] - one[1]))
    low, high = other[0] - one[0] - below, other[0] - one[0] + above
    if ratio:
        return "ratio", b.value / a.value, (math.exp(low), math.exp(high))
    return "difference", b.value - a.value, (low, high)


def _conditions(runs: Runs, both: Sequence[str]) -> dict[str, str]:
    """What two sides should have in common for their numbers to be comparable, by name, of the latest runs."""
    seen: dict[str, dict[str, None]] = {}
    for name, (latest, *more) in sorted(runs.items()):
        conditions = {f"{name} runs": 1 + len(more), "Parameter set": latest.params_set}
        rows, known = provenance.in_rows(latest.environment), provenance.readable(latest.environment)
        conditions |= {what: value for what, value in rows if what not in NO_CONDITIONS}
        conditions |= {"Python": known.get("python")} | known["versions"]
        conditions |= {f"{name} parameter {n}": v for n, v in latest.parameters.items() if name in both}
        for what, value in conditions.items():
            if value is not None and not what.endswith(" output_dir"):
                seen.setdefault(what, {})[str(value)] = None
    return {what: ", ".join(values) for what, values in seen.items()}
