"""Plans are ranked by their expected times, each with its interval."""

import numpy as np
import pytest
from synthetic_costs import UNITS, Synthetic

from gnnlab.errors import GnnlabError
from gnnlab.planning.calibration import Calibration, Group, Stream
from gnnlab.planning.costs import Model
from gnnlab.planning.planning import Planner
from gnnlab.planning.plans import Space, parse
from gnnlab.planning.simulation import Machine
from gnnlab.workloads.graphsage import sage

SAGE = sage(16)


def planner(costs=None, space=None, **options):
    machine = options.pop("machine", Machine(2, frozenset({"GPU", "NPU"})))
    model = Model(SAGE, costs or Synthetic(layer=SAGE), options.pop("separate", frozenset()))
    return Planner(model, space or Space(UNITS, unable={"NPU": {3, 4}}), machine, **{"max_blocks": 3, **options})


def test_every_legal_plan_is_ranked_and_one_unit_plans_are_among_them():
    ranking = planner().rank(400, 900)
    table = ranking.table()
    assert len(table) == 92 and table["ms"].is_monotonic_increasing and table["chosen"].sum() == 1
    assert ((table["ci_low"] < table["ms"]) & (table["ms"] < table["ci_high"])).all()
    assert set(ranking.top(2)) >= {ranking.one_unit, ranking.chosen}
    assert len(ranking.one_unit.units) == 1


def test_without_executed_plans_the_interval_has_all_blocks_at_their_ends():
    ranking = planner().rank(400, 900, plans=[parse("1-7 on CPU")])
    (ms,), (low,), (high,) = ranking.ms, ranking.low, ranking.high
    copies = ranking.steps[0][0][0].copies_ms
    assert (low - copies, high - copies) == pytest.approx((0.9 * (ms - copies), 1.1 * (ms - copies)))


def test_executed_plans_correct_the_time_and_give_the_interval():
    plans = [parse("1-7 on CPU"), parse("1-5 on CPU, 6-7 on GPU")]
    plain = planner().rank(400, 900, plans=plans)
    ratios = {False: (1.0, 1.1, 1.2), True: (1.2, 1.3, 1.4)}
    streams = [Stream("1/1", Group(several, False), ratio) for several, each in ratios.items() for ratio in each]
    learnt = planner(calibration=Calibration(tuple(streams))).rank(400, 900, plans=plans)
    np.testing.assert_allclose(learnt.ms / plain.ms, [1.1, 1.3])
    np.testing.assert_allclose([learnt.low / plain.ms, learnt.high / plain.ms], [[1.01, 1.21], [1.19, 1.39]])
    assert list(learnt.counts) == [3, 3]
    alone = planner(calibration=Calibration(tuple(streams)), objective="latency").rank(400, 900, plans=plans)
    assert list(alone.counts) == [1, 1]  # streams were executed, no lone graphs


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
    assert plans[0] == ranking.one_unit and ranking.chosen in plans
    assert len(plans) == len(set(plans)) == len(fewer) + 3 and set(fewer) < set(plans)


def test_a_plan_by_hand_is_ranked_among_the_others():
    plan = parse("1-5 on CPU and GPU (0.25, 0.75), 6-7 on NPU")  # a ratio that no candidate has
    ranking = planner().rank(400, 900, also=[plan])
    table = ranking.table()
    assert len(table) == 93 and plan.words() in set(table["words"])
