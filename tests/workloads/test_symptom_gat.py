"""The symptom GAT is the network of the study, and its optimized forms compute the same."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from gnnlab.workloads import graphs, symptom_gat
from gnnlab.workloads.errors import GraphError, ModelError
from gnnlab.workloads.symptom_gat import SEED_OPTIMIZED, SymptomGAT


@pytest.fixture
def baseline() -> SymptomGAT:
    torch.manual_seed(0)
    return SymptomGAT.from_graph(graphs.load("symptoms")).eval()


def like(baseline: SymptomGAT, **options) -> SymptomGAT:
    model = SymptomGAT.from_graph(graphs.load("symptoms"), **options).eval()
    model.load_state_dict(baseline.state_dict(), strict=True)
    return model


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def operator_calls(model: SymptomGAT) -> dict[str, int]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        model(batch_size=32)
    return {event.key: event.count for event in seen.key_averages()}


def test_parameters_are_those_of_the_study(baseline):
    sizes = [sum(p.numel() for p in m.parameters()) for m in (baseline.node_embeddings, baseline.gat1, baseline.gat2)]
    assert sizes == [3_712, 34_304, 131_840]
    assert sum(p.numel() for p in baseline.parameters()) == 169_856


def test_buffers_and_output_have_the_sizes_of_the_study(baseline):
    assert {name: nbytes(buffer) / 1024 for name, buffer in baseline.named_buffers()} == {
        "edge_index": 12.125,
        "edge_weight": 3.03125,
    }
    assert nbytes(baseline(batch_size=32)) / 1024 == 32


@pytest.mark.parametrize("grad", [True, False])
def test_operators_of_a_forward_are_those_of_the_study(baseline, grad):
    with torch.set_grad_enabled(grad):
        calls = operator_calls(baseline)
    assert (calls["aten::mul"], calls["aten::index_select"], calls["aten::mm"]) == (6, 11, 2)


def test_matrix_products_of_a_forward_are_those_of_the_study(baseline):
    with FlopCounterMode(display=False) as counter:
        baseline(batch_size=32)
    assert counter.get_total_flops() == 19_005_440


def test_flaws_of_the_study_are_kept(baseline):
    rows = baseline(batch_size=5)
    assert rows.shape == (5, 256) and torch.equal(rows, rows[:1].expand(5, -1))
    reweighted = copy.deepcopy(baseline)
    reweighted.edge_weight.fill_(0)
    assert torch.equal(reweighted(batch_size=5), rows)
    assert torch.equal(baseline(batch_size=1)[0], rows[0])


@pytest.mark.parametrize("cached_ids", [False, True])
@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_each_eager_form_computes_the_same_on_equal_weights(baseline, cached_ids, expand, batch_size):
    model = like(baseline, cached_ids=cached_ids, expand=expand)
    assert torch.equal(model(batch_size), baseline(batch_size)) and model(batch_size).is_contiguous()
    baseline.load_state_dict(model.state_dict(), strict=True)


def test_each_option_removes_its_own_operator_and_no_other(baseline):
    def counted(model: SymptomGAT) -> dict[str, int]:
        calls = operator_calls(model)
        return {name: calls.get(f"aten::{name}", 0) for name in ("repeat", "contiguous", "mul", "mm")}

    plain = counted(baseline)
    assert counted(like(baseline, cached_ids=True)) == plain
    expanded = counted(like(baseline, expand=True))  # GATConv itself repeats once a layer
    assert expanded == plain | {"repeat": plain["repeat"] - 1, "contiguous": plain["contiguous"] + 1}
    arange = [operator_calls(model)["aten::arange"] for model in (baseline, like(baseline, cached_ids=True))]
    assert arange[1] < arange[0]


def test_cached_ids_follow_the_model_to_another_type_of_device(baseline):
    assert like(baseline, cached_ids=True).to("meta").node_ids.device.type == "meta"


def test_the_optimized_form_of_the_study_compiles_to_the_same(baseline):
    model = like(baseline, **SEED_OPTIMIZED)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = model(batch_size=32).clone()
        if model.compile_error:
            pytest.skip(f"torch.compile does not work here: {model.compile_error}")
        torch.testing.assert_close(first, baseline(batch_size=32), rtol=1e-5, atol=1e-6)
        twin = copy.deepcopy(model)  # a copy runs its own weights, compiled
        for parameter in twin.parameters():
            parameter.mul_(1.5)
        torch.testing.assert_close(twin(batch_size=32), twin._forward_impl(32), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(twin(batch_size=32), first)


def test_where_nothing_compiles_the_model_says_so_once_and_runs(baseline, monkeypatch):
    def fails(model, batch_size):
        raise RuntimeError("no C++ compiler\nlong story")

    monkeypatch.setattr(symptom_gat, "_compiled", lambda: fails)
    model = like(baseline, use_compile=True)
    with pytest.warns(UserWarning, match="runs uncompiled.*no C\\+\\+ compiler"):
        assert torch.equal(model(batch_size=3), baseline(batch_size=3))
    assert model.compile_error == "RuntimeError: no C++ compiler"
    assert torch.equal(model(batch_size=3), baseline(batch_size=3))  # a second warning would be an error


def test_it_is_built_from_conditions_and_from_other_graphs():
    model = SymptomGAT.from_conditions({"cold": ["cough", "fever"], "flu": ["ache", "fever"]}, use_compile=False)
    assert model.node_embeddings.weight.shape == (3, 64) and model(2).shape == (2, 256)
    karate = SymptomGAT.from_graph(graphs.load("karate"))
    assert karate.edge_weight.tolist() == [1] * 156 and karate(2).shape == (2, 256)
    with pytest.raises(GraphError):
        SymptomGAT.from_conditions({"cold": ["cough"]})


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "32", None])
def test_a_batch_size_that_is_none_is_refused(baseline, batch_size):
    with pytest.raises(ModelError, match="batch_size must be an integer of 1 or more"):
        baseline(batch_size)


def test_it_trains_with_dropout_and_every_parameter_gets_a_gradient(baseline):
    baseline.train()
    assert not torch.equal(baseline(1), baseline(1))
    baseline(4).square().mean().backward()
    assert all(parameter.grad is not None for parameter in baseline.parameters())
