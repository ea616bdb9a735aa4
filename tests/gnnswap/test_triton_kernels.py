"""The Triton kernels against gather and scatter: on a CUDA device, else by Triton's interpreter on a CPU.

Graphs are small and have isolated nodes, repeated edges, self-loops, more sources than targets, and where hubs are
tested pieces of few edges: the interpreter takes a millisecond for each program.
"""

import itertools
import math
import os
from collections import namedtuple

import pytest
import torch
from torch.nn import functional as F

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="triton is not installed")

import triton

from gnnswap import triton_passes as passes
from gnnswap.neighbours import Neighbours

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
pytestmark = [
    pytest.mark.skipif(
        DEVICE.type == "cpu" and isinstance(triton.language.sum, triton.runtime.JITFunction),
        reason="no CUDA device, and triton was imported without TRITON_INTERPRET=1",
    ),
    # numpy's, of entries that are masked or meant to be NaN: a device says nothing
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]
ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
NODES, SOURCES = 6, 7
Rows = namedtuple("Rows", "graph order")


def make_graph(index=torch.int64, edges=26, as_given=False, seed=0):
    """Targets 4 and 5 and source 6 have no edges; with int64 a graph as it would be of more than 2^31 edges."""
    draw = torch.Generator().manual_seed(seed)
    source = torch.randint(SOURCES - 1, (edges,), generator=draw)
    target = torch.randint(NODES - 2, (edges,), generator=draw)
    source[:4], target[:4] = torch.arange(4), torch.arange(4)  # self-loops
    source[5:8], target[5:8] = source[8:11], target[8:11]  # repeated
    ends = torch.stack([source, target])
    ends = ends if as_given else ends[:, target.argsort(stable=True)]
    graph = Neighbours.prepare(ends.to(DEVICE), NODES, num_sources=SOURCES)
    if index is torch.int32:
        return graph
    rowptr, col, order = (one.to(index) for one in (graph.rowptr, graph.col, graph.order))
    return Neighbours(rowptr, col, order, SOURCES)


@pytest.fixture
def cut(monkeypatch):
    """Pieces of 3 edges, and few lines of parts at once, so that tiny graphs have hubs of many pieces."""
    monkeypatch.setattr(passes, "MOST_EDGES", 3)
    monkeypatch.setattr(passes, "FOLDED", 2)


def draws(dtype, *shapes, seed=1):
    """Normal numbers of that type, as float64."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).double().to(DEVICE) for shape in shapes]


def close(got, expected, dtype, name=""):
    """Of this type and shape, and each entry within the bound, relative to the largest."""
    assert got.shape == expected.shape, name
    largest = expected.abs().max().clamp(min=1) if expected.numel() else 1
    error = (got.double() - expected.double()).abs()
    assert not expected.numel() or float((error / largest).max()) <= ALLOWED[dtype], (name, float(error.max()))


def add(messages, graph):
    """Sums of messages (E, ...) in the order of `col`, by torch."""
    return messages.new_zeros(graph.num_nodes, *messages.shape[1:]).index_add(0, graph.row.long(), messages)


def softmax(scores, graph):
    at = graph.row.long().view(-1, 1).expand_as(scores)
    top = scores.new_full((graph.num_nodes, scores.shape[1]), -torch.inf)
    top = top.scatter_reduce(0, at, scores.detach(), "amax")
    share = (scores - top[graph.row.long()]).exp()
    return share / add(share, graph)[graph.row.long()]


# ---- pieces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_pieces_cover_every_edge_once_and_hubs_come_first(index, monkeypatch):
    monkeypatch.setattr(passes, "MOST_EDGES", 4)
    graph = make_graph(index)
    cut, rowptr = passes.pieces(graph), graph.rowptr.tolist()
    covered, slots = [], {}
    for row, first, end, slot in cut.pieces.tolist():
        assert rowptr[row] <= first <= end <= rowptr[row + 1]
        assert end - first <= 4
        covered += range(first, end)
        slots.setdefault(row, []).append(slot)
    assert sorted(covered) == list(range(graph.num_edges))
    assert sorted(slots) == list(range(NODES))  # also rows without edges are written
    hubs = dict(zip(cut.hub_row.tolist(), itertools.pairwise(cut.hub_ptr.tolist()), strict=True))
    assert hubs
    for row, own in slots.items():
        assert own == (list(range(*hubs[row])) if row in hubs else [-1])
    by_hub = [slot >= 0 for *_, slot in cut.pieces.tolist()]
    assert by_hub == sorted(by_hub, reverse=True)
    assert cut.slots == sum(by_hub)
    assert passes.pieces(graph) is cut


def test_graphs_without_edges_or_nodes_give_zeros():
    nothing = torch.empty(2, 0, dtype=torch.int64, device=DEVICE)
    for nodes in (0, 3):
        graph = Neighbours.prepare(nothing, nodes)
        x = torch.ones(nodes, 2, 4, device=DEVICE)
        assert torch.equal(passes.weighted_sum(x[:, 0], graph), torch.zeros(nodes, 4, device=DEVICE))
        assert torch.equal(passes.log_sum_exp(x.new_empty(0, 4), graph), x.new_zeros(nodes, 4))
        out, saved = passes.attend("transformer", x, x, x, graph)
        assert torch.equal(out, torch.zeros_like(x))
        for one in passes.attend_back("transformer", x, saved, x, x, x, graph)[:3]:
            assert torch.equal(one, torch.zeros_like(x))
        assert passes.edge_products(x, x, graph).shape == (0, 2)


# ---- sums and products -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 7, 100, 128, 500])
def test_weighted_sum(width):
    graph = make_graph(torch.int64 if width == 7 else torch.int32)
    x, weight = draws(torch.float64, (SOURCES, width), (graph.num_edges,))
    close(passes.weighted_sum(x, graph), add(x[graph.col.long()], graph), torch.float64)
    got = passes.weighted_sum(x.float(), graph, weight.float())
    assert got.dtype == torch.float32
    close(got, add(x[graph.col.long()] * weight[:, None], graph), torch.float32)


@pytest.mark.parametrize(
    ("dtype", "heads", "width", "shared"),
    [
        (torch.float64, 8, 8, False),
        (torch.float32, 3, 5, True),
        (torch.float32, 2, 200, False),
        (torch.float16, 7, 1, False),
        (torch.bfloat16, 4, 30, False),
    ],
)
def test_weighted_sum_by_head_and_edge_products(dtype, heads, width, shared, cut):
    graph = make_graph(torch.int32)
    theirs = SOURCES, 1 if shared else heads, width
    a, b, weight = draws(dtype, (NODES, heads, width), theirs, (graph.num_edges, heads))
    got = passes.weighted_sum_by_head(b.to(dtype), graph, weight.to(dtype))
    assert got.dtype == dtype
    close(got, add(b[graph.col.long()] * weight[:, :, None], graph), dtype)
    got = passes.edge_products(a.to(dtype), b.to(dtype), graph)
    assert got.dtype == dtype
    close(got, (a[graph.row.long()] * b[graph.col.long()]).sum(-1), dtype)


def test_inputs_that_are_not_contiguous(cut):
    graph = make_graph(torch.int32)
    x, weight = draws(torch.float64, (6, SOURCES), (2, graph.num_edges))
    close(passes.weighted_sum(x.t(), graph, weight.t()[:, 1]),
          add(x.t()[graph.col.long()] * weight[1][:, None], graph), torch.float64)  # fmt: skip


@pytest.mark.parametrize("most", [256, 3])
def test_log_sum_exp(most, monkeypatch):
    monkeypatch.setattr(passes, "MOST_EDGES", most)
    graph = make_graph(torch.int32)
    (scores,) = draws(torch.float64, (graph.num_edges, 5))
    scores[graph.row == 1] = -torch.inf
    scores[graph.rowptr[2] : graph.rowptr[2] + 2, 1] = -torch.inf
    scores[:, 3] += 1000
    scores[graph.rowptr[3], 0] = torch.nan
    at = graph.row.long().view(-1, 1).expand_as(scores)
    top = torch.zeros(NODES, 5, dtype=torch.float64, device=DEVICE)
    top = top.scatter_reduce(0, at, scores, "amax", include_self=False).nan_to_num(neginf=0)
    expected = top + add((scores - top[graph.row.long()]).exp(), graph).log()
    expected[graph.degree == 0] = 0
    got = passes.log_sum_exp(scores, graph)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    half = passes.log_sum_exp(scores.half(), graph)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), expected, rtol=2e-3, atol=2e-3, equal_nan=True)


# ---- attention -------------------------------------------------------------------------------------------------------


def plain_attention(kind, graph, query, key, values, vector, edge, keep, slope, scale):
    j, i = graph.col.long(), graph.row.long()
    if kind == "gat":
        score = F.leaky_relu(key[j] + query[i] + (0 if edge is None else edge), slope)
    elif kind == "gatv2":
        score = (F.leaky_relu(values[j] + query[i] + (0 if edge is None else edge), slope) * vector).sum(-1)
    else:
        score = (key[j] * query[i]).sum(-1) * scale + (0 if edge is None else edge)
    weight = softmax(score, graph) * (1 if keep is None else keep)
    return add(weight[:, :, None] * values[j], graph)


def attention_inputs(kind, graph, heads, width, shared, with_edges, dtype):
    """query, key, values, vector, edge: those that this kind has, as float64."""
    wide, edges = (heads, width), graph.num_edges
    values = SOURCES, 1 if shared else heads, width
    shapes = {
        "gat": [(NODES, heads), (SOURCES, heads), values, None, (edges, heads)],
        "gatv2": [(NODES, *wide), None, (SOURCES, *wide), wide, (edges, *wide)],
        "transformer": [(NODES, *wide), (SOURCES, *wide), values, None, (edges, heads)],
    }[kind]
    shapes[4] = shapes[4] if with_edges else None
    drawn = iter(draws(dtype, *(shape for shape in shapes if shape is not None)))
    inputs = [None if shape is None else next(drawn) for shape in shapes]
    if kind == "gatv2":  # scores of about 1, exact in every type
        inputs[3] /= 2 ** round(math.log2(width) / 2)
    return inputs


def check_attention(kind, dtype, graph, heads, width, shared=False, with_edges=False, dropout=False):
    leaves = attention_inputs(kind, graph, heads, width, shared, with_edges, dtype)
    keep = None
    if dropout:
        keep = (torch.rand(graph.num_edges, heads, generator=torch.Generator().manual_seed(3)) < 0.7).to(DEVICE) * 1.5
    slope, scale = 0.1, width**-0.5
    wanted = [leaf is not None for leaf in leaves]
    exact = [None if leaf is None else leaf.clone().requires_grad_() for leaf in leaves]
    expected = plain_attention(kind, graph, *exact, None if keep is None else keep.double(), slope, scale)
    (grad,) = draws(dtype, expected.shape, seed=5)
    query, key, values, vector, edge = (None if leaf is None else leaf.to(dtype) for leaf in leaves)
    options = {"vector": vector, "edge": edge, "slope": slope, "scale": scale}
    options["keep"] = None if keep is None else keep.to(dtype)
    out, saved = passes.attend(kind, query, key, values, graph, **options)
    assert out.dtype == dtype
    close(out, expected.detach(), dtype, "out")
    back = passes.attend_back(kind, grad.to(dtype), saved, query, key, values, graph, wanted=wanted, **options)
    grads = iter(torch.autograd.grad(expected, [leaf for leaf in exact if leaf is not None], grad))
    for name, got, leaf in zip(("query", "key", "values", "vector", "edge"), back, exact, strict=True):
        assert (got is None) == (leaf is None), name
        if got is not None:
            assert got.dtype == dtype, name
            close(got, next(grads), dtype, name)
    return out, back


@pytest.mark.parametrize("kind", ["gat", "gatv2", "transformer"])
@pytest.mark.parametrize(("heads", "width"), [(8, 8), (4, 128), (1, 256), (1, 1)])
def test_attention(kind, heads, width):
    if width == 8:
        check_attention(kind, torch.float64, make_graph(torch.int64), heads, width)
    else:
        check_attention(kind, torch.float32, make_graph(torch.int32), heads, width)


@pytest.mark.parametrize("kind", ["gat", "gatv2", "transformer"])
@pytest.mark.parametrize("dtype", ALLOWED)
def test_attention_with_edges_dropout_and_hubs(kind, dtype, cut):
    check_attention(kind, dtype, make_graph(torch.int32), 3, 5, with_edges=True, dropout=True)


@pytest.mark.parametrize("kind", ["gat", "transformer"])
@pytest.mark.parametrize("most", [256, 3])
def test_attention_with_values_that_heads_share(kind, most, monkeypatch):
    monkeypatch.setattr(passes, "MOST_EDGES", most)
    check_attention(kind, torch.float64, make_graph(torch.int32), 5, 7, shared=True, dropout=True)


@pytest.mark.parametrize("kind", ["gat", "gatv2", "transformer"])
def test_gradients_that_are_not_wanted_are_none_and_the_others_equal(kind):
    graph = make_graph(torch.int32)
    query, key, values, vector, edge = attention_inputs(kind, graph, 2, 3, False, True, torch.float64)
    options = {"vector": vector, "edge": edge}
    out, saved = passes.attend(kind, query, key, values, graph, **options)
    given = kind, torch.ones_like(out), saved, query, key, values, graph
    full = passes.attend_back(*given, **options)
    for at in range(5):
        if full[at] is not None:
            some = passes.attend_back(*given, wanted=[at == one for one in range(5)], **options)
            assert [one is None for one in some] == [at != one for one in range(5)]
            assert torch.equal(some[at], full[at])


def test_which_heads_fit():
    assert passes.takes_heads(8, 512, False)
    assert not passes.takes_heads(1, 513, False)
    assert passes.takes_heads(8, 512, True)
    assert not passes.takes_heads(16, 300, True)


def test_scores_of_minus_infinity_and_nan():
    """An edge of -inf has no weight, one of NaN makes its target NaN, and no other."""
    graph = make_graph(torch.int32)
    query, key, values, _, edge = attention_inputs("gat", graph, 2, 3, False, True, torch.float64)
    start = int(graph.rowptr[1])
    edge[start], edge[int(graph.rowptr[2])] = -torch.inf, torch.nan
    out, _ = passes.attend("gat", query, key, values, graph, edge=edge)
    expected = plain_attention("gat", graph, query, key, values, None, edge, None, 0.2, 1.0)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert out.isnan().any(-1).any(-1).tolist() == [False, False, True, False, False, False]


# ---- the passes of `fused` -------------------------------------------------------------------------------------------


def both_rows(graph):
    """(rows by target, by source), of features in the order in which edges were given."""
    by_source = graph.order.index_select(0, graph.transposed.order.long())
    return Rows(graph, graph.order), Rows(graph.transposed, by_source)


def sent_to_sources(values, graph):
    return values.new_zeros(graph.num_sources, values.shape[1]).index_add(0, graph.col.long(), values)


def given(values, graph):
    """Values in the order of `col`, in that of the edges given."""
    return torch.empty_like(values).index_copy_(0, graph.order.long(), values)


def same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def messages_of(y, e, relu, graph):
    """v, in the order of `col`; `e` in that of the edges given."""
    message = y[graph.col.long()]
    message = message if e is None else message + e[graph.order.long()]
    return torch.where(message <= 0, 0, message) if relu else message


@pytest.mark.parametrize(("with_edges", "relu"), [(False, None), (True, None), (True, 1)])
@pytest.mark.parametrize("most", [256, 3])
def test_multi_aggregate_with_ties_infinities_and_nan(with_edges, relu, most, monkeypatch):
    monkeypatch.setattr(passes, "MOST_EDGES", most)
    monkeypatch.setattr(passes, "FOLDED", 2)
    graph = make_graph(torch.int32, as_given=True)
    (rows, by_source), i = both_rows(graph), graph.row.long()
    y, e, g_total, g_squares, g_least, g_largest = draws(
        torch.float64, (SOURCES, 10), (graph.num_edges, 10), *[(NODES, 10)] * 4
    )
    y, e = (2 * y).round(), (2 * e).round() if with_edges else None  # many ties
    y[0, 0], y[1, 1], y[2, 2], g_least[1, 4] = torch.nan, torch.inf, -torch.inf, torch.nan
    v = messages_of(y, e, relu, graph)
    outs = [torch.full((NODES, 10), 7.0, dtype=torch.float64, device=DEVICE) for _ in range(4)]
    passes.multi_aggregate(rows, y, e, relu, *outs)
    index, zeros = i[:, None].expand_as(v), torch.zeros_like(outs[0])
    least, largest = (zeros.scatter_reduce(0, index, v, how, include_self=False) for how in ("amin", "amax"))
    for got, expected in zip(outs, (add(v, graph), add(v * v, graph), least, largest), strict=True):
        same(got, expected)
    count = torch.empty_like(zeros)
    passes.ties(rows, y, e, relu, largest, count)
    same(count, add((v == largest[i]).double(), graph))
    alone = torch.full_like(zeros, 7)
    passes.multi_aggregate(rows, y, e, relu, None, None, alone, None)
    same(alone, least)
    moments = g_total, g_squares, least, g_least, largest, g_largest
    sent = g_total[i] + 2 * v * g_squares[i] + g_least[i] * (v == least[i]) + g_largest[i] * (v == largest[i])
    sent = torch.where(v <= 0, 0, sent) if relu else sent
    into = torch.full_like(y, 7)
    passes.multi_aggregate_back(by_source, y, e, relu, *moments, into)
    same(into, sent_to_sources(sent, graph))
    passes.multi_aggregate_back(by_source, y, e, relu, g_total, None, None, None, largest, g_largest, into)
    some = g_total[i] + g_largest[i] * (v == largest[i])
    same(into, sent_to_sources(torch.where(v <= 0, 0, some) if relu else some, graph))
    if with_edges:
        to_edge = torch.full_like(e, 7)
        passes.multi_aggregate_back_to_edges(rows, y, e, relu, *moments, to_edge)
        same(to_edge, given(sent, graph))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_extremes_of_half_precision_are_found_again(dtype):
    """Messages are rounded as torch rounds them, so that the one that is stored equals an extreme."""
    graph = make_graph(torch.int32)
    y, e = (one.to(dtype) for one in draws(dtype, (SOURCES, 40), (graph.num_edges, 40)))
    rows, largest = Rows(graph, graph.order), torch.empty(NODES, 40, dtype=dtype, device=DEVICE)
    passes.multi_aggregate(rows, y, e, 1, None, None, None, largest)
    v = (y[graph.col.long()] + e).relu()
    index = graph.row.long()[:, None].expand_as(v)
    expected = largest.new_zeros(NODES, 40).scatter_reduce(0, index, v, "amax", include_self=False)
    count = torch.empty_like(largest)
    passes.ties(rows, y, e, 1, largest, count)
    assert torch.equal(count > 0, (graph.degree > 0)[:, None].expand_as(count))
    close(largest, expected, dtype)
    if dtype is torch.float16 or DEVICE.type == "cuda":  # the interpreter cuts bfloat16 off
        assert torch.equal(largest, expected)
        assert torch.equal(count, add((v == largest[graph.row.long()]).to(dtype), graph))


@pytest.mark.parametrize(("with_edges", "relu", "most"), [(False, None, 3), (True, 1, 256)])
def test_softmax_aggregate(with_edges, relu, most, monkeypatch):
    monkeypatch.setattr(passes, "MOST_EDGES", most)
    monkeypatch.setattr(passes, "FOLDED", 2)
    graph, t = make_graph(torch.int32, as_given=True), 0.3 + 1e-9  # which float32 does not tell from 0.3
    rows, by_source = both_rows(graph)
    y, e, grad = draws(torch.float64, (SOURCES, 5), (graph.num_edges, 5), (NODES, 5))
    y.requires_grad_(), e.requires_grad_()
    e = e if with_edges else None
    for semi in (False, True):
        v = messages_of(y, e, relu, graph)
        scores = v * t
        weight = softmax(scores.detach() if semi else scores, graph)
        mean = add(weight * v, graph)
        out, log_sum, spread = (torch.full_like(mean, 7).detach() for _ in range(3))
        passes.softmax_aggregate(rows, y.detach(), e if e is None else e.detach(), relu, t, out, log_sum, spread)
        same(out, mean.detach())
        same(log_sum, torch.where(graph.degree[:, None] == 0, 0, add(scores.exp(), graph).log()).detach())
        same(spread, (add(weight * v * v, graph) - mean * mean).detach())
        grads = torch.autograd.grad(mean, [y] if e is None else [y, e], grad)
        back = out, log_sum, grad
        into = torch.full_like(grads[0], 7)
        whole = 0.0 if semi else torch.tensor(t, dtype=torch.float64, device=DEVICE)
        passes.softmax_aggregate_back(by_source, y, e, relu, t, whole, *back, into)
        same(into, grads[0])
        if with_edges:
            to_edge = torch.full_like(grads[1], 7)
            passes.softmax_aggregate_back_to_edges(rows, y, e, relu, t, whole, *back, to_edge)
            same(to_edge, grads[1])


@pytest.mark.parametrize("softplus", [None, 1])
@pytest.mark.parametrize(("whole", "with_edges", "dtype"), [
    (1, True, torch.float64), (None, False, torch.float64), (None, True, torch.float32), (1, False, torch.float32),
])  # fmt: skip
def test_gated_sum(whole, with_edges, softplus, dtype, cut):
    graph = make_graph(torch.int32, as_given=True)
    (rows, by_source), i, width = both_rows(graph), graph.row.long(), 5
    shapes = (SOURCES, 2 * width), (NODES, 2 * width if whole else width), (graph.num_edges, 2 * width), (NODES, width)
    source, target, e, grad = (4 * one for one in draws(dtype, *shapes))
    leaves = [source.requires_grad_(), target.requires_grad_(), e.requires_grad_()]
    e = e if with_edges else None
    p, q = messages_of(source, e, None, graph).chunk(2, 1)
    own_p, own_q = target.chunk(2, 1) if whole else (target, torch.zeros_like(target))
    p, q = p + own_p[i], q + own_q[i]
    expected = add(p.sigmoid() * (F.softplus(q) if softplus else q), graph)
    grads = torch.autograd.grad(expected, leaves, grad, allow_unused=True)
    source, target, e, grad = (one if one is None else one.detach().to(dtype) for one in (source, target, e, grad))
    out, slope = grad.new_full(grad.shape, 7), target.new_full(target.shape, 7)
    passes.gated_sum(rows, source, target, e, whole, softplus, out, slope)
    close(out, expected.detach(), dtype)
    close(slope * grad.repeat(1, 2 if whole else 1), grads[1], dtype)
    out.fill_(7)
    passes.gated_sum(rows, source, target, e, whole, softplus, out, None)
    close(out, expected.detach(), dtype)
    of_source, of_target, of_edge = (one if one is None else torch.full_like(one, 7) for one in (source, target, e))
    passes.gated_sum_back(by_source, source, target, e, 1, whole, softplus, False, grad, of_source, None)
    close(of_source, grads[0], dtype)
    passes.gated_sum_back(rows, target, source, e, whole, 1, softplus, True, grad, of_target, of_edge)
    close(of_target, grads[1], dtype)
    if with_edges:
        close(of_edge, grads[2], dtype)


def test_gates_of_large_and_infinite_numbers():
    """softplus is exact far from 0 on both sides, and NaN stays NaN."""
    graph = Neighbours.prepare(torch.arange(8, device=DEVICE).expand(2, 8), 8)
    q = torch.tensor([-80, -7, -1e-3, 3, 25, 1000, torch.inf, torch.nan], dtype=torch.float64, device=DEVICE)
    for dtype, bound in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        source = torch.stack([torch.zeros_like(q), q], 1).to(dtype)
        out = source.new_empty(8, 1)
        passes.gated_sum(Rows(graph, graph.order), source, torch.zeros_like(source), None, 1, 1, out, None)
        torch.testing.assert_close(2 * out[:, 0].double(), F.softplus(q), rtol=bound, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_film_sum(dtype, cut):
    graph = make_graph(torch.int32)
    (rows, by_source), j, i = both_rows(graph), graph.col.long(), graph.row.long()
    x, target, grad = draws(dtype, (SOURCES, 5), (NODES, 10), (NODES, 5))
    x.requires_grad_(), target.requires_grad_()
    beta, gamma = target.chunk(2, 1)
    expected = add((gamma[i] * x[j] + beta[i]).relu(), graph)
    grads = torch.autograd.grad(expected, [x, target], grad)
    x, target, grad = (one.detach().to(dtype) for one in (x, target, grad))
    out, slope, into = (one.new_full(one.shape, 7) for one in (grad, target, x))
    passes.film_sum(rows, x, target, out, slope)
    close(out, expected.detach(), dtype)
    close(slope * grad.repeat(1, 2), grads[1], dtype)
    passes.film_sum_back(by_source, x, target, grad, into)
    close(into, grads[0], dtype)


def test_film_sum_multiplies_infinity_that_is_held_back_as_pyg_does():
    graph = Neighbours.prepare(torch.zeros(2, 1, dtype=torch.int64, device=DEVICE), 1)
    x, target = torch.tensor([[torch.inf]], device=DEVICE), torch.tensor([[0.0, -1.0]], device=DEVICE)
    out, slope = torch.empty_like(x), torch.empty_like(target)
    passes.film_sum(Rows(graph, graph.order), x, target, out, slope)
    assert out.item() == 0
    assert slope[0, 0].item() == 0
    assert slope[0, 1].isnan()


@pytest.mark.parametrize("relu", [None, 1])
def test_edge_rows(relu, cut):
    graph = make_graph(torch.int32, as_given=True)
    rows, by_source = both_rows(graph)
    source, target, grad = draws(torch.float64, (SOURCES, 5), (NODES, 5), (graph.num_edges, 5))
    source[1, 1] = torch.nan
    leaves = source.requires_grad_(), target.requires_grad_()
    expected = given(source[graph.col.long()] + target[graph.row.long()], graph)
    expected = expected.relu() if relu else expected
    grads = torch.autograd.grad(expected, leaves, grad)
    out = torch.full_like(expected, 7).detach()
    passes.edge_rows(rows, source.detach(), target.detach(), relu, out)
    same(out, expected.detach())
    for into, one in zip((torch.full_like(one, 7).detach() for one in leaves), (by_source, rows), strict=True):
        passes.edge_rows_back(one, grad, out, relu, into)
        same(into, grads[0 if one is by_source else 1])


def test_edge_weighted_sum(cut):
    graph = make_graph(torch.int32, as_given=True)
    rows, by_source = both_rows(graph)
    x, e, grad = draws(torch.float64, (SOURCES, 5), (graph.num_edges, 5), (NODES, 5))
    leaves = x.requires_grad_(), e.requires_grad_()
    expected = add(x[graph.col.long()] * e[graph.order.long()], graph)
    grads = torch.autograd.grad(expected, leaves, grad)
    x, e = x.detach(), e.detach()
    out, of_x, of_e = (torch.full_like(one, 7) for one in (grad, x, e))
    passes.edge_weighted_sum(rows, x, e, out)
    same(out, expected.detach())
    passes.edge_weighted_sum(by_source, grad, e, of_x)
    passes.edge_weighted_sum_back(rows, x, grad, of_e)
    same(of_x, grads[0])
    same(of_e, grads[1])


# ---- large rows, equal bits, what a call may do ----------------------------------------------------------------------


def test_hubs_of_5000_edges():
    draw = torch.Generator().manual_seed(0)
    ends = torch.stack([torch.randint(3, (5000,), generator=draw), torch.zeros(5000, dtype=torch.int64)])
    graph = Neighbours.prepare(ends.to(DEVICE), 2, num_sources=3)
    assert passes.pieces(graph).slots == 20
    x, scores = draws(torch.float32, (3, 4), (5000, 4))
    key, query, values = scores[:3].float(), scores[3:5].float(), x.view(3, 4, 1).float()
    sums = passes.weighted_sum(x.float(), graph, scores[:, 0].float())
    close(sums, add(x[graph.col.long()] * scores[:, :1], graph), torch.float32)
    close(passes.log_sum_exp(scores.float(), graph)[:1], scores.logsumexp(0, keepdim=True), torch.float32)
    out, _ = passes.attend("gat", query, key, values, graph)
    expected = plain_attention("gat", graph, query.double(), key.double(), values.double(), *[None] * 3, 0.2, 1.0)
    close(out, expected, torch.float32)


@pytest.mark.parametrize("kind", ["gat", "gatv2", "transformer"])
def test_two_runs_are_equal_bit_by_bit(kind, cut):
    """Also with hubs, and where the second run finds its kernels compiled."""
    results = []
    for _ in range(2):
        graph = make_graph(torch.int32)
        inputs = attention_inputs(kind, graph, 2, 5, False, False, torch.float32)
        query, key, values, vector, _ = (one if one is None else one.float() for one in inputs)
        out, saved = passes.attend(kind, query, key, values, graph, vector=vector)
        back = passes.attend_back(kind, out, saved, query, key, values, graph, vector=vector)
        results.append([out, *saved, *(one for one in back if one is not None)])
    assert all(map(torch.equal, *results))


def test_inputs_off_16_bytes():
    """What was compiled for aligned addresses must not serve others."""
    graph = make_graph(torch.int32)
    (x,) = draws(torch.float32, (SOURCES * 8 + 1,))
    for start in (0, 1):
        rows = x.float()[start : start + SOURCES * 8].view(SOURCES, 8)
        close(passes.weighted_sum(rows, graph), add(rows.double()[graph.col.long()], graph), torch.float32)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
def test_a_cuda_graph_captures_forward_and_backward():
    graph = make_graph(torch.int32)
    query, key, values, *_ = attention_inputs("gat", graph, 2, 5, False, False, torch.float32)
    query, key, values = query.float(), key.float(), values.float()

    def run():
        out, saved = passes.attend("gat", query, key, values, graph)
        back = passes.attend_back("gat", out, saved, query, key, values, graph)
        return [out, *back[:3], passes.weighted_sum(values[:, 0], graph)]

    run()
    expected = run()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = run()
    for one in results:
        one.zero_()
    captured.replay()
    assert all(map(torch.equal, results, expected))
