"""The study of plans, small and in threads: what it measures, what becomes of the claims, what its sentences say."""

import numpy as np
import pandas as pd
import pytest
from synthetic_costs import Line, Predicted

from gnnlab.lab import claims, plot_plans, plots
from gnnlab.stages.campaign.cell_inputs import layer_of
from gnnlab.stages.campaign.sizes import Size
from gnnlab.stages.errors import StageError
from gnnlab.stages.plans import (
    run as plan_run,
)
from gnnlab.stages.plans import (
    store as plan_store,
)
from gnnlab.stages.plans import (
    study as plan_study,
)
from gnnlab.stages.plans import (
    study_claims as plan_claims,
)
from gnnlab.stages.plans import (
    study_reading as plan_reading,
)
from gnnlab.stages.plans.bench import Bench, Held
from gnnlab.stages.plans.lanes import Lanes
from gnnlab.stages.plans.plans import parse
from gnnlab.stages.plans.table_costs import TableCosts

CPU, GPU = UNITS = ("plan_units:cpu", "plan_units:gpu")
LAYER = layer_of("sage", 8)
SIZE = Size(60, 200)
OPTIONS = {"models": "", "count": 4, "budget_s": 0.2, "cores": 2}


def costs():
    return TableCosts(LAYER, Predicted(UNITS, LAYER), Line(), UNITS)


@pytest.fixture(scope="module")
def studied():
    with Lanes(processes=False) as lanes:
        return plan_study.measure(costs(), [SIZE], lanes, **OPTIONS)


def test_plans_are_ranked_measured_and_raced_against_the_best_of_one_unit(studied):
    raced, ranking = studied.raced, studied.rankings["60/200"]
    assert raced["chosen"].sum() == raced["baseline"].sum() == 1 and (raced["size"] == "60/200").all()
    assert raced.loc[raced["baseline"], "plan"].item() == str(ranking.one_unit)
    assert (raced["parity_error"] < 1e-5).all() and (raced[["ms", "predicted_ms", "n"]] > 0).all(axis=None)
    assert {len(rounds) for rounds in raced["rounds"]} == {raced["n"].iloc[0]}
    assert studied.slowdown >= 1 and studied.planners["60/200"].machine.slowdown == studied.held["60/200"].slowdown
    best = ranking.table(ranking.top(plan_study.SHORTLIST))
    assert (best["origin"] == "measured").any() and studied.costs.measured


def test_contenders_hold_the_chosen_plan_the_one_unit_plans_and_some_that_are_not_winners(studied):
    ranking = studied.rankings["60/200"]
    plans = plan_study.contenders(ranking, top=2, others=3)
    assert plans[0] == ranking.one_unit and ranking.chosen in plans and ranking.fastest in plans
    assert len(plans) == len(set(plans))
    fewer = plan_study.contenders(ranking, top=2, others=0)
    assert len(plans) - len(fewer) <= 3 and set(fewer) <= set(plans)


def test_the_chosen_plan_is_drawn_predicted_and_executed(studied):
    chart = studied.charts["60/200"]
    assert set(chart["panel"]) == {"predicted", "executed"} and chart.groupby("panel")["graph"].nunique().eq(4).all()
    axes = {"panel": "panel", "lane": "unit", "start": "start_ms", "end": "end_ms", "number": "graph"}
    figure = plot_plans.gantt(chart, **axes, origin="origin", x_label="ms", title=plan_reading.gantt_title(chart))
    assert [ax.get_title(loc="left")[:9] for ax in figure.axes] == ["predicted", "executed"]
    assert "idle" in plan_reading.gantt(chart)
    one, among = chart[chart["unit"] == chart["unit"].max()], sorted(set(chart["unit"]))
    options = {**axes, "origin": "origin", "x_label": "ms", "title": "A finding"}
    alone, with_others = (
        {patch.get_edgecolor() for ax in plot_plans.gantt(one, **options, **more).axes for patch in ax.patches}
        for more in ({}, {"colours": [*among, "zzz:CPU"]})
    )
    assert len(among) < 2 or alone != with_others  # its colour is its place among all, as in the picture of all plans


def test_every_plan_is_in_the_picture_of_the_plans(studied):
    ranking = studied.rankings["60/200"]
    tiles, times = plan_reading.tiles(ranking), plan_reading.times(ranking)
    assert tiles["place"].nunique() == len(times) == len(ranking.plans)
    assert (
        tiles.assign(stages=tiles["last"] - tiles["first"] + 1).query("part == 0").groupby("place")["stages"].sum() == 7
    ).all()
    title = plan_reading.space_title(ranking)
    figure = plot_plans.space(tiles, times, unit="unit", time_label="ms", title=title, marked=plan_reading.MARKED)
    assert len(figure.axes) == 2
    with pytest.raises(plots.PlotError, match="no column"):
        plot_plans.space(tiles.drop(columns="part"), times, unit="unit", time_label="ms", title=title)


def test_sentences_and_tables_are_made_of_the_numbers(studied):
    ranking, planner, raced = studied.rankings["60/200"], studied.planners["60/200"], studied.raced
    assert ranking.chosen.words() in plan_reading.chosen(ranking)
    assert plan_reading.top_table(ranking)[""].str.startswith("chosen").sum() == 1  # it may be the one-unit plan, too
    flow = plan_reading.flow_table(planner, ranking, ranking.top(2), graphs=5)
    assert len(flow) == len(ranking.top(2)) and flow["idle"].str.contains("%").all()
    assert len(plan_reading.raced_table(raced)) == len(raced) and "off by" in plan_reading.raced_title(raced)
    assert len(plan_reading.raced_frame(raced)) == 2 * len(raced) and "60/200" in plan_reading.control(raced)
    assert "60/200" in plan_reading.contention(studied.held) and "slow" in plan_reading.contention({})
    assert "nothing is handed on" in plan_reading.gaps([]) and "n = 3" in plan_reading.gaps([0.1, 0.2, 0.3])
    assert "openvino:GPU" in plan_reading.units_line(UNITS, [*UNITS, "openvino:GPU"], 2)


def test_of_a_long_race_the_figure_shows_three_plans_of_each_size():
    rows = [
        {"size": size, "words": f"stages {place}", "chosen": place == 0, "baseline": place == 1, "error": place / 100,
         "ms": 2.0, "ms_low": 1.9, "ms_high": 2.1, "predicted_ms": 2.0, "predicted_low": 1.8, "predicted_high": 2.2,
         "origin": "measured", "noise": 1.0, "noise_low": 0.99, "noise_high": 1.01}
        for size in ("1/1", "2/2") for place in range(9)
    ]  # fmt: skip
    found = pd.DataFrame(rows)
    drawn = plan_reading.raced_frame(found)["plan"].unique().tolist()
    assert [label.rpartition(" ")[2] for label in drawn] == ["0", "1", "8"] * 2
    assert "6 of the 18 plans" in plan_reading.control(found) and "of the" not in plan_reading.control(found[:16])


def raced(chosen, best, one, errors=(0.05, -0.2, 0.1)):
    """A race of three plans by their times in each of eight rounds."""
    base = np.full(8, one)
    rows = [("one", 1, False, base / one), ("chosen", 2, True, base / chosen), ("other", 2, False, base / best)]
    return pd.DataFrame(
        [
            {"size": "1/1", "plan": name, "words": f"stages of {name}", "units": units, "chosen": is_chosen,
             "ms": one / float(np.median(rounds)), "ratio": float(np.median(rounds)), "rounds": rounds, "error": error,
             "origin": "measured", "predicted_low": 0.9 * one / float(np.median(rounds)),
             "predicted_high": 1.1 * one / float(np.median(rounds))}
            for (name, units, is_chosen, rounds), error in zip(rows, errors, strict=True)
        ]
    )  # fmt: skip


def test_claims_say_what_the_race_says():
    catalogue = claims.catalogue()
    rows = {row["id"]: row for row in plan_claims.rows(raced(chosen=5.0, best=4.0, one=10.0), catalogue)}
    assert set(rows) == {entry.id for entry in catalogue.values() if entry.notebook == "07"}
    assert rows["stages.peps"]["measured"] == 28 and "42" in rows["stages.peps"]["why"]
    assert rows["goal.plan_gain"]["measured"] == pytest.approx(2) and rows["goal.plan_gain"]["why"].startswith("met")
    assert rows["goal.plan_regret"]["measured"] == pytest.approx(25) and "missed" in rows["goal.plan_regret"]["why"]
    assert rows["goal.plan_error"]["measured"] == pytest.approx(10)
    assert "one unit 5 % in the median, 0 of 1 predicted too fast" in rows["goal.plan_error"]["why"]
    assert "several units 15 % in the median, 1 of 2 predicted too fast, 2 within" in rows["goal.plan_error"]["why"]
    for row in rows.values():
        claims.record(**{"notebook": "07", **row})
    best = {row["id"]: row for row in plan_claims.rows(raced(chosen=4.0, best=5.0, one=10.0), catalogue)}
    assert (
        best["goal.plan_regret"]["measured"] == 0 and "the chosen plan is the best" in best["goal.plan_regret"]["why"]
    )


def test_a_graph_that_comes_is_looked_up_and_carried_out_whole_and_in_parts(tmp_path):
    for name in (plan_study.TIMES, plan_study.TRANSFERS):
        (tmp_path / name).write_text("{}")
    path, made = tmp_path / "plans" / "compiled.json", plan_study.planner(costs(), slowdown=1.2, cores=2)
    found = plan_study.compiled(path, tmp_path, made, costs().sizes)
    assert plan_study.compiled(path, tmp_path, made, costs().sizes) == found == plan_store.read(path)
    again, planner = plan_study.kept(path, tmp_path, costs(), cores=2)
    assert again == found and planner.machine.slowdown == 1.2
    graph = plan_run.graph_of("karate", 8)
    choice = found.choose(40, 90)
    with Lanes(processes=False) as lanes:
        for parts in (1, 3):
            done = plan_run.carry_out(choice.plan, costs(), graph, lanes, models="", parts=parts)
            assert (
                done.parity_error < 1e-5
                and done.out.shape == (34, 8)
                and f"{done.size[0]} nodes" in plan_reading.done(done)
            )
    assert choice.plan.words() in plan_reading.looked_up(choice, 40, 90) and "3 sizes" in plan_reading.compiled(found)
    assert "looked up between 3" in plan_reading.choice(choice, found) and len(plan_reading.choice_table(choice.table))
    (tmp_path / plan_study.TIMES).write_text("[]")
    with pytest.raises(StageError, match="compiled from other tables"):
        plan_study.kept(path, tmp_path, costs(), cores=2)


def test_machines_that_are_not_here_are_simulated_and_say_so():
    found = plan_study.scenarios(costs(), CPU, 1000, 5000, cores=2)
    assert len(found) == 3 and (found["origin"] == "simulated").all() and (found["gain"] >= 0.99).all()
    assert found["ms"].iloc[1] > found["ms"].iloc[0]
    assert "(simulated)" in plan_reading.scenarios_title(found) and "no such device" in plan_reading.scenarios(found)
    assert set(plan_reading.scenario_frame(found)["origin"]) == {"simulated"}


def test_what_cannot_be_studied_is_refused_in_one_line():
    with Lanes(processes=False) as lanes:
        with pytest.raises(StageError, match="no sizes"):
            plan_study.measure(costs(), [], lanes, models="")
        with Bench(costs(), plan_study.stream(20, 40, 8), lanes, models="") as bench:
            made = plan_study.planner(costs(), cores=2)
            ranking = made.rank(20, 40)
            with pytest.raises(StageError, match="a race of 1 plans"):
                bench.race(made, ranking, [ranking.chosen])
            assert bench.parity(parse(f'[[["{CPU}"],[1,2,3,4,5,6,7]]]'), {}) < 1e-5
    assert Held((0.9, 0.9), (CPU, GPU)).slowdown == 1


def test_units_come_in_one_order_however_they_are_named(monkeypatch, tmp_path):
    known = ("openvino:CPU", "fast:CPU", "torch:CPU")
    monkeypatch.setattr(plan_study, "load_tables", lambda folder: (Predicted(known, LAYER), Line()))
    for named in (["torch:CPU", "openvino:CPU"], ["openvino:CPU", "torch:CPU"]):
        assert plan_study.costs(tmp_path, named).units == ("openvino:CPU", "torch:CPU")
