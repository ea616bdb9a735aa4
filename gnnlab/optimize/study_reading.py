"""What the tables of `study` say: figures' frames, titles and sentences. All of it computed from the numbers.

`catalogue` is the claim catalogue: id -> an entry with `claimed` (low, high), either of which may be None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.kernels.swap import SwapReport
from gnnlab.optimize.study import BASELINE, CONTROL, SAME, Conditions, Gain, geometric_mean, rounds_of
from gnnlab.profiling.roofline import Ceilings, size_text

Row = dict[str, Any]  # the arguments of `Session.claim`
RUNGS = {"cached ids": "gat.cached_ids", "expand": "gat.expand", "compile": "gat.compile"}
TOGETHER = "all together"


def must_move_bytes(nodes: int, edges: int, features: int, sources: int) -> int:
    """The least that a weighted neighbour sum in float32 has to move.

    4 (S F + N F + 2 E + N + 1): each of the S rows that an edge names read once, every result written, for each edge an
    int32 index and a weight, and where the edges of each node start. S is at most N; a formula with N in its place
    would credit a form with rows that it never reads.
    """
    return 4 * (sources * features + nodes * features + 2 * edges + nodes + 1)


def roofed(table: pd.DataFrame, ceilings: Ceilings, last_cache_bytes: int | None) -> pd.DataFrame:
    """The races of the neighbour sum against the bandwidth measured at their working set.

    Adds bytes, bound_ms, reached (share of the roofline; may pass 1 where caches keep what a copy would move) with
    reached_low and reached_high, gb_s, leaves_cache (do x and the result together exceed the last cache? None where its
    size is not known).
    """
    sizes = list(zip(table["nodes"], table["edges"], table["features"], table["sources"], strict=True))
    moved = np.array([must_move_bytes(*map(int, size)) for size in sizes])
    held = [must_move_bytes(int(n), int(e), int(f), int(n)) for n, e, f, _ in sizes]
    bound = np.array([b / ceilings.bandwidth_gb_s(b) / 1e6 for b in moved])  # ms
    return table.assign(
        bytes=moved,
        bound_ms=bound,
        reached=bound / table["ms"],
        reached_low=bound / table["ms_high"],
        reached_high=bound / table["ms_low"],
        gb_s=moved / table["ms"] / 1e6,
        leaves_cache=[None if last_cache_bytes is None else bool(b > last_cache_bytes) for b in held],
    )


def beyond_cache(roof: pd.DataFrame, form: str) -> tuple[pd.DataFrame, str]:
    """The rows of a form on the sizes that leave the last cache, or on the largest where none does, and which it is."""
    ours = roof[(roof["form"] == form) & roof["ms"].notna()]
    beyond = ours[ours["leaves_cache"].eq(True)]
    if len(beyond):
        return beyond, f"on {_names(beyond['size'])}, whose data leave the last cache"
    largest = ours[ours["bytes"] == ours["bytes"].max()]
    moved = size_text(float(largest["bytes"].iloc[0]))
    return (
        largest,
        f"no size is known to leave the last cache; on the largest, {_names(largest['size'])} ({moved})",
    )


def ladder_summary(climbed: pd.DataFrame, catalogue: Mapping[str, Any]) -> pd.DataFrame:
    """Each rung over all batch sizes: rung, id, ratio, ci_low, ci_high, n, claimed_low, claimed_high.

    `expand` is judged on batches of more than one row, where there are any: it does nothing else.
    """
    rows = []
    for rung in dict.fromkeys(climbed["rung"]):
        part = climbed[climbed["rung"] == rung]
        if rung == "expand" and (part["batch"] > 1).any():
            part = part[part["batch"] > 1]
        id = "gat.optimized" if rung == TOGETHER else RUNGS.get(rung)
        rows.append(_rung_row(rung, id, geometric_mean(list(part["rounds"])), catalogue))
        if rung == TOGETHER:
            gain = geometric_mean(list(part["rounds"]), of="mean")
            rows.append(_rung_row(f"{rung}, throughput", "gat.throughput", gain, catalogue))
    return pd.DataFrame(rows)


def _rung_row(rung: str, id: str | None, gain: Gain, catalogue: Mapping[str, Any]) -> Row:
    claimed = (catalogue[id].claimed if id in catalogue else None) or (None, None)
    ends = {"claimed_low": _or_nan(claimed[0]), "claimed_high": _or_nan(claimed[1])}
    low, high = gain.ci
    return {"rung": rung, "id": id, "ratio": gain.value, "ci_low": low, "ci_high": high, "n": gain.n, **ends}


def ladder_title(summary: pd.DataFrame) -> str:
    together = summary[summary["rung"] == TOGETHER]
    if together.empty:
        return "The study's optimizations that run here, each over the baseline"
    row = together.iloc[0]
    seen = f"{row['ratio']:.2f} times as fast"
    if row["ci_low"] <= 1 <= row["ci_high"]:
        seen = f"no difference seen ({row['ci_low']:.2f} to {row['ci_high']:.2f})"
    return f"The study's optimizations together: {seen}, claimed were 1.41 to 1.45"


def ladder(summary: pd.DataFrame, failed: Mapping[str, str]) -> str:
    """Which rungs differ from the baseline by more than the noise."""
    rows = summary[summary["rung"] != CONTROL]
    seen = (rows["ci_low"] > 1) | (rows["ci_high"] < 1)
    parts = [
        f"- {r['rung']}: {interval_text(r)}{'' if s else ', no difference seen'}"
        for (_, r), s in zip(rows.iterrows(), seen, strict=True)
    ]
    parts += [f"- {rung} does not compile here: {why}" for rung, why in failed.items()]
    noise = summary[summary["rung"] == CONTROL]
    floor = "" if noise.empty else f"\n\nThe baseline against itself: {interval_text(noise.iloc[0])}."
    return "\n".join(parts) + floor


def compile_costs(costs: pd.DataFrame) -> str:
    """What compiling cost, and after how many calls it has paid."""
    if costs.empty:
        return "Nothing was compiled."
    parts = []
    for row in costs.to_dict("records"):
        paid = "no saving a call was seen at every batch size, so nothing says that it pays"
        if np.isfinite(row["paid_after"]):
            paid = f"it has paid after {row['paid_after']:,.0f} calls"
        hits = row["cache_hits"]
        cached = f", {hits} of them from the cache on disk, so a first run takes longer" * bool(hits)
        shared = " (beyond what the rung before it compiled)" * bool(row["shared"])
        breaks = f"{row['graphs']} graphs{cached}, {row['graph_breaks']} graph break{'s' * (row['graph_breaks'] != 1)}"
        parts.append(f"- {row['rung']}: {row['seconds']:.1f} s{shared}, {breaks}; {paid}")
    return "\n".join(parts)


def best_computed(table: pd.DataFrame, hoisted: str = "hoisted") -> str:
    """The fastest form of the encoder that computes at every call."""
    forms = table[~table["form"].isin([BASELINE, CONTROL, SAME, hoisted]) & table["ratio"].notna()]
    return str(forms.loc[forms["ratio"].idxmax(), "form"])


def fastest(table: pd.DataFrame, what: str) -> str:
    """A title: what form is fastest over all sizes, and by how much."""
    names = [f for f in dict.fromkeys(table["form"]) if f not in (BASELINE, CONTROL, SAME) and rounds_of(table, f)]
    gains = {name: geometric_mean(rounds_of(table, name)) for name in names}
    name = max(gains, key=lambda n: gains[n].value)
    over = f"over {gains[name].sizes} sizes" if gains[name].sizes > 1 else "here"
    return f"{what}: {name} is {gains[name].value:.3g} times as fast {over}"


def forms(table: pd.DataFrame) -> str:
    """Each form over all its sizes with its largest error, and those that do not run here."""
    parts = []
    for name in dict.fromkeys(table["form"]):
        part = table[table["form"] == name]
        if name == BASELINE:
            continue
        if not rounds_of(table, name):
            parts.append(f"- {name} {part['notes'].iloc[0]}")
            continue
        gain, error = geometric_mean(rounds_of(table, name)), part["parity_error"].max()
        accuracy = "" if pd.isna(error) else f", largest relative error {error:.1e}"
        parts.append(f"- {name}: {gain_text(gain)}{accuracy}")
    return "\n".join(parts)


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """The rows to draw: forms that ran, without the baseline against itself."""
    return table[~table["form"].isin([BASELINE, CONTROL]) & table["ratio"].notna()]


def crossover_title(table: pd.DataFrame) -> str:
    """Up to which size the dense form is faster than bags, as far as the intervals tell."""
    times = table.pivot(index="nodes", columns="form", values=["ms_low", "ms_high"]).sort_index()
    dense = list(times.index[times["ms_high", "dense"] < times["ms_low", "bag"]])
    bags = list(times.index[times["ms_high", "bag"] < times["ms_low", "dense"]])
    if not dense:
        return f"Bags are faster from {min(bags)} nodes on" if bags else "Dense and bags take the same time"
    if not bags:
        return f"The dense form is faster up to {max(dense)} nodes, the largest of these"
    return f"The dense form is faster up to {max(dense)} nodes, bags from {min(bags)} on"


def roof_table(roof: pd.DataFrame) -> pd.DataFrame:
    """Share of the roofline by size and form, with what must move and the form's time that this makes at best."""
    kept = roof[roof["form"] != CONTROL]
    wide = kept.pivot(index="size", columns="form", values="reached")[list(dict.fromkeys(kept["form"]))]
    first = kept.drop_duplicates("size").set_index("size")
    wide.insert(0, "must move (MB)", first["bytes"] / 1e6)
    wide.insert(1, "at best (ms)", first["bound_ms"])
    return wide.loc[list(first.index)].round(3)


def conditions_line(installed: Conditions, ours: Conditions, precision: str) -> str:
    """Under what each side runs."""
    line = f"PyG runs as it is installed ({installed}), the fast forms under: {ours}"
    if precision == "auto":
        line += "; products are relaxed for them, size by size, where that is faster and still float32-exact"
    return f"{line}."


def conditions_table(table: pd.DataFrame) -> pd.DataFrame:
    """For a reader: the fast form over PyG as installed and over PyG under the same conditions, with its accuracy."""
    rows = table.to_dict("records")
    return pd.DataFrame(
        {
            "workload": r["workload"],
            "conditions": r["conditions"],
            "over PyG as installed": f"{r['ratio']:.2f} ({r['ci_low']:.2f} to {r['ci_high']:.2f})",
            "over PyG, same conditions": f"{r['same_ratio']:.2f} ({r['same_low']:.2f} to {r['same_high']:.2f})",
            "relative error": f"{r['parity_error']:.1e}",
        }
        for r in rows
    )


def conditions(table: pd.DataFrame) -> str:
    """What the conditions do to the baseline, and to the gain of the fast form over it."""
    parts = []
    for workload, part in table.groupby("workload", sort=False):
        best = part.loc[part["baseline_ratio"].idxmax()]
        worst = part["parity_error"].max()
        low, high = part["same_ratio"].min(), part["same_ratio"].max()
        parts.append(
            f"- {workload}: PyG alone is fastest with {best['conditions']} ({best['baseline_ratio']:.2f} times as "
            f"fast as installed); under equal conditions ours is {low:.2f} to {high:.2f} times as fast, largest "
            f"relative error {worst:.1e}"
        )
    return "\n".join(parts)


def goals_twice(rows: Sequence[tuple[str, pd.DataFrame, str]], catalogue: Mapping[str, Any]) -> pd.DataFrame:
    """Each goal (id, table, form) over PyG as installed and over PyG under the same conditions as ours."""
    found = []
    for id, table, form in rows:
        if rounds := rounds_of(table, form):
            installed, same = geometric_mean(rounds), geometric_mean(rounds_of(table, form, same=True))
            found.append(
                {
                    "goal": id,
                    "form": form,
                    "at least": catalogue[id].claimed[0],
                    "over PyG as installed": gain_text(installed),
                    "over PyG, same conditions": gain_text(same),
                    "ours under": under(table, form),
                    "sizes": installed.sizes,
                }
            )
    return pd.DataFrame(found)


def under(table: pd.DataFrame, form: str) -> str:
    """The conditions of a form over its sizes: "2 threads, medium", or how many sizes had which."""
    counts = table.loc[(table["form"] == form) & table["ratio"].notna(), "conditions"].value_counts()
    if len(counts) == 1:
        return str(counts.index[0])
    return "; ".join(f"{text} at {count} of {counts.sum()} sizes" for text, count in counts.items())


def swap_rows(report: SwapReport) -> pd.DataFrame:
    """Each PyG layer of a model with what became of it, then the whole model with how far its outputs differ."""
    rows = [{"layer": f"{path or 'the model'} ({kind})", "outcome": "replaced"} for path, kind in report.replaced]
    rows += [{"layer": f"{path or 'the model'} ({kind})", "outcome": f"kept, {why}"} for path, kind, why in report.kept]
    error = f"same outputs, largest relative error {report.parity_error:.1e}"
    return pd.DataFrame([*rows, {"layer": "the whole model", "outcome": error}])


def bf16_note(flags: Sequence[str], device: str = "cpu") -> str:
    """Whether this processor multiplies in bf16, for the row of the ledger."""
    if device != "cpu" or any("bf16" in flag for flag in flags):
        return ""
    return "this processor has no instructions for bf16 (AVX512_BF16, AMX), it is emulated"


def gain_text(gain: Gain) -> str:
    return f"{gain.value:.3g} times as fast ({gain.ci[0]:.3g} to {gain.ci[1]:.3g})"


def interval_text(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f})"


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _names(sizes: pd.Series) -> str:
    return ", ".join(map(str, sizes))
