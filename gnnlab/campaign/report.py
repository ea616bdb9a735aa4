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
    gains = tables.gain_rows(cells).reindex(columns=["stage", "form", "baseline", "value", "low", "high"])
    sums = tables.sum_rows(cells).reindex(columns=["size", "block", "form", "origin", "value", "low", "high"])
    parts = {
        "Configuration": _configuration(starred),
        "Latency in ms, geometric mean over sizes (least to most)": _statistics(tables.timed(starred)),
        "Every cell in ms, 95 % interval (~ wider than 2 %)": _intervals(starred),
        "On the CPU, times as fast as the baseline": _text(gains),
        "Stages one by one over fused": _text(sums),
        "What could not be measured, and why": _text(tables.gaps(cells)),
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
    ms = timed.groupby(["stage", "unit"], sort=False)["ms"]
    return _text(ms.agg(mean=lambda times: np.exp(np.log(times).mean()), least="min", most="max", sizes="size"), True)


def _intervals(cells: pd.DataFrame) -> str:
    """ms by stage and size (rows) and unit (columns), of units that have a time; others show their status."""
    named = cells[cells["unit"].isin(tables.timed(cells)["unit"])]
    named = named.assign(text=[_cell_text(row) for row in named.to_dict("records")])
    wide = named.pivot(index=["stage", "size"], columns="unit", values="text")
    order = list(dict.fromkeys(zip(named["stage"], named["size"], strict=True)))
    return _text(wide.loc[order, list(dict.fromkeys(named["unit"]))], index=True)


def _cell_text(row: Mapping[str, Any]) -> str:
    if row["status"] not in tables.TIMED:
        return row["status"]
    return f"{row['ms']:.3g} ({row['ms_low']:.3g} to {row['ms_high']:.3g}){'' if row['within'] else ' ~'}"


def _text(frame: pd.DataFrame, index: bool = False) -> str:
    if frame.empty:
        return "none"
    return frame.to_string(index=index, float_format=lambda value: f"{value:.4g}", max_colwidth=None)


def _each(values: pd.Series) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))
