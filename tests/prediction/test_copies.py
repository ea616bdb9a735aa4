import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.prediction.copies import CopyCurve
from gnnlab.prediction.planted_truth import Truth, sweep

SIZES = [4096 * 4**step for step in range(7)]


def curve(launch_ms=0.05, gb_s=10.0, noise=0.0, seed=0):
    return CopyCurve.fit(sweep(Truth(launch_ms, gb_s), SIZES, noise=noise, seed=seed))


def test_the_planted_bandwidth_is_recovered_and_its_interval_holds_it():
    inside = []
    for seed in range(40):
        fitted = curve(noise=0.02, seed=seed)
        rates = [rate for rate in map(fitted.gb_s, SIZES) if np.isfinite(rate[0])]
        inside += [low <= 10 <= high for _, low, high in rates]
        assert all(abs(value / 10 - 1) < 0.35 for value, _, _ in rates)
        assert abs(fitted.gb_s(SIZES[-1])[0] / 10 - 1) < 0.05
    assert len(inside) > 80 and np.mean(inside) > 0.9


def test_what_the_launch_hides_is_not_told():
    assert np.isnan(curve(noise=0.02).gb_s(SIZES[0])).all()
    assert np.isnan(curve(launch_ms=50, noise=0.02).gb_s(SIZES[-2])).all()


def test_a_curve_passes_through_its_sizes_and_goes_on_at_the_last_bandwidth():
    fitted = curve()
    assert fitted.ms(SIZES[3]) == pytest.approx(0.05 + 2 * SIZES[3] / 10e9 * 1e3)
    assert fitted.ms(1) == pytest.approx(fitted.launch_ms) == pytest.approx(0.05, rel=0.02)
    assert fitted.ms(3 * SIZES[3]) == pytest.approx(0.05 + 6 * SIZES[3] / 10e9 * 1e3)
    assert all(fitted.gb_s(size)[0] == pytest.approx(10) for size in SIZES[3:])
    beyond = fitted.ms(4 * SIZES[-1]) - fitted.ms(2 * SIZES[-1])
    assert beyond == pytest.approx(2 * (fitted.ms(2 * SIZES[-1]) - fitted.ms(SIZES[-1])))
    assert fitted.moving_ms(2 * SIZES[-1]) == pytest.approx(2 * SIZES[-1] / 10e9 * 1e3, rel=0.01)


@given(st.lists(st.floats(0.01, 100), min_size=7, max_size=7), st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_bytes_never_take_less_time(times, one, other):
    table = pd.DataFrame({"size_bytes": SIZES, "ms": times, "ms_low": times, "ms_high": times, "n": 9})
    fitted, (less, more) = CopyCurve.fit(table), sorted((one, other))
    assert fitted.ms(less) <= fitted.ms(more) * (1 + 1e-9) and fitted.moving_ms(less) >= 0


def test_a_wide_interval_of_one_size_leaves_the_others_as_they_are():
    table = sweep(Truth(), SIZES, noise=0.0, seed=0)
    table.loc[1, "ms_high"] *= 50
    fitted = CopyCurve.fit(table)
    assert np.isnan(fitted.gb_s(SIZES[1])).all()
    assert np.isfinite(fitted.gb_s(SIZES[3])).all()


@pytest.mark.parametrize(("size", "ms"), [((1, 2), (1, 0)), ((1, 2), (1, -1)), ((1, 2), (1, np.nan)), ((1,), (1,))])
def test_a_sweep_of_one_size_or_with_a_time_that_is_none_is_refused(size, ms):
    with pytest.raises(GnnlabError, match="two with times above 0 are needed"):
        CopyCurve.fit(pd.DataFrame({"size_bytes": size, "ms": ms, "ms_low": 1, "ms_high": 1, "n": 9}))
