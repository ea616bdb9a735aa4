"""The ledger for a terminal: claims and goals apart, how many have each verdict, and whether it follows from the files.

show(tables(ledger.judge(Path("outputs/quick"))))
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from . import ledger, ledger_view, results
from .claims import Verdict
from .ledger import Judged, Ledger

COLUMNS = ("claim", "claimed", "measured", "95 % interval", "n", "runs", "verdict", "why")
_STYLES = {"good": "green", "best": "green", "bad": "red", "fair": "yellow"}


def tables(judged: Ledger) -> Group:
    """Two tables, each with its counts below, then what has no result and what could not be read."""
    claims = [row for row in judged.rows if not row.is_goal]
    goals = [row for row in judged.rows if row.is_goal]
    parts = [part for title, rows in (("Claims", claims), ("Goals", goals)) for part in _section(title, rows)]
    missing = Counter(claim.notebook for claim in judged.missing)
    lines = [f"notebook {number} has no result here: {_number(n, 'row')}" for number, n in sorted(missing.items())]
    return Group(*parts, *(Text(line) for line in [*lines, *judged.problems]))


def as_json(judged: Ledger) -> str:
    """Claims and goals with every field, what was not measured, and what could not be read."""
    return json.dumps(judged.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)


def recomputed(folder: Path) -> tuple[bool, list[str]]:
    """Whether rows and claims of `folder` follow from the stored samples; a line for each that does not, or one that
    says how many do.
    """
    problems = ledger.recompute(folder)
    if problems:
        return False, problems
    found, _ = results.runs_of(folder)
    sampled = [table.samples_of(row) is not None for runs in found.values() for _, table in runs for row in table]
    claims = len(ledger.judge(folder).rows)
    told = f"rows computed again from their samples: {sum(sampled)} of {len(sampled)}, the others have none"
    return True, [f"{told}; claims and goals judged again: {claims}; all is as stored"]


def _section(title: str, rows: Sequence[Judged]) -> list[Any]:
    if not rows:
        return []
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("n", "runs") else "left", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row))
    verdicts = Counter(row.verdict for row in rows)
    counts = [f"{verdict.value} {verdicts[verdict]}" for verdict in Verdict if verdicts[verdict]]
    return [table, Text(f"{_number(len(rows), title.lower()[:-1])}: {', '.join(counts)}\n")]


def _number(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _cells(record: Judged) -> list[Text]:
    shown = ledger_view.row(record, lambda row: None)
    counts = ("", "") if record.value is None else (f"{record.n:,}", str(record.runs))
    badge = shown.badge
    told = [record.id, shown.claimed, shown.measured, shown.interval, *counts]
    verdict = Text(f"{badge.symbol} {badge.word}", style=_STYLES.get(badge.css, ""))
    return [*map(Text, told), verdict, Text(record.why)]
