"""Whole models as people write them: with fast layers they give what they gave, and which layers are fast is known."""

import random

import pytest
import torch
from torch import nn
from torch_geometric.nn import Sequential, models
from torch_geometric.nn.conv import MessagePassing

from examples.public_models import MODELS, inputs
from gnnswap import swap
from gnnswap.replace import TO_COMPARE

SCALE = 0.02  # 100 nodes and 800 edges, 5 molecules
CLOSE = {"rtol": 1e-8, "atol": 1e-10}

# layers that stay as PyG computes them; of a model that is not named here, none does
AS_PYG_COMPUTES = {"super_gat": 2}
NEWER = {"polynormer": "Polynormer", "sgformer": "SGFormer"}  # models that older releases of PyG lack


def double(value):
    if isinstance(value, dict):
        return {name: double(one) for name, one in value.items()}
    return value.double() if value.is_floating_point() else value


def results(model, given):
    """Outputs, the gradient of each parameter and input, and what is drawn at random next."""
    given = [double(value) for value in given]
    rows = [row for value in given for row in (value.values() if isinstance(value, dict) else [value])]
    leaves = [row.requires_grad_() for row in rows if row.is_floating_point()] + list(model.parameters())
    torch.manual_seed(3)
    out = model(*given)
    outs = list(out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else [out])
    loss = sum((one * torch.linspace(-1, 1, one.numel()).view_as(one)).sum() for one in outs)
    return [*outs, *torch.autograd.grad(loss, leaves, allow_unused=True), torch.rand(1)]


def assert_same(model, reference, given):
    for training in (False, True):
        both = [results(one.train(training), given) for one in (model, reference)]
        for at, (ours, expected) in enumerate(zip(*both, strict=True)):
            if ours is None or expected is None:  # no gradient, or one of zeros
                assert ours is expected or not (ours if expected is None else expected).any(), f"tensor {at}"
            else:
                torch.testing.assert_close(ours, expected, **CLOSE, msg=lambda text, at=at: f"tensor {at}: {text}")


@pytest.fixture
def floats_of(name):
    """Some models make float32 tensors of their own, unless another type is the default."""
    torch.set_default_dtype(torch.float64 if name == "sgformer" else torch.float32)
    yield
    torch.set_default_dtype(torch.float32)


FORWARD = Sequential.forward


@pytest.fixture
def own_forward(monkeypatch):
    """PyG's Sequential writes a model's forward into its class, where the models of a file in a folder find it: of them
    it can write none. It names forwards by `random`, so that equal seeds share one."""
    monkeypatch.setattr(Sequential, "forward", FORWARD)
    random.seed()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.usefixtures("floats_of", "own_forward")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_what_it_gave_and_its_layers_are_fast(name):
    if name in NEWER and not hasattr(models, NEWER[name]):
        pytest.skip(f"this release of PyG has no {NEWER[name]}")
    if name == "hetero_sage" and not hasattr(torch.fx._symbolic_trace, "Union"):
        pytest.importorskip("torch_geometric", "2.7.0", reason="to_hetero of older releases fails with this torch")
    torch.manual_seed(0)
    reference, given = MODELS[name][0]().double(), inputs(name, SCALE)
    results(reference.train(), given)  # swapped after training, as users do
    report = swap(reference, measure=False)
    model = report.model
    for _ in range(2):  # the second call has what the first prepared
        assert_same(model, reference, given)
    state = {key: value + 0.01 * torch.rand_like(value) if value.is_floating_point() else value
             for key, value in reference.state_dict().items()}  # fmt: skip
    model.load_state_dict(state)
    reference.load_state_dict(model.state_dict())
    assert list(model.state_dict()) == list(reference.state_dict())
    assert_same(model, reference, given)
    layers = [one for one in reference.modules() if isinstance(one, (MessagePassing, nn.MultiheadAttention))]
    fast = [how for _, _, how in report.replaced if how != TO_COMPARE]
    assert len(layers) - len(fast) == AS_PYG_COMPUTES.get(name, 0), str(report)
