"""What executed plans taught: the middle and the interval of executed over expected, by what a plan is."""

import numpy as np
import pytest

from gnnlab.planning.calibration import Calibration, Group, Stream

ONE, SEVERAL = Group(several=False, timed=True), Group(several=True, timed=True)


def streams(sizes, plans=8, *, seed=0):
    """Executed over expected: about 1.1 for one unit, about 1.26 for several."""
    random, made = np.random.default_rng(seed), []
    for size in range(sizes):
        for plan in range(plans):
            group = SEVERAL if plan > 2 else ONE
            made.append(Stream(f"{size}/1", group, (1.26 if group.several else 1.1) * np.exp(random.normal(0, 0.05))))
    return tuple(made)


def test_what_was_planted_is_found():
    calibration = Calibration(streams(40))
    for group, planted, count in ((ONE, 1.1, 120), (SEVERAL, 1.26, 200)):
        middle, low, high = calibration.factors(group)
        assert middle == pytest.approx(planted, rel=0.02) and calibration.count(group) == count
        assert (low / planted, high / planted) == pytest.approx((np.exp(-0.082), np.exp(0.082)), rel=0.03)


def test_groups_without_streams_are_not_known():
    assert not Calibration().knows([ONE]) and Calibration().rows().empty
    calibration = Calibration(streams(1))
    assert calibration.knows([ONE, SEVERAL]) and not calibration.knows([ONE, Group(False, timed=False)])


def test_its_rows_say_how_far_off_which_plans_were():
    rows = Calibration(streams(3)).rows()
    assert list(rows["form"]) == ["one unit", "several units"] and set(rows["calls"]) == {"timed"}
    assert [len(samples) for samples in rows["samples"]] == [9, 15] and "over 9 plans at 3 sizes" in rows["notes"][0][0]
