import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnswap import neighbours as module
from gnnswap.errors import SwapError
from gnnswap.neighbours import GraphCache, Neighbours


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
