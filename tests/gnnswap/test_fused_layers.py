import sys

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from zoo_cases import DEGREES, EDGE, IN, arguments, assert_same, build, edges_of, network, results

from gnnswap import direct, fused
from gnnswap.layer import DIRECT, NONE
from gnnswap.replace import swap


class OwnReLU(nn.ReLU):
    """Who knows what it does."""


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: pyg.ResGatedGraphConv(IN, 8, act=nn.Tanh()), "another activation"),
        (lambda: pyg.FiLMConv(IN, 8, num_relations=2), "several relations or another activation"),
        (lambda: pyg.FiLMConv(IN, 8, act=OwnReLU()), "several relations or another activation"),
        (lambda: pyg.PNAConv(IN, 8, ["mean"], ["identity"], DEGREES, pre_layers=2), "several layers before"),
        (lambda: pyg.EdgeConv(nn.Sequential(nn.ReLU(), nn.Linear(2 * IN, 8))), "begins with no linear layer"),
        (lambda: pyg.NNConv(IN, 2, nn.Sequential(nn.Linear(EDGE, 2 * IN), nn.Tanh())), "ends with no linear layer"),
        (lambda: pyg.GENConv(IN, IN, aggr="powermean", p=2.0), "aggr="),
        (lambda: pyg.GENConv(IN, IN, aggr=["mean", "max"]), "several aggregations"),
        (lambda: pyg.GINEConv(network(), aggr="median"), "aggr="),
    ],
)
def test_options_that_no_pass_serves_are_said(make, why):
    assert why in direct.why_not(make())


def test_without_numba_these_layers_stay_those_of_pyg(monkeypatch):
    monkeypatch.delitem(sys.modules, "gnnswap.fused_numba", raising=False)
    monkeypatch.delattr("gnnswap.fused_numba", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    report = swap(pyg.ResGatedGraphConv(IN, 8), (torch.randn(13, IN), edges_of("many edges")), measure=False)
    assert not report.replaced and "import of numba" in str(report)


@pytest.mark.parametrize("name", ["GINE", "PNA", "ResGated", "EdgeConv"])
def test_a_compiled_model_keeps_the_pass_whole(name):
    torch._dynamo.reset()
    reference = build(name)
    layer = swap(reference).model
    (x, *_), called = arguments(name, edges_of("many edges"), 13)
    fixed = x, called[1], *(one.detach() for one in called[2:])
    layer(*(one.detach() for one in called))
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same(results(whole, [x], fixed), results(reference, [x], fixed))


def test_a_broken_pass_is_refused(monkeypatch):
    def wrong(*given, **named):
        return [1.001 * one for one in moments(*given, **named)]

    moments = fused.multi_aggregate
    monkeypatch.setattr(fused, "multi_aggregate", wrong)
    layer = swap(build("GINE")).model
    layer(*arguments("GINE", edges_of("many edges"), 13)[1])
    assert layer._fast.mechanism("cpu") == NONE
    assert "differs" in layer._fast.why[DIRECT]
