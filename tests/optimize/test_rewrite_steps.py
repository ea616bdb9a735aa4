"""What is done around a forward holds in eval mode, and leaves class, names, signature and training alone."""

import copy
import inspect
from contextlib import nullcontext

import pytest
import torch
from own_models import Pooled
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from gnnlab.optimize import steps

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile, between graphs
X, EDGES = torch.randn(5, 4), torch.tensor([[0, 1, 2, 2], [1, 2, 3, 3]])
BATCH = torch.zeros(5, dtype=torch.int64)


def model():
    torch.manual_seed(0)
    return Pooled(4)


WAYS = {
    "inference": lambda m: steps.inference(m, None),
    "threads": lambda m: steps.threads(m, None, 1),
    "constant": lambda m: steps.constant_output(m, None),
    "compiled": lambda m: steps.compiled(m, None, "eager"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_results_names_and_signature_stay(way):
    before = model().eval()
    after = way(copy.deepcopy(before))
    assert torch.allclose(after(X, EDGES, BATCH), before(X, EDGES, BATCH))
    assert isinstance(after, Pooled) and after.state_dict().keys() == before.state_dict().keys()
    assert inspect.signature(after.forward) == inspect.signature(before.forward)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_copy_has_weights_of_its_own(way):
    after = way(model())
    after.eval()(X, EDGES, BATCH)
    copied = copy.deepcopy(after)
    with torch.no_grad():
        copied.lin.bias.add_(1)
    assert torch.allclose(copied(X, EDGES, BATCH), after(X, EDGES, BATCH) + 1)


def test_inference_records_nothing_in_eval_and_trains_as_before():
    fast = steps.inference(model(), None)
    assert not fast(X, EDGES, BATCH).requires_grad
    assert fast.train()(X, EDGES, BATCH).requires_grad


def test_threads_are_those_of_the_call_alone():
    class Counting(nn.Module):
        def forward(self):
            return torch.tensor(torch.get_num_threads())

    before = torch.get_num_threads()
    assert steps.threads(Counting().eval(), None, before + 1)() == before + 1
    assert torch.get_num_threads() == before


def test_in_training_the_threads_stay_for_the_backward_pass():
    class Counting(nn.Module):
        def forward(self):
            return torch.ones(1, requires_grad=True) * 1

    before, seen = torch.get_num_threads(), []
    out = steps.threads(Counting().train(), None, before + 1)()
    try:
        out.register_hook(lambda grad: seen.append(torch.get_num_threads()))
        out.backward()
        assert seen == [before + 1]
    finally:
        torch.set_num_threads(before)


def test_bfloat16_is_that_of_autocast():
    before = model().eval()
    with torch.autocast("cpu", torch.bfloat16):
        expected = before(X, EDGES, BATCH)
    assert torch.equal(steps.bfloat16(copy.deepcopy(before), None)(X, EDGES, BATCH), expected)


def test_what_goes_in_is_where_the_factory_makes_the_model_or_where_both_are_moved():
    data = Data(x=X, edge_index=EDGES)
    made_on_meta, batch = steps.user_model(lambda data: SAGEConv(4, 2).to("meta"), data, {})
    assert made_on_meta.lin_l.weight.device.type == batch["x"].device.type == batch["edge_index"].device.type == "meta"
    model, batch = steps.user_model(lambda data: SAGEConv(4, 2), data, {}, "meta")
    assert model.lin_l.weight.device.type == batch["x"].device.type == "meta" and data.x.device.type == "cpu"


def test_bfloat16_is_asked_of_the_device_of_the_model(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "autocast", lambda *device_and_type: asked.append(device_and_type) or nullcontext())
    for device in ("cpu", "meta"):
        steps.bfloat16(nn.Linear(4, 2).to(device), None)(X.to(device))
    assert asked == [("cpu", torch.bfloat16), ("meta", torch.bfloat16)]
