import pytest
import torch
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnswap import sums
from gnnswap.neighbours import Neighbours
from gnnswap.sums import NeighbourSum

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def case(nodes, edges, seed=0):
    """Edges of `nodes` targets, the last three without any; x and weights in float64."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(nodes - 3, (2, edges), generator=generator)
    x = torch.randn(nodes, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    return edge_index, x, torch.rand(edges, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("nodes", "edges"), [(12, 40), (90, 300), (40, 60)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_sum_and_its_gradient_are_those_of_index_add(nodes, edges, weighted):
    edge_index, x, weight = case(nodes, edges)
    graph = Neighbours.prepare(edge_index, nodes)
    total = NeighbourSum(graph, weight.index_select(0, graph.order) if weighted else None)
    rows = x[edge_index[0]] * weight[:, None] if weighted else x[edge_index[0]]
    expected = torch.zeros_like(x).index_add(0, edge_index[1], rows)
    gradient = torch.autograd.grad(expected.sin().sum(), x)[0]
    for _ in range(2):  # the transposed weights are cached behind the first
        out = total(x)
        torch.testing.assert_close(out, expected, **CLOSE)
        torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), x)[0], gradient, **CLOSE)
    with torch.inference_mode():
        torch.testing.assert_close(total(x.detach()), expected, **CLOSE)
    torch.testing.assert_close(total.transposed(expected.cos().detach()), gradient, **CLOSE)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_stay_with_the_nodes_that_get_them(value):
    edge_index, x, weight = case(12, 20)
    graph = Neighbours.prepare(edge_index, 12)
    total, changed = NeighbourSum(graph, weight.index_select(0, graph.order)), x.detach().clone()
    changed[edge_index[0, 0]] = value
    reached = edge_index[1, edge_index[0] == edge_index[0, 0]].unique()
    out, others = total(changed), torch.ones(12, dtype=torch.bool).index_fill(0, reached, False)
    assert not out[reached].isfinite().any() and torch.equal(out[others], total(x)[others])
    sent = torch.ones(12, 5, dtype=torch.float64)
    sent[edge_index[1, 0]] = value
    (grad,) = torch.autograd.grad(total(x), x, sent)
    senders = edge_index[0, edge_index[1] == edge_index[1, 0]].unique()
    assert torch.equal((~grad.isfinite()).all(1).nonzero().view(-1), senders)
    assert torch.equal((~grad.isfinite()).any(1).nonzero().view(-1), senders)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_all_finite_finds_one_nan_or_infinity(kind):
    values = torch.randn(7, 5).to(kind)
    assert sums.all_finite(values) and sums.all_finite(torch.empty(0, 5))
    for value in (torch.nan, torch.inf, -torch.inf):
        changed = values.clone()
        changed[3, 2] = value
        assert not sums.all_finite(changed)
    changed[4] = torch.inf
    assert not sums.all_finite(changed)  # infinity less infinity


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("improved", "loops"), [(False, True), (True, True), (False, False)])
def test_the_sum_of_gcn_has_the_norm_of_pyg(weighted, improved, loops):
    edge_index, x, weight = case(90, 300)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    edge_index = torch.cat([torch.tensor([[7, 4], [7, 4]]), edge_index], dim=1)  # two nodes have a loop of their own
    weight = weight[: edge_index.shape[1]] if weighted else None
    edges, norm = gcn_norm(edge_index, weight, 90, improved, loops, dtype=x.dtype)
    expected = torch.zeros_like(x).index_add(0, edges[1], norm[:, None] * x[edges[0]])
    graph, loop = Neighbours.prepare(edge_index, 90), (2.0 if improved else 1.0) if loops else None
    total = sums.gcn_sum(graph, weight, x.dtype, loop)
    torch.testing.assert_close(total(x), expected, **CLOSE)
