"""A number with its interval: of samples, of the ratio of two forms, over several cells, over several runs.

    ratio(baseline_ms, form_ms, control_ms)      # of one cell; what the A/A control shows is in its interval
    geometric_mean([...])                        # over cells that were measured by themselves
    pooled([...])                                # over runs of a notebook, each in a process of its own

An interval is at 95 %. Fewer than six samples of a median have none: their extremes do not reach 95 %. A percentile
bootstrap of a median covers less than it says when there are few samples, and less again when sampling stops as soon as
the interval looks narrow (90 to 92 % when it was tried on planted noise). So it is widened to the distribution-free
interval of the order statistics, taken at 98 %; together they cover at least 95 % under every noise that the tests
plant. The record of the choice: docs/decisions/0003.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, stdtrit  # not scipy.stats, which takes a second to load, in each process

LEAST_SAMPLES = 6  # whose extremes hold the median in 97 of 100 cases, as those of five do in 94
CONTROL = "A/A"  # the form that is the baseline a second time
CONFIDENCE = "95 % confidence"  # what an interval is: of the statistic
PREDICTION = "90 % prediction"  # of a single new value
PREDICTION_95 = "95 % prediction"
STATISTICS = ("median", "mean", "p95", "share")
PERCENTILE_FLOORS = {50: 1, 90: 64, 95: 130, 99: 662}  # samples needed, after MLPerf LoadGen's early-stopping floors
_ORDER_CONFIDENCE = 0.98
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

    def __str__(self) -> str:
        return f"{self.value:.4g}" + ("" if self.low is None else f" ({self.low:.4g} to {self.high:.4g})")

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
        share = float((x > 0).mean())
        return held(share, *wilson_interval(share, x.size), x.size)
    if statistic == "p95":
        enough = x.size >= PERCENTILE_FLOORS[95]
        ends = statistic_interval(lambda v, axis: np.percentile(v, 95, axis=axis), x) if enough else (None, None)
        return held(float(np.percentile(x, 95)), *ends, x.size)
    if statistic == "mean":
        return _of_mean(x)
    ends = median_interval(x) if x.size >= LEAST_SAMPLES else (None, None)
    return held(float(np.median(x)), *ends, x.size)


def ratio(
    baseline: Sequence[float], form: Sequence[float], control: Sequence[float] | None = None, *, of: str = "median"
) -> Estimate:
    """How many times as fast `form` is as `baseline`: their times (n,), one a round, of rounds that were interleaved.

    The median of the ratios within a round, or with `of="mean"` the ratio of the mean times, which is that of
    throughputs. `control` are times of the baseline run a second time in each round (A/A): what its ratio differs from
    1 by is noise of this race, and widens the interval by the same factor on both sides.
    """
    base, other = np.asarray(baseline, dtype=float), np.asarray(form, dtype=float)
    if base.shape != other.shape:
        raise ValueError(f"ratio: {base.size} times of the baseline, {other.size} of the form; each round needs both")
    floor = 1.0 if control is None else noise_floor(base, np.asarray(control, dtype=float))
    estimate = _of_means(base, other) if of == "mean" else summary(base / other)
    if estimate.low is None:
        return estimate
    return replace(estimate, low=estimate.low / floor, high=estimate.high * floor)


def noise_floor(baseline: np.ndarray, control: np.ndarray) -> float:
    """What an A/A control shows beyond 1, as a factor of 1 or more."""
    return math.exp(abs(math.log(float(np.median(baseline / control)))))


def geometric_mean(cells: Sequence[Estimate]) -> Estimate:
    """The geometric mean over `cells` (ratios, all above 0); `n` is the least of theirs.

    Cells are measured by themselves, so the logarithmic half-widths of their intervals add as squares.
    """
    values, lows, highs, n = _columns(cells)
    logs, k = np.log(values), len(cells)
    middle = float(np.mean(logs))
    below, above = (np.linalg.norm(np.log(ends) - logs) / k for ends in (lows, highs))
    return held(math.exp(middle), math.exp(middle - below), math.exp(middle + above), n)


def _columns(cells: Sequence[Estimate]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Values, low and high ends (NaN where there is none), and the least `n`."""
    rows = np.array([(cell.value, cell.low, cell.high) for cell in cells], dtype=float)
    return *rows.T, min(cell.n for cell in cells)


def quotient(above: Estimate, below: Estimate) -> Estimate:
    """`above` over `below`, both above 0 and measured by themselves: the logarithmic half-widths of their intervals add
    as squares. `n` is the least of theirs."""
    (value, under), (low, under_low), (high, under_high), n = _columns([above, below])
    down = math.hypot(math.log(value / low), math.log(under_high / under))
    up = math.hypot(math.log(high / value), math.log(under / under_low))
    return held(value / under, value / under * math.exp(-down), value / under * math.exp(up), n)


def worst(cells: Sequence[Estimate]) -> Estimate:
    """The least of `cells`, with an interval from the least low end to the least high end: which one is the least was
    seen in the same samples, so its own interval would be too narrow."""
    *columns, n = _columns(cells)
    return held(*(float(column.min()) for column in columns), n)


def middle(cells: Sequence[Estimate]) -> Estimate:
    """The median over `cells`, each with an interval of its own; its interval is the medians of the interval ends."""
    *columns, n = _columns(cells)
    return held(*(float(np.median(column)) for column in columns), n)


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
    wider = stdtrit(k - 1, 0.975) / 1.96
    low, high = (value + wider * (end - value) for end in np.percentile(drawn, [2.5, 97.5]))
    if statistic == "share":
        wilson = wilson_interval(value, k)
        low, high = max(0.0, min(low, wilson[0])), min(1.0, max(high, wilson[1]))
    return held(value, float(low), float(high), len(x))


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
    between = float(stdtrit(k - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(k))
    below = above = between
    if all(run.low is not None for run in runs):
        lows, highs = scale([run.low for run in runs]), scale([run.high for run in runs])
        below = max(between, float(np.linalg.norm(values - lows)) / k)
        above = max(between, float(np.linalg.norm(highs - values)) / k)
    return held(back(middle), back(middle - below), back(middle + above), n)


def _of_mean(x: np.ndarray) -> Estimate:
    value = float(x.mean())
    if x.size < 2:
        return Estimate(value, None, None, x.size)
    half = float(stdtrit(x.size - 1, 0.975) * x.std(ddof=1) / math.sqrt(x.size))
    return Estimate(value, value - half, value + half, x.size)


def _of_means(base: np.ndarray, other: np.ndarray) -> Estimate:
    """Ratio of the means; its logarithm's error from the rounds, which both share (the delta method)."""
    value, n = float(base.mean() / other.mean()), len(base)
    if n < LEAST_SAMPLES:
        return Estimate(value, None, None, n)
    error = (base / base.mean() - other / other.mean()).std(ddof=1) / math.sqrt(n)
    factor = math.exp(float(stdtrit(n - 1, 0.975) * error))
    return held(value, value / factor, value * factor, n)


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval for a share of n samples; one between two whole numbers of them gets the ends of both."""
    from scipy.stats import binomtest  # takes a second to load, which other statistics need not wait for

    below, above = math.floor(share * n + 1e-9), math.ceil(share * n - 1e-9)
    low, high = (binomtest(hits, n).proportion_ci(method="wilson") for hits in (below, above))
    return float(low.low), float(high.high)


def held(value: float, low: float | None, high: float | None, n: int) -> Estimate:
    """An estimate whose interval holds its value also where rounding put it a bit outside; none where an end is NaN."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return Estimate(value, None, None, n)
    return Estimate(value, min(low, value), max(high, value), n)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median of `samples` (n,), in their unit.

    Raises:
        ValueError: fewer than `LEAST_SAMPLES`, which have none.
    """
    x = np.sort(np.asarray(samples, dtype=float))
    if x.size < LEAST_SAMPLES:
        raise ValueError(f"{x.size} samples: an interval needs at least {LEAST_SAMPLES}")
    if x[0] == x[-1]:
        return float(x[0]), float(x[0])
    low, high = statistic_interval(np.median, x)
    order_low, order_high = order_interval(x)
    return max(min(low, order_low), float(x[0])), min(max(high, order_high), float(x[-1]))


def order_interval(samples: Sequence[float]) -> tuple[float, float]:
    """98 % interval of the median from the order statistics alone: no resampling, for decisions while sampling."""
    x = np.sort(np.asarray(samples, dtype=float))
    rank = _rank(x.size)
    return (float(x[rank - 1]), float(x[x.size - rank])) if rank > 0 else (float(x[0]), float(x[-1]))


@lru_cache(maxsize=4096)
def _rank(n: int) -> int:
    """The largest rank that fewer than 1 % of samples of n have below the median."""
    return int(np.searchsorted(bdtr(np.arange(n + 1), n, 0.5), (1 - _ORDER_CONFIDENCE) / 2))


def statistic_interval(statistic: Callable[..., np.ndarray], samples: Sequence[float]) -> tuple[float, float]:
    """95 % percentile-bootstrap interval (Efron 1979) of any statistic that takes `axis`."""
    x = np.asarray(samples, dtype=float)
    if x.size < 2 or x.min() == x.max():
        value = float(statistic(x, axis=0))
        return value, value
    drawn = x[np.random.default_rng(0).integers(0, x.size, (_RESAMPLES, x.size))]  # (resamples, samples)
    low, high = np.percentile(statistic(drawn, axis=-1), [2.5, 97.5])
    return float(low), float(high)


def percentile(samples: Sequence[float], q: int) -> float | None:
    """The q-th percentile (50, 90, 95 or 99), or None where there are too few samples to speak of it."""
    if q not in PERCENTILE_FLOORS:
        raise ValueError(f"percentile {q}: the lab states sample floors for {sorted(PERCENTILE_FLOORS)} only")
    return float(np.percentile(samples, q)) if len(samples) >= PERCENTILE_FLOORS[q] else None
