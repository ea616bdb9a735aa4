"""The options of inference measured: how fast, how accurate, what they cost to build, hold in memory, and in batches.

    options, missing = inference_options.make("hybrid", store=store)
    accurate = accuracy(options, states)
    raced = latency(options, pools([10, 50, 200]), budget_s=2)

Exact options must give the scores of the original before they are timed; of the others the decisions that they change
are counted, and stand beside their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Batch

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.inference.async_batching import AsyncBatcher
from gnnlab.optimize.inference.flat_allocator import FlatAllocator
from gnnlab.optimize.inference.network_arrays import NetworkArrays, Topologies
from gnnlab.optimize.inference.options import ORIGINAL, PREDICTOR, Option, predictors
from gnnlab.optimize.inference.prediction_cache import PredictionCache
from gnnlab.optimize.inference.predictor import Decision, OriginalPredictor, Predictor, build_graph
from gnnlab.optimize.study import BASELINE
from gnnlab.profiling import memory
from gnnlab.profiling.parity import RTOL_FLOAT32, require_equal
from gnnlab.profiling.timing import Comparison, measure, race
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import State

POOL = 4  # states of a size, in turn
CHUNK = 64  # networks in a pass, where accuracy is counted
ONE_BY_ONE, BATCHED, GATHERED = "original, one by one", "original, batched", "gathered"
SCORES_WITHIN = 5 * RTOL_FLOAT32  # three layers of sums in another order, of the largest score


def pools(sizes: Sequence[int], seed: int = 0) -> dict[int, list[State]]:
    """Four different networks of each size."""
    return {nodes: [edge_allocator.random_state(nodes, seed + place) for place in range(POOL)] for nodes in sizes}


# ---- accuracy --------------------------------------------------------------------------------------------------------


def accuracy(options: Mapping[str, Option], states: Sequence[State]) -> pd.DataFrame:
    """A row for each option: same_share of its decisions are the original's, with the interval of that share;
    regret_ms and best_share against the exact optimum; score_error, the largest difference of a score over the largest
    score.

    Raises:
        ParityError: an exact option gives other scores than the original.
    """
    parts = [NetworkArrays.of(states[at : at + CHUNK]) for at in range(0, len(states), CHUNK)]
    expected, chosen = _decided(options[ORIGINAL], parts)
    rows = []
    for name, option in options.items():
        scores, decisions = _decided(option, parts)
        error = require_equal(expected, scores, SCORES_WITHIN if option.exact else np.inf, name)
        same = np.concatenate(decisions) == np.concatenate(chosen)
        pairs = zip(parts, decisions, strict=True)
        regrets = np.concatenate([edge_allocator.regret(p.x, p.edge_index, d, p.network_of) for p, d in pairs])
        low, high = share_interval(int(same.sum()), len(same))
        rows.append(
            {
                "option": name,
                "same_share": same.mean(),
                "same_low": low,
                "same_high": high,
                "regret_ms": regrets.mean(),
                "best_share": (regrets == 0).mean(),
                "score_error": error,
                "exact": option.exact,
                "precision": option.precision,
                "n": len(same),
            }
        )
    return pd.DataFrame(rows)


def _decided(option: Option, parts: Sequence[NetworkArrays]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    scores = [option.scores(part) for part in parts]
    return scores, [part.decide(s) for part, s in zip(parts, scores, strict=True)]


def share_interval(hits: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share by Wilson's score (1927), which holds near 0 and 1."""
    share, extra = hits / trials, z * z / trials
    middle = (share + extra / 2) / (1 + extra)
    half = z * np.sqrt(share * (1 - share) / trials + extra / (4 * trials)) / (1 + extra)
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


# ---- one prediction --------------------------------------------------------------------------------------------------


def latency(options: Mapping[str, Option], pools: Mapping[int, Sequence[State]], *, budget_s: float) -> pd.DataFrame:
    """Every option over the original on one state at a time: two races a size, options alone and predictors.

    Columns: nodes, form, ratio, ci_low, ci_high (above 1 is faster), n, ms, ms_low, ms_high (of one prediction), rounds
    (n, 2); the first race has an A/A control. Exact options must give the scores of the original on these very states.
    """
    together = {name for name in options if name.startswith(PREDICTOR)}
    rows = []
    for nodes, states in pools.items():
        forms = {name: partial(_each, option.predict, states) for name, option in options.items()}
        baseline = forms.pop(ORIGINAL)
        for name in (name for name in forms if options[name].exact):
            _require_same(baseline, forms[name], f"{name}, {nodes} nodes")
        for group in (forms.keys() - together, together):
            chosen = {name: form for name, form in forms.items() if name in group}
            control = group is not together
            share = 0.75 if control else 0.25  # there are more of them, and slower ones
            found = race(baseline, chosen, control=control, parity=None, budget_s=share * budget_s)
            rows += _rows({"nodes": nodes}, found, len(states))[not control :]
    return pd.DataFrame(rows)


def _require_same(original: Callable[[], Any], form: Callable[[], Any], name: str) -> None:
    """The chosen nodes' scores agree; which of two nodes that tie within rounding is chosen does not matter."""
    expected, got = (np.array([decision.score for decision in run()]) for run in (original, form))
    require_equal(expected, got, SCORES_WITHIN, name)


def _each(predict: Callable[[State], Decision], states: Sequence[State]) -> list[Decision]:
    return [predict(state) for state in states]


def _rows(label: Mapping[str, Any], found: Mapping[str, Comparison], states: int) -> list[dict[str, Any]]:
    first = next(iter(found.values())).baseline
    rows = [{**label, "form": BASELINE, "ratio": 1.0, "ci_low": 1.0, "ci_high": 1.0, **_times(first, states)}]
    for name, one in found.items():
        rounds = np.column_stack([one.baseline.samples_ms, one.candidate.samples_ms])
        ends = {"ratio": one.ratio, "ci_low": one.ci[0], "ci_high": one.ci[1], "rounds": rounds}
        rows.append({**label, "form": name, **ends, **_times(one.candidate, states)})
    return rows


def _times(timing: Any, states: int) -> dict[str, Any]:
    low, high = timing.ci_ms
    return {"n": timing.n, "ms": timing.median_ms / states, "ms_low": low / states, "ms_high": high / states}


def anatomy(model_type: str, states: Sequence[State], *, budget_s: float) -> pd.DataFrame:
    """Where the time of one prediction goes: path, part, us, us_low, us_high, n; the parts in their order."""
    original, fast = OriginalPredictor(model_type), Predictor(model_type, "cpu")
    graphs = [build_graph(state) for state in states]
    topologies = Topologies()
    arrays = [NetworkArrays.of([state], topologies) for state in states]
    parts = {
        ("original", "parse, build the graph"): lambda: [build_graph(state) for state in states],
        ("original", "layers, gradients on"): lambda: [original.forward(graph) for graph in graphs],
        ("original", "all"): partial(_each, original.predict, states),
        ("predictor", "read and check"): lambda: [NetworkArrays.of([state], topologies) for state in states],
        ("predictor", "fast engine"): lambda: [fast.engine(networks) for networks in arrays],
        ("predictor", "all"): partial(_each, fast.predict, states),
    }
    rows = []
    for (path, part), form in parts.items():
        taken = measure(form, budget_s=budget_s / len(parts))
        us, (low, high) = taken.median_ms * 1e3 / len(states), taken.ci_ms
        ends = {"us_low": low * 1e3 / len(states), "us_high": high * 1e3 / len(states)}
        rows.append({"path": path, "part": part, "us": us, **ends, "n": taken.n})
    return pd.DataFrame(rows)


def cache_costs(model_type: str, states: Sequence[State], *, budget_s: float) -> pd.DataFrame:
    """A prediction without a cache, with one that knows the state, and with one that does not: form, ratio, ms, ..."""
    miss = PredictionCache(1, 3600.0)  # states in turn, one place: nothing is ever found
    forms = {
        "hit": Predictor(model_type, "cpu", cache=PredictionCache(1000, 3600.0)),
        "miss": Predictor(model_type, "cpu", cache=miss),
    }
    plain = partial(_each, Predictor(model_type, "cpu").predict, states)
    found = race(
        plain,
        {name: partial(_each, predictor.predict, states) for name, predictor in forms.items()},
        parity=None,
        budget_s=budget_s,
    )
    return pd.DataFrame(_rows({}, found, len(states)))


# ---- many at once ----------------------------------------------------------------------------------------------------


def throughput(
    model_type: str,
    options: Mapping[str, Option],
    states: Sequence[State],
    batch_sizes: Sequence[int],
    *,
    engines: Sequence[str],
    budget_s: float,
) -> pd.DataFrame:
    """Batches over the same states one by one through the original path, all in one race a batch size.

    `engines` whose predictors take part, those of them that are among the options and exact.
    Columns: batch, nodes, form, ratio, ci_low, ci_high, n, ms (of one state), states_per_s with rate_low and rate_high,
    rounds.

    Raises:
        OptimizeError: a batch of more states than there are, or none of the engines takes part.
    """
    if max(batch_sizes) > len(states):
        raise OptimizeError(
            f"a batch of {max(batch_sizes)} was asked for, there are {len(states)} states; ask for fewer"
        )
    original, rows = OriginalPredictor(model_type), []
    exact = {name: p for name, p in predictors(options).items() if options[PREDICTOR + name].exact and name in engines}
    if not exact:
        known = ", ".join(name for name in predictors(options) if options[PREDICTOR + name].exact)
        raise OptimizeError(f"engines {', '.join(engines)}: none of them was built; here are {known}")
    for size in batch_sizes:
        asked = states[:size]
        one_by_one = partial(_each, original.predict, asked)
        forms: dict[str, Any] = {BATCHED: partial(_in_one_pass, original, asked)}
        forms |= {PREDICTOR + name: partial(predictor.predict_batch, asked) for name, predictor in exact.items()}
        for name, form in forms.items():
            _require_same(one_by_one, form, f"{name}, batch of {size}")
        rows += _rows(
            {"batch": size, "nodes": nodes_of(asked)}, race(one_by_one, forms, parity=None, budget_s=budget_s), size
        )
    table = pd.DataFrame(rows).replace({"form": {BASELINE: ONE_BY_ONE}})
    rates = {"states_per_s": 1e3 / table["ms"], "rate_low": 1e3 / table["ms_high"], "rate_high": 1e3 / table["ms_low"]}
    return table.assign(**rates)


def nodes_of(states: Sequence[State]) -> str:
    """The sizes of networks for a reader: "10", or "5 to 60"."""
    sizes = [len(state["nodes"]) for state in states]
    return str(min(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"


def _in_one_pass(original: OriginalPredictor, states: Sequence[State]) -> list[Decision]:
    """The original path on a batch: one PyG batch, gradients on, the choice network by network."""
    batch = Batch.from_data_list([build_graph(state) for state in states])
    decisions = []
    for state, scores in zip(states, original.forward(batch).split(batch.ptr.diff().tolist()), strict=True):
        node = int(scores.argmax())
        decisions.append(Decision(state["nodes"][node]["node_id"], node, scores[node].item()))
    return decisions


def concurrent(model_type: str, states: Sequence[State], *, max_batch: int, budget_s: float) -> pd.DataFrame:
    """As many callers as states at the same time: one request after the other, and gathered by `AsyncBatcher`.

    The original path (one after the other is the baseline) and the predictor, each on an event loop in its own thread,
    so that a notebook's loop does not matter. Columns as in `latency`, with callers for nodes.
    """
    original, predictor = OriginalPredictor(model_type), Predictor(model_type, "cpu")
    with ThreadPoolExecutor(1) as thread:

        def run(answer: Callable[..., Any], *arguments: Any) -> list[Decision]:
            return thread.submit(asyncio.run, answer(states, *arguments)).result()

        one_by_one = partial(run, _one_by_one, original.predict)
        forms = {
            GATHERED: partial(run, _gathered, partial(_in_one_pass, original), max_batch),
            PREDICTOR + "one by one": partial(run, _one_by_one, predictor.predict),
            PREDICTOR + GATHERED: partial(run, _gathered, predictor.predict_batch, max_batch),
        }
        for name, form in forms.items():
            _require_same(one_by_one, form, name)
        found = race(one_by_one, forms, parity=None, budget_s=budget_s)
    return pd.DataFrame(_rows({"callers": len(states)}, found, len(states)))


async def _one_by_one(states: Sequence[State], predict: Callable[[State], Decision]) -> list[Decision]:
    return [predict(state) for state in states]


async def _gathered(states: Sequence[State], predict_batch: Callable[..., Any], max_batch: int) -> list[Decision]:
    async with AsyncBatcher(predict_batch, max_batch=max_batch, max_queue=len(states)) as batcher:
        return await asyncio.gather(*(batcher.predict(state) for state in states))


# ---- what an engine costs besides ------------------------------------------------------------------------------------


def engine_costs(options: Mapping[str, Option]) -> pd.DataFrame:
    """Each engine: engine, precision, build_s (0: found in the store), load_s, first_call_ms, stored_kib."""
    rows = []
    for name, predictor in predictors(options).items():
        engine, first = predictor.engine, options[PREDICTOR + name].first_call_ms
        costs = {"build_s": engine.build_s, "load_s": engine.load_s, "first_call_ms": first}
        rows.append({"engine": name, "precision": engine.precision, **costs, "stored_kib": engine.stored_bytes / 1024})
    return pd.DataFrame(rows)


def memory_use(model_type: str, states: Sequence[State]) -> pd.DataFrame:
    """MiB that a forward pass holds beside the model, on one state and on all of them: path, states, rise_mib.

    Of torch alone: what numpy and other runtimes hold is not accounted for.
    """
    original = OriginalPredictor(model_type)
    flat = torch.inference_mode()(FlatAllocator(original.model))
    rows = []
    for asked in (states[:1], states):
        batch, networks = Batch.from_data_list([build_graph(state) for state in asked]), NetworkArrays.of(asked)
        forms = {"layers, gradients on": partial(original.forward, batch), "flat": partial(flat, *networks.tensors)}
        for path, form in forms.items():
            held = memory.profile_memory_usage(form, device="cpu")
            rows.append({"path": path, "states": len(asked), "rise_mib": held.rise_mb})
    return pd.DataFrame(rows)
