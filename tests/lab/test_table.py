"""A row that contradicts itself is refused; what is written is read back, samples and all."""

import pytest
from refusals import refused
from table_rows import TORCH

from gnnlab.errors import GnnlabError
from gnnlab.lab import table as tables
from gnnlab.lab.table import Table, row
from gnnlab.profiling.estimates import Estimate

GOOD = TORCH | {"study": "gat_layer", "keys": {"size": "58/776"}, "form": "gnnlab", "unit": "ms", "better": "lower"}
GOOD |= {"origin": "measured", "statistic": "median", "interval": "95 % confidence"}
GOOD |= {"value": 1.0, "low": 0.9, "high": 1.1, "n": 7}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low": 1.05}, "lies outside of its interval"),
        ({"value": 8.41, "low": 7.87, "high": 8.23}, "lies outside of its interval"),
        ({"interval": "quartiles"}, "interval: Input should be"),
        ({"interval": "exact"}, "no measured number is exact"),
        ({"n": 1}, "one sample has no 95 % interval"),
        ({"n": 0}, "status 'ok' and value"),
        ({"value": None}, "status 'ok' and value"),
        ({"value": float("nan")}, "status 'ok' and value"),
        ({"ratio": 2.0}, "a ratio needs its baseline"),
        ({"ratio": 2.0, "baseline": "PyG", "ratio_low": 2.1, "ratio_high": 3.0}, "ratio: the value 2.0 lies outside"),
        ({"status": "failed"}, "without a reason"),
        ({"origin": "guessed"}, "origin: Input should be"),
        ({"colour": "red"}, "colour: Extra inputs"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_in_one_line(change, message):
    with refused(message):
        row(**{**GOOD, **change})


@pytest.mark.parametrize("lacking", ["origin", "n", "unit", "better", "device", "precision", "threads", "statistic"])
def test_nothing_has_a_default_that_could_be_untrue(lacking):
    with pytest.raises(GnnlabError, match=lacking if lacking != "n" else "n"):
        row(**{name: value for name, value in GOOD.items() if name != lacking})


def test_a_row_without_ends_has_no_interval_and_says_so():
    assert row(**{**GOOD, "low": None, "high": float("nan")}).interval == "none"


def test_a_row_that_is_not_ok_has_a_reason_and_no_value():
    found = row(**{**GOOD, "status": "unavailable", "reason": "no CUDA device"})
    assert (found.value, found.low, found.n, found.interval) == (None, None, 0, "none")


def test_a_count_is_exact():
    found = row(**{**GOOD, "origin": "counted", "statistic": "count", "interval": "exact", "value": 6, "n": 1})
    assert found.low == found.value == found.high == 6


def test_as_many_samples_as_n():
    with pytest.raises(GnnlabError, match="3 samples, and n = 7"):
        Table().put(row(**GOOD), [1, 2, 3])


def test_rows_are_selected_by_study_form_and_keys():
    table = Table([row(**{**GOOD, "keys": {"size": size, "features": 64}}) for size in ("a", "b", "c")])
    assert len(table.select("gat_layer", "gnnlab", {"size": ["a", "c"]})) == 2
    assert table.select("gat_layer", "gnnlab", {"features": 500}) == []
    assert [each.keys["size"] for each in table.select("gat_layer")] == ["a", "b", "c"]


# ---- for a reader


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [
        ((1.4234, 1.4012, 1.4456, 30), "1.42 (1.40 to 1.45)"),
        ((8.0, None, None, 2), "8"),
        ((120.0, 120.0, 120.0, 1), "120"),
        ((193.4, 190.2, 195.1, 9), "193 (190 to 195)"),
        ((1234567.0, 1200000.0, 1300000.0, 9), "1,234,567 (1,200,000 to 1,300,000)"),
        ((-0.00001, -0.0015, 0.0015, 9), "0.0000 (-0.0015 to 0.0015)"),
        ((0.45, 0.3, 5.1, 9), "0.45 (0.30 to 5.10)"),
        ((4.53, 2.87, 15.5, 9), "4.5 (2.9 to 15.5)"),
        ((3.1e-7, 3.0e-7, 3.2e-7, 9), "3.1e-07 (3e-07 to 3.2e-07)"),
    ],
)
def test_an_estimate_has_the_digits_that_its_interval_is_worth(estimate, shown):
    assert tables.estimate_text(Estimate(*estimate)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.00123, "0.00123"), (1.0, "1"), (1234.5, "1,234"), (169856, "169,856"), (5.6e9, "5.6e+09")],
)
def test_a_number_on_an_axis(value, shown):
    assert tables.number(value) == shown


@pytest.mark.parametrize(
    ("gain", "shown"),
    [
        ((2.0, 1.9, 2.1, 9), "2.00 (1.90 to 2.10) times as fast"),
        ((1.0, 0.9, 1.1, 9), "no difference seen, 1.00 (0.90 to 1.10)"),
        ((2.0, None, None, 3), "2 times as fast, of 3 rounds, too few for an interval"),
    ],
)
def test_a_gain_says_when_no_difference_was_seen(gain, shown):
    assert tables.gain_text(Estimate(*gain)) == shown
