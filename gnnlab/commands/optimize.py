"""Find what makes your model faster, measure it, check that it is equal, and write the fast model.

Fast layers come first, then constant output, inference mode, threads, captured (on CUDA: the whole step as a CUDA
graph, where the edges are the model's own), torch.compile, mallopt (freed memory is kept). Each step is added to
those that were kept, compared on your graph and on others (isolated nodes, repeated edges, self-loops, no edges,
other sizes), raced in fresh processes, and stays if the whole interval of its gain lies above 1.
bfloat16, which changes results, is measured, listed, and not applied.

examples:
  gnnlab optimize my_models:make --graph digits
  gnnlab optimize my_models:make --graph planetoid:Cora --train --out fast_model.py
  gnnlab optimize my_models:make --graph digits --device cuda
  gnnlab optimize my_models:make --graph my_graph.npz --processes 5 --seconds 2 --json
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .terminal import add_json, add_model, add_processes, graph_of, say, show, table, warn_if_busy

if TYPE_CHECKING:
    from rich.table import Table

    from gnnlab.optimize.search import OptimizeReport


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--train", action="store_true", help="forward and backward pass, gradients compared, too")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: where your function makes the model")
    parser.add_argument("--out", metavar="FILE", help="write the fast model as a module")
    add_processes(parser, 3, 0.5)
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Optimize what the parsed options name. Progress goes to standard error."""
    from gnnlab.optimize import written
    from gnnlab.optimize.search import optimize

    out = Path(arguments.out) if arguments.out else None
    if out:
        written.check(arguments.model, out)
    warn_if_busy()

    def save(report: OptimizeReport) -> None:
        if out:
            written.write(report, out)
            say(f"wrote {out}: use it as {out.stem}:make")

    options = {name: getattr(arguments, name) for name in ("train", "device", "processes", "seconds")}
    report = optimize(arguments.model, graph_of(arguments), **options, tell=say, improved=save)
    read = report.facts["read"]
    if arguments.json:
        show(json.dumps({"read": read, **asdict(report)}, indent=2))
    else:
        show("\n".join(read))
        show(_table(report))
        show("\n".join(written.sentences(report)))
    if report.plan:
        save(report)
    elif out:
        say(f"{out} was not written" + ": the one that is there is of an earlier run" * out.exists())
    return 0


def _table(report: OptimizeReport) -> Table:
    """A row for each step that was tried."""
    from gnnlab.optimize.written import gain_text

    facts = report.facts
    what = "forward and backward, dropout at 0" if report.train else "forward"
    title = f"{report.spec} on {report.graph}: {facts['nodes']:,} nodes, {facts['edges']:,} edges; {what}"
    title += f"; {facts['device']}" if "device" in facts else ""
    rows = []
    for tried in report.tried:
        reason = tried.reason if tried.error is None else f"{tried.reason}; error {tried.error:.1e}"
        gain = gain_text(tried.gain) if tried.gain else ""
        rows.append(("kept" * tried.kept, tried.name, gain, tried.processes or "", reason))
    columns = ("", "step", "times as fast as before it", "processes", "why")
    return table(title, columns, rows, right=("processes",), whole=("step",))
