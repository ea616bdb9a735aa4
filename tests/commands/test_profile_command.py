"""`gnnlab profile` of a user's own model: whatever it does costs a line, never this process."""

import json
from pathlib import Path

import pytest

from gnnlab import cli
from gnnlab.commands import profile
from gnnlab.lab import parameters

OPTIONS = {"profile": ["flops"], "num_nodes": None, "graph": "karate", "device": "cpu", "batch_size": None}
OPTIONS |= dict.fromkeys(("hidden_dim", "num_layers", "num_heads", "ffn_dim"))


def test_a_model_of_ones_own_is_profiled_in_a_process_of_its_own(capsys):
    arguments = ["profile", "--model", "own_models:gives_nan", "--graph", "karate", "--profile", "flops", "--json"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["model_info"]["nodes"] == 34 and report["flops"]["total_gflops"] > 0
    (remark,) = report["remarks"]
    assert (
        remark.startswith("own_models:gives_nan: its output holds NaN") and f"gnnlab: remark: {remark}" in printed.err
    )


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("exits", "own_models:exits: the process exited with code 7"),
        ("hangs", "own_models:hangs: no answer within 2 s; --timeout gives its first calls more"),
        ("fails_later", "own_models:fails_later: RuntimeError: later"),
    ],
)
def test_a_model_that_ends_hangs_or_fails_later_is_one_line(capsys, model, told):
    given = ["--model", f"own_models:{model}", "--graph", "karate", "--profile", "flops"]
    given += ["--timeout", "2"] if model == "hangs" else []
    assert cli.main(["profile", *given]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"gnnlab: {told}"


@pytest.mark.parametrize(
    ("model", "remark"),
    [
        ("gcn", None),
        ("scales_its_weight", "changes its weight lin.weight in eval mode"),
        ("writes_to_x", "changes its argument x in eval mode"),
        ("gives_nothing", "returns no tensor"),
        ("always_drops", "is random in eval mode"),
    ],
)
def test_what_makes_a_profile_doubtful_is_a_remark(model, remark):
    found = profile.tried(OPTIONS | {"model": f"own_models:{model}"})
    assert len(found["remarks"]) == (remark is not None) and found["model_info"]["nodes"] == 34
    assert remark is None or remark in found["remarks"][0]
    assert profile.profiled(OPTIONS | {"model": f"own_models:{model}"}, "flops", 1.0)["total_gflops"] >= 0


def test_the_sizes_are_those_that_notebook_01_starts_from():
    notebook = Path(__file__).parents[2] / "notebooks" / "01_profile_bottlenecks.ipynb"
    declared = {name: found.default for name, found in parameters.declared(notebook).items()}
    assert {name: declared[name] for name in profile._SIZES} == profile._SIZES
    assert (declared["scaling_nodes"], declared["scaling_layers"]) == (profile._NODES, profile._LAYERS)
