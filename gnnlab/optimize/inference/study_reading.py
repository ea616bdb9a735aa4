"""What the tables of `inference_study` say: the guide's table, figures' frames, titles and sentences, all computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.optimize.inference.options import (
    CACHED,
    CACHED_ARRAYS,
    CUDA,
    GUIDE,
    GUIDE_CUDA,
    GUIDE_KNOWN,
    INT8,
    ONNX,
    ORIGINAL,
    PREDICTOR,
    PREDICTOR_CACHED,
    PREDICTOR_CUDA,
    PRUNED,
    REWRITTEN,
    SMALLER,
    TRACED,
    Option,
)
from gnnlab.optimize.inference.study import BATCHED, GATHERED, HIT, MISS, NO_CACHE
from gnnlab.optimize.inference.study_rows import beyond_bound, decides_as
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate
from gnnlab.profiling.races import CONTROL

# the guide's table of expected gains: its name, latency cut, throughput; then our option, or what it is measured by
GUIDES_TABLE = (
    ("GPU Acceleration", "90 %", "10-100x", CUDA),
    ("LRU Caching", "80 % (cached)", "5x", CACHED),
    ("ONNX Export", "60 %", "2-5x", ONNX),
    ("Model Quantization", "50 %", "2-4x", INT8),
    ("Batch Processing", "30 %", "3-10x", BATCHED),
    ("Redis Caching", "70 % (cached)", "5-20x", None),
    ("TorchScript", "40 %", "1.5-3x", TRACED),
    ("Async API", "20 %", "2-5x", GATHERED),
    ("torch.no_grad()", "30-50 %", "", "no_grad"),
    ("Model Pruning", "", "", PRUNED),
    ("Graph Construction Caching", "", "", "graph cache"),
    ("Optimized script (CPU)", "", "3.3x", GUIDE),
    ("Optimized script (GPU)", "", "25x", GUIDE_CUDA),
    ("Optimized script (cached)", "", "100x", GUIDE_KNOWN),
)


KEPT = ("same_share", "same_low", "same_high", "regret_ms", "score_error", "exact")  # of what `accuracy` says
CACHES = (CACHED, CACHED_ARRAYS, GUIDE_KNOWN)  # answers that were computed before
# forms of the same change of decisions; the faster one of each is what there is to choose
CHANGING = (
    (SMALLER, PREDICTOR + SMALLER),
    ("bf16", REWRITTEN + "openvino, bf16", PREDICTOR + "openvino, bf16"),
    (INT8,),
    (REWRITTEN + "openvino, int8", PREDICTOR + "openvino, int8"),
    (PRUNED,),
)


def gains(table: pd.DataFrame, ratio: str = "ratio") -> dict[str, Estimate]:
    """Each form over the baseline, the geometric mean over the cells; `ratio`: the column, `gain` of throughputs."""
    found = {}
    for form, rows in table.dropna(subset=[ratio]).groupby("form", sort=False):
        columns = rows[[ratio, f"{ratio}_low", f"{ratio}_high", "n"]].itertuples(index=False)
        found[form] = estimates.geometric_mean([Estimate(*cell) for cell in columns])
    return found


def summary(raced: pd.DataFrame, accurate: pd.DataFrame, options: Mapping[str, Option], bound: float) -> pd.DataFrame:
    """Speed and accuracy side by side: option, ratio, ci_low, ci_high, same_share, same_low, same_high, regret_ms,
    score_error, exact, decides_as, verdict.

    An option without scores of its own has the decisions of the one that computes for it. `bound` is the share of
    decisions that an option may change without that being part of its verdict.
    """
    found, decided, rows = gains(raced), accurate.set_index("option"), []
    for name, option in options.items():
        if (over := found.get(name)) is None:
            continue
        row = decided.loc[decides_as(name, option)]
        ends = {"ratio": over.value, "ci_low": over.low, "ci_high": over.high, "n": over.n}
        kept = {"decides_as": row.name, **{column: row[column] for column in KEPT}}
        rows.append({"option": name, **ends, **kept, "verdict": verdict(over, row, bound)})
    return pd.DataFrame(rows).sort_values("ratio", ascending=False, ignore_index=True)


def verdict(over: Estimate, accurate: Mapping[str, Any], bound: float) -> str:
    """Faster, slower or neither, and whether its decisions change by more than the bound."""
    speed = "faster" if over.low > 1 else "slower" if over.high < 1 else "no difference seen"
    changed = beyond_bound(accurate, bound)
    return f"{speed}; {changed}" if changed else speed


def for_readers(table: pd.DataFrame) -> pd.DataFrame:
    """`summary` as text."""
    return pd.DataFrame(
        {
            "option": r["option"],
            "over the original": f"{r['ratio']:.2f} ({r['ci_low']:.2f} to {r['ci_high']:.2f})",
            "same decisions": _same(r),
            "regret (ms)": f"{r['regret_ms']:.2f}",
            "score error": f"{r['score_error']:.0e}",
            "verdict": r["verdict"],
        }
        for r in table.to_dict("records")
    )


def _same(row: Mapping[str, Any]) -> str:
    """The share of equal decisions; none was counted where it is the very model that decides."""
    if row["decides_as"] == ORIGINAL:
        return "the same model"
    return f"{row['same_share']:.1%} ({row['same_low']:.1%} to {row['same_high']:.1%})"


def guides_table(
    table: pd.DataFrame, batched: pd.DataFrame, gathered: pd.DataFrame, missing: Mapping[str, str]
) -> pd.DataFrame:
    """The guide's table of expected gains, and beside it what was measured."""
    known = {row["option"]: row for row in table.to_dict("records")}
    known |= {BATCHED: _batch_row(batched), GATHERED: _gain_row(gathered, GATHERED)}
    rows = []
    for name, cut, throughput, option in GUIDES_TABLE:
        row = known.get(option)
        measured = {
            "change of latency": "not measured here",
            "calls": "",
            "same decisions": "",
            "verdict": _lacks(option, missing),
        }
        if row is not None:
            ratio, low, high = (row[c] for c in ("ratio", "ci_low", "ci_high"))
            alone = option not in (BATCHED, GATHERED)
            measured = {
                "change of latency": f"{1 / ratio - 1:+.0%} ({1 / high - 1:+.0%} to {1 / low - 1:+.0%})"
                if alone
                else "",
                "calls": f"{ratio:.2f}x ({low:.2f} to {high:.2f})",
                "same decisions": _same(row),
                "verdict": row["verdict"],
            }
        rows.append({"guide's option": name, "guide: latency cut by": cut, "guide: calls": throughput, **measured})
    return pd.DataFrame(rows)


def _lacks(option: str | None, missing: Mapping[str, str]) -> str:
    if option is None:
        return "untestable here: needs a Redis server"
    if option in (CUDA, GUIDE_CUDA):
        return "untestable here: needs a CUDA device; params/gpu measures it there"
    return f"untestable here: {missing.get(option, 'not among the options of this run')}"


def _batch_row(batched: pd.DataFrame) -> dict[str, Any]:
    return _gain_row(batched[batched["batch"] > 1], BATCHED)


def _gain_row(table: pd.DataFrame, form: str) -> dict[str, Any]:
    over = gains(table, "gain")[form]
    ends = {"ratio": over.value, "ci_low": over.low, "ci_high": over.high, "n": over.n}
    same = {"decides_as": ORIGINAL, "exact": True, "same_share": 1.0, "same_low": 1.0, "same_high": 1.0}
    return {**ends, **same, "verdict": verdict(over, same, 0.0)}


# ---- figures ---------------------------------------------------------------------------------------------------------


def best_exact(table: pd.DataFrame) -> str:
    """The fastest predictor with the decisions of the original, that computes each of them on a CPU."""
    ours = _exact_predictors(table, leaving_out=[PREDICTOR + "torchscript"])  # deprecated, measured for the record
    return str(ours.loc[ours["ratio"].idxmax(), "option"])


def _exact_predictors(table: pd.DataFrame, leaving_out: Sequence[str] = ()) -> pd.DataFrame:
    left_out = {PREDICTOR_CACHED, PREDICTOR_CUDA, *leaving_out}
    ours = table["exact"] & table["option"].str.startswith(PREDICTOR) & ~table["option"].isin(left_out)
    return table[ours]


def trade(table: pd.DataFrame) -> pd.DataFrame:
    """What to choose among: the three fastest that keep the decisions, and of each way to change them its faster form.

    Adds changed, changed_low, changed_high (%) and front: no other here is both faster and more faithful.
    """
    ways = [table[table["option"].isin(names)] for names in CHANGING]
    parts = [(_exact_predictors(table), 3), *((way, 1) for way in ways)]
    points = pd.concat([part.nlargest(count, "ratio") for part, count in parts])
    changed = {"changed": 1 - points["same_share"], "changed_low": 1 - points["same_high"]}
    changed |= {"changed_high": 1 - points["same_low"]}
    points = points.assign(**{name: 100 * share for name, share in changed.items()}).reset_index(drop=True)
    beaten = [
        bool(((points["ratio"] > r["ratio"]) & (points["changed"] <= r["changed"])).any())
        for r in points.to_dict("records")
    ]
    return points.assign(front=[not worse for worse in beaten])


def pareto_title(table: pd.DataFrame) -> str:
    """The fastest with every decision, and what is faster still."""
    best = best_exact(table)
    ratio = table.loc[table["option"] == best, "ratio"].iloc[0]
    most_sure = table.loc[table["option"] == best, "ci_high"].iloc[0]
    text = f"“{best}” is {ratio:.1f} times as fast and keeps the decisions"
    points = trade(table)
    faster = points[(points["changed"] > 0) & (points["ci_low"] > most_sure)]
    if faster.empty:
        return f"{text}; nothing that changes some is seen to be faster"
    most = faster.loc[faster["ratio"].idxmax()]
    return f"{text}; “{most['option']}” is faster and changes {most['changed']:.1f} %"


def best_batch(batched: pd.DataFrame) -> pd.Series:
    """The fastest predictor on the largest batch."""
    rows = batched[(batched["batch"] == batched["batch"].max()) & batched["form"].str.startswith(PREDICTOR)]
    return rows.loc[rows["gain"].idxmax()]


def options_title(table: pd.DataFrame) -> str:
    """What the guide's script and its options bring in its own path."""
    ratio = table.set_index("option")["ratio"]
    alone = ratio[~ratio.index.str.startswith((PREDICTOR, REWRITTEN, *CACHES))]
    best = alone.idxmax()
    script = f"the guide's script is {ratio[GUIDE]:.2f} times as fast as the original"
    return f"One decision: {script}, of its options that compute “{best}” is fastest, {alone[best]:.2f} times"


def predictors_title(table: pd.DataFrame) -> str:
    """What our predictor brings."""
    best = best_exact(table)
    row = table.set_index("option").loc[best]
    return f"One decision: “{best}” is {row['ratio']:.1f} times as fast as the original, with its decisions"


def throughput_title(batched: pd.DataFrame) -> str:
    """What is fastest on the largest batch, and by how much."""
    best = best_batch(batched)
    return f"{best['form']}: {best['batch']:,} states {best['gain']:.1f} times as fast as one by one in the original"


# ---- sentences -------------------------------------------------------------------------------------------------------


def anatomy(parts: pd.DataFrame) -> str:
    """What share of a prediction is not the model."""
    sentences = []
    for path, rows in parts.groupby("path", sort=False):
        ms = rows.set_index("form")["value"]
        whole, parts = ms["all"], ms.drop("all")
        shares = [f"{part} {taken / whole:.0%}" for part, taken in parts.items()]
        rest = 1 - parts.sum() / whole
        shares.append(
            f"{abs(rest):.0%} {'in none of these parts' if rest >= 0 else 'more than the whole'}, noise included"
        )
        sentences.append(f"- {path}: {1e3 * whole:,.0f} µs a prediction; {'; '.join(shares)}")
    return "\n".join(sentences)


def breaks_even(costs: pd.DataFrame) -> float:
    """The share of known states from which on a cache pays; NaN where a hit is no faster than computing."""
    ms = costs.set_index("form")["value"]
    plain, hit, miss = ms[NO_CACHE], ms[HIT], ms[MISS]
    if hit >= plain:
        return float("nan")
    return float(np.clip((miss - plain) / (miss - hit), 0, 1)) if miss > hit else 0.0


def cache(costs: pd.DataFrame, nodes: int) -> str:
    """What a hit saves, what a miss costs, and from what share of hits on it pays."""
    us, share = costs.set_index("form")["value"] * 1e3, breaks_even(costs)
    text = f"At {nodes} nodes a prediction takes {us[NO_CACHE]:.0f} µs, a hit {us[HIT]:.0f}, a miss {us[MISS]:.0f}: "
    if np.isnan(share):
        return text + "a cache pays at no share of known states."
    return text + f"a cache pays when more than {share:.0%} of the states are known."


def engine_costs(costs: pd.DataFrame) -> str:
    """What building each engine costs, and its first call."""
    built = costs[costs["build_s"] > 0].sort_values("build_s")
    parts = [f"{r.engine} {r.build_s:.1f} s" for r in built.itertuples()]
    slowest = costs.loc[costs["first_call_ms"].idxmax()]
    text = "; ".join(parts) or "none in this run, all were in the store"
    return f"Built here: {text}. The longest first call: {slowest['engine']}, {slowest['first_call_ms']:.1f} ms."


def memory(used: pd.DataFrame) -> str:
    """What the gradients' share of the memory is."""
    most = used[used["states"] == used["states"].max()].set_index("path")["rise_mib"]
    paths = " and ".join(f"{path} {rise:.2f} MiB" for path, rise in most.items())
    return f"A pass over {used['states'].max():,} states holds beside the model: {paths}, as torch accounts for it."


def what_when(table: pd.DataFrame, batched: pd.DataFrame, costs: pd.DataFrame, nodes: int) -> str:
    """Advice for this machine, each line from a number of this run."""
    best, share = best_exact(table), breaks_even(costs)
    rows = table.set_index("option")
    lines = [f"- one state at a time: {best}, {gain_of(rows.loc[best])} over the original, with its decisions"]
    lossy = table[~table["exact"].astype(bool) & (table["ci_low"] > rows.loc[best, "ci_high"])]
    within = [r for r in lossy.to_dict("records") if "change" not in r["verdict"]]
    if within:
        lines.append(f"- faster still within the bound on decisions: {within[0]['option']}, {gain_of(within[0])}")
    else:
        lines.append("- no option that changes decisions is seen to be faster and stays within the bound: leave them")
    if np.isnan(share):
        lines.append(f"- an answer cache: not on this machine, a hit is no faster than computing ({nodes} nodes)")
    else:
        lines.append(f"- an answer cache: when more than {share:.0%} of the states come again ({nodes} nodes)")
    rate = batched[batched["form"].str.startswith(PREDICTOR)].sort_values("states_per_s").iloc[-1]
    lines.append(
        f"- many states: {rate['form']} in batches of {rate['batch']:,}, {rate['states_per_s']:,.0f} states a second"
    )
    none = [r["option"] for r in table.to_dict("records") if r["verdict"].startswith(("no difference", "slower"))]
    if none:
        lines.append(f"- no gain seen: {'; '.join(none)}")
    return "\n".join(lines)


def gain_of(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2f} times as fast ({row['ci_low']:.2f} to {row['ci_high']:.2f})"


def noise(raced: pd.DataFrame) -> str:
    """What the original against itself shows."""
    same = gains(raced)[CONTROL]
    found = f"{same.value:.3f} ({same.low:.3f} to {same.high:.3f})"
    return f"The original against itself (A/A): {found}. What it shows beyond 1 is in the interval of each form."


def others(missing: Mapping[str, str]) -> str:
    """What could not be had here, and why."""
    return "\n".join(f"- {name} is not here: {why}" for name, why in missing.items()) or "Every option runs here."


def batches(batched: pd.DataFrame, mixed: pd.DataFrame) -> str:
    """The fastest on the largest batch, of small networks and of all sizes."""
    parts = []
    for table in (batched, mixed):
        best = best_batch(table)
        parts.append(
            f"- {best['batch']:,} networks of {best['nodes']} nodes: {best['form']}, {throughput_text(best)} "
            f"one by one in the original, {best['states_per_s']:,.0f} states a second"
        )
    return "\n".join(parts)


def throughput_text(row: Mapping[str, Any]) -> str:
    return f"{row['gain']:.2f} times ({row['gain_low']:.2f} to {row['gain_high']:.2f}) the throughput of"


def gathered(table: pd.DataFrame) -> str:
    """What gathering concurrent requests into batches brings, in the original path and in the predictor."""
    rows = table.set_index("form")
    row, us = rows.loc[GATHERED], rows["value"] * 1e3
    return (
        f"{row['callers']:,.0f} callers at once, gathered into batches: {throughput_text(row)} one after "
        f"the other in the original path; in the predictor {us[PREDICTOR + GATHERED]:.0f} µs a state, one after the "
        f"other {us[PREDICTOR + 'one by one']:.0f}."
    )


def exact_same(accurate: pd.DataFrame) -> str:
    """How the original decides, and that every exact option decides so too."""
    first = accurate.set_index("option").loc[ORIGINAL]
    rows = accurate[accurate["exact"]]
    return (
        f"Over {first['n']:,} networks the original finds the best node in {first['best_share']:.1%} and costs "
        f"{first['regret_ms']:.2f} ms more than the best on average. {len(rows)} options must give its scores, and do "
        f"within {rows['score_error'].max():.0e} of the largest; the least share of equal decisions among them is "
        f"{rows['same_share'].min():.2%}."
    )
