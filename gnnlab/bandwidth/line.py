"""S4's estimate of bandwidth, as it stands, beside measured copies.

    def s4(moved_bytes, ms):                  # latency = intercept + slope * bytes; a reader may change it
        return np.polyfit(moved_bytes, ms, deg=1)

    studies = s4_studies(tables, s4)          # rows for `lab.record`, by study

S4 takes latency = compute + bytes / bandwidth, fits a line through the latencies of a stage over its bytes, and
reads the slope as 1 / bandwidth and the intercept as the compute time. Its bytes are an estimate of what a stage reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.bandwidth.tables import NO_COPIES, S4Tables
from gnnlab.measure.estimates import CONFIDENCE, clamped, quotient
from gnnlab.stages.rows import chip
from gnnlab.workloads.staged import StagedLayer

S4, A_COPY = "S4", "measured copy"
NOT_ABOVE_0 = "its slope is not above 0, so that it gives no bandwidth"
NO_END = "its slope may be 0, so that its bandwidth has no upper end"
NO_LINE = "no line: there are fewer than three sizes"
NO_COMPUTE = "its compute time cannot be separated from a copy of its bytes"
FEWEST_SIZES = 3  # a line through two points fits whatever they are
DRAWS = 400
NONE = (np.nan,) * 3
Triple = tuple[float, float, float]  # value, low, high
Fitted = Callable[[np.ndarray, np.ndarray], Any]  # bytes (sizes,), ms (sizes,) or (sizes, draws) -> slope, intercept


def data_bytes(stage: int, nodes: Any, edges: Any, features: int) -> Any:
    """Bytes of a stage, 1 to 7, as S4 estimates them: x and edge_index, messages and edge_index, or x alone, each
    number as float32. `nodes` and `edges` are numbers or arrays.
    """
    rows = nodes * features
    messages = edges * features + 2 * edges
    return 4 * (rows + 2 * edges, messages, messages, rows + 2 * edges, rows + nodes, rows, rows)[stage - 1]


def line(size_bytes: np.ndarray, times: np.ndarray, fit: Fitted) -> tuple[Triple, Triple]:
    """GB/s of 1 / slope (NaN where there is none) and the intercept in ms, each value, low and high (95 %).

    `times` (3, sizes): ms, low, high. Intervals: latencies drawn as log-normal within their own.
    """
    ms, low_ms, high_ms = times
    slope, intercept = map(float, fit(size_bytes, ms))
    noise = np.random.default_rng(0).normal(0, 1, (DRAWS, len(ms)))
    drawn = ms * np.exp(noise * np.log(high_ms / low_ms) / (2 * 1.96))
    (least, least_ms), (most, most_ms) = np.percentile(fit(size_bytes, drawn.T), [2.5, 97.5], axis=1)
    gb_s = tuple(1e-6 / s if slope > 0 and s > 0 else np.nan for s in (slope, most, least))
    return gb_s, (intercept, float(least_ms), float(most_ms))


def s4_studies(tables: S4Tables, fit: Fitted) -> dict[str, pd.DataFrame]:
    """Rows for `lab.record` by study; keys are runs_on (the device) and stage.

    `bandwidth`: GB/s by S4's line through its own count of bytes, and by a copy of as many bytes as the stage moves.
    `bandwidth_ratio`: how far the two agree. `intercept_ratio`: how far the intercept agrees with what such a copy
    leaves of the time, in the median over the sizes; of stages that have a line.
    """
    parts, rows = tables.entries.groupby(["device", "first"]), []
    for rate in tables.rates.to_dict("records"):
        rows += _stage_rows(tables.layer, rate, parts.get_group((rate["device"], rate["first"])), fit)
    frame = pd.DataFrame(rows).sort_values(["runs_on", "stage"], kind="stable")
    ratios = ("bandwidth_ratio", "intercept_ratio")
    studies = {name: frame[frame["study"] == name] for name in ("bandwidth", *ratios)}
    for name in ratios:  # a median over the stages that have one says nothing of those that have none
        lost = int((studies[name]["status"] != "ok").sum())
        notes = f"{lost} of {len(studies[name])} stages have no such ratio" if lost else ""
        studies[name] = studies[name].assign(notes=notes)
    return studies


def _stage_rows(layer: StagedLayer, rate: dict[str, Any], part: pd.DataFrame, fit: Fitted) -> list[dict[str, Any]]:
    """The rows of one stage in all studies, from its bandwidth (`rate`) and its entries."""
    times, n = part[["ms", "ms_low", "ms_high"]].to_numpy().T, len(part)
    size = data_bytes(rate["first"], part["nodes"], part["edges"], layer.features).to_numpy()
    there = n >= FEWEST_SIZES and len(set(size)) > 1
    gb_s, intercept_ms = line(size, times, fit) if there else (NONE, NONE)
    copy_gb_s = rate["gb_s"], rate["gb_s_low"], rate["gb_s_high"]
    rest_ms = np.median(times - part["transfer_time_ms"].to_numpy(), axis=1)
    no_line = "" if gb_s[0] > 0 else NOT_ABOVE_0 if there else NO_LINE
    no_ratio = no_line or rate["diagnosis"] or ("" if gb_s[2] > 0 else NO_END)
    no_rest = NO_COPIES if not rate["n"] else "" if rest_ms[1] > 0 else NO_COMPUTE
    ratio = NONE if no_ratio else astuple(quotient(clamped(*gb_s, n), clamped(*copy_gb_s, n)))[:3]
    ends = NONE if no_rest else [end / rest for end in intercept_ms[1:] for rest in rest_ms]
    rest_ratio = intercept_ms[0] / (rest_ms[0] or np.nan), min(ends), max(ends)
    speed, share = {"unit": "GB/s", "better": "higher"}, {"unit": "x", "better": "neither"}
    rows = [
        _row(rate, "bandwidth", gb_s, n, no_line, **speed, notes=NO_END if no_ratio == NO_END else ""),
        _row(
            rate, "bandwidth", copy_gb_s, rate["n"], rate["diagnosis"], **speed, variant=A_COPY, origin="interpolated"
        ),
        _row(rate, "bandwidth_ratio", agreement(*ratio), n, no_ratio, **share),
        _row(rate, "intercept_ratio", agreement(*rest_ratio), n, no_rest, **share),
    ]
    return rows if there else rows[:3]


def agreement(ratio: float, low: float, high: float) -> Triple:
    """The smaller of two numbers over the larger, from their ratio and its interval: 1 where they are equal, 0 where
    one of them is not above 0. A ratio that is too high in one place makes up for none that is too low in another.
    """
    value, *ends = (min(r, 1 / r) if r > 0 else 0.0 for r in (ratio, low, high))
    return value, min(value, *ends), 1.0 if low <= 1 <= high else max(value, *ends)


def _row(rate: dict[str, Any], study: str, numbers: Triple, n: int, why: str, **fields: Any) -> dict[str, Any]:
    """A row of a stage, or the reason why it has none."""
    about = {name: rate[name] for name in ("stage", "precision")} | {"study": study, "runs_on": rate["device"]}
    about |= {"device": chip(rate["processor"], rate["chip"]), "runtime": rate["runtime_version"]}
    about |= {"variant": S4, "origin": "measured", "statistic": "estimate", "interval": CONFIDENCE, "n": n}
    about |= {"threads": rate["threads"] * (rate["processor"] == "CPU"), "status": "unavailable" if why else "ok"}
    found = {"reason": why} if why else dict(zip(("value", "low", "high"), numbers, strict=True))
    return about | found | fields
