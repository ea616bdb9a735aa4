"""`gnnlab plan` says which plan and why, carries it out, and answers bad input with one line."""

from contextlib import nullcontext
from functools import partial

import pytest
from synthetic_costs import costs

from gnnlab.campaign.cells import layer_of
from gnnlab.lab import discovery
from gnnlab.planning import costs as tables
from gnnlab.planning.unit_processes import UnitProcesses

UNITS = ("plan_units:cpu", "plan_units:gpu", "plan_units:npu")
PLAN = '[[["plan_units:gpu"],[1,2]],[["plan_units:cpu"],[3,4,5,6,7]]]'
SHARED = "1-5 on plan_units:gpu and plan_units:cpu (0.5, 0.5), 6-7 on plan_units:npu"
WORDS = "1-2 on plan_units:gpu, 3-7 on plan_units:cpu"


@pytest.fixture(scope="module")
def processes():
    """Started once for all tests."""
    with UnitProcesses(UNITS) as units:
        yield units


@pytest.fixture
def plan(processes, monkeypatch, tmp_path, command):
    """Runs the command on synthetic tables: code, what it printed, what it said beside."""
    synthetic = costs(UNITS, layer_of("sage", 8))
    real = discovery.results_of
    monkeypatch.setattr(discovery, "results_of", lambda name: tmp_path if name == "quick" else real(name))
    monkeypatch.setattr(tables, "load_costs", lambda folder, units=(): synthetic)
    monkeypatch.setattr("gnnlab.planning.unit_processes.UnitProcesses", lambda units: nullcontext(processes))
    return partial(command, "plan")


def test_the_plan_is_printed_with_its_reasons(plan):
    code, out, err = plan("--nodes", "40", "--edges", "100")
    words = (f"times of {', '.join(UNITS)} at 3 sizes, from 20/40 to 80/300.", "40 nodes, 100 edges: stages")
    assert code == 0 and err == "" and all(word in out for word in (*words, "Expected", "one unit", "chosen"))


def test_a_size_outside_the_tables_says_so(plan):
    code, out, _ = plan("--nodes", "4000", "--edges", "9000")
    assert code == 0 and "extrapolated" in out and "take the times with care" in out


@pytest.mark.parametrize(
    "more", [(), ("--plan", PLAN), ("--plan", WORDS), ("--plan", SHARED), ("--objective", "latency")]
)
def test_a_graph_is_planned_and_carried_out(plan, more):
    code, out, _ = plan("--graph", "karate", "--execute", *more)
    words = ("karate: 156 edges, 34 nodes", "the lab's own layer (", "its result differs from the plain layer's by")
    assert code == 0 and all(word in out for word in words)
    assert ("--plan" not in more) or (PLAN if more[1] != SHARED else SHARED) in out


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
    ],
)
def test_bad_input_is_one_line(plan, arguments, words):
    code, _, err = plan(*arguments)
    last = err.strip().splitlines()[-1]
    assert code == 2 and words in last and last.startswith("gnnlab") and len(err.strip().splitlines()) <= 2
