"""`gnnlab optimize` in processes of its own: a table or JSON, a module, and one line for bad input."""

import json
import re

import pytest
from planted_search import FINE, Planted

from gnnlab import cli
from gnnlab.commands.optimize import _gain_text
from gnnlab.lab.table import estimate_text
from gnnlab.profiling.estimates import Estimate
from gnnlab.rewrite import optimize as search
from gnnlab.rewrite import steps


@pytest.fixture
def optimize(monkeypatch, tmp_path, capsys):
    """Runs the command with two steps to try: code, what it printed, what it said beside."""
    monkeypatch.setattr(steps, "tried", lambda train: ["fast layers", "inference mode"])
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = cli.main(["optimize", *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_model_goes_through_processes_of_its_own(optimize, tmp_path):
    graph = "random:nodes=3000,edges=60000,features=16"
    budget = ("--budget", "6", "--processes", "2")
    code, out, err = optimize("own_models:gin", "--graph", graph, *budget, "--json", "--out", "fast_gin.py")
    report = json.loads(out)
    assert code == 0 and report["facts"]["nodes"] == 3000 and report["processes"] == 2
    assert {tried["name"] for tried in report["tried"]} == {"fast layers", "inference mode"}
    assert "[1/2] fast layers" in err and "process 2 of 2" in err
    assert (tmp_path / "fast_gin.py").exists() is bool(report["plan"])
    assert ("wrote fast_gin.py" in err) is bool(report["plan"])


def test_the_table_says_why_a_step_is_not_kept(optimize, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # nothing is wrapped
    found = {"inference mode": FINE | {"applies": False, "why": "no [reason] at all"}}
    monkeypatch.setattr(search, "Worker", Planted(lambda plan, process: 0.5, found))
    code, out, _ = optimize("own_models:gin", "--graph", "karate")
    assert code == 0 and "kept" in out and "no [reason] at all" in out
    assert 1.9 < float(re.search(r"\nfast layers: ([\d.]+) \(", out)[1]) < 2.1 and "Proven equal on 2 graphs" in out


def test_a_gain_that_may_be_anything_is_not_given_as_a_number():
    assert _gain_text(Estimate(2.0, 0.0, 132_317.0, 2)) == "too noisy to tell"
    assert _gain_text(Estimate(2.0, 1.9, 2.1, 5)) == estimate_text(Estimate(2.0, 1.9, 2.1, 5))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required: module:factory"),
        (("own_models:gcn", "--budget", "0"), "whole number above 0"),
        (("own_models:gcn", "--processes", "1"), "one process's word"),
        (("own_models:not_there", "--graph", "karate"), "no factory 'not_there'"),
        (("own_models:wants_more", "--graph", "karate"), "forward wants positions"),
    ],
)
def test_bad_input_is_one_line(optimize, arguments, words):
    code, out, err = optimize(*arguments)
    last = err.strip().splitlines()[-1]
    assert code == 2 and out == "" and words in last and last.startswith("gnnlab")
