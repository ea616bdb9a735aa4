"""`gnnlab optimize` in processes of its own: a table or JSON, a module, and one line for bad input."""

import json
from functools import partial

import pytest
from fake_search import Planted

from gnnlab.child import Worker
from gnnlab.optimize import search, steps


@pytest.fixture
def optimize(monkeypatch, tmp_path, command):
    """Runs the command with two steps to try: code, what it printed, what it said beside."""
    monkeypatch.setattr(steps, "tried", lambda train: ["fast layers", "inference mode"])
    monkeypatch.chdir(tmp_path)
    return partial(command, "optimize")


def test_a_model_goes_through_processes_of_its_own(optimize, tmp_path):
    graph = "random:nodes=3000,edges=60000,features=16"
    brief = ("--seconds", "0.2", "--processes", "1")
    code, out, err = optimize("own_models:gin", "--graph", graph, *brief, "--json", "--out", "fast_gin.py")
    report = json.loads(out)
    assert code == 0 and report["facts"]["nodes"] == 3000
    assert report["read"][0].startswith(f"{graph}: 60,000 edges, 3,000 nodes") and "\n".join(report["read"]) in err
    assert [tried["name"] for tried in report["tried"]] == ["fast layers", "inference mode"]
    assert "2 steps, each in up to 1 processes: at most" in err and "[1/2] fast layers" in err
    assert (tmp_path / "fast_gin.py").exists() is bool(report["plan"])
    assert ("wrote fast_gin.py" in err) is bool(report["plan"])
    if report["plan"]:
        assert {"torch_mib", "process_mib", "agrees"} <= report["whole"]["memory"]["before"].keys()


def test_the_table_says_why_a_step_is_not_kept_and_counts_what_does_not_apply(optimize, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # nothing is wrapped
    monkeypatch.setattr(steps, "tried", lambda train: ["fast layers", "inference mode", "constant output"])
    found = {"inference mode": {"why": "no [reason] at all"}, "constant output": "tensors go in"}
    Planted(monkeypatch, lambda plan, process: 0.5, found)
    code, out, _ = optimize("own_models:gin", "--graph", "karate")
    assert code == 0 and out.startswith("karate: 34 nodes\n") and "kept" in out and "no [reason] at all" in out
    assert "\nfast layers: 2 (1.99 to 2.01) times as fast over 3 processes." in out
    assert "Checked to be equal on your graph;" in out
    assert "before torch's allocator 64 MiB, the process 64 MiB; now torch's allocator 32 MiB" in out
    assert "1 step does not apply" in out and "tensors go in" not in out


def test_nodes_of_several_kinds_are_looked_at_and_checked():
    of = ["own_models:Buys", "inputs:own_models:purchases", False, None]
    with Worker(keep_memory=False) as worker:
        asked = {"of": of, "names": ["fast layers"]}
        seen = worker.call("gnnlab.optimize.search:examine", asked, timeout_s=300).get()
        tried = worker.call("gnnlab.optimize.search:attempt", {"of": of, "plan": ["fast layers"]}, timeout_s=300).get()
    assert seen["facts"]["read"][1] == "own_models:Buys: Buys, 32 parameters in 6 tensors, float32"
    assert list(seen["applicable"]) == ["fast layers"]
    assert tried["why"] is None and "your inputs" in tried["checked"]["passed"]


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


def test_the_module_is_written_as_soon_as_there_is_a_gain(optimize, monkeypatch, tmp_path):
    def interrupted(plan, process):
        if "inference mode" in plan:
            raise KeyboardInterrupt
        return 0.5

    Planted(monkeypatch, interrupted)
    code, _, err = optimize("own_models:gin", "--graph", "karate", "--out", "fast.py")
    assert code == 130 and "wrote fast.py: use it as fast:make" in err
    assert "steps.fast_layers(model, batch)" in (tmp_path / "fast.py").read_text()


@pytest.mark.parametrize("factors", [(1.2, 1.2, 1.2), (0.8, 0.5, 1.1)], ids=["slower", "not shown"])
def test_without_a_gain_no_module_is_written_and_that_is_said(optimize, monkeypatch, tmp_path, factors):
    Planted(monkeypatch, lambda plan, process: factors[process])
    arguments = ("own_models:gin", "--graph", "karate", "--out", "fast.py")
    for there, words in (
        (False, "fast.py was not written"),
        (True, "fast.py was not written: the one that is there is of an earlier run"),
    ):
        if there:
            (tmp_path / "fast.py").write_text("# written by `gnnlab optimize`\n")
        code, out, err = optimize(*arguments)
        assert code == 0 and "No " in out and err.splitlines()[-1] == words
        assert (tmp_path / "fast.py").exists() is there


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required: module:factory"),
        (("own_models:gcn", "--seconds", "0"), "number of seconds above 0"),
        (("own_models:gcn", "--processes", "0"), "whole number above 0"),
        (("own_models:gcn", "--processes", "2"), "two processes make no interval"),
        (("own_models:wants_more", "--graph", "karate", "--processes", "1"), "forward wants positions"),
    ],
)
def test_bad_input_is_one_line(optimize, arguments, words):
    code, out, err = optimize(*arguments)
    last = err.strip().splitlines()[-1]
    assert code == 2 and out == "" and words in last and last.startswith("gnnlab")
