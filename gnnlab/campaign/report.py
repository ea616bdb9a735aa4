"""`profiling_report.txt`, as S4 has it: what was measured, latencies, what could not be measured and why.

What was simulated is starred wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.campaign import table as tables

STAR = "*"


def report(cells: pd.DataFrame, messages: Sequence[str] = ()) -> str:
    """The text of `profiling_report.txt`."""
    starred = cells.assign(unit=cells["unit"] + np.where(cells["origin"] == tables.SIMULATED, STAR, ""))
    sums = tables.sum_rows(cells).reindex(columns=["size", "block", "form", "origin", "value", "low", "high"])
    parts = {
        "Configuration": _configuration(starred),
        "Latency in ms, geometric mean over sizes (least to most)": _statistics(tables.timed(starred)),
        "Every cell in ms, 95 % interval (~ wider than 2 %)": _intervals(starred),
        "Fastest on the CPU: time of the next over it": _shown(tables.winners(cells)),
        "Stages one by one over fused": _shown(sums),
        "What could not be measured, and why": _shown(tables.gaps(cells)),
        "Beside it, as a CPU's figure": _shown(tables.cpu_reference(cells)),
    }
    head = ["GNN stage profile", "=" * 17, *messages]
    if (cells["origin"] == tables.SIMULATED).any():
        head.append(f"{STAR} simulated from published constants; no such device was measured.")
    return "\n".join([*head, *(f"\n{title}\n{'-' * len(title)}\n{text}" for title, text in parts.items())]) + "\n"


def _configuration(cells: pd.DataFrame) -> str:
    timed, counts = tables.timed(cells), cells["status"].value_counts()
    lines = [
        f"layer      {_each(cells['layer'])}, {_each(cells['features'])} features",
        f"sizes      (nodes/edges) {_each(cells['size'])}",
        f"units      {_each(cells['unit'])}",
        f"cells      {', '.join(f'{count} {status}' for status, count in counts.items())}; "
        f"{int(timed['within'].sum())} with an interval within 2 %",
        f"computed   in {_each(timed['precision'])}; threads of the CPU: {_each(timed['threads'])}",
    ]
    devices = timed[["unit", "device", "runtime_version"]].drop_duplicates()
    return "\n".join(lines + [f"{r.unit:24} {r.device}, {r.runtime_version}" for r in devices.itertuples()])


def _statistics(timed: pd.DataFrame) -> str:
    grouped = timed.assign(log=np.log(timed["ms"])).groupby(["stage", "unit"], sort=False)
    found = grouped["ms"].agg(least="min", most="max", sizes="size")
    found.insert(0, "mean", np.exp(grouped["log"].mean()))
    return _shown(found, index=True)


def _intervals(cells: pd.DataFrame) -> str:
    """ms by stage and size (rows) and unit (columns), of units that have a time; others show their status."""
    shown = cells[cells["unit"].isin(tables.timed(cells)["unit"])]
    shown = shown.assign(text=[_cell_text(row) for row in shown.to_dict("records")])
    wide = shown.pivot(index=["stage", "size"], columns="unit", values="text")
    order = list(dict.fromkeys(zip(shown["stage"], shown["size"], strict=True)))
    return _shown(wide.loc[order, list(dict.fromkeys(shown["unit"]))], index=True)


def _cell_text(row: Mapping[str, Any]) -> str:
    if row["status"] not in tables.TIMED:
        return row["status"]
    return f"{row['ms']:.3g} ({row['ms_low']:.3g} to {row['ms_high']:.3g}){'' if row['within'] else ' ~'}"


def _shown(frame: pd.DataFrame, index: bool = False) -> str:
    if frame.empty:
        return "none"
    return frame.to_string(index=index, float_format=lambda value: f"{value:.4g}", max_colwidth=None)


def _each(values: pd.Series) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))
