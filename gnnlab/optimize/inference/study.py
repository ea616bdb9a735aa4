"""The options of inference measured: how fast, how accurate, what they cost to build, hold in memory, and in batches.

    options, missing = inference_options.make("hybrid", store=store)
    accurate = accuracy(options, states)
    raced = latency(options, pools([10, 50, 200]), budget_s=2)

Exact options must give the scores of the original before they are timed; of the others the decisions that they change
are counted, and stand beside their time. Tables of races have a row for each form of each cell, the baseline's own
among them, with columns named as the fields of the lab's one table: form, samples (ms of one state, one a round),
value, low, high, n, ratio, ratio_low, ratio_high (over the baseline, above 1 is faster; what A/A shows is in the ends).
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
from gnnlab.optimize.inference import engines as runtimes
from gnnlab.optimize.inference.async_batching import AsyncBatcher
from gnnlab.optimize.inference.flat_allocator import FlatAllocator
from gnnlab.optimize.inference.network_arrays import NetworkArrays, Topologies
from gnnlab.optimize.inference.options import ORIGINAL, PREDICTOR, SCORES_WITHIN, Option, predictors
from gnnlab.optimize.inference.prediction_cache import PredictionCache
from gnnlab.optimize.inference.predictor import Decision, OriginalPredictor, Predictor, build_graph
from gnnlab.profiling import estimates, memory
from gnnlab.profiling.estimates import LEAST_SAMPLES, Estimate
from gnnlab.profiling.parity import require_equal
from gnnlab.profiling.races import CONTROL, LEAST_ROUNDS
from gnnlab.profiling.timing import Comparison, measure, race
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import State

POOL = 4  # states of a size, in turn
CHUNK = 64  # networks in a pass, where accuracy is counted
ONE_BY_ONE, BATCHED, GATHERED = "original, one by one", "original, batched", "gathered"
NO_CACHE, HIT, MISS = "no cache", "hit", "miss"
ALONE, TOGETHER = "one_state", "predictors"  # the two races of one state at a time
TIMES = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median"}


def pools(sizes: Sequence[int], seed: int = 0) -> dict[int, list[State]]:
    """Four different networks of each size."""
    return {nodes: [edge_allocator.random_state(nodes, seed + place) for place in range(POOL)] for nodes in sizes}


# ---- accuracy --------------------------------------------------------------------------------------------------------


def accuracy(options: Mapping[str, Option], states: Sequence[State]) -> pd.DataFrame:
    """A row for each option that computes scores in its own way: `same` (states,) is 1 where its decision is the
    original's, same_share with its interval same_low, same_high; `regret` (states,) is the ms more than the best node
    costs in the model of the networks, regret_ms its mean; best_share; score_error, the largest difference of a score
    over the largest score.

    Raises:
        ParityError: an exact option gives other scores than the original.
    """
    parts = [NetworkArrays.of(states[at : at + CHUNK]) for at in range(0, len(states), CHUNK)]
    expected, chosen = _decided(options[ORIGINAL], parts)
    rows = []
    for name, option in options.items():
        if option.scores is None:
            continue
        scores, decisions = _decided(option, parts)
        error = require_equal(expected, scores, SCORES_WITHIN if option.exact else np.inf, name)
        same = (np.concatenate(decisions) == np.concatenate(chosen)).astype(float)
        pairs = zip(parts, decisions, strict=True)
        regrets = np.concatenate([edge_allocator.regret(p.x, p.edge_index, d, p.network_of) for p, d in pairs])
        share = estimates.summary(same, "share")
        rows.append(
            {
                "option": name,
                "same": same,
                "same_share": share.value,
                "same_low": share.low,
                "same_high": share.high,
                "regret": regrets,
                "regret_ms": regrets.mean(),
                "best_share": (regrets == 0).mean(),
                "score_error": error,
                "exact": option.exact,
                "n": share.n,
            }
        )
    return pd.DataFrame(rows)


def _decided(option: Option, parts: Sequence[NetworkArrays]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    scores = [option.scores(part) for part in parts]
    return scores, [part.decide(s) for part, s in zip(parts, scores, strict=True)]


# ---- one prediction --------------------------------------------------------------------------------------------------


def latency(options: Mapping[str, Option], pools: Mapping[int, Sequence[State]], *, budget_s: float) -> pd.DataFrame:
    """Every option over the original on one state at a time: two races a size, options alone and predictors.

    Columns: race (one_state|predictors), nodes, parity_error (on these very states, of options that compute exactly or
    leave the model as it is), and those of every race. Raises `ParityError` where an exact option differs.
    """
    rows = []
    for nodes, states in pools.items():
        forms = {name: partial(_each, option.predict, states) for name, option in options.items()}
        baseline = forms.pop(ORIGINAL)
        errors = {n: _error(baseline, forms[n], f"{n}, {nodes} nodes") for n in forms if options[n].exact}
        # the options alone are more, and slower ones
        for study, share in ((ALONE, 0.75), (TOGETHER, 0.25)):
            chosen = {n: form for n, form in forms.items() if n.startswith(PREDICTOR) == (study == TOGETHER)}
            found = _race(baseline, chosen, share * budget_s)
            rows += _rows({"race": study, "nodes": nodes}, ORIGINAL, found, len(states), errors)
    return pd.DataFrame(rows)


def _error(original: Callable[[], Any], form: Callable[[], Any], name: str) -> float:
    """How far the chosen nodes' scores differ; which of two nodes that tie within rounding is chosen is the same."""
    expected, got = (np.array([decision.score for decision in run()]) for run in (original, form))
    return require_equal(expected, got, SCORES_WITHIN, name)


def _each(predict: Callable[[State], Decision], states: Sequence[State]) -> list[Decision]:
    return [predict(state) for state in states]


def _race(
    baseline: Callable[[], Any], forms: Mapping[str, Callable[[], Any]], budget_s: float, least: int = LEAST_ROUNDS
) -> dict[str, Comparison]:
    return race(baseline, forms, control=True, parity=None, budget_s=budget_s, least=least)


def _rows(
    cell: Mapping[str, Any], baseline: str, found: Mapping[str, Comparison], states: int, errors: Mapping[str, float]
) -> list[dict[str, Any]]:
    """A row for the baseline and each form of one cell, A/A among them."""
    base = np.asarray(found[CONTROL].baseline.samples_ms) / states
    times = {name: np.asarray(one.candidate.samples_ms) / states for name, one in found.items()}
    rows = [{**cell, "form": baseline, "samples": base, **TIMES, **_ends(estimates.summary(base))}]
    for name, samples in times.items():
        over = estimates.ratio(base, samples, None if name == CONTROL else times[CONTROL])
        ratio = {"baseline": baseline, "ratio": over.value, "ratio_low": over.low, "ratio_high": over.high}
        row = {**cell, "form": name, "samples": samples, **TIMES, **_ends(estimates.summary(samples)), **ratio}
        rows.append({**row, "parity_error": errors.get(name)})
    return rows


def _ends(found: Estimate) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def anatomy(model_type: str, states: Sequence[State], *, budget_s: float) -> pd.DataFrame:
    """Where the time of one prediction goes: path, form (a part of it, or all), samples, value, low, high (ms), n."""
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
        samples = np.asarray(measure(form, budget_s=budget_s / len(parts)).samples_ms) / len(states)
        runtime = fast.engine.runtime if path == "predictor" else runtimes.TORCH
        row = {"path": path, "form": part, "samples": samples, "runtime": runtime, **TIMES}
        rows.append({**row, **_ends(estimates.summary(samples))})
    return pd.DataFrame(rows)


def cache_costs(model_type: str, states: Sequence[State], *, budget_s: float) -> pd.DataFrame:
    """A prediction without a cache, with one that knows the state, and with one that does not, a race of three."""
    miss = PredictionCache(1, 3600.0)  # states in turn, one place: nothing is ever found
    forms = {
        HIT: Predictor(model_type, "cpu", cache=PredictionCache(1000, 3600.0)),
        MISS: Predictor(model_type, "cpu", cache=miss),
    }
    plain = partial(_each, Predictor(model_type, "cpu").predict, states)
    cached = {name: partial(_each, predictor.predict, states) for name, predictor in forms.items()}
    errors = {name: _error(plain, form, name) for name, form in cached.items()}
    nodes = len(states[0]["nodes"])
    return pd.DataFrame(_rows({"nodes": nodes}, NO_CACHE, _race(plain, cached, budget_s), len(states), errors))


# ---- many at once ----------------------------------------------------------------------------------------------------


def throughput(
    model_type: str,
    options: Mapping[str, Option],
    states: Sequence[State],
    batch_sizes: Sequence[int],
    *,
    engines: Sequence[str],
    budget_s: float,
    least: int = LEAST_ROUNDS,
) -> pd.DataFrame:
    """Batches over the same states one by one through the original path, all in one race a batch size.

    `engines` whose predictors take part, those of them that are among the options and exact; `least` rounds are run.
    Columns: batch, nodes, those of every race, states_per_s with rate_low and rate_high, gain with gain_low and
    gain_high (the ratio of throughputs, that is of the mean times).

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
        errors = {name: _error(one_by_one, form, f"{name}, batch of {size}") for name, form in forms.items()}
        found = _race(one_by_one, forms, budget_s, least)
        rows += _rows({"batch": size, "nodes": nodes_of(asked)}, ONE_BY_ONE, found, size, errors)
    table = pd.DataFrame(rows)
    rates = {"states_per_s": "value", "rate_low": "high", "rate_high": "low"}
    return with_gains(table.assign(**{rate: 1e3 / table[ms] for rate, ms in rates.items()}), "batch")


def with_gains(table: pd.DataFrame, cell: str) -> pd.DataFrame:
    """With gain, gain_low, gain_high: the ratio of the mean times of baseline and form in each cell (a column)."""
    gains = {}
    for _, rows in table.groupby(cell, sort=False):
        samples = rows.set_index("form")["samples"]
        for place, row in rows.iterrows():
            if isinstance(row["baseline"], str):
                noise = None if row["form"] == CONTROL else samples[CONTROL]
                found = estimates.ratio(samples[row["baseline"]], row["samples"], noise, of="mean")
                gains[place] = {"gain": found.value, "gain_low": found.low, "gain_high": found.high}
    return table.join(pd.DataFrame.from_dict(gains, orient="index"))


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
    so that a notebook's loop does not matter. Columns: callers, those of every race, gain, gain_low, gain_high.
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
        errors = {name: _error(one_by_one, form, name) for name, form in forms.items()}
        found = _race(one_by_one, forms, budget_s, LEAST_SAMPLES)
    table = pd.DataFrame(_rows({"callers": len(states)}, ONE_BY_ONE, found, len(states), errors))
    return with_gains(table, "callers")


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
