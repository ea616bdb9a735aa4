"""S4's estimate of bandwidth, as it stands, against measured copies.

    def s4(moved_bytes, ms):                  # latency = intercept + slope * bytes; a reader may change it
        return np.polyfit(moved_bytes, ms, deg=1)

    lines = regress(found, s4)                # of every stage on the unit of each processor, with intervals
    lines.bandwidth()                         # rows for `lab.record`

S4 takes latency = compute + bytes / bandwidth, fits a line through the latencies of a stage over its bytes, and
reads the slope as 1 / bandwidth and the intercept as the compute time. Its bytes are an estimate of what a stage reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.prediction.measured import CONDITIONS
from gnnlab.profiling.estimates import CONFIDENCE, held, quotient

if TYPE_CHECKING:
    from gnnlab.prediction.bandwidth import BandwidthFindings

S4, A_COPY = "S4", "measured copy"
NOT_ABOVE_0 = "its slope is not above 0, so that it gives no bandwidth"
NO_END = "its slope may be 0, so that its bandwidth has no upper end"
NUMBER_BYTES = 4  # S4 counts numbers; float32
FEWEST_SIZES = 3  # a line through two points fits whatever they are
DRAWS = 400
Triple = tuple[float, float, float]  # value, low, high (95 %); NaN where there is none
Fitted = Callable[[np.ndarray, np.ndarray], Any]  # bytes (sizes,), ms (sizes,) or (sizes, draws) -> slope, intercept


def data_bytes(stage: int, nodes: Any, edges: Any, features: int) -> Any:
    """Bytes of a stage as S4 estimates them: x and edge_index, messages and edge_index, or x alone.

    `nodes` and `edges` are numbers or arrays. Raises `GnnlabError` for a stage that S4 does not have.
    """
    rows, edge_index = nodes * features, 2 * edges
    numbers = {1: rows + edge_index, 2: edges * features + edge_index, 3: edges * features + edge_index,
               4: rows + edge_index, 5: rows + nodes, 6: rows, 7: rows}  # fmt: skip
    if stage not in numbers:
        raise GnnlabError(f"S4 estimates no bytes for stage {stage}; it has stages 1..7")
    return NUMBER_BYTES * numbers[stage]


@dataclass(frozen=True)
class Line:
    """What a fit gives for one stage: GB/s of 1 / slope, the intercept, and of how many sizes."""

    gb_s: Triple
    intercept_ms: Triple
    r2: float
    n: int

    @property
    def why(self) -> str:
        """Why it gives no bandwidth."""
        return NOT_ABOVE_0 if np.isnan(self.gb_s[0]) else ""


def line(size_bytes: np.ndarray, ms: np.ndarray, low_ms: np.ndarray, high_ms: np.ndarray, fit: Fitted) -> Line:
    """`fit` of latencies (sizes,) over bytes. Its intervals: latencies drawn as log-normal within their own."""
    slope, intercept = map(float, fit(size_bytes, ms))
    noise = np.random.default_rng(0).normal(0, 1, (DRAWS, len(ms)))
    drawn = ms * np.exp(noise * np.log(high_ms / low_ms) / (2 * 1.96))
    (least, least_ms), (most, most_ms) = np.percentile(fit(size_bytes, drawn.T), [2.5, 97.5], axis=1)
    rates = tuple(1e-6 / s if slope > 0 and s > 0 else np.nan for s in (slope, most, least))
    left = ms - intercept - slope * size_bytes
    return Line(rates, (intercept, float(least_ms), float(most_ms)), float(1 - left.var() / ms.var()), len(ms))


@dataclass(frozen=True)
class _Stage:
    """A stage on a unit: S4's line, where there is one, a copy of as many bytes as it moves, and what that leaves."""

    about: dict[str, Any]
    line: Line | None
    no_line: str
    copy: Triple
    no_copy: str
    copies: int
    rest_ms: Triple
    no_rest: str


@dataclass(frozen=True)
class FittedLines:
    """S4's lines of every stage and measured copies; each method gives rows, by unit (pu) and stage."""

    stages: tuple[_Stage, ...]

    def bandwidth(self) -> pd.DataFrame:
        """GB/s by the slope of the line, and of a measured copy of as many bytes as the stage moves."""
        rows = []
        for stage in self.stages:
            value, low, high = stage.line.gb_s if stage.line else (np.nan,) * 3
            notes = []
            if np.isfinite(value) and np.isnan(high):
                notes.append(f"no upper end, as the slope may be 0: at least {low:.3g} GB/s")
            s4 = {"form": S4, "value": value, "low": low, "high": high, "n": stage.line.n if stage.line else 0}
            rows.append({**stage.about, **s4, **_status(stage.no_line), "notes": notes})
            value, low, high = stage.copy
            copy = {"form": A_COPY, "value": value, "low": low, "high": high, "n": stage.copies}
            rows.append({**stage.about, **copy, **_status(stage.no_copy), "origin": "interpolated"})
        fixed = {"unit": "GB/s", "better": "higher", "statistic": "estimate", "interval": CONFIDENCE}
        return pd.DataFrame(rows).assign(**fixed)

    def bandwidth_ratio(self) -> pd.DataFrame:
        """How far S4's bandwidth and that of a measured copy agree: the smaller over the larger."""
        rows = []
        for stage in self.stages:
            why = stage.no_line or stage.no_copy or (NO_END if np.isnan(stage.line.gb_s[2]) else "")
            found = {}
            if not why:
                ratio = quotient(*(held(*triple, stage.line.n) for triple in (stage.line.gb_s, stage.copy)))
                found = {"n": ratio.n, **agreement(ratio.value, ratio.low, ratio.high)}
            rows.append({**stage.about, **found, **_status(why)})
        return _agreements(rows)

    def intercept_ratio(self) -> pd.DataFrame:
        """How far S4's intercept and the measured compute time agree: the smaller over the larger.

        The compute time is what a measured copy of the stage's bytes leaves of its time, in the median over the sizes,
        as S4 has one for all.
        """
        rows, lines = [], [stage for stage in self.stages if stage.line]
        for stage in lines:
            found, (value, low, high) = {}, stage.line.intercept_ms
            if not stage.no_rest:
                ends = [end / rest for end in (low, high) for rest in stage.rest_ms]
                found = {"n": stage.line.n, **agreement(value / stage.rest_ms[0], min(ends), max(ends))}
            rows.append({**stage.about, **found, **_status(stage.no_rest)})
        negative = sum(stage.line.intercept_ms[0] < 0 for stage in lines)
        return _agreements(rows, f"{negative} of {len(lines)} intercepts are negative")


def regress(found: BandwidthFindings, fit: Fitted) -> FittedLines:
    """S4's line of each stage, by its own count of bytes, where there are times at three sizes and more."""
    layer, stages = found.predictor.layer, []
    for rate in found.rates.to_dict("records"):
        part = found.entries[(found.entries["unit"] == rate["unit"]) & (found.entries["number"] == rate["number"])]
        made, why = None, "no line: S4 has no bytes for it, or there are fewer than three sizes"
        times = [part[name].to_numpy() for name in ("total_time_ms", "low_ms", "high_ms")]
        if layer.name == "sage" and len(part) >= FEWEST_SIZES:
            size = data_bytes(rate["number"], part["nodes"], part["edges"], layer.features).to_numpy()
            made = line(size, *times, fit) if len(set(size)) > 1 else None
        rest = tuple(float(np.median(ms - part["transfer_time_ms"])) for ms in times)
        no_rest = "" if rest[1] > 0 else "its compute time cannot be separated from a copy of its bytes"
        if part["diagnosis"].str.contains("no copies").any():
            no_rest = f"no copies through {rate['unit']} were measured"
        about = {"pu": rate["unit"], **{name: rate[name] for name in ("stage", "origin", *CONDITIONS)}}
        copy = (rate["gb_s"], rate["gb_s_low"], rate["gb_s_high"])
        why = made.why if made else why
        stages.append(_Stage(about, made, why, copy, rate["why"], rate["n"], rest, no_rest))
    return FittedLines(tuple(stages))


def agreement(ratio: float, low: float, high: float) -> dict[str, float]:
    """The smaller of two numbers over the larger, from their ratio and its interval: 1 where they are equal, 0 where
    one of them is not above 0. A ratio that is too high in one place makes up for none that is too low in another.
    """
    value, *ends = (min(r, 1 / r) if r > 0 else 0.0 for r in (ratio, low, high))
    top = 1.0 if low <= 1 <= high else max(value, *ends)
    return {"value": value, "low": min(value, *ends), "high": top}


def _status(why: str) -> dict[str, Any]:
    return {"status": "unavailable", "reason": why} if why else {"status": "ok", "reason": None}


def _agreements(rows: Sequence[dict[str, Any]], *notes: str) -> pd.DataFrame:
    """Each row with a note on the stages that have none, since a mean over the others says nothing of these."""
    reasons = Counter(row["reason"] for row in rows if row["reason"])
    if reasons:
        each = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
        notes += (f"{reasons.total()} of {len(rows)} stages have no such ratio: {each}",)
    fixed = {"form": S4, "unit": "x", "better": "neither", "statistic": "estimate", "interval": CONFIDENCE}
    return pd.DataFrame([{**fixed, **row, "notes": [] if row["reason"] else list(notes)} for row in rows])
