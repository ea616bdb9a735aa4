"""The command lines that the documents print: each is on its page, and what is to be typed is understood."""

import io
import json
import re
import shlex
import types
from pathlib import Path

import pytest
import torch
from edge_states import S2_STATE

from gnnlab import cli
from gnnlab.commands import profile
from gnnlab.errors import GnnlabError

PAGE = Path(__file__).parents[2] / "docs" / "command-lines.md"
LINES = re.findall(r"^\| (S\d) \| `python (\S+) ?([^`]*)` \| `gnnlab ([^`]*)` \|$", PAGE.read_text("utf-8"), re.M)
SCRIPTS = {  # what each document prints, its options aside
    "S0": {"scripts/profile_gnn.py", "test_gnn_performance.py"},
    "S1": {"scripts/profile_model.py"},
    "S2": {"python_scripts/inference/local_inference_optimized.py", "benchmark.py"},
    "S4": {"profile_stages.py"},
}


def parsed(line):
    return cli._parser().parse_args(shlex.split(line))


def test_every_script_of_the_documents_is_on_the_page():
    assert len(LINES) == 14
    assert {source: {script for s, script, *_ in LINES if s == source} for source in SCRIPTS} == SCRIPTS


@pytest.mark.parametrize(("source", "script", "options", "typed"), LINES, ids=[f"{s} {o}" for s, _, o, _ in LINES])
def test_a_line_is_understood_with_its_options_as_printed(source, script, options, typed):
    assert typed.endswith(options) or typed == "run 08"
    found = parsed(typed)
    name = typed.split()[0]
    assert name in (found.command.__name__, found.command.__module__.rpartition(".")[2])


@pytest.mark.parametrize(
    ("source", "script", "options", "typed"), [line for line in LINES if line[3].startswith("inf")]
)
def test_lines_of_s2_answer_a_state_or_say_what_is_missing(capsys, monkeypatch, source, script, options, typed):
    state = io.BytesIO(json.dumps(S2_STATE).encode())
    state.isatty = lambda: False
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=state))
    code = cli.main(shlex.split(typed))
    printed = capsys.readouterr()
    if "cuda" in typed and not torch.cuda.is_available():
        assert code == 2 and "cuda" in printed.err and len(printed.err.splitlines()) == 1
    else:
        assert code == 0 and json.loads(printed.out)["node_id"].startswith("node_")


@pytest.mark.parametrize("model", ["graph_transformer", "own_models:plain"])
def test_a_batch_size_that_has_no_effect_is_refused(model):
    with pytest.raises(
        GnnlabError, match=rf"^{model} takes the whole graph: --batch_size has no effect; leave it out$"
    ):
        profile.run(parsed(f"profile --model {model} --batch_size 4 --profile flops"))


def test_totals_are_the_sums_of_their_breakdowns(capsys):
    sizes = "--hidden_dim 8 --num_layers 2 --num_heads 2 --ffn_dim 16 --num_nodes 40"
    assert profile.run(parsed(f"profile {sizes} --profile memory flops --json")) == 0
    report = json.loads(capsys.readouterr().out)
    memory, flops = report["memory"], report["flops"]
    for part, total in ((memory, "peak_mb"), (memory["training"], "peak_mb"), (flops, "total_gflops"),
                        (flops["formulas"], "total_gflops")):  # fmt: skip
        assert sum(part["breakdown"].values()) == pytest.approx(part[total], rel=1e-12) and part[total] > 0
    assert {"attention", "ffn"} <= flops["formulas"]["breakdown"].keys()
    assert memory["of_these"]["forward_activations"] < memory["training"]["breakdown"]["activations_and_gradients"]
