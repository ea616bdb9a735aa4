"""Planted flaws are found, sound models raise nothing, and what was inspected keeps every bit."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

from gnnlab.errors import GnnlabError
from gnnlab.profile.findings import inspect, same_bits

X = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(300, (2, 900), generator=torch.Generator().manual_seed(1))
ONES = nn.Parameter(torch.ones(8))


def module(forward, **members):
    """A module whose forward is the given function of (self, ...), with these members."""
    toy = type("Toy", (nn.Module,), {"forward": forward})()
    for name, value in members.items():
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            toy.register_buffer(name, value)
        else:
            setattr(toy, name, value)
    return toy


def only_four(self, x, size):
    if size != 4:
        raise ValueError("size must be 4")
    return x * 2


PLANTED = {  # model, batch, what is found: kind and place
    "attention of PyG": (GATConv(8, 4, heads=2), (X, EDGES), []),
    "a sum over neighbours": (GCNConv(8, 4), (X, EDGES), []),
    "attention of torch": (nn.TransformerEncoderLayer(8, 2, 16), (X,), []),
    "a lazy layer": (nn.LazyLinear(4), (X,), []),
    "inputs without effect make the output a constant": (
        module(lambda self, x, edges: self.bias * 2, bias=nn.Parameter(torch.arange(3.0))),
        (X, EDGES),
        ["constant_output Toy", "unused_argument x", "unused_argument edges"],
    ),
    "an argument without effect is found by name": (
        module(lambda self, x, edge_weight=None, scale=1.0, flag=False: x * 2),
        {"x": X, "edge_weight": torch.ones(900), "flag": True, "scale": 2.0},
        ["unused_argument edge_weight", "unused_argument flag", "unused_argument scale"],
    ),
    "a value that the model refuses has an effect": (module(only_four), (X, 4), []),
    "no gradient, but an effect": (module(lambda self, x: (x > self.threshold).float(), threshold=ONES), (X,), []),
    "a gradient stopped, but an effect": (module(lambda self, x: x * self.scale.detach(), scale=ONES), (X,), []),
    "arguments in lists, mappings and beyond those that are named": (
        module(lambda self, a, *more: a[0]["x"] * 2),
        ([{"x": X, "y": [2.0, None]}], 3, "text"),
        ["unused_argument a[0]['y'][0]", "unused_argument argument 2"],
    ),
    "fields of a graph are arguments, but targets are not": (
        module(lambda self, data: self.conv(data.x, data.edge_index), conv=GCNConv(8, 4)),
        Data(x=X, edge_index=EDGES, edge_weight=torch.rand(900), y=torch.zeros(300), train_mask=torch.ones(300) > 0),
        ["unused_argument data.edge_weight"],
    ),
    "buffers and parameters": (
        module(
            lambda self, x: self.used(x + self.shift) + 0 * self.times_zero,
            used=nn.Linear(8, 8),
            never=nn.Linear(8, 8),
            times_zero=nn.Parameter(torch.ones(8)),
            frozen=nn.Parameter(torch.ones(3), requires_grad=False),
            shift=torch.ones(8),
            table=torch.arange(6),
            counter=torch.tensor(0),
        ),
        (X,),
        [
            "unused_buffer table",
            *(f"unused_parameter {name}" for name in ("times_zero", "frozen", "never.weight", "never.bias")),
        ],
    ),
    "a compiled model in its eager form": (
        torch.compile(module(lambda self, x: x * 2, unused=torch.ones(3)), backend=lambda *_: 1 / 0),
        (X,),
        ["unused_buffer unused"],
    ),
}


@pytest.mark.parametrize("case", PLANTED)
def test_what_has_no_effect_is_found_and_nothing_else(case):
    model, batch, planted = PLANTED[case]
    assert [f"{finding.kind} {finding.where}" for finding in inspect(model, batch)] == planted


def test_a_model_without_a_tensor_input_and_rows_that_are_alike():
    model = module(lambda self, batch_size: self.row.weight.tanh().repeat(batch_size, 1), row=nn.Linear(64, 1))
    found = {finding.kind: finding for finding in inspect(model, {"batch_size": 32})}
    assert found.keys() == {"constant_output", "shape_only", "unused_parameter"}
    assert "no tensor goes in" in found["constant_output"].sentence
    assert found["shape_only"].where == "batch_size" and "all 32 output rows" in found["shape_only"].sentence
    assert "computing one row of 256 B and broadcasting it is enough" in found["shape_only"].sentence
    assert found["unused_parameter"].where == "row.bias"


def test_outputs_that_differ_in_spite_of_the_seed_and_those_that_the_seed_makes_equal():
    assert not [
        one for one in inspect(module(lambda self, x: x + torch.rand(8)), (X,)) if one.kind == "nondeterministic"
    ]
    calls = []
    counted = module(lambda self, x, unused: calls.append(1) or x + len(calls))
    (finding,) = inspect(counted, (X, X))  # and no word on `unused`: nothing can be told
    assert (finding.kind, finding.where) == ("nondeterministic", "Toy")
    assert "10 of 10 forward passes with the same batch and seed differ" in finding.sentence


def test_the_model_keeps_every_bit():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    model[1].eval()
    model.register_buffer("unused", torch.arange(5))
    model[0].weight.grad = torch.ones(8, 8)
    state, x = {name: value.clone() for name, value in model.state_dict().items()}, X.clone()
    flags, random_state = [each.training for each in model.modules()], torch.get_rng_state()
    assert [finding.where for finding in inspect(model, (x,))] == ["unused"]
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items()) and torch.equal(x, X)
    assert [each.training for each in model.modules()] == flags and torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(model[0].weight.grad, torch.ones(8, 8)) and model[3].weight.grad is None
    with pytest.raises(GnnlabError, match="not about function"):
        inspect(lambda x: x, (X,))


def test_bits_are_compared_and_not_values():
    nan, zeros = torch.tensor([float("nan")]), torch.zeros(2)
    assert same_bits([nan], [nan.clone()]) and same_bits([torch.zeros(3, 2).t()], [torch.zeros(2, 3)])
    for other in (-zeros, torch.zeros(2, 1), zeros.int()):
        assert not same_bits([zeros], [other])
