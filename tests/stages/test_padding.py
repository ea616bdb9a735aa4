"""A padded graph gives what the graph gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.stages.padding import crop, pad
from gnnlab.workloads.graphsage import random_inputs, sage

LAYER = sage(5)


def values_of(nodes, edges):
    with torch.no_grad():
        return {name: value.numpy() for name, value in LAYER.trace(**random_inputs(nodes, edges, 5)).items()}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LAYER.blocks()), st.integers(1, 12), st.integers(1, 30), st.integers(1, 9), st.integers(0, 15))
def test_every_block_of_a_padded_graph_gives_what_it_gives_of_the_graph(span, nodes, edges, more_nodes, more_edges):
    values, block = values_of(nodes, edges), LAYER.block(*span)
    wide = pad(LAYER, values, nodes + more_nodes, edges + more_edges)
    with torch.no_grad():
        results = block(*(torch.from_numpy(wide[name]) for name in block.reads))
    written = dict(zip(block.writes, (result.numpy() for result in results), strict=True))
    for name, value in crop(LAYER, written, nodes, edges).items():
        np.testing.assert_allclose(value, values[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("size", [(3, 20), (9, 8), (4, 10)], ids=["nodes", "edges", "no row for the padding node"])
def test_a_graph_that_does_not_fit_is_refused(size):
    with refused(f"4x9 does not fit into {size[0]}x{size[1]}"):
        pad(LAYER, values_of(4, 9), *size)
