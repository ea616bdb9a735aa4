"""Plans are ranked with their uncertainty, and the choice is the one that is hardest to regret."""

import numpy as np
import pytest
from synthetic_costs import UNITS, Synthetic

from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import Model
from gnnlab.planning.planning import Planner, Ranking
from gnnlab.planning.plans import Space, parse
from gnnlab.planning.simulation import Machine
from gnnlab.workloads.graphsage import sage

SAGE = sage(16)


def planner(costs=None, space=None, **options):
    machine = options.pop("machine", Machine(2, frozenset({"GPU", "NPU"})))
    model = Model(SAGE, costs or Synthetic(layer=SAGE), options.pop("separate", frozenset()))
    return Planner(model, space or Space(UNITS, unable={"NPU": {3, 4}}), machine, **{"max_blocks": 3, **options})


def fastest(ranking):
    return ranking.plans[int(ranking.ms.argmin())]


def test_every_legal_plan_is_ranked_and_one_unit_plans_are_among_them():
    ranking = planner().rank(400, 900)
    table = ranking.table()
    assert len(table) == 92 and table["ms"].is_monotonic_increasing and table["chosen"].sum() == 1
    assert table["probability"].sum() == pytest.approx(1) and (table["regret"] >= 0).all()
    assert ((table["ci_low"] < table["ms"]) & (table["ms"] < table["ci_high"])).all()
    assert set(ranking.top(2)) >= {ranking.one_unit, ranking.chosen, fastest(ranking)}
    assert len(ranking.one_unit.units) == 1


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
    ranking = Ranking(1, 1, plans, ((), ()), np.array([9.0, 10.0]), draws, ("measured",) * 2)
    assert fastest(ranking) == plans[0] and ranking.chosen == plans[1]


def test_what_cannot_be_planned_says_why_in_one_line():
    missing = [("CPU", a, b) for a in range(1, 8) for b in range(a, 8) if a <= 6 <= b]
    lacking = [*missing, *(("GPU", a, b) for _, a, b in missing), *(("NPU", a, b) for _, a, b in missing)]
    bare = planner(Synthetic(layer=SAGE, lacking=lacking))
    with pytest.raises(GnnlabError, match="cells are missing"):
        bare.rank(10, 10)
    with pytest.raises(GnnlabError, match="objective"):
        planner(objective="speed")
    with pytest.raises(GnnlabError, match="no times of TPU"):
        planner(space=Space(("CPU", "TPU")))
    with pytest.raises(GnnlabError, match="plans of 3 stages"):
        planner(space=Space(UNITS, 3))
    with pytest.raises(GnnlabError, match="'TPU' is unknown"):
        planner().rank(10, 10, plans=[parse('[[["TPU"],[1,2,3,4,5,6,7]]]')])
    with pytest.raises(GnnlabError, match="no one-unit plan"):
        made = planner(space=Space(UNITS, unable={unit: {number} for number, unit in enumerate(UNITS, 1)}))
        _ = made.rank(10, 10).one_unit


def test_contenders_hold_the_chosen_plan_the_one_unit_plans_and_some_that_are_not_winners():
    ranking = planner().rank(400, 900)
    plans, fewer = ranking.contenders(top=2, others=3), ranking.contenders(top=2, others=0)
    assert plans[0] == ranking.one_unit and {ranking.chosen, fastest(ranking)} <= set(plans)
    assert len(plans) == len(set(plans)) == len(fewer) + 3 and set(fewer) < set(plans)


def test_a_plan_by_hand_is_ranked_among_the_others_and_marked():
    plan = parse("1-5 on CPU and GPU (0.25, 0.75), 6-7 on NPU")  # a ratio that no candidate has
    ranking = planner().rank(400, 900, also=[plan])
    table = ranking.table(marks={"by hand": plan, "chosen": ranking.chosen, "best single unit": ranking.one_unit})
    assert len(table) == 93 and table.set_index("words").loc[plan.words(), "label"].startswith("by hand")
