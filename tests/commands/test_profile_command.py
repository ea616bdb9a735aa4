"""`gnnlab profile` of a user's own model: what fails is one line; the sizes are those of notebook 01."""

import json
from pathlib import Path

from gnnlab import cli
from gnnlab.commands import profile
from gnnlab.lab import parameters


def profiled(factory, capsys, part="flops"):
    """(exit code, report, lines on stderr)."""
    given = ["--model", f"own_models:{factory}", "--graph", "karate", "--profile", part, "--json"]
    code = cli.main(["profile", *given])
    printed = capsys.readouterr()
    return code, json.loads(printed.out or "null"), printed.err.splitlines()


def test_the_allocator_is_the_user_s_and_what_the_environment_says_to_it_is_recorded(capsys, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "17")
    assert profiled("gcn", capsys)[1]["hardware"]["allocator"]["MALLOC_TRIM_THRESHOLD_"] == "17"


def test_a_model_that_fails_is_one_line(capsys):
    code, report, lines = profiled("fails_later", capsys, "runtime")
    assert (code, report, lines[-1]) == (2, None, "gnnlab: own_models:fails_later: RuntimeError: later")


def test_the_sizes_are_those_that_notebook_01_starts_from():
    notebook = Path(__file__).parents[2] / "notebooks" / "01_profile_bottlenecks.ipynb"
    declared = {name: found.default for name, found in parameters.declared(notebook).items()}
    assert {name: declared[name] for name in profile._SIZES} == profile._SIZES
    assert (declared["scaling_nodes"], declared["scaling_layers"]) == (profile._NODES, profile._LAYERS)
