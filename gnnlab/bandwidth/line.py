"""S4's estimate of bandwidth, as it stands, beside measured copies.

    def s4(moved_bytes, ms):                  # latency = intercept + slope * bytes; a reader may change it
        return np.polyfit(moved_bytes, ms, deg=1)

    studies = s4_studies(s4_lines(tables, s4))          # rows for `lab.record`, by study

S4 takes latency = compute + bytes / bandwidth, fits a line through the latencies of a stage over its bytes, and
reads the slope as 1 / bandwidth and the intercept as the compute time. Its bytes are an estimate of what a stage reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

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


class Line(NamedTuple):
    """Of one stage: S4's line through `sizes` of its latencies, a copy of as many bytes as it moves, and `rest_ms`, what
    such a copy leaves of its time in the median over the sizes. `no_line`, `no_copy`, `no_rest`: why there is none."""

    about: Mapping[str, Any]  # keys and conditions of its rows
    gb_s: Triple
    intercept_ms: Triple
    sizes: int
    no_line: str
    copy_gb_s: Triple
    copies: int
    no_copy: str
    rest_ms: Triple
    no_rest: str


def s4_lines(tables: S4Tables, fit: Fitted) -> list[Line]:
    """S4's lines by its own count of bytes, beside measured copies."""
    lines, layer = [], tables.layer
    for rate in tables.rates.to_dict("records"):
        part = tables.entries[(tables.entries[["device", "number"]] == [rate["device"], rate["number"]]).all(axis=1)]
        times = part[["total_time_ms", "low_ms", "high_ms"]].to_numpy().T
        size = data_bytes(rate["number"], part["nodes"], part["edges"], layer.features).to_numpy()
        there = layer.name == "sage" and len(size) >= FEWEST_SIZES and len(set(size)) > 1
        gb_s, intercept_ms = line(size, times, fit) if there else (NONE, NONE)
        rest_ms = tuple(np.median(times - part["transfer_time_ms"].to_numpy(), axis=1).tolist())
        no_rest = NO_COPIES if not rate["n"] else "" if rest_ms[1] > 0 else NO_COMPUTE
        about = {"runs_on": rate["device"], "device": chip(rate["processor"], rate["chip"])}
        about |= {"runtime": rate["runtime_version"], "threads": rate["threads"] * (rate["processor"] == "CPU")}
        about |= {name: rate[name] for name in ("stage", "precision")}
        s4 = gb_s, intercept_ms, len(size) * there, "" if gb_s[0] > 0 else NOT_ABOVE_0 if there else NO_LINE
        copy = (rate["gb_s"], rate["gb_s_low"], rate["gb_s_high"]), rate["n"], rate["diagnosis"]
        lines.append(Line(about, *s4, *copy, NONE if no_rest else rest_ms, no_rest))
    return lines


def s4_studies(lines: Sequence[Line]) -> dict[str, pd.DataFrame]:
    """Rows for `lab.record` by study; keys are runs_on (the device) and stage.

    `bandwidth`: GB/s by S4's line and by a copy. `bandwidth_ratio`: how far they agree. `intercept_ratio`: how far the
    intercept agrees with the rest that a copy leaves; of stages that have a line.
    """
    bandwidths, ratios, intercepts = [], [], []
    for each in lines:
        open_end = not each.no_line and np.isnan(each.gb_s[2])
        notes = f"no upper end, as the slope may be 0: at least {each.gb_s[1]:.3g} GB/s" if open_end else ""
        copy = each.copy_gb_s, each.copies, each.no_copy
        bandwidths.append(_row(each, each.gb_s, each.sizes, each.no_line, notes=notes))
        bandwidths.append(_row(each, *copy, form=A_COPY, origin="interpolated"))
        why = each.no_line or each.no_copy or NO_END * open_end
        both = [clamped(*numbers, each.sizes) for numbers in (each.gb_s, each.copy_gb_s)]
        ratios.append(_row(each, NONE if why else agreement(*astuple(quotient(*both))[:3]), each.sizes, why))
        if each.sizes:
            ends = np.divide.outer(each.intercept_ms[1:], each.rest_ms)
            ratio = agreement(each.intercept_ms[0] / each.rest_ms[0], ends.min(), ends.max())
            intercepts.append(_row(each, ratio, each.sizes, each.no_rest))
    negative = sum(each.intercept_ms[0] < 0 for each in lines)
    return {
        "bandwidth": pd.DataFrame(bandwidths).assign(unit="GB/s", better="higher"),
        "bandwidth_ratio": _agreements(ratios),
        "intercept_ratio": _agreements(intercepts, f"{negative} of {len(intercepts)} intercepts are negative"),
    }


def agreement(ratio: float, low: float, high: float) -> Triple:
    """The smaller of two numbers over the larger, from their ratio and its interval: 1 where they are equal, 0 where
    one of them is not above 0. A ratio that is too high in one place makes up for none that is too low in another.
    """
    value, *ends = (min(r, 1 / r) if r > 0 else 0.0 for r in (ratio, low, high))
    return value, min(value, *ends), 1.0 if low <= 1 <= high else max(value, *ends)


def _row(each: Line, numbers: Triple, n: int, why: str, **fields: Any) -> dict[str, Any]:
    """A row of a stage, or the reason why it has none."""
    fixed = {"form": S4, "origin": "measured", "statistic": "estimate", "interval": CONFIDENCE}
    ends = dict(zip(("value", "low", "high"), numbers, strict=True))
    status = {"status": "unavailable", "reason": why} if why else {"status": "ok"}
    return {**each.about, **fixed, **ends, "n": n, **status, **fields}


def _agreements(rows: list[dict[str, Any]], *notes: str) -> pd.DataFrame:
    """Each row with a note on the stages that have none, since a mean over the others says nothing of these."""
    if reasons := Counter(row["reason"] for row in rows if "reason" in row):
        each = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
        notes += (f"{reasons.total()} of {len(rows)} stages have no such ratio: {each}",)
    return pd.DataFrame(rows).assign(unit="x", better="neither", notes="; ".join(notes))
