"""The profiling context gives a quiet, repeatable model and leaves no trace."""

import gc
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from gnnlab.errors import GnnlabError
from gnnlab.measure.restore import ProfilingContext, unchanged
from gnnswap.inputs import call


class Drops(nn.Module):
    """Every kind of dropout: modules, attention, a PyG layer, a plain number, and one that ignores eval."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.AlphaDropout(0.2))
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.4)
        self.conv = GATConv(8, 8, dropout=0.5)
        self.norm = nn.BatchNorm1d(8)
        self.drop_rate = 0.1
        self.always_dropout = 0.6

    def forward(self, x, edge_index):
        x = self.norm(self.inner(x))
        x = self.conv(x, edge_index)
        x, _ = self.attention(x, x, x)
        x = F.dropout(x, self.drop_rate, self.training)
        return F.dropout(x, self.always_dropout, training=True)


GRAPH = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([[*range(6)], [1, 2, 3, 4, 5, 0]])


def everything(model):
    """All that the context promises to restore, comparable by `==`."""
    state = np.random.get_state()
    return (
        [module.training for module in model.modules()],
        (model.inner[1].p, model.inner[2].p, model.attention.dropout, model.conv.dropout),
        (model.drop_rate, model.always_dropout),
        [tensor.tolist() for tensor in model.state_dict().values()],
        random.getstate(),
        (state[0], state[1].tolist(), *state[2:]),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("eval_mode", [True, False])
def test_everything_is_as_before_after_the_context_and_an_error_in_it(eval_mode):
    model = Drops()
    model.inner.eval()  # mixed flags: one part in eval, the rest in training
    before = everything(model)
    context = ProfilingContext(model, eval_mode=eval_mode)
    with pytest.raises(ZeroDivisionError), context, context:  # it can be nested
        call(model, GRAPH)
        random.random(), np.random.rand(), torch.rand(1)
        1 / 0  # noqa: B018
    assert everything(model) == before


def test_one_that_is_never_left_is_not_undone_by_the_garbage_collector():
    model = Drops()
    ProfilingContext(model).__enter__()
    gc.collect()
    assert model.inner[1].p == 0 and not model.training


@pytest.mark.parametrize("eval_mode", [True, False])
@pytest.mark.parametrize("disable_dropout", [True, False])
def test_no_dropout_is_left_in_eval_or_training_mode_unless_asked_for(eval_mode, disable_dropout):
    model = Drops()
    with ProfilingContext(model, disable_dropout, eval_mode):
        assert model.training is not eval_mode
        assert torch.equal(call(model, GRAPH), call(model, GRAPH)) is disable_dropout


def test_the_seed_fixes_every_generator():
    drawn = []
    for seed in (7, 7, 8):
        with ProfilingContext(nn.Linear(2, 2), seed=seed):
            drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1] and not {*drawn[0]} & {*drawn[2]}


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "7", True])
def test_a_seed_that_is_invalid_is_refused_and_nothing_changed(seed):
    model = Drops()
    before = everything(model)
    with pytest.raises(GnnlabError, match="whole number from 0 to"):
        ProfilingContext(model, seed=seed).__enter__()
    assert everything(model) == before
    with pytest.raises(GnnlabError, match=r"needs a torch.nn.Module, not function"):
        ProfilingContext(lambda x: x)


def test_a_training_step_inside_unchanged_never_happened():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].weight.grad = torch.ones(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    before = [tensor.clone() for tensor in model.state_dict().values()]
    with pytest.raises(ZeroDivisionError), unchanged(model, optimizer):
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        1 / 0  # noqa: B018
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4))
    assert [parameter.grad is None for parameter in model.parameters()] == [False, True, True, True]
    assert optimizer.state_dict()["state"] == {}


def test_call_follows_the_batch_convention():
    data, named = Data(x=torch.ones(1, 1)), {"b": 1, "a": 2}
    for batch, arguments in (((1, 2), (1, 2)), ([1], (1, 0)), (named, (2, 1)), (data, (data, 0)), (5, (5, 0))):
        assert call(lambda a, b=0: (a, b), batch) == arguments


def test_what_did_not_change_is_not_written_to():
    model = nn.BatchNorm1d(3)
    x = torch.randn(5, 3, requires_grad=True)
    out = model(x)  # whose backward pass needs the weights as they were
    versions = [tensor._version for tensor in (*model.parameters(), *model.buffers())]
    with unchanged(model.eval()):
        model(x)
    assert [tensor._version for tensor in (*model.parameters(), *model.buffers())] == versions
    torch.autograd.grad(out.sum(), [x, *model.parameters()])
