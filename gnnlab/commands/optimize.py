"""`gnnlab optimize`: what makes a model of one's own faster, measured and proven, as a table and as a module."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from gnnlab.commands import tables
from gnnlab.lab.table import duration, estimate_text
from gnnlab.profiling.estimates import Estimate
from gnnlab.rewrite import written
from gnnlab.rewrite.optimize import OPEN, Optimized, Tried, optimize
from gnnlab.rewrite.proof import ALLOWED

FAR_APART = 20.0  # ends of an interval: a gain between half and ten times says nothing


def run(arguments: Namespace, show: Callable[[Any], None]) -> int:
    """Optimize what the parsed options name; `show` prints. Progress goes to standard error."""
    if arguments.out:
        written.check(arguments.model, Path(arguments.out))
    tables.warn_if_busy()
    report = optimize(
        arguments.model,
        arguments.graph,
        train=arguments.train,
        budget_s=float(arguments.budget),
        processes=arguments.processes,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    show(json.dumps(asdict(report), indent=2) if arguments.json else table(report))
    if not arguments.json:
        for line in sentences(report):
            show(line)
    if arguments.out and report.plan:
        written.write(report, Path(arguments.out))
        print(f"wrote {arguments.out}: use it as {Path(arguments.out).stem}:make", file=sys.stderr)
    elif arguments.out and Path(arguments.out).exists():
        print(f"{arguments.out} is of an earlier run and was left as it is", file=sys.stderr)
    return 0


def table(report: Optimized) -> Table:
    """A line for each step."""
    facts = report.facts
    what = "forward and backward, dropout at 0" if report.train else "forward"
    title = f"{report.spec} on {report.graph}: {facts['nodes']:,} nodes, {facts['edges']:,} edges; {what}"
    columns = ("", "step", "times as fast, alone", "processes", "at most", "once", "why")
    rows = sorted(report.tried, key=lambda tried: (not tried.kept, tried.gain is None))
    return tables.table(title, columns, map(_cells, rows), right=("processes", "at most", "once"), whole=("step",))


def _cells(tried: Tried) -> tuple[str, ...]:
    why = tried.why if tried.error is None else f"{tried.why}; error {tried.error:.1e}"
    why += "; wrong on graphs of other sizes, so for this size alone" if tried.only_this_size and tried.kept else ""
    return (
        "kept" if tried.kept else "",
        tried.name,
        _gain_text(tried.gain) if tried.gain else "",
        str(tried.processes or ""),
        f"{tried.most:.3g}" if tried.most else "",
        duration(tried.once_s) if tried.once_s and tried.once_s >= 1 else "",
        why,
    )


def _gain_text(gain: Estimate) -> str:
    """The gain with its interval; of one whose ends are far apart its middle says nothing."""
    if gain.low is not None and gain.high > FAR_APART * max(gain.low, 1e-12):
        return "too noisy to tell"
    return estimate_text(gain)


def sentences(report: Optimized) -> list[str]:
    """What was found, for a reader."""
    lines = [f"Found, and yours to change: {sentence}" for sentence in report.facts["told"]]
    over = "one process" if report.processes == 1 else f"{report.processes} processes"
    lines += _result(report) if report.plan else [_nothing(report, over)]
    if report.facts["busy"]:
        lines.append(
            f"The machine was busy ({report.facts['busy']}): on a quiet one gains may be others, of threads above all."
        )
    lines += [_offer(tried) for tried in report.tried if not tried.exact and tried.processes > 1]
    if report.left_out:
        typed = f"gnnlab optimize {report.spec} --graph {report.graph}{' --train' * report.train}"
        left_out = ", ".join(f"'{name}'" for name in report.left_out)
        lines.append(
            f"The budget had no room for the steps {left_out}; `{typed} --budget {report.wanted_s}` should have."
        )
    return lines


def _nothing(report: Optimized, over: str) -> str:
    """That nothing is written, and which steps may yet make it faster."""
    open_yet = [tried for tried in report.tried if tried.exact and tried.why == OPEN]
    may = "; ".join(f"{tried.name}, {_gain_text(tried.gain)}" for tried in open_yet)
    more = f" Still open, for a larger --budget or more --processes: {may}." if may else ""
    return f"No step was seen to make it faster over {over}: nothing to write.{more}"


def _result(report: Optimized) -> list[str]:
    ms, proof, plan = report.ms, report.proof, " + ".join(report.plan)
    lines = [
        f"{'Together, ' * (len(report.plan) > 1)}{plan}: {estimate_text(report.gain)} times as fast, "
        f"{ms['yours']:.3g} ms before and {ms['fast']:.3g} ms now, over {report.processes} processes.",
        f"Proven equal on {len(proof['held'])} graphs ({'; '.join(proof['held'])}): outputs"
        f"{' and gradients' * report.train} differ by {proof['error']:.1e}, where {ALLOWED:.0e} is allowed.",
    ]
    lines += [f"It refuses {graph}: {why}" for graph, why in proof["refused"].items()]
    lines += [f"Yours does not take {graph}: {why}" for graph, why in proof["skipped"].items()]
    if limit := report.facts["limit_ms"]:
        lines.append(f"The operators of yours take {limit:.3g} ms at least on this machine (roofline).")
    return lines


def _offer(tried: Tried) -> str:
    """What a step that changes results would bring, and cost."""
    base, gain = ("your model", tried.gain) if tried.beside is None else ("the fast model", tried.beside)
    return (
        f"Not applied, as it changes results: {tried.name}, {estimate_text(gain)} times as fast as {base}, with errors "
        f"of {tried.error:.1e} of the largest output."
    )
