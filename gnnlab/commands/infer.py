"""Choose the node for the next task: states of edge networks in, decisions out, as JSON lines.

A line in: {"nodes": [{"node_id": ..., "cpu_util": ..., ...}, ...], "links": [[id, id], ...]}.
A line out: its number and the chosen node. A line that is no such state is answered by an error line,
the others are answered all the same, and the exit code is 1. How fast each form of the predictor is beside the
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
from pathlib import Path

from gnnlab.errors import GnnlabError

OK, FAILED = 0, 1


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model-type", choices=("dqn", "ppo", "hybrid"), default="hybrid", help="the model (%(default)s)"
    )
    parser.add_argument("--device", default="auto", help="auto, cuda, mps or cpu (%(default)s)")
    parser.add_argument("--quantize", action="store_true", help="weights and activations in int8, on the CPU")
    parser.add_argument(
        "--batch", nargs="?", const="-", metavar="FILE", help="answer all lines of FILE, or of the input, together"
    )


def run(arguments: Namespace) -> int:
    """Answer the states of a file or of standard input; 1 where a line could not be answered."""
    from gnnlab.inference.predictor import Predictor

    predictor = Predictor(arguments.model_type, arguments.device, "int8" if arguments.quantize else "fast")
    print(f"gnnlab: device {predictor.why_device}", file=sys.stderr)
    lines = sys.stdin.buffer
    if arguments.batch not in (None, "-"):
        lines = Path(arguments.batch).read_bytes().splitlines()
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    if arguments.batch:
        states = dict(numbered)
        decisions = zip(states, predictor.predict_batch(list(states.values())), strict=True)
    else:
        decisions = ((number, predictor.predict_batch([line])[0]) for number, line in numbered)
    failed = False
    for number, decision in decisions:
        if isinstance(decision, GnnlabError):
            failed, answer = True, {"error": str(decision)}
        else:
            answer = {"node_id": decision.node_id, "node": decision.node, "score": decision.score}
        print(json.dumps({"line": number, **answer}), flush=not arguments.batch)
    return FAILED if failed else OK
