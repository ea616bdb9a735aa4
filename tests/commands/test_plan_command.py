"""`gnnlab plan` says which plan and why, carries it out, and answers bad input with one line."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from synthetic_costs import Line, Predicted

from gnnlab import cli
from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.commands import plan as plan_command
from gnnlab.lab import runner
from gnnlab.planning import store as plan_store
from gnnlab.planning import table_costs
from gnnlab.planning.calibration import Calibration, Stream
from gnnlab.planning.planning import planner_of
from gnnlab.planning.table_costs import TableCosts
from gnnlab.planning.unit_workers import UnitWorkers

UNITS = ("plan_units:cpu", "plan_units:gpu")
PLAN = '[[["plan_units:gpu"],[1,2]],[["plan_units:cpu"],[3,4,5,6,7]]]'
WORDS = "1-2 on plan_units:gpu, 3-7 on plan_units:cpu"


@pytest.fixture(scope="module")
def workers():
    """Started once for all tests."""
    with UnitWorkers() as made:
        yield made


@pytest.fixture
def plan(workers, monkeypatch, tmp_path, capsys):
    """Runs the command on synthetic tables: code, what it printed, what it said beside."""
    layer = layer_of("sage", 8)
    costs = TableCosts(layer, Predicted(UNITS, layer), Line(), UNITS, made_from="tables")
    monkeypatch.setattr(runner.discovery, "output_folder", lambda *_: tmp_path)
    monkeypatch.setattr(table_costs, "load_costs", lambda folder, units=(): run.costs)
    monkeypatch.setattr(plan_command, "UnitWorkers", lambda: nullcontext(workers))

    def run(*arguments):
        code = cli.main(["plan", *arguments])
        return code, *capsys.readouterr()

    run.folder, run.costs = tmp_path, costs
    return run


def test_the_plan_is_printed_with_its_reasons(plan):
    code, out, err = plan("--nodes", "40", "--edges", "100")
    words = ("40 nodes, 100 edges: stages", "Expected", "one unit", "chosen")
    assert code == 0 and all(word in out for word in words)
    assert err.startswith("planned for this size alone: could not read")


def test_compiled_plans_are_looked_up_and_stale_or_too_small_ones_are_not(plan):
    streams = tuple(Stream(f"{size}/9", "a plan", True, 0.5, timed, 0.2) for size in (1, 2) for timed in (True, False))
    made = planner_of(plan.costs, calibration=Calibration({"sums beside sums": 1.3}, streams))
    plan_store.compiled(plan.folder / plan_command.PLANS, made, plan.costs.sizes, "tables")
    code, out, err = plan("--nodes", "40", "--edges", "90")
    assert (
        code == 0
        and "looked up between 3 compiled sizes" in out
        and "what 2 plans took at 2 other sizes" in out
        and err == ""
    )
    code, out, err = plan("--nodes", "4000", "--edges", "9000")
    assert code == 0 and "outside the sizes" in err and "extrapolated" in out and "what 2 plans" in out
    plan.costs = replace(plan.costs, made_from="other tables")
    code, out, err = plan("--nodes", "40", "--edges", "90")
    assert code == 0 and "compiled from other tables" in err


@pytest.mark.parametrize(
    "more", [(), ("--parts", "3"), ("--plan", PLAN), ("--plan", WORDS), ("--objective", "latency")]
)
def test_a_graph_is_planned_and_carried_out(plan, more):
    code, out, _ = plan("--graph", "karate", "--execute", *more)
    assert (
        code == 0
        and "34 nodes, 156 edges" in out
        and "the lab's own layer (" in out
        and "its result differs from the plain layer's by" in out
    )
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
