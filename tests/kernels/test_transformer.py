"""The fast graph transformer is the model on PyG's layers: outputs, gradients, dropout, batches."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from gnnlab.errors import GnnlabError
from gnnlab.kernels.transformer import FastGraphTransformer
from gnnlab.profiling.races import relative_error, require_equal
from gnnlab.workloads.graph_transformer import GraphTransformer

SMALL = {"hidden_dim": 16, "num_layers": 2, "num_heads": 4, "ffn_dim": 24}


def graph(nodes=7, edges=15, seed=0):
    random = torch.Generator().manual_seed(seed)
    index = torch.randint(0, nodes, (2, edges), generator=random)
    return Data(x=torch.randn(nodes, 5, generator=random), edge_index=index)


def model(seed=0, **options):
    torch.manual_seed(seed)
    return GraphTransformer(5, **(SMALL | options)).eval()


def batch(sizes):
    return Batch.from_data_list([graph(n, 2 * n, seed=i) for i, n in enumerate(sizes)])


@pytest.mark.parametrize("mpnn_type", ["gin", "gat", "gcn"])
@pytest.mark.parametrize("readout", ["node", "graph"])
def test_outputs_are_the_originals(mpnn_type, readout):
    original = model(mpnn_type=mpnn_type, readout=readout)
    fast = FastGraphTransformer(original)
    with torch.inference_mode():
        require_equal(original(graph()), fast(graph()))
        require_equal(original(batch((3, 5, 5))), fast(batch((3, 5, 5))))


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_graphs_of_a_batch_do_not_see_each_other(sizes):
    fast = FastGraphTransformer(model())
    with torch.inference_mode():
        together = fast(batch(sizes))
        alone = [fast(g) for g in batch(sizes).to_data_list()]
        require_equal(torch.cat(alone), together)
        require_equal(model()(batch(sizes)), together)


def test_gradients_are_the_originals():
    original = model().double()
    fast = FastGraphTransformer(copy.deepcopy(original))
    data = batch((4, 6, 6))
    data.x = data.x.double()
    original(data).square().sum().backward()
    fast(data).square().sum().backward()
    expected, got = dict(original.named_parameters()), dict(fast.named_parameters())
    assert expected.keys() == got.keys()
    largest = max(p.grad.abs().max() for p in expected.values())
    for name in expected:
        assert (expected[name].grad - got[name].grad).abs().max() < 1e-12 * largest, name


def test_training_draws_the_same_dropout_masks():
    original = model(dropout=0.3).train()
    fast = FastGraphTransformer(original)
    torch.manual_seed(1)
    expected = original(graph())
    torch.manual_seed(1)
    require_equal(expected, fast(graph()))


@pytest.mark.parametrize("pe_type", ["lap", "rwse"])
def test_encodings_are_read_as_by_the_original(pe_type):
    original = model(pe_type=pe_type, pe_dim=3)
    data = original.prepare(graph(9, 30))
    with torch.inference_mode():
        require_equal(original(data), FastGraphTransformer(original)(data))
    with pytest.raises(GnnlabError, match=f"no {pe_type} encoding"):
        FastGraphTransformer(original)(graph())


def test_edges_that_change_in_place_are_prepared_again():
    original, data = model(), graph()
    fast = FastGraphTransformer(original)
    with torch.no_grad():
        before = fast(data)
        data.edge_index[0] = (data.edge_index[0] + 1) % 7
        require_equal(original(data), fast(data))
        assert relative_error(before, fast(data)) > 1e-3


def test_what_was_prepared_in_inference_mode_still_trains():
    fast, data = FastGraphTransformer(model()), graph()
    with torch.inference_mode():
        fast(data)
    fast(data).sum().backward()


def test_graphs_without_edges_or_with_one_node_work():
    original = model()
    fast = FastGraphTransformer(original)
    with torch.inference_mode():
        for data in (graph(4, 0), graph(1, 0), graph(1, 2)):
            require_equal(original(data), fast(data))


def test_weights_are_shared():
    original = model()
    fast = FastGraphTransformer(original)
    assert list(fast.state_dict()) == list(original.state_dict())
    with torch.no_grad():
        original.layers[0].attn.in_proj_weight.mul_(2)
        require_equal(original(graph()), fast(graph()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": torch.ones(3, 5), "edge_index": torch.tensor([[0], [3]])}, "names target 3, allowed are 0..2"),
        ({"x": torch.ones(2, 5), "batch": torch.tensor([1, 0])}, "batch must be sorted"),
    ],
)
def test_data_that_does_not_fit_is_refused(fields, message):
    with pytest.raises(GnnlabError, match=message):
        FastGraphTransformer(model())(Data(**{"edge_index": torch.zeros(2, 1, dtype=torch.long)} | fields))


def test_another_model_is_refused():
    with pytest.raises(GnnlabError, match="a GraphTransformer is needed, got Linear"):
        FastGraphTransformer(torch.nn.Linear(2, 2))
    odd = model()
    odd.layers[1].norm2 = torch.nn.Identity()
    with pytest.raises(GnnlabError, match="layer 1: all three norms"):
        FastGraphTransformer(odd)
