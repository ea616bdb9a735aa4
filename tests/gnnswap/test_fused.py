import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from refusals import refused
from torch.nn import functional as F
from torch_geometric.nn.resolver import aggregation_resolver
from torch_geometric.utils import scatter, softmax

from gnnswap import fused, fused_numba
from gnnswap.errors import SwapError
from gnnswap.neighbours import Neighbours

NODES, EDGES, WIDTH = 14, 60, 6
CLOSE = {torch.float64: {"rtol": 1e-11, "atol": 1e-12}, torch.float32: {"rtol": 2e-6, "atol": 2e-6}}


def graph(edges=EDGES, seed=0):
    """Edges of 14 nodes, the last three without any; some edges repeat."""
    edge_index = torch.randint(NODES - 3, (2, edges), generator=torch.Generator().manual_seed(seed))
    return edge_index, Neighbours.prepare(edge_index, NODES)


def rows(count, width=WIDTH, dtype=torch.float64, seed=0):
    made = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_()


def several(message, target):
    """Sum, sum of squares, minimum and maximum, by PyG."""
    parts = (message, "sum"), (message * message, "sum"), (message, "min"), (message, "max")
    return torch.stack([scatter(one, target, 0, NODES, how) for one, how in parts])


MOMENTS = "sum", "squares", "min", "max"


def softened(message, target, t):
    return scatter(softmax(message * t, target, num_nodes=NODES) * message, target, 0, NODES)


def gated(p, q, target):
    return scatter(p.sigmoid() * q, target, 0, NODES)


def gated_softplus(both, target):
    p, q = both.chunk(2, 1)
    return gated(p, F.softplus(q), target)


def fixed_rows(like):
    """Features of edges, as given, that want no gradient."""
    return rows(EDGES, like.shape[1], like.dtype, seed=9).detach()


# name: (tensors that want gradients, the pass, what PyG computes); i and j the targets and sources of edges
CASES = {
    "sum of relu": (
        lambda k: [rows(NODES, **k), rows(EDGES, **k)],
        lambda g, y, e: fused.multi_aggregate(y, g, ("sum",), g.sorted_weight(e), relu=True)[0],
        lambda j, i, y, e: scatter((y[j] + e).relu(), i, 0, NODES),
    ),
    "moments": (
        lambda k: [rows(NODES, **k), rows(EDGES, **k)],
        lambda g, y, e: torch.stack(fused.multi_aggregate(y, g, MOMENTS, g.sorted_weight(e))),
        lambda j, i, y, e: several(y[j] + e, i),
    ),
    "softmax": (
        lambda k: [rows(NODES, **k), rows(EDGES, **k), torch.tensor([0.7], dtype=k["dtype"], requires_grad=True)],
        lambda g, y, e, t: fused.softmax_aggregate(y, g, t, g.sorted_weight(e), relu=True),
        lambda j, i, y, e, t: softened((y[j] + e).relu(), i, t),
    ),
    "gate": (
        lambda k: [rows(NODES, 2 * WIDTH, **k), rows(NODES, 2 * WIDTH, seed=1, **k)],
        lambda g, a, b: fused.gated_sum(a, b, g),
        lambda j, i, a, b: gated(*(a[j] + b[i]).chunk(2, 1), i),
    ),
    "gate that targets add to": (
        lambda k: [rows(NODES, 2 * WIDTH, **k), rows(NODES, seed=1, **k), rows(EDGES, 2 * WIDTH, seed=2, **k)],
        lambda g, a, b, e: fused.gated_sum(a, b, g, g.sorted_weight(e)),
        lambda j, i, a, b, e: gated((a[j] + e)[:, :WIDTH] + b[i], (a[j] + e)[:, WIDTH:], i),
    ),
    "gate of softplus": (
        lambda k: [rows(n, 2 * WIDTH, seed=s, **k) for s, n in enumerate((NODES, NODES, EDGES))],
        lambda g, a, b, e: fused.gated_sum(a, b, g, g.sorted_weight(e), softplus=True),
        lambda j, i, a, b, e: gated((a[j] + b[i] + e)[:, :WIDTH], F.softplus((a[j] + b[i] + e)[:, WIDTH:]), i),
    ),
    "sum of relu, edges as given": (
        lambda k: [rows(NODES, **k), rows(EDGES, **k)],
        lambda g, y, e: fused.multi_aggregate(y, g, ("sum",), e, relu=True, as_given=True)[0],
        lambda j, i, y, e: scatter((y[j] + e).relu(), i, 0, NODES),
    ),
    "softmax, edges as given": (
        lambda k: [rows(NODES, **k), rows(EDGES, **k), torch.tensor([0.7], dtype=k["dtype"], requires_grad=True)],
        lambda g, y, e, t: fused.softmax_aggregate(y, g, t, e, as_given=True),
        lambda j, i, y, e, t: softened(y[j] + e, i, t),
    ),
    "gate, edges as given": (
        lambda k: [rows(n, 2 * WIDTH, seed=s, **k) for s, n in enumerate((NODES, NODES, EDGES))],
        lambda g, a, b, e: fused.gated_sum(a, b, g, e, as_given=True),
        lambda j, i, a, b, e: gated(*(a[j] + b[i] + e).chunk(2, 1), i),
    ),
    "moments, edges without a gradient": (
        lambda k: [rows(NODES, **k)],
        lambda g, y: torch.stack(fused.multi_aggregate(y, g, MOMENTS, fixed_rows(y), relu=True, as_given=True)),
        lambda j, i, y: several((y[j] + fixed_rows(y)).relu(), i),
    ),
    "moments without edges": (
        lambda k: [rows(NODES, **k)],
        lambda g, y: torch.stack(fused.multi_aggregate(y, g, MOMENTS)),
        lambda j, i, y: several(y[j], i),
    ),
    "softmax, edges without a gradient": (
        lambda k: [rows(NODES, **k), torch.tensor([0.7], dtype=k["dtype"], requires_grad=True)],
        lambda g, y, t: fused.softmax_aggregate(y, g, t, fixed_rows(y), relu=True, as_given=True),
        lambda j, i, y, t: softened((y[j] + fixed_rows(y)).relu(), i, t),
    ),
    "gate of softplus, edges without a gradient": (
        lambda k: [rows(n, 2 * WIDTH, seed=s, **k) for s, n in enumerate((NODES, NODES))],
        lambda g, a, b: fused.gated_sum(a, b, g, fixed_rows(a), softplus=True, as_given=True),
        lambda j, i, a, b: gated_softplus(a[j] + b[i] + fixed_rows(a), i),
    ),
    "scale": (
        lambda k: [rows(NODES, **k), rows(EDGES, seed=1, **k)],
        lambda g, x, e: fused.edge_weighted_sum(x, e, g),
        lambda j, i, x, e: scatter(x[j] * e, i, 0, NODES),
    ),
    "pairs": (
        lambda k: [rows(NODES, **k), rows(NODES, seed=1, **k)],
        lambda g, a, b: fused.edge_rows(a, b, g, relu=False).index_select(0, g.place),
        lambda j, i, a, b: a[j] + b[i],
    ),
    "relu of pairs": (
        lambda k: [rows(NODES, **k), rows(NODES, seed=1, **k)],
        lambda g, a, b: fused.edge_rows(a, b, g, relu=True).index_select(0, g.place),
        lambda j, i, a, b: (a[j] + b[i]).relu(),
    ),
    "modulation": (
        lambda k: [rows(NODES, **k), rows(NODES, 2 * WIDTH, seed=1, **k)],
        lambda g, x, b: fused.film_sum(x, b, g),
        lambda j, i, x, b: scatter((b[i, WIDTH:] * x[j] + b[i, :WIDTH]).relu(), i, 0, NODES),
    ),
}


def both(name, dtype=torch.float64, change=None):
    """[output, gradients...] of the pass and of PyG."""
    make, run, expected = CASES[name]
    edge_index, neighbours = graph()
    tensors = make({"dtype": dtype})
    if change:
        with torch.no_grad():
            change(tensors)
    found = []
    for out in (run(neighbours, *tensors), expected(*edge_index, *tensors)):
        wave = torch.arange(1, out.numel() + 1, dtype=dtype).sin().view_as(out)
        found.append([out.detach(), *torch.autograd.grad((out * wave).sum(), tensors)])
    return found


def assert_both(found, dtype=torch.float64):
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_a_pass_and_its_gradients_are_those_of_pyg(name, dtype):
    assert_both(both(name, dtype), dtype)


def test_several_threads_give_what_one_gives(monkeypatch):
    one, threads = both("sum of relu", torch.float32), torch.get_num_threads()
    monkeypatch.setattr(fused_numba, "SMALL", 0)
    try:
        torch.set_num_threads(2)
        two = both("sum of relu", torch.float32)
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, one[0], two[0]))


@pytest.mark.parametrize("name", ["sum of relu", "moments", "softmax", "gate", "gate of softplus", "modulation"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_come_out_as_pyg_gives_them(name, value):
    def change(tensors):
        tensors[0][2, 1] = value

    assert_both(both(name, change=change))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 60.0, -60.0, 200.0, -200.0])
def test_exponentials_in_float32_take_extreme_numbers(value):
    def change(tensors):
        tensors[0][:3] = value

    out, expected = (one[0] for one in both("gate of softplus", torch.float32, change))
    torch.testing.assert_close(out, expected, equal_nan=True, **CLOSE[torch.float32])


@pytest.mark.parametrize("which", [0, 1], ids=["node", "edge"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("aggr", ["min", "max", "sum"])
def test_extremes_and_sums_of_nan_and_infinity_are_those_of_pyg_s_aggregations(aggr, value, which):
    edge_index, neighbours = graph()
    tensors = [rows(NODES), rows(EDGES, seed=1)]
    with torch.no_grad():
        tensors[0][1], tensors[1][:20] = 0.5, 0.5  # some messages are alike
        tensors[which][4:6, 2] = value
    expected = aggregation_resolver(aggr)(tensors[0][edge_index[0]] + tensors[1], edge_index[1], dim_size=NODES)
    (got,) = fused.multi_aggregate(tensors[0], neighbours, (aggr,), tensors[1], as_given=True)
    torch.testing.assert_close(got, expected, equal_nan=True)
    gradients = [torch.autograd.grad(out, tensors, torch.ones_like(out)) for out in (got, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_ties_share_their_gradient():
    def change(tensors):
        for one in tensors:
            one.copy_(one.round().clamp(-1, 1))

    assert_both(both("moments", change=change))


def test_blocks_cover_each_node_once_whatever_the_degrees():
    ends = torch.cat([torch.zeros(1000, dtype=torch.int64), torch.arange(NODES)])  # a hub
    neighbours = Neighbours.prepare(torch.stack([ends % NODES, ends]), NODES)
    ptr = neighbours.rowptr.numpy()
    for blocks in (1, 2, 3, 64):
        firsts = [fused_numba._first.py_func(ptr, block, blocks) for block in range(blocks + 1)]
        assert firsts[0] == 0 and firsts[-1] == NODES and firsts == sorted(firsts)


def test_a_graph_without_edges_gives_zeros():
    neighbours = Neighbours.prepare(torch.empty(2, 0, dtype=torch.int64), NODES)
    y, edge = rows(NODES), rows(0)
    out = fused.multi_aggregate(y, neighbours, MOMENTS, edge)
    assert not torch.stack(out).any()
    assert not torch.autograd.grad(torch.stack(out).sum(), y)[0].any()


def test_what_does_not_fit_is_refused_before_compiled_code_reads_it():
    _, neighbours = graph()
    with pytest.raises(SwapError, match="edge features must be"):
        fused.multi_aggregate(rows(NODES), neighbours, ("sum",), rows(EDGES, WIDTH - 1))
    with pytest.raises(SwapError, match="x must be"):
        fused.film_sum(rows(NODES - 1), rows(NODES, 2 * WIDTH), neighbours)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int64])
def test_types_that_the_loops_do_not_take_are_refused_in_one_line(kind):
    _, neighbours = graph()
    x, wide, edge = (torch.ones(*shape, dtype=kind) for shape in ((NODES, 4), (NODES, 8), (EDGES, 4)))
    calls = [
        lambda: fused.multi_aggregate(x, neighbours, MOMENTS),
        lambda: fused.softmax_aggregate(x, neighbours, torch.ones(1)),
        lambda: fused.gated_sum(wide, wide, neighbours),
        lambda: fused.film_sum(x, wide, neighbours),
        lambda: fused.edge_rows(x, x, neighbours),
        lambda: fused.edge_weighted_sum(x, edge, neighbours),
    ]
    for call in calls:
        with refused(f"no kernel for {kind} on cpu"):
            call()


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


def in_a_process(code, **environment):
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_second_process_compiles_nothing(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert in_a_process(SECOND, **cache) == ["1", "True", "True"]
    assert in_a_process(SECOND, **cache) == ["0", "True", "True"]


@pytest.mark.parametrize(
    "fault",
    [
        "c.CacheImpl._locator_classes = []",  # no folder that can be written
        "c.IndexDataCacheFile.save = lambda *_: open('/dev/full', 'w').write('x' * 10**6)",  # a full disk
        "c.IndexDataCacheFile.load = lambda *_: open('/')",  # what was stored cannot be read
    ],
)
def test_where_compiled_code_cannot_be_stored_it_computes_all_the_same(tmp_path, fault):
    printed = in_a_process(f"import numba.core.caching as c; {fault}\n{SECOND}", NUMBA_CACHE_DIR=str(tmp_path))
    assert printed[1:] == ["False", "True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_computes_alone(monkeypatch):
    monkeypatch.setattr(fused_numba, "SMALL", 0)
    y, (_, neighbours) = rows(NODES), graph()
    (expected,) = fused.multi_aggregate(y, neighbours, ("sum",))
    child = os.fork()
    if child == 0:  # only the pass: torch's own operators would wait for threads that the child does not have
        (found,) = fused.multi_aggregate(y, neighbours, ("sum",))
        os._exit(0 if found.tolist() == expected.tolist() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_two_threads_of_python_may_call_at_once():
    expected = both("gate")[0][0]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: both("gate")[0][0], range(2)))
    assert all(torch.equal(one, expected) for one in results)
