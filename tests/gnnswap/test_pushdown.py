"""Messages of one's own that begin with a linear layer over rows of both ends: it is computed on nodes."""

import copy

import numpy as np
import pytest
import torch
from layer_cases import CLOSE, EDGE, IN, assert_same, results
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing

from gnnswap import swap
from gnnswap.layer import LINEAR, NONE

OUT, NODES, EDGES = 5, 13, 60


class Own(MessagePassing):
    """`say(layer, x_i, x_j, edge_attr)` is its message; a network over `width` columns may be used in it."""

    def __init__(self, width, say, aggr="add"):
        super().__init__(aggr=aggr)
        self.say, self.late, self.log = say, False, None
        self.network = nn.Sequential(nn.Linear(width, OUT), nn.Tanh(), nn.Linear(OUT, IN))

    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_i, x_j, edge_attr):
        return self.say(self, x_i, x_j, edge_attr)

    def update(self, out, x):
        return out + (x[1] if isinstance(x, tuple) else x)


def cat(*rows):
    return torch.cat(rows, dim=-1)


SERVED = {
    "both ends": (2 * IN, lambda one, x_i, x_j, e: one.network(cat(x_i, x_j))),
    "a difference": (2 * IN, lambda one, x_i, x_j, e: one.network(cat(x_i, x_j - x_i))),
    "features of edges": (2 * IN + EDGE, lambda one, x_i, x_j, e: one.network(cat(x_j, e, x_i))),
    "the source alone": (IN, lambda one, x_i, x_j, e: one.network(x_j) * e[:, :1]),
    "the target alone": (IN, lambda one, x_i, x_j, e: one.network(x_i) + x_j.relu()),
    "a sum": (IN, lambda one, x_i, x_j, e: one.network(x_i + x_j)),
    "rows again, behind it": (2 * IN, lambda one, x_i, x_j, e: one.network(cat(x_i, x_j)).sigmoid() * (x_j - 2 * x_i)),
    "rows in other operations": (IN, lambda one, x_i, x_j, e: one.network(x_j) + x_i.relu() / (1 + x_j**2)),
}
NOT_SERVED = {
    "no linear layer": lambda one, x_i, x_j, e: (x_i * x_j).tanh(),
    "a linear layer over a product": lambda one, x_i, x_j, e: one.network(x_i * x_j),
    "rows written to before it": lambda one, x_i, x_j, e: one.network(x_j.mul_(2)),
}


def inputs(dtype=torch.float64, pair=False):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES - 3, (2, EDGES), generator=generator)
    sizes = [(NODES, IN)] * (1 + pair) + [(EDGES, EDGE)]
    made = [torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for size in sizes]
    return made, (tuple(made[:2]) if pair else made[0], edge_index, made[-1])


@pytest.mark.parametrize("pair", [False, True], ids=["one kind of nodes", "two kinds"])
@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
@pytest.mark.parametrize("name", SERVED)
def test_a_linear_layer_over_rows_of_both_ends_is_computed_on_nodes(name, aggr, pair):
    torch.manual_seed(0)
    reference = Own(*SERVED[name], aggr).double()
    layer = swap(reference).model
    for _ in range(2):
        assert_same(results(layer, *inputs(pair=pair)), results(reference, *inputs(pair=pair)))
    if (name, aggr) != ("features of edges", "max"):  # rounding decides which of two equal edges is the largest
        assert layer._fast.mechanism("cpu") == LINEAR, layer._fast.why


@pytest.mark.parametrize("name", NOT_SERVED)
def test_other_messages_stay_as_they_are(name):
    torch.manual_seed(0)
    reference = Own(IN, NOT_SERVED[name]).double()
    layer = swap(reference).model
    with torch.no_grad():
        given = inputs()[1]
        torch.testing.assert_close(layer(*given), reference(*given), **CLOSE)
    assert layer._fast.mechanism("cpu") == NONE


def test_in_float32_it_is_equal_within_rounding():
    torch.manual_seed(0)
    reference = Own(*SERVED["features of edges"], "mean")
    layer = swap(reference).model
    given = inputs(torch.float32)
    assert_same(results(layer, *given), results(reference, *given), rtol=1e-4, atol=1e-5)
    assert layer._fast.mechanism("cpu") == LINEAR


# ---- what a message does with its rows from the second call on -------------------------------------------------------


class Sign(torch.autograd.Function):
    """The sign of rows, whose gradient passes as it is."""

    @staticmethod
    def forward(ctx, rows):
        return rows.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def scaled(rows):
    rows *= 2


def assigned(rows):
    rows[:, 0] = 0


def logged(one, rows):
    with torch.no_grad():
        one.log = float(rows.mean())


LATE = {
    "a write": lambda one, rows: rows.clamp_(-0.1, 0.1),
    "a write to a view": lambda one, rows: rows[:, 1:].zero_(),
    "a write to its data": lambda one, rows: rows.data.mul_(2),
    "a write by numpy": lambda one, rows: np.negative(rows.detach().numpy(), out=rows.detach().numpy()),
    "an assignment": lambda one, rows: assigned(rows),
    "an operator in place": lambda one, rows: scaled(rows),
    "a function in place": lambda one, rows: F.dropout(rows, 0.5, inplace=True),
    "a hook": lambda one, rows: rows.register_hook(lambda gradient: 2 * gradient),
    "statistics without gradients": lambda one, rows: logged(one, rows),
}
LATE_FACTORS = {
    "numbers that equal one": lambda rows: rows == rows[0, 0],
    "rows that differ": lambda rows: rows != rows.detach(),
    "magnitudes": lambda rows: abs(rows),
    "remainders": lambda rows: rows % 0.3,
    "a function of autograd": Sign.apply,
    "rows backwards": lambda rows: torch.stack([*reversed(rows)]),
}


def later(name):
    def say(one, x_i, x_j, e):
        if one.late and name in LATE:
            LATE[name](one, x_j)
        out = one.network(cat(x_i, x_j)) * x_j
        return out * LATE_FACTORS[name](x_j) if one.late and name in LATE_FACTORS else out

    return say


@pytest.mark.parametrize("name", [*LATE, *LATE_FACTORS])
def test_what_a_message_does_with_its_rows_later_on_acts(name):
    torch.manual_seed(0)
    reference = Own(2 * IN, later(name)).double()
    layer = swap(copy.deepcopy(reference)).model
    for one in (reference, layer):
        results(one, *inputs())
        one.late = True
    assert layer._fast.mechanism("cpu") == LINEAR
    for _ in range(2):
        found = []
        for one in (layer, reference):
            torch.manual_seed(1)
            found.append(results(one, *inputs()))
        assert_same(*found)
        assert layer.log == reference.log


@pytest.mark.parametrize("fails", ["statistics without gradients", "a function of autograd"])
def test_a_message_that_turns_out_not_to_be_served_runs_once_a_call_and_counts_once(fails):
    def say(one, x_i, x_j, e):
        one.calls += 1
        out = one.norm(one.network(cat(x_i, x_j)))
        return out if not one.late else later(fails)(one, x_i, x_j, e) + out

    torch.manual_seed(0)
    reference = Own(2 * IN, say).double()
    reference.calls, reference.norm = 0, nn.BatchNorm1d(IN).double()
    layer = swap(copy.deepcopy(reference)).model
    for one in (reference, layer):
        one(*inputs()[1])
        one.late = True
        for _ in range(3):
            one(*inputs()[1])
    assert layer.calls == reference.calls == 4
    for got, expected in zip(layer.norm.buffers(), reference.norm.buffers(), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)
    assert layer._fast.nonlinear[True]
