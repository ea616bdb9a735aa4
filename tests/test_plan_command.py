"""`gnnlab plan` says which plan and why, carries it out, and answers bad input with one line."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "stages"))
from synthetic_costs import Line, Predicted

from gnnlab import cli, plan_command
from gnnlab.lab import discovery
from gnnlab.stages.campaign.cell_inputs import layer_of
from gnnlab.stages.plans import study as plan_study
from gnnlab.stages.plans.lanes import Lanes
from gnnlab.stages.plans.table_costs import TableCosts

UNITS = ("plan_units:cpu", "plan_units:gpu")
PLAN = '[[["plan_units:gpu"],[1,2]],[["plan_units:cpu"],[3,4,5,6,7]]]'


@pytest.fixture
def plan(monkeypatch, tmp_path, capsys):
    """Runs the command on synthetic tables: code, what it printed, what it said beside."""
    layer = layer_of("sage", 8)
    costs = TableCosts(layer, Predicted(UNITS, layer), Line(), UNITS)
    tables = tmp_path / plan_command.TABLES
    tables.mkdir()
    for name in (plan_study.TIMES, plan_study.TRANSFERS):
        (tables / name).write_text("{}")
    monkeypatch.setattr(discovery, "output_folder", lambda *_: tmp_path)
    monkeypatch.setattr(plan_study, "costs", lambda folder, units=(): costs)
    monkeypatch.setattr(plan_command, "Lanes", lambda: Lanes(processes=False))

    def run(*arguments):
        code = cli.main(["plan", *arguments])
        return code, *capsys.readouterr()

    run.folder, run.tables, run.costs = tmp_path, tables, costs
    return run


def test_the_plan_is_printed_with_its_reasons(plan):
    code, out, err = plan("--nodes", "40", "--edges", "100")
    assert (
        code == 0
        and "40 nodes, 100 edges: stages" in out
        and "Expected" in out
        and "one unit" in out
        and "chosen" in out
    )
    assert err.startswith("planned for this size alone: could not read")


def test_compiled_plans_are_looked_up_and_stale_or_too_small_ones_are_not(plan):
    made = plan_study.planner(plan.costs, slowdown=1.3)
    plan_study.compiled(plan.folder / plan_command.PLANS, plan.tables, made, plan.costs.sizes)
    code, out, err = plan("--nodes", "40", "--edges", "90")
    assert code == 0 and "looked up between 3 compiled sizes" in out and "30%" in out and err == ""
    code, out, err = plan("--nodes", "4000", "--edges", "9000")
    assert code == 0 and "outside the sizes" in err and "extrapolated" in out and "30%" in out
    (plan.tables / plan_study.TIMES).write_text("[]")
    code, out, err = plan("--nodes", "40", "--edges", "90")
    assert code == 0 and "compiled from other tables" in err


@pytest.mark.parametrize("more", [(), ("--parts", "3"), ("--plan", PLAN), ("--objective", "latency")])
def test_a_graph_is_planned_and_carried_out(plan, more):
    code, out, _ = plan("--graph", "karate", "--execute", *more)
    assert code == 0 and "34 nodes, 156 edges" in out and "from the plain layer's result" in out
    assert ("--plan" not in more) or PLAN in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "which graph"),
        (("--nodes", "5"), "which graph"),
        (("--nodes", "5", "--edges", "5", "--graph", "karate"), "which graph"),
        (("--nodes", "5", "--edges", "5", "--execute"), "nothing to execute"),
        (("--nodes", "0", "--edges", "5"), "whole number above 0"),
        (("--graph", "no such"), "no such"),
        (("--nodes", "40", "--edges", "90", "--plan", '[[["TPU"],[1,2,3,4,5,6,7]]]'), "'TPU' is unknown"),
        (("--nodes", "40", "--edges", "90", "--plan", "nonsense"), "not understood"),
        (("--nodes", "40", "--edges", "90", "--params", "nowhere"), "nowhere"),
        (("--graph", "karate", "--execute", "--parts", "50"), "cannot be cut into 50 parts"),
    ],
)
def test_bad_input_is_one_line(plan, arguments, words):
    code, _, err = plan(*arguments)
    last = err.strip().splitlines()[-1]
    assert code == 2 and words in last and last.startswith("gnnlab") and len(err.strip().splitlines()) <= 2
