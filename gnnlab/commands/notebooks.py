"""The commands about notebooks and their results: run, params, report, claims, compare.

Each is a function, whose docstring is the help; `COMMANDS` has what adds its options beside it.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnlab.errors import GnnlabError

from .terminal import STYLES, add_json, add_params, json_text, number, show, table

if TYPE_CHECKING:
    from rich.console import Group

    from gnnlab.compare import RunComparison
    from gnnlab.lab.claims_report import ClaimResult, ClaimsReport

PARAMETERS = ("name", "type", "default", "meaning", "allowed")
CLAIMS = ("", "claimed", "measured", "95 % interval", "n", "runs", "verdict", "why")
CHANGES = ("row", "A", "B", "B / A", "interval", "")


def results_at(word: str, *, named: bool = False) -> Path:
    """A folder or file of results, or the folder of a parameter set, which `word` is if `named`."""
    from gnnlab.lab import discovery

    path = Path(os.path.expanduser(word))  # noqa: PTH111  Path's raises where there is no home
    return path if path.exists() and not named else discovery.results_of(word)


def _chosen(arguments: Namespace) -> Path:
    """The folder of results that is named, else that of the parameter set. Raises `GnnlabError`: there is none."""
    from gnnlab.lab import results

    if arguments.folder is None:
        return results_at(arguments.params, named=True)
    folder = results_at(arguments.folder).resolve()
    if not results.paths(folder):
        raise GnnlabError(f"{folder} holds no runs of notebooks; name a folder of outputs, such as outputs/lab")
    return folder


def _numbers(parser: ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="*", metavar="NN", help="numbers of notebooks, as 01 (default: all)")


def _folder(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="a folder of results (default: that of --params)")
    add_params(parser)


# ---- run ------------------------------------------------------------------------------------------------------------


def run_options(parser: ArgumentParser) -> None:
    _numbers(parser)
    add_params(parser)
    what = "only notebooks without a run that passed with these parameters"
    parser.add_argument("--missing", action="store_true", help=what)
    many = number(int, 1, 100, "whole number from 1 to 100")
    what = "so many runs of each, each in a fresh process; the claims report pools them (%(default)s)"
    parser.add_argument("--runs", type=many, default=1, metavar="N", help=what)
    what = "set one parameter in the notebooks that have it; lists as '[1, 2]' (`gnnlab params` shows them)"
    pair = {"nargs": 2, "metavar": ("NAME", "VALUE"), "dest": "overrides"}
    parser.add_argument("-p", action="append", default=[], help=what, **pair)


def run(arguments: Namespace) -> int:
    """Run notebooks and render the site of their results.

    Notebooks run in the order of their numbers. Each run has a folder of its own; the newest that passed is the result,
    and runs that were made alike are pooled. Exit code 1 where one failed.

    examples:
      gnnlab run                                   every notebook, small
      gnnlab run 01 --params full                  one notebook at full size
      gnnlab run 02 --runs 5                       five times: what differs between processes is measured, too
      gnnlab run 01 -p graphs '[my_graph.npz]' -p models '[my_models:make_gat]'
      gnnlab run --params ~/my-params --missing    parameters of your own, and only what has no run with them yet
    """
    from gnnlab.lab import run as runs
    from gnnlab.lab.results import GOOD

    given = {"missing": arguments.missing, "runs": arguments.runs, "overrides": [tuple(p) for p in arguments.overrides]}
    statuses = runs.run(arguments.notebooks, arguments.params, **given)
    return int(any(status not in GOOD for status in statuses.values()))


def params(arguments: Namespace) -> int:
    """Show the parameters of notebooks: name, type, default, meaning, what is allowed.

    examples:
      gnnlab params 01
    """
    from gnnlab.lab import discovery

    for notebook in discovery.notebooks(discovery.root(), arguments.notebooks):
        declared = discovery.declared(notebook).values()
        rows = [(p.name, p.type, json.dumps(p.default, ensure_ascii=False), p.meaning, p.allowed) for p in declared]
        show(table(notebook.stem, PARAMETERS, rows, whole=("name", "type")))
    return 0


# ---- report and claims ----------------------------------------------------------------------------------------------


def report(arguments: Namespace) -> int:
    """Render the site of the results that are there, without running anything.

    It prints the path of the front page.

    examples:
      gnnlab report
      gnnlab report --params full
      gnnlab report outputs/lab                    what notebooks wrote in JupyterLab, or by papermill alone
    """
    from gnnlab.lab import report

    print(report.build_site(_chosen(arguments)))
    return 0


def claims_options(parser: ArgumentParser) -> None:
    _folder(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="as JSON")
    again = "compute rows, intervals and verdicts again from the stored samples; exit code 1 where one differs"
    group.add_argument("--recompute", action="store_true", help=again)


def claims(arguments: Namespace) -> int:
    """Print the claims report: what was claimed, what was measured here, the verdict.

    Claims of the documents and goals of the lab stand apart. All is computed from the result files of the
    folder and of its further runs (gnnlab run --runs).

    examples:
      gnnlab claims
      gnnlab claims --params full --json > claims.json
      gnnlab claims ~/yesterday/quick --recompute   from the stored samples, on any machine
    """
    from gnnlab.lab import claims_report

    folder = _chosen(arguments)
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
            parts += [table(title, CLAIMS, map(_claim, rows), right=("n", "runs")), Text(f"{title}: {counted}\n")]
    missing = Counter(claim.notebook for claim in judged.missing)
    lines = [f"not measured here: {n} of notebook {notebook}" for notebook, n in sorted(missing.items())]
    lines += [f"left out: {problem}" for problem in judged.problems]
    return Group(*parts, Text("\n".join(lines)))


def _claim(row: ClaimResult) -> tuple[Any, ...]:
    from rich.text import Text

    verdict = Text(f"{row.badge.symbol} {row.badge.word}", style=STYLES.get(row.badge.css, ""))
    counts = ("", "") if row.value is None else (f"{row.n:,}", row.runs)
    return f"{row.id}\n{row.statement}", row.claimed_text, row.measured, row.interval, *counts, verdict, row.why


# ---- compare --------------------------------------------------------------------------------------------------------


def compare_options(parser: ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the run to compare with")
    parser.add_argument("b", metavar="B", help="the run to compare")
    add_json(parser)


def compare(arguments: Namespace) -> int:
    """Compare two runs: the change of every row with its interval.

    A and B are folders of results, single runs, or names of parameter sets. Several runs of a notebook are
    pooled. It says when machine, versions, parameters or commit differ.

    examples:
      gnnlab compare outputs/quick ~/yesterday/quick
      gnnlab compare quick full --json
    """
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
    tail += [comparison.machine] * bool(comparison.machine)
    tail += [*(f"left out: {problem}" for problem in comparison.problems), comparison.caution]
    rows = table("B over A, with 95 % intervals", CHANGES, map(_change, comparison.changes), right=CHANGES[1:5])
    return Group(Text("\n".join(head)), *[rows] * bool(counts), Text("\n".join(tail)))


def _change(change: dict[str, Any]) -> tuple[Any, ...]:
    from rich.text import Text

    from gnnlab.lab.text import number

    cell = ", ".join(filter(None, [change["study"], change["keys"]]))
    label = f"{change['notebook'][:2]} {cell}: {change['variant']}" + f", {change['of']}" * (change["of"] != "value")
    unit = "" if change["unit"] in ("count", "x") else f" {change['unit']}"
    values = ["" if change[side] is None else f"{number(change[side])}{unit}" for side in "ab"]
    over = "" if change["change"] is None else f"{change['change']:.3g}"
    ends = "" if change["low"] == change["high"] else f"{change['low']:.3g} to {change['high']:.3g}"
    word = change["word"] + f" ({change['note']})" * bool(change["note"])
    return label, *values, over, ends, Text(word, style=STYLES.get(change["word"], ""))


COMMANDS = {
    "run": (run_options, run),
    "report": (_folder, report),
    "claims": (claims_options, claims),
    "compare": (compare_options, compare),
    "params": (_numbers, params),
}
