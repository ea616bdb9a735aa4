"""torch.compile with the backend of the lab gives what eager gives, forward and backward, and says what it did."""

import copy

import pytest
import torch
from torch import nn
from torch_geometric.nn import (
    APPNP,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)

from gnnlab.errors import GnnlabError
from gnnlab.rewrite.backend import backend, explain, tracing_self_loops

WIDTH = 11  # sizes that never meet: two that are equal once are compiled for apart


class OwnSum(nn.Module):
    """What a user may write: index_add of gathered rows, weighted by a product of two nodes' numbers."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 1)

    def forward(self, x, edge_index):
        source, target = edge_index
        h, gate = self.inner(x), self.gate(x).sigmoid()
        message = h[source] * gate[target] / (1 + gate[source])
        return torch.zeros(x.size(0), 4, dtype=x.dtype).index_add(0, target, message)


class TwoLayers(nn.Module):
    """Two layers that share a graph, and return what they were given to aggregate with as well."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(WIDTH, 6), SAGEConv(6, 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


MODELS = {
    "GCN": lambda: GCNConv(WIDTH, 4),
    "SAGE": lambda: SAGEConv(WIDTH, 4),
    "GIN": lambda: GINConv(nn.Linear(WIDTH, 4), train_eps=True),
    "GAT": lambda: GATConv(WIDTH, 3, heads=2),
    "GATv2": lambda: GATv2Conv(WIDTH, 3, heads=2),
    "Transformer": lambda: TransformerConv(WIDTH, 3, heads=2),
    "APPNP": lambda: APPNP(2, 0.1),
    "RGCN": lambda: RGCNConv(WIDTH, 4, 2),
    "index_add": OwnSum,
    "two layers": TwoLayers,
    "EdgeConv": lambda: EdgeConv(nn.Linear(2 * WIDTH, 4)),
}


def random_graph(seed):
    """Isolated nodes, repeated edges and self-loops; every fourth graph has no edges."""
    generator = torch.Generator().manual_seed(seed)
    nodes = int(torch.randint(2, 10, (), generator=generator))
    edges = 0 if seed % 4 == 3 else int(torch.randint(13, 25, (), generator=generator))
    x = torch.randn(nodes, WIDTH, dtype=torch.float64, generator=generator)
    edge_index = torch.randint(0, max(1, nodes - 1), (2, edges), generator=generator)
    return x, torch.cat([edge_index, edge_index[:, :2]], dim=1)


def arguments(name, x, edge_index):
    return (x, edge_index, edge_index.sum(0) % 2) if name == "RGCN" else (x, edge_index)


def result_and_gradients(model, *inputs):
    x = inputs[0].clone().requires_grad_()
    out = model(x, *inputs[1:])
    upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    wanted = [x, *model.parameters()]
    grads = torch.autograd.grad(out, wanted, upstream, allow_unused=True)
    return out, [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads, strict=True)]


def agree(reference, model, *inputs):
    expected, expected_grads = result_and_gradients(reference, *inputs)
    got, grads = result_and_gradients(model, *inputs)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    names = ["x", *(name for name, _ in reference.named_parameters())]
    for name, left, right in zip(names, expected_grads, grads, strict=True):
        assert torch.allclose(left, right, rtol=1e-9, atol=1e-12), name
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), expected.detach(), rtol=1e-9, atol=1e-12)


@pytest.fixture(autouse=True)
def forgotten():
    """What was compiled for one model is not met by the next, and no graph runs uncompiled for being one too many."""
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def compiled(name, **options):
    torch.manual_seed(0)
    reference = MODELS[name]().double()
    model = copy.deepcopy(reference)
    return reference, torch.compile(model, backend=backend, dynamic=True, **options)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_all_gradients_are_those_of_eager_on_random_graphs(name):
    reference, model = compiled(name)
    with tracing_self_loops():
        for seed in range(12):
            x, edge_index = random_graph(seed)
            agree(reference, model, *arguments(name, x, edge_index))
            agree(reference, model, *arguments(name, 2 * x, edge_index))
            if edge_index.shape[1] > 1:
                edge_index[:, 0] = edge_index[:, 1].flip(0)
                agree(reference, model, *arguments(name, x, edge_index))


def test_inductor_gets_the_rest_and_gives_the_same_on_a_second_size():
    reference, model = compiled("GATv2", options={"then": "inductor"})
    with tracing_self_loops():
        for seed in (0, 1):
            agree(reference, model, *random_graph(seed))


def test_dropped_edges_are_those_that_eager_draws():
    torch.manual_seed(0)
    reference = GATConv(WIDTH, 3, heads=2, dropout=0.5, add_self_loops=False).double()
    model = torch.compile(copy.deepcopy(reference), backend=backend)
    x, edge_index = random_graph(0)
    torch.manual_seed(3)
    expected = result_and_gradients(reference, x, edge_index)
    torch.manual_seed(3)
    for got, wanted in zip(result_and_gradients(model, x, edge_index), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


class Returns(nn.Module):
    """Gives what is kept to its caller, who may write to it."""

    def forward(self, x, edge_index):
        source, target = edge_index
        degree = torch.zeros(x.size(0), dtype=x.dtype).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        weight = 1 / (1 + degree[source])
        return torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None]), weight, weight[None]


def test_what_a_model_returns_may_be_written_to():
    x, edge_index = random_graph(0)
    model, reference = torch.compile(Returns(), backend=backend), Returns()
    for _ in range(2):
        got = model(x, edge_index)
        torch.testing.assert_close(got, reference(x, edge_index))
        for result in got:
            result.fill_(7)


class Nearest(nn.Module):
    """Edges computed from features: to the nearest other node."""

    def forward(self, x, edge_index):
        nearest = torch.cdist(x, x).fill_diagonal_(torch.inf).argmin(1)
        return torch.zeros_like(x).index_add(0, nearest, x)


def test_reports_say_what_was_replaced_what_stays_and_why():
    x, edge_index = random_graph(0)
    gcn = explain(GCNConv(WIDTH, 4).double(), x, edge_index)
    assert [change.now for change in gcn.replaced] == ["weighted_sum"] * 2 and not gcn.kept  # forward and backward
    assert "torch.ops.gnnlab.weighted_sum" in gcn.graphs[0] and "aten.scatter_add" not in gcn.graphs[0]
    with torch.no_grad():
        edge_conv = explain(EdgeConv(nn.Linear(2 * WIDTH, 4)).double(), x, edge_index)
        nearest = explain(Nearest(), x, edge_index)
    assert "a maximum is no sum" in str(edge_conv) and not edge_conv.replaced
    assert "computed from features" in str(nearest) and not nearest.replaced
    assert str(explain(nn.Linear(WIDTH, 2).double(), x)) == "no sums over edges found"


def test_a_gradient_of_a_gradient_is_refused():
    _, model = compiled("SAGE")
    x, edge_index = random_graph(0)
    x = x.requires_grad_()
    with pytest.raises(RuntimeError, match="create_graph=False"):
        torch.autograd.grad(model(x, edge_index).square().sum(), x, create_graph=True)


def test_edges_of_nodes_that_there_are_not_are_an_error():
    _, model = compiled("index_add")
    x, edge_index = random_graph(0)
    edge_index[0, 0] = -1  # eager counts from the end
    with pytest.raises(GnnlabError, match="-1"):
        result_and_gradients(model, x, edge_index)


@pytest.mark.parametrize("options", [{"then": "tvm"}, {"fast": True}])
def test_an_unknown_option_is_refused(options):
    with pytest.raises(GnnlabError, match="eager, inductor"):
        backend(None, [], options)
