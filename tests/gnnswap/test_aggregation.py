import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch_geometric.utils import scatter

from gnnswap import aggregation, neighbours
from gnnswap.aggregation import edge_products, mean, segment_sum, weighted_sum
from gnnswap.neighbours import GraphCache, Neighbours


@st.composite
def graphs(draw, most_nodes=8, most_edges=24):
    """(edge_index, num_nodes): isolated nodes, edges twice and self-loops come by themselves."""
    nodes = draw(st.integers(1, most_nodes))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    edges = draw(st.lists(pairs, max_size=most_edges))
    return torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous(), nodes


def pyg_sum(x, edge_index, weight, nodes):
    return scatter(x[edge_index[0]] * weight.view(-1, 1), edge_index[1], dim=0, dim_size=nodes, reduce="sum")


def random_graph(nodes=40, edges=200, seed=0):
    return torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=80, deadline=None)
@given(graphs(), st.integers(0, 5))
def test_sums_and_means_and_their_gradients_are_those_of_pyg(graph, width):
    edge_index, nodes = graph
    x = torch.randn(nodes, width, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(edge_index.shape[1], dtype=torch.float64, requires_grad=True)
    prepared, ones = Neighbours.prepare(edge_index, nodes), torch.ones_like(weight)
    upstream = torch.randn(nodes, width, dtype=torch.float64)
    averaged = scatter(x[edge_index[0]], edge_index[1], dim=0, dim_size=nodes, reduce="mean")  # 0 without edges
    cases = [
        (weighted_sum(x, prepared, weight), pyg_sum(x, edge_index, weight, nodes), (x, weight)),
        (weighted_sum(x, prepared), pyg_sum(x, edge_index, ones, nodes), (x,)),
        (mean(x, prepared), averaged, (x,)),
    ]
    for got, expected, inputs in cases:
        torch.testing.assert_close(got, expected)
        gradients = (torch.autograd.grad(out, inputs, upstream) for out in (got, expected))
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_a_graph_without_edges_gives_zeros(nodes):
    prepared = Neighbours.prepare(torch.empty(2, 0, dtype=torch.int64), nodes)
    x = torch.randn(nodes, 4, requires_grad=True)
    out = weighted_sum(x, prepared, torch.empty(0, requires_grad=True))
    assert torch.equal(out, torch.zeros(nodes, 4)) and torch.equal(mean(x, prepared), out)
    out.sum().backward()
    assert torch.equal(x.grad, torch.zeros(nodes, 4))


def test_edge_products_in_many_pieces_are_the_same(monkeypatch):
    prepared = Neighbours.prepare(random_graph(), 40)
    a, b = torch.randn(40, 6), torch.randn(40, 6)
    whole = edge_products(a, b, prepared)
    monkeypatch.setattr(aggregation, "CHUNK_NUMBERS", 50)
    torch.testing.assert_close(edge_products(a, b, prepared), whole)
    torch.testing.assert_close(whole, (a[prepared.row] * b[prepared.col]).sum(1))


def test_sources_may_be_others_than_targets():
    edge_index = torch.tensor([[0, 6, 6], [1, 0, 1]])
    prepared = Neighbours.prepare(edge_index, 2, num_sources=7)
    x = torch.randn(3, 7, dtype=torch.float64).t().requires_grad_()  # in any layout of memory
    torch.testing.assert_close(weighted_sum(x, prepared), torch.stack([x[6], x[0] + x[6]]))
    assert torch.autograd.gradcheck(lambda x: weighted_sum(x, prepared), (x,))


def test_indices_are_int32_until_they_no_longer_fit_and_int64_gives_the_same(monkeypatch):
    assert neighbours.index_type(2**31 - 2, 10) is torch.int32
    assert neighbours.index_type(2**31 - 1, 10) is neighbours.index_type(10, 2**31 - 1) is torch.int64
    short, x, weight = Neighbours.prepare(random_graph(), 40), torch.randn(40, 5, requires_grad=True), torch.rand(200)
    monkeypatch.setattr(neighbours, "_INT32", 39)
    long = Neighbours.prepare(random_graph(), 40)
    assert short.col.dtype is short.rowptr.dtype is torch.int32 and long.col.dtype is long.heads(2).col.dtype
    assert long.col.dtype is torch.int64
    torch.testing.assert_close(weighted_sum(x, long, weight), weighted_sum(x, short, weight))
    weighted_sum(x, long, weight).sum().backward()


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(1, 3))
def test_heads_sum_each_head_by_itself(graph, heads):
    edge_index, nodes = graph
    prepared = Neighbours.prepare(edge_index, nodes)
    x = torch.randn(nodes, heads, 2)
    expected = torch.stack([weighted_sum(x[:, h].contiguous(), prepared) for h in range(heads)], dim=1)
    got = aggregation.weighted_sum_sorted(x.view(-1, 2), prepared.heads(heads), None)
    torch.testing.assert_close(got.view(nodes, heads, 2), expected)
    one = torch.randn(nodes, 2)
    shared = aggregation.weighted_sum_sorted(one, prepared.heads(heads, shared=True), None)
    torch.testing.assert_close(shared.view(nodes, heads, 2), weighted_sum(one, prepared)[:, None].expand(-1, heads, -1))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_a_graph_with_self_loops_is_prepared_as_its_edges_without_and_a_loop_a_node_are(graph):
    edge_index, nodes = graph
    given, plain = Neighbours.prepare(edge_index, nodes), edge_index[:, edge_index[0] != edge_index[1]]
    with_loops = torch.cat([plain, torch.arange(nodes).expand(2, -1)], dim=1)
    for derived, edges in ((given, edge_index), (given.with_self_loops, with_loops)):
        expected = Neighbours.prepare(edges, nodes)
        for name in ("rowptr", "col", "order"):
            assert torch.equal(getattr(derived, name), getattr(expected, name)), name
    dense = torch.zeros(nodes, nodes, dtype=torch.float64)
    dense.index_put_((with_loops[1], with_loops[0]), torch.ones(with_loops.shape[1]).double(), accumulate=True)
    torch.testing.assert_close(given.with_self_loops.log_counts.exp(), dense)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_neighbours_give_the_edges_back_and_transposed_are_those_of_turned_edges(graph):
    edge_index, nodes = graph
    prepared = Neighbours.prepare(edge_index.int(), nodes)
    assert torch.equal(prepared.edge_index, edge_index)
    assert torch.equal(prepared.degree.long(), torch.bincount(edge_index[1], minlength=nodes))
    turned = Neighbours.prepare(torch.stack([prepared.row, prepared.col]).long(), nodes)
    for name in ("rowptr", "col", "order"):
        assert torch.equal(getattr(prepared.transposed, name), getattr(turned, name)), name


GRAPH, X, WEIGHT = Neighbours.prepare(random_graph(), 40), torch.randn(40, 3), torch.rand(200)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Neighbours.prepare(torch.tensor([[0, 3], [1, 1]]), 3), "names source 3, allowed are 0..2"),
        (lambda: Neighbours.prepare(torch.tensor([[0, 1], [1, -1]]), 3), "names target -1"),
        (lambda: Neighbours.prepare(torch.tensor([0, 1]), 3), r"shape \(2, edges\), not \(2,\)"),
        (lambda: Neighbours.prepare(torch.zeros(3, 2, dtype=torch.int64), 3), "shape"),
        (lambda: Neighbours.prepare(torch.zeros(2, 2), 3), "int64 or int32, not torch.float32"),
        (lambda: Neighbours.prepare([[0], [1]], 3), "not list"),
        (lambda: Neighbours.prepare(torch.zeros(2, 2, dtype=torch.int64).to_sparse(), 3), "dense tensor"),
        (lambda: Neighbours.prepare(torch.zeros(2, 0, dtype=torch.int64), -1), "num_nodes must be 0 or more"),
        (lambda: weighted_sum(torch.randn(41, 3), GRAPH), r"x must be \(40, -1\).*not \(41, 3\)"),
        (lambda: weighted_sum(torch.randn(40), GRAPH), "x must be"),
        (lambda: weighted_sum(torch.zeros(40, 3, dtype=torch.int64), GRAPH), "x must be"),
        (lambda: weighted_sum("x", GRAPH), "x must be"),
        (lambda: weighted_sum(X, GRAPH, WEIGHT[:-1]), r"weight must be \(200\).*not \(199,\)"),
        (lambda: weighted_sum(X, GRAPH, WEIGHT.double()), "weight must be .*float32.*not .*float64"),
    ],
)
def test_edges_that_are_none_and_what_does_not_belong_to_the_graph_are_refused_in_one_line(call, message):
    with refused(message):
        call()


CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])
HALVES = pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
EDGES = 4096  # adding 4,096 numbers of 0 to 1 in bf16 ends at 256


def hub(device, backwards=False):
    """4,096 edges into node 0 of 2, from a node each; backwards: out of it."""
    edges = torch.stack([torch.arange(EDGES), torch.zeros(EDGES, dtype=torch.int64)]).to(device)
    if backwards:
        return Neighbours.prepare(edges.flip(0), EDGES, num_sources=2)
    return Neighbours.prepare(edges, 2, num_sources=EDGES)


def close(got, expected, kind):
    """Within the rounding of inputs, weights and results, once each."""
    assert got.dtype is kind
    assert (got.double() - expected).abs().max() <= 2 * torch.finfo(kind).eps * expected.abs().max()


def halves(device, kind, *shapes):
    return [torch.rand(shape, device=device).to(kind) for shape in shapes]


@DEVICES
@HALVES
def test_half_precision_sums_over_a_hub_are_added_in_float32_forward_and_backward(device, kind):
    graph, back = hub(device), hub(device, backwards=True)
    x, weight, sent, long, row = halves(device, kind, (EDGES, 6), EDGES, (2, 6), (EDGES, 2048), (2, 2048))
    close(weighted_sum(x, graph)[0], x.double().sum(0), kind)
    close(weighted_sum(x, graph, weight)[0], (x.double() * weight.double()[:, None]).sum(0), kind)
    close(mean(x, graph)[0], x.double().mean(0), kind)
    for values in (weight, weight[:, None], x):
        close(segment_sum(values, graph)[0], values.double().sum(0), kind)
    sent.requires_grad_()
    close(torch.autograd.grad(weighted_sum(sent, back), sent, x)[0][0], x.double().sum(0), kind)
    close(edge_products(long, row, back), (long.double() * row.double()[:1]).sum(1), kind)


def test_sums_and_their_gradients_are_the_same_on_a_cuda_device():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    edge_index, x, weight = random_graph(), torch.randn(40, 8, dtype=torch.float64), torch.rand(200).double()

    def results(device):
        rows, factors = (one.to(device).detach().requires_grad_() for one in (x, weight))
        graph = GraphCache().get(edge_index.to(device), 40)
        outs = [weighted_sum(rows, graph, factors), weighted_sum(rows, graph.with_self_loops), mean(rows, graph)]
        grads = torch.autograd.grad(sum(out.sin().sum() for out in outs), (rows, factors))
        return [one.cpu() for one in (*outs, *grads)]

    for ours, theirs in zip(results("cuda"), results("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs)
