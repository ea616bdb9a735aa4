"""Parts of a graph own every node once, hold all that their nodes need, and give what the whole gives."""

import builtins

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.planning.partition import by_metis, by_ranges, expected_shares
from gnnlab.profiling.races import relative_error
from gnnlab.workloads import graphs as library
from gnnlab.workloads.graphsage import random_inputs, sage

RATIOS = st.lists(st.floats(0.05, 1), min_size=1, max_size=4)


@given(nodes=st.integers(4, 60), edges=st.integers(1, 150), ratios=RATIOS, metis=st.booleans())
def test_parts_put_together_give_the_whole(nodes, edges, ratios, metis):
    layer, given = sage(3), random_inputs(nodes, edges, 3)
    edge_index, x = given["edge_index"].numpy(), given["x"]
    parts = by_metis(edge_index, nodes, len(ratios)) if metis else by_ranges(edge_index, nodes, ratios)
    assert sorted(np.concatenate([part.own for part in parts])) == list(range(nodes))
    out = torch.empty(nodes, 3)
    for part in parts:
        assert part.share == (part.targets, len(part.nodes) - part.targets, part.edge_index.shape[1])
        out[part.own] = layer.run(x[part.nodes], torch.from_numpy(part.edge_index))[: part.targets]
    assert relative_error(layer.run(**given), out, "parts") < 1e-5


@pytest.mark.parametrize("size", [(1000, 1000), (1000, 10_000), (3000, 5000)])
@pytest.mark.parametrize("ratio", [0.3, 0.5])
def test_expected_halos_are_those_of_random_graphs(size, ratio):
    edge_index = random_inputs(*size, 1)["edge_index"].numpy()
    real = [part.share for part in by_ranges(edge_index, size[0], (ratio, 1 - ratio))]
    for found, expected in zip(real, expected_shares(*size, (ratio, 1 - ratio)), strict=True):
        assert found.targets == expected.targets
        assert found.halo == pytest.approx(expected.halo, rel=0.1) and found.edges == pytest.approx(
            expected.edges, rel=0.1
        )


def test_metis_finds_smaller_halos_than_ranges_do_where_a_graph_has_neighbourhoods():
    edge_index = library.load("digits").edge_index.numpy()
    halo = {cut: sum(p.share.halo for p in parts) for cut, parts in (
        ("metis", by_metis(edge_index, 1797, 4)), ("ranges", by_ranges(edge_index, 1797, (1, 1, 1, 1))))}  # fmt: skip
    assert halo["metis"] < 0.5 * halo["ranges"]


def test_what_cannot_be_cut_is_refused_in_one_line(monkeypatch):
    edge_index = np.zeros((2, 3), np.int64)
    for act in (lambda: by_ranges(edge_index, 2, (1, 1, 1)), lambda: by_metis(edge_index, 2, 3)):
        with pytest.raises(GnnlabError, match="2 nodes cannot be cut into 3 parts"):
            act()
    real = builtins.__import__

    def without(name, *rest):
        if name == "pymetis":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GnnlabError, match="needs the package pymetis"):
        by_metis(edge_index, 3, 2)
