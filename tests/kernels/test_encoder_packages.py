"""Compiled forms of the encoder follow the weights; where they do not hold, the encoder answers."""

import pytest
import torch

from gnnlab.kernels import encoder_packages
from gnnlab.kernels.encoder_packages import CompiledSymptomEncoder, ahead_of_time, compiled
from gnnlab.kernels.symptom_encoder import EncoderError, FastSymptomEncoder, Weights
from gnnlab.profiling.parity import require_equal
from gnnlab.workloads.symptom_gat import SymptomGAT


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return FastSymptomEncoder.from_model(SymptomGAT(4, torch.tensor([[0, 1, 1], [1, 0, 2]])).eval())


@pytest.fixture
def interpreted(encoder):
    """A compiled encoder without the compiler: what runs is counted."""
    calls = []

    def run(inputs):
        calls.append(len(inputs))
        return encoder.compute(Weights(*inputs[:9]), tuple(inputs[9:]))

    made = CompiledSymptomEncoder(encoder, run)
    made.calls = calls
    return made


def test_weights_are_read_at_every_call(interpreted):
    with torch.inference_mode():
        require_equal(interpreted.encoder(3), interpreted(3))
        interpreted.encoder.gat2.bias.add_(1)
        require_equal(interpreted.encoder(3), interpreted(3))
    assert interpreted.calls == [10, 10]


def test_where_it_does_not_hold_the_encoder_answers(interpreted):
    assert interpreted(1).requires_grad
    with torch.no_grad():
        assert not torch.equal(interpreted.train()(1), interpreted(1))
        interpreted.eval().double()
        assert interpreted(1).dtype == torch.float64
    assert interpreted.calls == []


def test_a_compiler_that_fails_is_one_clear_error(encoder, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no compiler found")

    monkeypatch.setattr(encoder_packages.torch.export, "export", fails)
    with pytest.raises(EncoderError, match="no package of the encoder could be made here: no compiler found"):
        ahead_of_time(encoder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["compile", "package"])
def test_compiled_forms_agree_and_follow_the_weights(encoder, tmp_path, form):
    made = compiled(encoder) if form == "compile" else ahead_of_time(encoder, tmp_path)
    with torch.inference_mode():
        require_equal(encoder(3), made(3))
        encoder.gat2.bias.add_(1)
        require_equal(encoder(3), made(3))
