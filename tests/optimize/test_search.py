"""The search keeps what is faster in its whole interval, and says of everything else why not."""

import numpy as np
import pytest
import torch
from fake_search import Planted
from refusals import refused

from gnnlab.child import Answer
from gnnlab.errors import GnnlabError
from gnnlab.optimize import search, steps

LAYERS, MODE, COMPILE, ALLOCATOR = "fast layers", "inference mode", "torch.compile", "mallopt"


@pytest.fixture
def run(monkeypatch):
    """Runs the search over steps with planted times."""

    def optimized(names, factor, found=None, **options):
        planted = Planted(monkeypatch, factor, found)
        monkeypatch.setattr(steps, "tried", lambda train: names)
        report = search.optimize("own_models:gcn", "karate", **options)
        return report, {tried.name: tried for tried in report.tried}, planted.races

    return optimized


def product(**factors):
    """Steps that do not get in each other's way; names have _ for spaces."""
    named = {name.replace("_", " "): factor for name, factor in factors.items()}
    return lambda plan, process: float(np.prod([named[name] for name in plan]))


def test_what_is_faster_is_kept_with_its_gain_and_what_is_not_is_not(run):
    one = "1 thread"
    report, tried, races = run([LAYERS, MODE, one], product(fast_layers=0.5, inference_mode=0.9, **{one: 1.5}))
    assert report.plan == (LAYERS, MODE) and len(report.whole.processes) == 3
    assert report.gain.low > 1 and report.gain.value == pytest.approx(1 / 0.45)
    assert tried[LAYERS].gain.value == pytest.approx(2) and tried[MODE].kept
    assert tried[MODE].gain.value == pytest.approx(1 / 0.9)  # over what was kept before it
    assert not tried[one].kept and tried[one].reason == "slower" and tried[one].processes == 1
    assert races[-1] == ((), (LAYERS, MODE)) and report.whole.memory  # in the end all of it, against the user's own


def test_a_step_that_brings_nothing_beside_the_others_is_left_out(run):
    times = {(LAYERS,): 0.5, (LAYERS, MODE): 0.5}
    report, tried, _ = run([LAYERS, MODE], lambda plan, process: times[plan])
    assert report.plan == (LAYERS,) and tried[MODE].reason == "no gain"


@pytest.mark.parametrize(
    "factors",
    [
        [0.8, 0.5, 1.1],  # one process says the contrary
        [0.2, 0.999, 0.999],  # one shows it and no other says the contrary: still no gain that is shown
        [1 / 1.7, 1 / 1.17, 1 / 0.81],
    ],
)
def test_a_gain_of_single_processes_is_not_kept(run, factors):
    report, tried, _ = run([LAYERS], lambda plan, process: factors[process], processes=len(factors))
    assert report.plan == () and report.gain is None and tried[LAYERS].reason == search.NOT_SHOWN
    assert tried[LAYERS].gain.low < 1 < tried[LAYERS].gain.high and tried[LAYERS].processes == 3


def test_a_step_takes_the_place_of_one_that_it_conflicts_with_if_it_is_faster(run):
    names = [LAYERS, MODE, COMPILE]
    report, tried, races = run(names, product(fast_layers=0.5, inference_mode=0.9, **{COMPILE: 0.3}))
    assert report.plan == (COMPILE, MODE) and tried[LAYERS].reason == "torch.compile takes its place"
    assert not tried[LAYERS].kept and tried[COMPILE].gain.value == pytest.approx(0.5 / 0.3)
    assert not any({COMPILE, LAYERS} <= set(new) for _, new in races)
    report, _, _ = run(names, product(fast_layers=0.5, inference_mode=0.9, **{COMPILE: 0.6}))
    assert report.plan == (LAYERS, MODE)


def test_the_allocator_is_the_environment_of_one_side(monkeypatch):
    asked = []
    monkeypatch.setattr(search.race, "versus", lambda *made, environment, **options: asked.append(environment))
    of = ("own_models:gcn", "karate", False, None)
    for old, new in (((), (LAYERS,)), ((LAYERS,), (LAYERS, ALLOCATOR)), ((), (LAYERS, ALLOCATOR))):
        search._race(of, old, new)
    assert asked[0] is None and asked[1] == asked[2] and asked[1]["MALLOC_MMAP_MAX_"] == "0"
    assert steps.tried(True)[-1] == ALLOCATOR


def test_what_is_wrong_or_lost_or_does_not_apply_says_why_and_is_never_timed(run):
    found = {LAYERS: {"why": "not equal: output 0 is off by 1.0e-01 on your graph"}}
    found |= {MODE: Answer("failed", reason="the process died of SIGSEGV"), COMPILE: "it is not installed"}
    report, tried, races = run([LAYERS, MODE, COMPILE], product(fast_layers=0.5), found)
    assert tried[LAYERS].reason == "not equal: output 0 is off by 1.0e-01 on your graph"
    assert tried[MODE].reason == "the process died of SIGSEGV"
    assert report.inapplicable == {COMPILE: "it is not installed"} and COMPILE not in tried
    assert report.plan == () and report.gain is None and not races


def test_a_race_that_fails_costs_its_step_alone(run):
    def factor(plan, process):
        if MODE in plan:
            raise GnnlabError("no answer within 300 s")
        return 0.5

    report, tried, _ = run([LAYERS, MODE], factor)
    assert report.plan == (LAYERS,) and tried[MODE].reason == "no answer within 300 s" and tried[MODE].gain is None


def test_what_changes_results_is_measured_and_not_applied(run):
    found = {"bfloat16": {"error": 5e-3}}
    report, tried, _ = run([LAYERS, "bfloat16"], product(fast_layers=0.9, bfloat16=0.2), found)
    assert report.plan == (LAYERS,) and tried["bfloat16"].gain.value == pytest.approx(5)
    assert "for you to decide" in tried["bfloat16"].reason and tried["bfloat16"].error == 5e-3


def test_each_step_that_was_kept_is_reported_at_once_and_the_cost_before_all(run):
    reports, lines = [], []
    factor = product(fast_layers=0.5, inference_mode=0.9)
    run([LAYERS, MODE], factor, improved=reports.append, tell=lines.append)
    assert [report.plan for report in reports] == [(LAYERS,), (LAYERS, MODE)]
    assert reports[0].gain.value == pytest.approx(2) and reports[1].whole is None  # not raced as a whole yet
    read, cost, first = lines[1:4]
    assert read == "karate: 34 nodes" and first == "[1/2] fast layers"
    assert cost.startswith("2 steps, each in up to 3 processes: at most ")
    assert steps.tried(False)[0] == steps.tried(True)[0] == LAYERS


@pytest.mark.parametrize("processes", [0, 2])
def test_processes_that_make_no_interval_are_refused(run, processes):
    with refused(f"processes={processes}: give 1"):
        run([MODE], product(inference_mode=0.5), processes=processes)


@pytest.mark.parametrize(("factory", "words"), [("exits", "exited with code 7"), ("hangs", "no answer within 1 s")])
def test_code_that_exits_or_hangs_costs_one_line(monkeypatch, factory, words):
    if factory == "hangs":
        monkeypatch.setattr(search, "LIMIT_S", 1)
    with refused(f"^own_models:{factory}: .*{words}"):
        search.optimize(f"own_models:{factory}", "karate", processes=1)


@pytest.mark.parametrize(("spec", "words"), [("no_module:make", "there is no module"), ("gcn", "is no module:factory")])
def test_a_model_that_nothing_names_is_refused_in_one_line(spec, words):
    with refused(words):
        search.optimize(spec, "karate")


@pytest.mark.parametrize("step", ["1 thread", "2 threads"])
def test_a_step_that_sets_threads_leaves_those_of_the_next_step_as_they_were(here, step):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        report = here("gcn", (step,), train=True)
        assert torch.get_num_threads() == 3 and report.plan == (step,)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("factory", ["gcn", "gat", "with_edges", "bipartite"])
def test_gradients_are_compared_where_a_model_is_to_be_trained(here, factory):
    report = here(factory, (LAYERS,), graph="symptoms" if factory == "with_edges" else "karate", train=True)
    assert report.plan == (LAYERS,) and len(report.checked["passed"]) >= 4 and not report.checked["wrong"]


def test_compiled_models_are_compared_too(here):
    report = here("gcn_with_weights", (COMPILE,), graph="symptoms")
    assert report.plan == (COMPILE,) and len(report.checked["passed"]) == 4, report.tried


def test_every_step_says_why_it_applies_or_not():
    model, batch = torch.nn.Linear(3, 2).eval(), (torch.ones(5, 3),)
    found = {name: steps.applies_to(name, model, batch) for name in steps.STEPS}
    assert found[LAYERS] == (False, "it has no message passing layers") and found[MODE][0]
    assert found["constant output"] == (False, "tensors go in") and found["bfloat16"][0]
