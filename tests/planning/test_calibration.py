"""What executed plans taught: planted errors are found again, and intervals hold at their rate at sizes not seen."""

import numpy as np
import pytest

from gnnlab.planning.calibration import Calibration, Stream, Traits


def streams(sizes, plans=8, *, seed, size_spread=0.05, plan_spread=0.05):
    """Executed over expected, log: 0.1 for all, 0.1 more for several units, 0.3 for each overlap; what a size and a
    plan have of their own beside."""
    random, found = np.random.default_rng(seed), []
    for size in range(sizes):
        common = random.normal(0, size_spread)
        for plan in range(plans):
            several, overlap = plan > 2, (plan > 2) * random.uniform()
            log = 0.1 + 0.1 * several + 0.3 * overlap + common + random.normal(0, plan_spread)
            found.append(Stream(f"{size}/1", f"plan {plan}", several, overlap, True, log))
    return tuple(found)


def test_what_was_planted_is_found():
    found = Calibration({}, streams(8, seed=0))
    middle, draws = found.factors([Traits(False, 0.0, True), Traits(True, 0.0, True), Traits(True, 1.0, True)], 4000, 0)
    np.testing.assert_allclose(np.log(middle), [0.1, 0.2, 0.5], atol=0.06)
    np.testing.assert_allclose(np.median(draws, axis=1), middle, rtol=0.06)


def test_intervals_hold_nine_of_ten_plans_at_a_size_that_was_not_seen():
    held = []
    for seed in range(60):
        known, new = streams(7, seed=seed)[:48], streams(7, seed=seed)[48:]
        traits = [Traits(s.several, s.overlap, True) for s in new]
        low, high = np.percentile(Calibration({}, known).factors(traits, 1000, seed)[1], (5, 95), axis=1)
        held += [a <= np.exp(s.log_ratio) <= b for a, s, b in zip(low, new, high, strict=True)]
    assert 0.88 <= np.mean(held) <= 0.97, np.mean(held)


def test_what_plans_of_a_size_have_in_common_is_common_to_a_draw():
    """Where sizes differ and plans do not, all plans of a draw are off by the same, so their order is certain."""
    found = Calibration({}, streams(8, seed=1, size_spread=0.3, plan_spread=0.0))
    _, draws = found.factors([Traits(False, 0.0, True), Traits(True, 1.0, True)], 500, 0)
    assert (draws[1] > draws[0]).mean() > 0.99 and np.ptp(np.log(draws[0])) > 0.3


def test_two_sizes_of_such_streams_are_needed():
    one, timed = Traits(False, 0.0, True), Traits(False, 0.0, False)
    assert not Calibration().knows([one]) and not Calibration({}, streams(1, seed=0)).knows([one])
    two = Calibration({}, streams(2, seed=0))
    assert two.knows([one]) and not two.knows([one, timed])
    assert Calibration().rows().empty


def test_its_rows_tell_how_far_off_which_plans_were():
    rows = Calibration({}, streams(3, seed=0)).rows()
    assert list(rows["form"]) == ["one unit", "several units"] and set(rows["calls"]) == {"timed"}
    assert [len(samples) for samples in rows["samples"]] == [9, 15] and "over 9 plans at 3 sizes" in rows["notes"][0][0]
    assert rows["samples"][0].mean() == pytest.approx(np.exp(0.1), rel=0.1)
