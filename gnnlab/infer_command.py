"""`gnnlab infer`: on which node should the next task run? States as JSON lines in, decisions as JSON lines out."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
from rich.table import Table

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.inference import study as inference_study
from gnnlab.optimize.inference.options import ORIGINAL, PREDICTOR, PREDICTOR_CACHED, Option
from gnnlab.optimize.inference.prediction_cache import PredictionCache
from gnnlab.optimize.inference.predictor import Decision, OriginalPredictor, Predictor
from gnnlab.workloads import edge_allocator

BENCHMARK_NODES, BENCHMARK_STATES, BENCHMARK_BATCH = 10, 500, 100  # networks as small as the guide's benchmark has
BUDGET_S = 4.0
OK, FAILED = 0, 1


def run(arguments: Namespace, show: Callable[[Any], None]) -> int:
    """Answer the states of a file or of standard input, or measure; 1 where a line could not be answered.

    `show` prints a table of rich.
    """
    predictor = _predictor(arguments)
    print(f"gnnlab: device {predictor.why_device}", file=sys.stderr)
    if arguments.benchmark:
        show(_table(benchmark(arguments.model_type, predictor)))
        return OK
    if arguments.batch:
        answers = answer_together(predictor, _lines_of(arguments.batch))
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
            try:
                yield _answer(number, predictor.predict(_state(line)))
            except OptimizeError as error:
                yield _answer(number, error)


def answer_together(predictor: Predictor, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The answers to all lines, computed together, in their order."""
    parsed: dict[int, Any] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                parsed[number] = _state(line)
            except OptimizeError as error:
                parsed[number] = error
    states = {number: state for number, state in parsed.items() if not isinstance(state, OptimizeError)}
    found = dict(zip(states, predictor.predict_batch(list(states.values())), strict=True))
    for number, state in parsed.items():
        yield _answer(number, found.get(number, state))


def benchmark(model_type: str, predictor: Predictor) -> pd.DataFrame:
    """The original, the predictor and its cache on one state at a time, and a batch: speed and equal decisions."""
    cached = Predictor(model_type, "cpu", cache=PredictionCache(1000, 3600))
    original = OriginalPredictor(model_type)
    scores = Predictor(model_type, "cpu", engine="eager").engine
    options = {
        ORIGINAL: Option(original.predict, scores),
        "predictor": Option(predictor.predict, predictor.engine, predictor.engine.precision == "float32"),
        PREDICTOR_CACHED: Option(cached.predict, cached.engine),
    }
    states = edge_allocator.random_states(BENCHMARK_STATES, (BENCHMARK_NODES, BENCHMARK_NODES), seed=1)
    same = inference_study.accuracy(options, states).set_index("option")["same_share"]
    raced = inference_study.latency(options, {BENCHMARK_NODES: states[:4]}, budget_s=BUDGET_S).drop_duplicates("form")
    raced["same_share"] = raced["form"].map(same)
    taking_part = {
        **options,
        PREDICTOR + predictor.engine.name: Option(predictor.predict, predictor.engine, predictor=predictor),
    }
    if predictor.engine.precision == "float32":
        batched = inference_study.throughput(
            model_type, taking_part, states, [BENCHMARK_BATCH], engines=[predictor.engine.name], budget_s=BUDGET_S
        )
        ours = batched[batched["form"].str.startswith(PREDICTOR)]
        raced = pd.concat(
            [raced, ours.assign(form=f"predictor, batch of {BENCHMARK_BATCH}", same_share=same["predictor"])]
        )
    return raced


def _table(raced: pd.DataFrame) -> Table:
    table = Table(title=f"one prediction, networks of {BENCHMARK_NODES} nodes", title_justify="left")
    for column in ("form", "µs (95 % interval)", "over the original (95 % interval)", "same decisions"):
        table.add_column(column, justify="left" if column == "form" else "right")
    for r in raced.to_dict("records"):
        time_us = f"{1e3 * r['value']:.1f} ({1e3 * r['low']:.1f} to {1e3 * r['high']:.1f})"
        gain = "" if r["form"] == ORIGINAL else f"{r['ratio']:.2f} ({r['ratio_low']:.2f} to {r['ratio_high']:.2f})"
        same = "" if pd.isna(r["same_share"]) else f"{r['same_share']:.1%}"
        table.add_row(r["form"], time_us, gain, same)
    return table


def _predictor(arguments: Namespace) -> Predictor:
    if not arguments.quantize:
        return Predictor(arguments.model_type, arguments.device)
    return Predictor(arguments.model_type, arguments.device, "int8", "eager")


def _state(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptimizeError(f"not JSON: {str(error).splitlines()[0][:120]}; each line is one state") from None


def _answer(number: int, found: Decision | OptimizeError) -> dict[str, Any]:
    if isinstance(found, OptimizeError):
        return {"line": number, "error": str(found)}
    return {"line": number, "node_id": found.node_id, "node": found.node, "score": found.score}


def _lines_of(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise OptimizeError(f"cannot read {path}: {error.strerror}; give a file of JSON lines") from None
