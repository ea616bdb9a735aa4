"""`profiling_report.txt`, as S4 has it: what was measured, latencies, what could not be measured and why.

What was simulated is starred wherever it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gnnlab.campaign import table as tables

STAR = "*"
DEVICES = ["unit", "device", "runtime_version", "precision", "threads"]
CELLS = ["stage", "size", "unit", "status", "ms", "ms_low", "ms_high", "n", "within"]

GAINS = ["stage", "form", "baseline", "value", "low", "high"]
SUMS = ["size", "block", "form", "origin", "value", "low", "high"]


def report(cells: pd.DataFrame, messages: Sequence[str] = ()) -> str:
    """The text of `profiling_report.txt`."""
    starred = cells.assign(unit=cells["unit"] + np.where(cells["origin"] == tables.SIMULATED, STAR, ""))
    timed = tables.timed(starred)
    statistics = {"mean": lambda ms: np.exp(np.log(ms).mean()), "least": "min", "most": "max", "sizes": "size"}
    latency = timed.groupby(["stage", "unit"], sort=False)["ms"].agg(**statistics).reset_index()
    parts = {
        "Units": timed[DEVICES].drop_duplicates(),
        "Latency in ms, geometric mean over sizes (least to most)": latency,
        "Every cell in ms, 95 % interval (within: 2 %)": starred.loc[starred["unit"].isin(timed["unit"]), CELLS],
        "On the CPU, times as fast as the baseline": tables.gain_rows(cells).reindex(columns=GAINS),
        "Stages one by one over fused": tables.sum_rows(cells).reindex(columns=SUMS),
        "What could not be measured, and why": tables.gaps(cells),
    }
    counts = ", ".join(f"{count} {status}" for status, count in cells["status"].value_counts().items())
    lines = ["GNN stage profile", "=" * 17, *messages]
    lines.append(f"layer {_each(cells['layer'])}, {_each(cells['features'])} features")
    lines.append(f"sizes (nodes/edges) {_each(cells['size'])}")
    lines.append(f"{counts}; {int(timed['within'].sum())} with an interval within 2 %")
    if (cells["origin"] == tables.SIMULATED).any():
        lines.append(f"{STAR} simulated from published constants; no such device was measured.")
    for title, frame in parts.items():
        text = frame.to_string(index=False, float_format="{:.4g}".format, max_colwidth=None)
        lines += ["", title, "-" * len(title), "none" if frame.empty else text]
    return "\n".join(lines) + "\n"


def _each(values: pd.Series) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))
