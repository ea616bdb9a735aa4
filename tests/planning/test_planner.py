"""Plans are ranked by their expected times, each with its interval."""

import pandas as pd
import pytest
from synthetic_costs import UNITS, costs

from gnnlab.errors import GnnlabError
from gnnlab.planning.planner import CALIBRATION, Planner, correction
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
    assert table["ms"].is_monotonic_increasing
    assert ((table["low"] < table["ms"]) & (table["ms"] < table["high"])).all()
    assert alone == [plan for plan in table.index if len(plan.units) == 1] and ranking.one_unit == alone[0]
    mine = parse("1-5 on CPU and GPU (0.25, 0.75), 6-7 on NPU")  # a ratio that no candidate has
    assert set(planner().rank(400, 900, [mine]).table.index) == {*table.index, mine}


def test_plans_are_ranked_where_units_share_rows_of_nodes_alone():
    plans = planner().rank(400, 900).table.index
    legal = Space(UNITS, unable={"NPU": {3, 4}}).candidates(max_blocks=3, one_unit=True)
    shared = {(block.first, block.last) for plan in plans for block in plan.blocks if block.shared}
    assert set(plans) < set(legal) and shared == {(1, 4), (1, 5), (1, 6), (1, 7)}


def test_without_executed_plans_the_interval_has_all_blocks_at_their_ends():
    plan = parse("1-7 on CPU")
    ranking = planner().rank(400, 900, also=[plan])
    ms, low, high = ranking.table.loc[plan, ["ms", "low", "high"]]
    assert high - ms == pytest.approx(ms - low) and 0.05 * ms < ms - low < 0.1 * ms  # copies have no interval


def test_executed_plans_correct_the_time_and_give_the_interval():
    plans = [parse("1-7 on CPU"), parse("1-5 on CPU, 6-7 on GPU")]
    learnt = calibration({False: (1.0, 1.1, 1.2), True: (1.2, 1.3, 1.4)})
    plain, corrected = (planner(calibration=known).rank(400, 900, also=plans) for known in (None, learnt))
    for plan, factors in zip(plans, ((1.1, 1.01, 1.19), (1.3, 1.21, 1.39)), strict=True):
        before, after = plain.table.loc[plan, "ms"], corrected.table.loc[plan]
        assert after[["ms", "low", "high"]].tolist() == pytest.approx([factor * before for factor in factors])
        assert after["n"] == 3
        assert corrected.stream(plan)["end_ms"].max() == pytest.approx(8 * after["ms"])


def test_a_plan_is_corrected_by_the_streams_that_are_most_like_it():
    streams = calibration({False: (1.1,) * 3, True: (1.3,) * 2})
    assert correction(streams, True, timed=False) == (1.3, 1.3, 1.3, 2)
    assert correction(streams, True, timed=True)[3] == 2  # of none were the calls timed
    assert correction(streams[~streams["several"]], True, timed=True)[3] == 3  # of several units none was executed
    both = pd.concat([streams, calibration({True: (2.0,)}, timed=True)])
    assert correction(both, True, timed=True)[0] == 2.0 and correction(both, True, timed=False)[0] == 1.3


def test_what_cannot_be_planned_says_why_in_one_line():
    no_stage_6 = [(unit, a, b) for unit in UNITS for a in range(1, 8) for b in range(a, 8) if a <= 6 <= b]
    with pytest.raises(GnnlabError, match="can be costed: cells are missing"):
        planner(no_stage_6).rank(10, 10)
    with pytest.raises(GnnlabError, match="'TPU' is unknown"):
        planner().rank(10, 10, also=[parse("1-7 on TPU")])
    each_its_own = [(unit, a, b) for number, unit in enumerate(UNITS, 1) for a in range(1, 8) for b in range(a, 8)
                    if a <= number <= b]  # fmt: skip
    with pytest.raises(GnnlabError, match="no one-unit plan"):
        _ = planner(each_its_own).rank(10, 10).one_unit
