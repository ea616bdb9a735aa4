"""A verdict is a statement that is true at every point of the interval, and noise never wins one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.lab import claims
from gnnlab.lab.claims import Claim, Verdict, verdict

REPRODUCED, EXCEEDED, WEAKER, REFUTED, INCONCLUSIVE, _, MET, MISSED, OPEN = Verdict
WON = (REPRODUCED, EXCEEDED, MET)


def claim(metric="ratio", claimed=None, **fields):
    return Claim(id="c", notebook="02", metric=metric, statement="s", of={"study": "s"}, claimed=claimed, **fields)


RANGE, SMALL = claim(claimed=(1.41, 1.45)), claim(claimed=(1.05, 1.11))


@pytest.mark.parametrize(
    ("of", "interval", "expected"),
    [
        # an effect of 1.41 to 1.45: wholly within 1.343 to 1.5225, beyond, short of it, below a quarter (1.0897)
        (RANGE, (1.343, 1.522), REPRODUCED),
        (RANGE, (1.34, 1.44), INCONCLUSIVE),  # reaches out of the range
        (RANGE, (1.0001, 30), INCONCLUSIVE),
        (RANGE, (1.53, 1.6), EXCEEDED),
        (RANGE, (1.52, 1.6), INCONCLUSIVE),
        (RANGE, (1.0, 1.34), WEAKER),
        (RANGE, (0.8, 1.089), REFUTED),
        # a small effect: its quarter lies above the range widened by 5 %
        (SMALL, (0.99, 1.01), REFUTED),
        (SMALL, (1.013, 1.1), REPRODUCED),
        (SMALL, (1.005, 1.05), INCONCLUSIVE),
        # a gain without a number
        (claim(), (1.001, 1.3), REPRODUCED),
        (claim(), (0.99, 1.019), REFUTED),
        (claim(), (1.0, 1.02), INCONCLUSIVE),
        # no change, within a margin that is named
        (claim("difference", (0, 0), margin=0.005), (-0.3, 0.3), INCONCLUSIVE),
        (claim("ratio", (1, 1), margin=0.05), (0.05, 0.06), REFUTED),
        (claim("ratio", (1, 1), margin=0.05), (0.96, 1.04), REPRODUCED),
        # counts
        (claim("count", (28, 28)), (28, 28), REPRODUCED),
        (claim("count", (28, 28)), (49, 49), REFUTED),
        # times, of which less is better
        (claim("hours", (3, 4.5)), (0.01, 0.02), EXCEEDED),
        (claim("hours", (3, 4.5)), (5, 6), WEAKER),
        # goals
        (claim("share", at_least=0.8), (0.18, 1.0), OPEN),
        (claim("share", at_least=0.8), (0.8, 0.9), MET),
        (claim("percent", at_most=5), (1.9, 73), OPEN),
        (claim("percent", at_most=5), (5.1, 7), MISSED),
        # no interval
        (RANGE, None, INCONCLUSIVE),
        (claim("ratio", at_least=5), None, OPEN),
    ],
)
def test_a_verdict_follows_from_the_interval(of, interval, expected):
    assert verdict(of, interval) is expected


ends = st.floats(0.01, 100)
intervals = st.tuples(ends, ends).map(sorted)
claimed_ranges = st.tuples(st.floats(1.01, 50), st.floats(1, 3)).map(lambda t: (t[0], t[0] * t[1]))
any_claim = st.one_of(
    claimed_ranges.map(lambda r: claim(claimed=r)),
    st.just(claim()),
    claimed_ranges.map(lambda r: claim("minutes", r)),
    st.tuples(ends, st.floats(0.001, 5)).map(lambda t: claim("share", (t[0], t[0]), margin=t[1])),
    ends.map(lambda least: claim("ratio", at_least=least)),
    ends.map(lambda most: claim("percent", at_most=most)),
)


def holds(of, judged, value):
    """Is the statement that a verdict makes true of one value?"""
    if of.is_goal:
        good = (of.at_least is None or value >= of.at_least) and (of.at_most is None or value <= of.at_most)
        return good if judged is MET else not good
    if of.claimed is None:
        return value > 1 if judged is REPRODUCED else value < 1.02
    low, high = of.claimed
    if of.margin is not None:
        return (low - of.margin <= value <= high + of.margin) is (judged is REPRODUCED)
    lower = of.metric == "minutes"
    if judged is REPRODUCED:
        return low / 1.05 <= value <= high * 1.05
    if judged is EXCEEDED:
        return value < low / 1.05 if lower else value > high * 1.05
    if judged is WEAKER:
        return value > high * 1.05 if lower else value < max(low / 1.05, low**0.25)
    return math.log(value) < 0.25 * math.log(low)


@given(any_claim, intervals, st.floats(0, 1))
def test_the_statement_of_a_verdict_is_true_at_every_point_of_the_interval(of, interval, at):
    judged = verdict(of, tuple(interval))
    if judged not in (INCONCLUSIVE, OPEN):
        value = min(max(interval[0] + at * (interval[1] - interval[0]), interval[0]), interval[1])
        assert holds(of, judged, value), (judged, value)


@given(any_claim, intervals, st.floats(0, 2), st.floats(0, 2))
def test_widening_an_interval_never_makes_a_row_reproduced_exceeded_or_met(of, interval, below, above):
    wider = (interval[0] / (1 + below), interval[1] * (1 + above))
    if verdict(of, wider) in WON:
        assert verdict(of, tuple(interval)) is verdict(of, wider)


def test_ends_that_are_no_interval_are_refused():
    for bad in ((2, 1), (math.nan, 1)):
        with pytest.raises(GnnlabError, match="in order"):
            verdict(RANGE, bad)


@pytest.mark.parametrize(
    ("metric", "claimed"), [("ratio", (1, 1)), ("share", (0.3, 0.3)), ("difference", (0, 0)), ("count", None)]
)
def test_a_claim_that_no_interval_could_decide_is_refused(metric, claimed):
    with pytest.raises(ValueError, match=r"margin|without a number"):
        claim(metric, claimed)


def test_every_claim_of_the_catalogue_has_a_source_and_an_id_of_its_own():
    entries = claims.catalogue()
    for entry in entries.values():
        assert entry.is_goal == (entry.source == "goal"), entry.id
        assert entry.source in (*claims.documents(), "goal", "lab"), entry.id
    assert len(entries) == sum(map(len, claims._catalogue_file()["claims"].values())) > 80
