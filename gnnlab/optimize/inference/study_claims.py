"""The rows of the ledger that notebook 08 records, each with a reason computed from the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gnnlab.optimize.inference.options import CACHED, GPU, GUIDE, PREDICTOR, PRUNED
from gnnlab.optimize.inference.study import BATCHED, GATHERED
from gnnlab.optimize.inference.study_reading import best_batch, best_exact
from gnnlab.optimize.study import CONTROL, geometric_mean, rounds_of
from gnnlab.optimize.study_claims import distance, measured

Row = dict[str, Any]
NOTES = {GUIDE: "validation, no_grad, a cache that does not know the state, and tracking together"}
ALONE = {
    "infer.optimized_cpu": GUIDE,
    "infer.cached": CACHED,
    "infer.quantized": "int8, dynamic",
    "infer.no_grad": "no_grad",
    "infer.onnx": "onnx",
    "infer.torchscript": "torchscript",
    "infer.pruned": PRUNED,
    "infer.graph_cache": "graph cache",
}


def rows(
    raced: pd.DataFrame,
    table: pd.DataFrame,
    accurate: pd.DataFrame,
    batched: pd.DataFrame,
    mixed: pd.DataFrame,
    gathered: pd.DataFrame,
    missing: Mapping[str, str],
    catalogue: Mapping[str, Any],
) -> list[Row]:
    """Every row of notebook 08: the guide's claims, then the two goals.

    Arguments are the tables of the study; `batched` is of networks as small as the guide's, `mixed` of all sizes.
    """
    alone = [_alone(id, option, raced, table, missing) for id, option in ALONE.items()]
    return [
        *alone,
        _gpu(raced, table, missing),
        {"id": "infer.redis", "measured": None, "why": "needs a Redis server; the cache here lives in the process"},
        _batched(batched),
        _gathered(gathered),
        _single_goal(raced, table, accurate, catalogue),
        _batch_goal(batched, mixed, catalogue),
    ]


def _alone(id: str, option: str, raced: pd.DataFrame, table: pd.DataFrame, missing: Mapping[str, str]) -> Row:
    found = table[table["option"] == option]
    if found.empty:
        return {
            "id": id,
            "measured": None,
            "why": f"needs {option} to work here: {missing.get(option, 'it is missing')}",
        }
    row = found.iloc[0]
    gain = geometric_mean(rounds_of(raced, option))
    why = f"{NOTES.get(option, 'alone')} in the original path, {_by_size(raced, option)}"
    why += f"; same decisions {row['same_share']:.1%}"
    why += f", regret {row['regret_ms']:.2f} ms; {row['verdict']}"
    ours = table[table["option"] == PREDICTOR + option]
    if not ours.empty:
        why += f"; in the predictor {ours.iloc[0]['ratio']:.2f} over the original"
    if floor := rounds_of(raced, CONTROL):
        same = geometric_mean(floor)
        why += f"; the A/A control shows {same.value:.3f} ({same.ci[0]:.3f} to {same.ci[1]:.3f})"
    return measured(id, gain, why, figure="options", precision="int8" if "int8" in option else "float32")


def _gpu(raced: pd.DataFrame, table: pd.DataFrame, missing: Mapping[str, str]) -> Row:
    if GPU in set(table["option"]):
        return _alone("infer.gpu", GPU, raced, table, missing)
    return {"id": "infer.gpu", "measured": None, "why": "needs a CUDA device; params/gpu measures it there"}


def _batched(batched: pd.DataFrame) -> Row:
    several = batched[batched["batch"] > 1]
    gain = geometric_mean(rounds_of(several, BATCHED), of="mean")
    each = ", ".join(f"{r.batch:,}: {r.ratio:.2f}" for r in several[several["form"] == BATCHED].itertuples())
    return measured("infer.batch", gain, f"the original path, one PyG pass over one by one; {each}", figure="batches")


def _gathered(gathered: pd.DataFrame) -> Row:
    gain = geometric_mean(rounds_of(gathered, GATHERED), of="mean")
    us, callers = gathered.set_index("form")["ms"] * 1e3, int(gathered["callers"].iloc[0])
    why = (
        f"{callers:,} callers at once in the original path, gathered over one after the other; in the predictor "
        f"{us[PREDICTOR + GATHERED]:.0f} µs a state against {us[PREDICTOR + 'one by one']:.0f}"
    )
    return measured("infer.async", gain, why)


def _single_goal(raced: pd.DataFrame, table: pd.DataFrame, accurate: pd.DataFrame, catalogue: Mapping[str, Any]) -> Row:
    """On the smallest networks, which are as small as those of the guide's own benchmark."""
    nodes, best = raced["nodes"].min(), best_exact(table, accurate)
    gain = geometric_mean(rounds_of(raced[raced["nodes"] == nodes], best))
    share = table.loc[table["option"] == best, "same_share"].iloc[0]
    why = (
        f"{distance(gain, catalogue['goal.infer_single'].claimed[0])} on networks of {nodes} nodes with links seen "
        f"before; {best}, {_by_size(raced, best)}; same decisions {share:.2%}"
    )
    return measured("goal.infer_single", gain, why, figure="options")


def _batch_goal(batched: pd.DataFrame, mixed: pd.DataFrame, catalogue: Mapping[str, Any]) -> Row:
    best = best_batch(batched)
    gain = geometric_mean(rounds_of(batched[batched["batch"] == best["batch"]], best["form"]), of="mean")
    why = (
        f"{distance(gain, catalogue['goal.infer_batch'].claimed[0])}; {best['form']}, {best['batch']:,} states of "
        f"{best['nodes']} nodes, {best['states_per_s']:,.0f} states/s"
    )
    for row in mixed[mixed["form"] == best["form"]].tail(1).to_dict("records"):
        why += f"; of {row['nodes']} nodes {row['ratio']:.1f} ({row['ci_low']:.1f} to {row['ci_high']:.1f})"
    return measured("goal.infer_batch", gain, why, figure="batches")


def _by_size(raced: pd.DataFrame, option: str) -> str:
    found = raced[raced["form"] == option]
    return "by nodes " + ", ".join(f"{r.nodes}: {r.ratio:.2f}" for r in found.itertuples())
