import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from gnnlab.workloads.symptom_gat import SymptomGAT
from gnnswap.cache import TensorCache, Watch
from gnnswap.neighbours import Neighbours


def test_what_was_computed_is_cached_until_the_tensor_is_written_to():
    cache, calls = TensorCache(), []
    tensor = torch.zeros(3)

    def compute():
        calls.append(1)
        return tensor.clone()

    first = cache.get((tensor,), "a", compute)
    assert cache.get((tensor,), "a", compute) is first and len(calls) == 1
    assert cache.get((tensor,), "b", compute) is not first and len(calls) == 2
    tensor.add_(1)
    assert torch.equal(cache.get((tensor,), "a", compute), tensor) and len(calls) == 3
    tensor.set_(torch.ones(2))
    assert torch.equal(cache.get((tensor,), "a", compute), tensor)
    other = torch.ones(2)  # all tensors that a value was computed from are looked at
    first = cache.get((tensor, other), "sum", lambda: tensor + other)
    assert cache.get((tensor, other), "sum", lambda: tensor + other) is first
    other.mul_(3)
    assert cache.get((tensor, other), "sum", lambda: tensor + other).tolist() == [4, 4]


def test_an_entry_goes_with_its_tensor_and_few_stay():
    cache = TensorCache(2)
    tensor, value = torch.zeros(3), torch.zeros(2)
    watched, watched_value = weakref.ref(tensor), weakref.ref(value)
    cache.get((tensor,), "a", lambda value=value: value)
    del value
    assert watched_value() is not None
    del tensor
    gc.collect()
    assert watched() is None and watched_value() is None and len(cache) == 0
    tensors = [torch.zeros(1) for _ in range(3)]
    for each in tensors:
        cache.get((each,), "a", each.clone)
    assert len(cache) == 2


def test_nothing_is_cached_of_what_has_no_version_and_what_is_cached_serves_training():
    cache = TensorCache()
    weight = torch.ones(3)
    with torch.inference_mode():
        inside = torch.ones(3)
        assert cache.get((inside,), "a", inside.clone) is not cache.get((inside,), "a", inside.clone)
        value = cache.get((weight,), "a", lambda: weight * 2)
    assert not value.is_inference()


def test_weights_are_sorted_once_and_again_when_they_change():
    edge_index = torch.tensor([[0, 1, 2, 0], [2, 0, 1, 0]])
    prepared = Neighbours.prepare(edge_index, 3)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    first = prepared.sorted_weight(weight)
    assert first.tolist() == [2.0, 4.0, 3.0, 1.0]
    assert prepared.sorted_weight(weight) is first
    weight[0] = 7
    assert prepared.sorted_weight(weight).tolist() == [2.0, 4.0, 3.0, 7.0]
    weight.requires_grad_()
    again = prepared.sorted_weight(weight)
    again.backward(torch.arange(4.0))
    assert weight.grad.tolist() == [3.0, 0.0, 2.0, 1.0]
    with torch.no_grad():
        assert not prepared.sorted_weight(weight).requires_grad
    columns = torch.arange(8.0).view(4, 2).double().requires_grad_()
    assert prepared.sorted_weight(columns)[0].tolist() == [2, 3]
    assert torch.autograd.gradcheck(prepared.sorted_weight, (columns,))


EDGES = torch.tensor([[0, 1, 1, 2, 3, 3, 4], [1, 0, 0, 1, 3, 2, 0]])


def model(seed=0):
    torch.manual_seed(seed)
    return SymptomGAT(7, EDGES).eval()


def step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.enable_grad():
        model(1).square().sum().backward()
    optimizer.step()


def through_half_and_back(model):
    model.half()
    model.float()


CHANGES = {
    "an optimizer step": step,
    "loaded weights": lambda m: m.load_state_dict(model(seed=9).state_dict()),
    "a parameter written in place": lambda m: m.gat1.att_src.mul_(2),
    "one element written in place": lambda m: m.gat1.lin.weight[3, 5].add_(1),
    "a parameter replaced": lambda m: setattr(m.gat2, "bias", nn.Parameter(torch.ones(256))),
    "a parameter removed": lambda m: setattr(m.gat2, "bias", None),
    "a parameter set through data": lambda m: setattr(m.gat2.bias, "data", torch.ones(256)),
    "a submodule replaced": lambda m: setattr(m, "gat2", copy.deepcopy(model(seed=9).gat2)),
    "other edges in place": lambda m: m.edge_index.copy_(m.edge_index.flip(0)),
    "a buffer replaced": lambda m: setattr(m, "edge_index", EDGES[:, :3].clone()),
    "a buffer added": lambda m: m.register_buffer("more", torch.ones(1)),
    "another precision": lambda m: m.double(),
    "lower precision and back": through_half_and_back,
    "a parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.gat2.lin, dim=None) and step(m),
    "a submodule in training mode": lambda m: m.dropout.train(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_a_module_is_seen(change):
    watched = model()
    watch = Watch(watched)
    with torch.no_grad():
        watched(1)
        assert watch.unchanged()
        change(watched)
        assert not watch.unchanged()
        assert Watch(watched).unchanged()


def test_tensors_of_inference_mode_are_always_taken_for_changed():
    with torch.inference_mode():
        watch = Watch(model())
    assert not watch.reliable and not watch.unchanged()
