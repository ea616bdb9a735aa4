import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from gnnlab.kernels.kept import HoistedSymptomEncoder, Kept
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.kernels.symptom_encoder import FastSymptomEncoder
from gnnlab.profiling.races import require_equal
from gnnlab.workloads.symptom_gat import SymptomGAT


def test_what_was_made_is_kept_until_the_tensor_is_written_to():
    kept, calls = Kept(), []
    tensor = torch.zeros(3)

    def make():
        calls.append(1)
        return tensor.clone()

    first = kept.get(tensor, make)
    assert kept.get(tensor, make) is first and len(calls) == 1
    assert kept.get(tensor, make, "also") is not first and len(calls) == 2
    tensor.add_(1)
    assert torch.equal(kept.get(tensor, make), tensor) and len(calls) == 3
    tensor.set_(torch.ones(2))
    assert torch.equal(kept.get(tensor, make), tensor)


def test_no_tensor_is_kept_alive_and_few_results():
    kept = Kept(2)
    tensor, made = torch.zeros(3), torch.zeros(2)
    watched, watched_result = weakref.ref(tensor), weakref.ref(made)
    kept.get(tensor, lambda made=made: made)
    del tensor, made
    assert watched() is None
    for other in (torch.zeros(1), torch.zeros(1), torch.zeros(1)):
        kept.get(other, other.clone)
    gc.collect()
    assert len(kept) <= 2 and watched_result() is None


def test_nothing_is_kept_of_what_has_no_version_and_what_is_kept_serves_training():
    kept = Kept()
    weight = torch.ones(3)
    with torch.inference_mode():
        inside = torch.ones(3)
        assert kept.get(inside, inside.clone) is not kept.get(inside, inside.clone)
        made = kept.get(weight, lambda: weight * 2)
    assert not made.is_inference()


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


def test_weights_of_several_columns_are_sorted_by_rows():
    prepared = Neighbours.prepare(torch.tensor([[0, 1, 0], [1, 0, 0]]), 2)
    weight = torch.arange(6.0).view(3, 2).double().requires_grad_()
    assert prepared.sorted_weight(weight).tolist() == [[2, 3], [4, 5], [0, 1]]
    assert torch.autograd.gradcheck(prepared.sorted_weight, (weight,))


# --- The kept constant is served while nothing changed, and every change is seen ---


EDGES = torch.tensor([[0, 1, 1, 2, 3, 3, 4], [1, 0, 0, 1, 3, 2, 0]])


def model(seed=0):
    torch.manual_seed(seed)
    return SymptomGAT(7, EDGES).eval()


@pytest.fixture
def hoisted():
    return HoistedSymptomEncoder(FastSymptomEncoder(model()))


def step(encoder):
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    with torch.enable_grad():
        encoder(1).square().sum().backward()
    optimizer.step()


def unversioned(encoder):
    other = dict(model(seed=9).named_parameters())
    for name, parameter in encoder.named_parameters():
        parameter.data.copy_(other[name])


def through_half_and_back(encoder):
    encoder.half()
    encoder.float()


def with_names(encoder, name, value):
    module, _, leaf = name.rpartition(".")
    setattr(encoder.get_submodule(module), leaf, value)


CHANGES = {
    "an optimizer step": step,
    "loaded weights": lambda e: e.load_state_dict(model(seed=9).state_dict()),
    "a parameter written in place": lambda e: e.gat1.att_src.mul_(2),
    "one element written in place": lambda e: e.gat1.lin.weight[3, 5].add_(1),
    "all weights written past the version counter": unversioned,
    "a bias written through numpy": lambda e: e.gat2.bias.detach().numpy().__iadd__(1),
    "a parameter replaced": lambda e: with_names(e, "gat2.bias", nn.Parameter(torch.ones(256))),
    "a parameter set through data": lambda e: setattr(e.gat2.bias, "data", torch.ones(256)),
    "a submodule replaced": lambda e: with_names(e, "gat2", copy.deepcopy(model(seed=9).gat2)),
    "other edges in place": lambda e: e.edge_index.copy_(e.edge_index.flip(0)),
    "a buffer replaced": lambda e: with_names(e, "edge_index", EDGES[:, :3].clone()),
    "another precision": lambda e: e.double(),
    "lower precision and back": through_half_and_back,
    "a parametrization": lambda e: nn.utils.parametrizations.weight_norm(e.gat2.lin, dim=None) and step(e),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_is_seen(hoisted, change):
    with torch.no_grad():
        before = hoisted(2).clone()
        change(hoisted.encoder)
        expected, got = hoisted.encoder(2), hoisted(2)
    assert got.dtype == expected.dtype
    assert torch.equal(expected, got)
    assert before.dtype != got.dtype or not torch.equal(before, got)


def test_without_a_change_the_constant_is_served(hoisted):
    with torch.inference_mode():
        for batch in (1, 32, 1, 8):
            assert hoisted(batch).shape == (batch, 256)
            require_equal(hoisted.encoder(batch), hoisted(batch))
    with torch.no_grad():
        hoisted(4)
    assert hoisted.computed == 1


def test_training_mode_anywhere_computes_with_dropout(hoisted):
    with torch.no_grad():
        constant = hoisted(1).clone()
        hoisted.train()
        assert not torch.equal(hoisted(1), hoisted(1))
        hoisted.eval()
        assert torch.equal(hoisted(1), constant)
        hoisted.encoder.train()
        assert not torch.equal(hoisted(1), hoisted(1))


def test_gradients_are_never_cut_off(hoisted):
    with torch.no_grad():
        hoisted(1)
    hoisted(2).sum().backward()
    assert hoisted.encoder.gat1.att_src.grad is not None
    for parameter in hoisted.parameters():
        parameter.requires_grad_(False)
    assert not hoisted(2).requires_grad
    hoisted.encoder.gat2.bias.requires_grad_(True)
    assert hoisted(2).requires_grad


@pytest.mark.parametrize("spoil", [lambda out: out.zero_(), lambda out: out.numpy().fill(0)], ids=["torch", "numpy"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_constant_that_was_written_to_is_not_served(hoisted, spoil, mode):
    with mode():
        expected = hoisted(1).clone()
        spoil(hoisted(1))
        assert torch.equal(hoisted(1), expected)


def test_a_served_tensor_is_an_object_of_its_own(hoisted):
    with torch.no_grad():
        hoisted(2).unsqueeze_(0)
        assert hoisted(2).shape == (2, 256)


def test_inference_tensors_are_computed_anew():
    with torch.inference_mode():
        hoisted = HoistedSymptomEncoder(FastSymptomEncoder(model()))
        hoisted(1)
        hoisted.encoder.gat2.bias.add_(1)
        require_equal(hoisted.encoder(1), hoisted(1))
        assert hoisted.computed == 0


def test_a_copy_watches_its_own_weights(hoisted):
    with torch.no_grad():
        hoisted(1)
        other = copy.deepcopy(hoisted)
        other.encoder.gat2.bias.add_(1)
        assert torch.equal(other(1), other.encoder(1))
        assert torch.equal(hoisted(1), hoisted.encoder(1))


def test_the_seeds_own_model_can_be_hoisted():
    original = model()
    hoisted = HoistedSymptomEncoder(original)
    with torch.no_grad():
        require_equal(original(4), hoisted(4))


def test_refresh_forgets(hoisted):
    with torch.no_grad():
        hoisted(1)
        hoisted.encoder.gat1.negative_slope = 0.5  # a plain attribute, which nobody watches
        hoisted.refresh()
        assert torch.equal(hoisted(1), hoisted.encoder(1))


def test_a_bad_batch_size_is_the_encoders_error(hoisted):
    with pytest.raises(ValueError, match="batch_size must be an integer of 1 or more"):
        hoisted(0)
