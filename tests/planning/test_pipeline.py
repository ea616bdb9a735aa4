"""The simulated stream keeps the laws of queues, and its steady state is the formula that plans are ranked by."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.planning.pipeline import Machine, Work, simulate, window

MS = st.floats(0.1, 50)


def test_one_unit_takes_its_time_for_each_graph():
    trace = simulate([[Work("a", 5)]], Machine(), graphs=10)
    assert trace.period_ms == pytest.approx(5) and trace.total_ms == pytest.approx(50)
    assert trace.idle == {"a": pytest.approx(0)}


def test_units_on_cores_of_their_own_overlap_and_the_slowest_sets_the_pace():
    trace = simulate([[Work("a", 5)], [Work("b", 3)]], Machine(2), graphs=100)
    assert trace.period_ms == pytest.approx(5) and simulate(
        [[Work("a", 5)], [Work("b", 3)]], Machine(2), graphs=1
    ).latency_ms == pytest.approx(8)
    assert trace.idle["b"] == pytest.approx(0.4, abs=0.02)


def test_units_on_one_core_share_it():
    trace = simulate([[Work("a", 5)], [Work("b", 3)]], Machine(1), graphs=50)
    assert trace.period_ms == pytest.approx(8, rel=0.02) and trace.idle["b"] == pytest.approx(5 / 8, abs=0.02)


def test_units_of_one_core_let_the_others_work_on():
    """The first and the last block take turns on one core while the middle one has its own."""
    works = [[Work("a", 2)], [Work("b", 5)], [Work("c", 2)]]
    assert simulate(works, Machine(2), graphs=50).period_ms == pytest.approx(5, rel=0.05)


@settings(max_examples=60, deadline=None)
@given(a=MS, b=MS, cores=st.integers(1, 2), device=st.booleans())
def test_the_steady_state_of_two_units_is_the_formula(a, b, cores, device):
    machine = Machine(cores, frozenset({"b"} if device else ()))
    works = [Work("a", a), Work("b", b)]
    trace = simulate([[work] for work in works], machine, graphs=200)
    assert trace.period_ms == pytest.approx(machine.period_ms(works, machine.places(works)), rel=0.02)


@settings(max_examples=40, deadline=None)
@given(
    works=st.lists(st.lists(MS, min_size=1, max_size=2), min_size=1, max_size=3),
    cores=st.integers(1, 4),
)
def test_no_graph_is_lost_and_none_overtakes_another(works, cores):
    named = [[Work(f"{place}{unit}", ms) for unit, ms in enumerate(block)] for place, block in enumerate(works)]
    machine = Machine(cores)
    trace = simulate(named, machine, graphs=12)
    assert list(trace.left) == sorted(trace.left) and len(trace.segments) == 12 * sum(map(len, works))
    inside = [sum(e <= t < left for e, left in zip(trace.entered, trace.left, strict=True)) for t in trace.entered]
    assert max(inside) <= window(len(works))
    every = [work for block in named for work in block]
    least = machine.period_ms(every, machine.places(every))
    alone = {work.unit: work.ms for work in every}
    assert trace.total_ms >= 12 * least * (1 - 1e-6)
    assert all(s.end_ms - s.start_ms >= alone[s.unit] * (1 - 1e-6) for s in trace.segments)


@given(st.dictionaries(st.sampled_from("abcde"), MS, min_size=1), st.integers(1, 4), st.data())
def test_the_formula_never_falls_when_a_unit_takes_longer(works, cores, data):
    machine = Machine(cores, frozenset("a"))
    slower = dict(works)
    slower[data.draw(st.sampled_from(sorted(works)))] += data.draw(MS)
    named = [[Work(unit, ms) for unit, ms in given.items()] for given in (works, slower)]
    before, after = (machine.period_ms(w, machine.places(w)) for w in named)
    assert after >= before * (1 - 1e-12)


@pytest.mark.parametrize(
    "act",
    [
        lambda: simulate([], Machine()),
        lambda: simulate([[Work("a", 1)]], Machine(), graphs=0),
        lambda: simulate([[Work("a", -1)]], Machine()),
        lambda: simulate([[Work("a", float("nan"))]], Machine()),
        lambda: Machine(0),
    ],
)
def test_what_makes_no_stream_is_refused(act):
    with pytest.raises(GnnlabError) as error:
        act()
    assert "\n" not in str(error.value)
