"""Verdicts come from the interval alone; every verdict and every border has its row here."""

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.lab import claims, results
from gnnlab.lab.results import Verdict

REPRODUCED, EXCEEDED, WEAKER = Verdict.REPRODUCED, Verdict.EXCEEDED, Verdict.WEAKER
REFUTED, INCONCLUSIVE, UNTESTABLE = Verdict.REFUTED, Verdict.INCONCLUSIVE, Verdict.UNTESTABLE


@pytest.mark.parametrize(
    ("metric", "claimed", "ci", "expected"),
    [
        # a range of ratios, 1.41 to 1.45
        ("ratio", (1.41, 1.45), (1.42, 1.44), REPRODUCED),
        ("ratio", (1.41, 1.45), (1.30, 1.41), REPRODUCED),  # touches the lower end
        ("ratio", (1.41, 1.45), (1.45, 1.60), REPRODUCED),  # touches the upper end
        ("ratio", (1.41, 1.45), (1.4501, 1.6), EXCEEDED),
        ("ratio", (1.41, 1.45), (1.2, 1.4099), WEAKER),
        ("ratio", (1.41, 1.45), (1.0001, 1.2), WEAKER),
        ("ratio", (1.44, 1.5), (1.0, 1.2), REFUTED),  # holds no effect, and stays within half of the way (1.2)
        ("ratio", (1.44, 1.5), (1.0, 1.2001), INCONCLUSIVE),  # holds no effect, and reaches further
        ("ratio", (1.41, 1.45), (0.8, 0.9), REFUTED),  # the wrong direction
        ("ratio", (1.41, 1.45), (1.0, 1.41), INCONCLUSIVE),  # meets the range and no effect
        ("ratio", (1.41, 1.45), (0.5, 3.0), INCONCLUSIVE),
        ("ratio", (1.41, 1.45), (1.0001, 3.0), REPRODUCED),
        # a single ratio
        ("ratio", (2, 2), (1.9, 2.1), REPRODUCED),
        ("ratio", (2, 2), (1.5, 1.9), WEAKER),
        ("ratio", (2, 2), (2.1, 2.2), EXCEEDED),
        # a ratio claimed to be 1 is exact: the two are the same
        ("ratio", (1, 1), (0.95, 1.05), REPRODUCED),
        ("ratio", (1, 1), (1.01, 1.05), REFUTED),
        ("ratio", (1, 1), (0.05, 0.06), REFUTED),
        ("ratio", (1, 1), (0.5, 1.5), INCONCLUSIVE),
        # a gain without a number
        ("ratio", None, (1.001, 1.1), REPRODUCED),
        ("ratio", None, (1.0, 1.05), REFUTED),  # no gain, or hardly any
        ("ratio", None, (1.0, 1.0501), INCONCLUSIVE),
        ("ratio", None, (0.15, 3.7), INCONCLUSIVE),
        ("ratio", None, (0.8, 0.9), REFUTED),
        # goals
        ("ratio", (5, None), (5.1, 5.3), REPRODUCED),
        ("ratio", (5, None), (4.0, 5.0), REPRODUCED),
        ("ratio", (5, None), (4.0, 4.99), WEAKER),
        ("ratio", (5, None), (0.9, 2.2), REFUTED),
        ("ratio", (5, None), (0.9, 4.0), INCONCLUSIVE),  # too wide to tell weaker from nothing
        ("ratio", (5, None), (0.9, 6.0), INCONCLUSIVE),
        ("percent", (None, 1.5), (0.5, 1.0), REPRODUCED),
        ("percent", (None, 1.5), (1.5, 2.0), REPRODUCED),
        ("percent", (None, 1.5), (1.51, 2.0), WEAKER),
        ("share", (0.8, None), (0.7, 0.79), WEAKER),
        ("share", (0.8, None), (0.0, 0.4), REFUTED),
        ("share", (0.8, None), (0.0, 0.41), INCONCLUSIVE),
        # smaller is better
        ("hours", (3, 4.5), (3.2, 3.3), REPRODUCED),
        ("hours", (3, 4.5), (0.01, 0.02), EXCEEDED),
        ("hours", (3, 4.5), (5, 6), WEAKER),
        # exact values
        ("count", (28, 28), (28, 28), REPRODUCED),
        ("count", (28, 28), (29, 29), REFUTED),
        ("count", (28, 28), (27, 27), REFUTED),
        ("exact_share", (0.3156, 0.3156), (0.30, 0.33), REPRODUCED),
        ("exact_share", (0.3156, 0.3156), (0.40, 0.45), REFUTED),
        ("exact_share", (0.3156, 0.3156), (0.1, 0.6), INCONCLUSIVE),
        ("difference", (0, 0), (-0.01, 0.02), REPRODUCED),
        ("difference", (0, 0), (0.01, 0.02), REFUTED),
        ("share", (1, 1), (1, 1), REPRODUCED),
        ("share", (1, 1), (0.9, 0.9), WEAKER),
        ("share", (1, 1), (0, 0), REFUTED),
        ("memory_ratio", (1.67, 2.0), (1.7, 1.8), REPRODUCED),
    ],
)
def test_verdict_follows_from_the_interval(metric, claimed, ci, expected):
    assert claims.verdict(metric, claimed, ci) is expected


@given(st.sampled_from(list(claims.catalogue().values())), st.floats(0.001, 1e10), st.floats(0, 1e3))
def test_every_interval_gets_a_verdict_for_every_claim(entry, low, width):
    assert claims.verdict(entry.metric, entry.claimed, (low, low + width)) in set(Verdict) - {UNTESTABLE}


@given(st.floats(1.5, 3), st.floats(0.01, 1), st.floats(0.1, 10), st.floats(0, 1))
def test_a_range_claim_never_gets_worse_when_the_interval_moves_up(claim_low, claim_width, low, width):
    order = [REFUTED, INCONCLUSIVE, WEAKER, REPRODUCED, EXCEEDED]
    claimed = (claim_low, claim_low + claim_width)
    here, higher = (claims.verdict("ratio", claimed, (x, x + width)) for x in (low, low + 0.5))
    if {here, higher} <= {REFUTED, REPRODUCED, EXCEEDED}:
        assert order.index(higher) >= order.index(here)


def test_an_interval_with_its_ends_swapped_or_nan_is_refused():
    for ci in ((2.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(claims.ClaimError, match="in order"):
            claims.verdict("ratio", (1.1, 1.2), ci)


def test_record_carries_the_catalogue_row_and_the_verdict():
    row = claims.record("gat.parameters", 169_856, notebook="01", why="counted")
    assert (row.verdict, row.source, row.ci, row.unit) == (REPRODUCED, "000", (169_856, 169_856), "count")


def test_what_could_not_be_measured_is_untestable_and_says_why():
    row = claims.record("gat.compile_cuda", None, notebook="02", why="needs a CUDA device")
    assert row.verdict is UNTESTABLE and row.measured is None and row.ci is None and row.n == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "gat.nothing"}, "no claim 'gat.nothing'"),
        ({"notebook": "02"}, "belongs to notebook 01"),
        ({"why": " "}, "say why"),
        ({"measured": math.nan}, "finite number"),
    ],
)
def test_a_record_that_does_not_fit_the_catalogue_is_refused_in_one_line(change, message):
    arguments = {"id": "gat.parameters", "measured": 1.0, "notebook": "01", "why": "counted"} | change
    with pytest.raises(claims.ClaimError, match=message) as error:
        claims.record(arguments.pop("id"), arguments.pop("measured"), **arguments)
    assert "\n" not in str(error.value)


def test_every_catalogue_row_has_a_known_metric_and_a_range_in_order():
    for entry in claims.catalogue().values():
        assert entry.metric in claims.METRICS, entry.id
        if entry.claimed and None not in entry.claimed:
            assert entry.claimed[0] <= entry.claimed[1], entry.id
        if entry.claimed is None:
            assert claims.METRICS[entry.metric].neutral is not None, entry.id


def test_ids_in_the_catalogue_are_unique():
    data = yaml.safe_load(Path(claims.__file__).with_name("claims.yaml").read_text(encoding="utf-8"))
    ids = [row["id"] for row in data["seeds"] + data["goals"]]
    assert len(ids) == len(set(ids)) == len(claims.catalogue())


def test_the_ledger_gathers_rows_across_notebooks_and_names_a_damaged_file(tmp_path, result_file):
    results.write(
        tmp_path / "01_a.json", result_file(claims=[claims.record("gat.parameters", 1, notebook="01", why="w")])
    )
    results.write(
        tmp_path / "02_b.json", result_file(claims=[claims.record("gat.expand", 1.0, notebook="02", why="w")])
    )
    (tmp_path / "03_c.json").write_text("{damaged")
    found = claims.ledger(tmp_path)
    assert [row.id for row in found.rows] == ["gat.expand", "gat.parameters"]  # the catalogue's order
    assert "gat.compile" in [entry.id for entry in found.missing]
    assert len(found.problems) == 1 and "03_c.json" in found.problems[0]


@pytest.mark.parametrize(
    ("claimed", "text"),
    [
        (None, "some gain"),
        ((5, None), "at least 5"),
        ((None, 1.5), "at most 1.5"),
        ((28, 28), "28"),
        ((1, 2), "1 to 2"),
    ],
)
def test_claimed_ranges_read_as_words(claimed, text):
    assert claims.format_range(claimed) == text
