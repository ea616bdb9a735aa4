"""A row that contradicts itself is refused; what is written is read back, samples and all."""

import pytest
from refusals import refused
from table_rows import TORCH

from gnnlab.errors import GnnlabError
from gnnlab.lab.table import Table, row

GOOD = TORCH | {"study": "gat_layer", "keys": {"size": "58x776"}, "variant": "gnnlab", "unit": "ms", "better": "lower"}
GOOD |= {"origin": "measured", "statistic": "median", "interval": "95 % confidence"}
GOOD |= {"value": 1.0, "low": 0.9, "high": 1.1, "n": 7}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low": 1.05}, "lies outside of its interval"),
        ({"value": 8.41, "low": 7.87, "high": 8.23}, "lies outside of its interval"),
        ({"interval": "quartiles"}, "interval: Input should be"),
        ({"interval": "exact"}, "measured, with n = 7, has no interval of kind 'exact'"),
        ({"n": 1}, "measured, with n = 1, has no interval"),
        ({"n": 0}, "status 'ok' and value"),
        ({"value": None}, "status 'ok' and value"),
        ({"value": float("nan")}, "status 'ok' and value"),
        ({"ratio": 2.0}, "a ratio needs its baseline"),
        ({"ratio": 2.0, "baseline": "PyG", "ratio_low": 2.1, "ratio_high": 3.0}, "the value 2.0 lies outside"),
        ({"status": "failed"}, "failed, which needs a reason"),
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


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"low": None, "high": float("nan")}, (1, None, None, 7, "none")),  # without ends no interval
        ({"status": "unavailable", "reason": "no CUDA device"}, (None, None, None, 0, "none")),
        ({"origin": "counted", "statistic": "count", "interval": "exact", "value": 6, "n": 1}, (6, 6, 6, 1, "exact")),
    ],
)
def test_what_a_row_leaves_out_follows_from_the_rest(change, number):
    made = row(**{**GOOD, **change})
    assert (made.value, made.low, made.high, made.n, made.interval) == number


def test_as_many_samples_as_n():
    with pytest.raises(GnnlabError, match="3 samples, and n = 7"):
        Table().put(row(**GOOD), [1, 2, 3])


def test_rows_are_selected_by_study_variant_and_keys():
    table = Table([row(**{**GOOD, "keys": {"size": size, "features": 64}}) for size in ("a", "b", "c")])
    assert len(table.select("gat_layer", "gnnlab", {"size": ["a", "c"]})) == 2
    assert table.select("gat_layer", "gnnlab", {"features": 500}) == []
    assert [each.keys["size"] for each in table.select("gat_layer")] == ["a", "b", "c"]
