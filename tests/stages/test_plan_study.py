"""The study of plans, small and in threads: what it measures, what becomes of the claims, what its sentences say."""

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder
from synthetic_costs import Line, Predicted

from gnnlab.lab import plot_plans, plots
from gnnlab.lab.ledger import Untestable
from gnnlab.profiling import estimates
from gnnlab.profiling.intervals import median_interval
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
    study_reading as plan_reading,
)
from gnnlab.stages.plans import (
    study_rows as rows,
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
    assert {len(samples) for samples in raced["samples"]} == {raced["n"].iloc[0]}
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


DEVICES = {"CPU": "CPU planted"}


def raced(one, chosen, other, predicted=(1.0, 1.0, 1.0), control=None, size="1/1"):
    """A race of three plans by their ms in each round; `predicted`: over the executed medians, +-10 %."""
    base = np.asarray(one, dtype=float)
    again = base if control is None else np.asarray(control, dtype=float)
    plans = [("one", (CPU,), one), ("chosen", UNITS, chosen), ("other", UNITS, other)]
    rows = []
    for (name, names, samples), off in zip(plans, predicted, strict=True):
        ms = np.asarray(samples, dtype=float)
        low, high = median_interval(ms)
        ratio = estimates.ratio(base, ms, again)
        rows.append(
            {"size": size, "plan": name, "words": f"stages of {name}", "units": names, "chosen": name == "chosen",
             "baseline": name == "one", "ms": float(np.median(ms)), "ms_low": low, "ms_high": high, "n": len(ms),
             "samples": ms, "control": again, "ratio": ratio.value, "ci_low": ratio.low, "ci_high": ratio.high,
             "parity_error": 1e-7, "notes": "noisy; drift", "origin": "measured", "draws": 400,
             "predicted_ms": off * np.median(ms), "predicted_low": 0.9 * off * np.median(ms),
             "predicted_high": 1.1 * off * np.median(ms), "error": off - 1}
        )  # fmt: skip
    return pd.DataFrame(rows)


def recorded(*races):
    """What the notebook records of these races."""
    lab, found = Recorder(), pd.concat(races, ignore_index=True)
    by_tables = found[["size", "plan", "words", "predicted_ms", "predicted_low", "predicted_high", "draws"]]
    lab.record("executed_plans", rows.executed(found, DEVICES), keys=["size"])
    lab.record("predicted_plans", rows.predicted(found, DEVICES), keys=["size"])
    lab.record("plan_error", rows.plan_error(found, DEVICES), keys=["size", "plan"])
    coverage = rows.plan_coverage(by_tables.assign(fitted=False), found, DEVICES)
    lab.record("plan_coverage", coverage, keys=["size", "plan", "fitted"])
    lab.record("plan_regret", rows.plan_regret(found, DEVICES), keys=["size"])
    lab.record("plan_gain", rows.plan_gain(found, DEVICES), keys=["size"])
    return lab


def steady(ms, rounds=12):
    return np.full(rounds, float(ms))


def test_a_predicted_time_is_no_executed_one():
    lab = recorded(raced(steady(10), steady(5), steady(4), predicted=(0.4, 0.4, 0.4)))
    executed, predicted = (
        {row.form: row for row in lab.study(name).rows if row.form != "A/A"}
        for name in ("executed_plans", "predicted_plans")
    )
    assert executed.keys() == predicted.keys() == {"stages of one", "stages of chosen", "stages of other"}
    for form, row in executed.items():
        assert row.origin == "measured" and len(lab.table.samples_of(row)) == row.n == 12
        assert predicted[form].origin == "predicted" and predicted[form].interval == "90 % prediction"
        assert predicted[form].value == pytest.approx(0.4 * row.value) and lab.table.samples_of(predicted[form]) is None
    assert executed["stages of chosen"].ratio == 2 and executed["stages of chosen"].threads == 2
    assert "the chosen plan" in executed["stages of chosen"].notes


def test_every_race_of_plans_has_its_control_and_what_that_shows_is_in_the_ratios():
    lab = recorded(raced(steady(10), steady(5), steady(4), control=steady(8)))
    (control,) = lab.table.select("executed_plans", "A/A")
    assert control.ratio == pytest.approx(1.25) and control.n == 12
    (chosen,) = lab.table.select("executed_plans", "stages of chosen")
    assert (chosen.ratio_low, chosen.ratio_high) == pytest.approx((2 / 1.25, 2 * 1.25))


def test_regret_is_held_against_the_best_of_the_others():
    found, verdict = recorded(raced(steady(10), steady(5), steady(4))).judge("goal.plan_regret")
    assert (
        found.estimate.value == pytest.approx(25)
        and verdict == "missed"
        and "stages of other" in found.rows[0].notes[0]
    )
    best, verdict = recorded(raced(steady(10), steady(4), steady(5))).judge("goal.plan_regret")
    assert best.estimate.interval == (0, 0) and verdict == "met"
    noisy, verdict = recorded(raced(steady(10), steady(4), steady(4), control=steady(8))).judge("goal.plan_regret")
    assert noisy.estimate.low == 0 and noisy.estimate.high == pytest.approx(25) and verdict == "open"


def test_a_plan_that_is_lucky_in_the_rounds_that_pick_it_is_judged_by_the_others():
    lucky = np.tile([2.0, 6.0], 6)  # the best of all in every other round
    found, _ = recorded(raced(steady(10), steady(5), lucky)).judge("goal.plan_regret")
    assert found.estimate.value == 0 and found.estimate.n == 6
    alone = recorded(raced(lucky, steady(5), steady(5))).study("plan_gain").rows[0]
    assert alone.value == pytest.approx(6 / 5) and alone.n == 6


def test_the_regret_of_several_sizes_is_that_of_the_worst():
    lab = recorded(raced(steady(10), steady(5), steady(4)), raced(steady(10), steady(4), steady(5), size="2/2"))
    found, verdict = lab.judge("goal.plan_regret")
    assert found.estimate.value == pytest.approx(25) and verdict == "missed" and len(lab.study("plan_regret").rows) == 3


def test_the_gain_needs_peers_that_are_not_raced_yet():
    lab = recorded(raced(steady(10), steady(5), steady(4)))
    with pytest.raises(Untestable, match="needs OpenVINO HETERO, AUTO and throughput streams"):
        lab.judge("goal.plan_gain")
    over_one, over_all = lab.study("plan_gain").rows
    assert over_one.value == pytest.approx(2) and over_all.status == "unavailable"


def test_plans_of_one_size_are_no_samples_of_their_own():
    """Three plans at one size say nothing of other sizes; an error counts either way."""
    off = (0.7, 0.6, 1.5)
    one, verdict = recorded(raced(steady(10), steady(5), steady(4), off)).judge("goal.plan_error")
    assert one.estimate.value == pytest.approx(40) and one.estimate.interval is None and verdict == "open"
    assert "one unit 30 % in the median, 1 of 1 predicted too fast" in one.rows[0].notes[0]
    sizes = [raced(steady(10), steady(5), steady(4), off, size=f"{n}/1") for n in range(1, 9)]
    many, verdict = recorded(*sizes).judge("goal.plan_error")
    assert many.estimate.interval is not None and verdict == "missed"


def test_coverage_counts_sizes_that_no_table_has():
    within = [raced(steady(10), steady(5), steady(4), size=f"{n}/1") for n in range(1, 5)]
    found, _ = recorded(*within).judge("goal.plan_coverage")
    assert found.estimate.value == 1 and found.estimate.n == 12 and found.estimate.low < 0.9  # four sizes say little
    beyond = raced(steady(10), steady(5), steady(4), predicted=(0.5, 1.0, 2.0))
    assert recorded(beyond).judge("goal.plan_coverage")[0].estimate.value == pytest.approx(1 / 3)
    by_tables = beyond[["size", "plan", "words", "predicted_ms", "predicted_low", "predicted_high"]].assign(fitted=True)
    lab = Recorder()
    keys = ["size", "plan", "fitted"]
    lab.record("plan_coverage", rows.plan_coverage(by_tables, beyond, DEVICES), keys=keys)
    with pytest.raises(Untestable):
        lab.judge("goal.plan_coverage")


def test_the_tables_alone_predict_before_anything_is_measured_at_a_size(studied):
    found = studied.by_tables
    assert found["plan"].tolist() == studied.raced["plan"].tolist() and set(found["size"]) == {"60/200"}
    assert not found["fitted"].any() and set(found["origin"]) <= {"interpolated", "extrapolated"}
    assert "measured" in set(studied.raced["origin"])


def test_what_is_recorded_of_a_study_is_true_of_it(studied):
    lab = Recorder()
    lab.record("contention", rows.contention(studied.held, DEVICES), keys=["size"])
    lab.record("hand_over", rows.hand_over(studied, DEVICES))
    space = lab.record("plan_space", rows.plan_space(studied.rankings, DEVICES), keys=["size"]).rows
    assert {(row.origin.value, row.interval.value) for row in space} == {("predicted", "90 % prediction")}
    lab.record("executed_plans", rows.executed(studied.raced, DEVICES), keys=["size"])
    executed = lab.study("executed_plans").rows
    assert len(executed) == len(studied.raced) + 1 and {row.n for row in executed} == {studied.raced["n"].iloc[0]}
    assert executed[0].n >= 12  # so that half of the rounds have an interval
    assert {row.device for row in lab.table} == {"CPU planted"}


def test_plans_are_counted_by_the_documents_rules_and_its_npu():
    """28 is what an NPU without two stages leaves; the document's runs all seven."""
    counts = rows.plan_counts()
    assert counts == {rows.ITS_NPU: 49, rows.LESSER_NPU: 28}
    lab = Recorder()
    lab.count("plan_count", counts)
    found, verdict = lab.judge("stages.peps")
    assert found.estimate.value == 49 and verdict == "refuted"


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
    lab = Recorder()
    found_then = lab.record("at_run_time", rows.at_run_time(choice, 400, done, done, DEVICES), keys=["size"]).rows
    assert [(row.origin.value, row.n, row.interval.value) for row in found_then] == [
        ("predicted", 400, "90 % prediction"), ("measured", 1, "none"), ("measured", 1, "none")
    ]  # fmt: skip
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
    recorded = Recorder().record("scenarios", rows.scenarios(found, 400), keys=["scenario"]).rows
    assert len(recorded) == 6 and {row.origin.value for row in recorded} == {"simulated"}


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
