"""Plans are ranked by their expected times, each with its interval."""

import numpy as np
import pandas as pd
import pytest
from synthetic_costs import UNITS, costs

from gnnlab.errors import GnnlabError
from gnnlab.planning.planner import CALIBRATION, Planner, corrections
from gnnlab.planning.plans import Space, parse

NPU_CANNOT = [("NPU", a, b) for a in range(1, 8) for b in range(a, 8) if a <= 4 and b >= 3]  # stages 3 and 4


def planner(lacking=NPU_CANNOT, **options):
    return Planner(costs(lacking=lacking), **{"cores": 2, "max_blocks": 3, **options})


def calibration(ratios, timed=False):
    """Executed over expected: by (several units?), some streams each."""
    return pd.DataFrame([("1/1", several, timed, ratio) for several, each in ratios.items() for ratio in each],
                        columns=CALIBRATION)  # fmt: skip


def test_every_legal_plan_is_ranked_and_one_unit_plans_are_among_them():
    ranking = planner().rank(400, 900)
    table, alone = ranking.table, ranking.one_unit_plans
    assert table["ms"].is_monotonic_increasing and set(table.index) == set(planner().candidates)
    assert ((table["low"] < table["ms"]) & (table["ms"] < table["high"])).all()
    assert alone == [plan for plan in table.index if len(plan.units) == 1] and ranking.one_unit == alone[0]


def test_plans_are_candidates_where_units_share_rows_of_nodes_alone():
    plans = planner().candidates
    legal = Space(UNITS, unable={"NPU": {3, 4}}).candidates(max_blocks=3, one_unit=True)
    shared = {(block.first, block.last) for plan in plans for block in plan.blocks if block.shared}
    assert set(plans) < set(legal) and shared == {(1, 4), (1, 5), (1, 6), (1, 7)}


def test_plans_near_the_best_are_those_within_a_factor_and_few():
    ranking = planner().rank(400, 900)
    near, ms = ranking.near(1.2, 50), ranking.table["ms"].to_numpy()
    assert near[0] == ranking.chosen and near == ranking.table.index[: len(near)].tolist()
    assert ms[len(near) - 1] <= 1.2 * ms[0] < ms[len(near)] and ranking.near(1.2, 1) == [ranking.chosen]


def test_without_executed_plans_the_interval_has_all_blocks_at_their_ends():
    plan = parse("1-7 on CPU")
    ranking = planner().rank(400, 900, plans=[plan])
    ms, low, high = ranking.table.loc[plan, ["ms", "low", "high"]]
    assert high - ms == pytest.approx(ms - low) and 0.05 * ms < ms - low < 0.1 * ms  # copies have no interval


def test_executed_plans_correct_the_time_and_give_the_interval():
    plans = [parse("1-7 on CPU"), parse("1-5 on CPU, 6-7 on GPU")]
    learnt = calibration({False: (1.0, 1.1, 1.2), True: (1.2, 1.3, 1.4)})
    plain, corrected = (planner(calibration=known).rank(400, 900, plans=plans) for known in (None, learnt))
    for plan, factors in zip(plans, ((1.1, 1.01, 1.19), (1.3, 1.21, 1.39)), strict=True):
        before, after = plain.table.loc[plan, "ms"], corrected.table.loc[plan]
        assert after[["ms", "low", "high"]].tolist() == pytest.approx([factor * before for factor in factors])
        assert after["n"] == 3
        assert corrected.stream(plan)["end_ms"].max() == pytest.approx(8 * after["ms"])
    unlike = planner(calibration=calibration({False: (2.0,)})).rank(400, 900, plans=plans)
    assert unlike.table["n"].tolist() == [1, 1]  # nothing is known of plans of several units


def test_corrections_find_what_was_planted():
    random = np.random.default_rng(0)
    planted = {False: 1.1, True: 1.26}
    learnt = {several: factor * np.exp(random.normal(0, 0.05, 200)) for several, factor in planted.items()}
    found = corrections(calibration(learnt))
    for several, factor in planted.items():
        middle, low, high, count = found[several, False]
        assert middle == pytest.approx(factor, rel=0.02) and count == 200
        assert (low / factor, high / factor) == pytest.approx((np.exp(-0.082), np.exp(0.082)), rel=0.03)


def test_what_cannot_be_planned_says_why_in_one_line():
    no_stage_6 = [(unit, a, b) for unit in UNITS for a in range(1, 8) for b in range(a, 8) if a <= 6 <= b]
    with pytest.raises(GnnlabError, match="cells are missing"):
        planner(no_stage_6).rank(10, 10)
    with pytest.raises(GnnlabError, match="'TPU' is unknown"):
        planner().rank(10, 10, plans=[parse("1-7 on TPU")])
    each_its_own = [(unit, a, b) for number, unit in enumerate(UNITS, 1) for a in range(1, 8) for b in range(a, 8)
                    if a <= number <= b]  # fmt: skip
    with pytest.raises(GnnlabError, match="no one-unit plan"):
        _ = planner(each_its_own).rank(10, 10).one_unit


def test_a_plan_by_hand_is_ranked_among_the_others():
    plan = parse("1-5 on CPU and GPU (0.25, 0.75), 6-7 on NPU")  # a ratio that no candidate has
    ranking = planner().rank(400, 900, also=[plan])
    assert len(ranking.table) == len(planner().candidates) + 1 and plan in ranking.table.index
