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

S4, A_COPY = "S4", "measured copy"
NOT_ABOVE_0 = "its slope is not above 0, so that it gives no bandwidth"
NO_END = "its slope may be 0, so that its bandwidth has no upper end"
NO_LINE = "no line: S4 has no bytes for it, or there are fewer than three sizes"
NO_COMPUTE = "its compute time cannot be separated from a copy of its bytes"
NUMBER_BYTES = 4  # S4 counts numbers; float32
FEWEST_SIZES = 3  # a line through two points fits whatever they are
DRAWS = 400
NONE = (np.nan,) * 3
Triple = tuple[float, float, float]  # value, low, high
Fitted = Callable[[np.ndarray, np.ndarray], Any]  # bytes (sizes,), ms (sizes,) or (sizes, draws) -> slope, intercept


def data_bytes(stage: int, nodes: Any, edges: Any, features: int) -> Any:
    """Bytes of a stage, 1 to 7, as S4 estimates them: x and edge_index, messages and edge_index, or x alone.

    `nodes` and `edges` are numbers or arrays.
    """
    rows, edge_index = nodes * features, 2 * edges
    numbers = {1: rows + edge_index, 2: edges * features + edge_index, 3: edges * features + edge_index,
               4: rows + edge_index, 5: rows + nodes, 6: rows, 7: rows}  # fmt: skip
    return NUMBER_BYTES * numbers[stage]


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
    stages = [_stage_rows(tables, rate, fit) for rate in tables.rates.to_dict("records")]
    s4, copies, ratios, intercepts = ([row for row in rows if row] for rows in zip(*stages, strict=True))
    bandwidths = pd.DataFrame([*s4, *copies]).sort_values(["runs_on", "stage"], kind="stable")
    return {
        "bandwidth": bandwidths.assign(unit="GB/s", better="higher"),
        "bandwidth_ratio": _ratios(ratios),
        "intercept_ratio": _ratios(intercepts),
    }


def _stage_rows(tables: S4Tables, rate: dict[str, Any], fit: Fitted) -> tuple[dict[str, Any], ...]:
    """S4's bandwidth, that of a copy, how far they agree, and how far the compute times do ({} without a line)."""
    part = tables.entries[(tables.entries[["device", "number"]] == [rate["device"], rate["number"]]).all(axis=1)]
    times, n = part[["total_time_ms", "low_ms", "high_ms"]].to_numpy().T, len(part)
    size = data_bytes(rate["number"], part["nodes"], part["edges"], tables.layer.features).to_numpy()
    there = tables.layer.name == "sage" and n >= FEWEST_SIZES and len(set(size)) > 1
    gb_s, intercept_ms = line(size, times, fit) if there else (NONE, NONE)
    copy_gb_s = rate["gb_s"], rate["gb_s_low"], rate["gb_s_high"]
    rest_ms = np.median(times - part["transfer_time_ms"].to_numpy(), axis=1)
    no_line = "" if gb_s[0] > 0 else NOT_ABOVE_0 if there else NO_LINE
    no_rest = NO_COPIES if not rate["n"] else "" if rest_ms[1] > 0 else NO_COMPUTE
    no_ratio = no_line or rate["diagnosis"] or ("" if gb_s[2] > 0 else NO_END)
    ratio = NONE if no_ratio else astuple(quotient(clamped(*gb_s, n), clamped(*copy_gb_s, n)))[:3]
    ends = [end / rest for end in intercept_ms[1:] for rest in rest_ms if not no_rest] or NONE
    rest_ratio = intercept_ms[0] / (rest_ms[0] or np.nan), min(ends), max(ends)
    copy = {"form": A_COPY, "origin": "interpolated"}
    return (
        _row(rate, gb_s, n, no_line, notes=NO_END if no_ratio == NO_END else ""),
        _row(rate, copy_gb_s, rate["n"], rate["diagnosis"], **copy),
        _row(rate, agreement(*ratio), n, no_ratio),
        _row(rate, agreement(*rest_ratio), n, no_rest) if there else {},
    )


def _ratios(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Each with a note on the stages that have none, since a median over the others says nothing of these."""
    lost = sum("reason" in row for row in rows)
    notes = f"{lost} of {len(rows)} stages have no such ratio" if lost else ""
    return pd.DataFrame(rows).assign(unit="x", better="neither", notes=notes)


def agreement(ratio: float, low: float, high: float) -> Triple:
    """The smaller of two numbers over the larger, from their ratio and its interval: 1 where they are equal, 0 where
    one of them is not above 0. A ratio that is too high in one place makes up for none that is too low in another.
    """
    value, *ends = (min(r, 1 / r) if r > 0 else 0.0 for r in (ratio, low, high))
    return value, min(value, *ends), 1.0 if low <= 1 <= high else max(value, *ends)


def _row(rate: dict[str, Any], numbers: Triple, n: int, why: str, **fields: Any) -> dict[str, Any]:
    """A row of a stage, or the reason why it has none."""
    about = {"runs_on": rate["device"], "device": chip(rate["processor"], rate["chip"])}
    about |= {"runtime": rate["runtime_version"], "threads": rate["threads"] * (rate["processor"] == "CPU")}
    about |= {"form": S4, "origin": "measured", "statistic": "estimate", "interval": CONFIDENCE, "n": n}
    ends = dict(zip(("value", "low", "high"), numbers, strict=True))
    status = {"status": "unavailable", "reason": why} if why else {"status": "ok"}
    return {name: rate[name] for name in ("stage", "precision")} | about | ends | status | fields
