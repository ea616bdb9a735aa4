import json
from dataclasses import asdict

import pytest
import torch
from refusals import refused

from gnnlab.errors import GnnlabError
from gnnlab.profiling.estimates import Estimate
from gnnlab.training import recipe
from gnnlab.training.recipe import Bf16Probe, TrainingRecipe, autocast, bf16_on_cpu, from_json, why_not

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="tells what a machine without CUDA answers")


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "batch_size": [0, -1, 1.5, "64", True, None],
        "accumulate": [0],
        "epochs": [0, float("nan")],
        "seed": [-1],
        "learning_rate": [0, -1e-3, float("nan"), float("inf"), "1e-3", True],
        "clip_norm": [-1.0],
        "weight_decay": [float("inf")],
        "compile": [1, "yes"],
        "precision": ["fp8", 16, None, ["fp32"]],
        "device": ["gpu", "cpu:1", 0, None, "mps", "cuda:-1"],
    }.items(),
)
def test_a_value_that_is_not_allowed_is_refused_in_one_line_with_its_name(name, values):
    for value in values:
        with refused(rf"^{name}="):
            TrainingRecipe(**{name: value})


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"precision": "fp16"}, "CUDA"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"compile": True, "sharded": True}, "choose one"),
        ({"precision": "fp16", "sharded": True}, "take bf16"),
    ],
)
@no_cuda
def test_switches_that_do_not_go_together_or_with_what_is_here_are_refused_at_construction(switches, words):
    with refused(words):
        TrainingRecipe(**switches)


def test_bf16_is_refused_where_the_probe_finds_it_emulated(monkeypatch):
    monkeypatch.setattr(recipe, "bf16_on_cpu", lambda: Bf16Probe(Estimate(0.3, 0.28, 0.33, 24), "AVX2", False))
    with pytest.raises(GnnlabError, match=r"no native bf16.*0\.30 times.*take fp32"):
        TrainingRecipe(precision="bf16")


def test_compile_is_refused_without_a_compiler(monkeypatch):
    monkeypatch.setattr(recipe.shutil, "which", lambda name: None)
    with pytest.raises(GnnlabError, match="compiler"):
        TrainingRecipe(compile=True)


def test_a_recipe_survives_json_and_a_foreign_switch_is_named():
    own = TrainingRecipe(batch_size=64, accumulate=4, clip_norm=1.0)
    assert from_json(json.loads(json.dumps(asdict(own)))) == own
    with pytest.raises(GnnlabError, match="no batchsize, lr; it has"):
        from_json({"lr": 1, "batchsize": 2})
    with pytest.raises(GnnlabError, match="got list"):
        from_json([1])


def test_a_step_takes_all_its_micro_batches():
    assert TrainingRecipe(batch_size=64, accumulate=4).step_rows == 256


# ---- precision


def test_native_is_what_is_measured_faster_and_the_sentence_says_so():
    fast, slow = (
        Bf16Probe(Estimate(3.9, 3.7, 4.1, 24), "AVX512", False),
        Bf16Probe(Estimate(1.0, 0.9, 1.2, 24), "AVX512", False),
    )
    assert fast.native and "natively" in fast.sentence and "3.70 to 4.10" in fast.sentence
    assert not slow.native and "no native bf16" in slow.sentence


def test_a_disturbed_measurement_does_not_take_the_instructions_away():
    assert Bf16Probe(Estimate(0.4, 0.2, 10.3, 9), "AVX512", True).native  # too wide to tell
    assert not Bf16Probe(Estimate(0.4, 0.3, 0.5, 20), "AVX512", True).native


def test_the_probe_runs_once_and_decides():
    probe = bf16_on_cpu()
    assert bf16_on_cpu() is probe and probe.ratio.n >= 6
    assert (why_not("bf16", "cpu") is None) == probe.native


def test_fp32_goes_everywhere_and_fp16_to_no_processor():
    assert why_not("fp32", "cpu") is None and why_not("fp32", "cuda") is None
    assert "CUDA" in why_not("fp16", "cpu")


def test_a_device_without_bf16_is_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert "fp16 or fp32" in why_not("bf16", "cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert why_not("bf16", "cuda") is None


def test_autocast_changes_products_only_where_it_is_asked_to():
    a = torch.ones(2, 2)
    with autocast("bf16", "cpu"):
        assert (a @ a).dtype == torch.bfloat16
    with autocast("fp32", "cpu"):
        assert (a @ a).dtype == torch.float32
