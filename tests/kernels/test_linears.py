import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_models import GCN, SAGEConv
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from gnnlab.errors import GnnlabError
from gnnlab.kernels.linears import SparseFeatures, SparseLinear, sparse_inputs, sparse_places
from gnnlab.profiling.races import relative_error


def words(rows=300, columns=200, share=0.03, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, columns, generator=generator).mul(-1).add(share).clamp(min=0)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 6), st.integers(1, 6), st.integers(1, 4), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_product_and_its_gradients_are_those_of_the_dense_form(rows, columns, out, share):
    x = words(rows, columns, share).double()
    weight = torch.randn(out, columns, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(out, dtype=torch.float64, requires_grad=True)
    got, expected = SparseFeatures.prepare(x).product(weight, bias), F.linear(x, weight, bias)
    torch.testing.assert_close(got, expected)
    upstream = torch.randn_like(expected)
    ours = torch.autograd.grad(got, (weight, bias), upstream)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (weight, bias), upstream))


def test_the_product_passes_gradcheck():
    features = SparseFeatures.prepare(words(5, 4, 0.4).double())
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(features.product, (weight,))


def counted(monkeypatch):
    calls = []
    prepare = SparseFeatures.prepare
    monkeypatch.setattr(SparseFeatures, "prepare", lambda x: calls.append(1) or prepare(x))
    return calls


def test_nonzeros_are_found_at_the_second_sight_and_again_after_a_change(monkeypatch):
    calls, linear, x = counted(monkeypatch), torch.nn.Linear(200, 8), words()
    layer = SparseLinear(linear)
    for expected in (0, 1, 1):
        torch.testing.assert_close(layer(x), linear(x))
        assert len(calls) == expected
    x[0] = 0.5
    for expected in (1, 2):
        torch.testing.assert_close(layer(x), linear(x))
        assert len(calls) == expected
    layer(x).square().sum().backward()
    ours, linear.weight.grad = linear.weight.grad, None
    linear(x).square().sum().backward()
    torch.testing.assert_close(ours, linear.weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["dense", "small", "wants a gradient", "made in inference mode", "dense but for some"])
def test_other_inputs_take_the_dense_product(kind, monkeypatch):
    calls, layer = counted(monkeypatch), SparseLinear(torch.nn.Linear(200, 8))
    x = {"dense": torch.rand(300, 200), "small": words(10)}.get(kind, words())
    if kind == "dense but for some":
        x = torch.rand(6400, 200)
        x[::100] = 0
    if kind == "wants a gradient":
        x.requires_grad_()
    with torch.inference_mode(kind == "made in inference mode"):
        x = x.clone() if kind == "made in inference mode" else x
        for _ in range(3):
            torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    assert len(calls) == (kind == "dense but for some")


def test_a_layer_keeps_its_names_and_is_copied_without_what_it_keeps():
    conv, x = GCNConv(200, 8), words()
    names = set(conv.state_dict())
    expected = conv(x, torch.zeros(2, 0, dtype=torch.int64))
    conv.lin = SparseLinear(conv.lin)
    for _ in range(3):
        torch.testing.assert_close(conv(x, torch.zeros(2, 0, dtype=torch.int64)), expected)
    assert set(conv.state_dict()) == names
    for other in (copy.deepcopy(conv.lin), pickle.loads(pickle.dumps(conv.lin))):
        assert len(other._inputs) == 0 and other.weight is not conv.lin.weight
        torch.testing.assert_close(other(x), conv.lin(x))


def test_what_is_no_matrix_is_refused_in_one_line():
    features = SparseFeatures.prepare(words(5, 4))
    calls = [
        (lambda: SparseFeatures.prepare([1]), "not list"),
        (lambda: SparseFeatures.prepare(torch.zeros(3)), r"\(rows, columns\), not \(3,\)"),
        (lambda: SparseFeatures.prepare(torch.zeros(3, 3, requires_grad=True)), "wants a gradient"),
        (lambda: features.product(torch.zeros(2, 5)), r"weight must be \(outputs, 4\)"),
        (lambda: features.product(torch.zeros(2, 4).double()), "torch.float64"),
    ]
    for call, message in calls:
        with pytest.raises(GnnlabError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


# --- A linear layer leaves out the zeros of an input that comes as it is, and nothing else changes ---


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
    [(GCN(100, 8, 2, 3), 0.6, "60 % of the features"), (SAGEConv(100, 3, root_weight=False), 0.02, "as it came in")],
)
def test_elsewhere_it_says_why_not(model, density, words):
    with pytest.raises(GnnlabError, match=words):
        sparse_places(model, graph(density))
