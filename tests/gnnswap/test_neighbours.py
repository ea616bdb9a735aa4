import copy
import gc
import pickle
import random
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnswap import neighbours as module
from gnnswap.cache import MIB, held_bytes
from gnnswap.errors import SwapError
from gnnswap.neighbours import GraphCache, Neighbours
from gnnswap.sums import NeighbourSum, fixed_sum, gcn_sum


def edges(count, nodes, seed=0):
    return torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(seed))


def in_order(graph, offset=0):
    return graph.places + offset


def in_reverse(graph, offset=0):
    return graph.places.flip(0) + offset


def scaled(graph, weight, factor):
    return weight * factor


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30), st.booleans())
def test_edges_are_grouped_as_a_stable_sort_groups_them(nodes, pairs, narrow):
    kind = torch.int32 if narrow else torch.int64
    pairs = [(a % nodes, b % nodes) for a, b in pairs] if nodes else []
    source, target = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    source, target = source.to(kind), target.to(kind)
    values = torch.rand(len(pairs))
    rowptr, col, grouped = module.group(target, source, nodes, values)
    expected = target.argsort(stable=True)
    assert rowptr.dtype is col.dtype is kind
    assert torch.equal(col, source[expected]) and torch.equal(grouped, values[expected])
    assert torch.equal(rowptr.diff().long(), torch.bincount(target, minlength=nodes))
    for ours, plain in zip((rowptr, col, grouped), module._group_by_sort(target, source, nodes, values), strict=True):
        assert torch.equal(ours, plain)
    assert module.group(target, source, nodes)[2] is None


@pytest.mark.parametrize("strided", [False, True])
def test_edges_in_any_memory_layout_are_grouped(strided):
    edge_index = torch.randint(70_000, (2, 5_000), generator=torch.Generator().manual_seed(0))
    given = edge_index.t().contiguous().t() if strided else edge_index
    prepared = Neighbours.prepare(given, 70_000)
    assert torch.equal(prepared.edge_index, edge_index)
    assert torch.equal(prepared.row.long(), edge_index[1].sort(stable=True).values)
    assert torch.equal(prepared.transposed.col, prepared.row[prepared.transposed.order])


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


def test_a_graph_is_known_by_its_tensor_and_by_its_contents():
    cache, edge_index = GraphCache(), edges(200, 40)
    first = cache.get(edge_index, 40)
    assert cache.get(edge_index, 40) is first and cache.get(edge_index.clone(), 40) is first
    assert cache.get(first, 40) is first
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 40  # in place: same object, same memory
    second = cache.get(edge_index, 40)
    assert second is not first and torch.equal(second.edge_index, edge_index)
    assert cache.get(edge_index, 41).num_nodes == 41 and cache.get(edge_index, 40, 50).num_sources == 50
    edge_index.set_(edges(200, 40, seed=5))
    assert torch.equal(cache.get(edge_index, 40).edge_index, edge_index)


@pytest.mark.parametrize(
    "write",
    [lambda e: e.data.copy_(edges(200, 40, seed=9)), lambda e: np.copyto(e.numpy(), edges(200, 40, seed=9).numpy())],
    ids=["data", "numpy"],
)
def test_another_graph_behind_torchs_back_is_noticed(write):
    cache, edge_index = GraphCache(), edges(200, 40)
    cache.get(edge_index, 40)
    write(edge_index)
    assert torch.equal(cache.get(edge_index, 40).edge_index, edges(200, 40, seed=9))


@pytest.mark.parametrize("wrong", ["edges", [[0], [1]], torch.zeros(2, 3), torch.zeros(3, 2).long(), None])
def test_what_is_no_graph_is_refused_each_time(wrong):
    cache = GraphCache()
    for _ in range(2):
        with pytest.raises(SwapError, match="edge_index must"):
            cache.get(wrong, 3)
    assert len(cache) == 0


def test_graphs_are_found_again_after_their_tensor_is_gone_and_keep_none_alive():
    cache, edge_index = GraphCache(), edges(200, 40)
    watched, first = weakref.ref(edge_index), cache.get(edge_index, 40)
    del edge_index
    assert watched() is None and cache.get(edges(200, 40), 40) is first


def test_many_edge_types_and_snapshots_stay():
    cache, tensors = GraphCache(), [edges(500, 100, seed) for seed in range(140)]
    graphs = [cache.get(tensor, 100) for tensor in tensors]
    for graph in graphs:
        graph.transposed, graph.with_self_loops.order  # noqa: B018  made with it
    assert all(cache.get(tensor, 100) is graph for tensor, graph in zip(tensors, graphs, strict=True))


def derive(graph):
    """What layers ask for."""
    graph.cached_by_weight(None, gcn_sum, torch.float32, 1.0).transposed  # noqa: B018
    graph.cached_by_weight(torch.rand(graph.num_edges), fixed_sum, torch.float32, False)
    graph.heads(2).transposed, graph.with_self_loops.order


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
    assert cache.nbytes == held_bytes(alive) - 512  # the list
    largest = max(held_bytes(graph) for graph in alive)
    assert cache.nbytes <= 4 * MIB + largest  # the one used last grows after it came
    cache.get(edges(10, 10), 10), cache.get(edges(10, 10), 10)
    assert cache.nbytes <= 4 * MIB


def test_the_graph_used_last_stays_whatever_its_size():
    cache, edge_index = GraphCache(1024), edges(10_000, 1000)
    graph = cache.get(edge_index, 1000)
    derive(graph)
    assert all(cache.get(edge_index, 1000) is graph for _ in range(5)) and len(cache) == 1
    assert cache.get(edges(10_000, 1000, seed=1), 1000) is not graph and len(cache) == 1


def test_many_small_graphs_leave_the_bound():
    cache = GraphCache(MIB)
    for seed in range(500):
        cache.get(edges(20, 10, seed), 10)
    assert cache.nbytes <= MIB and len(cache) > 10


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


def test_threads_share_a_cache():
    cache, xs = GraphCache(200 * 1024), torch.randn(1100, 4)
    tensors = [edges(3000, 1000 + number, seed=number) for number in range(12)]
    expected = [NeighbourSum(Neighbours.prepare(e, 1000 + k), None)(xs[: 1000 + k]) for k, e in enumerate(tensors)]
    raised, before = [], sys.getswitchinterval()

    def work(seed):
        drawn = random.Random(seed)
        try:
            for _ in range(60):
                k = drawn.randrange(len(tensors))
                edge_index = tensors[k] if drawn.random() < 0.5 else tensors[k].clone()
                graph = cache.get(edge_index, 1000 + k)
                total = graph.cached_by_weight(None, fixed_sum, torch.float32, False)
                assert torch.equal(total(xs[: 1000 + k]), expected[k])
                graph.heads(2), graph.transposed, graph.with_self_loops.order
                if drawn.random() < 0.02:
                    cache.forget()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not raised


def test_what_is_kept_is_known_by_its_function_and_arguments():
    graph = Neighbours.prepare(edges(200, 40), 40)
    first = graph.cached(in_order)
    assert graph.cached(in_order) is first and graph.cached(in_order, 3) is not first
    assert torch.equal(graph.cached(in_order, 3), first + 3)
    assert torch.equal(graph.cached(in_reverse), first.flip(0))  # another function, the same arguments
    graph.forget()
    assert graph.cached(in_order) is not first and torch.equal(graph.cached(in_order), first)


def test_what_is_derived_from_weights_follows_them():
    graph, weight = Neighbours.prepare(edges(200, 40), 40), torch.rand(200)
    first = graph.cached_by_weight(weight, scaled, 2)
    assert graph.cached_by_weight(weight, scaled, 2) is first and torch.equal(
        graph.cached_by_weight(weight, scaled, 3), weight * 3
    )
    weight.mul_(2)
    assert torch.equal(graph.cached_by_weight(weight, scaled, 2), weight * 2)
    weight.data.mul_(2)  # behind torch's back
    assert torch.equal(graph.cached_by_weight(weight, scaled, 2), weight * 2)


def test_weights_are_sorted_once_and_again_when_they_change():
    prepared = Neighbours.prepare(torch.tensor([[0, 1, 2, 0], [2, 0, 1, 0]]), 3)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    first = prepared.sorted_weight(weight)
    assert first.tolist() == [2.0, 4.0, 3.0, 1.0]
    assert prepared.sorted_weight(weight) is first
    weight[0] = 7
    assert prepared.sorted_weight(weight).tolist() == [2.0, 4.0, 3.0, 7.0]
    weight.requires_grad_()
    prepared.sorted_weight(weight).backward(torch.arange(4.0))
    assert weight.grad.tolist() == [3.0, 0.0, 2.0, 1.0]
    with torch.no_grad():
        assert not prepared.sorted_weight(weight).requires_grad
    columns = torch.arange(8.0).view(4, 2).double().requires_grad_()
    assert prepared.sorted_weight(columns)[0].tolist() == [2, 3]
    assert torch.autograd.gradcheck(prepared.sorted_weight, (columns,))
