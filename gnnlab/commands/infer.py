"""Choose the node for the next task: states of edge networks in, decisions out, as JSON lines.

A line in: {"nodes": [{"node_id": ..., "cpu_util": ..., ...}, ...], "links": [[id, id], ...]}.
A line out: its number and the chosen node. A line that is no such state is answered by an error line,
the others are answered all the same, and the exit code is 1.

examples:
  gnnlab infer --model-type hybrid --device cpu < states.jsonl
  gnnlab infer --model-type dqn --device cpu --quantize < states.jsonl
  gnnlab infer --batch states.jsonl > decisions.jsonl
  gnnlab infer --benchmark
"""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnlab.errors import GnnlabError

from .tables import show, table

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from gnnlab.inference.predictor import Decision, Predictor
    from gnnlab.profiling.races import Raced
    from gnnlab.workloads.edge_networks import State

BENCHMARK_NODES, BENCHMARK_STATES, BENCHMARK_BATCH = 10, 500, 100  # networks as small as S2's benchmark has
BUDGET_S = 4.0
OK, FAILED = 0, 1


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model-type", choices=("dqn", "ppo", "hybrid"), default="hybrid", help="the model (%(default)s)"
    )
    parser.add_argument("--device", default="auto", help="auto, cuda, mps or cpu (%(default)s)")
    parser.add_argument("--quantize", action="store_true", help="weights and activations in int8, on the CPU")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--batch", nargs="?", const="-", metavar="FILE", help="answer all lines of FILE, or of the input, together"
    )
    group.add_argument("--benchmark", action="store_true", help="measure this predictor against the original path")


def run(arguments: Namespace) -> int:
    """Answer the states of a file or of standard input, or measure; 1 where a line could not be answered."""
    from gnnlab.inference.predictor import Predictor

    predictor = Predictor(arguments.model_type, arguments.device, "int8" if arguments.quantize else "fast")
    print(f"gnnlab: device {predictor.why_device}", file=sys.stderr)
    if arguments.benchmark:
        show(_table(benchmark(arguments.model_type, predictor)))
        return OK
    if arguments.batch:
        lines = sys.stdin.buffer if arguments.batch == "-" else Path(arguments.batch).read_bytes().splitlines()
        answers = answer_together(predictor, lines)
    else:
        answers = answer_each(predictor, sys.stdin.buffer)
    failed = False
    for answer in answers:
        failed |= "error" in answer
        print(json.dumps(answer), flush=not arguments.batch)
    return FAILED if failed else OK


def answer_each(predictor: Predictor, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The answer to each line as it comes: line, node_id, node, score; or line, error."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _answer(number, predictor.predict_batch([line])[0])


def answer_together(predictor: Predictor, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The answers to all lines, computed together, in their order."""
    states = {number: line for number, line in enumerate(lines, start=1) if line.strip()}
    return map(_answer, states, predictor.predict_batch(list(states.values())))


def benchmark(model_type: str, predictor: Predictor) -> dict[str, tuple[Raced, float]]:
    """S2's benchmark: for each form its race against the original path over `BENCHMARK_BATCH` states, and the share of
    `BENCHMARK_STATES` decisions that are those of the original."""
    import numpy as np

    from gnnlab.inference.decisions import SCORES_WITHIN
    from gnnlab.inference.prediction_cache import PredictionCache
    from gnnlab.inference.predictor import Predictor, guide_decide
    from gnnlab.profiling.races import race_forms
    from gnnlab.workloads import edge_allocator, edge_networks

    states = edge_networks.random_states(BENCHMARK_STATES, (BENCHMARK_NODES, BENCHMARK_NODES), seed=1)
    original = partial(guide_decide, edge_allocator.load(model_type))
    cached = Predictor(model_type, "cpu", cache=PredictionCache(1000, 3600))
    forms = {
        "original": lambda states: [original(state) for state in states],
        "predictor": lambda states: [predictor.predict(state) for state in states],
        "predictor, cached": lambda states: [cached.predict(state) for state in states],
        f"predictor, batch of {BENCHMARK_BATCH}": predictor.predict_batch,
    }
    chosen = {form: [decision.node for decision in decide(states)] for form, decide in forms.items()}
    same = {form: np.mean(np.equal(chosen[form], chosen["original"])) for form in forms}
    scores = {form: partial(_scores, decide) for form, decide in forms.items()}
    exact = predictor.row["precision"] == "float32"
    within = {form: SCORES_WITHIN if exact or form == "predictor, cached" else math.inf for form in forms}
    raced = race_forms(scores, (states[:BENCHMARK_BATCH],), mode="plain", tolerance=within, budget_s=BUDGET_S)
    return {form: (one, same.get(form, 1.0)) for form, one in raced.items()}


def _scores(decide: Callable[[list[State]], list[Decision]], states: list[State]) -> np.ndarray:
    import numpy as np

    return np.array([decision.score for decision in decide(states)])


def _table(forms: dict[str, tuple[Raced, float]]) -> Table:
    from gnnlab.lab.text import estimate_text
    from gnnlab.profiling import estimates

    cells = []
    for form, (raced, same) in forms.items():
        if raced.times_ms is None:
            cells.append((form, raced.reason, "", ""))
            continue
        time_us = estimate_text(estimates.summary(1e3 * raced.times_ms / BENCHMARK_BATCH))
        gain = "" if raced.ratio is None else estimate_text(raced.ratio)
        cells.append((form, time_us, gain, f"{100 * same:.1f} %"))
    columns = ("form", "µs (95 % interval)", "over the original (95 % interval)", "same decisions")
    return table(f"one prediction, networks of {BENCHMARK_NODES} nodes", columns, cells, right=columns[1:])


def _answer(number: int, decision: Decision | GnnlabError) -> dict[str, Any]:
    if isinstance(decision, GnnlabError):
        return {"line": number, "error": str(decision)}
    return {"line": number, "node_id": decision.node_id, "node": decision.node, "score": decision.score}
