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

from gnnlab.rewrite.backend import backend, tracing_self_loops

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
    """What was compiled for one model is not met by the next."""
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
