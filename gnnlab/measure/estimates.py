"""A number with its interval: of samples, of the ratio of two variants, over several cells, over several runs.

    ratio(baseline_ms, variant_ms, control_ms)      # of one cell; what the A/A control shows is in its interval
    geometric_mean([...])                        # over cells that were measured by themselves
    combine_runs([...])                          # over runs of a notebook, each in a process of its own

An interval is at 95 %. Fewer than six samples have none. docs/decisions/0003 says how each one
comes about, and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from scipy.special import bdtr, stdtrit  # not scipy.stats, which takes a second to load, in each process

LEAST_SAMPLES = 6  # whose extremes hold the median in 97 of 100 cases, as those of five do in 94
LEAST_GROUPS = 3  # runs or clusters; Student's interval of two is 12.7 standard errors
BLOCKS, LEAST_OF_BLOCKS = 6, 24  # of samples in their order, and how many there have to be
CONTROL = "A/A"  # the variant that is the baseline a second time
CONFIDENCE = "95 % confidence"  # what an interval is: of the statistic
PREDICTION = "90 % prediction"  # of a single new value
PREDICTION_95 = "95 % prediction"
STATISTICS = ("median", "mean", "p95", "share")
PERCENTILE_FLOORS = {50: 1, 90: 64, 95: 130, 99: 662}  # samples needed, after MLPerf LoadGen's early-stopping floors
_ORDER_CONFIDENCE = 0.98
_RESAMPLES = 999
Ends = tuple[float, float]


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
    def interval(self) -> Ends | None:
        return None if self.low is None else (self.low, self.high)

    def widened(self, factor: float) -> Estimate:
        """With an interval that is wider by this factor on both sides."""
        return self if self.low is None else replace(self, low=self.low / factor, high=self.high * factor)


def clamped(value: float, low: float | None, high: float | None, n: int) -> Estimate:
    """An estimate whose interval holds its value also where rounding put it a bit outside; none where an end is NaN."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return Estimate(value, None, None, n)
    return Estimate(value, min(low, value), max(high, value), n)


def summary(samples: Sequence[float], statistic: str = "median") -> Estimate:
    """The `statistic` (median, mean, p95 or share) of `samples` (n,), in their unit; a share is of samples above 0.

    Times are in the order in which they were taken (`median_interval`). The mean's interval is Student's, that of a
    share Wilson's. Raises `ValueError` where there are no samples.
    """
    x = np.asarray(samples, dtype=float)
    if not x.size or statistic not in STATISTICS:
        raise ValueError(f"summary needs samples and one of {', '.join(STATISTICS)}, got {x.size} and {statistic!r}")
    if statistic == "share":
        x = (x > 0).astype(float)
    p95 = partial(np.percentile, q=95)
    of, interval = {
        "median": (np.median, median_interval),
        "mean": (np.mean, _student_interval),
        "p95": (p95, partial(statistic_interval, p95)),
        "share": (np.mean, lambda hits: wilson_interval(float(hits.mean()), hits.size)),
    }[statistic]
    least = PERCENTILE_FLOORS[95] if statistic == "p95" else LEAST_SAMPLES
    return clamped(float(of(x)), *(interval(x) if x.size >= least else (None, None)), x.size)


def median_interval(samples: Sequence[float]) -> Ends | None:
    """95 % interval of the median of `samples` (n,), in their unit and in the order in which they were taken; None of
    fewer than `LEAST_SAMPLES`."""
    x = np.asarray(samples, dtype=float)
    if x.size < LEAST_SAMPLES:
        return None
    ends = *statistic_interval(np.median, np.sort(x)), *interval_so_far(x)
    return max(min(ends), float(x.min())), min(max(ends), float(x.max()))


def interval_so_far(samples: Sequence[float]) -> Ends:
    """Interval of the median of samples (n,) in their order, without resampling: for decisions while sampling."""
    x = np.asarray(samples, dtype=float)
    ends = [*order_interval(x), *_changes(x)]
    return min(ends), max(ends)


def order_interval(samples: Sequence[float]) -> Ends:
    """98 % interval of the median from the order statistics alone, whatever the law of the noise."""
    x = np.sort(np.asarray(samples, dtype=float))
    rank = max(_rank(x.size), 1)
    return float(x[rank - 1]), float(x[x.size - rank])


@lru_cache(maxsize=4096)
def _rank(n: int) -> int:
    """The largest rank that fewer than 1 % of samples of n have below the median."""
    return int(np.searchsorted(bdtr(np.arange(n + 1), n, 0.5), (1 - _ORDER_CONFIDENCE) / 2))


def _changes(samples: np.ndarray) -> list[float]:
    """What an interval reaches to at least where the machine changed while `samples` (n,) were taken.

    The median of the first and of the second half, for drift, and Student's interval of the medians of six blocks
    (batch means), for states that last several samples.
    """
    ends = [float(np.median(half)) for half in np.array_split(samples, 2)]
    if len(samples) >= LEAST_OF_BLOCKS:
        ends += _student_interval(np.asarray([np.median(block) for block in np.array_split(samples, BLOCKS)]))
    return ends


def _student(n: int) -> float:
    """Half-width of Student's 95 % interval of n values, in standard errors."""
    return float(stdtrit(n - 1, 0.975))


def _student_interval(x: np.ndarray) -> Ends:
    half_width = _student(x.size) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return float(x.mean()) - half_width, float(x.mean()) + half_width


def wilson_interval(share: float, n: int) -> Ends:
    """Wilson's interval for a share of n samples (Wilson 1927)."""
    z2 = 1.959964**2 / n
    middle, half_width = share + z2 / 2, math.sqrt(z2 * (share * (1 - share) + z2 / 4))
    return max(0.0, (middle - half_width) / (1 + z2)), min(1.0, (middle + half_width) / (1 + z2))


def statistic_interval(statistic: Callable[..., np.ndarray], samples: Sequence[float]) -> Ends:
    """95 % percentile-bootstrap interval (Efron 1979) of any statistic that takes `axis`."""
    x = np.asarray(samples, dtype=float)
    drawn = x[np.random.default_rng(0).integers(0, x.size, (_RESAMPLES, x.size))]  # (resamples, samples)
    low, high = np.percentile(statistic(drawn, axis=-1), [2.5, 97.5])
    return float(low), float(high)


def percentile(samples: Sequence[float], q: int) -> float | None:
    """The q-th percentile (50, 90, 95 or 99), or None where there are too few samples to speak of it."""
    if q not in PERCENTILE_FLOORS:
        raise ValueError(f"percentile {q}: the lab states sample floors for {sorted(PERCENTILE_FLOORS)} only")
    return float(np.percentile(samples, q)) if len(samples) >= PERCENTILE_FLOORS[q] else None


def ratio(baseline: Sequence[float], variant: Sequence[float], control: Sequence[float] | None = None) -> Estimate:
    """How many times as fast `variant` is as `baseline`, the median of the ratios within a round.

    The arguments are times (n,), one a round, of rounds that were interleaved. `control` are times of the baseline run
    a second time in each round (A/A): what its ratio differs from 1 by is noise of this race, and widens the interval
    by the same factor on both sides.
    """
    base, other = np.asarray(baseline, dtype=float), np.asarray(variant, dtype=float)
    if base.shape != other.shape:
        raise ValueError(
            f"ratio: {base.size} times of the baseline, {other.size} of the variant; each round needs both"
        )
    estimate = summary(base / other)
    return estimate if control is None else estimate.widened(noise_floor(base, np.asarray(control, dtype=float)))


def noise_floor(baseline: np.ndarray, control: np.ndarray) -> float:
    """What an A/A control shows beyond 1, as a factor of 1 or more."""
    return math.exp(abs(math.log(float(np.median(baseline / control)))))


# ---- over cells and runs ---------------------------------------------------------------------------------------------


def geometric_mean(cells: Sequence[Estimate]) -> Estimate:
    """The geometric mean over `cells` (ratios, all above 0); `n` is the least of theirs.

    Cells are measured by themselves, so the logarithmic half-widths of their intervals add as squares.
    """
    return _sum(cells, [1 / len(cells)] * len(cells))


def quotient(above: Estimate, below: Estimate) -> Estimate:
    """`above` over `below`, both above 0 and measured by themselves: the logarithmic half-widths of their intervals add
    as squares. `n` is the least of theirs."""
    return _sum([above, below], [1, -1])


def _sum(cells: Sequence[Estimate], weights: Sequence[float], log: bool = True) -> Estimate:
    """The weighted sum of `cells`, in logarithms unless `log` is off; half-widths of intervals add as squares."""
    scale, back = (np.log, math.exp) if log else (np.asarray, float)
    *columns, n = _columns(cells)
    values, lows, highs = map(scale, columns)
    w = np.asarray(weights)
    below, above = (np.linalg.norm(w * (np.where(w > 0, *ends) - values)) for ends in ((lows, highs), (highs, lows)))
    middle = float(w @ values)
    return clamped(back(middle), back(middle - below), back(middle + above), n)


def _columns(cells: Sequence[Estimate]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Values, low and high ends (NaN where there is none), and the least `n`."""
    rows = np.array([(cell.value, cell.low, cell.high) for cell in cells], dtype=float)
    return *rows.T, min(cell.n for cell in cells)


def worst(cells: Sequence[Estimate]) -> Estimate:
    """The least of `cells`, with an interval from the least low end to the least high end: which one is the least was
    seen in the same samples, so its own interval would be too narrow."""
    *columns, n = _columns(cells)
    return clamped(*(float(column.min()) for column in columns), n)


def middle(cells: Sequence[Estimate]) -> Estimate:
    """The median over `cells`, each with an interval of its own; its interval is the medians of the interval ends."""
    *columns, n = _columns(cells)
    return clamped(*(float(np.median(column)) for column in columns), n)


def cluster_bootstrap(
    values: Sequence[float], clusters: Sequence[object], statistic: str, within: float | None = None
) -> Estimate:
    """The mean, median or share of `values`, of which those of one cluster share a graph or a fit and are therefore no
    samples of their own.

    A share is of the magnitudes that are at most `within`; without that, the values are shares themselves. Clusters are
    resampled, not values, and the interval is Student's by the spread of the statistic. A share's is at least as wide
    as Wilson's for as many samples as there are clusters. Two clusters have none.
    """
    x = np.asarray(values, dtype=float)
    x = x if within is None else (np.abs(x) <= within).astype(float)
    groups = [x[[c == key for c in clusters]] for key in dict.fromkeys(clusters)]
    centre: Callable[[np.ndarray], float] = np.median if statistic == "median" else np.mean
    value, k = float(centre(x)), len(groups)
    if k < LEAST_GROUPS:
        return Estimate(value, None, None, len(x))
    random = np.random.default_rng(0)
    drawn = [centre(np.concatenate([groups[i] for i in random.integers(0, k, k)])) for _ in range(_RESAMPLES)]
    error = math.sqrt(k / (k - 1)) * float(np.std(drawn, ddof=1))  # resamples of k vary less than k new clusters do
    low, high = value - _student(k) * error, value + _student(k) * error
    if statistic == "share":
        wilson = wilson_interval(value, k)
        low, high = max(0.0, min(low, wilson[0])), min(1.0, max(high, wilson[1]))
    return clamped(value, max(low, 0.0) if x.min() >= 0 else low, high, len(x))


def combine_runs(runs: Sequence[Estimate], *, log: bool) -> Estimate:
    """One figure of several runs, each in a process of its own; `log` for ratios.

    The interval is the wider, on each side, of the one within the runs and the one between them (Student's, of their
    values): what differs from process to process is in the latter only (Kalibera and Jones 2013). One run keeps its
    own, two have what covers the intervals of both, and a count that is the same in all stays exact.
    """
    n, k = sum(run.n for run in runs), len(runs)
    if k == 1 or len({end for run in runs for end in (run.value, run.low, run.high)}) == 1:
        return replace(runs[0], n=n)
    within = _sum(runs, [1 / k] * k, log)
    if k < LEAST_GROUPS:
        known = all(run.interval for run in runs)
        ends = [end for run in runs for end in run.interval] if known else [None]
        return Estimate(within.value, min(ends), max(ends), n)
    values = [math.log(run.value) if log else run.value for run in runs]
    between = _student_interval(np.asarray(values))
    ends = [*(map(math.exp, between) if log else between), *(within.interval or ())]
    return clamped(within.value, min(ends), max(ends), n)
