import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.stages.bandwidth.quantities import Bandwidth
from gnnlab.stages.errors import StageError

FAST, SLOW = Bandwidth.from_mb_s(20_000), Bandwidth.of(moved_bytes=8e6, ms=1.0)


def test_bytes_per_second_never_meet_mb_per_second():
    for other in (20_000, 2e10, np.float64(20_000), np.array([2e10])):
        with pytest.raises(TypeError):
            _ = FAST < other  # noqa: SIM300
        with pytest.raises(TypeError):
            FAST + other
        with pytest.raises(TypeError):
            FAST / other
        with pytest.raises(StageError):
            Bandwidth(FAST)
    with pytest.raises(TypeError):
        float(FAST)


def test_each_unit_is_named_and_converted():
    assert (SLOW.bytes_per_s, SLOW.mb_s, SLOW.gb_s) == (8e9, 8000, 8)
    assert Bandwidth(10e9).mib_s == pytest.approx(9536.74, abs=0.01)
    assert SLOW.ms(8e6) == 1.0 and SLOW < FAST and FAST / SLOW == 2.5


@given(st.floats(1e-3, 1e15), st.floats(1, 1e12))
def test_time_and_bandwidth_are_inverse(rate, size):
    assert Bandwidth.of(size, Bandwidth(rate).ms(size)).bytes_per_s == pytest.approx(rate)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True])
def test_what_is_no_bandwidth_is_refused(value):
    with pytest.raises(StageError, match="positive number"):
        Bandwidth(value)


def test_no_time_gives_no_bandwidth():
    with pytest.raises(StageError, match="time above 0"):
        Bandwidth.of(1, 0)
