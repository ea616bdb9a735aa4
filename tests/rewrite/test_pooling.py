"""A mean over nodes before the linear layer gives what it gives after it, and only where that can be seen."""

import pytest
import torch
from own_models import GCN, Pooled
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.rewrite.pooling import mean_first, places

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
    fast = mean_first(model, given)
    assert places(model, given) == ("lin",)
    assert torch.allclose(fast(**given), model(**given), atol=1e-6) and fast(**given)[1].tolist() == [0, 0, 0]
    assert fast.state_dict().keys() == model.state_dict().keys()
    wanted, got = (
        torch.autograd.grad(m(**given).square().sum(), list(m.parameters())) for m in (model, mean_first(model, given))
    )
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(wanted, got, strict=True))


@pytest.mark.parametrize(
    "call", [lambda h: h.mean(0), lambda h: h.mean(dim=0, keepdim=True), lambda h: torch.mean(h, 0)]
)
def test_every_way_to_write_a_mean_over_nodes(call):
    model, x = Mean(call), torch.randn(7, 4)
    assert torch.allclose(mean_first(model, {"x": x})(x), model(x), atol=1e-6)


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
