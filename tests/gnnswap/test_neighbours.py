"""Prepared graphs: sorted as a stable sort sorts, found again by contents, bounded by bytes."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnswap import neighbours as module
from gnnswap.aggregation import weighted_sum, weighted_sum_sorted
from gnnswap.cache import MIB, nbytes_of
from gnnswap.errors import SwapError
from gnnswap.neighbours import GraphCache, Neighbours
from gnnswap.sums import fixed_sum, gcn_sum

TABLES = "rowptr", "col", "permutation"


def edges(count, nodes, seed=0):
    return torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(seed))


def equal(one, other):
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in TABLES)


@st.composite
def graphs(draw, most_nodes=8, most_edges=24):
    """(edge_index, num_nodes): isolated nodes, edges twice and self-loops come by themselves."""
    nodes = draw(st.integers(1, most_nodes))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    drawn = draw(st.lists(pairs, max_size=most_edges))
    return torch.tensor(drawn, dtype=torch.int64).view(-1, 2).t().contiguous(), nodes


@settings(max_examples=60, deadline=None)
@given(graphs(), st.booleans())
def test_edges_are_grouped_as_a_stable_sort_groups_them(graph, narrow):
    edge_index, nodes = graph
    source, target = edge_index.to(torch.int32 if narrow else torch.int64)
    values = torch.rand(edge_index.shape[1])
    rowptr, col, grouped = module.group(target, source, nodes, values)
    expected = target.argsort(stable=True)
    assert rowptr.dtype is col.dtype is source.dtype
    assert torch.equal(col, source[expected]) and torch.equal(grouped, values[expected])
    assert torch.equal(rowptr.diff().long(), torch.bincount(target, minlength=nodes))
    for ours, plain in zip((rowptr, col, grouped), module._group_by_sort(target, source, nodes, values), strict=True):
        assert torch.equal(ours, plain)
    assert module.group(target, source, nodes)[2] is None


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 3))
def test_what_is_derived_from_a_graph_is_what_is_prepared_from_its_edges(graph, heads):
    edge_index, nodes = graph
    prepared, plain = Neighbours.prepare(edge_index.int(), nodes), edge_index[:, edge_index[0] != edge_index[1]]
    assert torch.equal(prepared.edge_index, edge_index)
    assert torch.equal(prepared.degree.long(), torch.bincount(edge_index[1], minlength=nodes))
    turned = torch.stack([prepared.row, prepared.col]).long()
    assert equal(prepared.transposed, Neighbours.prepare(turned, nodes))
    with_loops = torch.cat([plain, torch.arange(nodes).expand(2, -1)], dim=1)
    assert equal(prepared.with_self_loops, Neighbours.prepare(with_loops, nodes))
    counts = torch.zeros(nodes, nodes, dtype=torch.float64)
    counts.index_put_((with_loops[1], with_loops[0]), torch.ones(with_loops.shape[1]).double(), accumulate=True)
    torch.testing.assert_close(prepared.with_self_loops.log_counts.exp(), counts)
    x = torch.randn(nodes, heads, 2)
    for shared in (False, True):
        rows = x[:, :1].contiguous() if shared else x
        got = weighted_sum_sorted(rows.view(-1, 2), prepared.heads(heads, shared=shared), None)
        expected = [weighted_sum(rows[:, 0 if shared else h].contiguous(), prepared) for h in range(heads)]
        torch.testing.assert_close(got.view(nodes, heads, 2), torch.stack(expected, dim=1))


@pytest.mark.parametrize("strided", [False, True])
def test_edges_in_any_memory_layout_are_grouped(strided):
    edge_index = edges(5_000, 70_000)
    prepared = Neighbours.prepare(edge_index.t().contiguous().t() if strided else edge_index, 70_000)
    assert torch.equal(prepared.edge_index, edge_index)
    assert torch.equal(prepared.row.long(), edge_index[1].sort(stable=True).values)


def test_indices_are_int32_until_they_no_longer_fit_and_int64_gives_the_same(monkeypatch):
    assert module.index_type(2**31 - 2, 10) is torch.int32
    assert module.index_type(2**31 - 1, 10) is module.index_type(10, 2**31 - 1) is torch.int64
    short, x, weight = Neighbours.prepare(edges(200, 40), 40), torch.randn(40, 5, requires_grad=True), torch.rand(200)
    monkeypatch.setattr(module, "_INT32", 39)
    long = Neighbours.prepare(edges(200, 40), 40)
    assert short.col.dtype is short.rowptr.dtype is torch.int32 and long.col.dtype is long.heads(2).col.dtype
    assert long.col.dtype is torch.int64
    torch.testing.assert_close(weighted_sum(x, long, weight), weighted_sum(x, short, weight))
    weighted_sum(x, long, weight).sum().backward()


INTS = torch.int64


@pytest.mark.parametrize(
    ("edge_index", "nodes", "message"),
    [
        (torch.tensor([[0, 3], [1, 1]]), 3, "names source 3, allowed are 0..2"),
        (torch.tensor([[0, 1], [1, -1]]), 3, "names target -1"),
        (torch.tensor([0, 1]), 3, r"shape \(2, edges\), not \(2,\)"),
        (torch.zeros(3, 2, dtype=INTS), 3, "shape"),
        (torch.zeros(2, 2), 3, "int64 or int32, not torch.float32"),
        ([[0], [1]], 3, "not list"),
        (None, 3, "edge_index must"),
        (torch.zeros(2, 2, dtype=INTS).to_sparse(), 3, "dense tensor"),
        (torch.zeros(2, 0, dtype=INTS), -1, "num_nodes must be 0 or more"),
    ],
)
def test_edges_that_are_none_are_refused_each_time_in_one_line(edge_index, nodes, message):
    cache = GraphCache()
    for call in (lambda: Neighbours.prepare(edge_index, nodes), *[lambda: cache.get(edge_index, nodes)] * 2):
        with refused(message):
            call()
    assert len(cache) == 0


# ---- the cache of graphs ---------------------------------------------------------------------------------------------


def test_a_cache_tells_graphs_apart_that_share_the_edges_it_samples():
    edge_index = torch.zeros(2, 4096, dtype=torch.int64)
    other = edge_index.clone()
    other[0, 1] = 1  # not among those sampled
    cache = GraphCache()
    first, second = cache.get(edge_index, 3), cache.get(other, 3)
    assert torch.equal(first.edge_index, edge_index) and torch.equal(second.edge_index, other)
    assert cache.get(other.int(), 3) is second
    with pytest.raises(SwapError, match=f"names source {2**32}"):  # 0 if it were cut to 32 bits
        cache.get(edge_index.index_fill(1, torch.tensor([1]), 2**32), 3)


WRITES = {
    "one element": lambda e: e.__setitem__((0, 0), (e[0, 0] + 1) % 40),
    "set_": lambda e: e.set_(edges(200, 40, seed=9)),
    "data.copy_": lambda e: e.data.copy_(edges(200, 40, seed=9)),
    "a numpy view": lambda e: np.copyto(e.numpy(), edges(200, 40, seed=9).numpy()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_graph_is_known_by_its_tensor_and_by_its_contents(write):
    cache, edge_index = GraphCache(), edges(200, 40)
    first = cache.get(edge_index, 40)
    assert cache.get(edge_index, 40) is first and cache.get(edge_index.clone(), 40) is first
    assert cache.get(first, 40) is first
    write(edge_index)
    second = cache.get(edge_index, 40)
    assert second is not first and torch.equal(second.edge_index, edge_index)
    assert cache.get(edge_index, 41).num_nodes == 41 and cache.get(edge_index, 40, 50).num_sources == 50


def test_graphs_are_found_again_after_their_tensor_is_gone_and_keep_none_alive():
    cache, edge_index = GraphCache(), edges(200, 40)
    watched, first = weakref.ref(edge_index), cache.get(edge_index, 40)
    del edge_index
    assert watched() is None and cache.get(edges(200, 40), 40) is first


def test_many_edge_types_and_snapshots_stay():
    cache, tensors = GraphCache(), [edges(500, 100, seed) for seed in range(140)]
    graphs = [cache.get(tensor, 100) for tensor in tensors]
    for graph in graphs:
        graph.transposed, graph.with_self_loops.permutation  # noqa: B018  made with it
    assert all(cache.get(tensor, 100) is graph for tensor, graph in zip(tensors, graphs, strict=True))


def derive(graph):
    """What layers ask for."""
    graph.cached_by_weight(None, gcn_sum, torch.float32, 1.0).transposed  # noqa: B018
    graph.cached_by_weight(torch.rand(graph.num_edges), fixed_sum, torch.float32, False)
    graph.heads(2).transposed, graph.with_self_loops.permutation


def test_graphs_with_all_that_is_derived_are_bounded_by_bytes_and_those_that_go_are_freed_at_once():
    cache, graphs = GraphCache(4 * MIB), []
    gc.collect()
    gc.disable()
    try:
        for seed in range(12):
            graph = cache.get(edges(10_000, 1000, seed), 1000)
            derive(graph)
            graphs.append(weakref.ref(graph))
            del graph
        alive = [graph() for graph in graphs if graph() is not None]
    finally:
        gc.enable()
    assert 1 < len(alive) == len(cache) < 12 and alive[-1] is graphs[-1]()
    assert cache.nbytes == nbytes_of(alive) - 512  # the list
    largest = max(nbytes_of(graph) for graph in alive)
    assert cache.nbytes <= 4 * MIB + largest  # the one used last grows after it came
    for seed in range(500):
        cache.get(edges(20, 10, seed), 10)
    assert cache.nbytes <= 4 * MIB and len(cache) > 10


def test_the_graph_used_last_stays_whatever_its_size():
    cache, edge_index = GraphCache(1024), edges(10_000, 1000)
    graph = cache.get(edge_index, 1000)
    derive(graph)
    assert all(cache.get(edge_index, 1000) is graph for _ in range(5)) and len(cache) == 1
    assert cache.get(edges(10_000, 1000, seed=1), 1000) is not graph and len(cache) == 1


def test_all_is_forgotten_at_once_and_with_the_cache():
    cache, edge_index = GraphCache(), edges(200, 40)
    gc.disable()
    try:
        for end in (lambda: cache.forget(), None):
            graph = cache.get(edge_index, 40)
            derive(graph)
            watched = weakref.ref(graph)
            del graph
            if end is None:
                del cache
            else:
                end()
                assert len(cache) == 0 and cache.nbytes == 0
            assert watched() is None
    finally:
        gc.enable()


def test_copies_and_pickles_of_a_cache_are_empty():
    cache = GraphCache(5 * MIB)
    cache.get(edges(200, 40), 40)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert len(other) == 0 and other.max_bytes == 5 * MIB and other.get(edges(20, 4), 4).num_edges == 20


def test_a_graph_of_inference_mode_is_known_by_its_contents_and_serves_training():
    cache = GraphCache()
    with torch.inference_mode():
        inside = edges(200, 40)
        graph = cache.get(inside, 40)
        assert cache.get(inside, 40) is graph
        derive(graph)
    x = torch.randn(40, 3, requires_grad=True)
    graph.cached_by_weight(None, gcn_sum, torch.float32, 1.0)(x).sum().backward()
    assert x.grad is not None


# ---- what is kept with a graph ---------------------------------------------------------------------------------------


def shifted(graph, offset=0):
    return graph.positions + offset


def reversed_(graph, offset=0):
    return graph.positions.flip(0) + offset


def scaled(graph, weight, factor):
    return weight * factor


def test_what_is_kept_is_known_by_its_function_and_arguments():
    graph = Neighbours.prepare(edges(200, 40), 40)
    first = graph.cached(shifted)
    assert graph.cached(shifted) is first and graph.cached(shifted, 3) is not first
    assert torch.equal(graph.cached(shifted, 3), first + 3)
    assert torch.equal(graph.cached(reversed_), first.flip(0))  # another function, the same arguments
    graph.forget()
    assert graph.cached(shifted) is not first and torch.equal(graph.cached(shifted), first)


def test_what_is_derived_from_weights_follows_them():
    graph, weight = Neighbours.prepare(edges(200, 40), 40), torch.rand(200)
    first = graph.cached_by_weight(weight, scaled, 2)
    assert graph.cached_by_weight(weight, scaled, 2) is first
    assert torch.equal(graph.cached_by_weight(weight, scaled, 3), weight * 3)
    for write in (lambda: weight.mul_(2), lambda: weight.data.mul_(2)):  # the second behind torch's back
        write()
        assert torch.equal(graph.cached_by_weight(weight, scaled, 2), weight * 2)


def test_weights_are_sorted_once_and_again_when_they_change():
    prepared = Neighbours.prepare(torch.tensor([[0, 1, 2, 0], [2, 0, 1, 0]]), 3)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    first = prepared.sorted_weight(weight)
    assert first.tolist() == [2.0, 4.0, 3.0, 1.0] and prepared.sorted_weight(weight) is first
    weight[0] = 7
    assert prepared.sorted_weight(weight).tolist() == [2.0, 4.0, 3.0, 7.0]
    weight.requires_grad_()
    prepared.sorted_weight(weight).backward(torch.arange(4.0))
    assert weight.grad.tolist() == [3.0, 0.0, 2.0, 1.0]
    with torch.no_grad():
        assert not prepared.sorted_weight(weight).requires_grad
