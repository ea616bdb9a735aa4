"""`gnnlab profile` of a user's own model: what fails is one line; the sizes are those of notebook 01."""

import json
import re
from pathlib import Path

import pytest

from gnnlab import cli
from gnnlab.commands import profile
from gnnlab.lab import discovery


def profiled(factory, capsys, *parts):
    """(exit code, report, lines on stderr)."""
    given = ["--model", f"own_models:{factory}", "--graph", "karate", "--json", "--profile", *(parts or ["flops"])]
    code = cli.main(["profile", *given])
    printed = capsys.readouterr()
    return code, json.loads(printed.out or "null"), printed.err.splitlines()


def test_the_allocator_is_the_user_s_and_what_the_environment_says_to_it_is_recorded(capsys, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "17")
    assert profiled("gcn", capsys)[1]["hardware"]["allocator"]["MALLOC_TRIM_THRESHOLD_"] == "17"


def test_what_is_printed_says_of_each_row_what_it_holds(capsys):
    given = ["--model", "own_models:gcn", "--graph", "karate", "--budget", "1", "--profile"]
    assert cli.main(["profile", *given, "runtime", "memory", "flops"]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"peak_mb|gb_moved|forward_activations|training_step|total_gflops", printed)
    kept, moved = "kept by a forward pass for the backward pass", "bytes moved, at least (GB)"
    for row in ("training step, with Adam", "without gradients, peak by torch's allocator", kept, moved):
        assert row in printed


@pytest.mark.parametrize("part", ["runtime", "memory"])
def test_a_model_that_fails_is_one_line(capsys, part):
    code, report, lines = profiled("fails_later", capsys, part)
    assert (code, report) == (2, None) and lines[-1].startswith("gnnlab: own_models:fails_later: RuntimeError: later")


def test_memory_is_torch_s_and_the_process_s_a_graph_fits_and_the_end_says_what_was_largest(capsys):
    code, report, _ = profiled("gcn", capsys, "operators", "memory", "fit", "--memory", "24")
    memory, fit = report["memory"], report["fit"]
    assert report["read"][0].startswith("karate: 156 edges, 34 nodes, ") and len(report["read"]) == 2
    assert code == 0 and abs(memory["process_peak_mb"] - memory["peak_mb"]) < 1 and memory["notes"] == []
    assert fit["gib"] == 24 and fit["forward_pass"]["nodes"] >= fit["training_pass"]["nodes"] > 1e5
    assert abs(fit["forward_pass"]["held_out_off"]) < 0.05
    operator, peak, following = report["next"].split("; ")
    assert report["operators"]["top"][0]["operator"] in operator and peak.endswith("are activations")
    assert following.startswith(
        "next: gnnlab optimize own_models:gcn --graph karate, with fast variants to be tried for 2"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--memory", "24"], "add fit, or leave --memory out"),
        (["--inputs", "own_models:inputs", "--profile", "fit"], "--profile fit needs graphs of other sizes"),
    ],
)
def test_a_size_without_a_fit_and_a_fit_without_a_graph_are_refused(capsys, given, words):
    assert cli.main(["profile", *given]) == 2 and words in capsys.readouterr().err


def test_the_sizes_are_those_that_notebook_01_starts_from():
    notebook = Path(__file__).parents[2] / "notebooks" / "01_profile_bottlenecks.ipynb"
    declared = {name: found.default for name, found in discovery.declared(notebook).items()}
    sizes = ("hidden_dim", "num_layers")
    assert [declared[name] for name in sizes] == [profile._SIZES[name] for name in sizes]
    assert declared["nodes"] == profile._NODES
