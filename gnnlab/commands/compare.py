"""Compare two runs: the change of every row with its interval.

A and B are folders of results, single runs, or names of parameter sets. Several runs of a notebook are
pooled. It says when machine, versions, parameters or commit differ.

examples:
  gnnlab compare outputs/quick ~/yesterday/quick
  gnnlab compare quick full --json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .terminal import STYLES, add_json, json_text, results_at, show, table

if TYPE_CHECKING:
    from rich.console import Group

    from gnnlab.compare import RunComparison


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the run to compare with")
    parser.add_argument("b", metavar="B", help="the run to compare")
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Print the comparison as a table or as JSON."""
    from gnnlab import compare

    comparison = compare.compare(results_at(arguments.a), results_at(arguments.b))
    show(json_text(asdict(comparison)) if arguments.json else of_comparison(comparison))
    return 0


def of_comparison(comparison: RunComparison) -> Group:
    """What was not the same, a line for each number, how many changed, and what could not be read."""
    from rich.console import Group
    from rich.text import Text

    unlike = [f"  {line}" for line in comparison.differences] or ["  nothing: machine, versions, parameters and commit"]
    head = [f"A: {comparison.run_a}", f"B: {comparison.run_b}", "", "Not the same in A | B:", *unlike, ""]
    counts = Counter(change["word"].partition(":")[0] for change in comparison.changes)
    tail = [", ".join(f"{word} {n}" for word, n in counts.most_common()) or "No row is in both."]
    tail += [*(f"left out: {problem}" for problem in comparison.problems), comparison.caution]
    columns, numbers = ("row", "A", "B", "B / A", "interval", ""), ("A", "B", "B / A", "interval")
    rows = table("B over A, with 95 % intervals", columns, map(_changed, comparison.changes), right=numbers)
    return Group(Text("\n".join(head)), *[rows] * bool(counts), Text("\n".join(tail)))


def _changed(change: dict[str, Any]) -> tuple[Any, ...]:
    from rich.text import Text

    from gnnlab.lab.text import number

    cell = ", ".join(filter(None, [change["study"], change["keys"]]))
    label = f"{change['notebook'][:2]} {cell}: {change['variant']}" + f", {change['of']}" * (change["of"] != "value")
    unit = "" if change["unit"] in ("count", "x") else f" {change['unit']}"
    values = ["" if change[side] is None else f"{number(change[side])}{unit}" for side in "ab"]
    digits = "+.3g" if change["scale"] == "difference" else ".3g"
    over = "" if change["change"] is None else f"{change['change']:{digits}}"
    ends = "" if change["low"] == change["high"] else f"{change['low']:{digits}} to {change['high']:{digits}}"
    word = change["word"] + f" ({change['note']})" * bool(change["note"])
    return label, *values, over, ends, Text(word, style=STYLES.get(change["word"], ""))
