"""Intervals that hold planted truth, and combinations that never say more than their parts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gnnlab.measure import estimates
from gnnlab.measure.estimates import Estimate


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=80), st.sampled_from(["median", "mean", "share"]))
def test_a_value_lies_within_its_interval_which_fewer_than_six_samples_do_not_have(samples, statistic):
    found = estimates.summary(samples, statistic)
    assert found.n == len(samples) and (found.interval is None) == (len(samples) < 6)
    if found.interval:
        assert found.low <= found.value <= found.high
    if found.interval and statistic == "median":
        assert min(samples) <= found.low <= found.high <= max(samples)


def test_what_has_too_few_samples_has_no_interval_wherever_it_comes_from():
    x = np.random.default_rng(0).exponential(size=130)
    assert estimates.summary(x[:-1], "p95").interval is None and estimates.summary(x, "p95").interval
    assert estimates.median_interval(x[:5]) is None
    assert estimates.ratio(x[:5], x[:5]).interval is None and estimates.ratio(x[:6], x[:6]).interval
    assert estimates.cluster_bootstrap(x[:20], [1] * 10 + [2] * 10, "mean").interval is None
    known, unknown = Estimate(2.0, 1.8, 2.2, 30), Estimate(8.0, None, None, 2)
    for cells in ([known, unknown], [unknown, known]):
        made = (estimates.geometric_mean(cells), estimates.quotient(*cells), estimates.middle(cells))
        assert [each.interval for each in made] == [None] * 3 and unknown.widened(2) == unknown


@pytest.mark.parametrize("n", [1, 2, 5, 6, 24, 130, 2000])
def test_ranks_the_bootstrap_and_shares_are_those_of_scipy(n):
    assert estimates._rank(n) == stats.binom.ppf(0.01, n, 0.5)
    for hits in (0, n // 2, n):
        wilson = stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert estimates.wilson_interval(hits / n, n) == pytest.approx((wilson.low, wilson.high), abs=1e-6)
    if n > 1:
        x, rng = np.random.default_rng(n).exponential(size=n), np.random.default_rng(0)
        expected = stats.bootstrap((x,), np.median, n_resamples=999, method="percentile", rng=rng).confidence_interval
        assert estimates.statistic_interval(np.median, x) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("n", [10, 24, 60])
def test_the_interval_of_a_median_covers_it_95_times_in_100_under_a_skewed_law(n):
    random, truth = np.random.default_rng(n), math.log(2)  # the median of the exponential law
    found = [estimates.median_interval(random.exponential(size=n)) for _ in range(300)]
    assert np.mean([low <= truth <= high for low, high in found]) >= 0.95


def test_percentiles_need_their_samples_and_a_stated_floor():
    for q, floor in ((90, 64), (95, 130), (99, 662)):
        assert estimates.percentile(range(floor - 1), q) is None
        assert estimates.percentile(range(floor), q) == pytest.approx(np.percentile(range(floor), q))
    with pytest.raises(ValueError, match="sample floors"):
        estimates.percentile(range(1000), 97)


def test_what_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="outside of its interval"):
        Estimate(8.41, 7.87, 8.23, 10)
    with pytest.raises(ValueError, match="1 times of the baseline, 7 of the variant"):
        estimates.ratio([1.0], [1.0] * 7)


# ---- of a race


def races(seed, rounds, gain, noise=0.05, control_drift=1.0):
    rng = np.random.default_rng(seed)
    base, variant, control = (np.exp(rng.normal(0, noise, rounds)) for _ in range(3))
    return base, variant / gain, control * control_drift


def test_the_interval_of_a_ratio_holds_the_true_gain():
    found = [estimates.ratio(*races(seed, 40, 1.3)) for seed in range(200)]
    assert sum(each.low <= 1.3 <= each.high for each in found) >= 190


def test_what_the_control_shows_beyond_1_is_in_the_interval():
    base, variant, control = races(0, 40, 1.3, control_drift=1.1)
    alone, widened = estimates.ratio(base, variant), estimates.ratio(base, variant, control)
    floor = estimates.noise_floor(base, control)
    assert floor == pytest.approx(1.1, rel=0.05)
    assert (widened.low, widened.high) == pytest.approx((alone.low / floor, alone.high * floor))


def test_a_ratio_that_changes_between_the_halves_of_a_race_reaches_to_both():
    base, variant, _ = races(0, 80, 1.0, noise=0.01)
    drifted = np.where(np.arange(80) < 42, 1.0, 0.8) * variant  # the first half has 40
    ends = sorted(np.median(base[half]) / np.median(drifted[half]) for half in (slice(40), slice(40, None)))
    found = estimates.ratio(base, drifted)
    assert found.low <= ends[0] * 1.01 and found.high >= ends[1] * 0.99
    shuffled = np.random.default_rng(1).permutation(80)
    mixed = estimates.ratio(base[shuffled], drifted[shuffled])
    assert found.value == pytest.approx(mixed.value) and found.high - found.low > 0.9 * (mixed.high - mixed.low)
    times = estimates.summary(drifted)
    assert times.low <= np.median(drifted[40:]) and times.high >= np.median(drifted[:40])


def test_states_that_last_several_rounds_are_in_the_interval():
    """Six blocks are six samples of such a state, where 120 rounds are not 120."""
    seen = {True: [], False: []}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        states = np.repeat(rng.normal(0, 0.1, 6), 20)  # a state lasts 20 rounds
        variant = np.exp(states + rng.normal(0, 0.01, 120))
        for in_order in (True, False):
            rounds = variant if in_order else rng.permutation(variant)
            found = estimates.ratio(np.ones(120), rounds)
            seen[in_order].append(found.low <= 1 <= found.high)
    assert np.mean(seen[True]) >= 0.93 and np.mean(seen[False]) < 0.8


# ---- over cells and runs


def test_the_interval_of_a_geometric_mean_holds_the_true_gains_95_times_in_100():
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
    assert (found.value, found.n) == (pytest.approx(4), 20)
    assert found.interval == pytest.approx((4 / 2 ** math.sqrt(2), 4 * 2 ** math.sqrt(2)))
    exact = Estimate(2.0, 2.0, 2.0, 9)
    assert estimates.quotient(Estimate(8.0, 6.0, 9.0, 30), exact).interval == pytest.approx((3.0, 4.5))
    assert estimates.quotient(exact, Estimate(8.0, 6.0, 9.0, 30)).interval == pytest.approx((2 / 9, 2 / 6))


def test_the_worst_cell_and_the_middle_one_have_the_noise_of_all():
    worst = estimates.worst([Estimate(5.0, 4.0, 9.0, 9), Estimate(5.5, 3.0, 6.0, 9)])
    assert (worst.value, worst.low, worst.high) == (5.0, 3.0, 6.0)
    middle = estimates.middle([Estimate(value, 0.3, 1.0, 8) for value in (0.5, 0.6, 0.7, 0.8, 0.9)])
    assert middle == Estimate(0.7, 0.3, 1.0, 8)  # what bends each of them bends their median


@pytest.mark.parametrize(
    ("runs", "log", "value", "ends"),
    [  # what differs between runs is in the interval; runs that agree have at least the noise within them
        ([Estimate(v, v * 0.99, v * 1.01, 50) for v in (0.96, 1.05, 1.12, 1.22, 1)], True, 1.0661, (0.9478, 1.1993)),
        ([Estimate(2.0, 1.8, 2.2, 10)] * 4, False, 2.0, (1.9, 2.1)),
        ([Estimate(v, None, None, 1) for v in (2.0, 2.2, 2.1)], False, 2.1, (1.8516, 2.3484)),
        ([Estimate(2.0, 1.8, 2.2, 10)], True, 2.0, (1.8, 2.2)),  # one run has the interval within it
        (
            [Estimate(28.0, 27.9, 28.1, 10), Estimate(34.0, 33.9, 34.1, 10)],
            False,
            31.0,
            (27.9, 34.1),
        ),  # two: what covers both
        ([Estimate(2.0, None, None, 1), Estimate(3.0, 2.9, 3.1, 9)], False, 2.5, None),
        ([Estimate(200.0, 200.0, 200.0, 1)] * 2, True, 200.0, (200.0, 200.0)),  # a count
    ],
)
def test_runs_are_pooled_with_the_noise_within_and_between_them(runs, log, value, ends):
    combined = estimates.combine_runs(runs, log=log)
    assert combined.interval == (ends and pytest.approx(ends, rel=1e-3))
    assert (combined.value, combined.n) == (pytest.approx(value, rel=1e-3), sum(run.n for run in runs))


@pytest.mark.parametrize("statistic", ["mean", "median", "share"])
def test_clusters_cover_the_truth_from_three_on(statistic, monkeypatch):
    """Clusters of seven values with a shift of their own, of 3, 4 and 6."""
    monkeypatch.setattr(estimates, "_RESAMPLES", 150)
    rng, hits = np.random.default_rng(1), []
    for k in (3, 4, 6):
        for _ in range(130):
            x = np.repeat(rng.normal(0, 1, k), 7) + rng.normal(0, 1, 7 * k)
            found = estimates.cluster_bootstrap(
                x, list(np.repeat(range(k), 7)), statistic, 1.0 if statistic == "share" else None
            )
            truth = 0.5205 if statistic == "share" else 0.0  # of a normal law with variance 2: within 1
            hits.append(found.low <= truth <= found.high)
    assert np.mean(hits) >= 0.94


def test_all_cells_of_three_sizes_within_the_bound_are_no_certainty_and_errors_are_not_below_0():
    share = estimates.cluster_bootstrap([1.0] * 30, [i // 10 for i in range(30)], "share", within=10)
    assert share.value == 1 and share.low < 0.5
    shares = estimates.cluster_bootstrap([1.0, 0.5, 0.9, 1.0], range(4), "share")
    assert shares.value == pytest.approx(0.85) and shares.low < 0.6 and shares.high <= 1
    assert estimates.cluster_bootstrap([0.1, 5.0, 1.0], range(3), "mean").low == 0
