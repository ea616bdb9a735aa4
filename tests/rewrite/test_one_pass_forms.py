import copy
import sys

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

from gnnlab.rewrite import fast_layer
from gnnlab.rewrite.fast_layer import DIRECT, NONE
from gnnlab.rewrite.swap import swap

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
IN, EDGE, NODES, EDGES = 6, 3, 13, 60
DEGREES = torch.tensor([2, 3, 4, 1])
EVERY = ["mean", "min", "max", "std", "sum", "var"]
SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]


def network(width=IN):
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 8))


# name: (layer, width of its edge features)
CASES = {
    "GINE": (lambda: pyg.GINEConv(network(), edge_dim=EDGE, train_eps=True), EDGE),
    "GINE without a linear layer, max": (lambda: pyg.GINEConv(network(), aggr="max"), IN),
    "GEN": (lambda: pyg.GENConv(IN, 8, norm="layer"), 0),
    "GEN with edges": (
        lambda: pyg.GENConv(IN, 8, edge_dim=EDGE, t=0.5, learn_t=True, msg_norm=True, norm="layer"),
        EDGE,
    ),
    "GEN, half a gradient": (lambda: pyg.GENConv(IN, IN, aggr="softmax_sg", t=0.1, edge_dim=IN, norm="layer"), IN),
    "GEN max": (lambda: pyg.GENConv(IN, 8, aggr="max", edge_dim=EDGE, norm="layer"), EDGE),
    "GEN sum": (lambda: pyg.GENConv(IN, 8, aggr="add", edge_dim=EDGE, norm="layer"), EDGE),
    "ResGated": (lambda: pyg.ResGatedGraphConv(IN, 8), 0),
    "ResGated with edges": (lambda: pyg.ResGatedGraphConv(IN, 8, edge_dim=EDGE, root_weight=False), EDGE),
    "CG": (lambda: pyg.CGConv(IN), 0),
    "CG with edges": (lambda: pyg.CGConv(IN, EDGE, batch_norm=True), EDGE),
    "FiLM": (lambda: pyg.FiLMConv(IN, 8), 0),
    "PNA": (lambda: pyg.PNAConv(IN, 8, EVERY[:4], SCALERS[:3], DEGREES), 0),
    "PNA with edges, towers": (lambda: pyg.PNAConv(IN, 8, EVERY, SCALERS, DEGREES, edge_dim=EDGE, towers=2), EDGE),
    "PNA, towers apart": (
        lambda: pyg.PNAConv(IN, 8, EVERY[1:], SCALERS, DEGREES, towers=2, divide_input=True, post_layers=2),
        0,
    ),
    "NNConv": (lambda: pyg.NNConv(IN, 4, nn.Sequential(nn.Linear(EDGE, 5), nn.ReLU(), nn.Linear(5, IN * 4))), EDGE),
    "NNConv mean": (lambda: pyg.NNConv(IN, 4, nn.Linear(EDGE, IN * 4, bias=False), "mean", root_weight=False), EDGE),
    "EdgeConv": (lambda: pyg.EdgeConv(network(2 * IN)), 0),
    "EdgeConv of PyG's MLP": (lambda: pyg.EdgeConv(pyg.MLP([2 * IN, 8, 8], norm=None, plain_last=False)), 0),
    "EdgeConv mean": (lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, 8)), aggr="mean"), 0),
}


def called(width, edges=EDGES, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES - 3, (2, edges), generator=generator)
    sizes = [(NODES, IN), (edges, width)][: 2 if width else 1]
    given = [torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for size in sizes]
    return given, (given[0], edge_index, *given[1:])


def results(layer, inputs, arguments):
    out = layer(*arguments)
    wave = torch.arange(1, out.numel() + 1, dtype=out.dtype).sin().view_as(out)
    wanted = [*inputs, *(p for p in layer.parameters() if p.requires_grad)]
    grads = torch.autograd.grad((out * wave).sum(), wanted, allow_unused=True)
    return [out.detach(), *grads]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_each_form_is_taken_and_gives_what_pyg_gives(name):
    make, width = CASES[name]
    torch.manual_seed(0)
    reference = make().double()
    layer = swap(reference).model
    for edges in (EDGES, 1, 0):
        given = called(width, edges)
        expected = results(reference, *given)
        for _ in range(2):  # what is kept serves the second call
            assert_same(results(layer, *given), expected)
    assert layer._fast.mechanism == DIRECT, layer._fast.why


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: pyg.ResGatedGraphConv(IN, 8, act=nn.Tanh()), "another activation"),
        (lambda: pyg.FiLMConv(IN, 8, num_relations=2), "several relations or another activation"),
        (lambda: pyg.PNAConv(IN, 8, ["mean"], ["identity"], DEGREES, pre_layers=2), "several layers before"),
        (lambda: pyg.EdgeConv(nn.Sequential(nn.ReLU(), nn.Linear(2 * IN, 8))), "begins with no linear layer"),
        (lambda: pyg.NNConv(IN, 2, nn.Sequential(nn.Linear(EDGE, 2 * IN), nn.Tanh())), "ends with no linear layer"),
        (lambda: pyg.GENConv(IN, IN, aggr="powermean", p=2.0), "aggr="),
        (lambda: pyg.GENConv(IN, IN, aggr=["mean", "max"]), "several aggregations"),
        (lambda: pyg.GINEConv(network(), aggr="median"), "aggr="),
    ],
)
def test_options_that_no_pass_serves_are_said(make, why):
    assert why in swap(make()).model._fast.why[DIRECT]


def test_without_numba_these_layers_stay_those_of_pyg(monkeypatch):
    for name in ("gnnlab.kernels.one_pass", "gnnlab.kernels.compiled_passes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(name, raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    reference = pyg.ResGatedGraphConv(IN, 8).double()
    (x, *_), arguments = called(0)
    report = swap(reference, (x.detach(), arguments[1]))
    assert not report.replaced
    assert "needs numba" in str(report)


def test_a_compiled_model_keeps_the_pass_whole():
    torch._dynamo.reset()
    for name in ("GINE", "PNA", "ResGated", "EdgeConv"):
        make, width = CASES[name]
        reference = make()
        layer = swap(reference).model
        inputs, arguments = called(width, dtype=torch.float32)
        layer(*(a.detach() for a in arguments))
        whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
        fixed = [arguments[0], arguments[1], *(a.detach() for a in arguments[2:])]
        expected = results(reference, inputs[:1], fixed)
        for one, other in zip(results_of(whole, layer, inputs[:1], fixed), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def results_of(whole, layer, inputs, arguments):
    out = whole(*arguments)
    wave = torch.arange(1, out.numel() + 1, dtype=out.dtype).sin().view_as(out)
    return [out.detach(), *torch.autograd.grad((out * wave).sum(), [*inputs, *layer.parameters()])]


def test_a_broken_pass_is_refused(monkeypatch):
    from gnnlab.kernels import one_pass

    def wrong(*given, **named):
        return [1.001 * one for one in moments(*given, **named)]

    moments = one_pass.moments
    monkeypatch.setattr(one_pass, "moments", wrong)
    layer = swap(CASES["GINE"][0]().double()).model
    layer(*called(EDGE)[1])
    assert layer._fast.mechanism == NONE
    assert "differs" in layer._fast.why[DIRECT]


def test_a_copy_of_a_fast_layer_is_fast():
    layer = swap(CASES["CG"][0]().double()).model
    copied = copy.deepcopy(layer)
    inputs, arguments = called(0)
    assert_same(results(copied, inputs, arguments), results(layer, inputs, arguments))
    assert fast_layer.original_class(copied) is pyg.CGConv
