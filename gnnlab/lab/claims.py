"""The claim ledger: what was claimed, what was measured here, and the verdict that the interval gives.

    record("gat.compile", 1.02, ci=(0.99, 1.05), n=120, notebook="02", why="...")  ->  a row, verdict "refuted"

A verdict is computed from the interval and the claimed range alone; `verdict` is a pure function of the two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from . import results
from .results import ClaimRecord, Verdict

Range = tuple[float, float]


@dataclass(frozen=True)
class Metric:
    """How values of a metric are read: which way is better, and where "no effect" lies."""

    unit: str
    better: str  # "higher", "lower" or "exact"
    neutral: float | None = None  # the value that means: no effect


METRICS = {
    "ratio": Metric("x", "higher", 1.0),
    "memory_ratio": Metric("x", "higher", 1.0),
    "share": Metric("share", "higher", 0.0),
    "exact_share": Metric("share", "exact"),
    "count": Metric("count", "exact"),
    "difference": Metric("difference", "exact"),
    "hours": Metric("h", "lower"),
    "minutes": Metric("min", "lower"),
    "percent": Metric("%", "lower"),
}
NO_EFFECT_WITHIN = 0.05  # a gain without a number is refuted by an interval that stays below this much of a gain
EXACT_TOO_WIDE = 0.2  # an interval wider than this share of an exact claim cannot confirm it


class ClaimError(ValueError):
    """A claim that the catalogue does not know, or a measurement that does not fit it."""


@dataclass(frozen=True)
class Entry:
    """One row of the catalogue. `claimed` is None where a gain is claimed without a number."""

    id: str
    source: str
    notebook: str
    metric: str
    claimed: tuple[float | None, float | None] | None
    statement: str
    needs: str | None = None

    @property
    def unit(self) -> str:
        return METRICS[self.metric].unit


@cache
def catalogue() -> dict[str, Entry]:
    """Every claim by its id, in the catalogue's order."""
    data = yaml.safe_load((files("gnnlab.lab") / "claims.yaml").read_text(encoding="utf-8"))
    entries = [_entry(row) for row in data["seeds"] + data["goals"]]
    return {entry.id: entry for entry in entries}


def _entry(row: dict[str, Any]) -> Entry:
    claimed = row.get("claimed")
    if "at_least" in row:
        claimed = (row["at_least"], None)
    elif "at_most" in row:
        claimed = (None, row["at_most"])
    return Entry(
        id=row["id"],
        source=row.get("source", "goal"),
        notebook=row["notebook"],
        metric=row["metric"],
        claimed=None if claimed is None else tuple(claimed),
        statement=row["statement"],
        needs=row.get("needs"),
    )


def verdict(metric: str, claimed: tuple[float | None, float | None] | None, ci: Range) -> Verdict:
    """The verdict on a claimed range from the 95 % interval `ci` of what was measured.

    reproduced: the interval meets the range. exceeded: it lies beyond the range on the better side. weaker: on the
    worse side, yet clear of no effect. refuted: no effect or the wrong direction; of an exact claim, any other value.
    inconclusive: the interval holds no effect and reaches more than half of the way to the range, or meets it; of an
    exact claim, it is wider than 20 % of it.
    """
    kind = METRICS[metric]
    low, high = ci
    if not low <= high:
        raise ClaimError(f"interval {ci}: its ends must be numbers in order")
    if claimed is None:
        return _without_number(kind, low, high)
    claim_low, claim_high = _open(claimed)
    meets = low <= claim_high and high >= claim_low
    if _is_exact(kind, claim_low, claim_high):
        if not meets:
            return Verdict.REFUTED
        too_wide = claim_high != 0 and (high - low) > EXACT_TOO_WIDE * abs(claim_high)
        return Verdict.INCONCLUSIVE if too_wide else Verdict.REPRODUCED
    if kind.better == "lower":
        if meets:
            return Verdict.REPRODUCED
        return Verdict.EXCEEDED if high < claim_low else Verdict.WEAKER
    no_effect = low <= kind.neutral
    if meets:
        return Verdict.INCONCLUSIVE if no_effect and claim_low > kind.neutral else Verdict.REPRODUCED
    if low > claim_high:
        return Verdict.EXCEEDED
    if not no_effect:
        return Verdict.WEAKER
    return Verdict.INCONCLUSIVE if high > _half_way(kind.neutral, claim_low) else Verdict.REFUTED


def _half_way(neutral: float, claim_low: float) -> float:
    """Between no effect and the claim: of ratios the geometric mean."""
    return math.sqrt(neutral * claim_low) if neutral > 0 else (neutral + claim_low) / 2


def _without_number(kind: Metric, low: float, high: float) -> Verdict:
    """A gain claimed without a number: is there one, or is the interval narrow enough to say that there is none?"""
    if kind.neutral is None:
        raise ClaimError("a claim without a number needs a metric that has a 'no effect'")
    if low > kind.neutral:
        return Verdict.REPRODUCED
    return Verdict.INCONCLUSIVE if high > kind.neutral + NO_EFFECT_WITHIN else Verdict.REFUTED


def _open(claimed: tuple[float | None, float | None]) -> Range:
    low, high = claimed
    return (-math.inf if low is None else low), (math.inf if high is None else high)


def _is_exact(kind: Metric, low: float, high: float) -> bool:
    return kind.better == "exact" or (low == high == kind.neutral)


def record(
    id: str,
    measured: float | None,
    *,
    notebook: str,
    why: str,
    ci: Sequence[float] | None = None,
    n: int = 1,
    precision: str = "float32",
    figure: str | None = None,
) -> ClaimRecord:
    """One row of the ledger. `measured=None` means that it could not be measured here, and `why` says what it needs.

    `ci=None` is for exact values (a count): the interval is then the value itself.
    """
    if id not in catalogue():
        raise ClaimError(f"no claim {id!r} in the catalogue; notebook {notebook} has {_ids_of(notebook)}")
    entry = catalogue()[id]
    if entry.notebook != notebook:
        raise ClaimError(f"claim {id!r} belongs to notebook {entry.notebook}, not {notebook}")
    if not why.strip():
        raise ClaimError(f"claim {id!r}: say why in one sentence")
    if measured is None:
        found, interval, n = Verdict.UNTESTABLE, None, 0
    elif not math.isfinite(measured):
        raise ClaimError(f"claim {id!r}: measured {measured}; give a finite number, or None and the reason in why")
    else:
        interval = (float(measured), float(measured)) if ci is None else (float(ci[0]), float(ci[1]))
        found = verdict(entry.metric, entry.claimed, interval)
    return ClaimRecord(
        id=id,
        source=entry.source,
        statement=entry.statement,
        metric=entry.metric,
        claimed=entry.claimed,
        measured=None if measured is None else float(measured),
        ci=interval,
        n=n,
        unit=entry.unit,
        precision=precision,
        verdict=found,
        notebook=notebook,
        why=why,
        figure=figure,
    )


def _ids_of(notebook: str) -> str:
    return ", ".join(e.id for e in catalogue().values() if e.notebook == notebook) or "none"


@dataclass(frozen=True)
class Ledger:
    """The rows of every notebook of one output folder, in the catalogue's order, and what has no row yet."""

    rows: list[ClaimRecord]
    missing: list[Entry]
    problems: list[str]  # result files that could not be read, a line each

    def to_dict(self) -> dict[str, Any]:
        return {
            "claims": [row.model_dump(mode="json") for row in self.rows],
            "not_measured": [entry.id for entry in self.missing],
            "problems": self.problems,
        }


def ledger(out_dir: Path) -> Ledger:
    """Gather the claim records of all result files in `out_dir`."""
    rows, problems = {}, []
    for path in sorted(Path(out_dir).glob("[0-9][0-9]_*.json")):
        if path.name.endswith(".failed.json"):
            continue
        try:
            rows |= {row.id: row for row in results.read(path).claims}
        except results.ResultError as error:
            problems.append(str(error))
    known = catalogue()
    return Ledger(
        rows=[rows[id] for id in known if id in rows],
        missing=[entry for id, entry in known.items() if id not in rows],
        problems=problems,
    )


def ledger_json(out_dir: Path) -> str:
    return json.dumps(ledger(out_dir).to_dict(), indent=1, ensure_ascii=False)


def table(out_dir: Path) -> Any:
    """The ledger as a rich table, for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    found = ledger(out_dir)
    view = Table(title=f"Claims measured in {out_dir}", caption="; ".join(found.problems) or None)
    for column in ("claim", "claimed", "measured", "95 % interval", "n", "verdict", "why"):
        view.add_column(column, justify="right" if column == "n" else "left", no_wrap=column in ("claim", "verdict"))
    for row in found.rows:
        interval = "" if row.ci is None or row.ci[0] == row.ci[1] else f"{row.ci[0]:.4g} to {row.ci[1]:.4g}"
        measured = "" if row.measured is None else f"{format_value(row.measured)} {row.unit}"
        style = _STYLES[row.verdict]
        cells = (row.id, format_range(row.claimed), measured, interval, str(row.n))
        view.add_row(*map(escape, cells), f"[{style}]{row.verdict.value}[/]", escape(row.why))
    if found.missing:
        view.add_section()
        view.add_row(f"{len(found.missing)} more", "", "", "", "", "not measured yet", "run their notebooks")
    return view


_STYLES = {
    Verdict.REPRODUCED: "green",
    Verdict.EXCEEDED: "bold green",
    Verdict.WEAKER: "yellow",
    Verdict.REFUTED: "red",
    Verdict.INCONCLUSIVE: "magenta",
    Verdict.UNTESTABLE: "dim",
}


def format_value(value: float) -> str:
    """Integers in full with thousands separators, everything else to four digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def format_range(claimed: tuple[float | None, float | None] | None) -> str:
    """A claimed range for a reader: "1.41 to 1.45", "at least 5", "some gain"."""
    if claimed is None:
        return "some gain"
    low, high = claimed
    if high is None:
        return f"at least {format_value(low)}"
    if low is None:
        return f"at most {format_value(high)}"
    return format_value(low) if low == high else f"{format_value(low)} to {format_value(high)}"
