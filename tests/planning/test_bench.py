"""Plans tried out, small: a calibration, a ranking with measured calls, streams, charts."""

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder
from synthetic_costs import Line, Predicted

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import ParityError
from gnnlab.lab import plots
from gnnlab.planning.bench import Bench
from gnnlab.planning.calibration import Group
from gnnlab.planning.comparison import Comparison
from gnnlab.planning.partition import Graph
from gnnlab.planning.plans import parse
from gnnlab.planning.table_costs import TableCosts
from gnnlab.workloads import graphs

CPU, GPU = UNITS = ("plan_units:cpu", "plan_units:gpu")
LAYER = layer_of("sage", 8)
MINE = parse(f"1-2 on {GPU}, 3-7 on {CPU}")


def costs():
    return TableCosts(LAYER, Predicted(UNITS, LAYER), Line(), UNITS)


@pytest.fixture(scope="module")
def bench():
    with Bench(costs(), "", count=4, cores=2) as made:
        yield made


@pytest.fixture(scope="module")
def calibrated(bench):
    return bench.calibrate([GraphSize(50, 150), GraphSize(80, 240)], drawn=4)


@pytest.fixture(scope="module")
def trial(bench, calibrated):
    made = bench.at(GraphSize(60, 200), [MINE])
    made.choose(rounds=1)
    return made


@pytest.fixture(scope="module")
def lab(trial):
    """What a notebook records of one race."""
    made = Recorder()
    plans = trial.contenders(top=2, others=1)
    forms = {plan.words(): trial.stream(plan) for plan in plans}
    about = {plan.words(): trial.about(plan) for plan in plans}
    made.race("executed_plans", forms, {trial.size: ()}, key="size", budget_s=0.2, of_form=about, per=4)
    return made


def test_drawn_plans_of_each_size_are_executed_beside_what_was_expected(bench, calibrated):
    streams = bench.calibration.streams
    assert {stream.size for stream in streams} == {"50/150", "80/240"} and len(streams) == 2 * 2 * 4
    assert {stream.group for stream in streams} == {(several, timed) for several in (0, 1) for timed in (0, 1)}
    assert all(np.isfinite(stream.ratio) and stream.ratio > 0 for stream in streams)
    rows = Recorder().record("calibration", calibrated, keys=["calls"]).rows
    assert sum(row.n for row in rows) == len(streams)
    assert not bench.planner(bench.tables_alone).calibration.streams  # another machine's costs, it may be


def test_predictions_are_those_of_the_calibration(bench, trial):
    plain = bench.planner(bench.costs)
    place = trial.ranking.place(MINE)
    middle, low, high = bench.calibration.factors(Group(several=True, timed=True))
    expected = trial.planner.expected_ms(trial.ranking.steps[place])
    ranked = trial.ranking.ms[place], trial.ranking.low[place], trial.ranking.high[place]
    assert ranked == pytest.approx((expected * middle, expected * low, expected * high))
    assert ranked[0] != pytest.approx(plain.rank(60, 200, plans=[MINE]).ms[0])


def test_calls_of_the_best_plans_are_measured_where_the_tables_only_guess(bench, trial):
    assert "measured" in set(trial.ranking.table(trial.tried())["origin"])
    assert bench.costs.measured and not bench.tables_alone.measured
    mine = {(s.unit, c.first, c.last, c.nodes, c.edges)
            for group in trial.ranking.steps[trial.ranking.place(MINE)] for s in group for c in s.calls}  # fmt: skip
    assert mine <= set(bench.costs.measured)


def test_the_best_plans_are_executed_and_the_fastest_is_chosen(bench):
    trial = bench.at(GraphSize(70, 220), [MINE])
    tried = {plan.words() for plan in trial.tried()}
    rows = Recorder().record("choice", trial.choose(rounds=3), keys=["size"]).rows
    assert {MINE.words(), trial.ranking.one_unit.words()} <= {row.form for row in rows} == tried
    (chosen,) = (row for row in rows if row.notes)
    assert chosen.form == trial.chosen.words() and chosen.value == min(row.value for row in rows) and chosen.n == 3


def test_a_stream_is_held_against_the_plain_layer_before_it_is_timed(trial, monkeypatch):
    assert trial.stream(MINE)().shape == (60, 8)
    monkeypatch.setattr(Graph, "through", lambda self, layer: np.ones((60, 8), np.float32))
    with pytest.raises(ParityError):
        trial.stream(MINE)


def test_a_race_of_plans_records_what_ran_under_what(lab, trial):
    rows = {row.form: row for row in lab.study("executed_plans").rows}
    chosen, alone = rows[trial.chosen.words()], rows[trial.ranking.one_unit.words()]
    assert {MINE.words(), "A/A"} <= rows.keys() and {row.origin for row in rows.values()} == {"measured"}
    assert "the chosen plan" in chosen.notes and alone.threads == rows["A/A"].threads == 1
    assert rows[MINE.words()].threads == 2 and rows[MINE.words()].runtime.startswith("torch ")
    assert {row.n for row in rows.values()} == {chosen.n} and chosen.n >= 12  # half of the rounds have an interval


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


def test_a_stream_is_charted_and_its_flow_told_predicted_beside_executed(trial):
    chart = trial.chart(MINE)
    assert list(dict.fromkeys(chart["panel"])) == ["predicted", "executed"] and chart["graph"].nunique() == 4
    expected = trial.predicted([MINE])["value"][0]
    predicted_end = chart.loc[chart["panel"] == "predicted", "end_ms"].max()
    assert predicted_end == pytest.approx(4 * expected)  # the chart's stream is the one that was predicted
    figure = plots.gantt(chart)
    assert [ax.get_title(loc="left")[:9] for ax in figure.axes] == ["predicted", "executed"]
    fills = [{tuple(bars.get_facecolor()[0]) for bars in ax.collections} for ax in figure.axes]
    assert len(fills[0]) == 1 < len(fills[1])  # what was measured is filled in the colours of its units
    rows = Recorder().record("flow", trial.flow(MINE), keys=["what"]).rows
    assert {row.keys["what"] for row in rows} >= {"from graph to graph", f"idle: {CPU}", f"idle: {GPU}"}
    assert {(row.form, row.origin.value) for row in rows} == {("predicted", "simulated"), ("executed", "measured")}


def test_streams_of_one_size_are_open_at_a_time_and_open_again(bench, trial):
    other = bench.at(GraphSize(30, 80))
    assert not bench._open
    trial.stream(MINE)
    assert {size for size, _ in bench._open} == {trial.size}
    other.stream(other.chosen)
    assert {size for size, _ in bench._open} == {other.size}


def test_a_graph_that_comes_is_planned_at_its_size_and_carried_out_whole_and_in_parts(bench, trial):
    ranked = bench.planner().rank(40, 90)
    graph = graphs.load("karate")
    done = [bench.carry_out(ranked.chosen, graph, parts) for parts in (1, 3)]
    assert all(found.parity_error < 1e-5 and found.out.shape == (34, 8) for found in done)
    lab = Recorder()
    planned = ranked.rows({"planned": ranked.chosen}).assign(size="40/90")
    lab.record("at_run_time", pd.concat([planned, pd.DataFrame([each.row() for each in done])]), keys=["size"])
    rows = lab.study("at_run_time").rows
    streams = bench.calibration.count(Group(len(ranked.chosen.units) > 1, timed=False))
    assert [(row.origin.value, row.n, row.interval.value) for row in rows] == [
        ("predicted", streams, "90 % prediction"), ("measured", 1, "none"), ("measured", 1, "none")
    ]  # fmt: skip


def test_machines_that_are_not_here_are_simulated_and_say_so(bench):
    host = costs().only(CPU)
    machines = [host.with_simulated(), host.with_simulated().with_bandwidth(0.5), host.with_simulated(npu_cannot=())]
    rankings = [bench.planner(machine).rank(1000, 5000) for machine in machines]
    first, half, able = (ranking.rows({"chosen": ranking.chosen, "one": ranking.one_unit}) for ranking in rankings)
    assert half["value"][0] > first["value"][0] and (first["value"][0] <= first["value"][1] * 1.01)
    assert any(parse(p).units == ("simulated:NPU",) for p in rankings[2].table()["plan"]) and len(able) == 2
    assert "simulated" in first["runtime"][0] or CPU in rankings[0].chosen.units


def test_plans_are_counted_by_the_documents_rules_and_its_npu():
    """28 is what an NPU without two stages leaves; S4's runs all seven."""
    from gnnlab.planning.plans import Space

    rules = {"sharing": (frozenset({"CPU", "GPU"}),), "ratios": (0.5,)}
    spaces = [Space(("CPU", "GPU", "NPU"), unable=unable, **rules) for unable in ({}, {"NPU": {3, 4}})]
    assert [len(space.candidates(max_blocks=2)) for space in spaces] == [49, 28]
