"""The stream keeps the laws of queues, and its steady state is the formula that plans are ranked by."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.planning.pipeline import flow, period_ms, places_of, stream, window
from gnnlab.planning.steps import Work

MS = st.floats(0.1, 50)


def streamed(*ms, cores=2, graphs=100, devices=()):
    """A stream through blocks of one unit each: its `flow` and its segments."""
    works = [Work(block, "abcd"[block], each) for block, each in enumerate(ms)]
    segments = stream(works, places_of(works, cores, devices), graphs)
    return flow(segments), segments


@pytest.mark.parametrize(
    ("ms", "cores", "period_ms", "idle"),
    [
        ((5,), 2, 5, {"a": 0}),
        ((5, 3), 2, 5, {"b": 0.4}),  # the slowest sets the pace
        ((5, 3), 1, 8, {"a": 3 / 8, "b": 5 / 8}),  # they take turns
        ((2, 5, 2), 2, 5, {"b": 0}),  # the first and the last take turns on one core, the middle one has its own
    ],
)
def test_the_busiest_core_sets_the_pace_of_a_stream(ms, cores, period_ms, idle):
    seen, _ = streamed(*ms, cores=cores)
    assert seen["from graph to graph"] == pytest.approx(period_ms, rel=0.05)
    assert {unit: seen[f"idle: {unit}"] for unit in idle} == pytest.approx(idle, abs=0.03)
    alone, _ = streamed(*ms, cores=cores, graphs=1)
    assert alone["latency of a graph, with its wait"] == alone["from graph to graph"] == pytest.approx(sum(ms))


@settings(max_examples=60, deadline=None)
@given(a=MS, b=MS, cores=st.integers(1, 2), device=st.booleans())
def test_the_steady_state_of_two_units_is_the_formula(a, b, cores, device):
    works, devices = [Work(0, "a", a), Work(1, "b", b)], {"b"} if device else set()
    seen, _ = streamed(a, b, cores=cores, graphs=200, devices=devices)
    formula = period_ms(works, places_of(works, cores, devices))
    assert seen["from graph to graph"] == pytest.approx(formula, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(
    blocks=st.lists(st.lists(MS, min_size=1, max_size=2), min_size=1, max_size=3),
    cores=st.integers(1, 4),
)
def test_no_graph_is_lost_and_none_overtakes_another(blocks, cores):
    works = [Work(b, f"{b}{unit}", ms) for b, block in enumerate(blocks) for unit, ms in enumerate(block)]
    places = places_of(works, cores)
    segments = stream(works, places, 12)
    left = segments.groupby("graph")["end_ms"].max().to_numpy()
    entered = segments[segments["block"] == 0].groupby("graph")["start_ms"].min().to_numpy()
    assert len(segments) == 12 * len(works) and (np.diff(left) >= 0).all()
    most = window(len(blocks))
    assert (entered[most:] >= left[:-most] - 1e-9).all()
    assert left.max() >= 12 * period_ms(works, places) * (1 - 1e-6)


@given(st.dictionaries(st.sampled_from("abc"), MS, min_size=1), st.integers(1, 4), st.data())
def test_the_formula_never_falls_when_a_unit_takes_longer(times, cores, data):
    slower = dict(times)
    slower[data.draw(st.sampled_from(sorted(times)))] += data.draw(MS)
    named = [[Work(0, unit, ms) for unit, ms in each.items()] for each in (times, slower)]
    before, after = (period_ms(works, places_of(works, cores, {"a"})) for works in named)
    assert after >= before * (1 - 1e-12)


@pytest.mark.parametrize(
    ("works", "graphs"),
    [([], 1), ([Work(0, "a", 1)], 0), ([Work(0, "a", -1)], 1), ([Work(0, "a", float("nan"))], 1)],
)
def test_what_makes_no_stream_is_refused(works, graphs):
    with pytest.raises(GnnlabError) as error:
        stream(works, {"a": 0}, graphs)
    assert "\n" not in str(error.value)
