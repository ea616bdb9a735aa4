"""Intervals that hold planted truth, and combinations that never say more than their parts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gnnlab.measure import estimates
from gnnlab.measure.estimates import Estimate


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=200), st.sampled_from(["median", "mean", "share"]))
def test_a_value_lies_within_its_interval(samples, statistic):
    found = estimates.summary(samples, statistic)
    assert found.n == len(samples)
    if found.interval:
        assert found.low <= found.value <= found.high


@pytest.mark.parametrize(("statistic", "least"), [("median", 6), ("p95", 130), ("mean", 2)])
def test_fewer_samples_than_a_statistic_needs_give_no_interval(statistic, least):
    x = np.random.default_rng(0).exponential(size=least)
    assert estimates.summary(x[:-1], statistic).interval is None
    assert estimates.summary(x, statistic).interval is not None


@pytest.mark.parametrize("n", [1, 2, 5, 6, 24, 130, 2000])
def test_ranks_and_the_bootstrap_are_those_of_scipy(n):
    assert estimates._rank(n) == stats.binom.ppf(0.01, n, 0.5)
    if n > 1:
        x, rng = np.random.default_rng(n).exponential(size=n), np.random.default_rng(0)
        expected = stats.bootstrap((x,), np.median, n_resamples=999, method="percentile", rng=rng).confidence_interval
        assert estimates.statistic_interval(np.median, x) == pytest.approx((expected.low, expected.high))


def test_an_estimate_whose_value_lies_outside_of_its_interval_is_refused():
    with pytest.raises(ValueError, match="outside of its interval"):
        Estimate(8.41, 7.87, 8.23, 10)


def races(seed, rounds, gain, noise=0.05, control_drift=1.0):
    rng = np.random.default_rng(seed)
    base, form, control = (np.exp(rng.normal(0, noise, rounds)) for _ in range(3))
    return base, form / gain, control * control_drift


@pytest.mark.parametrize("of", ["median", "mean"])
def test_the_interval_of_a_ratio_holds_the_planted_gain(of):
    hits = 0
    for seed in range(200):
        base, form, control = races(seed, 40, 1.3)
        low, high = estimates.ratio(base, form, control, of=of).interval
        hits += low <= 1.3 <= high
    assert hits >= 190


def test_what_the_control_shows_beyond_1_is_in_the_interval():
    base, form, control = races(0, 40, 1.3, control_drift=1.1)
    alone, widened = estimates.ratio(base, form), estimates.ratio(base, form, control)
    floor = estimates.noise_floor(base, control)
    assert floor == pytest.approx(1.1, rel=0.05)
    assert (widened.low, widened.high) == pytest.approx((alone.low / floor, alone.high * floor))


def test_the_interval_of_a_geometric_mean_holds_the_planted_gains_95_times_in_100():
    gains = (1.1, 1.5, 2.4)
    truth, held = math.exp(np.mean(np.log(gains))), []
    for seed in range(100):
        cells = [estimates.ratio(*races(3 * seed + i, 24, gain)[:2]) for i, gain in enumerate(gains)]
        low, high = estimates.geometric_mean(cells).interval
        held.append(low <= truth <= high)
    assert np.mean(held) >= 0.95
    cells = [Estimate(2.0, 1.8, 2.2, 30), Estimate(8.0, 7.2, 8.8, 20)]
    mean = estimates.geometric_mean(cells)
    assert (mean.value, mean.n) == (pytest.approx(4), 20) and 0.9 < mean.low / 4 < mean.high / 4 < 1.1  # narrower


def test_the_half_widths_of_a_quotient_add_as_squares():
    found = estimates.quotient(Estimate(8.0, 4.0, 16.0, 30), Estimate(2.0, 1.0, 4.0, 20))
    assert (found.value, found.n) == (4.0, 20)
    assert (found.low, found.high) == pytest.approx((4 / 2 ** math.sqrt(2), 4 * 2 ** math.sqrt(2)))
    assert estimates.quotient(Estimate(8.0, 6.0, 9.0, 30), Estimate(2.0, 2.0, 2.0, 9)).interval == pytest.approx(
        (3.0, 4.5)
    )


def test_a_cell_without_an_interval_leaves_what_is_made_of_it_without_one():
    known, unknown = Estimate(2.0, 1.8, 2.2, 30), Estimate(8.0, None, None, 2)
    for cells in ([known, unknown], [unknown, known]):
        made = (estimates.geometric_mean(cells), estimates.quotient(*cells), estimates.middle(cells))
        assert [each.interval for each in made] == [None] * 3
    assert estimates.over_clusters([1.0, 2.0], ["a", "a"], "mean").interval is None


def test_the_worst_cell_and_the_middle_one_have_the_noise_of_all():
    worst = estimates.worst([Estimate(5.0, 4.0, 9.0, 9), Estimate(5.5, 3.0, 6.0, 9)])
    assert (worst.value, worst.low, worst.high) == (5.0, 3.0, 6.0)
    middle = estimates.middle([Estimate(value, 0.3, 1.0, 8) for value in (0.5, 0.6, 0.7, 0.8, 0.9)])
    assert middle == Estimate(0.7, 0.3, 1.0, 8)  # what bends each of them bends their median


@pytest.mark.parametrize(
    ("runs", "log", "value", "low", "high"),
    [  # what differs between runs is in the interval; runs that agree have at least the noise within them
        ([Estimate(v, v * 0.99, v * 1.01, 50) for v in (0.96, 1.05, 1.12, 1.22, 1.0)], True, 1.0661, 0.9478, 1.1993),
        ([Estimate(2.0, 1.8, 2.2, 10)] * 4, False, 2.0, 1.9, 2.1),
        ([Estimate(2.0, None, None, 1), Estimate(2.2, None, None, 1)], False, 2.1, 0.829, 3.371),
        ([Estimate(2.0, 1.8, 2.2, 10)], True, 2.0, 1.8, 2.2),
    ],
)
def test_runs_are_pooled_with_the_noise_within_and_between_them(runs, log, value, low, high):
    pooled = estimates.pooled(runs, log=log)
    assert (pooled.value, pooled.low, pooled.high) == pytest.approx((value, low, high), rel=1e-3)
    assert pooled.n == sum(run.n for run in runs)


def test_cells_of_one_cluster_are_no_samples_of_their_own():
    rng = np.random.default_rng(0)
    shifts = rng.normal(0, 5, 4)
    values = np.concatenate([shift + rng.normal(10, 0.1, 50) for shift in shifts])
    clusters = np.repeat(np.arange(4), 50)
    together = estimates.over_clusters(values, list(clusters), "median")
    apart = estimates.over_clusters(values, range(200), "median")
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_all_cells_of_two_sizes_within_the_bound_are_no_certainty():
    share = estimates.over_clusters([1.0] * 20, [0] * 10 + [1] * 10, "share", within=10)
    assert share.value == 1 and share.low < 0.5


def test_a_ratio_needs_a_time_of_both_in_each_round():
    with pytest.raises(ValueError, match="1 times of the baseline, 7 of the form"):
        estimates.ratio([1.0], [1.0] * 7)
