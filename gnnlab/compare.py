"""What changed between two results, row by row, and what else was not the same.

    compare(Path("outputs/quick"), Path("elsewhere/quick")).changes

Runs of a notebook in one folder that may be pooled are pooled row by row (`results.runs_of`). The two sides were not
interleaved, so their ratio also holds what the machine did in between; the comparison says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.lab import results
from gnnlab.lab.results import ResultFile
from gnnlab.lab.table import Interval, Row
from gnnlab.measure import estimates
from gnnlab.measure.estimates import Estimate

CAUTION = (
    "The runs were not interleaved: on a shared machine that alone changes times by 5 to 20 %. Intervals hold the "
    "noise within a side. Of rows that did not change, about one in twenty is told to have."
)
SAME = "no difference seen"
WORDS = {"lower": ("better", "worse"), "higher": ("worse", "better"), "neither": ("lower", "higher")}  # fell, rose
BUSY = ("load", "others_percent", "steal_percent", "finished")  # of an environment: how busy it was
KEYS = ["notebook", "study", "keys", "variant", "of"]
Runs = Mapping[str, Sequence[ResultFile]]  # by notebook, the latest first
Numbers = dict[tuple[str, ...], list[tuple[Row, Estimate | None]]]  # by `KEYS`: of each run; None without a value


@dataclass(frozen=True)
class RunComparison:
    """What can be said of A and B: conditions that were not the same, and for each number of a row what changed.

    A change holds `change` with its interval `low` and `high`: the ratio B / A, or with `scale` "difference" B - A in
    `unit` where a value or its interval reaches zero. All are None where the two cannot be compared.
    """

    run_a: str
    run_b: str
    differences: list[str]
    changes: list[dict[str, Any]]
    problems: list[str]
    caution: str = CAUTION


def compare(run_a: Path, run_b: Path) -> RunComparison:
    """Compare two folders of results, or of single runs. Raises `GnnlabError` when one holds no readable result."""
    (a, problems_a), (b, problems_b) = _read(Path(run_a)), _read(Path(run_b))
    differences = [f"only in A: {name}" for name in a if name not in b]
    differences += [f"only in B: {name}" for name in b if name not in a]
    both = [name for name in a if name in b]
    differences += dict.fromkeys(line for name in both for line in _differences(a[name], b[name]))
    of_a, of_b = (_numbers(runs[name] for name in both) for runs in (a, b))
    changes = [_change(key, of_a.get(key, []), of_b.get(key, [])) for key in of_a | of_b]
    changes = [change for change in changes if any(change["runs"])]
    notes = [change["note"] for change in changes if not change["word"].startswith("only")]
    everywhere = [note for note in (notes[0] if len(notes) > 1 else []) if all(note in each for each in notes)]
    for change in changes:
        change["note"] = "; ".join(note for note in change["note"] if note not in everywhere)
    return RunComparison(str(run_a), str(run_b), differences + everywhere, changes, [*problems_a, *problems_b])


def _read(folder: Path) -> tuple[Runs, list[str]]:
    """The runs of each notebook, and a line for each that could not be read."""
    if (folder / results.RESULT).is_file():
        result = results.read(folder / results.RESULT)
        return {result.notebook: [result]}, []
    runs, problems = results.runs_of(folder)
    if not runs:
        raise GnnlabError(problems[0] if problems else f"{folder} holds no results; run the notebooks: gnnlab run")
    return {name: [result for result, _ in of_notebook] for name, of_notebook in runs.items()}, problems


def _differences(*sides: Sequence[ResultFile]) -> list[str]:
    """What the latest runs of a notebook do not have in common: machine, versions, parameters, ...; a line each."""
    known = []
    for latest, *more in sides:
        parameters = {name: value for name, value in latest.parameters.items() if name != "output_dir"}
        environment = {name: value for name, value in latest.environment.items() if name not in BUSY}
        of_run = {"runs": 1 + len(more), "parameter set": latest.params_set, "parameter": parameters}
        known.append(pd.json_normalize(of_run | environment).iloc[0].to_dict())
    pairs = {name: [str(side.get(name, "not there")) for side in known] for name in known[0] | known[1]}
    return [f"{name}: {one} | {other}" for name, (one, other) in pairs.items() if one != other]


def _numbers(notebooks: Iterable[Sequence[ResultFile]]) -> Numbers:
    """The value of each row and, of a race, its ratio over the baseline. The interval of a value counts only where it
    is of this value, and not of new ones."""
    seen: Numbers = {}
    for runs in notebooks:
        for latest, row in [(runs[0], row) for result in runs for row in result.rows]:
            key = latest.notebook, row.study, ", ".join(f"{k} {v}" for k, v in sorted(row.keys.items())), row.variant
            value = None if row.value is None else row.estimate
            if value and row.interval not in (Interval.CONFIDENCE, Interval.EXACT):
                value = Estimate(row.value, None, None, row.n)
            seen.setdefault((*key, "value"), []).append((row, value))
            if row.gain:
                seen.setdefault((*key, f"ratio over {row.baseline}"), []).append((row, row.gain))
    return seen


def _pooled(rows: Sequence[tuple[Row, Estimate | None]]) -> tuple[Row | None, Estimate | None, int]:
    """A row, its number pooled over the runs that have one, and how many those are."""
    measured = [(row, estimate) for row, estimate in rows if estimate]
    known = [estimate for _, estimate in measured]
    pooled = estimates.combine_runs(known, log=all(min(_ends(each)) > 0 for each in known)) if known else None
    return next((row for row, _ in measured or rows), None), pooled, len(known)


def _change(key: Sequence[str], *sides: Sequence[tuple[Row, Estimate | None]]) -> dict[str, Any]:
    """What changed in a number from A to B, with the conditions of the row that did."""
    (row_a, a, runs_a), (row_b, b, runs_b) = map(_pooled, sides)
    is_value, row = key[-1] == "value", row_a if a else row_b or row_a
    known = dict(zip(KEYS, key, strict=True)) | {"unit": row.unit if is_value else "x"}
    known |= {"a": a and a.value, "b": b and b.value, "runs": [runs_a, runs_b]}
    known |= {"word": "", "note": [], "scale": None, "change": None, "low": None, "high": None}
    if not (a and b):
        lost = row_b if a else row_a
        return known | {"word": f"only in {'A' if a else 'B'}", "note": [lost.reason] if lost else []}
    names = ("origin", "device", "precision", "threads", *(("unit", "statistic") if is_value else ()))
    pairs = {name: (getattr(row_a, name), getattr(row_b, name)) for name in names}
    unlike = {name: f"{name}: {one} | {other}" for name, (one, other) in pairs.items() if one != other}
    known["note"] = list(unlike.values())
    if "unit" in unlike or "statistic" in unlike:
        return known | {"word": "not comparable"}
    scale, change = b_over_a(a, b)
    known |= {"scale": scale, "change": change.value}
    if not (a.interval and b.interval):
        return known | {"word": f"unknown: {'B' if a.interval else 'A'} has no 95 % interval"}
    neutral = 1.0 if scale == "ratio" else 0.0
    better = "higher" if not is_value else row_a.better if row_a.better == row_b.better else "neither"
    word = SAME if change.low <= neutral <= change.high else WORDS[better][change.value > neutral]
    return known | {"low": change.low, "high": change.high, "word": word}


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return (estimate.value, *(estimate.interval or (estimate.value, estimate.value)))


def b_over_a(a: Estimate, b: Estimate) -> tuple[str, Estimate]:
    """("ratio", B / A), or ("difference", B - A) where one reaches zero; half-widths of intervals add as squares."""
    (one, least, most), (other, low, high) = _ends(a), _ends(b)
    if min(one, least, other, low) > 0:
        return "ratio", estimates.quotient(b, a)
    below, above = math.hypot(other - low, most - one), math.hypot(high - other, one - least)
    return "difference", Estimate(other - one, other - one - below, other - one + above, min(a.n, b.n))
