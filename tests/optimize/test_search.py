"""The search keeps what pays over processes and beside the others, and says of everything else why not."""

import numpy as np
import pytest
import torch
from planted_search import Planted
from refusals import refused

from gnnlab.errors import GnnlabError
from gnnlab.optimize import search as optimize
from gnnlab.optimize import steps
from gnnlab.worker import Answer

LAYERS, MODE, COMPILE, ALLOCATOR = "fast layers", "inference mode", "torch.compile", "mallopt"


@pytest.fixture
def search(monkeypatch):
    """Runs the search over steps with planted times."""

    def run(names, factor, answers=None, **options):
        planted = Planted(
            factor, answers, options.pop("start_s", 0.0), options.pop("seconds", lambda target, plan: 0.0)
        )
        monkeypatch.setattr(steps, "tried", lambda train: names)
        monkeypatch.setattr(optimize, "Worker", planted)
        monkeypatch.setattr(optimize, "clock", planted.clock)
        report = optimize.optimize("own_models:gcn", "karate", **options)
        return report, {tried.name: tried for tried in report.tried}, planted

    return run


def product(**factors):
    """Steps that do not get in each other's way; names have _ for spaces."""
    named = {name.replace("_", " "): factor for name, factor in factors.items()}
    return lambda plan, process: float(np.prod([named[name] for name in plan]))


def test_what_pays_is_kept_with_its_gain_and_what_does_not_is_not(search):
    one = "1 thread"
    report, tried, _ = search([LAYERS, MODE, one], product(fast_layers=0.5, inference_mode=0.9, **{one: 1.5}))
    assert report.plan == (LAYERS, MODE) and report.processes == report.clear == 3
    assert report.gain.low > 1 and report.gain.value == pytest.approx(1 / 0.45, rel=0.02)
    assert report.ms["yours"] == pytest.approx(10, rel=0.02) and report.ms["fast"] == pytest.approx(4.5, rel=0.02)
    assert report.memory_mib == {"yours": 2.0, "fast": 1.0}
    assert tried[LAYERS].gain.value == pytest.approx(2, rel=0.02)
    assert tried[MODE].kept and tried[MODE].gain.value == pytest.approx(1 / 0.9, rel=0.02)
    assert not tried[one].kept and tried[one].why == "slower" and tried[one].processes == 1


def test_a_step_that_brings_nothing_beside_the_others_is_left_out(search):
    times = {(LAYERS,): 0.5, (LAYERS, MODE): 0.5}
    report, tried, _ = search([LAYERS, MODE], lambda plan, process: times[plan])
    assert report.plan == (LAYERS,) and tried[MODE].why == "no gain"


@pytest.mark.parametrize(
    ("factors", "plan", "clear"),
    [
        ([0.8, 0.5, 1.1], (), 2),  # one process says the contrary
        ([1 / 3.8, 1 / 4.9], (LAYERS,), 2),  # both, however far apart they are
        ([0.2, 0.999], (LAYERS,), 1),  # one of them, and no other says the contrary
    ],
)
def test_a_gain_that_some_process_shows_and_none_contradicts_is_kept(search, factors, plan, clear):
    pays = lambda plan, process: factors[process - 1]  # noqa: E731
    report, tried, _ = search([LAYERS], pays, processes=len(factors))
    assert report.plan == plan and tried[LAYERS].processes == len(factors)
    assert report.clear == clear if plan else tried[LAYERS].why == optimize.OPEN


def test_a_gain_of_one_process_is_kept_and_called_that(search):
    report, tried, _ = search([LAYERS, MODE], product(fast_layers=0.5, inference_mode=0.9), budget_s=1, start_s=4)
    assert report.plan == (LAYERS,) and report.processes == tried[LAYERS].processes == 1
    assert report.late == (MODE,) and MODE not in tried


def test_a_step_takes_the_place_of_one_that_it_does_not_go_with_if_it_is_faster(search):
    names = [LAYERS, MODE, COMPILE]
    report, tried, planted = search(names, product(fast_layers=0.5, inference_mode=0.9, **{COMPILE: 0.3}))
    assert report.plan == (COMPILE, MODE) and tried[LAYERS].why == "torch.compile takes its place"
    assert not tried[LAYERS].kept and tried[COMPILE].gain.value == pytest.approx(0.5 / 0.3, rel=0.03)
    assert not any(plan and {COMPILE, LAYERS} <= set(plan) for _, _, plan in planted.asked)
    report, _, _ = search(names, product(fast_layers=0.5, inference_mode=0.9, **{COMPILE: 0.6}))
    assert report.plan == (LAYERS, MODE)


def test_the_allocator_is_changed_in_processes_of_its_own_and_raced_in_turns_with_the_others(search):
    report, tried, planted = search([LAYERS, ALLOCATOR], product(fast_layers=0.5, mallopt=0.8), processes=2)
    assert report.plan == (LAYERS, ALLOCATOR) and report.processes == 2
    assert report.gain.value == pytest.approx(2.5, rel=0.02)
    assert tried[ALLOCATOR].gain.value == pytest.approx(1.25, rel=0.02)
    turns = [number for name, number, _ in planted.asked if name == "turn"]
    assert turns[:4] == [1, 3, 1, 3] and set(turns) == {1, 2, 3, 4}
    assert [number for name, number, plan in planted.asked if plan and ALLOCATOR in plan] == [3]
    assert steps.tried(True)[-1] == ALLOCATOR  # what is raced after it would not be raced in the user's own process


def test_what_is_wrong_or_lost_or_does_not_apply_says_why_and_is_never_timed(search):
    answers = {LAYERS: {"why": "not equal: output 0 is off by 1.0e-01 on your graph"}}
    answers |= {MODE: Answer("failed", reason="the process died of SIGSEGV"), COMPILE: "it is not installed"}
    report, tried, planted = search([LAYERS, MODE, COMPILE], product(fast_layers=0.5), answers)
    assert tried[LAYERS].why == "not equal: output 0 is off by 1.0e-01 on your graph"
    assert tried[MODE].why == "the process died of SIGSEGV"
    assert report.inapplicable == {COMPILE: "it is not installed"} and COMPILE not in tried
    assert report.plan == () and report.gain is None and not any(name == "race" for name, *_ in planted.asked)


def test_a_step_that_costs_its_process_in_the_race_says_so(search):
    lost = lambda target, plan: 1000.0 if target == "race" else 0.1  # noqa: E731
    report, tried, _ = search([LAYERS], product(fast_layers=0.5), seconds=lost)
    assert report.plan == () and tried[LAYERS].why == "stopped: budget" and tried[LAYERS].gain is None


def test_what_changes_results_is_measured_and_not_applied(search):
    answers = {"bfloat16": {"error": 5e-3}}
    report, tried, _ = search([LAYERS, "bfloat16"], product(fast_layers=0.9, bfloat16=0.2), answers)
    assert report.plan == (LAYERS,) and tried["bfloat16"].gain.value == pytest.approx(5, rel=0.02)
    assert "yours to decide" in tried["bfloat16"].why and tried["bfloat16"].error == 5e-3


def test_the_fast_layers_are_raced_and_reported_before_anything_else_is_tried(search):
    reports = []
    search([LAYERS, MODE], product(fast_layers=0.5, inference_mode=0.9), improved=reports.append)
    assert [report.plan for report in reports] == [(LAYERS,), (LAYERS, MODE)]
    assert reports[0].processes == 3 and [tried.name for tried in reports[0].tried] == [LAYERS]
    assert steps.tried(False)[0] == steps.tried(True)[0] == LAYERS


def test_a_step_that_takes_longer_than_its_part_of_the_budget_is_stopped_and_the_others_are_raced(search):
    names, seconds = [LAYERS, COMPILE, MODE], lambda target, plan: 1000.0 if plan and COMPILE in plan else 0.1
    report, tried, _ = search(names, product(fast_layers=0.5, inference_mode=0.9), start_s=3.0, seconds=seconds)
    assert tried[COMPILE].why == "stopped: budget" and report.plan == (LAYERS, MODE)
    assert report.processes == 3 and report.seconds <= 90


@pytest.mark.parametrize("budget_s", [1, 20, 60, 90, 300])
def test_the_budget_holds_whatever_the_steps_take(search, budget_s):
    draw = np.random.default_rng(budget_s)
    for _ in range(6):
        start_s = draw.uniform(0.5, 8)
        taken = {name: draw.lognormal(1, 2) for name in steps.STEPS}
        seconds = lambda target, plan, s=taken: sum(s[name] for name in plan) if plan else 0.2  # noqa: E731
        options = {"start_s": start_s, "seconds": seconds, "budget_s": budget_s}
        report, _, planted = search(list(steps.STEPS), lambda plan, process: 0.9 ** len(plan), {}, **options)
        first_s = optimize.FIRST_LIMIT_S + 5 + 3 * start_s  # the first look and the first step
        assert report.seconds == planted.now <= max(budget_s, first_s) + 3 * (optimize._GRACE_S + start_s)
        assert report.processes >= 1 or not report.plan


def test_steps_are_applied_in_one_order_and_progress_says_how_much_time_is_left(search):
    lines, factor = [], product(inference_mode=0.3, fast_layers=0.9)
    report, _, _ = search([MODE, LAYERS], factor, start_s=4.0, budget_s=60, tell=lines.append)
    assert report.plan == (LAYERS, MODE)
    assert "[1/2] inference mode (48 s left)" in lines and any(line.startswith("[2/2] fast layers") for line in lines)


def test_less_than_one_process_or_no_budget_is_refused(search):
    for options, words in (({"processes": 0}, "processes must be"), ({"budget_s": 0.0}, "a budget of 0 s")):
        with pytest.raises(GnnlabError, match=words):
            search([MODE], product(inference_mode=0.5), **options)


@pytest.mark.parametrize(("factory", "words"), [("exits", "exited with code 7"), ("hangs", "took more than 1 s")])
def test_code_that_exits_or_hangs_costs_one_line(monkeypatch, factory, words):
    if factory == "hangs":
        monkeypatch.setattr(optimize, "FIRST_LIMIT_S", 1)
    with refused(f"^own_models:{factory}: .*{words}"):
        optimize.optimize(f"own_models:{factory}", "karate", budget_s=1, processes=1)


@pytest.mark.parametrize(("spec", "words"), [("no_module:make", "there is no module"), ("gcn", "names no function")])
def test_a_model_that_nothing_names_is_refused_before_a_process_starts(monkeypatch, spec, words):
    monkeypatch.setattr(optimize, "Worker", None)
    with pytest.raises(GnnlabError, match=words):
        optimize.optimize(spec, "karate")


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
def test_gradients_are_proven_where_a_model_is_to_be_trained(here, factory):
    report = here(factory, (LAYERS,), graph="symptoms" if factory == "with_edges" else "karate", train=True)
    assert report.plan == (LAYERS,) and len(report.proof["held"]) >= 4 and not report.proof["wrong"]


def test_compiled_models_are_proven_too(here):
    report = here("gcn_with_weights", (COMPILE,), graph="symptoms")
    assert report.plan == (COMPILE,) and len(report.proof["held"]) == 4, report.tried


def test_every_step_says_why_it_applies_or_not():
    model, batch = torch.nn.Linear(3, 2).eval(), (torch.ones(5, 3),)
    looked = {name: steps.look(name, model, batch) for name in steps.STEPS}
    assert looked[LAYERS] == (False, "it has no message passing layers") and looked[MODE][0]
    assert looked["constant output"] == (False, "tensors go in") and looked["bfloat16"][0]
