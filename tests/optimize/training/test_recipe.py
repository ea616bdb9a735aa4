import json
from dataclasses import asdict, replace

import pytest
import torch

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.training import precision, recipe
from gnnlab.optimize.training.recipe import GUIDE_AFTER, GUIDE_BEFORE, Recipe, from_json

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="tells what a machine without CUDA answers")


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "batch_size": [0, -1, 1.5, "64", True, None],
        "accumulate": [0],
        "epochs": [0, float("nan")],
        "seed": [-1],
        "workers": [-1],
        "learning_rate": [0, -1e-3, float("nan"), float("inf"), "1e-3", True],
        "clip_norm": [-1.0],
        "weight_decay": [float("inf")],
        "compile": [1, "yes"],
        "precision": ["fp8", 16, None, ["fp32"]],
        "optimizer": ["sgd"],
        "loss": ["mean"],
        "pipeline": [""],
        "transfer": [0],
        "device": ["gpu", "cpu:1", 0, None, "mps", "cuda:-1"],
    }.items(),
)
def test_a_value_that_is_not_allowed_is_refused_in_one_line_with_its_name(name, values):
    for value in values:
        with pytest.raises(OptimizeError, match=rf"^{name}=") as caught:
            Recipe(**{name: value})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"workers": 2}, "pipeline='batches'"),
        ({"transfer": "dictionary"}, "pipeline='batches'"),
        ({"pipeline": "batches", "persistent": True}, "set workers"),
        ({"pipeline": "samples", "prefetch": 4}, "set workers"),
        ({"pipeline": "samples", "transfer": "pinned"}, "CUDA"),
        ({"precision": "fp16"}, "CUDA"),
        ({"compile": True, "sharded": True}, "choose one"),
        ({"precision": "fp16", "sharded": True}, "take bf16"),
    ],
)
@no_cuda
def test_switches_that_do_not_go_together_are_refused_at_construction(switches, words):
    with pytest.raises(OptimizeError, match=words) as caught:
        Recipe(**switches)
    assert "\n" not in str(caught.value)


@no_cuda
def test_a_missing_device_is_refused_with_what_there_is():
    with pytest.raises(OptimizeError, match="no CUDA device"):
        Recipe(device="cuda")


def test_bf16_is_refused_where_the_probe_finds_it_emulated(monkeypatch):
    monkeypatch.setattr(precision, "bf16_on_cpu", lambda: precision.Bf16Probe(0.3, (0.28, 0.33), 24, "AVX2", False))
    with pytest.raises(OptimizeError, match=r"no native bf16.*0\.30 times.*take fp32"):
        Recipe(precision="bf16")


def test_compile_is_refused_without_a_compiler(monkeypatch):
    monkeypatch.setattr(recipe.shutil, "which", lambda name: None)
    with pytest.raises(OptimizeError, match="compiler"):
        Recipe(compile=True)


def test_the_loops_of_the_guide_are_recipes():
    before, after = replace(Recipe(), **GUIDE_BEFORE), replace(Recipe(), **GUIDE_AFTER)
    assert (before.workers, before.loss, before.transfer) == (4, "stack", "plain")
    assert (after.workers, after.loss, after.transfer) == (0, "preallocated", "dictionary")


def test_a_recipe_survives_json_and_a_foreign_switch_is_named():
    own = Recipe(batch_size=64, accumulate=4, clip_norm=1.0)
    assert from_json(json.loads(json.dumps(asdict(own)))) == own
    with pytest.raises(OptimizeError, match="no batchsize, lr; it has"):
        from_json({"lr": 1, "batchsize": 2})
    with pytest.raises(OptimizeError, match="got list"):
        from_json([1])


def test_a_step_takes_all_its_micro_batches():
    assert Recipe(batch_size=64, accumulate=4).step_rows == 256
