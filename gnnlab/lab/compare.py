"""Two runs side by side: what changed of every metric, with an interval, and what else was not the same.

    print(render(compare(Path("outputs/quick"), Path("elsewhere/quick"))))

The two runs were not interleaved, so their ratio also holds what the machine did in between; the comparison says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import environment_view, results
from .claims import format_value
from .results import Quantity, ResultFile

NOT_INTERLEAVED = (
    "The runs were not interleaved: on a shared machine that alone changes times by 5 to 20 %. "
    "Intervals hold the noise within each run, not what happened between them."
)
_WORDS = {  # (better, sign of the change) -> word
    ("lower", -1): "better",
    ("lower", 1): "worse",
    ("higher", -1): "worse",
    ("higher", 1): "better",
    ("neither", -1): "lower",
    ("neither", 1): "higher",
}


class CompareError(ValueError):
    """Two runs that cannot be compared. The message is one line for the reader."""


@dataclass(frozen=True)
class Change:
    """How one metric changed from run A to run B.

    `change` and `ci` are the ratio B / A, or with `scale` "difference" B - A in the metric's unit (a ratio has no
    meaning where a value or its interval reaches zero). All three are None where the two cannot be compared.
    """

    notebook: str
    metric: str
    unit: str
    a: float
    b: float
    scale: str | None  # "ratio" or "difference"
    change: float | None
    ci: tuple[float, float] | None
    word: str
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Everything that can be said of two runs. `differences` are the conditions that were not the same."""

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


def compare(run_a: Path, run_b: Path) -> Comparison:
    """Compare two result folders, or two result files. Raises `CompareError` when one holds no readable result."""
    (found_a, problems_a), (found_b, problems_b) = _results(Path(run_a)), _results(Path(run_b))
    if Path(run_a).is_file() and Path(run_b).is_file():  # two files are meant for each other, whatever their names
        found_b = dict(zip(found_a, found_b.values(), strict=True))
    metrics_a, metrics_b = _metrics(found_a), _metrics(found_b)
    both = [key for key in metrics_a if key in metrics_b]
    return Comparison(
        run_a=str(run_a),
        run_b=str(run_b),
        differences=list(dict.fromkeys(_differences(found_a, found_b))),
        changes=[_change(*key, metrics_a[key], metrics_b[key]) for key in both],
        only_a=[" ".join(key) for key in metrics_a if key not in metrics_b],
        only_b=[" ".join(key) for key in metrics_b if key not in metrics_a],
        problems=[*problems_a, *problems_b],
    )


def _results(run: Path) -> tuple[dict[str, ResultFile], list[str]]:
    """The result files of a run by notebook, and a line for each that could not be read."""
    if run.is_file():
        result = results.read(run)
        return {result.notebook: result}, []
    if not run.is_dir():
        raise CompareError(f"there is no folder or result file {run}; give a folder as outputs/quick, or NN_name.json")
    found, problems = {}, []
    for path in sorted(run.glob("[0-9][0-9]_*.json")):
        if path.name.endswith(".failed.json"):
            continue
        try:
            result = results.read(path)
            found[result.notebook] = result
        except results.ResultError as error:
            problems.append(str(error))
    if not found:
        raise CompareError(problems[0] if problems else f"{run} holds no results; run the notebooks first: gnnlab run")
    return found, problems


def _metrics(found: Mapping[str, ResultFile]) -> dict[tuple[str, str], Quantity]:
    return {(name, key): quantity for name, result in found.items() for key, quantity in result.metrics.items()}


def _change(notebook: str, metric: str, a: Quantity, b: Quantity) -> Change:
    if a.unit != b.unit:
        word = "not comparable because units differ"
        return Change(notebook, metric, f"{a.unit} | {b.unit}", a.value, b.value, None, None, None, word)
    ends_a, ends_b = (a.value, *(a.ci or (a.value, a.value))), (b.value, *(b.ci or (b.value, b.value)))
    if min(*ends_a, *ends_b) > 0:
        scale, neutral, change = "ratio", 1.0, b.value / a.value
        low, high = _interval([math.log(end) for end in ends_a], [math.log(end) for end in ends_b])
        ci = math.exp(low), math.exp(high)
    else:
        scale, neutral, change = "difference", 0.0, b.value - a.value
        ci = _interval(ends_a, ends_b)
    note = "" if a.origin == b.origin else f"A is {a.origin.value}, B is {b.origin.value}"
    if _lone(a) or _lone(b):
        word = "unknown: a single sample has no interval"
        return Change(notebook, metric, a.unit, a.value, b.value, scale, change, None, word, note)
    word = "no difference seen"
    if change != neutral and not ci[0] <= neutral <= ci[1]:
        word = _WORDS[a.better if a.better == b.better else "neither", 1 if change > neutral else -1]
    return Change(notebook, metric, a.unit, a.value, b.value, scale, change, ci, word, note)


def _lone(quantity: Quantity) -> bool:
    """Is it one measured sample, whose "interval" is itself? An exact value, a count, has none at all."""
    return quantity.n == 1 and quantity.ci is not None and quantity.ci[0] == quantity.ci[1]


def _interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Interval of b - a, each given as (value, low, high): half-widths of independent runs add as squares, by side."""
    below = math.hypot(max(0.0, b[0] - b[1]), max(0.0, a[2] - a[0]))
    above = math.hypot(max(0.0, b[2] - b[0]), max(0.0, a[0] - a[1]))
    return b[0] - a[0] - below, b[0] - a[0] + above


def _differences(found_a: Mapping[str, ResultFile], found_b: Mapping[str, ResultFile]) -> Iterator[str]:
    """Lines "what: A | B" for every condition of the two runs that was not the same, notebook by notebook."""
    for name in sorted({*found_a, *found_b}):
        a, b = found_a.get(name), found_b.get(name)
        if a is None or b is None:
            yield f"{name}: only in {'B' if a is None else 'A'}"
            continue
        for what, conditions in (("", _conditions), (f"{name} parameter ", lambda result: result.parameters)):
            left, right = conditions(a), conditions(b)
            for key in dict.fromkeys([*left, *right]):
                if left.get(key) != right.get(key) and key != "output_dir":
                    yield f"{what}{key}: {_shown(left.get(key))} | {_shown(right.get(key))}"


def _conditions(result: ResultFile) -> dict[str, Any]:
    """What two runs should have in common for their numbers to be comparable, flat, by name."""
    environment = result.environment
    versions = environment.get("versions") if isinstance(environment.get("versions"), Mapping) else {}
    devices = environment.get("devices") if isinstance(environment.get("devices"), list) else []
    return {
        "parameter set": result.params_set,
        "host": environment.get("host"),
        "machine": environment_view.machine({**environment, "versions": None}),
        "devices": ", ".join(sorted(str(d.get("name")) for d in devices if isinstance(d, Mapping))),
        "os": environment.get("os"),
        "memory_gb": environment.get("memory_gb"),
        "threads": environment.get("threads"),
        "commit": environment.get("commit"),
        "uncommitted changes": environment.get("dirty"),
        "python": environment.get("python"),
        **versions,
    }


def _shown(value: Any) -> str:
    return "not there" if value is None else str(value)


def render(comparison: Comparison) -> Any:
    """The comparison for a terminal (rich)."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text("B over A, with 95 % intervals"), title_justify="left")
    for column in ("metric", "A", "B", "B / A", "interval", ""):
        table.add_column(column, justify="left" if column in ("metric", "") else "right")
    styles = {"better": "green", "worse": "red"}
    for change in comparison.changes:
        word = f"{change.word} ({change.note})" if change.note else change.word
        table.add_row(*(Text(cell) for cell in _cells(change)), Text(word, style=styles.get(change.word, "")))
    lines = [f"A: {comparison.run_a}", f"B: {comparison.run_b}", ""]
    if comparison.differences:
        lines += ["Not the same in A | B:", *(f"  {line}" for line in comparison.differences), ""]
    else:
        lines += ["Machine, versions, parameters and commit are the same.", ""]
    tail = [f"only in A: {name}" for name in comparison.only_a] + [f"only in B: {name}" for name in comparison.only_b]
    tail += [f"left out: {problem}" for problem in comparison.problems]
    body = table if comparison.changes else Text("No metric is in both.")
    return Group(Text("\n".join(lines)), body, Text("\n".join([*tail, comparison.caution])))


def _cells(change: Change) -> tuple[str, ...]:
    unit = "" if change.unit in ("count", "ratio", "x") or change.scale is None else f" {change.unit}"
    form = "+.3g" if change.scale == "difference" else ".3g"
    exact = change.ci is None or change.ci[0] == change.ci[1]
    return (
        f"{change.notebook[:2]} {change.metric}",
        format_value(change.a) + unit,
        format_value(change.b) + unit,
        "" if change.change is None else f"{change.change:{form}}",
        "" if exact else f"{change.ci[0]:{form}} to {change.ci[1]:{form}}",
    )
