"""The symptom GAT is the network of the study."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from gnnlab.errors import GnnlabError
from gnnlab.workloads import graphs
from gnnlab.workloads.symptom_gat import SymptomGAT


@pytest.fixture
def baseline() -> SymptomGAT:
    torch.manual_seed(0)
    return SymptomGAT.from_graph(graphs.load("symptoms")).eval()


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


def test_it_is_built_from_other_graphs():
    karate = SymptomGAT.from_graph(graphs.load("karate"))
    assert karate.edge_weight.tolist() == [1] * 156 and karate(2).shape == (2, 256)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "32", None])
def test_a_batch_size_that_is_none_is_refused(baseline, batch_size):
    with pytest.raises(GnnlabError, match="batch_size must be an integer of 1 or more"):
        baseline(batch_size)
