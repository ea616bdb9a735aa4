"""What the table of a campaign says: titles, sentences, tables for a reader, and `profiling_report.txt`.

All of it computed from the numbers. What was simulated is starred wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.stages.campaign import table as tables
from gnnlab.stages.campaign.campaign import Done
from gnnlab.stages.campaign.local_units import reason
from gnnlab.stages.units.unit import Availability

STAR = "*"
_WIDTH = 116


def need_times(cells: pd.DataFrame, skip: Callable[[str], None]) -> None:
    """Go on if a cell has a time; else `skip`, with what the units say."""
    if tables.timed(cells).empty:
        skip("no cell has a time: " + "; ".join(dict.fromkeys(cells["unit"] + ": " + cells["reason"])))


def units_rows(available: Mapping[str, Availability]) -> pd.DataFrame:
    """Each unit and what is to say of it: its device and version, or why it cannot be used here and what it needs."""
    here = [f"{f.device}, {f.version}" if f.usable else f"not here, {reason(f)}" for f in available.values()]
    return pd.DataFrame({"unit": list(available), "here": here})


def latency_title(cells: pd.DataFrame) -> str:
    """Which stage takes longest on the CPU, over all sizes and units measured there."""
    alone = tables.measured(cells)
    alone = alone[(alone["processor"] == "CPU") & ~alone["fused"]]
    if alone.empty:
        return "Latency by stage, size and unit"
    means = _mean_ms(alone.groupby("stage", sort=False))
    first, share = means.idxmax(), means.max() / means.sum()
    return f"{first} takes longest on the CPU, {share:.0%} of all stages together, geometric means"


def latency(cells: pd.DataFrame) -> str:
    """How many cells have a time, how many of them within 2 %, what is simulated."""
    found, counts = tables.measured(cells), cells["status"].value_counts()
    parts = [f"{len(found)} of {len(cells)} cells measured, {int(found['within'].sum())} with an interval within 2 %"]
    parts += [f"{counts[status]} {status}" for status in counts.index if status != tables.MEASURED]
    starred = " Starred units are simulated from published constants." if "simulated" in counts.index else ""
    return f"{'; '.join(parts)}.{starred}"


def interval_table(cells: pd.DataFrame) -> pd.DataFrame:
    """ms with its 95 % interval by stage and size (rows) and unit (columns); what has no time says what it has.

    Units without any time have no column; `gaps` tells of them.
    """
    cells = tables.drawn(cells)
    shown = cells.assign(text=[_cell_text(row) for row in cells.to_dict("records")], unit=_starred(cells))
    order = list(dict.fromkeys(zip(shown["stage"], shown["size"], strict=True)))
    wide = shown.pivot(index=["stage", "size"], columns="unit", values="text")
    return wide.loc[order, list(dict.fromkeys(shown["unit"]))]


def _cell_text(row: dict[str, Any]) -> str:
    if row["status"] not in tables.TIMED:
        return row["status"]
    wide = "" if row["within"] else " ~"
    return f"{row['ms']:.3g} ({row['ms_low']:.3g} to {row['ms_high']:.3g}){wide}"


def winners_title(found: pd.DataFrame) -> str:
    if found.empty:
        return "One unit alone was measured at each stage"
    row = found.loc[found["ci_low"].idxmax()]
    if row["ci_low"] <= 1:
        return "No stage has a unit that is surely the fastest"
    by = f"{row['unit']} is {row['ratio']:.3g} times as fast as the next"
    return f"Choosing the runtime pays most at {row['stage']}: {by}"


def winners(found: pd.DataFrame) -> str:
    """Which unit wins which stage on this CPU, and by how much over the next one."""
    if found.empty:
        return "Nothing to compare: one unit alone was measured at each stage."
    parts = []
    for row in found.to_dict("records"):
        by = f"{row['ratio']:.3g} times as fast as {row['next']} ({row['ci_low']:.3g} to {row['ci_high']:.3g})"
        if row["ci_low"] <= 1:
            by = f"no difference seen to {row['next']} ({row['ci_low']:.3g} to {row['ci_high']:.3g})"
        parts.append(f"- {row['stage']}: {row['unit']}, {by}; the slowest takes {row['spread']:.3g} times as long")
    return "\n".join(parts)


def roof_table(found: pd.DataFrame) -> pd.DataFrame:
    """Share of the roofline by stage and unit, geometric mean over the sizes, with the stage's bound at the largest."""
    shares = np.log(found["reached"].astype(float)).groupby([found["stage"], found["unit"]], sort=False).mean()
    wide = np.exp(shares).unstack().reindex(columns=list(dict.fromkeys(found["unit"])))
    bound = found.groupby("stage", sort=False)["bound_ms"].max()
    return wide.reindex(list(bound.index)).assign(**{"at best on the largest (ms)": bound}).astype(float).round(3)


def sums_table(found: pd.DataFrame) -> pd.DataFrame:
    """For a reader: the sum of the stages over the fused block, by block and unit (rows) and size (columns)."""
    shown = found.assign(
        unit=_starred(found),
        text=[f"{r.ratio:.3g} ({r.ci_low:.3g} to {r.ci_high:.3g})" for r in found.itertuples()],
    )
    wide = shown.pivot(index=["stage", "unit"], columns="size", values="text")
    return wide.reindex(columns=list(dict.fromkeys(found["size"])))


def sums(found: pd.DataFrame) -> str:
    """Stage by stage against fused, by unit: geometric mean over the sizes."""
    if found.empty:
        return "No block was measured both fused and stage by stage."
    parts = []
    for (stage, unit, origin), part in found.groupby(["stage", "unit", "origin"], sort=False):
        ratio = float(np.exp(np.log(part["ratio"]).mean()))
        ends = f"{part['ci_low'].min():.3g} to {part['ci_high'].max():.3g} over {len(part)} sizes"
        where = f"{stage} on {unit}{STAR * (origin == 'simulated')}"
        parts.append(f"- {where}: its stages one by one take {ratio:.3g} times as long as fused ({ends})")
    return "\n".join(parts)


def sums_title(found: pd.DataFrame) -> str:
    real = found[found["origin"] == "measured"]
    if real.empty:
        return "Stages one by one over fused"
    low, high = real["ratio"].min(), real["ratio"].max()
    return f"The stages one by one take {low:.3g} to {high:.3g} times as long as fused, on measured units"


def roof(found: pd.DataFrame) -> str:
    """The stages nearest to the roofline and farthest from it, by their fastest unit."""
    if found.empty:
        return "Nothing was measured on this machine's CPU."
    best = found.sort_values("ms").drop_duplicates(["size", "stage"])
    means = np.exp(np.log(best["reached"]).groupby(best["stage"], sort=False).mean()).sort_values()
    near, far = means.index[-1], means.index[0]
    text = (
        f"By the fastest unit and over the sizes, {near} reaches most of its roofline ({means[near]:.0%}) and {far} "
        f"least ({means[far]:.0%})."
    )
    beyond = "More than 100% can be where values stay in a cache or a result is a view."
    return f"{text} {beyond}" if means[near] > 1 else text


def gaps(cells: pd.DataFrame) -> str:
    """What could not be measured here and why, a line for each unit and reason."""
    found = tables.gaps(cells)
    rows = found.to_dict("records")
    lines = [f"- {r['unit']}, stages {r['stages']}: {r['status']}, {r['reason']} ({r['cells']} cells)" for r in rows]
    return "\n".join(lines) or "Every cell has a time."


def beside(cells: pd.DataFrame) -> pd.DataFrame:
    """For a reader: each cell without a time, and the CPU's figure beside it, named as such."""
    found = tables.beside(cells)
    figure = [
        "none"
        if pd.isna(r["cpu_ms"])
        else f"{r['cpu_ms']:.3g} ms ({r['cpu_low']:.3g} to {r['cpu_high']:.3g}), {r['cpu_unit']}"
        for r in found.to_dict("records")
    ]
    kept = found[["unit", "stage", "size", "status"]].assign(**{"a CPU takes": figure})
    return kept.sort_values(["unit", "stage"], kind="stable", ignore_index=True)


def campaign(done: Done) -> str:
    """What the campaign did and how long it took."""
    again = f", {done.again} of them a second time because the canary had drifted" if done.again else ""
    return (
        f"{len(done.answers)} cells, {done.known} known before; this run made {done.measured} measurements{again}. "
        f"All of them took {done.seconds / 60:.2f} minutes, between {done.canaries} measurements of the canary."
    )


def report(cells: pd.DataFrame, messages: Sequence[str] = ()) -> str:
    """The text of `profiling_report.txt`."""
    sizes, units = list(dict.fromkeys(cells["size"])), list(dict.fromkeys(_starred(cells)))
    parts = [
        ("Configuration", _configuration(cells, sizes, units)),
        ("Latency in ms, geometric mean over sizes (least to most)", _statistics(cells)),
        ("Every cell in ms, 95 % interval (~ wider than 2 %)", _intervals_text(cells)),
        ("Fastest on the CPU", winners(tables.winners(cells))),
        ("Stages one by one against fused", sums(tables.sums(cells))),
        ("What could not be measured, and why", gaps(cells)),
        ("Beside it, as a CPU's figure", _beside_text(cells)),
    ]
    head = ["GNN stage profile", "=" * 17, *messages]
    if (cells["origin"] == "simulated").any():
        head.append(f"{STAR} simulated from published constants; no such device was measured.")
    return "\n".join([*head, *(f"\n{title}\n{'-' * len(title)}\n{text}" for title, text in parts)]) + "\n"


def _configuration(cells: pd.DataFrame, sizes: Sequence[str], units: Sequence[str]) -> str:
    timed = tables.timed(cells)
    lines = [
        f"layer      {_each(cells['layer'])}, {_each(cells['features'])} features",
        f"sizes      {len(sizes)} (nodes/edges): {', '.join(sizes)}",
        f"units      {len(units)}: {', '.join(units)}",
        f"cells      {latency(cells)}",
        f"computed   in {_each(timed['precision'])}; threads of the CPU: {_each(timed['threads'])}",
    ]
    devices = timed[["unit", "device", "runtime_version"]].drop_duplicates()
    return "\n".join(lines + [f"{r.unit:24} {r.device}, {r.runtime_version}" for r in devices.itertuples()])


def _statistics(cells: pd.DataFrame) -> str:
    timed = tables.timed(cells).assign(unit=lambda t: _starred(t))
    if timed.empty:
        return "none"
    grouped = timed.groupby(["stage", "unit"], sort=False)["ms"]
    table = pd.DataFrame(
        {
            "mean": _mean_ms(timed.groupby(["stage", "unit"], sort=False)),
            "least": grouped.min(),
            "most": grouped.max(),
            "sizes": grouped.size(),
        }
    )
    return table.to_string(float_format=lambda value: f"{value:.4g}")


def _intervals_text(cells: pd.DataFrame) -> str:
    return "none" if tables.timed(cells).empty else interval_table(cells).to_string(max_colwidth=None)


def _beside_text(cells: pd.DataFrame) -> str:
    found = beside(cells)
    return "nothing is missing" if found.empty else found.to_string(index=False, max_colwidth=None)


def _mean_ms(grouped: Any) -> pd.Series:
    return grouped["ms"].apply(lambda ms: float(np.exp(np.log(ms).mean())))


def _each(values: pd.Series) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))


def _starred(cells: pd.DataFrame) -> list[str]:
    return [f"{u}{STAR * (o == 'simulated')}" for u, o in zip(cells["unit"], cells["origin"], strict=True)]
