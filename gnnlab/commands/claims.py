"""Print the claims report: what was claimed, what was measured here, the verdict.

Claims of the documents and goals of the lab stand apart. All is computed from the result files of the
folder and of its further runs (gnnlab run --runs).

examples:
  gnnlab claims
  gnnlab claims --params full --json > claims.json
  gnnlab claims ~/yesterday/quick --recompute   from the stored samples, on any machine
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import TYPE_CHECKING, Any

from .arguments import add_params, results_at
from .tables import STYLES, json_text, show, table

if TYPE_CHECKING:
    from rich.console import Group

    from gnnlab.lab.ledger import Ledger

OK, FAILED = 0, 1


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="a folder of results (default: that of --params)")
    add_params(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="as JSON")
    again = "compute rows, intervals and verdicts again from the stored samples; exit code 1 where one differs"
    group.add_argument("--recompute", action="store_true", help=again)


def run(arguments: Namespace) -> int:
    """1 where a number does not follow from its samples, else 0."""
    from gnnlab.lab import ledger

    folder = results_at(arguments.folder or arguments.params, named=arguments.folder is None)
    if arguments.recompute:
        follows, lines = ledger.recompute(folder)
        show("\n".join(lines))
        return OK if follows else FAILED
    judged = ledger.judge(folder)
    show(json_text(judged.to_dict()) if arguments.json else of_ledger(judged))
    return OK


def of_ledger(judged: Ledger) -> Group:
    """Two tables, each with its counts below, then what has no result and what could not be read."""
    from rich.console import Group
    from rich.text import Text

    from gnnlab.lab.claims import Verdict

    parts: list[Any] = []
    for title, is_goal in (("Claims", False), ("Goals", True)):
        cells, verdicts = [], Counter(row.verdict for row in judged.rows if row.is_goal is is_goal)
        for row in [row for row in judged.rows if row.is_goal is is_goal]:
            counts = ("", "") if row.value is None else (f"{row.n:,}", row.runs)
            verdict = Text(f"{row.badge.symbol} {row.badge.word}", style=STYLES.get(row.badge.css, ""))
            numbers = (row.claimed_text, row.measured, row.interval, *counts)
            cells.append((f"{row.id}\n{row.statement}", *numbers, verdict, row.why))
        if cells:
            named = ("goal", "wanted") if is_goal else ("claim", "claimed")
            columns = (*named, "measured", "95 % interval", "n", "runs", "verdict", "why")
            counted = ", ".join(f"{verdict.value} {verdicts[verdict]}" for verdict in Verdict if verdicts[verdict])
            total = Text(f"{_number(len(cells), title.lower()[:-1])}: {counted}\n")
            parts += [table(title, columns, cells, right=("n", "runs")), total]
    missing = Counter(claim.notebook for claim in judged.missing)
    lines = [f"notebook {number} has no result here: {_number(n, 'row')}" for number, n in sorted(missing.items())]
    return Group(*parts, *(Text(line) for line in [*lines, *judged.problems]))


def _number(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
