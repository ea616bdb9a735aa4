"""Plans are ranked with their uncertainty, and dynamic programming finds what going through all of them finds."""

from dataclasses import replace
from math import comb, perm
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_costs import UNITS, Synthetic

from gnnlab.stages.errors import StageError
from gnnlab.stages.plans import planning
from gnnlab.stages.plans.costs import Model
from gnnlab.stages.plans.planning import Planner, Ranking
from gnnlab.stages.plans.plans import PlanError, Space, parse
from gnnlab.stages.plans.simulation import Machine
from gnnlab.workloads.graphsage import sage

SAGE = sage(16)


def planner(costs=None, space=None, **options):
    machine = options.pop("machine", Machine(2, frozenset({"GPU", "NPU"})))
    model = Model(SAGE, costs or Synthetic(layer=SAGE), options.pop("separate", frozenset()))
    return Planner(model, space or Space(UNITS, unable={"NPU": {3, 4}}), machine, **options)


def test_every_legal_plan_is_ranked_and_one_unit_plans_are_among_them():
    ranking = planner().rank(400, 900)
    table = ranking.table()
    assert len(table) == 92 and table["ms"].is_monotonic_increasing and table["chosen"].sum() == 1
    assert table["probability"].sum() == pytest.approx(1) and (table["regret"] >= 0).all()
    assert ((table["ci_low"] < table["ms"]) & (table["ms"] < table["ci_high"])).all()
    assert set(ranking.top(2)) >= {ranking.one_unit, ranking.chosen, ranking.fastest}
    assert len(ranking.one_unit.units) == 1


class Rugged(Synthetic):
    """Times that follow no rule: every block of every unit has one of its own."""

    def __init__(self, seed, **options):
        super().__init__(**options)
        self.seed = seed

    def time_ms(self, unit, first, last, nodes, edges):
        return (last - first + 1) * (1 + crc32(f"{self.seed} {unit} {first} {last}".encode()) % 1000)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.none() | st.integers(0, 10**6),
    speeds=st.lists(st.floats(0.2, 8), min_size=3, max_size=3),
    objective=st.sampled_from(["throughput", "throughput", "latency"]),
    slowdown=st.sampled_from([1.0, 1.3]),
    devices=st.sets(st.sampled_from(UNITS), max_size=1),
    barred=st.sets(st.integers(1, 7), max_size=2),
    blocks=st.integers(2, 3),
)
def test_dynamic_programming_agrees_with_enumeration(seed, speeds, objective, slowdown, devices, barred, blocks):
    options = {"layer": SAGE, "lacking": [("GPU", 1, 7), ("CPU", 3, 5)]}
    smooth = Synthetic(**options, speeds=dict(zip(UNITS, speeds, strict=True)))
    made = planner(
        smooth if seed is None else Rugged(seed, **options),
        Space(UNITS, unable={"NPU": barred}),
        machine=Machine(2, frozenset(devices), slowdown),
        separate=frozenset(devices),
        objective=objective,
        max_blocks=blocks,
        draws=2,
    )
    ranking = made.rank(400, 900)
    found = made.best(400, 900)
    made.space.check(found)
    assert ranking.ms[ranking.place(found)] == pytest.approx(ranking.ms.min(), rel=1e-12)


@pytest.mark.parametrize("good", [3, 4])
def test_a_busier_unit_beside_an_idle_one_can_be_better_than_two_that_slow_each_other_down(good):
    """Cut behind `good`: 10.1 and 1 ms. Behind the other stage: 10 and 10 ms, the least busy bottleneck."""

    class Two(Synthetic):
        def time_ms(self, unit, first, last, nodes, edges):
            cut = last if unit == "A" else first - 1
            return {good: 10.1 if unit == "A" else 1.0, 7 - good: 10.0}.get(cut, 100.0)

        def transfer_ms(self, source, target, size_bytes):
            return 0.0

    costs = Two(units="AB", layer=SAGE)
    made = planner(costs, Space(("A", "B"), sharing=()), machine=Machine(2, slowdown=1.6), draws=1)
    ranking = made.rank(400, 900)
    assert made.best(400, 900) == ranking.fastest and ranking.ms.min() == pytest.approx(10.1 + 0.6)


def test_twelve_stages_and_five_units_take_a_fraction_of_what_enumeration_takes(monkeypatch):
    class Deep(Synthetic):
        def time_ms(self, unit, first, last, nodes, edges):
            return sum(1 + (self.speeds[unit] * stage * 7919) % 13 for stage in range(first, last + 1))

    names = [f"v{number}" for number in range(13)]
    like, small = SAGE.stages[1], sage(4)
    stages = tuple(replace(like, number=n, name=f"S{n}", reads=(names[n - 1],), writes=names[n]) for n in range(1, 13))
    deep = replace(small, name="deep", stages=stages, values=dict.fromkeys(names, small.values["x"]), inputs=("v0",))
    units = tuple("ABCDE")
    tails, longer = [], planning._Search._longer
    monkeypatch.setattr(planning._Search, "_longer", lambda *given: tails.append(1) or longer(*given))
    for objective in ("throughput", "latency"):
        tails.clear()
        space = Space(units, 12, sharing=())
        made = Planner(
            Model(deep, Deep(units, layer=deep)), space, Machine(5), objective=objective, max_blocks=5, draws=2
        )
        made.best(100, 100)
        plans = sum(comb(11, blocks - 1) * perm(5, blocks) for blocks in range(1, 6))
        assert len(tails) < plans / 2, (objective, len(tails), plans)


def test_a_drawn_time_is_the_same_in_every_plan_that_has_the_block():
    made = planner(machine=Machine(3))
    plans = ['[[["CPU"],[1,2,3,4,5]],[["NPU"],[6,7]]]', '[[["CPU"],[1,2,3,4,5]],[["GPU"],[6,7]]]']
    ranking = made.rank(400, 900, plans=[parse(plan) for plan in plans])
    assert ranking.draws.shape == (2, made.draws)
    first = [made._draws_of(steps[0][0]) for steps in ranking.steps]
    np.testing.assert_array_equal(first[0], first[1])


def test_the_choice_is_robust_where_the_fastest_is_a_gamble():
    """Two plans: one a little faster by its expected time and very uncertain, one that is known."""
    plans = tuple(parse(f'[[["{unit}"],[1,2,3,4,5,6,7]]]') for unit in ("GPU", "CPU"))
    draws = np.array([np.r_[np.full(90, 9.0), np.full(10, 30.0)], np.full(100, 10.0)])
    ranking = Ranking(1, 1, "latency", plans, ((), ()), np.array([9.0, 10.0]), draws, ("measured",) * 2, (True,) * 2)
    assert ranking.fastest == plans[0] and ranking.chosen == plans[1]


def test_what_cannot_be_planned_says_why_in_one_line():
    missing = [("CPU", a, b) for a in range(1, 8) for b in range(a, 8) if a <= 6 <= b]
    lacking = [*missing, *(("GPU", a, b) for _, a, b in missing), *(("NPU", a, b) for _, a, b in missing)]
    bare = planner(Synthetic(layer=SAGE, lacking=lacking))
    for act in (lambda: bare.rank(10, 10), lambda: bare.best(10, 10)):
        with pytest.raises(StageError, match="cells are missing"):
            act()
    with pytest.raises(StageError, match="objective"):
        planner(objective="speed")
    with pytest.raises(StageError, match="no times of TPU"):
        planner(space=Space(("CPU", "TPU")))
    with pytest.raises(StageError, match="plans of 3 stages"):
        planner(space=Space(UNITS, 3))
    with pytest.raises(PlanError, match="'TPU' is unknown"):
        planner().rank(10, 10, plans=[parse('[[["TPU"],[1,2,3,4,5,6,7]]]')])
    with pytest.raises(StageError, match="no one-unit plan"):
        made = planner(space=Space(UNITS, unable={unit: {number} for number, unit in enumerate(UNITS, 1)}))
        _ = made.rank(10, 10).one_unit
