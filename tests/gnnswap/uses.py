"""What the tests of uses share: graphs, layers, pairs of an original and a fast model, and how both are compared."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

from gnnswap import swap

N, E, IN, OUT = 40, 160, 6, 8
TEMPERATURE = 1.0  # a global that a message reads


def graph(seed=0, nodes=N, edges=E, dtype=torch.float64):
    """x (nodes, IN) and edges (2, edges), with repeated edges and loops."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, IN, generator=generator, dtype=dtype)
    return x, torch.randint(nodes, (2, edges), generator=generator)


def pair(model, example=None, dtype=torch.float64):
    """(the original with weights of its own, the fast model)."""
    model = model.to(dtype)
    original = copy.deepcopy(model)
    return original, swap(model, example, measure=False).model


@functools.cache
def _swapped(name):
    made = Two(KINDS[name.removeprefix("two ")]) if name.startswith("two ") else ALL[name]()
    return pair(made, graph())


def copies(name, training=True):
    """Copies of a pair that is swapped once for all tests: a layer of `ALL`, or "two GCN", a model of two layers.

    Both were called once, so that a later change meets a model that is warm.
    """
    original, fast = map(copy.deepcopy, _swapped(name))
    for model in (original, fast):
        model.train(training)(*graph())
    return original, fast


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for one in value for t in tensors(one)] if isinstance(value, (tuple, list)) else []


def gradients(model, out, *inputs):
    """Of the parameters and inputs, None where nothing flows back."""
    ends = [t for t in tensors(out) if t.requires_grad]
    along = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view_as(t) for t in ends]
    wanted = [p for p in model.parameters() if p.requires_grad] + [t for t in inputs if t.requires_grad]
    return torch.autograd.grad(ends, wanted, along, allow_unused=True) if wanted else ()


def assert_same(got, expected, tolerance=1e-9):
    """All tensors of both, None and NaN at the same places; `tolerance` is of the largest value of all tensors."""
    expected, got = list(_flat(expected)), list(_flat(got))
    assert len(got) == len(expected)
    finite = [t[t.isfinite()].abs().max().item() for t in expected if t is not None and t.isfinite().any()]
    largest = max(finite, default=0.0)
    for have, want in zip(got, expected, strict=True):
        assert (have is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def _flat(value):
    if value is None or isinstance(value, torch.Tensor):
        yield value if value is None else value.detach()
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _flat(one)


def assert_same_use(original, fast, use, tolerance=1e-9, may_raise=False):
    """`use(model)` gives the same for both; where the original may refuse it, the fast model refuses what it does."""
    torch.manual_seed(7)
    try:
        expected = use(original)
    except Exception:
        if not may_raise:
            raise
        with pytest.raises(Exception):  # noqa: B017 - which one is the original's affair
            use(fast)
        return
    torch.manual_seed(7)
    assert_same(use(fast), expected, tolerance)


def assert_same_call(original, fast, *arguments, tolerance=1e-9, may_raise=False, **named):
    """Outputs and all gradients of one call."""

    def use(model):
        given = [t.detach().clone().requires_grad_() if _wants(t) else t for t in arguments]
        out = model(*given, **named)
        return out, gradients(model, out, *[t for t in given if isinstance(t, torch.Tensor)])

    assert_same_use(original, fast, use, tolerance, may_raise)


def _wants(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.is_leaf


def trained(model, x, edge_index):
    """Outputs, gradients and weights over two steps, eval in between: a stale weight shows in one of them."""
    found, optimizer = [], torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        out = model.train()(x, edge_index)
        out.square().mean().backward()
        found += [out, [None if p.grad is None else p.grad.clone() for p in model.parameters()]]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            found.append(model.eval()(x, edge_index))
    return found


LAYERS = {
    "GCN": lambda: pyg.GCNConv(IN, OUT),
    "SAGE": lambda: pyg.SAGEConv(IN, OUT),
    "GIN": lambda: pyg.GINConv(nn.Sequential(nn.Linear(IN, OUT), nn.Tanh(), nn.Linear(OUT, OUT))),
    "Graph": lambda: pyg.GraphConv(IN, OUT),
    "GAT": lambda: pyg.GATConv(IN, OUT),
    "GATv2": lambda: pyg.GATv2Conv(IN, OUT),
    "Transformer": lambda: pyg.TransformerConv(IN, OUT),
    "Edge": lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, OUT), nn.Tanh(), nn.Linear(OUT, OUT))),
    "TAG": lambda: pyg.TAGConv(IN, OUT),
    "Cheb": lambda: pyg.ChebConv(IN, OUT, 2),
    "own": lambda: Weighted(),
}
MORE = {
    "SAGE max": lambda: pyg.SAGEConv(IN, OUT, aggr="max"),
    "PNA": lambda: pyg.PNAConv(IN, OUT, ["mean", "max", "std"], ["identity", "amplification"], torch.tensor([1, 2, 3])),
    "ResGated": lambda: pyg.ResGatedGraphConv(IN, OUT),
    "FiLM": lambda: pyg.FiLMConv(IN, OUT),
    "GEN": lambda: pyg.GENConv(IN, OUT, norm="layer"),
    "CG": lambda: pyg.CGConv(IN),
    "SuperGAT": lambda: pyg.SuperGATConv(IN, OUT),
    "APPNP": lambda: pyg.APPNP(2, 0.1),
    "ARMA": lambda: pyg.ARMAConv(IN, OUT),
    "LG": lambda: pyg.LGConv(),
    "attention": lambda: Attention(),
    "both ends": lambda: BothEnds(),
}
ALL = LAYERS | MORE
FEW = ["GCN", "SAGE", "GAT", "Edge"]  # one of each mechanism, also the names of KINDS


class Weighted(MessagePassing):
    """An own layer whose messages are rows of x times a learned number."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin, self.scale = nn.Linear(IN, OUT), nn.Parameter(torch.tensor(0.7))

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j):
        return self.scale * x_j


class Attention(MessagePassing):
    """An own attention layer, with PyG's softmax and a global that is changed between calls."""

    def __init__(self, out=OUT):
        super().__init__(aggr="add")
        self.lin, self.a, self.b = nn.Linear(IN, out), nn.Parameter(torch.randn(out)), nn.Parameter(torch.randn(out))

    def forward(self, x, edge_index):
        h = self.lin(x)
        return self.propagate(edge_index, h=h, s=(h @ self.a).view(-1, 1), t=(h @ self.b).view(-1, 1))

    def message(self, h_j, s_j, t_i, index, ptr, size_i):
        return softmax(torch.tanh(s_j + t_i) / TEMPERATURE, index, ptr, size_i) * h_j


class BothEnds(MessagePassing):
    """An own layer with a linear layer over both ends of an edge."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = nn.Linear(2 * IN, OUT)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.lin(torch.cat([x_i, x_j], -1)).relu()


class Two(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, make=pyg.GCNConv):
        super().__init__()
        self.a, self.b = make(IN, OUT), make(OUT, 4)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)


KINDS = {
    "GCN": pyg.GCNConv,
    "SAGE": pyg.SAGEConv,
    "GAT": pyg.GATConv,
    "GATv2": pyg.GATv2Conv,
    "GIN": lambda i, o: pyg.GINConv(nn.Linear(i, o)),
    "Edge": lambda i, o: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * i, o), nn.ReLU())),
    "TAG": pyg.TAGConv,
    "Transformer": pyg.TransformerConv,
}
