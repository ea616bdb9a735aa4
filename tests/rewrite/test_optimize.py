"""The search keeps what pays over processes and beside the others, and says of everything else why not."""

import numpy as np
import pytest
import torch
from planted_search import PROVEN, Planted

from gnnlab.errors import GnnlabError
from gnnlab.rewrite import optimize, steps
from gnnlab.rewrite.proof import YOURS as YOUR_GRAPH
from gnnlab.worker import Answer


@pytest.fixture
def search(monkeypatch):
    """Runs the search over steps with planted times."""

    def run(names, factor, found=None, **options):
        planted = Planted(factor, found, options.pop("start_s", 0.0), options.pop("seconds", lambda target, plan: 0.0))
        monkeypatch.setattr(steps, "tried", lambda train: names)
        monkeypatch.setattr(optimize, "Worker", planted)
        monkeypatch.setattr(optimize, "clock", planted.clock)
        report = optimize.optimize("my_models:make", "karate", **options)
        return report, {tried.name: tried for tried in report.tried}, planted

    return run


def product(**factors):
    """Steps that do not get in each other's way; names have _ for spaces."""
    named = {name.replace("_", " "): factor for name, factor in factors.items()}
    return lambda plan, process: float(np.prod([named[name] for name in plan]))


LAYERS, MODE = "fast layers", "inference mode"


def test_what_pays_is_kept_with_its_gain_and_what_does_not_is_not(search):
    report, tried, _ = search([LAYERS, MODE, "OpenVINO"], product(fast_layers=0.5, inference_mode=0.9, OpenVINO=1.5))
    assert report.plan == (LAYERS, MODE)
    assert report.gain.low > 1 and report.gain.value == pytest.approx(1 / 0.45, rel=0.02)
    assert tried[LAYERS].gain.value == pytest.approx(2, rel=0.02) and tried[LAYERS].processes == 3
    assert tried[LAYERS].without.value == pytest.approx(2, rel=0.02)
    assert (
        not tried["OpenVINO"].kept
        and tried["OpenVINO"].why == "slower in the process that tried it"
        and tried["OpenVINO"].processes == 1
    )


def test_a_step_that_pays_alone_and_not_beside_the_others_is_left_out(search):
    times = {(LAYERS,): 0.5, (MODE,): 0.8, (LAYERS, MODE): 0.5}
    report, tried, _ = search([LAYERS, MODE], lambda plan, process: times[plan])
    assert report.plan == (LAYERS,) and tried[MODE].why == "no gain beside the others"
    assert tried[MODE].gain.low > 1


def test_a_step_whose_part_in_the_gain_was_not_seen_in_every_process_is_left_out(search):
    shaky = {(LAYERS,): [0.5, 0.3, 0.8], (MODE,): [0.9, 0.9, 0.9], (LAYERS, MODE): [0.4, 0.4, 0.4]}
    report, tried, _ = search([LAYERS, MODE], lambda plan, process: shaky[plan][max(process - 2, 0) % 3])
    assert report.plan == (MODE,) and not tried[LAYERS].kept


def test_no_step_is_taken_on_the_word_of_one_process(search):
    report, tried, planted = search([MODE], lambda plan, process: 0.8 if process < 4 else 1.3)
    assert report.plan == () and report.gain is None and "no gain" in tried[MODE].why
    racing = {process for name, process, _ in planted.asked if name == "race"}
    assert len(racing) == 3 and not racing & {process for name, process, _ in planted.asked if name == "attempt"}
    with pytest.raises(GnnlabError, match="one process's word"):
        search([MODE], product(inference_mode=0.5), processes=1)


def test_an_engine_is_raced_against_the_layers_that_it_does_not_go_with(search):
    names = [LAYERS, MODE, "OpenVINO"]
    report, _, planted = search(names, product(fast_layers=0.5, inference_mode=0.9, OpenVINO=0.3))
    assert report.plan == ("OpenVINO",)
    assert not any(plan and {"OpenVINO", LAYERS} <= set(plan) for _, _, plan in planted.asked)


def test_what_is_wrong_or_lost_or_does_not_apply_says_why_and_is_never_timed(search):
    wrong = {"right": False, "proof": PROVEN | {"wrong": {YOUR_GRAPH: "output 0 is off by 1.0e-01"}}}
    found = {LAYERS: wrong, MODE: Answer("failed", reason="the process died of SIGSEGV")}
    found["OpenVINO"] = {"applies": False, "why": "openvino is not installed"}
    report, tried, planted = search([LAYERS, MODE, "OpenVINO"], product(), found)
    assert tried[LAYERS].why == "not equal: output 0 is off by 1.0e-01 on your graph"
    assert tried[MODE].why == "the process died of SIGSEGV" and tried["OpenVINO"].why == "openvino is not installed"
    assert report.plan == () and not any(name == "race" for name, *_ in planted.asked)


def test_a_form_that_is_wrong_on_other_sizes_gets_a_guard(search):
    found = {LAYERS: {"proof": PROVEN | {"wrong": {"no edges": "output 0 is off by 1.0e-01"}}}}
    report, tried, _ = search([LAYERS], product(fast_layers=0.5), found)
    assert report.plan == (LAYERS, steps.GUARD) and tried[LAYERS].only_this_size


def test_what_changes_results_is_measured_and_not_applied(search):
    found = {"bfloat16": {"error": 5e-3}}
    report, tried, _ = search([LAYERS, "bfloat16"], product(fast_layers=0.9, bfloat16=0.2), found)
    assert report.plan == (LAYERS,) and tried["bfloat16"].gain.value == pytest.approx(5, rel=0.02)
    assert tried["bfloat16"].error == 5e-3 and "yours to decide" in tried["bfloat16"].why
    assert tried["bfloat16"].beside.value == pytest.approx(5, rel=0.02)  # that the plan gains by it
    assert tried[LAYERS].beside is None


def costs(**seconds):
    """What trying a plan takes, in s, by the slowest of its steps; everything else takes a tenth."""
    named = {name.replace("_", " "): value for name, value in seconds.items()}
    return lambda target, plan: max((named.get(name, 0.1) for name in plan), default=0.1) if plan else 0.1


def test_a_step_that_the_budget_has_no_room_for_is_not_tried_and_says_so(search):
    slow, found = "torch.compile", {"torch.compile": {"once_s": 8.0}}
    factor = lambda plan, process: 0.5 if plan == (LAYERS,) else 0.4  # noqa: E731
    report, tried, planted = search([LAYERS, slow], factor, found, start_s=4.0, budget_s=40)
    assert tried[slow].why == "not tried: budget" and report.plan == (LAYERS,) and report.left_out == (slow,)
    assert not any(plan == [slow] for _, _, plan in planted.asked)
    enough = {"start_s": 4.0, "budget_s": report.wanted_s}
    report, tried, _ = search([LAYERS, slow], factor, found, **enough)
    assert report.plan == (slow,) and report.left_out == () and report.wanted_s is None


def test_a_step_that_takes_longer_than_what_is_left_is_stopped_and_the_others_are_raced(search):
    names, seconds = [LAYERS, MODE, "OpenVINO"], lambda target, plan: 1000.0 if plan == ["OpenVINO"] else 0.1
    report, tried, _ = search(names, product(fast_layers=0.5, inference_mode=0.9), start_s=3.0, seconds=seconds)
    assert tried["OpenVINO"].why == "not tried to its end: budget" and report.plan == (LAYERS, MODE)
    assert report.processes == 3 and report.seconds <= 90 + optimize.RESERVE_S


@pytest.mark.parametrize("budget_s", [1, 20, 60, 90, 300])
def test_the_budget_holds_whatever_the_steps_take(search, budget_s):
    draw = np.random.default_rng(budget_s)
    for _ in range(6):
        start_s = draw.uniform(0.5, 8)
        taken = {name: draw.lognormal(1, 2) for name in steps.STEPS}
        found = {name: {"once_s": float(s), "call_s": 0.01} for name, s in taken.items()}
        seconds = lambda target, plan, s=taken: sum(s[name] for name in plan) if plan else 0.2  # noqa: E731
        names = steps.STEPS.keys() - {steps.GUARD}
        options = {"start_s": start_s, "seconds": seconds, "budget_s": budget_s}
        report, _, planted = search(list(names), lambda plan, process: 0.9 ** len(plan), found, **options)
        least_s = 6 * start_s + 10  # a first look, the trials, a race in three processes
        assert report.seconds == planted.now <= max(budget_s, least_s) + optimize.RESERVE_S
        assert report.processes >= 2 or not report.plan


def test_progress_says_what_is_done_and_how_much_time_is_left(search):
    lines = []
    search([LAYERS, MODE], product(fast_layers=0.5, inference_mode=0.9), start_s=4.0, budget_s=60, tell=lines.append)
    assert "[1/2] fast layers (52 s left)" in lines and "race of 4 forms, process 1 of 3 (52 s left)" in lines


def test_steps_are_applied_in_one_order_whatever_is_faster(search):
    report, _, _ = search([MODE, LAYERS], product(inference_mode=0.3, fast_layers=0.9))
    assert report.plan == (LAYERS, MODE)


@pytest.mark.parametrize(("factory", "words"), [("exits", "exited with code 7"), ("hangs", "took more than 3 s")])
def test_code_that_exits_or_hangs_costs_one_line(monkeypatch, factory, words):
    monkeypatch.setattr(optimize, "_FIRST_LIMIT_S", 3)
    with pytest.raises(GnnlabError, match=words) as caught:
        optimize.optimize(f"own_models:{factory}", "karate", budget_s=1)
    assert str(caught.value).startswith(f"own_models:{factory}: ") and "\n" not in str(caught.value)


def test_a_bad_model_is_refused_in_one_line(here):
    for factory, words in (("always_drops", "random in eval"), ("fails", "no such file"), ("gives_a_number", "float")):
        with pytest.raises(GnnlabError, match=words):
            here(factory)


@pytest.mark.parametrize("step", ["1 thread", "2 threads"])
def test_a_step_that_sets_threads_leaves_those_of_the_next_step_as_they_were(here, step):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        report = here("gcn", (step,), train=True)
        assert torch.get_num_threads() == 3 and report.plan == (step,)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("factory", ["gcn", "gin", "gat", "gatv2", "sage", "with_edges", "bipartite"])
def test_gradients_are_proven_where_a_model_is_to_be_trained(here, factory):
    report = here(factory, (LAYERS,), graph="symptoms" if factory == "with_edges" else "karate", train=True)
    assert report.plan == (LAYERS,) and len(report.proof["held"]) >= 4 and not report.proof["wrong"]
