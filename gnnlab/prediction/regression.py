"""S4's estimate of bandwidth, as it stands, against measured copies.

    def s4(moved_bytes, ms):                  # latency = intercept + slope * bytes; a reader may change it
        return np.polyfit(moved_bytes, ms, deg=1)

    studies = s4_studies(tables, s4)          # rows for `lab.record`, by study

S4 takes latency = compute + bytes / bandwidth, fits a line through the latencies of a stage over its bytes, and
reads the slope as 1 / bandwidth and the intercept as the compute time. Its bytes are an estimate of what a stage reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.measure.estimates import CONFIDENCE, clamped, quotient
from gnnlab.prediction.copies import CONDITIONS
from gnnlab.prediction.tables import S4Tables

S4, A_COPY = "S4", "measured copy"
NOT_ABOVE_0 = "its slope is not above 0, so that it gives no bandwidth"
NO_END = "its slope may be 0, so that its bandwidth has no upper end"
NO_LINE = "no line: S4 has no bytes for it, or there are fewer than three sizes"
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


def line(size_bytes: np.ndarray, ms: np.ndarray, low_ms: np.ndarray, high_ms: np.ndarray, fit: Fitted) -> dict:
    """`fit` of latencies (sizes,) over bytes: `gb_s` of 1 / slope and `intercept_ms`, each value, low and high (95 %;
    NaN where there is none), and how many `sizes`. Intervals: latencies drawn as log-normal within their own."""
    slope, intercept = map(float, fit(size_bytes, ms))
    noise = np.random.default_rng(0).normal(0, 1, (DRAWS, len(ms)))
    drawn = ms * np.exp(noise * np.log(high_ms / low_ms) / (2 * 1.96))
    (least, least_ms), (most, most_ms) = np.percentile(fit(size_bytes, drawn.T), [2.5, 97.5], axis=1)
    gb_s = tuple(1e-6 / s if slope > 0 and s > 0 else np.nan for s in (slope, most, least))
    return {"gb_s": gb_s, "intercept_ms": (intercept, float(least_ms), float(most_ms)), "sizes": len(ms)}


def s4_studies(tables: S4Tables, fit: Fitted) -> dict[str, pd.DataFrame]:
    """Rows by study, of pu and stage: `bandwidth` by S4's line and by a copy, and how far the two agree, in bandwidth
    (`bandwidth_ratio`) and in compute time (`intercept_ratio`)."""
    lines = s4_lines(tables, fit)
    ratios = {"bandwidth_ratio": bandwidth_ratio_rows(lines), "intercept_ratio": intercept_ratio_rows(lines)}
    return {"bandwidth": bandwidth_rows(lines), **ratios}


def s4_lines(tables: S4Tables, fit: Fitted) -> pd.DataFrame:
    """S4's line of each stage by its own count of bytes, beside a measured copy and what that leaves of the time.

    Columns: pu, stage, origin, conditions; gb_s, intercept_ms (value, low, high), sizes of the line and no_line (why it
    gives no bandwidth); copy_gb_s, copies and no_copy of a copy of as many bytes as the stage moves; rest_ms and
    no_rest of what such a copy leaves of the time, in the median over the sizes.
    """
    layer, entries = tables.layer, tables.entries
    rows = []
    for rate in tables.rates.to_dict("records"):
        part = entries[(entries["unit"] == rate["unit"]) & (entries["number"] == rate["number"])]
        times = [part[name].to_numpy() for name in ("total_time_ms", "low_ms", "high_ms")]
        fitted, no_line = {"gb_s": NONE, "intercept_ms": NONE, "sizes": 0}, NO_LINE
        if layer.name == "sage" and len(part) >= FEWEST_SIZES:
            size = data_bytes(rate["number"], part["nodes"], part["edges"], layer.features).to_numpy()
            if len(set(size)) > 1:
                fitted = line(size, *times, fit)
                no_line = NOT_ABOVE_0 if np.isnan(fitted["gb_s"][0]) else ""
        rest = tuple(float(np.median(ms - part["transfer_time_ms"])) for ms in times)
        no_rest = "" if rest[1] > 0 else "its compute time cannot be separated from a copy of its bytes"
        if not rate["n"]:
            no_rest = f"no copies through {rate['unit']} were measured"
        copy = {"copy_gb_s": (rate["gb_s"], rate["gb_s_low"], rate["gb_s_high"]), "copies": rate["n"]}
        about = {"pu": rate["unit"], **{name: rate[name] for name in ("stage", "origin", *CONDITIONS)}}
        reasons = {"no_line": no_line, "no_copy": rate["why"], "no_rest": no_rest}
        rows.append({**about, **fitted, **copy, "rest_ms": rest, **reasons})
    return pd.DataFrame(rows)


# ---- rows for `Lab.record`, by pu and stage --------------------------------------------------------------------------


def bandwidth_rows(lines: pd.DataFrame) -> pd.DataFrame:
    """GB/s by the slope of the line, and of a measured copy of as many bytes as the stage moves."""
    open_end = [np.isfinite(value) and np.isnan(high) for value, _, high in lines["gb_s"]]
    at_least = [f"no upper end, as the slope may be 0: at least {low:.3g} GB/s" for _, low, _ in lines["gb_s"]]
    notes = pd.Series(at_least, lines.index, dtype=object).where(open_end)
    s4 = _rows(lines, lines["gb_s"], lines["sizes"], lines["no_line"]).assign(form=S4, notes=notes)
    copy = _rows(lines, lines["copy_gb_s"], lines["copies"], lines["no_copy"])
    rows = pd.concat([s4, copy.assign(form=A_COPY, origin="interpolated")]).sort_index(kind="stable")
    return rows.assign(unit="GB/s", better="higher", statistic="estimate", interval=CONFIDENCE)


def bandwidth_ratio_rows(lines: pd.DataFrame) -> pd.DataFrame:
    """How far S4's bandwidth and that of a measured copy agree: the smaller over the larger."""
    why, ratios = [], []
    for stage in lines.itertuples():
        why.append(stage.no_line or stage.no_copy or (NO_END if np.isnan(stage.gb_s[2]) else ""))
        bandwidths = (clamped(*triple, stage.sizes) for triple in (stage.gb_s, stage.copy_gb_s))
        ratios.append(NONE if why[-1] else astuple(quotient(*bandwidths))[:3])
    return _agreements(lines, ratios, why)


def intercept_ratio_rows(lines: pd.DataFrame) -> pd.DataFrame:
    """How far S4's intercept and the measured compute time agree: the smaller over the larger. The compute time is what
    a measured copy of the stage's bytes leaves of its time; stages without a line have no row."""
    lines, ratios = lines[lines["sizes"] > 0], []
    for stage in lines.itertuples():
        if stage.no_rest:
            ratios.append(NONE)
            continue
        value, *ends = stage.intercept_ms
        ends = [end / rest for end in ends for rest in stage.rest_ms]
        ratios.append((value / stage.rest_ms[0], min(ends), max(ends)))
    negative = sum(value < 0 for value, _, _ in lines["intercept_ms"])
    return _agreements(lines, ratios, lines["no_rest"], f"{negative} of {len(lines)} intercepts are negative")


def agreement(ratio: float, low: float, high: float) -> Triple:
    """The smaller of two numbers over the larger, from their ratio and its interval: 1 where they are equal, 0 where
    one of them is not above 0. A ratio that is too high in one place makes up for none that is too low in another.
    """
    value, *ends = (min(r, 1 / r) if r > 0 else 0.0 for r in (ratio, low, high))
    return value, min(value, *ends), 1.0 if low <= 1 <= high else max(value, *ends)


def _agreements(lines: pd.DataFrame, ratios: Sequence[Triple], why: Sequence[str], *notes: str) -> pd.DataFrame:
    """Each row with a note on the stages that have none, since a mean over the others says nothing of these."""
    if reasons := Counter(filter(None, why)):
        each = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
        notes += (f"{reasons.total()} of {len(lines)} stages have no such ratio: {each}",)
    rows = _rows(lines, [agreement(*ratio) for ratio in ratios], lines["sizes"], why).assign(notes="; ".join(notes))
    return rows.assign(form=S4, unit="x", better="neither", statistic="estimate", interval=CONFIDENCE)


def _rows(lines: pd.DataFrame, numbers: Sequence[Triple], n: pd.Series, why: Sequence[str]) -> pd.DataFrame:
    """Value, low and high of each stage, or the reason why it has none."""
    value, low, high = np.array(list(numbers), dtype=float).reshape(-1, 3).T
    reason = pd.Series(list(why), lines.index, dtype=object)
    status = {"status": np.where(reason != "", "unavailable", "ok"), "reason": reason.where(reason != "")}
    return lines.assign(value=value, low=low, high=high, n=n, **status)
