"""Choose the node for the next task: states of edge networks in, decisions out, as JSON lines.

A line in: {"nodes": [{"node_id": ..., "cpu_util": ..., ...}, ...], "links": [[id, id], ...]}.
A line out: its number and the chosen node. A line that is no such state is answered by an error line,
the others are answered all the same, and the exit code is 1. How fast each variant of the predictor is beside the
original, and whether it decides the same, is measured by notebook 08: gnnlab run 08.

examples:
  gnnlab infer --model-type hybrid --device cpu < states.jsonl
  gnnlab infer --model-type dqn --device cpu --quantize < states.jsonl
  gnnlab infer --batch states.jsonl > decisions.jsonl
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from codecs import BOM_UTF8
from io import BytesIO
from pathlib import Path

from gnnlab.errors import GnnlabError

from .terminal import say

OK, FAILED = 0, 1


def add_arguments(parser: ArgumentParser) -> None:
    models = ("dqn", "ppo", "hybrid")
    parser.add_argument("--model-type", choices=models, default="hybrid", help="the model (%(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cuda, mps or cpu (%(default)s)")
    parser.add_argument("--quantize", action="store_true", help="weights and activations in int8, on the CPU")
    what = "answer all lines of FILE, or of the input, together"
    parser.add_argument("--batch", nargs="?", const="-", metavar="FILE", help=what)


def run(arguments: Namespace) -> int:
    """Answer the states of a file or of standard input; 1 where a line could not be answered."""
    from gnnlab.inference.predictor import Predictor
    from gnnlab.inference.states import check_or_error
    from gnnlab.workloads.edge_networks import FEATURES

    lines = sys.stdin.buffer  # as any binary file it gives what ends with \n, and with nothing else
    if arguments.batch not in (None, "-"):
        lines = BytesIO(Path(arguments.batch).read_bytes())
    predictor = Predictor(arguments.model_type, arguments.device, "int8" if arguments.quantize else "fast")
    say(f"gnnlab: device {predictor.why_device}")
    numbered = ((n, line if n > 1 else line.removeprefix(BOM_UTF8)) for n, line in enumerate(lines, start=1))
    states = ((number, check_or_error(line)) for number, line in numbered if line.strip())
    if arguments.batch:
        states = list(states)
        decisions = iter(predictor.decide([state for _, state in states if not isinstance(state, GnnlabError)]))
    sizes, failed = [], 0
    for number, state in states:
        if isinstance(state, GnnlabError):
            failed, answer = failed + 1, {"error": str(state)}
        else:
            sizes.append(len(state.nodes))
            decision = next(decisions) if arguments.batch else predictor.decide([state])[0]
            answer = {"node_id": decision.node_id, "node": decision.node, "score": decision.score}
        print(json.dumps({"line": number, **answer}), flush=not arguments.batch)
    ends = " to ".join(map(str, sorted({min(sizes), max(sizes)}))) if sizes else ""
    of_nodes = f" of {ends} node{'s' * (ends != '1')}, {len(FEATURES)} features each" if sizes else ""
    unread = f"; {failed} line{'s' * (failed != 1)} could not be read" if failed else ""
    say(f"gnnlab: read {len(sizes)} state{'s' * (len(sizes) != 1)}{of_nodes}{unread}")
    return FAILED if failed else OK
