"""Plans tried out, small: a calibration, a ranking with measured calls, streams, charts."""

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder
from synthetic_costs import costs

from gnnlab.campaign.cells import layer_of
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import ParityError
from gnnlab.lab import plots
from gnnlab.planning import execution
from gnnlab.planning.bench import Bench, conditions_of, flow_rows
from gnnlab.planning.comparison import Comparison
from gnnlab.planning.planner import correction
from gnnlab.planning.plans import parse
from gnnlab.workloads import graphs

CPU, GPU = UNITS = ("plan_units:cpu", "plan_units:gpu")
LAYER = layer_of("sage", 8)
MINE = parse(f"1-2 on {GPU}, 3-7 on {CPU}")


@pytest.fixture(scope="module")
def bench():
    with Bench(costs(UNITS, LAYER), "", count=4, cores=2, ratios=(0.5,)) as recorder:
        yield recorder


@pytest.fixture(scope="module")
def calibrated(bench):
    return bench.calibrate([GraphSize(50, 150), GraphSize(80, 240)], drawn=4)


@pytest.fixture(scope="module")
def trial(bench, calibrated):
    return bench.at(GraphSize(60, 200), [MINE], most=2, others=2)


@pytest.fixture(scope="module")
def lab(trial):
    """What a notebook records of one race."""
    recorder = Recorder()
    forms = {plan.words(): trial.stream(plan) for plan in trial.contenders}
    about = {form: conditions_of(form) for form in forms}
    recorder.race("executed_plans", forms, {trial.size: ()}, key="size", budget_s=0.2, of_form=about, per=4)
    return recorder


def test_drawn_plans_of_each_size_are_executed_beside_what_was_expected(bench, calibrated):
    streams = bench.calibration
    assert set(streams["size"]) == {"50/150", "80/240"} and len(streams) == 2 * 2 * 4
    assert set(zip(streams["several"], streams["timed"], strict=True)) == {(a, b) for a in (0, 1) for b in (0, 1)}
    assert (np.isfinite(streams["ratio"]) & (streams["ratio"] > 0)).all()
    rows = Recorder().record("calibration", calibrated, keys=["calls"]).rows
    assert sum(row.n for row in rows) == len(streams)
    assert bench.planner(bench.tables_alone).calibration is None  # another machine's costs, it may be


def test_calls_of_the_contenders_are_measured_and_the_calibration_corrects_what_is_expected(bench, trial):
    calls = {call for plan in trial.contenders for work in trial.ranking.works[plan] for call in work.calls}
    assert not bench.tables_alone.known and calls <= set(bench.costs.known)
    row = trial.ranking.table.loc[MINE]
    assert row["origin"] == "measured" != trial.by_tables.table.loc[MINE, "origin"]
    middle, low, high, count = correction(bench.calibration, True, True)
    uncorrected = bench.planner(bench.costs).rank(60, 200, [MINE]).table.loc[MINE, "ms"]
    assert row[["ms", "low", "high"]].tolist() == pytest.approx([uncorrected * each for each in (middle, low, high)])
    assert row["n"] == count


def test_contenders_are_what_the_ranking_proposes_plans_of_one_unit_and_some_that_are_not_winners(trial):
    plans, several = trial.contenders, [p for p in trial.contenders if p not in trial.candidates and len(p.units) > 1]
    assert MINE in trial.candidates and len(plans[0].units) == 1 and set(trial.candidates) < set(plans)
    assert len(plans) == len(set(plans)) and len(several) <= 2 <= len(set(plans) - set(trial.candidates))
    assert len(trial.candidates) <= 2 + 1 + 1  # most, one unit, by hand


def test_a_race_of_plans_records_what_ran_under_what(lab, trial):
    rows = {row.form: row for row in lab.study("executed_plans").rows}
    alone = rows[trial.ranking.one_unit.words()]
    assert {MINE.words(), "A/A"} <= rows.keys() and {row.origin for row in rows.values()} == {"measured"}
    assert alone.threads == rows["A/A"].threads == 1
    assert rows[MINE.words()].threads == 2 and rows[MINE.words()].runtime.startswith("torch ")
    assert {row.n for row in rows.values()} == {alone.n} and alone.n >= 12  # half of the rounds have an interval


def test_the_same_streams_are_predicted_with_and_before_what_was_measured(lab, trial):
    raced = Comparison(lab.study("executed_plans"), {trial.size: trial})
    assert set(raced.predicted["form"]) == set(raced.executed["form"]) and raced.predicted["chosen"].sum() == 1
    assert set(raced.predicted["fitted"]) == {"no"} and set(raced.predicted["origin"]) == {"predicted"}
    assert (raced.predicted["table_low"] < raced.predicted["table_high"]).all()
    names = {"predicted_plans": ["size"], "plan_error": ["size", "plan"], "plan_coverage": ["size", "plan", "fitted"]}
    frames = (raced.predicted, raced.errors(), raced.coverage())
    for (name, keys), frame in zip(names.items(), frames, strict=True):
        assert len(lab.record(name, frame, keys=keys).rows) == len(raced.executed)
    both = lab.record("plan_times", raced.both_times(), keys=["size", "plan"]).rows
    assert {(row.form, row.origin.value) for row in both} == {("executed", "measured"), ("predicted", "predicted")}


def test_a_stream_is_charted_and_its_flow_recorded_predicted_beside_executed(trial):
    chart = trial.chart(MINE)
    assert list(dict.fromkeys(chart["panel"])) == ["predicted", "executed"] and chart["graph"].nunique() == 4
    predicted_end = chart.loc[chart["panel"] == "predicted", "end_ms"].max()
    assert predicted_end == pytest.approx(4 * trial.predicted([MINE])["value"][0])  # the stream that was predicted
    assert [ax.get_title(loc="left")[:9] for ax in plots.gantt(chart).axes] == ["predicted", "executed"]
    rows = Recorder().record("flow", flow_rows(chart), keys=["what"]).rows
    assert {row.keys["what"] for row in rows} >= {"from graph to graph", f"idle: {CPU}", f"idle: {GPU}"}
    assert {(row.form, row.origin.value) for row in rows} == {("predicted", "simulated"), ("executed", "measured")}


def test_plans_of_one_size_are_open_at_a_time_and_are_held_against_the_plain_layer_again(bench, trial, monkeypatch):
    other = bench.at(GraphSize(30, 80), most=1, others=0)
    assert trial.stream(MINE)().shape == (60, 8)
    assert MINE in trial._executors and not other._executors
    other.stream(other.ranking.chosen)
    assert not trial._executors
    monkeypatch.setattr(execution, "plain", lambda layer, graph: np.ones((60, 8), np.float32))
    with pytest.raises(ParityError):
        trial.stream(MINE)


def test_a_graph_that_comes_is_planned_at_its_size_and_carried_out(bench, trial):
    ranked = bench.planner().rank(40, 90)
    planned = ranked.rows({"planned": ranked.chosen}).assign(size="40/90")
    done = pd.DataFrame([bench.carry_out(ranked.chosen, graphs.load("karate"))])
    rows = Recorder().record("at_run_time", pd.concat([planned, done]), keys=["size"]).rows
    streams = correction(bench.calibration, len(ranked.chosen.units) > 1, False)[3]
    assert [(row.origin.value, row.n, row.interval.value) for row in rows] == [
        ("predicted", streams, "90 % prediction"), ("measured", 1, "none")
    ]  # fmt: skip


def test_machines_that_are_not_here_are_simulated_and_say_so(bench):
    host = costs(UNITS, LAYER).only(CPU)
    machines = [host.with_simulated(), host.with_simulated().with_bandwidth(0.5), host.with_simulated(npu_cannot=())]
    rankings = [bench.planner(machine).rank(1000, 5000) for machine in machines]
    first, half, able = (ranking.rows({"chosen": ranking.chosen, "one": ranking.one_unit}) for ranking in rankings)
    assert half["value"][0] > first["value"][0] and (first["value"][0] <= first["value"][1] * 1.01)
    assert any(plan.units == ("simulated:NPU",) for plan in rankings[2].table.index) and len(able) == 2
    assert "simulated" in first["runtime"][0] or CPU in rankings[0].chosen.units
