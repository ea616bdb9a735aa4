"""An edited forward gives what the user's gives, with less to do, and only where that can be seen."""

import copy

import pytest
import torch
from own_models import GCN, Pooled
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.rewrite.forward_edits import mean_first, places, without_copies, without_unused

EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 3, 3]])
BATCH = torch.tensor([0, 0, 0, 2, 2])  # graph 1 has no nodes


def inputs():
    return {"x": torch.randn(5, 4), "edge_index": EDGES, "batch": BATCH}


class Mean(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.lin, self.call = nn.Linear(4, 3), call

    def forward(self, x):
        return self.call(self.lin(x))


def test_a_graph_without_nodes_pools_to_zeros_before_and_after():
    model, given = Pooled(4), inputs()
    fast = mean_first(copy.deepcopy(model), given)
    assert places(mean_first, model, given) == ("lin",)
    assert torch.allclose(fast(**given), model(**given), atol=1e-6) and fast(**given)[1].tolist() == [0, 0, 0]
    assert fast.state_dict().keys() == model.state_dict().keys()
    wanted, got = (torch.autograd.grad(m(**given).square().sum(), list(m.parameters())) for m in (model, fast))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(wanted, got, strict=True))


@pytest.mark.parametrize(
    "call", [lambda h: h.mean(0), lambda h: h.mean(dim=0, keepdim=True), lambda h: torch.mean(h, 0)]
)
def test_every_way_to_write_a_mean_over_nodes(call):
    model, x = Mean(call), torch.randn(7, 4)
    fast = mean_first(copy.deepcopy(model), {"x": x})
    assert torch.allclose(fast(x), model(x), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda h: h.mean(1), "no linear layer"),
        (lambda h: h.mean(0) + h.sum(0), "no linear layer"),
        (lambda h: h.relu().mean(0), "no linear layer"),
        (lambda h: nn.functional.dropout(h).mean(0), "asks whether it trains"),
        (lambda h: h.mean(0) if h.sum() > 0 else h.sum(0), "cannot be followed"),
    ],
)
def test_elsewhere_it_says_why_not(call, words):
    with pytest.raises(GnnlabError, match=words):
        mean_first(Mean(call), {"x": torch.randn(7, 4)})


def test_a_forward_that_may_take_more_is_not_followed():
    with pytest.raises(GnnlabError, match="may take edge_weight"):
        mean_first(GCN(4, 8, 2, 3), {"x": torch.randn(5, 4), "edge_index": EDGES})


class Wasteful(nn.Module):
    """A layer that nothing uses, copies, and what a test puts at its end."""

    def __init__(self, end=lambda model, h: h):
        super().__init__()
        self.lin, self.left, self.norm = nn.Linear(4, 4), nn.Linear(4, 50), nn.BatchNorm1d(4)
        self.end = end

    def forward(self, x):
        h = self.lin(x.t().contiguous().t().clone())
        self.left(h).relu()
        return self.end(self, h.clone() + x)


def computed(model, x):
    """How often each layer of a model is called."""
    calls = []
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(x)
    return calls


def test_what_nothing_uses_is_not_computed_and_its_parameters_stay():
    model, x = Wasteful(), torch.randn(6, 4)
    fast = without_unused(copy.deepcopy(model), {"x": x})
    assert places(without_unused, model, {"x": x}) == ("left", "relu")
    assert torch.equal(fast(x), model(x)) and computed(fast, x) == ["lin"] and computed(model, x) == ["lin", "left"]
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in model.named_parameters()]
    with pytest.raises(GnnlabError, match="everything that its forward computes is used"):
        places(without_unused, Mean(lambda h: h.mean(0)), {"x": x})


def test_copies_before_what_only_reads_are_left_out():
    model, x = Wasteful(), torch.randn(6, 4)
    fast = without_copies(copy.deepcopy(model), {"x": x})
    assert places(without_copies, model, {"x": x}) == ("clone of t_1", "clone of lin")
    assert torch.equal(fast(x), model(x)) and len(places(without_copies, model, {"x": x})) == 2
    with pytest.raises(GnnlabError, match="1 may be returned or viewed"):  # `contiguous` before `t`
        places(without_copies, fast, {"x": x})


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda model, h: h.add_(1), "writes in place, in add_"),
        (lambda model, h: nn.functional.relu(h, inplace=True), "writes in place, in relu"),
        (lambda model, h: (model.norm(h), h)[1], "writes in place, in norm"),  # it counts what it has seen
    ],
)
@pytest.mark.parametrize("edit", [without_unused, without_copies])
def test_a_forward_that_writes_in_place_is_left_as_it_is(edit, end, words):
    with pytest.raises(GnnlabError, match=words):
        edit(Wasteful(end), {"x": torch.randn(6, 4)})
