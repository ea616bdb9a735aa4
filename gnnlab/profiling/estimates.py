"""A number with its interval: of samples, of the ratio of two forms, over several cells, over several runs.

    ratio(baseline_ms, form_ms, control_ms)      # of one cell; what the A/A control shows is in its interval
    geometric_mean([...])                        # over cells that were measured by themselves
    pooled([...])                                # over runs of a notebook, each in a process of its own

An interval is at 95 %. Fewer than six samples of a median have none: their extremes do not reach 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binomtest
from scipy.stats import t as student

from .intervals import PERCENTILE_FLOORS, median_interval, statistic_interval

LEAST_SAMPLES = 6  # whose extremes hold the median in 97 of 100 cases, as those of five do in 94
STATISTICS = ("median", "mean", "p95", "share")
_RESAMPLES = 999


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; `low` and `high` are None where the samples support none. `n` is the samples."""

    value: float
    low: float | None
    high: float | None
    n: int

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"an interval has two ends or none, got {self.low} and {self.high}")
        if self.low is not None and not self.low <= self.value <= self.high:
            raise ValueError(f"the value {self.value} lies outside of its interval, {self.low} to {self.high}")

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None else (self.low, self.high)


def summary(samples: Sequence[float], statistic: str = "median") -> Estimate:
    """The `statistic` (median, mean, p95 or share) of `samples` (n,), in their unit; a share is of samples above 0.

    The mean's interval is Student's, that of a share Wilson's. Raises `ValueError` where there are no samples.
    """
    x = np.asarray(samples, dtype=float)
    if not x.size or statistic not in STATISTICS:
        raise ValueError(f"summary needs samples and one of {', '.join(STATISTICS)}, got {x.size} and {statistic!r}")
    if statistic == "share":
        hits = int((x > 0).sum())
        low, high = binomtest(hits, x.size).proportion_ci(method="wilson")
        return _held(hits / x.size, float(low), float(high), x.size)
    if statistic == "p95":
        enough = x.size >= PERCENTILE_FLOORS[95]
        ends = statistic_interval(lambda v, axis: np.percentile(v, 95, axis=axis), x) if enough else (None, None)
        return _held(float(np.percentile(x, 95)), *ends, x.size)
    if statistic == "mean":
        return _of_mean(x)
    ends = median_interval(x) if x.size >= LEAST_SAMPLES else (None, None)
    return _held(float(np.median(x)), *ends, x.size)


def ratio(
    baseline: Sequence[float], form: Sequence[float], control: Sequence[float] | None = None, *, of: str = "median"
) -> Estimate:
    """How many times as fast `form` is as `baseline`: their times (n,), one a round, of rounds that were interleaved.

    The median of the ratios within a round, or with `of="mean"` the ratio of the mean times, which is that of
    throughputs. `control` are times of the baseline run a second time in each round (A/A): what its ratio differs from
    1 by is noise of this race, and widens the interval by the same factor on both sides.
    """
    base, other = np.asarray(baseline, dtype=float), np.asarray(form, dtype=float)
    floor = 1.0 if control is None else noise_floor(base, np.asarray(control, dtype=float))
    found = _of_means(base, other) if of == "mean" else summary(base / other)
    if found.low is None:
        return found
    return replace(found, low=found.low / floor, high=found.high * floor)


def noise_floor(baseline: np.ndarray, control: np.ndarray) -> float:
    """What an A/A control shows beyond 1, as a factor of 1 or more."""
    return math.exp(abs(math.log(float(np.median(baseline / control)))))


def geometric_mean(cells: Sequence[Estimate]) -> Estimate:
    """The geometric mean over `cells` (ratios, all above 0); `n` is the least of theirs.

    Cells are measured by themselves, so the logarithmic half-widths of their intervals add as squares.
    """
    return _combined(cells, np.log([cell.value for cell in cells]), min(cell.n for cell in cells))


def worst(cells: Sequence[Estimate]) -> Estimate:
    """The least of `cells`, with an interval from the least low end to the least high end: which one is the least was
    seen in the same samples, so its own interval would be too narrow."""
    ends = [cell.interval for cell in cells]
    n = min(cell.n for cell in cells)
    value = min(cell.value for cell in cells)
    if any(interval is None for interval in ends):
        return Estimate(value, None, None, n)
    return _held(value, min(low for low, _ in ends), min(high for _, high in ends), n)


def middle(cells: Sequence[Estimate]) -> Estimate:
    """The median over `cells`, each with an interval of its own; its ends are the medians of theirs.

    What an interval of a cell leaves open is so in that of the median, which noise can widen and never shift alone.
    """
    value, n = float(np.median([cell.value for cell in cells])), min(cell.n for cell in cells)
    if any(cell.low is None for cell in cells):
        return Estimate(value, None, None, n)
    return _held(value, *(float(np.median([getattr(cell, end) for cell in cells])) for end in ("low", "high")), n)


def over_clusters(
    values: Sequence[float], clusters: Sequence[object], statistic: str, within: float | None = None
) -> Estimate:
    """The mean, median or share (of magnitudes that are at most `within`) of `values`, of which those of one cluster
    share a graph or a fit and are therefore no samples of their own.

    Clusters are resampled, not values; with few of them the interval is widened as Student's is. A share's is at least
    as wide as Wilson's for as many samples as there are clusters. One cluster has no interval.
    """
    x = np.asarray(values, dtype=float)
    x = (np.abs(x) <= within).astype(float) if statistic == "share" else x
    groups = [x[[c == key for c in clusters]] for key in dict.fromkeys(clusters)]
    centre: Callable[[np.ndarray], float] = np.median if statistic == "median" else np.mean
    value, k = float(centre(x)), len(groups)
    if k < 2:
        return Estimate(value, None, None, len(x))
    random = np.random.default_rng(0)
    drawn = [centre(np.concatenate([groups[i] for i in random.integers(0, k, k)])) for _ in range(_RESAMPLES)]
    wider = student.ppf(0.975, k - 1) / 1.96
    low, high = (value + wider * (end - value) for end in np.percentile(drawn, [2.5, 97.5]))
    if statistic == "share":
        wilson = wilson_interval(value, k)
        low, high = max(0.0, min(low, wilson[0])), min(1.0, max(high, wilson[1]))
    return _held(value, float(low), float(high), len(x))


def pooled(runs: Sequence[Estimate], *, log: bool) -> Estimate:
    """One figure of several runs, each in a process of its own; `log` for ratios.

    The interval is the wider, on each side, of the one within the runs and the one between them (Student's, of their
    values): what differs from process to process is in the latter only (Kalibera and Jones 2013).
    """
    if len(runs) == 1:
        return runs[0]
    scale, back = (np.log, math.exp) if log else (np.asarray, float)
    values = scale([run.value for run in runs])
    n, k = sum(run.n for run in runs), len(runs)
    middle = float(np.mean(values))
    between = float(student.ppf(0.975, k - 1) * np.std(values, ddof=1) / math.sqrt(k))
    below = above = between
    if all(run.low is not None for run in runs):
        lows, highs = scale([run.low for run in runs]), scale([run.high for run in runs])
        below = max(between, float(np.linalg.norm(values - lows)) / k)
        above = max(between, float(np.linalg.norm(highs - values)) / k)
    return _held(back(middle), back(middle - below), back(middle + above), n)


def _combined(cells: Sequence[Estimate], logs: np.ndarray, n: int) -> Estimate:
    middle, k = float(np.mean(logs)), len(cells)
    if any(cell.low is None for cell in cells):
        return Estimate(math.exp(middle), None, None, n)
    below = np.linalg.norm(logs - np.log([cell.low for cell in cells])) / k
    above = np.linalg.norm(np.log([cell.high for cell in cells]) - logs) / k
    return _held(math.exp(middle), math.exp(middle - below), math.exp(middle + above), n)


def _of_mean(x: np.ndarray) -> Estimate:
    value = float(x.mean())
    if x.size < 2:
        return Estimate(value, None, None, x.size)
    half = float(student.ppf(0.975, x.size - 1) * x.std(ddof=1) / math.sqrt(x.size))
    return Estimate(value, value - half, value + half, x.size)


def _of_means(base: np.ndarray, other: np.ndarray) -> Estimate:
    """Ratio of the means; its logarithm's error from the rounds, which both share (the delta method)."""
    value, n = float(base.mean() / other.mean()), len(base)
    if n < LEAST_SAMPLES:
        return Estimate(value, None, None, n)
    error = (base / base.mean() - other / other.mean()).std(ddof=1) / math.sqrt(n)
    factor = math.exp(float(student.ppf(0.975, n - 1) * error))
    return _held(value, value / factor, value * factor, n)


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval for a share of n samples that need not be a whole number of them."""
    z2 = 1.96**2
    middle, half = share + z2 / (2 * n), 1.96 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)


def _held(value: float, low: float | None, high: float | None, n: int) -> Estimate:
    """An estimate whose interval holds its value also where rounding put it a bit outside."""
    if low is None or high is None:
        return Estimate(value, None, None, n)
    return Estimate(value, min(low, value), max(high, value), n)
