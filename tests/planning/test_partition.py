"""Ranges of a graph's nodes hold every node once, are balanced, and parts of them give what the whole gives."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.planning.partition import ranges
from gnnlab.profiling.races import relative_error
from gnnlab.workloads.graphsage import random_inputs, sage

RATIOS = st.lists(st.floats(0.05, 1), min_size=1, max_size=4)


@given(nodes=st.integers(4, 60), edges=st.integers(1, 150), ratios=RATIOS)
def test_parts_put_together_give_the_whole(nodes, edges, ratios):
    layer, inputs = sage(3), random_inputs(nodes, edges, 3)
    x, edge_index = inputs["x"], inputs["edge_index"]
    parts = ranges(np.bincount(edge_index[1].numpy(), minlength=nodes), ratios)
    assert [row for part in parts for row in range(nodes)[part]] == list(range(nodes))
    out = torch.empty(nodes, 3)
    for rows in parts:
        assert rows.stop > rows.start
        own = (rows.start <= edge_index[1]) & (edge_index[1] < rows.stop)
        out[rows] = layer.run(x, edge_index[:, own])[rows]
    assert relative_error(layer.run(**inputs), out, "parts") < 1e-5


@given(nodes=st.integers(50, 500), ratio=st.floats(0.1, 0.9), skew=st.floats(0, 3), seed=st.integers(0, 99))
def test_ranges_are_as_near_their_ratios_as_whole_nodes_can_be(nodes, ratio, skew, seed):
    weights = np.random.default_rng(seed).integers(1, 10, nodes) * np.linspace(1, 1 + skew, nodes)
    first, _ = ranges(weights, (ratio, 1 - ratio))
    assert abs(weights[first].sum() - ratio * weights.sum()) <= weights.max()


def test_equal_rows_are_shared_by_their_number():
    assert ranges(np.ones(10), (0.3, 0.7)) == [slice(0, 3), slice(3, 10)]
    assert ranges(np.array([0, 0, 9]), (0.5, 0.5)) == [slice(0, 1), slice(1, 3)]  # each has a node of its own
    with pytest.raises(GnnlabError, match="2 nodes cannot be shared by 3 units"):
        ranges(np.ones(2), (1, 1, 1))
