"""Each form by itself, on a plain layer of PyG: what `prepare` and `run` make of it, in eager mode and in a trace."""

import ast
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import aggr
from zoo_cases import CASES, CLOSE, DEGREES, EDGE, GRAPHS, IN, OUT, arguments, assert_same, edges_of, network, results

from gnnswap import attention, compile_ops, direct
from gnnswap.direct import FORMS
from gnnswap.errors import SwapError
from gnnswap.fused import softmax_aggregate
from gnnswap.neighbours import Neighbours
from gnnswap.sparse import ANY_SIZE, SparseInputs

MORE = {
    "SAGE of maxima": (lambda: pyg.SAGEConv(IN, 3, aggr="max"), ""),
    "SAGE without root": (lambda: pyg.SAGEConv(IN, 3, root_weight=False, bias=False), ""),
    "SAGE to one": (lambda: pyg.SAGEConv(IN, 1), ""),
    "Graph to fewer": (lambda: pyg.GraphConv(IN, 3), "weight"),
    "GCN to fewer, without loops": (lambda: pyg.GCNConv(IN, 3, add_self_loops=False), "weight"),
    "GIN whose network begins with a norm": (lambda: pyg.GINConv(nn.Sequential(nn.LayerNorm(IN), nn.Tanh())), ""),
    "GAT of wide heads": (lambda: pyg.GATConv(IN, 9, heads=2, negative_slope=0.7, concat=False, bias=False), ""),
    "GAT of one head with edges": (lambda: pyg.GATConv(IN, 9, edge_dim=EDGE), "attr"),
    "GATv2 with mean loops": (lambda: pyg.GATv2Conv(IN, 4, heads=3, edge_dim=EDGE, negative_slope=0.5), "attr"),
    "Transformer without bias": (lambda: pyg.TransformerConv(IN, 4, heads=4, beta=True, bias=False), ""),
    "FiLM sum": (lambda: pyg.FiLMConv(IN, 4, aggr="sum"), ""),
    "GEN softmax": (lambda: pyg.GENConv(IN, IN, t=0.3, norm="layer"), ""),
    "GEN mean": (lambda: pyg.GENConv(IN, OUT, aggr="mean", edge_dim=EDGE, norm="layer"), "attr"),
    "GEN without edges, learned": (lambda: pyg.GENConv(IN, OUT, learn_t=True, msg_norm=True, norm="layer"), ""),
    "GINE mean": (lambda: pyg.GINEConv(network(), aggr="mean"), "wide"),
    "EdgeConv sum": (lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, 8), nn.Tanh()), aggr="sum"), ""),
}
ALL = CASES | MORE


def made(make):
    """A layer in float64, with the caches that a fast layer has."""
    torch.manual_seed(7)
    layer = make().double().eval()
    layer._fast = SimpleNamespace(caches=SimpleNamespace(inputs=SparseInputs(ANY_SIZE)))
    return layer


def form_on(layer, traced=False):
    """The layer's form, as a function of what the layer is called with."""
    form = FORMS[type(layer)]

    def call(x, edge_index, values=None):
        options = form.options(layer)
        if traced:
            prepared = compile_ops.Traced(form, options, edge_index, values)
        else:
            prepared = form.prepare(options, Neighbours.prepare(edge_index, x.shape[0]), values, x.dtype)
        return layer(x, edge_index, values) if prepared is None else form.run(layer, x, prepared)

    call.parameters = layer.parameters
    return call


def call_of(name, graph, monkeypatch, values_want_gradients):
    """(inputs that want gradients, what the layer is called with)"""
    monkeypatch.setitem(CASES, name, ALL[name])
    inputs, called = arguments(name, edges_of(graph), GRAPHS[graph][0])
    if values_want_gradients and ALL[name][1] != "weight":
        return inputs, called
    return inputs[:1], (*called[:2], *(one.detach() for one in called[2:]))


def served(name):
    make, kind = ALL[name]
    return kind not in ("bipartite", "x_0", "signed") and type(make()) in FORMS and not direct.why_not(make())


SERVED = [name for name in ALL if served(name)]


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("name", SERVED)
def test_a_form_gives_what_the_layer_gives(name, traced, monkeypatch):
    layer = made(ALL[name][0])
    for graph in ("many edges", "few edges", "a self-loop"):
        inputs, called = call_of(name, graph, monkeypatch, values_want_gradients=not traced)
        expected = results(layer, inputs, called)
        for _ in range(2):  # x is known to be sparse the second time
            assert_same(results(form_on(layer, traced), inputs, called), expected)
        fixed = tuple(one.detach() for one in called)
        for _ in range(3):
            with torch.no_grad():
                torch.testing.assert_close(form_on(layer, traced)(*fixed), expected[0], **CLOSE)


@pytest.mark.parametrize("kind", FORMS)
def test_each_form_is_tried_above(kind):
    assert any(type(ALL[name][0]()) is kind for name in SERVED)


@pytest.mark.parametrize("name", SERVED)
def test_options_are_a_text_and_back(name):
    layer = made(ALL[name][0])
    options = FORMS[type(layer)].options(layer)
    assert ast.literal_eval(repr(options)) == options
    assert hash(options) is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.GATConv(IN, 4, heads=2, dropout=0.5, residual=True),
        lambda: pyg.GATv2Conv(IN, 4, heads=2, dropout=0.5),
        lambda: pyg.TransformerConv(IN, 4, heads=2, dropout=0.5, edge_dim=EDGE),
        lambda: pyg.TransformerConv(IN, 4, heads=2, dropout=0.5),
    ],
)
def test_equal_seeds_drop_the_same_edges(make):
    layer, x = made(make).train(), torch.randn(9, IN, dtype=torch.double)
    edge_index = torch.randint(9, (2, 40))
    values = torch.randn(40, EDGE, dtype=torch.double) if layer.edge_dim else None
    torch.manual_seed(3)
    expected = layer(x, edge_index, values), torch.rand(1)
    torch.manual_seed(3)
    torch.testing.assert_close((form_on(layer)(x, edge_index, values), torch.rand(1)), expected, **CLOSE)
    assert not torch.equal(form_on(layer)(x, edge_index, values), expected[0])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: pyg.GATConv(IN, 4, edge_dim=EDGE, fill_value="max"), "fill_value='max'"),
        (lambda: pyg.GATConv(IN, 4, edge_dim=EDGE, fill_value=torch.tensor(0.0)), "fill_value=tensor(0.)"),
        (lambda: pyg.GATv2Conv(IN, 4, aggr="max"), "aggr='max'"),
        (lambda: pyg.GCNConv(IN, 4, flow="target_to_source"), "its flow"),
        (lambda: pyg.GCNConv(IN, 4, cached=True), "PyG's own cache"),
        (lambda: pyg.GCNConv(-1, 4), "no shape"),
        (lambda: pyg.SAGEConv(IN, 4, project=True), "a projection"),
        (lambda: with_part(pyg.GCNConv(IN, 4), "aggr_module", aggr.MaxAggregation()), "aggr='add'"),
        (lambda: with_part(pyg.GCNConv(IN, 4), "aggr_module", OwnSum()), "aggr='add'"),
        (lambda: with_part(pyg.GCNConv(IN, 4), "lin", nn.Sequential(nn.Linear(IN, 4))), ""),
        (lambda: with_part(pyg.GCNConv(IN, 4), "lin", nn.utils.parametrizations.weight_norm(nn.Linear(IN, 4))),
         "a ParametrizedLinear inside"),
        (lambda: with_part(pyg.GCNConv(IN, 4), "lin", hooked(nn.Linear(IN, 4))), "hooks of its Linear"),
        (lambda: pyg.GINConv(nn.Sequential(hooked(nn.Linear(IN, 4)))), "hooks of its Linear"),
        (lambda: pyg.GINConv(hooked(nn.Sequential(nn.Linear(IN, 4)))), "hooks of its Sequential"),
        (lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, 4), hooked(nn.ReLU()))), "hooks of its ReLU"),
        (lambda: pyg.PNAConv(IN, 8, ["mean"], ["identity"], DEGREES, pre_layers=2), "several layers before"),
    ],
)  # fmt: skip
def test_what_a_form_cannot_do_is_said(make, why):
    assert why in direct.why_not(make())


def with_part(layer, name, module):
    setattr(layer, name, module)
    return layer


def hooked(module):
    module.register_forward_hook(lambda *_: None)
    return module


class OwnSum(aggr.SumAggregation):
    """Who knows what it does."""


@pytest.mark.parametrize("name", SERVED)
def test_every_module_inside_is_called_or_said_to_be_opened(name, monkeypatch):
    layer = made(ALL[name][0])
    called_modules = []
    opened = FORMS[type(layer)].opened(layer)
    inside = [one for one in layer.modules() if one is not layer]
    for module in inside:
        module.register_forward_hook(lambda one, *_: called_modules.append(one))
    form_on(layer)(*call_of(name, "many edges", monkeypatch, values_want_gradients=False)[1])
    expected = [one for one in inside if type(one) not in (nn.ModuleList, pyg.MLP, nn.Sequential, nn.Identity)]
    for module in expected:
        of_opened = any(one is module for one in opened)
        assert of_opened or any(one is module for one in called_modules), module


def test_relations_that_there_are_not_are_left_out_or_refused_as_pyg_does():
    x, edge_index, types = torch.randn(13, IN).double(), edges_of("many edges"), torch.arange(60) % 5 - 1
    layer = made(lambda: pyg.RGCNConv(IN, OUT, 3, num_blocks=2))
    for traced in (False, True):
        assert_same(
            results(form_on(layer, traced), [], (x, edge_index, types)), results(layer, [], (x, edge_index, types))
        )
    layer = made(lambda: pyg.RGCNConv(IN, OUT, 3))
    for call in (layer, form_on(layer), form_on(layer, traced=True)):
        with pytest.raises((RuntimeError, SwapError)):
            call(x, edge_index, types)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "name", ["GCN plain", "GAT", "GATv2", "Transformer", "SAGE mean", "GIN", "LE", "PNA", "EdgeConv"]
)
def test_nan_and_infinity_stay_where_they_are_in_small_graphs_and_large(name, value, monkeypatch):
    layer = made(ALL[name][0])
    _, (x, edge_index, *more) = call_of(name, "many edges", monkeypatch, values_want_gradients=False)
    for node in (0, 12):  # the last has no edges
        bad = x.detach().clone()
        bad[node, 1] = value
        with torch.no_grad():
            torch.testing.assert_close(
                form_on(layer)(bad, edge_index, *more), layer(bad, edge_index, *more), **CLOSE, equal_nan=True
            )


SMALL_ATTENTION = {
    "GAT": lambda: pyg.GATConv(IN, 4, heads=4),
    "GAT of one head": lambda: pyg.GATConv(IN, 4, add_self_loops=False),
    "GAT of wide heads": lambda: pyg.GATConv(IN, IN + 3, heads=2),
    "GATv2": lambda: pyg.GATv2Conv(IN, 4, heads=2, add_self_loops=False),
    "GATv2, weights shared": lambda: pyg.GATv2Conv(IN, 4, heads=2, share_weights=True),
    "Transformer": lambda: pyg.TransformerConv(IN, 4, heads=4),
    "Transformer of one head": lambda: pyg.TransformerConv(IN, 4),
}
small_attention = pytest.mark.parametrize("name", SMALL_ATTENTION)


def small_call(name, monkeypatch):
    """(layer, its form, x, edges): nodes from 25 on have none; edges come twice. The form must go over all pairs."""
    layer, went = made(SMALL_ATTENTION[name]), []
    torch.manual_seed(5)
    x, edge_index = torch.randn(30, IN, dtype=torch.double), torch.randint(25, (2, 160))
    edge_index[:, 100:110] = edge_index[:, :10]
    over_pairs = attention._Dense.attended.__func__
    counted = lambda *given: went.append(1) or over_pairs(*given)  # noqa: E731
    monkeypatch.setattr(attention._Dense, "attended", classmethod(counted))
    form_on(layer)(x, edge_index)
    assert went
    return layer, form_on(layer), x, edge_index


@small_attention
def test_attention_of_a_small_graph_over_all_pairs_is_that_of_the_layer(name, monkeypatch):
    layer, form, x, edge_index = small_call(name, monkeypatch)
    with torch.no_grad():
        torch.testing.assert_close(form(x, edge_index), layer(x, edge_index), **CLOSE)
    x.requires_grad_()
    wanted = [x, *layer.parameters()]

    def derivatives(call):
        out = call(x, edge_index)
        first = torch.autograd.grad((out.sin() * out).sum(), wanted, create_graph=True, allow_unused=True)
        again = sum(one.square().sum() for one in first if one is not None)
        return out, *first, *torch.autograd.grad(again, wanted, allow_unused=True)

    for ours, theirs in zip(derivatives(form), derivatives(layer), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, **CLOSE)


@small_attention
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_in_training_on_a_small_graph_nan_and_infinity_reach_the_nodes_that_they_reach_in_pyg(name, value, monkeypatch):
    layer, form, x, edge_index = small_call(name, monkeypatch)
    upstream = torch.ones_like(layer(x, edge_index))
    for in_x, node in ((True, 0), (True, 29), (False, 0), (False, 29)):
        given, grad = x.clone(), upstream.clone()
        (given if in_x else grad)[node, 1] = value
        given.requires_grad_()
        results = []
        for call in (form, layer):
            out = call(given, edge_index)
            results.append((out, *torch.autograd.grad(out, [given, *layer.parameters()], grad)))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours.isfinite(), theirs.isfinite())
            torch.testing.assert_close(ours.where(theirs.isfinite(), 0), theirs.where(theirs.isfinite(), 0), **CLOSE)


@pytest.mark.parametrize("nodes", [13, 300], ids=["over all pairs", "over edges"])
def test_a_head_of_gat_that_is_not_finite_leaves_the_others_as_they_are(nodes):
    layer, x, edge_index = (
        made(lambda: pyg.GATConv(IN, 4, heads=3)),
        torch.randn(nodes, IN).double(),
        torch.randint(13, (2, 60)),
    )
    with torch.no_grad():
        layer.lin.weight[4:8] = torch.nan
        expected = layer(x, edge_index)
        torch.testing.assert_close(form_on(layer)(x, edge_index), expected, **CLOSE, equal_nan=True)
    assert expected[:, :4].isfinite().all()


def test_attention_with_features_of_edges_or_dropout_goes_over_edges(monkeypatch):
    monkeypatch.setattr(attention._Dense, "attended", None)
    x, edge_index = torch.randn(13, IN).double(), torch.randint(13, (2, 60))
    for make in (lambda: pyg.GATConv(IN, 4, dropout=0.5), lambda: pyg.TransformerConv(IN, 4, dropout=0.5)):
        form_on(made(make).train())(x, edge_index)
    form_on(made(lambda: pyg.TransformerConv(IN, 4, edge_dim=EDGE)))(x, edge_index, torch.randn(60, EDGE).double())


def test_the_gradient_of_a_node_without_edges_is_not_in_that_of_the_temperature():
    graph = Neighbours.prepare(torch.tensor([[0, 1, 2, 0], [1, 1, 0, 0]]), 3)
    y, t = torch.randn(3, 2).double(), torch.ones(1).double().requires_grad_()
    upstream = torch.tensor([[1.0, 2.0], [3.0, 4.0], [torch.nan, torch.inf]]).double()
    of_all = torch.autograd.grad(softmax_aggregate(y, graph, t), t, upstream)
    of_those_with_edges = torch.autograd.grad(softmax_aggregate(y, graph, t), t, upstream.nan_to_num(0, 0))
    torch.testing.assert_close(of_all, of_those_with_edges)
