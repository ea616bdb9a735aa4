"""Layers as dense products give what PyG's give, forward and backward, on small graphs; elsewhere PyG's own run."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.rewrite import dense

LAYERS = {
    "GCN": lambda: pyg.GCNConv(5, 3),
    "GCN, no norm": lambda: pyg.GCNConv(5, 3, normalize=False, bias=False),
    "GCN, improved": lambda: pyg.GCNConv(5, 3, improved=True),
    "GCN, no loops": lambda: pyg.GCNConv(5, 3, add_self_loops=False),
    "SAGE": lambda: pyg.SAGEConv(5, 3),
    "SAGE, sum": lambda: pyg.SAGEConv(5, 3, aggr="sum", root_weight=False, normalize=True),
    "GIN": lambda: pyg.GINConv(nn.Linear(5, 3), eps=0.3, train_eps=True),
    "GraphConv": lambda: pyg.GraphConv(5, 3),
    "GraphConv, mean": lambda: pyg.GraphConv(5, 3, aggr="mean"),
}


def graph(nodes=17, edges=60, seed=0):
    """Isolated nodes, repeated edges, self-loops."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(max(1, nodes - 2), (2, edges), generator=draw)
    found[:, :5] = found[:, 5:10]
    found[0, 10:13] = found[1, 10:13]
    return torch.randn(nodes, 5, generator=draw).double(), found


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_outputs_and_gradients_are_those_of_pyg_on_each_graph(make):
    plain = make().double()
    fast = dense.dense_layers(copy.deepcopy(plain), None)
    for nodes, edges, seed in ((17, 60, 0), (17, 60, 1), (1, 13, 2), (40, 200, 3)):
        x, found = graph(nodes, edges, seed)
        want, got = plain(x, found), fast(x, found)
        assert torch.allclose(got, want, atol=1e-12)
        wanted, given = (
            torch.autograd.grad(out.square().sum(), m.parameters()) for out, m in ((want, plain), (got, fast))
        )
        assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(wanted, given, strict=True))


def test_a_small_graph_takes_no_step_through_messages_and_a_large_one_does(monkeypatch):
    steps = []
    plain = pyg.GCNConv(5, 3)
    fast = dense.dense_layers(copy.deepcopy(plain), None)
    monkeypatch.setattr(fast, "propagate", lambda *a, **k: (steps.append(1), pyg.GCNConv.propagate(fast, *a, **k))[1])
    small, large = graph(), graph(dense.MOST_NODES + 1, 900)
    assert torch.allclose(fast(small[0].float(), small[1]), plain(small[0].float(), small[1]), atol=1e-6) and not steps
    assert torch.allclose(fast(large[0].float(), large[1]), plain(large[0].float(), large[1]), atol=1e-6) and steps
    assert fast.state_dict().keys() == plain.state_dict().keys()


def test_edge_weights_and_two_kinds_of_nodes_run_the_code_of_pyg():
    (x, edges), weight = graph(), torch.rand(60).double()
    for plain in (pyg.GCNConv(5, 3).double(), pyg.GraphConv(5, 3).double()):
        fast = dense.dense_layers(copy.deepcopy(plain), None)
        assert torch.allclose(fast(x, edges, weight), plain(x, edges, weight))
        assert torch.allclose(fast(x, edge_index=edges, edge_weight=weight), plain(x, edges, weight))
    plain = pyg.SAGEConv((5, 5), 3).double()
    both = dense.dense_layers(copy.deepcopy(plain), None)
    assert torch.allclose(both((x, x[:9]), edges % 9), plain((x, x[:9]), edges % 9))


@pytest.mark.parametrize(
    ("model", "nodes", "words"),
    [
        (pyg.GCNConv(5, 3), 300, "300 nodes: dense products pay up to 256"),
        (pyg.GATConv(5, 3), 30, "it has no GCNConv"),
        (pyg.SAGEConv(5, 3, aggr="max"), 30, "it has no GCNConv"),
        (pyg.GCNConv(5, 3, cached=True), 30, "it has no GCNConv"),
        (pyg.GCNConv(5, 3, flow="target_to_source"), 30, "it has no GCNConv"),
    ],
)
def test_what_has_no_dense_form_says_why(model, nodes, words):
    with pytest.raises(GnnlabError, match=words):
        dense.places(model, nodes)
