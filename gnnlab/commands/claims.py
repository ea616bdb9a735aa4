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

from .terminal import STYLES, add_params, json_text, results_at, show, table

if TYPE_CHECKING:
    from rich.console import Group

    from gnnlab.lab.claims_report import ClaimResult, ClaimsReport

COLUMNS = ("", "claimed", "measured", "95 % interval", "n", "runs", "verdict", "why")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="a folder of results (default: that of --params)")
    add_params(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="as JSON")
    again = "compute rows, intervals and verdicts again from the stored samples; exit code 1 where one differs"
    group.add_argument("--recompute", action="store_true", help=again)


def run(arguments: Namespace) -> int:
    """1 where a number does not follow from its samples, else 0."""
    from gnnlab.lab import claims_report

    folder = results_at(arguments.folder or arguments.params, named=arguments.folder is None)
    if arguments.recompute:
        follows, lines = claims_report.recompute(folder)
        show("\n".join(lines))
        return 0 if follows else 1
    judged = claims_report.judge(folder)
    show(json_text(judged.to_dict()) if arguments.json else of_report(judged))
    return 0


def of_report(judged: ClaimsReport) -> Group:
    """Claims and goals as tables with their counts, then what has no result and what could not be read."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for title, is_goal in (("claims", False), ("goals", True)):
        if rows := [row for row in judged.rows if row.is_goal is is_goal]:
            counts = Counter(row.verdict.value for row in rows)
            counted = ", ".join(f"{word} {n}" for word, n in counts.most_common())
            parts += [table(title, COLUMNS, map(_cells, rows), right=("n", "runs")), Text(f"{title}: {counted}\n")]
    missing = Counter(claim.notebook for claim in judged.missing)
    lines = [f"not measured here: {n} of notebook {notebook}" for notebook, n in sorted(missing.items())]
    return Group(*parts, Text("\n".join([*lines, *judged.problems])))


def _cells(row: ClaimResult) -> tuple[Any, ...]:
    from rich.text import Text

    verdict = Text(f"{row.badge.symbol} {row.badge.word}", style=STYLES.get(row.badge.css, ""))
    counts = ("", "") if row.value is None else (f"{row.n:,}", row.runs)
    return f"{row.id}\n{row.statement}", row.claimed_text, row.measured, row.interval, *counts, verdict, row.why
