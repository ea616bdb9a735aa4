"""Rows of ones that know what was done with them: the weights are those of real rows, and all else is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gnnswap.probe import NotLinear, ProbeRow, weight_of

CPU = torch.device("cpu")
E, W, H, C = 7, 5, 2, 3
A, B, FULL, NUMBER = torch.rand(E, 1).double(), torch.rand(W).double(), torch.rand(E, W).double(), torch.tensor(0.3)
LEARNED = nn.Parameter(torch.rand(E, 1).double())

LINEAR = {
    "as they are": lambda x: x,
    "a weight an edge": lambda x: A * x,
    "a weight a column": lambda x: x * B,
    "a weight an entry": lambda x: torch.mul(x, FULL),
    "a number": lambda x: 2 * x * NUMBER.double(),
    "a learned weight": lambda x: LEARNED * x,
    "a row for all": lambda x: x * torch.full((1, 1), 3.0).double(),
    "quotients": lambda x: torch.div(x / A, 3) / B,
    "sums": lambda x: A * x + torch.add(x, x * B, alpha=2),
    "differences": lambda x: x - FULL * x - torch.neg(x),
    "no dropout": lambda x: F.dropout(x, 0.5, training=False),
    "its sizes": lambda x: x * (x.shape[1] + x.size(0) + x.dim() + len(x) + x.ndim + x.numel()),
    "its type": lambda x: x * torch.ones(x.size(), dtype=x.dtype, device=x.device) if x.is_floating_point() else None,
}
HEADS = {
    "as they are": lambda x: x,
    "a weight a head": lambda x: A.view(E, 1, 1) * x * torch.rand(H, 1, generator=torch.manual_seed(1)).double(),
    "joined": lambda x: (x * A.view(E, 1, 1)).view(-1, H * C),
    "joined by sizes": lambda x: (2 * x).reshape(x.size(0), -1),
    "flattened": lambda x: (x / 2).flatten(1),
}


def written(x):
    x[0] = 0
    return x


def hidden(x):
    try:
        return x.relu()
    except Exception:
        return 2 * x


def swallowed(x):
    try:
        return x.relu()
    except BaseException:
        return 2 * x


REFUSED = {
    "relu": lambda x: x.relu(),
    "torch's relu": torch.relu,
    "clamp": lambda x: x.clamp(-10, 10),
    "where": lambda x: torch.where(x.abs() < 50, x, torch.zeros_like(x)),
    "nan_to_num": torch.nan_to_num,
    "masked_fill": lambda x: x.masked_fill(FULL > 0.5, 0),
    "written to": written,
    "multiplied in place": lambda x: x.mul_(2),
    "added in place": lambda x: x.add_(1),
    "a square": lambda x: x * x,
    "a square by pow": lambda x: x**2,
    "divided by": lambda x: A / x,
    "a term of its own": lambda x: x + 1,
    "another tensor": lambda x: FULL - x,
    "a product": lambda x: x @ torch.eye(W).double(),
    "a network": nn.Linear(W, W).double(),
    "a sum": lambda x: x.sum(-1, keepdim=True),
    "a number from it": lambda x: x * x.sum().item(),
    "its truth": lambda x: x if (x > 0).all() else 2 * x,
    "a row": lambda x: x[:1] * x,
    "a column": lambda x: x[:, :1],
    "wider": lambda x: x * torch.ones(3, E, W).double(),
    "another type": lambda x: x.float(),
    "a factor of another type": lambda x: x * torch.tensor([1j] * W),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "its data": lambda x: x * (x.data.abs() < 3),
    "numpy": lambda x: torch.from_numpy(x.numpy()),
    "detached": lambda x: x.detach(),
    "a copy": copy.copy,
    "another view": lambda x: x.view(-1),
    "turned": lambda x: x.t(),
    "concatenated": lambda x: torch.cat([x, x]),
    "in a keyword": lambda x: torch.relu(input=x),
    "nothing of it": lambda x: FULL,
    "something else": lambda x: (x, x),
    "hidden by `except Exception`": hidden,
    "hidden by `except BaseException`": swallowed,
}  # fmt: skip


@pytest.mark.parametrize("what", LINEAR)
def test_the_weight_is_that_of_real_rows(what):
    for factor in ((E, 1), (E, W)):
        probe, rows = ProbeRow.ones((E, W), factor, torch.float64, CPU), torch.randn(E, W).double()
        joined, weight = weight_of(probe, LINEAR[what](probe))
        assert not joined and (weight is None) == (LINEAR[what](rows) is rows)
        torch.testing.assert_close(rows if weight is None else rows * weight, LINEAR[what](rows))


@pytest.mark.parametrize("what", HEADS)
def test_the_weight_is_that_of_real_rows_of_several_heads(what):
    probe, rows = ProbeRow.ones((E, H, C), (E, H, 1), torch.float64, CPU), torch.randn(E, H, C).double()
    out = HEADS[what](probe)
    joined, weight = weight_of(probe, out)
    expected = HEADS[what](rows)
    assert out.shape == expected.shape and joined == (expected.dim() == 2)
    torch.testing.assert_close((rows if weight is None else rows * weight).view(expected.shape), expected)


def test_gradients_flow_to_the_weights():
    probe = ProbeRow.ones((E, W), (E, 1), torch.float64, CPU)
    _, weight = weight_of(probe, LEARNED * probe / 2)
    torch.testing.assert_close(torch.autograd.grad(weight.sum(), LEARNED)[0], torch.full((E, 1), 0.5).double())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_all_else_is_refused_and_says_what_it_was(what):
    probe = ProbeRow.ones((E, W), (E, 1), torch.float64, CPU)
    with pytest.raises(NotLinear) as refusal:
        weight_of(probe, REFUSED[what](probe))
    with pytest.raises(NotLinear):  # at once: the message does not go on
        hidden(probe)
    assert str(refusal.value) and "\n" not in str(refusal.value)


def test_rows_that_are_kept_are_found():
    kept = []
    probe, other = (ProbeRow.ones((E, W), (E, 1), torch.float64, CPU) for _ in range(2))
    kept.append(probe * 3)
    with pytest.raises(NotLinear, match="it keeps its rows"):
        weight_of(probe, A * probe)
    kept.clear()
    assert weight_of(probe, A * probe)[1] is not None
    with pytest.raises(NotLinear, match="does not follow"):
        weight_of(probe, other * 2)
