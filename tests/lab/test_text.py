"""Numbers and names as a reader sees them."""

import pytest

from gnnlab.lab import text
from gnnlab.measure.estimates import Estimate


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        ((1.4234, 1.4012, 1.4456, 30), "1.42 (1.40 to 1.45)"),
        ((8.0, None, None, 2), "8"),
        ((120.0, 120.0, 120.0, 1), "120"),
        ((193.4, 190.2, 195.1, 9), "193 (190 to 195)"),
        ((1234567.0, 1200000.0, 1300000.0, 9), "1,234,567 (1,200,000 to 1,300,000)"),
        ((-0.00001, -0.0015, 0.0015, 9), "0.0000 (-0.0015 to 0.0015)"),
        ((0.45, 0.3, 5.1, 9), "0.45 (0.30 to 5.10)"),
        ((3.1e-7, 3.0e-7, 3.2e-7, 9), "3.1e-07 (3e-07 to 3.2e-07)"),
    ],
)
def test_an_estimate_has_the_digits_that_its_interval_is_worth(estimate, expected):
    assert text.estimate_text(Estimate(*estimate)) == expected


@pytest.mark.parametrize(
    ("words", "given", "expected"),
    [
        (text.number, (0.00123,), "0.00123"),
        (text.number, (1234.5,), "1,234"),
        (text.number, (5.6e9,), "5.6e+09"),
        (text.number, (-0.0,), "0"),
        (text.gain_text, (Estimate(2.0, 1.9, 2.1, 9),), "2.00 (1.90 to 2.10) times as fast"),
        (text.gain_text, (Estimate(1.0, 0.9, 1.1, 9),), "1.00 (0.90 to 1.10) times as fast, no difference seen"),
        (text.gain_text, (Estimate(2.0, None, None, 3),), "2 times as fast, of 3 rounds, too few for an interval"),
        (text.claimed_text, (None, "x"), "some gain"),
        (text.claimed_text, ((1.41, 1.45), "x"), "1.41 to 1.45×"),
        (text.claimed_text, ((5, None), "x"), "at least 5×"),
        (text.claimed_text, ((None, 0.05), "share"), "at most 5 %"),
        (text.claimed_text, ((120, 120), "count"), "120"),
        (text.with_unit, (Estimate(0.5, 0.4, 0.6, 9), "share"), ("50 %", "40 to 60 %")),
        (text.with_unit, (Estimate(7.0, 7.0, 7.0, 1), "count"), ("7", "")),
    ],
)
def test_numbers_gains_and_claimed_ranges_in_words(words, given, expected):
    assert words(*given) == expected
