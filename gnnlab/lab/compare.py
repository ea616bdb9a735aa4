"""What changed between two results, row by row, and what else was not the same.

    compare(Path("outputs/quick"), Path("elsewhere/quick")).changes

A folder with several runs of a notebook (`gnnlab run --runs 5`) counts with all of them, pooled row by row. The two
sides were not interleaved, so their ratio also holds what the machine did in between; the comparison says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate

from . import provenance, results
from .results import ResultFile
from .table import Interval, Row

NOT_INTERLEAVED = (
    "The runs were not interleaved: on a shared machine that alone changes times by 5 to 20 %. "
    "Intervals hold the noise within a run and, where there are several, between runs, not what happened between A and "
    "B. Of rows that did not change, about one in twenty is told to have."
)
SAME = "no difference seen"
_WORDS = {  # (better, sign of the change) -> word
    ("lower", -1): "better",
    ("lower", 1): "worse",
    ("higher", -1): "worse",
    ("higher", 1): "better",
    ("neither", -1): "lower",
    ("neither", 1): "higher",
}


@dataclass(frozen=True)
class Change:
    """How a row's value, or its ratio over the baseline, changed from A to B.

    `change` and `ci` are the ratio B / A, or with `scale` "difference" B - A in `unit` (a ratio has no meaning where a
    value or its interval reaches zero). They are None where the two cannot be compared, `ci` where a side has none.
    """

    notebook: str
    study: str
    keys: dict[str, Any]
    form: str
    of: str
    unit: str
    a: float
    b: float
    runs: tuple[int, int]
    scale: str | None  # "ratio" or "difference"
    change: float | None
    ci: tuple[float, float] | None
    word: str
    note: str = ""

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
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    caution: str = NOT_INTERLEAVED

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False)


Runs = Mapping[str, Sequence[ResultFile]]  # by notebook, the latest first


def compare(run_a: Path, run_b: Path) -> RunComparison:
    """Compare two result folders, or two result files. Raises `GnnlabError` when one holds no readable result."""
    (runs_a, problems_a), (runs_b, problems_b) = _read(Path(run_a)), _read(Path(run_b))
    if _is_one_run(Path(run_a)) and _is_one_run(Path(run_b)):  # meant for each other, whatever their names
        runs_b = dict(zip(runs_a, runs_b.values(), strict=True))
    rows_a, rows_b = _rows(runs_a, runs_b), _rows(runs_b, runs_a)
    differences = list(dict.fromkeys(_differences(runs_a, runs_b)))
    pairs = _figures(rows_a).merge(_figures(rows_b), on=["id", "figure"], suffixes=("_a", "_b"))
    return RunComparison(
        run_a=str(run_a),
        run_b=str(run_b),
        differences=differences,
        changes=[_change(pair, differences) for pair in pairs.itertuples()],
        only_a=_only(rows_a, rows_b),
        only_b=_only(rows_b, rows_a),
        problems=[*problems_a, *problems_b],
    )


def _is_one_run(run: Path) -> bool:
    return run.is_file() or (run / results.RESULT).is_file()


def _read(run: Path) -> tuple[Runs, list[str]]:
    """The runs of each notebook, and a line for each that could not be read."""
    if (run / results.RESULT).is_file():
        run = run / results.RESULT
    if run.is_file():
        result = results.read(run)
        return {result.notebook: [result]}, []
    if not run.is_dir():
        raise GnnlabError(f"there is no folder or result file {run}; give one as outputs/quick, or the folder of a run")
    runs, problems = results.runs_of(run)
    if not runs:
        raise GnnlabError(problems[0] if problems else f"{run} holds no results; run the notebooks first: gnnlab run")
    return {name: [result for result, _ in of_notebook] for name, of_notebook in runs.items()}, problems


# ---- rows as frames -------------------------------------------------------------------------------------------------


def _rows(runs: Runs, other: Runs) -> pd.DataFrame:
    """A line for each row in each run of the notebooks that both sides have: `id` across runs, `row`, `ok`."""
    both = [name for name in runs if name in other]
    rows = [(name, row) for name in both for result in runs[name] for row in result.rows]
    ids = [(name, *row.id) for name, row in rows]
    return pd.DataFrame({"id": ids, "row": [row for _, row in rows], "ok": [row.status == "ok" for _, row in rows]})


def _figures(rows: pd.DataFrame) -> pd.DataFrame:
    """The value of each row and, of a race, its ratio over the baseline, pooled over the runs that have one."""
    lines = []
    for id, same in rows[rows["ok"].astype(bool)].groupby("id", sort=False)["row"]:
        first, raced = same.iloc[0], [row for row in same if row.ratio is not None]
        value = _pooled([row.estimate for row in same])
        lines.append((id, "value", first, first.statistic, first.unit, value, len(same)))
        if raced:
            ratio = _pooled([row.gain for row in raced])
            lines.append((id, "ratio", first, f"ratio over {raced[0].baseline}", "x", ratio, len(raced)))
    return pd.DataFrame(lines, columns=["id", "figure", "row", "of", "unit", "estimate", "runs"])


def _only(rows: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """Rows with a number on one side alone, and why the other has none, where it says so."""
    measured = rows[rows["ok"].astype(bool)].drop_duplicates("id")
    best = other.sort_values("ok", ascending=False, kind="stable").drop_duplicates("id")
    lines = []
    for pair in measured.merge(best, on="id", how="left", suffixes=("", "_other"), indicator="side").itertuples():
        why = "" if pair.side == "left_only" else f" (the other is {pair.row_other.status}: {pair.row_other.reason})"
        if not pair.ok_other or why == "":
            lines.append(f"{pair.id[0][:2]} {pair.row.label}{why}")
    return lines


# ---- one row --------------------------------------------------------------------------------------------------------


def _change(pair: Any, differences: Sequence[str]) -> Change:
    """The change of a figure from A to B; a condition among the `differences` of the runs is not repeated."""
    row, a, b = pair.row_a, pair.estimate_a, pair.estimate_b
    fields = {"notebook": pair.id[0], "study": row.study, "keys": row.keys, "form": row.form, "of": pair.of_a}
    fields |= {"unit": pair.unit_a, "a": a.value, "b": b.value, "runs": (pair.runs_a, pair.runs_b)}
    fields["note"] = _unlike(row, pair.row_b, differences)
    for what, one, other in (("units", pair.unit_a, pair.unit_b), ("statistics", pair.of_a, pair.of_b)):
        if one != other:
            fields |= {"unit": f"{one} | {other}", "word": f"not comparable because {what} differ"}
            return Change(**fields, scale=None, change=None, ci=None)
    scale, change, ci = b_over_a(a, b)
    better = "higher" if pair.figure == "ratio" else row.better if row.better == pair.row_b.better else "neither"
    neutral = 1.0 if scale == "ratio" else 0.0
    word = SAME if change == neutral or ci[0] <= neutral <= ci[1] else _WORDS[better, 1 if change > neutral else -1]
    if unknown := _unknown("A", row, a, pair.figure) or _unknown("B", pair.row_b, b, pair.figure):
        word, ci = f"unknown: {unknown}", None
    return Change(**fields, scale=scale, change=change, ci=ci, word=word)


def _unlike(a: Row, b: Row, differences: Sequence[str]) -> str:
    """The conditions of two rows that differ, in words."""
    lines = [f"A is {a.origin.value}, B is {b.origin.value}"] if a.origin is not b.origin else []
    pairs = {name: (getattr(a, name), getattr(b, name)) for name in ("device", "precision", "threads")}
    lines += [f"{name}: {one} | {other}" for name, (one, other) in pairs.items() if one != other]
    return "; ".join(line for line in lines if line not in differences)


def _pooled(runs: Sequence[Estimate]) -> Estimate:
    """In logarithms where all is above zero; what is the same in all runs, a count, stays as it is."""
    if len(set(runs)) == 1:
        return replace(runs[0], n=sum(run.n for run in runs))
    return estimates.pooled(runs, log=all(min(_ends(run)) > 0 for run in runs))


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


def _unknown(side: str, row: Row, estimate: Estimate, figure: str) -> str | None:
    """Why no change can be seen in this side's interval."""
    if estimate.interval is None:
        n = estimate.n
        return f"{side} has {n} {'sample' if n == 1 else 'samples'}, too few for an interval"
    if figure == "value" and row.interval is Interval.PREDICTION:
        return f"{side} has an interval of single new values, not of its own"
    return None


# ---- conditions of the runs -----------------------------------------------------------------------------------------


def _differences(runs_a: Runs, runs_b: Runs) -> Iterator[str]:
    """Lines "what: A | B" for every condition that was not the same, notebook by notebook, by their latest runs."""
    for name in sorted({*runs_a, *runs_b}):
        if name not in runs_a or name not in runs_b:
            yield f"{name}: only in {'B' if name in runs_b else 'A'}"
            continue
        a, b = runs_a[name][0], runs_b[name][0]
        if len(runs_a[name]) != len(runs_b[name]):
            yield f"{name} runs: {len(runs_a[name])} | {len(runs_b[name])}"
        sides = {"": (_conditions(a), _conditions(b)), f"{name} parameter ": (a.parameters, b.parameters)}
        for what, (left, right) in sides.items():
            for key in dict.fromkeys([*left, *right]):
                if key != "output_dir" and left.get(key) != right.get(key):
                    values = ("not there" if side.get(key) is None else str(side[key]) for side in (left, right))
                    yield f"{what}{key}: {' | '.join(values)}"


def _conditions(result: ResultFile) -> dict[str, Any]:
    """What two runs should have in common for their numbers to be comparable, flat, by name."""
    known = provenance.readable(result.environment)
    return {
        "parameter set": result.params_set,
        **{name: known.get(name) for name in ("host", "os", "memory_gb", "threads", "python")},
        "machine": provenance.in_a_phrase({**known, "versions": None}),
        "devices": ", ".join(sorted(str(device.get("name")) for device in known["devices"])),
        "commit": known.get("commit"),
        "uncommitted changes": known.get("dirty"),
        **known["versions"],
    }
