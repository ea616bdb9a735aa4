import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch.nn import functional as F
from torch_geometric.utils import softmax

from gnnswap import aggregation, attention
from gnnswap.attention import additive_scores, attend, head_products, head_sum, pair_scores, segment_softmax
from gnnswap.neighbours import Neighbours


@st.composite
def graphs(draw, most_nodes=7, most_edges=20, square=False):
    """(neighbours, sources, targets in the order of their edges): isolated nodes, loops, repeated and no edges;
    `square`: sources are targets, too."""
    nodes = draw(st.integers(1, most_nodes))
    sources = nodes if square else draw(st.integers(1, most_nodes))
    pairs = st.tuples(st.integers(0, sources - 1), st.integers(0, nodes - 1))
    edges = draw(st.lists(pairs, max_size=most_edges))
    edge_index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous()
    prepared = Neighbours.prepare(edge_index, nodes, num_sources=sources)
    return prepared, prepared.col.long(), prepared.row.long()


def doubles(*shapes):
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def agree(fast, plain, inputs, equal_nan=False):
    """Equal results and equal gradients of every input."""
    got, expected = fast(*inputs), plain(*inputs)
    torch.testing.assert_close(got, expected, equal_nan=equal_nan)
    upstream = torch.randn_like(expected)
    pairs = zip(
        torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    )
    for number, (ours, theirs) in enumerate(pairs):
        message = lambda text, number=number: f"gradient {number}: {text}"  # noqa: E731
        torch.testing.assert_close(ours, theirs, equal_nan=equal_nan, msg=message)


def summed(messages, row, nodes):
    return messages.new_zeros(nodes, *messages.shape[1:]).index_add(0, row, messages)


@settings(max_examples=50, deadline=None)
@given(graphs(), st.integers(1, 3), st.sampled_from([1.0, 40.0]))
def test_the_softmax_over_edges_is_that_of_pyg(graph, heads, scale):
    prepared, _, row = graph
    (scores,) = doubles((prepared.num_edges, heads))
    plain = lambda scores: softmax(scores * scale, row, num_nodes=prepared.num_nodes)  # noqa: E731
    agree(lambda scores: segment_softmax(scores * scale, prepared), plain, [scores])


@settings(max_examples=50, deadline=None)
@given(graphs(), st.integers(1, 3), st.sampled_from([1.0, 0.2, -0.5]))
def test_pair_scores_are_those_of_gat(graph, heads, slope):
    prepared, col, row = graph
    inputs = doubles((prepared.num_sources, heads), (prepared.num_nodes, heads))
    plain = lambda source, target: F.leaky_relu(source[col] + target[row], slope)  # noqa: E731
    agree(lambda source, target: pair_scores(source, target, prepared, slope), plain, inputs)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(1, 3), st.sampled_from([1, 3, 33]), st.booleans(), st.booleans())
def test_attention_is_softmax_times_values(graph, heads, width, shared, drops):
    prepared, col, row = graph
    keep = torch.rand(prepared.num_edges, heads, dtype=torch.float64).round() * 2 if drops else None
    inputs = doubles((prepared.num_edges, heads), (prepared.num_sources, 1 if shared else heads, width))

    def plain(scores, values):
        weight = softmax(scores, row, num_nodes=prepared.num_nodes)
        weight = weight if keep is None else weight * keep
        return summed(values[col].expand(-1, heads, -1) * weight.unsqueeze(-1), row, prepared.num_nodes)

    agree(lambda scores, values: attend(scores, values, prepared, keep), plain, inputs)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(1, 3), st.sampled_from([1, 4, 33]))
def test_products_and_sums_of_heads_are_those_of_gathered_rows(graph, heads, width):
    prepared, col, row = graph
    inputs = doubles((prepared.num_nodes, heads, width), (prepared.num_sources, heads, width))
    plain = lambda query, key: (query[row] * key[col]).sum(-1)  # noqa: E731
    agree(lambda query, key: head_products(query, key, prepared), plain, inputs)
    shared = doubles((prepared.num_nodes, heads, width), (prepared.num_sources, 1, width))
    agree(lambda query, key: head_products(query, key, prepared), plain, shared)
    inputs = doubles((prepared.num_sources, heads, width), (prepared.num_edges, heads))
    plain = lambda values, weight: summed(values[col] * weight.unsqueeze(-1), row, prepared.num_nodes)  # noqa: E731
    agree(lambda values, weight: head_sum(values, prepared, weight), plain, inputs)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.sampled_from([1, 1 << 16]))
def test_additive_scores_are_those_of_gatv2(graph, heads, width, with_edges, piece):
    prepared, col, row = graph
    shapes = [(prepared.num_sources, heads, width), (prepared.num_nodes, heads, width), (heads, width)]
    inputs = doubles(*shapes, *[(prepared.num_edges, heads, width)] * with_edges)

    def plain(source, target, vector, edge=0):
        return (F.leaky_relu(source[col] + target[row] + edge, 0.2) * vector).sum(-1)

    def fast(source, target, vector, edge=None):
        return additive_scores(source, target, vector, prepared, 0.2, edge)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "CHUNK_NUMBERS", piece)
        agree(fast, plain, inputs)


@pytest.mark.parametrize("where", [0, 1, 2, 3])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_head_of_additive_scores_that_is_not_finite_leaves_the_others_as_they_are(where, value):
    prepared = Neighbours.prepare(torch.tensor([[0, 1, 2, 2], [1, 1, 0, 0]]), 3)
    inputs = doubles((3, 2, 3), (3, 2, 3), (2, 3), (4, 2, 3))
    with torch.no_grad():
        inputs[where].select(-2, 0).fill_(value)
    row, col = prepared.row.long(), prepared.col.long()
    plain = (F.leaky_relu(inputs[0][col] + inputs[1][row] + inputs[3], 0.2) * inputs[2]).sum(-1)
    fast = additive_scores(*inputs[:3], prepared, 0.2, inputs[3])
    torch.testing.assert_close(fast, plain, equal_nan=True)
    for upstream in (torch.ones_like(plain), torch.tensor([[value, 1.0]]).double().expand_as(plain)):
        gradients = (torch.autograd.grad(out, inputs, upstream, retain_graph=True) for out in (fast, plain))
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_not_finite_stay_with_their_target(value):
    prepared = Neighbours.prepare(torch.tensor([[0, 1, 2, 2], [1, 1, 0, 0]]), 3)
    (scores,) = doubles((4, 2))
    with torch.no_grad():
        scores[1, 0] = value
    agree(
        lambda scores: segment_softmax(scores, prepared),
        lambda scores: softmax(scores, prepared.row.long(), num_nodes=3),
        [scores],
        equal_nan=True,
    )


def test_only_gradients_that_are_wanted_are_made():
    prepared = Neighbours.prepare(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3)
    source, target, vector, scores = doubles((3, 2, 3), (3, 2, 3), (2, 3), (3, 2))
    calls = [
        lambda: attend(scores.detach(), source, prepared),
        lambda: head_products(source, target.detach(), prepared),
        lambda: head_sum(source, prepared, scores.detach()),
        lambda: additive_scores(source, target.detach(), vector.detach(), prepared, 0.2),
    ]
    for call in calls:
        (grad,) = torch.autograd.grad(call().sum(), [source])
        assert grad.shape == source.shape


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e30])
def test_the_softmax_holds_at_any_size_of_scores(scale):
    prepared = Neighbours.prepare(torch.randint(20, (2, 200), generator=torch.Generator().manual_seed(0)), 20)
    scores = torch.randn(200, 2) * scale
    weights = segment_softmax(scores, prepared)
    assert torch.isfinite(weights).all()
    expected = softmax(scores.double(), prepared.row.long(), num_nodes=20)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-4, atol=1e-6)


def test_the_weight_of_the_only_edge_of_a_target_is_one_and_its_score_has_no_gradient():
    """Off by one rounding, it would add up over all targets where the sum of all gradients is zero."""
    prepared = Neighbours.prepare(torch.stack([torch.arange(500).flip(0), torch.arange(500)]), 500)
    scores = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = segment_softmax(scores, prepared)
    assert (weights == 1).all()
    (grad,) = torch.autograd.grad(weights, scores, torch.randn(500, 2))
    assert (grad == 0).all()


def test_scores_of_another_number_of_edges_are_refused_in_one_line():
    graph = Neighbours.prepare(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3)
    for scores, message in (
        (torch.randn(4, 2), r"scores must be \(3, 2\).*not \(4, 2\)"),
        (torch.ones(3).long(), "int64"),
    ):
        with refused(message):
            segment_softmax(scores, graph)


# ---- over all pairs of nodes ----------------------------------------------------------------------------------------


def dense_inputs(name, nodes, heads, width, shared=False):
    """Inputs of an attention over all pairs of nodes: values first."""
    shapes = {
        "pairs": [(nodes, 1 if shared else heads, width), (2, heads, width)],
        "products": [(nodes, heads, width)] * 3,
        "additive": [(nodes, heads, width), (nodes, heads, width), (heads, width)],
    }
    return doubles(*shapes[name])


def over_pairs(name, graph):
    """(the dense kernel, the sparse one, the same by gathered rows and PyG's softmax), as functions of the inputs."""
    kernel, number = {
        "pairs": (attention._DensePairs, 0.2),
        "products": (attention._DenseProducts, 0.7),
        "additive": (attention._DenseAdditive, 0.2),
    }[name]
    col, row = graph.col.long(), graph.row.long()

    def gathered(values, *more):
        if name == "pairs":
            scores = F.leaky_relu((values * more[0][0]).sum(-1)[col] + (values * more[0][1]).sum(-1)[row], number)
        elif name == "products":
            scores = (more[0][row] * more[1][col]).sum(-1) * number
        else:
            scores = (F.leaky_relu(values[col] + more[0][row], number) * more[1]).sum(-1)
        weight = softmax(scores, row, num_nodes=graph.num_nodes)
        return summed(values[col] * weight.unsqueeze(-1), row, graph.num_nodes)

    return (
        lambda *given: kernel.run(*given, graph, number),
        lambda *given: kernel.plain(*given, graph, number),
        gathered,
    )


each_dense = pytest.mark.parametrize("name", ["pairs", "products", "additive"])
# node 3 has no edges that end there and node 4 none at all; an edge comes three times; node 1 has a loop
SMALL = torch.tensor([[0, 1, 1, 2, 2, 2, 3, 0], [1, 1, 0, 1, 1, 1, 2, 2]])


@each_dense
@settings(max_examples=30, deadline=None)
@given(graphs(square=True), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_attention_over_all_pairs_is_that_over_edges(name, graph, heads, width, shared):
    prepared, *_ = graph
    dense, sparse, gathered = over_pairs(name, prepared)
    inputs = dense_inputs(name, prepared.num_nodes, heads, width, shared)
    agree(dense, gathered, inputs)
    agree(dense, sparse, inputs)
    with torch.no_grad():
        torch.testing.assert_close(dense(*inputs), gathered(*inputs))


@each_dense
@pytest.mark.parametrize("shared", [False, True])
def test_attention_over_all_pairs_has_first_and_second_derivatives(name, shared):
    dense, _, _ = over_pairs(name, Neighbours.prepare(SMALL, 5))
    torch.manual_seed(0)
    inputs = dense_inputs(name, 5, 2, 2, shared)
    assert torch.autograd.gradcheck(dense, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(dense, inputs)


@each_dense
def test_attention_over_all_pairs_makes_only_gradients_that_are_wanted(name):
    dense, _, gathered = over_pairs(name, Neighbours.prepare(SMALL, 5))
    inputs = dense_inputs(name, 5, 2, 3)
    for wanted in range(len(inputs)):
        given = [one if at == wanted else one.detach() for at, one in enumerate(inputs)]
        ours, theirs = (torch.autograd.grad(way(*given).sin().sum(), [inputs[wanted]]) for way in (dense, gathered))
        torch.testing.assert_close(ours, theirs)


@each_dense
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_over_all_pairs_nan_and_infinity_stay_with_the_nodes_that_have_them(name, value):
    dense, _, gathered = over_pairs(name, Neighbours.prepare(SMALL, 5))
    for place in range(2 if name == "pairs" else 3):
        for node in range(5):
            torch.manual_seed(1)
            inputs = dense_inputs(name, 5, 2, 3)
            with torch.no_grad():
                row = inputs[place].view(-1, 3) if inputs[place].shape[0] != 5 else inputs[place][node]
                row[0, 1] = value  # of one node and head, or of the vector of a head
            agree(dense, gathered, inputs, equal_nan=True)


@each_dense
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_over_all_pairs_a_gradient_that_is_not_finite_reaches_who_sent_to_its_node(name, value):
    dense, _, gathered = over_pairs(name, Neighbours.prepare(SMALL, 5))
    torch.manual_seed(2)
    inputs = dense_inputs(name, 5, 2, 3)
    for node in range(5):
        upstream = torch.ones(5, 2, 3, dtype=torch.float64)
        upstream[node, 0, 1] = value
        ours, theirs = (torch.autograd.grad(way(*inputs), inputs, upstream) for way in (dense, gathered))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)


@each_dense
@pytest.mark.parametrize("scale", [30.0, 1e3, 1e30, 1e300])
def test_attention_over_all_pairs_holds_at_any_size_of_scores(name, scale):
    dense, _, gathered = over_pairs(name, Neighbours.prepare(SMALL, 5))
    torch.manual_seed(3)
    values, *more = dense_inputs(name, 5, 2, 3)
    with torch.no_grad():
        more[-1].mul_(scale)
        torch.testing.assert_close(dense(values, *more), gathered(values, *more), equal_nan=True)
    if scale < 1e30:  # beyond, a rounding of a share of 1 is more than any gradient
        agree(dense, gathered, [values, *more])


def test_scores_of_both_ends_are_those_of_each_head():
    values, vectors = doubles((3, 2, 4), (2, 2, 4))
    for rows in (values, values[:, :1]):
        source, target = attention.end_scores(rows, vectors)
        torch.testing.assert_close(source, (rows * vectors[0]).sum(-1))
        torch.testing.assert_close(target, (rows * vectors[1]).sum(-1))
    with torch.no_grad():
        values[:, 0] = torch.nan
    assert all(one[:, 1].isfinite().all() for one in attention.end_scores(values, vectors))
