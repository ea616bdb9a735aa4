"""Kernels over edges give what gather and scatter give: outputs, derivatives of any order, NaN, other types."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import (
    CASES,
    GRAPHS,
    case,
    close,
    close_where_finite,
    drawn,
    energy,
    gradients,
    ladder,
    wave,
    with_gradients,
)
from refusals import refused
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnswap import aggregation, attention, fused, fused_numba, sums
from gnnswap.aggregation import edge_products, mean, segment_sum, weighted_sum
from gnnswap.neighbours import Neighbours
from gnnswap.sums import NeighbourSum

each_case = pytest.mark.parametrize("name", CASES)
REPEATED = GRAPHS["edges that repeat"]
ROUNDING = {torch.float32: {"rtol": 2e-5, "atol": 2e-5}}


@st.composite
def graphs(draw, most_nodes=7, most_edges=20):
    """(edges, targets, sources); sources are targets, too, in half of them."""
    nodes, sources = draw(st.integers(1, most_nodes)), draw(st.integers(1, most_nodes))
    pairs = st.tuples(st.integers(0, min(nodes, sources) - 1), st.integers(0, nodes - 1))
    edges = draw(st.lists(pairs, max_size=most_edges))
    return torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous(), nodes, sources


@each_case
@settings(max_examples=12, deadline=None)
@given(graphs(), st.sampled_from([1, 3]), st.integers(1, 3))
def test_outputs_and_gradients_on_any_graph_are_those_of_gathered_rows(name, graph, width, heads):
    kernel, plain, inputs = case(name, *graph, width=width, heads=heads)
    close(with_gradients(kernel, inputs), with_gradients(plain, inputs))
    with torch.no_grad():
        close([kernel(*inputs)], [plain(*inputs)])


@each_case
def test_in_float32_they_are_equal_within_rounding_also_in_many_pieces(name, monkeypatch):
    for piece in (aggregation.CHUNK_NUMBERS, 1):
        monkeypatch.setattr(aggregation, "CHUNK_NUMBERS", piece)
        kernel, plain, inputs = case(name, drawn(), 11, 12, width=5)
        inputs = [one.detach().float().requires_grad_() for one in inputs]
        close(with_gradients(kernel, inputs), with_gradients(plain, inputs), 1e-4, 1e-4)


@pytest.mark.parametrize("edges", GRAPHS)
@each_case
def test_three_orders_of_derivatives_are_those_of_torch(name, edges):
    kernel, plain, inputs = case(name, GRAPHS[edges], strided=edges == "edges that repeat")
    close(ladder(kernel, inputs), ladder(plain, inputs))


@each_case
def test_inputs_that_are_made_from_one_another_count_once_and_those_that_want_no_gradient_get_none(name):
    kernel, plain, inputs = case(name, REPEATED)
    first = inputs[0]

    def linked(function):
        others = [one + first.sum().sin() for one in inputs[1:]]
        value = energy(function)(first, *others)
        firsts = gradients(value, [first, *others], create_graph=True)
        return gradients(sum(one.sin().sum() for one in firsts), inputs)

    close(linked(kernel), linked(plain))
    for wanted in range(len(inputs)):
        fixed = [one if at == wanted else one.detach() for at, one in enumerate(inputs)]
        both = (lambda *_, way=way: way(*fixed) for way in (kernel, plain))  # noqa: B023
        close(*(ladder(one, [inputs[wanted]], 2) for one in both))


@each_case
def test_batches_of_gradients_and_products_with_hessians_are_those_of_torch(name):
    kernel, plain, inputs = case(name, REPEATED)
    batch = torch.randn(3, *plain(*inputs).shape, dtype=torch.float64)

    def mapped(function):
        out = function(*inputs)
        return torch.func.vmap(lambda grad: torch.autograd.grad(out, inputs, grad, retain_graph=True))(batch)

    def batched(function, **options):
        return torch.autograd.grad(function(*inputs).sin(), inputs, batch, is_grads_batched=True, **options)

    def twice(function):
        return gradients(sum(one.sin().sum() for one in batched(function, create_graph=True)), inputs)

    def product(function):
        fixed = tuple(one.detach() for one in inputs)
        return torch.autograd.functional.hvp(energy(function), fixed, tuple(map(wave, fixed)))[1]

    for way in (mapped, batched, twice, product):
        close(way(kernel), way(plain))


@pytest.mark.parametrize("name", [name for name in CASES if name != "sorted values"])  # whose callers ask before
def test_transforms_of_torch_func_take_the_plain_kernel(name):
    kernel, plain, inputs = case(name, REPEATED)
    energy(kernel)(*inputs).backward()  # the graph is prepared outside of transforms
    inputs = tuple(one.detach() for one in inputs)
    vectors = tuple(map(wave, inputs))

    def transforms(function):
        found = [*torch.func.grad(energy(function), tuple(range(len(inputs))))(*inputs)]
        found += torch.func.jvp(function, inputs, vectors)
        found.append(torch.func.vmap(function)(*(torch.stack([one, 2 * one]) for one in inputs)))
        found.append(torch.func.hessian(energy(function))(*inputs))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(inputs[0], vectors[0])
            found.append(torch.autograd.forward_ad.unpack_dual(function(dual, *inputs[1:])).tangent)
        return found

    close(transforms(kernel), transforms(plain))


@each_case
def test_training_on_forces_reaches_parameters_by_every_way_of_asking(name):
    """Forces are gradients of an energy by positions; a loss on them is differentiated by parameters."""
    kernel, plain, (positions, *others) = case(name, REPEATED)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    parameters = [scale, *others]

    def loss(function):
        (forces,) = torch.autograd.grad(energy(function)(positions * scale, *others), positions, create_graph=True)
        return (forces - wave(forces)).square().sum()

    expected = gradients(loss(plain), parameters)
    close(gradients(loss(kernel), parameters), expected)
    for options in ({}, {"inputs": parameters}):
        for one in (positions, *parameters):
            one.grad = None
        loss(kernel).backward(**options)
        close([torch.zeros_like(one) if one.grad is None else one.grad for one in parameters], expected)


# ---- numbers of any size ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@each_case
def test_nan_and_infinity_come_out_where_they_do_of_gathered_rows(name, value):
    for place in range(len(CASES[name][0].split())):
        kernel, plain, inputs = case(name, drawn(7, 20), 7, 8)
        with torch.no_grad():
            inputs[place].view(-1)[0] = value
        ours, theirs = with_gradients(kernel, inputs), with_gradients(plain, inputs)
        close(ours[:1], theirs[:1])
        close_where_finite(ours, theirs)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@each_case
def test_a_gradient_that_is_not_finite_flows_to_where_it_flows_of_gathered_rows(name, value):
    kernel, plain, inputs = case(name, drawn(7, 20), 7, 8)
    outs = kernel(*inputs), plain(*inputs)
    upstream = torch.ones_like(outs[0])
    upstream.view(-1)[0] = value
    close_where_finite(*(gradients(out, inputs, grad_outputs=upstream) for out in outs))


@pytest.mark.parametrize("scale", [60.0, 200.0, 1e3, 1e30])
@pytest.mark.parametrize("name", [name for name in CASES if "softmax" in name or "gate" in name or "att" in name])
def test_exponentials_take_numbers_of_any_size(name, scale):
    scale = min(scale, 1e3) if "aggregation" in name else scale  # there it multiplies itself
    for dtype in (torch.float32, torch.float64):
        kernel, plain, inputs = case(name, drawn(), 11, 12, change=lambda one: one * scale)
        inputs = [one.to(dtype) for one in inputs]
        with torch.no_grad():
            got, expected = kernel(*inputs), plain(*(one.double() for one in inputs))
        expected = expected.to(dtype)
        close([got / scale], [expected / scale], 1e-4, 1e-4)


@each_case
def test_ties_share_their_gradient(name):
    kernel, plain, inputs = case(name, drawn(), 11, 12, change=lambda one: one.round().clamp(-1, 1))
    close(with_gradients(kernel, inputs), with_gradients(plain, inputs))


def test_the_weight_of_the_only_edge_of_a_target_is_one_and_its_score_has_no_gradient():
    """Off by one rounding, it would add up over all targets where the sum of all gradients is zero."""
    prepared = Neighbours.prepare(torch.stack([torch.arange(500).flip(0), torch.arange(500)]), 500)
    scores = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = attention.segment_softmax(scores, prepared)
    assert (weights == 1).all()
    (grad,) = torch.autograd.grad(weights, scores, torch.randn(500, 2))
    assert (grad == 0).all()


def test_a_head_that_is_not_finite_leaves_the_others_as_they_are():
    values = torch.randn(3, 2, 4, dtype=torch.float64)
    values[:, 0] = torch.nan
    assert all(one[:, 1].isfinite().all() for one in attention.end_scores(values, torch.randn(2, 2, 4).double()))


def test_the_gradient_of_a_node_without_edges_is_not_in_that_of_the_temperature():
    graph = Neighbours.prepare(torch.tensor([[0, 1, 2, 0], [1, 1, 0, 0]]), 3)
    y, t = torch.randn(3, 2).double(), torch.ones(1).double().requires_grad_()
    upstream = torch.tensor([[1.0, 2.0], [3.0, 4.0], [torch.nan, torch.inf]]).double()
    of_all = torch.autograd.grad(fused.softmax_aggregate(y, graph, t), t, upstream)
    of_those_with_edges = torch.autograd.grad(fused.softmax_aggregate(y, graph, t), t, upstream.nan_to_num(0, 0))
    torch.testing.assert_close(of_all, of_those_with_edges)


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


# ---- half precision --------------------------------------------------------------------------------------------------

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))
EDGES = 4096  # adding 4,096 numbers of 0 to 1 in bf16 ends at 256


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_sums_over_a_hub_are_added_in_float32_forward_and_backward(device, kind):
    def rows(*shape):
        return torch.rand(shape, device=device).to(kind)

    def close(got, expected):
        """Within the rounding of inputs, weights and results, once each."""
        assert got.dtype is kind
        assert (got.double() - expected).abs().max() <= 2 * torch.finfo(kind).eps * expected.abs().max()

    edges = torch.stack([torch.arange(EDGES), torch.zeros(EDGES, dtype=torch.int64)]).to(device)
    graph = Neighbours.prepare(edges, 2, num_sources=EDGES)  # 4,096 edges into node 0, and below out of it
    back = Neighbours.prepare(edges.flip(0), EDGES, num_sources=2)
    x, weight, long, row = rows(EDGES, 6), rows(EDGES), rows(EDGES, 2048), rows(2, 2048)
    close(weighted_sum(x, graph)[0], x.double().sum(0))
    close(weighted_sum(x, graph, weight)[0], (x.double() * weight.double()[:, None]).sum(0))
    close(mean(x, graph)[0], x.double().mean(0))
    for values in (weight, weight[:, None], x):
        close(segment_sum(values, graph)[0], values.double().sum(0))
    sent = rows(2, 6).requires_grad_()
    close(torch.autograd.grad(weighted_sum(sent, back), sent, x)[0][0], x.double().sum(0))
    close(edge_products(long, row, back), (long.double() * row.double()[:1]).sum(1))


# ---- sums with fixed weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_a_prepared_sum_and_its_gradient_serve_again_and_in_inference_mode(weighted):
    edge_index, x = drawn(43, 60), torch.randn(43, 5, dtype=torch.float64, requires_grad=True)
    graph, weight = Neighbours.prepare(edge_index, 43), torch.rand(60, dtype=torch.float64)
    total = NeighbourSum(graph, weight.index_select(0, graph.permutation) if weighted else None)
    rows = x[edge_index[0]] * (weight[:, None] if weighted else 1)
    expected = torch.zeros_like(x).index_add(0, edge_index[1], rows)
    gradient = torch.autograd.grad(expected.sin().sum(), x)
    for _ in range(2):  # the transposed weights are cached behind the first
        close([total(x), *torch.autograd.grad(total(x).sin().sum(), x)], [expected, *gradient])
    with torch.inference_mode():
        close([total(x.detach())], [expected])
    close([total.transposed(expected.cos().detach())], gradient)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("improved", "loops"), [(False, True), (True, True), (False, False)])
def test_the_sum_of_gcn_has_the_norm_of_pyg(weighted, improved, loops):
    edge_index, x = drawn(90, 300), torch.randn(90, 5, dtype=torch.float64)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    edge_index = torch.cat([torch.tensor([[7, 4], [7, 4]]), edge_index], dim=1)  # two nodes have a loop of their own
    weight = torch.rand(edge_index.shape[1], dtype=torch.float64) if weighted else None
    edges, norm = gcn_norm(edge_index, weight, 90, improved, loops, dtype=x.dtype)
    expected = torch.zeros_like(x).index_add(0, edges[1], norm[:, None] * x[edges[0]])
    graph, loop = Neighbours.prepare(edge_index, 90), (2.0 if improved else 1.0) if loops else None
    close([sums.gcn_sum(graph, weight, x.dtype, loop)(x)], [expected])


# ---- what is refused -------------------------------------------------------------------------------------------------

GRAPH, X, WEIGHT = Neighbours.prepare(drawn(40, 200), 40), torch.randn(40, 3), torch.rand(200)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weighted_sum(torch.randn(41, 3), GRAPH), r"x must be \(40, -1\).*not \(41, 3\)"),
        (lambda: weighted_sum(torch.randn(40), GRAPH), "x must be"),
        (lambda: weighted_sum(torch.zeros(40, 3, dtype=torch.int64), GRAPH), "x must be"),
        (lambda: weighted_sum("x", GRAPH), "x must be"),
        (lambda: weighted_sum(X, GRAPH, WEIGHT[:-1]), r"weight must be \(200\).*not \(199,\)"),
        (lambda: weighted_sum(X, GRAPH, WEIGHT.double()), "weight must be .*float32.*not .*float64"),
        (lambda: attention.segment_softmax(torch.randn(4, 2), GRAPH), r"scores must be \(200, 2\).*not \(4, 2\)"),
        (lambda: attention.segment_softmax(torch.ones(200).long(), GRAPH), "int64"),
        (lambda: fused.multi_aggregate(X, GRAPH, ("sum",), torch.randn(200, 2)), "edge features must be"),
        (lambda: fused.film_sum(X[1:], torch.randn(40, 6), GRAPH), "x must be"),
    ],
)
def test_what_does_not_belong_to_the_graph_is_refused_in_one_line(call, message):
    with refused(message):
        call()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int64])
def test_types_that_the_loops_do_not_take_are_refused_in_one_line(kind):
    x, wide, edge = (torch.ones(*shape, dtype=kind) for shape in ((40, 4), (40, 8), (200, 4)))
    calls = [
        lambda: fused.multi_aggregate(x, GRAPH, ("sum",)),
        lambda: fused.softmax_aggregate(x, GRAPH, torch.ones(1)),
        lambda: fused.gated_sum(wide, wide, GRAPH),
        lambda: fused.film_sum(x, wide, GRAPH),
        lambda: fused.edge_rows(x, x, GRAPH),
        lambda: fused.edge_weighted_sum(x, edge, GRAPH),
    ]
    for call in calls:
        with refused(f"no kernel for {kind} on cpu"):
            call()


# ---- loops by numba: threads, processes, stored code -----------------------------------------------------------------


def moments():
    kernel, _, inputs = case("moments of relu", drawn(), 11, 12)
    return with_gradients(kernel, inputs)


def test_several_threads_give_what_one_gives(monkeypatch):
    one, threads = moments(), torch.get_num_threads()
    monkeypatch.setattr(fused_numba, "SMALL", 0)
    try:
        torch.set_num_threads(2)
        two = moments()
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, one, two))
    with ThreadPoolExecutor(2) as pool:  # two threads of Python at once
        assert all(torch.equal(found[0], one[0]) for found in pool.map(lambda _: moments(), range(2)))


def test_blocks_cover_each_node_once_whatever_the_degrees():
    ends = torch.cat([torch.zeros(1000, dtype=torch.int64), torch.arange(14)])  # a hub
    ptr = Neighbours.prepare(torch.stack([ends % 14, ends]), 14).rowptr.numpy()
    for blocks in (1, 2, 3, 64):
        firsts = [fused_numba._first.py_func(ptr, block, blocks) for block in range(blocks + 1)]
        assert firsts[0] == 0 and firsts[-1] == 14 and firsts == sorted(firsts)


SECOND = """
import sys, torch
from gnnswap import fused_numba, fused
from gnnswap.neighbours import Neighbours
neighbours = Neighbours.prepare(torch.tensor([[0, 1], [1, 1]]), 3)
y, edge = torch.ones(3, 2), torch.ones(2, 2)
fused.multi_aggregate(y, neighbours, ("sum",), edge, relu=True)
done = fused_numba.Compiled
print(done.fresh, done.stored, done.seconds > 0)
"""


def in_a_process(code, folder):
    command, environment = [sys.executable, "-c", code], os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_second_process_compiles_nothing(tmp_path):
    assert in_a_process(SECOND, tmp_path) == ["1", "True", "True"]
    assert in_a_process(SECOND, tmp_path) == ["0", "True", "True"]


@pytest.mark.parametrize(
    "fault",
    [
        "c.CacheImpl._locator_classes = []",  # no folder that can be written
        "c.IndexDataCacheFile.save = lambda *_: open('/dev/full', 'w').write('x' * 10**6)",  # a full disk
    ],
)
def test_where_compiled_code_cannot_be_stored_it_computes_all_the_same(tmp_path, fault):
    assert in_a_process(f"import numba.core.caching as c; {fault}\n{SECOND}", tmp_path)[1:] == ["False", "True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_computes_alone(monkeypatch):
    monkeypatch.setattr(fused_numba, "SMALL", 0)
    (expected,) = fused.multi_aggregate(X, GRAPH, ("sum",))
    child = os.fork()
    if child == 0:  # only the pass: torch's own operators would wait for threads that the child does not have
        (found,) = fused.multi_aggregate(X, GRAPH, ("sum",))
        os._exit(0 if found.tolist() == expected.tolist() else 1)
    assert os.waitpid(child, 0)[1] == 0
