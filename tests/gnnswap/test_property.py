"""Whatever layers, graphs, calls and changes are drawn, the fast model does what the original does."""

import copy
from types import SimpleNamespace

import pytest
import random_models
import torch

SEQUENCES = 25  # `python tests/gnnswap/random_models.py 20000` runs many more


@pytest.fixture(scope="module")
def outcomes():
    return [random_models.sequence(seed) for seed in range(SEQUENCES)]


def test_the_fast_model_does_what_the_original_does(outcomes):
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    again = "\n".join(
        f"{outcome}\n  python tests/gnnswap/random_models.py 1 --start {outcome.seed} -v" for outcome in wrong
    )
    assert not wrong, f"{len(wrong)} of {SEQUENCES} sequences differ:\n{again}"


def test_fast_kernels_run_in_these_sequences(outcomes):
    def share(part, whole):
        return sum(getattr(o, part) for o in outcomes) / sum(getattr(o, whole) for o in outcomes)

    assert sum(outcome.calls for outcome in outcomes) > 3 * SEQUENCES
    assert share("replaced", "layers") > 0.25
    assert share("fast", "with_gradients") > 0.2


def test_a_sequence_follows_from_its_seed():
    assert str(random_models.sequence(3)) == str(random_models.sequence(3))


@pytest.mark.parametrize("fault", ["weights", "side effects", "raises"])
def test_a_model_that_differs_is_found(monkeypatch, fault):
    def faulty(model, example=None, *, measure=True):
        model = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 if fault == "weights" else 0)
        if fault == "side effects":
            model.layers[0].seen = 1
        if fault == "raises":
            model.forward = None
        return SimpleNamespace(model=model, replaced=(), forget=lambda: None)

    monkeypatch.setattr(random_models, "swap", faulty)
    assert all(random_models.sequence(seed).wrong for seed in range(3))
