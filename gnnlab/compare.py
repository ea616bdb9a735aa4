"""What changed between two results, row by row, and what else was not the same.

    compare(Path("outputs/quick"), Path("elsewhere/quick")).changes

Runs of a notebook in one folder that may be pooled are pooled row by row (`results.runs_of`). The two sides were not
interleaved, so their ratio also holds what the machine did in between; the comparison says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.lab import results
from gnnlab.lab.results import ResultFile
from gnnlab.lab.table import Interval, Row
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONTROL, Estimate

CAUTION = (
    "The runs were not interleaved: on a shared machine that alone changes times by 5 to 20 %. Intervals hold the "
    "noise within a side. Of rows that did not change, about one in twenty is told to have."
)
SAME = "no difference seen"
WORDS = {"lower": ("better", "worse"), "higher": ("worse", "better"), "neither": ("lower", "higher")}  # fell, rose
BUSY = ("load", "others_percent", "steal_percent", "finished")  # of an environment: how busy it was
KEYS = ("notebook", "study", "keys", "variant", "of")
CONDITIONS = ("origin", "device", "precision", "threads", "unit", "statistic")
Runs = Mapping[str, Sequence[ResultFile]]  # by notebook, the latest first
Numbers = dict[tuple[str, ...], list[tuple[Row, Estimate | None]]]  # by `KEYS`: of each run; None without a value


@dataclass(frozen=True)
class RunComparison:
    """What can be said of A and B: conditions that were not the same, and for each number of a row what changed.

    A change holds the ratio B / A as `change` with its interval `low` and `high`; None where there is none.
    """

    run_a: str
    run_b: str
    differences: list[str]
    changes: list[dict[str, Any]]
    problems: list[str]
    machine: str = ""  # how much longer B's baselines took, which says how fast the machine was
    caution: str = CAUTION


def compare(run_a: Path, run_b: Path) -> RunComparison:
    """Compare two folders of results, or of single runs. Raises `GnnlabError` when one holds no readable result."""
    (a, problems_a), (b, problems_b) = _read(Path(run_a)), _read(Path(run_b))
    differences = [f"only in A: {name}" for name in a if name not in b]
    differences += [f"only in B: {name}" for name in b if name not in a]
    both = [name for name in a if name in b]
    differences += dict.fromkeys(line for name in both for line in _differences(a[name], b[name]))
    of_a, of_b = (_numbers(runs[name] for name in both) for runs in (a, b))
    changes = [change for key in of_a | of_b if (change := _change(key, of_a.get(key, []), of_b.get(key, [])))]
    return RunComparison(str(run_a), str(run_b), differences, changes, [*problems_a, *problems_b], _machine(changes))


def _machine(changes: Sequence[Mapping[str, Any]]) -> str:
    """What the second timing of each baseline says of the machine; empty where there is none in both runs."""
    times = [each["change"] for each in changes if each["variant"] == CONTROL and each["of"] == "value"]
    times = [change for change in times if change]
    if not times:
        return ""
    low, middle, high = np.quantile(times, [0.25, 0.5, 0.75])
    spread = f"median; half of them {low:.3g} to {high:.3g}"
    took = f"The baselines of {len(times)} races took {middle:.3g} times as long in B ({spread})"
    return f"{took}: where their code is the same, that is the machine. Times of B hold it, ratios do not."


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
        for row in (row for result in runs for row in result.rows):
            keys = ", ".join(f"{k} {v}" for k, v in sorted(row.keys.items()))
            key = runs[0].notebook, row.study, keys, row.variant
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
    pooled = estimates.combine_runs(known, log=_positive(*known)) if known else None
    return next((row for row, _ in measured or rows), None), pooled, len(known)


def _positive(*of: Estimate) -> bool:
    return all(min(each.interval or (each.value,)) > 0 for each in of)


def _change(key: Sequence[str], *sides: Sequence[tuple[Row, Estimate | None]]) -> dict[str, Any] | None:
    """What changed in a number from A to B, with the conditions of the row that did; None where neither has one."""
    (row_a, a, runs_a), (row_b, b, runs_b) = map(_pooled, sides)
    if not (a or b):
        return None
    is_value, row = key[-1] == "value", row_a if a else row_b
    known = dict(zip(KEYS, key, strict=True)) | {"unit": row.unit if is_value else "x", "runs": [runs_a, runs_b]}
    known |= {"a": a and a.value, "b": b and b.value, "note": "", "change": None, "low": None, "high": None}
    if not (a and b):
        lost = row_b if a else row_a
        return known | {"word": f"only in {'A' if a else 'B'}", "note": lost.reason if lost else ""}
    pairs = {name: (getattr(row_a, name), getattr(row_b, name)) for name in CONDITIONS[: None if is_value else 4]}
    unlike = {name: f"{name}: {one} | {other}" for name, (one, other) in pairs.items() if one != other}
    known["note"] = "; ".join(unlike.values())
    if "unit" in unlike or "statistic" in unlike:
        return known | {"word": "not comparable"}
    ratio = estimates.quotient(b, a) if _positive(a, b) else None  # what reaches zero has none
    known["change"] = ratio and ratio.value
    if not (a.interval and b.interval):
        return known | {"word": f"unknown: {'B' if a.interval else 'A'} has no 95 % interval"}
    if ratio:
        known |= {"low": ratio.low, "high": ratio.high}
        same = ratio.low <= 1 <= ratio.high
    else:
        same = a.low <= b.high and b.low <= a.high
    better = "higher" if not is_value else row_a.better if row_a.better == row_b.better else "neither"
    better = "neither" if row.variant == CONTROL else better  # the machine's doing
    return known | {"word": SAME if same else WORDS[better][b.value > a.value]}
