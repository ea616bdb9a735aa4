"""`gnnlab optimize` in processes of its own: a table or JSON, a module, and one line for bad input."""

import json
import re
from functools import partial

import pytest
from planted_search import Planted

from gnnlab.commands.optimize import _gain_text
from gnnlab.measure.estimates import Estimate
from gnnlab.optimize import search, steps


@pytest.fixture
def optimize(monkeypatch, tmp_path, command):
    """Runs the command with two steps to try: code, what it printed, what it said beside."""
    monkeypatch.setattr(steps, "tried", lambda train: ["fast layers", "inference mode"])
    monkeypatch.chdir(tmp_path)
    return partial(command, "optimize")


def test_a_model_goes_through_processes_of_its_own(optimize, tmp_path):
    graph = "random:nodes=3000,edges=60000,features=16"
    budget = ("--budget", "3", "--processes", "1")
    code, out, err = optimize("own_models:gin", "--graph", graph, *budget, "--json", "--out", "fast_gin.py")
    report = json.loads(out)
    assert code == 0 and report["facts"]["nodes"] == 3000 and report["processes"] <= 1
    assert {*(tried["name"] for tried in report["tried"]), *report["late"]} == {"fast layers", "inference mode"}
    assert "[1/2] fast layers" in err
    assert (tmp_path / "fast_gin.py").exists() is bool(report["plan"])
    assert ("wrote fast_gin.py" in err) is bool(report["plan"])


def test_the_table_says_why_a_step_is_not_kept_and_counts_what_does_not_apply(optimize, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # nothing is wrapped
    monkeypatch.setattr(steps, "tried", lambda train: ["fast layers", "inference mode", "constant output"])
    found = {"inference mode": {"why": "no [reason] at all"}, "constant output": "tensors go in"}
    monkeypatch.setattr(search, "Worker", Planted(lambda plan, process: 0.5, found))
    code, out, _ = optimize("own_models:gin", "--graph", "karate")
    assert code == 0 and "kept" in out and "no [reason] at all" in out
    assert 1.9 < float(re.search(r"\nfast layers: ([\d.]+) \(", out)[1]) < 2.1 and "Proven equal on your graph;" in out
    assert "2 MiB before, 1 MiB now" in out
    assert "1 step does not apply" in out and "tensors go in" not in out


def test_what_the_budget_had_no_time_for_is_named(optimize, monkeypatch):
    monkeypatch.setattr(search, "Worker", planted := Planted(lambda plan, process: 0.5, start_s=4.0))
    monkeypatch.setattr(search, "clock", planted.clock)
    _, out, _ = optimize("own_models:gin", "--graph", "karate", "--budget", "1")
    assert "times as fast" in out and "in one process" in out
    assert "The budget had no time for inference mode; a larger --budget may." in out


def test_a_gain_that_may_be_anything_is_not_given_as_a_number_and_none_is_said_to_be_none():
    assert _gain_text(Estimate(2.0, 0.0, 132_317.0, 2)) == "too noisy to tell"
    assert _gain_text(Estimate(2.0, 1.9, 2.1, 5)) == "2 (1.9 to 2.1)"
    assert _gain_text(Estimate(1.0, 0.97, 1.12, 5)) == "no difference seen, 1 (0.97 to 1.12)"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fast-gin.py", "cannot be imported as a module"),
        ("class.py", "cannot be imported as a module"),
        ("own_models.py", "is the module of the model itself"),
        ("not/there/fast.py", "there is no folder not/there"),
        ("mine.py", "was not written by gnnlab optimize"),
    ],
)
def test_where_it_cannot_be_written_is_said_before_anything_is_measured(optimize, monkeypatch, tmp_path, name, words):
    (tmp_path / "mine.py").write_text("print('an hour of work')\n")
    monkeypatch.setattr(search, "Worker", None)
    code, out, err = optimize("own_models:gin", "--out", name)
    assert code == 2 and out == "" and words in err.splitlines()[-1]
    assert (tmp_path / "mine.py").read_text() == "print('an hour of work')\n"


def test_the_module_is_written_as_soon_as_there_is_a_gain_and_again_at_the_end(optimize, monkeypatch, tmp_path):
    planted = Planted(lambda plan, process: 0.5)
    monkeypatch.setattr(search, "Worker", planted)
    planted.seconds = lambda target, plan: interrupted() if "inference mode" in (plan or ()) else 0.0

    def interrupted():
        raise KeyboardInterrupt

    code, _, err = optimize("own_models:gin", "--graph", "karate", "--out", "fast.py")
    assert code == 130 and "fast layers: 2" in err and "wrote fast.py: use it as fast:make" in err
    assert "steps.fast_layers(model, batch)" in (tmp_path / "fast.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required: module:factory"),
        (("own_models:gcn", "--budget", "0"), "whole number above 0"),
        (("own_models:gcn", "--processes", "0"), "whole number above 0"),
        (("own_models:wants_more", "--graph", "karate", "--processes", "1"), "forward wants positions"),
    ],
)
def test_bad_input_is_one_line(optimize, arguments, words):
    code, out, err = optimize(*arguments)
    last = err.strip().splitlines()[-1]
    assert code == 2 and out == "" and words in last and last.startswith("gnnlab")
