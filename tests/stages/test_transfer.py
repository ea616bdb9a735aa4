import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.stages.bandwidth.planted_truth import Truth, sweep
from gnnlab.stages.bandwidth.quantities import Bandwidth
from gnnlab.stages.bandwidth.transfer import Curve, Transfers
from gnnlab.stages.errors import StageError

ROWS = [{"size_bytes": 1, "ms": 1, "ms_low": 1, "ms_high": 1}, {"size_bytes": 2, "ms": 3, "ms_low": 2, "ms_high": 4}]
SIZES = [4096 * 4**step for step in range(7)]


def curve(launch_ms=0.05, gb_s=10.0, noise=0.0, seed=0):
    return Curve.fit(sweep(Truth(launch_ms, Bandwidth(gb_s * 1e9)), SIZES, noise=noise, seed=seed))


def test_the_planted_bandwidth_is_recovered_and_its_interval_holds_it():
    inside, told = [], 0
    for seed in range(40):
        found = curve(noise=0.02, seed=seed)
        for size in SIZES:
            ends = found.bandwidth_interval(size)
            if ends:
                told += 1
                inside.append(ends[0] <= Bandwidth(10e9) <= ends[1])
                assert abs(found.bandwidth(size) / Bandwidth(10e9) - 1) < 0.35
        assert abs(found.bandwidth(SIZES[-1]) / Bandwidth(10e9) - 1) < 0.05
    assert told > 80 and np.mean(inside) > 0.9


def test_what_the_launch_hides_is_not_told():
    found = curve(noise=0.02)
    assert found.bandwidth(SIZES[0]) is None and found.bandwidth_interval(SIZES[0]) is None
    assert curve(launch_ms=50, noise=0.02).bandwidth(SIZES[-2]) is None


def test_a_curve_passes_through_its_sizes_and_goes_on_at_the_last_bandwidth():
    found = curve()
    assert found.ms(SIZES[3]) == pytest.approx(0.05 + 2 * SIZES[3] / 10e9 * 1e3)
    assert found.ms(1) == pytest.approx(found.launch_ms) == pytest.approx(0.05, rel=0.02)
    assert found.ms(3 * SIZES[3]) == pytest.approx(0.05 + 6 * SIZES[3] / 10e9 * 1e3)
    assert all(found.bandwidth(size) / Bandwidth(10e9) == pytest.approx(1) for size in SIZES[3:])
    beyond = found.ms(4 * SIZES[-1]) - found.ms(2 * SIZES[-1])
    assert beyond == pytest.approx(2 * (found.ms(2 * SIZES[-1]) - found.ms(SIZES[-1])))
    assert found.moving_ms(2 * SIZES[-1]) == pytest.approx(2 * SIZES[-1] / 10e9 * 1e3, rel=0.01)


@given(st.lists(st.floats(0.01, 100), min_size=7, max_size=7), st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_bytes_never_take_less_time(times, one, other):
    table = pd.DataFrame({"size_bytes": SIZES, "ms": times, "ms_low": times, "ms_high": times})
    found, (less, more) = Curve.fit(table), sorted((one, other))
    assert found.ms(less) <= found.ms(more) * (1 + 1e-9) and found.moving_ms(less) >= 0


def test_a_wide_interval_of_one_size_leaves_the_others_as_they_are():
    table = sweep(Truth(), SIZES, noise=0.0, seed=0)
    table.loc[1, "ms_high"] *= 50
    found = Curve.fit(table)
    assert found.bandwidth(SIZES[1]) is None and found.interval_ms(SIZES[3])[1] == pytest.approx(found.ms(SIZES[3]))


def test_units_of_one_memory_pay_for_the_copy_of_the_source_and_devices_half_a_round_trip():
    plain, out, device = curve(0.001), curve(0.002), curve(0.1, gb_s=2)
    found = Transfers(plain, {"a": curve(), "gpu": device}, {"a": out}, frozenset({"gpu"}))
    assert found.time_ms("a", "a", 1e6) == found.time_ms("a", "b", 0) == 0
    assert found.time_ms("a", "host", 1e6) == out.ms(1e6)
    assert found.time_ms("host", "a", 1e6) == found.time_ms("host", "host", 1e6) == plain.ms(1e6)
    assert found.time_ms("a", "gpu", 1e6) == found.time_ms("gpu", "host", 1e6) == device.ms(1e6) / 2
    draws = found.samples("a", "gpu", 1e6, 100, seed=1)
    assert draws.shape == (100,) and np.median(draws) == pytest.approx(device.ms(1e6) / 2, rel=0.05)
    assert not found.samples("a", "a", 1e6, 3, seed=1).any()


def test_a_device_whose_copies_were_not_measured_is_refused():
    found = Transfers(curve(), {}, {}, frozenset({"npu"}))
    with pytest.raises(StageError, match="no transfer was measured for npu"):
        found.time_ms("host", "npu", 1)


def test_transfers_are_read_back_as_they_were():
    found = Transfers(curve(), {"a": curve(noise=0.02)}, {"a": curve(0.002)}, frozenset({"a"}))
    assert Transfers.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"plain": 3},
        {"plain": [], "through": {}, "out_of": {}, "separate": []},
        {"plain": ROWS[:1], "through": {}, "out_of": {}, "separate": []},
        {"plain": ROWS[::-1], "through": {}, "out_of": {}, "separate": []},
        {"plain": [ROWS[0], ROWS[1] | {"ms": -1}], "through": {}, "out_of": {}, "separate": []},
        {"plain": [ROWS[0], ROWS[1] | {"ms": float("nan")}], "through": {}, "out_of": {}, "separate": []},
    ],
)
def test_what_is_no_transfers_is_refused_in_one_line(data):
    with pytest.raises(StageError) as refused:
        Transfers.from_json(data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("time", [0, -1, float("nan")])
def test_a_sweep_with_a_time_that_is_none_is_refused(time):
    table = pd.DataFrame({"size_bytes": [1, 2], "ms": [1, time], "ms_low": 1, "ms_high": 1})
    with pytest.raises(StageError, match="time above 0"):
        Curve.fit(table)
