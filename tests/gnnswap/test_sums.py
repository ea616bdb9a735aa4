import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnswap import sparse, sums
from gnnswap.neighbours import Neighbours
from gnnswap.sums import NeighbourSum

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def case(nodes, edges, seed=0):
    """Edges of `nodes` targets, the last three without any; x and weights in float64."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(nodes - 3, (2, edges), generator=generator)
    x = torch.randn(nodes, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    return edge_index, x, torch.rand(edges, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("nodes", "edges", "dense"), [(12, 40, True), (90, 300, False), (40, 60, False)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_sum_and_its_gradient_are_those_of_index_add(nodes, edges, dense, weighted):
    edge_index, x, weight = case(nodes, edges)
    graph = Neighbours.prepare(edge_index, nodes)
    total = NeighbourSum(graph, weight.index_select(0, graph.order) if weighted else None, x.dtype)
    assert (total.matrix is not None) == dense
    assert not sums.is_dense(Neighbours.prepare(edge_index, nodes, num_sources=nodes + 1))
    rows = x[edge_index[0]] * weight[:, None] if weighted else x[edge_index[0]]
    expected = torch.zeros_like(x).index_add(0, edge_index[1], rows)
    gradient = torch.autograd.grad(expected.sin().sum(), x)[0]
    for _ in range(2):  # the transposed weights are cached behind the first
        out = total(x)
        torch.testing.assert_close(out, expected, **CLOSE)
        torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), x)[0], gradient, **CLOSE)
    with torch.inference_mode():
        torch.testing.assert_close(total(x.detach()), expected, **CLOSE)
    torch.testing.assert_close(total.back(expected.cos().detach()), gradient, **CLOSE)


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


def mostly_zeros(rows=300, columns=100, share=0.03):
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(rows, columns, generator=generator) < share).double()


def test_a_sparse_x_is_seen_at_its_second_call_and_multiplied_by_its_nonzeros():
    x = mostly_zeros()
    weight = torch.randn(7, 100, dtype=torch.float64, requires_grad=True)
    assert sparse.features_of(x) is None and sparse.features_of(x) is not None
    expected = F.linear(x, weight)
    torch.testing.assert_close(sparse.times(x, weight), expected, **CLOSE)
    ours, wanted = (torch.autograd.grad(out.sin().sum(), weight)[0] for out in (sparse.times(x, weight), expected))
    torch.testing.assert_close(ours, wanted, **CLOSE)
    x[0] = 1  # written to: it is a new x
    assert sparse.features_of(x) is None
    torch.testing.assert_close(sparse.times(x, weight), F.linear(x, weight), **CLOSE)


IN_THE_SAMPLE = torch.ones(640, 100)
IN_THE_SAMPLE[:: 640 // sparse.SAMPLED_ROWS] = 0
OTHERS = {
    "dense": mostly_zeros(share=0.5),
    "narrow": mostly_zeros(columns=10),
    "small": mostly_zeros(rows=20),
    "wants a gradient": mostly_zeros().requires_grad_(),
    "bf16": mostly_zeros().bfloat16(),
    "few nonzeros in the sample alone": IN_THE_SAMPLE,
}


@pytest.mark.parametrize("x", OTHERS.values(), ids=OTHERS)
def test_any_other_x_is_multiplied_as_it_is(x):
    for _ in range(3):
        assert sparse.features_of(x) is None


def test_a_weight_of_another_width_is_refused_as_torch_refuses_it():
    x = mostly_zeros()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            sparse.times(x, torch.randn(7, 120, dtype=torch.float64))
