"""What plans say: pictures' frames, titles, tables and sentences, all of them computed from the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling.intervals import median_interval
from gnnlab.stages.plans.bench import Held
from gnnlab.stages.plans.planning import Planner, Ranking
from gnnlab.stages.plans.plans import Plan
from gnnlab.stages.plans.run import Done
from gnnlab.stages.plans.store import Choice, Compiled

CHOSEN, ONE_UNIT = "chosen", "best of one unit"
MARKED = (CHOSEN, ONE_UNIT)
MOST_BARS = 16  # plans in one figure


def tiles(ranking: Ranking) -> pd.DataFrame:
    """Which unit runs which stages in each plan, best plan first: place, first, last, unit, part, parts."""
    rows = []
    for place, plan in enumerate(_ordered(ranking)):
        for block in plan.blocks:
            for part, unit in enumerate(block.units):
                at = {"place": place, "first": block.first, "last": block.last}
                rows.append({**at, "unit": unit, "part": part, "parts": len(block.units)})
    return pd.DataFrame(rows)


def times(ranking: Ranking) -> pd.DataFrame:
    """place, ms, ci_low, ci_high of each plan, and a label for the chosen one and the best of one unit."""
    table = ranking.table()
    named = {str(ranking.one_unit): ONE_UNIT, str(ranking.chosen): CHOSEN}
    return table.assign(place=range(len(table)), label=[named.get(plan, "") for plan in table["plan"]])


def short(words: str) -> str:
    """A plan's words for a table: without what all plans of a CPU share."""
    return words.removeprefix("stages ").replace(":CPU", "")


def _ordered(ranking: Ranking) -> list[Plan]:
    by_name = {str(plan): plan for plan in ranking.plans}
    return [by_name[name] for name in ranking.table()["plan"]]


def space_title(ranking: Ranking) -> str:
    """How far the plans lie apart."""
    least, most = float(ranking.ms.min()), float(ranking.ms.max())
    alone = float(ranking.ms[ranking.place(ranking.one_unit)])
    faster = int((ranking.ms < alone).sum())
    return (
        f"Of {len(ranking.plans)} plans, {faster} are expected to be faster than the best single unit; the slowest "
        f"takes {most / least:.3g} times as long as the fastest"
    )


def chosen(ranking: Ranking) -> str:
    """The chosen plan and why, against the fastest and the best one-unit plan."""
    table = ranking.table().set_index("plan")
    row, alone = table.loc[str(ranking.chosen)], table.loc[str(ranking.one_unit)]
    parts = [f"**Chosen:** {row['words']}. {_expected(row)}"]
    if ranking.chosen != ranking.fastest:
        fast = table.loc[str(ranking.fastest)]
        parts.append(
            f"The least expected time is that of {fast['words']}, {fast['ms']:.3g} ms, but in one of twenty draws it "
            f"takes {fast['far_regret']:.0%} longer than the best plan or more, the chosen one {row['far_regret']:.0%}."
        )
    if ranking.chosen == ranking.one_unit:
        parts.append("No plan of several units is expected to be worth it.")
    else:
        parts.append(
            f"The best plan of one unit is {alone['words']}, {alone['ms']:.3g} ms: {alone['ms'] / row['ms']:.3g} times "
            "as long."
        )
    return " ".join(parts)


def _expected(row: pd.Series) -> str:
    return (
        f"Expected {row['ms']:.3g} ms a graph ({row['ci_low']:.3g} to {row['ci_high']:.3g}), the best plan in "
        f"{row['probability']:.0%} of the draws; times {row['origin']}."
    )


def top_table(ranking: Ranking, count: int = 6) -> pd.DataFrame:
    """The best plans for a reader, the best one-unit plan among them."""
    table = ranking.table(ranking.top(count))
    return pd.DataFrame(
        {
            "plan": table["words"].map(short),
            "expected ms (90 %)": [_interval(r, "ms", "ci_low", "ci_high") for r in table.to_dict("records")],
            "best with probability": table["probability"].map("{:.0%}".format),
            "expected regret": table["regret"].map("{:.0%}".format),
            "regret, 1 draw in 20": table["far_regret"].map("{:.0%}".format),
            "times": table["origin"],
            "": _marks(table),
        }
    )


def flow_table(planner: Planner, ranking: Ranking, plans: Sequence[Plan], graphs: int = 32) -> pd.DataFrame:
    """A stream through each plan, simulated: latency of a graph in it, graphs per second, idle units, and how
    much longer their work takes than alone, sharing cores and memory.
    """
    rows = []
    for plan in plans:
        trace = planner.simulate(ranking.steps[ranking.place(plan)], graphs=graphs)
        rows.append(
            {
                "plan": short(plan.words()),
                "latency ms, with its wait": f"{trace.latency_ms:.3g}",
                "graphs/s": f"{1e3 / trace.period_ms:.3g}",
                "idle": ", ".join(f"{unit} {share:.0%}" for unit, share in trace.idle.items()),
                "takes longer than alone": ", ".join(
                    f"{unit} {share:+.0%}" for unit, share in trace.contention.items()
                ),
            }
        )
    return pd.DataFrame(rows)


def contention(held: Mapping[str, Held]) -> str:
    """How much units slow each other down."""
    if not held:
        return "Fewer than two units of the CPU run the whole layer, so nothing can slow them down."
    parts = []
    for size, found in held.items():
        low, high = found.ci
        effect = "no difference seen" if low <= 1 <= high else f"work takes {found.ratio:.3g} times as long"
        parts.append(
            f"- {size}: {effect} while another core works too ({low:.3g} to {high:.3g}, "
            f"{len(found.ratios)} rounds, {' beside '.join(found.pair)}); plans are costed with {found.slowdown:.3g}"
        )
    return "\n".join(parts)


def gaps(gaps_ms: Sequence[float]) -> str:
    """What handing on takes beyond the copy."""
    if not gaps_ms:
        return "The chosen plans have one block, so nothing is handed on."
    low, high = median_interval(gaps_ms)
    return (
        f"From the end of a block to the start of the next on a unit that waits, {np.median(gaps_ms):.3g} ms pass "
        f"({low:.3g} to {high:.3g}, n = {len(gaps_ms)}); the copy itself is in the block's time."
    )


def gantt_title(chart: pd.DataFrame) -> str:
    """How near the simulated stream comes to the executed one."""
    ends = chart.groupby("panel")["end_ms"].max()
    graphs = chart["graph"].max() + 1
    off = ends["predicted"] / ends["executed"] - 1
    return (
        f"{graphs} graphs through the chosen plan: executed in {ends['executed']:.3g} ms, predicted "
        f"{ends['predicted']:.3g} ms ({off:+.0%})"
    )


def gantt(chart: pd.DataFrame) -> str:
    """How long units were idle, predicted and executed."""
    parts = []
    for (panel, unit), part in chart.groupby(["panel", "unit"], sort=False):
        whole = chart.loc[chart["panel"] == panel, "end_ms"].max()
        busy = (part["end_ms"] - part["start_ms"]).sum()
        parts.append(f"- {unit}, {panel}: idle {max(0.0, 1 - busy / whole):.0%} of the stream")
    return "\n".join(parts)


def raced_table(raced: pd.DataFrame) -> pd.DataFrame:
    """Predicted and executed, for a reader."""
    rows = raced.to_dict("records")
    return pd.DataFrame(
        {
            "size": raced["size"],
            "plan": raced["words"].map(short),
            "predicted ms (90 %)": [_interval(r, "predicted_ms", "predicted_low", "predicted_high") for r in rows],
            "executed ms (95 %)": [_interval(r, "ms", "ms_low", "ms_high") for r in rows],
            "prediction off by": raced["error"].map("{:+.0%}".format),
            "times as fast as the baseline": [
                "" if r["baseline"] else _interval(r, "ratio", "ci_low", "ci_high") for r in rows
            ],
            "n": raced["n"],
            "": ["chosen" if r["chosen"] else "baseline" if r["baseline"] else "" for r in rows],
        }
    )


def raced_title(raced: pd.DataFrame) -> str:
    """How far off the predictions are."""
    off = raced["error"].abs()
    far = f"{off.median():.0%} in the median, {off.max():.0%} at most"
    return f"Predictions of {len(raced)} executed plans are off by {far}"


def raced_frame(raced: pd.DataFrame) -> pd.DataFrame:
    """Predicted and executed times of each plan as bars: label, kind, ms, ci_low, ci_high, origin.

    Where there are many, of each size the chosen plan, the baseline, and the one whose prediction is farthest off.
    """
    rows = []
    for r in _drawn(raced).to_dict("records"):
        label = f"{r['size']}: {short(r['words'])}"
        executed = {"ms": r["ms"], "ci_low": r["ms_low"], "ci_high": r["ms_high"], "origin": "measured"}
        predicted = {"ms": r["predicted_ms"], "ci_low": r["predicted_low"], "ci_high": r["predicted_high"]}
        origin = r["origin"] if r["origin"] != "measured" else "interpolated"  # of blocks, not of the plan
        rows += [{"plan": label, "kind": "executed", **executed}]
        rows += [{"plan": label, "kind": "predicted", **predicted, "origin": origin}]
    return pd.DataFrame(rows)


def _drawn(raced: pd.DataFrame) -> pd.DataFrame:
    if len(raced) <= MOST_BARS:
        return raced
    farthest = raced.index.isin(raced.groupby("size")["error"].apply(lambda errors: errors.abs().idxmax()))
    return raced[raced["chosen"] | raced["baseline"] | farthest]


def scenarios(found: pd.DataFrame) -> str:
    """What changes with the machine; simulated."""
    parts = []
    for r in found.to_dict("records"):
        parts.append(
            f"- {r['scenario']}: {r['words']}, {r['ms']:.3g} ms a graph, {r['gain']:.3g} times as fast as the best "
            f"single unit ({r['one_unit'].removeprefix('stages ')}, {r['one_unit_ms']:.3g} ms)"
        )
    return "\n".join([*parts, "All of these are simulated; no such device was measured."])


def scenarios_title(found: pd.DataFrame) -> str:
    first, same = found.iloc[0], found["plan"].nunique() == 1
    changed = [r["scenario"] for r in found.iloc[1:].to_dict("records") if r["plan"] != first["plan"]]
    most = found.loc[(found["ms"] / first["ms"]).sub(1).abs().idxmax()]
    what = "The plan stays the same" if same else f"The plan changes with {' and '.join(changed)}"
    return f"{what}; its time changes most with {most['scenario']}, {most['ms'] / first['ms'] - 1:+.0%} (simulated)"


def done(found: Done) -> str:
    """What came of a graph."""
    nodes, edges = found.size
    off = f"{found.parity_error:.1e} from the plain layer's result, relative"
    if found.parts == 1:
        return f"Executed on {nodes} nodes and {edges} edges in {found.ms:.3g} ms: {off}."
    how = f"cut by METIS into {found.parts} parts and streamed through {found.plan.words()}"
    return f"Executed on {nodes} nodes and {edges} edges, {how}: {off}."


def units_line(units: Sequence[str], wanted: Sequence[str], cores: int) -> str:
    lacking = [unit for unit in wanted if unit not in units]
    without = f" No times are known of {', '.join(lacking)}: notebook 05 says why." if lacking else ""
    return f"Plans are made of {', '.join(units)}, with one thread each, on {cores} cores.{without}"


def control(raced: pd.DataFrame) -> str:
    """What the baseline shows against itself, and what of a long race the figure leaves to the table."""
    parts = [
        f"{r['size']}: {r['noise']:.3g} ({r['noise_low']:.3g} to {r['noise_high']:.3g})"
        for r in raced[raced["baseline"]].to_dict("records")
    ]
    noise = f"The baseline against itself, which is 1 but for noise: {'; '.join(parts)}."
    if len(raced) <= MOST_BARS:
        return noise
    return (
        f"The figure shows {len(_drawn(raced))} of the {len(raced)} plans: at each size the chosen one, the baseline "
        f"and the one whose prediction is farthest off. {noise}"
    )


def compiled(found: Compiled) -> str:
    sizes = len(found.classes)
    return (
        f"{len(found.plans)} plans are kept, with their times at {sizes} sizes; fingerprint {found.fingerprint[:12]}."
    )


def looked_up(found: Choice, nodes: int, edges: int) -> str:
    return (
        f"{nodes} nodes and {edges} edges, looked up: {found.plan.words()}, {found.ms:.3g} ms from graph to graph "
        f"({found.low:.3g} to {found.high:.3g}, {found.origin})."
    )


def scenario_frame(found: pd.DataFrame) -> pd.DataFrame:
    """The chosen plan and the best single unit of each machine as bars."""
    rows = []
    for r in found.to_dict("records"):
        chosen = {"ms": r["ms"], "ci_low": r["ci_low"], "ci_high": r["ci_high"]}
        alone = {"ms": r["one_unit_ms"], "ci_low": r["one_unit_low"], "ci_high": r["one_unit_high"]}
        for kind, numbers in (("chosen plan", chosen), (ONE_UNIT, alone)):
            rows.append({"scenario": r["scenario"], "kind": kind, **numbers, "origin": r["origin"]})
    return pd.DataFrame(rows)


def choice(found: Choice, plans: Compiled) -> str:
    """Why this plan: its time, where that comes from, and what the best single unit would take."""
    alone = found.table[found.table["units"] == 1].head(1).to_dict("records")
    what = {"throughput": "from graph to graph", "latency": "for a graph alone"}[plans.objective]
    sizes = len(plans.classes)
    where = f"looked up between {sizes} compiled sizes" if sizes > 1 else "planned for this size"
    text = (
        f"Expected {found.ms:.3g} ms {what} ({found.low:.3g} to {found.high:.3g}), {where}; times {found.origin}, "
        f"units at work at once slowed by {plans.slowdown - 1:.0%}."
    )
    if found.origin == "extrapolated":
        text += " Some sizes lie outside those that were measured: take the times with care, or measure larger ones."
    if not alone or found.plan.words() == alone[0]["words"]:
        return text
    return f"{text} The best single unit ({alone[0]['words']}) takes {alone[0]['ms'] / found.ms:.3g} times as long."


def choice_table(table: pd.DataFrame, count: int = 6) -> pd.DataFrame:
    """The plans that a choice was made from, for a reader: the best, the chosen one, the best one-unit plan."""
    alone = table[table["units"] == 1].head(1).index
    shown = table.loc[sorted({*table.head(count).index, *table.index[table["chosen"]], *alone})]
    return pd.DataFrame(
        {
            "plan": shown["words"].map(short),
            "ms a graph (90 %)": [_interval(r, "ms", "low", "high") for r in shown.to_dict("records")],
            "regret, 1 draw in 20": shown["far_regret"].map("{:.0%}".format),
            "": _marks(shown),
        }
    )


def _marks(table: pd.DataFrame) -> list[str]:
    """What a plan is beside being one of many."""
    rows = zip(table["chosen"], table["units"], strict=True)
    return [", ".join(["chosen"] * bool(chosen) + ["one unit"] * (units == 1)) for chosen, units in rows]


def _interval(row: Mapping[str, Any], *names: str) -> str:
    middle, low, high = (row[name] for name in names)
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"
