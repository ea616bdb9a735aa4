"""Find what makes your model faster, measure it, prove it equal, and write the fast model.

Fast layers come first, then constant output, inference mode, threads, captured (on CUDA: the whole step as a CUDA
graph, where the edges are the model's own), torch.compile, mallopt (freed memory is kept). Each step is added to
those that were kept, compared on your graph and on others (isolated nodes, repeated edges, self-loops, no edges,
other sizes), raced in several processes, and stays if it makes the model faster.
bfloat16, which changes results, is measured, listed, and not applied.

examples:
  gnnlab optimize my_models:make --graph digits
  gnnlab optimize my_models:make --graph planetoid:Cora --train --out fast_model.py
  gnnlab optimize my_models:make --graph digits --device cuda
  gnnlab optimize my_models:make --graph my_graph.npz --budget 300 --processes 5 --json
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import add_json, add_model, count
from .tables import show, table, warn_if_busy

if TYPE_CHECKING:
    from rich.table import Table

    from gnnlab.measure.estimates import Estimate
    from gnnlab.optimize.search import Optimized

FAR_APART = 20.0  # ends of an interval: a gain between half and ten times says nothing


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--train", action="store_true", help="forward and backward pass, and gradients in the proof")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: where your function makes the model")
    parser.add_argument("--out", metavar="FILE", help="write the fast model as a module")
    parser.add_argument("--budget", type=count, default=90, metavar="S", help="seconds for all of it (%(default)s)")
    parser.add_argument("--processes", type=count, default=3, metavar="N", help="processes that race (%(default)s)")
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Optimize what the parsed options name. Progress goes to standard error."""
    from gnnlab.user_code import require

    require(arguments.model)
    from gnnlab.optimize import written
    from gnnlab.optimize.search import optimize

    out = Path(arguments.out) if arguments.out else None
    if out:
        written.check(arguments.model, out)
    warn_if_busy()

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def improved(report: Optimized) -> None:
        tell(next(written.result(report)))
        if out:
            written.write(report, out)
            tell(f"wrote {out}: use it as {out.stem}:make")

    report = optimize(
        arguments.model,
        arguments.graph,
        train=arguments.train,
        device=arguments.device,
        budget_s=float(arguments.budget),
        processes=arguments.processes,
        tell=tell,
        improved=improved,
    )
    if arguments.json:
        show(json.dumps(asdict(report), indent=2))
    else:
        show(_table(report))
        show("\n".join(sentences(report)))
    if out and report.plan:
        written.write(report, out)
    elif out and out.exists():
        tell(f"{out} is of an earlier run and was left as it is")
    return 0


def _table(report: Optimized) -> Table:
    """A row for each step that was tried."""
    facts = report.facts
    what = "forward and backward, dropout at 0" if report.train else "forward"
    title = f"{report.spec} on {report.graph}: {facts['nodes']:,} nodes, {facts['edges']:,} edges; {what}"
    title += f"; {facts['device']}" if "device" in facts else ""
    rows = []
    for tried in report.tried:
        why = tried.why if tried.error is None else f"{tried.why}; error {tried.error:.1e}"
        gain = _gain_text(tried.gain) if tried.gain else ""
        rows.append(("kept" * tried.kept, tried.name, gain, tried.processes or "", why))
    columns = ("", "step", "times as fast as before it", "processes", "why")
    return table(title, columns, rows, right=("processes",), whole=("step",))


def _gain_text(gain: Estimate) -> str:
    """The gain with its interval, and whether that holds 1; of one whose ends are far apart the middle says nothing."""
    from gnnlab.optimize import written

    text = written.gain_text(gain)
    if gain.low is None or not gain.low <= 1 <= gain.high:
        return text
    return "too noisy to tell" if gain.high > FAR_APART * max(gain.low, 1e-12) else f"no difference seen, {text}"


def sentences(report: Optimized) -> list[str]:
    """The result, for a reader."""
    from gnnlab.optimize import written
    from gnnlab.optimize.search import OPEN, STOPPED
    from gnnlab.optimize.steps import FAST_LAYERS

    lines = list(written.result(report)) if report.plan else []
    if not report.plan:
        may = "; ".join(f"{tried.name}, {_gain_text(tried.gain)}" for tried in report.tried if tried.why == OPEN)
        open_ = f"No gain is beyond the noise. Open, for a larger --budget or more --processes: {may}."
        lines.append(open_ if may else "No step was seen to make it faster: nothing to write.")
    if report.facts["busy"]:
        lines.append(
            f"The machine was busy ({report.facts['busy']}): on a quiet one gains may be others, of threads above all."
        )
    lines += [
        f"Not applied, as it changes results: {tried.name}, {_gain_text(tried.gain)} times as fast, with errors of "
        f"{tried.error:.1e} of the largest output."
        for tried in report.tried
        if tried.error is not None and tried.gain and tried.gain.low is not None and tried.gain.low > 1
    ]
    if late := [*(tried.name for tried in report.tried if tried.why == STOPPED), *report.late]:
        lines.append(f"The budget had no time for {', '.join(late)}; a larger --budget may.")
    if why := report.inapplicable.get(FAST_LAYERS):
        lines.append(f"No fast layers: {why}.")
    if count := len(report.inapplicable):
        lines.append(f"{count} step{'s do' if count > 1 else ' does'} not apply to it (--json says why).")
    return lines
