"""A linear layer leaves out the zeros of an input that comes as it is, and nothing else changes."""

import copy

import pytest
import torch
from own_models import GCN, SAGEConv
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.kernels.sparse_features import SparseLinear, sparse_inputs, sparse_places
from gnnlab.profiling.parity import relative_error


def graph(density):
    draw = torch.Generator().manual_seed(0)
    x = (torch.rand(300, 100, generator=draw) < density).float()
    return {"x": x, "edge_index": torch.randint(300, (2, 900), generator=draw)}


def test_the_first_layer_alone_is_replaced_and_results_and_gradients_stay():
    given, model = graph(0.02), GCN(100, 8, 2, 3)
    assert list(sparse_places(model, given)) == ["convs.0.lin"]
    fast = sparse_inputs(copy.deepcopy(model), given)
    assert type(fast.convs[0].lin) is SparseLinear and fast.state_dict().keys() == model.state_dict().keys()
    for _ in range(3):
        outputs = [m(**given) for m in (model, fast)]
        gradients = [
            torch.autograd.grad(y.square().sum(), list(m.parameters()))
            for y, m in zip(outputs, (model, fast), strict=True)
        ]
        assert relative_error(*outputs) < 1e-5 and relative_error(*gradients) < 1e-5


def test_a_layer_that_is_the_model():
    x = graph(0.02)["x"]
    assert isinstance(sparse_inputs(nn.Linear(100, 3), (x,)), SparseLinear)


@pytest.mark.parametrize(
    ("model", "density", "words"),
    [(GCN(100, 8, 2, 3), 0.6, "60% of the features"), (SAGEConv(100, 3, root_weight=False), 0.02, "as it came in")],
)
def test_elsewhere_it_says_why_not(model, density, words):
    with pytest.raises(GnnlabError, match=words):
        sparse_places(model, graph(density))
