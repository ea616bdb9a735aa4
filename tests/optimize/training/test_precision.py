import torch

from gnnlab.optimize.training.precision import Bf16Probe, autocast, bf16_on_cpu, why_not


def test_native_is_what_is_measured_faster_and_the_sentence_says_so():
    fast, slow = Bf16Probe(3.9, (3.7, 4.1), 24, "AVX512", False), Bf16Probe(1.0, (0.9, 1.2), 24, "AVX512", False)
    assert fast.native and "natively" in fast.sentence and "3.70 to 4.10" in fast.sentence
    assert not slow.native and "no native bf16" in slow.sentence


def test_a_disturbed_measurement_does_not_take_the_instructions_away():
    assert Bf16Probe(0.4, (0.2, 10.3), 9, "AVX512", True).native  # too wide to tell
    assert not Bf16Probe(0.4, (0.3, 0.5), 20, "AVX512", True).native


def test_the_probe_runs_once_and_decides():
    probe = bf16_on_cpu()
    assert bf16_on_cpu() is probe and probe.ci[0] <= probe.ratio <= probe.ci[1] and probe.n >= 6
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
