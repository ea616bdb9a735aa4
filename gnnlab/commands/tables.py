"""Tables that commands print: one way to make them, and the two of results, the ledger and a comparison.

show(table("units", ("unit", "usable"), [("torch:CPU", "yes")]))
show(of_ledger(ledger.judge(Path("outputs/quick"))))
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gnnlab import machine

if TYPE_CHECKING:
    from gnnlab.lab.compare import Change, RunComparison
    from gnnlab.lab.ledger import Judged, Ledger

_STYLES = {"good": "green", "best": "green", "bad": "red", "fair": "yellow", "better": "green", "worse": "red"}


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> Table:
    """A table of rich. Cells show as they are, whatever they hold; a column in which no row has anything is left out.

    Numbers stand in the columns `right`; those named `whole` are never wrapped.
    """
    made = Table(title=title, title_justify="left", box=box.HEAVY_HEAD)
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    shown = [place for place in range(len(columns)) if not cells or any(row[place].plain for row in cells)]
    for name in (columns[place] for place in shown):
        justify = "right" if name in right else "left"
        made.add_column(name, justify=justify, overflow="fold", no_wrap=name in whole)
    for row in cells:
        made.add_row(*(row[place] for place in shown))
    return made


def warn_if_busy() -> None:
    """Say on standard error that the machine is busy, before something is measured on it."""
    if busy := machine.warning():
        print(f"gnnlab: {busy}", file=sys.stderr, flush=True)


def of_ledger(judged: Ledger) -> Group:
    """Two tables, each with its counts below, then what has no result and what could not be read."""
    goals, claims = ([row for row in judged.rows if row.is_goal is goal] for goal in (True, False))
    parts = [part for title, rows in (("Claims", claims), ("Goals", goals)) if rows for part in _verdicts(title, rows)]
    missing = Counter(claim.notebook for claim in judged.missing)
    lines = [f"notebook {number} has no result here: {_number(n, 'row')}" for number, n in sorted(missing.items())]
    return Group(*parts, *(Text(line) for line in [*lines, *judged.problems]))


def _verdicts(title: str, rows: Sequence[Judged]) -> list[Any]:
    from gnnlab.lab.claims import Verdict
    from gnnlab.lab.ledger_view import line

    cells = []
    for shown in map(line, rows):
        record, badge = shown.record, shown.badge
        counts = ("", "") if record.value is None else (f"{record.n:,}", record.runs)
        verdict = Text(f"{badge.symbol} {badge.word}", style=_STYLES.get(badge.css, ""))
        cells.append(
            (
                f"{record.id}\n{record.statement}",
                shown.claimed,
                shown.measured,
                shown.interval,
                *counts,
                verdict,
                record.why,
            )
        )
    wanted = ("goal", "wanted") if title == "Goals" else ("claim", "claimed")
    columns = (*wanted, "measured", "95 % interval", "n", "runs", "verdict", "why")
    found = Counter(row.verdict for row in rows)
    counts = ", ".join(f"{verdict.value} {found[verdict]}" for verdict in Verdict if found[verdict])
    told = Text(f"{_number(len(rows), title.lower()[:-1])}: {counts}\n")
    return [table(title, columns, cells, right=("n", "runs")), told]


def _number(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def of_comparison(comparison: RunComparison) -> Group:
    """What was not the same, a line for each row, how many changed, and what only one side has."""
    lines = [f"A: {comparison.run_a}", f"B: {comparison.run_b}", ""]
    if comparison.differences:
        lines += ["Not the same in A | B:", *(f"  {line}" for line in comparison.differences), ""]
    else:
        lines += ["Machine, versions, parameters and commit are the same.", ""]
    counts = Counter(change.word.partition(":")[0] for change in comparison.changes)
    tail = [", ".join(f"{word} {n}" for word, n in counts.most_common())] if counts else []
    tail += [f"only in A: {name}" for name in comparison.only_a] + [f"only in B: {name}" for name in comparison.only_b]
    tail += [f"left out: {problem}" for problem in comparison.problems]
    columns, numbers = ("row", "A", "B", "B / A", "interval", ""), ("A", "B", "B / A", "interval")
    shown = table("B over A, with 95 % intervals", columns, map(_changed, comparison.changes), right=numbers)
    body = shown if comparison.changes else Text("No row is in both.")
    return Group(Text("\n".join(lines)), body, Text("\n".join([*tail, comparison.caution])))


def _changed(change: Change) -> tuple[Any, ...]:
    from gnnlab.lab.table import format_value

    unit = "" if change.unit in ("count", "ratio", "x") or change.scale is None else f" {change.unit}"
    digits = "+.3g" if change.scale == "difference" else ".3g"
    exact = change.ci is None or change.ci[0] == change.ci[1]
    word = f"{change.word} ({change.note})" if change.note else change.word
    return (
        change.label,
        format_value(change.a) + unit,
        format_value(change.b) + unit,
        "" if change.change is None else f"{change.change:{digits}}",
        "" if exact else f"{change.ci[0]:{digits}} to {change.ci[1]:{digits}}",
        Text(word, style=_STYLES.get(change.word, "")),
    )
