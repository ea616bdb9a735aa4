"""A comparison for a terminal: conditions that differ, a table of changes, what could not be compared."""

from __future__ import annotations

from collections import Counter

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .claims import format_value
from .compare import Change, Comparison


def render(comparison: Comparison) -> Group:
    """What was not the same, a line for each row, how many changed, and what only one side has."""
    table = Table(title=Text("B over A, with 95 % intervals"), title_justify="left")
    for column in ("row", "A", "B", "B / A", "interval", ""):
        table.add_column(column, justify="left" if column in ("row", "") else "right", overflow="fold")
    styles = {"better": "green", "worse": "red"}
    for change in comparison.changes:
        word = f"{change.word} ({change.note})" if change.note else change.word
        table.add_row(*(Text(cell) for cell in _cells(change)), Text(word, style=styles.get(change.word, "")))
    lines = [f"A: {comparison.run_a}", f"B: {comparison.run_b}", ""]
    if comparison.differences:
        lines += ["Not the same in A | B:", *(f"  {line}" for line in comparison.differences), ""]
    else:
        lines += ["Machine, versions, parameters and commit are the same.", ""]
    counts = Counter(change.word.partition(":")[0] for change in comparison.changes)
    tail = [", ".join(f"{word} {n}" for word, n in counts.most_common())] if counts else []
    tail += [f"only in A: {name}" for name in comparison.only_a] + [f"only in B: {name}" for name in comparison.only_b]
    tail += [f"left out: {problem}" for problem in comparison.problems]
    body = table if comparison.changes else Text("No row is in both.")
    return Group(Text("\n".join(lines)), body, Text("\n".join([*tail, comparison.caution])))


def _cells(change: Change) -> tuple[str, ...]:
    unit = "" if change.unit in ("count", "ratio", "x") or change.scale is None else f" {change.unit}"
    digits = "+.3g" if change.scale == "difference" else ".3g"
    exact = change.ci is None or change.ci[0] == change.ci[1]
    return (
        change.label,
        format_value(change.a) + unit,
        format_value(change.b) + unit,
        "" if change.change is None else f"{change.change:{digits}}",
        "" if exact else f"{change.ci[0]:{digits}} to {change.ci[1]:{digits}}",
    )
