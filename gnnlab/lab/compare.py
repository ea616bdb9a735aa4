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
class Side:
    """A row's value, or its ratio over the baseline, on one side: of one run, or pooled over `runs` of them."""

    row: Row
    of: str  # "median", ... or "ratio over PyG"
    unit: str
    estimate: Estimate
    runs: int


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
Name = tuple[Any, ...]  # notebook, and what tells a row from every other


def compare(run_a: Path, run_b: Path) -> RunComparison:
    """Compare two result folders, or two result files. Raises `GnnlabError` when one holds no readable result."""
    (found_a, problems_a), (found_b, problems_b) = _results(Path(run_a)), _results(Path(run_b))
    if _is_one_run(Path(run_a)) and _is_one_run(Path(run_b)):  # meant for each other, whatever their names
        found_b = dict(zip(found_a, found_b.values(), strict=True))
    rows_a, rows_b = _rows(found_a, found_b), _rows(found_b, found_a)
    differences = list(dict.fromkeys(_differences(found_a, found_b)))
    both = [(name[0], rows_a[name], rows_b[name]) for name in rows_a if name in rows_b]
    changes = [change for sides in both for change in _changes(*sides, said=differences)]
    return RunComparison(
        run_a=str(run_a),
        run_b=str(run_b),
        differences=differences,
        changes=changes,
        only_a=_only(rows_a, rows_b),
        only_b=_only(rows_b, rows_a),
        problems=[*problems_a, *problems_b],
    )


def _is_one_run(run: Path) -> bool:
    return run.is_file() or (run / results.RESULT).is_file()


def _results(run: Path) -> tuple[Runs, list[str]]:
    """The runs of each notebook, and a line for each that could not be read."""
    if (run / results.RESULT).is_file():
        run = run / results.RESULT
    if run.is_file():
        result = results.read(run)
        return {result.notebook: [result]}, []
    if not run.is_dir():
        raise GnnlabError(f"there is no folder or result file {run}; give one as outputs/quick, or the folder of a run")
    found, problems = results.runs_of(run)
    if not found:
        raise GnnlabError(problems[0] if problems else f"{run} holds no results; run the notebooks first: gnnlab run")
    return {name: [result for result, _ in runs] for name, runs in found.items()}, problems


def _rows(found: Runs, other: Runs) -> dict[Name, list[Row]]:
    """Each row of the notebooks that both sides have, in every run that has it, those with a number first."""
    rows: dict[Name, list[Row]] = {}
    for notebook in (name for name in found if name in other):
        for row in (row for result in found[notebook] for row in result.rows):
            rows.setdefault((notebook, *row.id), []).append(row)
    return {name: sorted(same, key=lambda row: row.status != "ok") for name, same in rows.items()}


def _only(here: Mapping[Name, list[Row]], there: Mapping[Name, list[Row]]) -> list[str]:
    """Rows with a number on one side alone, and why the other has none, where it says so."""
    lines = []
    for name, rows in here.items():
        other = there.get(name, [None])[0]
        if rows[0].status == "ok" and (other is None or other.status != "ok"):
            why = f" (the other is {other.status}: {other.reason})" if other else ""
            lines.append(f"{name[0][:2]} {rows[0].label}{why}")
    return lines


# ---- one row --------------------------------------------------------------------------------------------------------


def _changes(notebook: str, rows_a: Sequence[Row], rows_b: Sequence[Row], said: Sequence[str] = ()) -> list[Change]:
    """The change of a row's value and, in a race, of its ratio over the baseline; `said` is not said again."""
    ok_a, ok_b = ([row for row in rows if row.status == "ok"] for rows in (rows_a, rows_b))
    if not (ok_a and ok_b):
        return []
    a, b = ok_a[0], ok_b[0]
    unlike = [f"A is {a.origin.value}, B is {b.origin.value}"] if a.origin is not b.origin else []
    pairs = {name: (getattr(a, name), getattr(b, name)) for name in ("device", "precision", "threads")}
    unlike += [f"{name}: {one} | {other}" for name, (one, other) in pairs.items() if one != other]
    note = "; ".join(part for part in unlike if part not in said)
    return [_change(notebook, *pair, note) for pair in zip(_figures(ok_a), _figures(ok_b), strict=False)]


def _figures(rows: Sequence[Row]) -> list[Side]:
    """Value, then ratio, pooled over runs."""
    raced = [row for row in rows if row.ratio is not None]
    ratios = [row.gain for row in raced]
    values = [Side(rows[0], rows[0].statistic, rows[0].unit, _pooled([row.estimate for row in rows]), len(rows))]
    return values + [Side(rows[0], f"ratio over {row.baseline}", "x", _pooled(ratios), len(raced)) for row in raced[:1]]


def _pooled(runs: Sequence[Estimate]) -> Estimate:
    """In logarithms where all is above zero; what is the same in all runs, a count, stays as it is."""
    if len(set(runs)) == 1:
        return replace(runs[0], n=sum(run.n for run in runs))
    return estimates.pooled(runs, log=all(min(_ends(run)) > 0 for run in runs))


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return (estimate.value, *(estimate.interval or (estimate.value, estimate.value)))


def _change(notebook: str, a: Side, b: Side, note: str) -> Change:
    row = a.row
    said = {"notebook": notebook, "study": row.study, "keys": row.keys, "form": row.form, "of": a.of, "unit": a.unit}
    said |= {"a": a.estimate.value, "b": b.estimate.value, "runs": (a.runs, b.runs), "note": note}
    for what, one, other in (("units", a.unit, b.unit), ("statistics", a.of, b.of)):
        if one != other:
            said |= {"unit": f"{one} | {other}", "word": f"not comparable because {what} differ"}
            return Change(**said, scale=None, change=None, ci=None)
    scale, change, ci = _apart(_ends(a.estimate), _ends(b.estimate))
    unknown = _unknown("A", a) or _unknown("B", b)
    better = "higher" if a.of.startswith("ratio over") else row.better if row.better == b.row.better else "neither"
    neutral = 1.0 if scale == "ratio" else 0.0
    word = SAME if change == neutral or ci[0] <= neutral <= ci[1] else _WORDS[better, 1 if change > neutral else -1]
    if unknown:
        word, ci = f"unknown: {unknown}", None
    return Change(**said, scale=scale, change=change, ci=ci, word=word)


def _apart(a: Sequence[float], b: Sequence[float]) -> tuple[str, float, tuple[float, float]]:
    """B over A, or B less A where one reaches zero; each is (value, low, high).

    Half-widths of independent runs add as squares, by side: of a ratio, in logarithms.
    """
    ratio = min(*a, *b) > 0
    one, other = ([math.log(end) if ratio else end for end in ends] for ends in (a, b))
    below = math.hypot(max(0.0, other[0] - other[1]), max(0.0, one[2] - one[0]))
    above = math.hypot(max(0.0, other[2] - other[0]), max(0.0, one[0] - one[1]))
    low, high = other[0] - one[0] - below, other[0] - one[0] + above
    return (
        ("ratio", b[0] / a[0], (math.exp(low), math.exp(high))) if ratio else ("difference", b[0] - a[0], (low, high))
    )


def _unknown(side: str, figure: Side) -> str | None:
    """Why no change can be told from this side's interval."""
    if figure.estimate.interval is None:
        n = figure.estimate.n
        return f"{side} has {n} {'sample' if n == 1 else 'samples'}, too few for an interval"
    if figure.of == figure.row.statistic and figure.row.interval is Interval.PREDICTION:
        return f"{side} has an interval of single new values, not of its own"
    return None


# ---- conditions of the runs -----------------------------------------------------------------------------------------


def _differences(found_a: Runs, found_b: Runs) -> Iterator[str]:
    """Lines "what: A | B" for every condition that was not the same, notebook by notebook, by their latest runs."""
    for name in sorted({*found_a, *found_b}):
        if name not in found_a or name not in found_b:
            yield f"{name}: only in {'B' if name in found_b else 'A'}"
            continue
        a, b = found_a[name][0], found_b[name][0]
        if len(found_a[name]) != len(found_b[name]):
            yield f"{name} runs: {len(found_a[name])} | {len(found_b[name])}"
        sides = {"": (_conditions(a), _conditions(b)), f"{name} parameter ": (a.parameters, b.parameters)}
        for what, pair in sides.items():
            for key in dict.fromkeys([*pair[0], *pair[1]]):
                left, right = (side.get(key) for side in pair)
                if key != "output_dir" and left != right:
                    yield f"{what}{key}: " + " | ".join("not there" if v is None else str(v) for v in (left, right))


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
