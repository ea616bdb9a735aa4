"""The symptom GAT is the network of the study, and rewritten it computes the same: outputs and gradients."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from gnnlab.measure.race import require_equal
from gnnlab.workloads import graphs
from gnnlab.workloads.symptom_gat import RewrittenSymptomGAT, SymptomGAT
from gnnswap import parity


@pytest.fixture
def baseline():
    torch.manual_seed(0)
    return SymptomGAT.from_graph(graphs.load("symptoms")).eval()


def test_parameters_buffers_and_output_have_the_sizes_of_the_study(baseline):
    sizes = [sum(p.numel() for p in m.parameters()) for m in (baseline.node_embeddings, baseline.gat1, baseline.gat2)]
    assert sizes == [3_712, 34_304, 131_840] and sum(p.numel() for p in baseline.parameters()) == 169_856
    kib = {name: buffer.nbytes / 1024 for name, buffer in baseline.named_buffers()}
    assert kib == {"edge_index": 12.125, "edge_weight": 3.03125} and baseline(batch_size=32).nbytes / 1024 == 32


@pytest.mark.parametrize("grad", [True, False])
def test_operators_and_matrix_products_of_a_forward_are_those_of_the_study(baseline, grad):
    with torch.set_grad_enabled(grad), profile(activities=[ProfilerActivity.CPU]) as seen:
        baseline(batch_size=32)
    calls = {event.key: event.count for event in seen.key_averages()}
    assert (calls["aten::mul"], calls["aten::index_select"], calls["aten::mm"]) == (6, 11, 2)
    with torch.set_grad_enabled(grad), FlopCounterMode(display=False) as counter:
        baseline(batch_size=32)
    assert counter.get_total_flops() == 19_005_440


def test_flaws_of_the_study_are_kept(baseline):
    rows = baseline(batch_size=5)
    assert rows.shape == (5, 256) and torch.equal(rows, rows[:1].expand(5, -1))
    reweighted = copy.deepcopy(baseline)
    reweighted.edge_weight.fill_(0)
    assert torch.equal(reweighted(batch_size=5), rows)
    assert torch.equal(baseline(batch_size=1)[0], rows[0])


def test_a_batch_size_below_one_is_refused(baseline):
    with refused("batch_size must be an integer of 1 or more"):
        baseline(0)


@st.composite
def models(draw):
    """Isolated nodes, an edge twice, own loops: whatever a graph may hold; scores on both sides of the leaky ReLU."""
    nodes = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, nodes - 1)] * 2), max_size=40))
    torch.manual_seed(draw(st.integers(0, 99)))
    made = SymptomGAT(nodes, torch.tensor(pairs, dtype=torch.long).view(-1, 2).t()).double().eval()
    for layer in (made.gat1, made.gat2):
        for parameter in (layer.bias, layer.att_src, layer.att_dst):
            torch.nn.init.normal_(parameter)
    return made


@settings(max_examples=8, deadline=None)
@given(models())
def test_rewritten_it_gives_the_same_embedding_and_gradients_on_any_graph(original):
    own, rewritten = copy.deepcopy(original), RewrittenSymptomGAT(original)
    require_equal(own(3), rewritten(3), 1e-9)
    for model in (own, rewritten):
        (model(3) * torch.arange(256).sin()).sum().backward()
    largest = max(parameter.grad.abs().max() for parameter in own.parameters())
    for one, other in zip(own.parameters(), original.parameters(), strict=True):
        assert parity.error(other.grad, one.grad) < 1e-9 or (one.grad - other.grad).abs().max() < 1e-12 * largest
    with torch.no_grad():
        original.gat2.bias.add_(1)  # weights are shared
        require_equal(original(2), rewritten(2), 1e-9)
