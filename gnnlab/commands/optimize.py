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
from gnnlab.lab.table import estimate_text
from gnnlab.profiling.estimates import Estimate
from gnnlab.rewrite import written
from gnnlab.rewrite.optimize import NO_TIME, OPEN, STOPPED, Optimized, Tried, optimize
from gnnlab.rewrite.proof import ALLOWED, INPUTS
from gnnlab.rewrite.steps import FAST_LAYERS
from gnnlab.rewrite.written import over_processes

FAR_APART = 20.0  # ends of an interval: a gain between half and ten times says nothing


def run(arguments: Namespace, show: Callable[[Any], None]) -> int:
    """Optimize what the parsed options name; `show` prints. Progress goes to standard error."""
    out = Path(arguments.out) if arguments.out else None
    if out:
        written.check(arguments.model, out)
    tables.warn_if_busy()

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def improved(report: Optimized) -> None:
        tell(_result(report)[0])
        if out:
            written.write(report, out)
            tell(f"wrote {out}: use it as {out.stem}:make")

    report = optimize(
        arguments.model,
        arguments.graph,
        train=arguments.train,
        budget_s=float(arguments.budget),
        processes=arguments.processes,
        tell=tell,
        improved=improved,
    )
    if arguments.json:
        show(json.dumps(asdict(report), indent=2))
    else:
        show(table(report))
        for line in sentences(report):
            show(line)
    if out and report.plan:
        written.write(report, out)
    elif out and out.exists():
        tell(f"{out} is of an earlier run and was left as it is")
    return 0


def table(report: Optimized) -> Table:
    """A row for each step that was tried."""
    facts = report.facts
    what = "forward and backward, dropout at 0" if report.train else "forward"
    title = f"{report.spec} on {report.graph}: {facts['nodes']:,} nodes, {facts['edges']:,} edges; {what}"
    columns = ("", "step", "times as fast, alone", "added to the others", "processes", "why")
    return tables.table(title, columns, map(_cells, report.tried), right=("processes",), whole=("step",))


def _cells(tried: Tried) -> tuple[str, ...]:
    why = tried.why if tried.error is None else f"{tried.why}; error {tried.error:.1e}"
    gains = (_gain_text(gain) if gain else "" for gain in (tried.gain, tried.added))
    return "kept" * tried.kept, tried.name, *gains, str(tried.processes or ""), why


def _gain_text(gain: Estimate) -> str:
    """The gain with its interval; of one whose ends are far apart its middle says nothing."""
    if gain.low is not None and gain.high > FAR_APART * max(gain.low, 1e-12):
        return "too noisy to tell"
    return estimate_text(gain)


def sentences(report: Optimized) -> list[str]:
    """The result, for a reader."""
    lines = [f"Yours to change: {remark}" for remark in report.remarks]
    lines += _result(report) if report.plan else [_nothing(report)]
    if report.facts["busy"]:
        lines.append(
            f"The machine was busy ({report.facts['busy']}): on a quiet one gains may be others, of threads above all."
        )
    lines += [_offer(tried) for tried in report.tried if tried.error is not None and tried.processes]
    if late := [tried.name for tried in report.tried if tried.why in (NO_TIME, STOPPED)]:
        lines.append(f"The budget had no time for {', '.join(late)}; a larger --budget may.")
    if why := report.inapplicable.get(FAST_LAYERS):
        lines.append(f"No fast layers: {why}.")
    if count := len(report.inapplicable):
        lines.append(f"{count} step{'s do' if count > 1 else ' does'} not apply to it (--json says why).")
    return lines


def _result(report: Optimized) -> list[str]:
    ms, held, proof, plan = report.ms, report.memory_mib, report.proof, " + ".join(report.plan)
    each = "" if report.gain.low is None or report.gain.low > 1 else " and above 1 in each"
    on = f"on {len(proof['held'])} graphs ({'; '.join(proof['held'])})"
    if INPUTS in proof["held"]:
        on = f"on your inputs{', and each fast layer on drawn graphs' * (FAST_LAYERS in plan)}"
    lines = [
        f"{'Together, ' * (len(report.plan) > 1)}{plan}: {estimate_text(report.gain)} times as fast, "
        f"{ms['yours']:.3g} ms before and {ms['fast']:.3g} ms now, {over_processes(report.processes)}{each}; "
        f"a call holds {held['yours']:.3g} MiB before and {held['fast']:.3g} MiB now.",
        f"Proven equal {on}: outputs"
        f"{' and gradients' * report.train} differ by {proof['error']:.1e}, where {ALLOWED:.0e} is allowed.",
    ]
    return lines + [f"Yours does not take {graph}: {why}" for graph, why in proof["skipped"].items()]


def _nothing(report: Optimized) -> str:
    """That no step was kept, and which may yet make it faster."""
    may = "; ".join(f"{tried.name}, {_gain_text(tried.gain)}" for tried in report.tried if tried.why == OPEN)
    if may:
        return f"No gain is beyond the noise. Open, for a larger --budget or more --processes: {may}."
    return "No step was seen to make it faster: nothing to write."


def _offer(tried: Tried) -> str:
    """What a step that changes results would bring, and cost."""
    base, gain = ("the fast model", tried.added) if tried.added else ("your model", tried.gain)
    return (
        f"Not applied, as it changes results: {tried.name}, {_gain_text(gain)} times as fast as {base}, with errors "
        f"of {tried.error:.1e} of the largest output."
    )
