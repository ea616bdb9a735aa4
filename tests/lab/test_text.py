"""Numbers, names and environments as a reader sees them."""

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


@pytest.mark.parametrize(
    ("cpu", "phrase"),
    [
        ({"cores": 2, "logical": 2, "usable": 2, "quota": None}, "A, 2 cores"),
        ({"cores": 1, "logical": 2, "usable": 1, "quota": None}, "A, 1 of 2 logical cores"),
        ({"cores": 4, "logical": 8, "usable": 2, "quota": 1.5}, "A, 1.5 of 8 logical cores"),
        ({"cores": 1, "logical": 1}, "A, 1 core"),
        ({"cores": None, "logical": None, "usable": 1}, "A"),
    ],
)
def test_a_reader_is_told_how_many_of_the_cores_a_run_might_use(cpu, phrase):
    assert text.machine_phrase({"cpu": {"model": "A", **cpu}}) == phrase


def test_a_reader_sees_all_that_is_known_and_nothing_else():
    devices = [{"name": "A", "kind": "CPU", "driver": None}, {"name": "G", "kind": "GPU"}]
    state = {"omp_num_threads": "1", "load": [0.5, 1.0], "dirty": False}
    environment = {
        "cpu": {"model": "A", "l2_cache_bytes": 2**19},
        "devices": devices,
        "os": None,
        **state,
        "finished": state,
    }
    assert dict(text.environment_rows(environment)) == {
        "cpu": "model A, l2 cache 0.5 MiB",
        "devices": "name A, kind CPU; name G, kind GPU",
        "OMP_NUM_THREADS": "1",
        "load (1, 5, 15 min)": "0.5 1.0",
        "uncommitted changes": "False",
        "at its end": "OMP_NUM_THREADS 1, load (1, 5, 15 min) 0.5 1.0, uncommitted changes False",
    }
    assert text.machine_phrase(environment | {"versions": {"torch": "2"}}) == "A, G, torch 2"
