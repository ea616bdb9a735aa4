"""Graphs built by hand give what torch gives, whatever the graph: no edges, empty ends, edges twice."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.openvino_core import compile_for
from gnnlab.stages import segment_sums
from gnnlab.stages.export import Model
from gnnlab.stages.padding import InputAdapter
from gnnlab.stages.segment_sums import preprocess, reads
from gnnlab.workloads.graphsage import sage

LAYER = sage(4, 3)
BLOCKS = [block for block in LAYER.blocks() if LAYER.block(*block).reduces]


@lru_cache
def compiled(first, last):
    return compile_for(segment_sums.build(LAYER, first, last), "CPU", "float32", threads=1)


def traced(x, edge_index):
    return {name: tensor.numpy() for name, tensor in LAYER.trace(x, torch.tensor(edge_index)).items()}


def written(known, block):
    """The model's own outputs, and those of the graph's nodes by name."""
    names, writes = reads(LAYER, *block), LAYER.block(*block).writes
    model = Model("sage", 4, *block, "handbuilt", "segment_sum", None, names, writes)
    adapter = InputAdapter(LAYER, model, known["x"].shape[0], known["edge_index"].shape[1])
    results = compiled(*block)(adapter.inputs(known)).to_tuple()
    return results, adapter.outputs(results)


@st.composite
def graphs(draw):
    nodes, edges = draw(st.integers(1, 8)), draw(st.integers(1, 16))
    ends = st.lists(st.integers(0, nodes - 1), min_size=edges, max_size=edges)
    x = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return traced(x, [draw(ends), draw(ends)])


@settings(max_examples=120, deadline=None)
@given(graphs(), st.sampled_from(BLOCKS))
def test_a_hand_built_block_gives_what_the_block_gives(known, block):
    for name, result in written(known, block)[1].items():
        np.testing.assert_allclose(result, known[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("targets", [[0, 1], [2, 3]], ids=["isolated at the end", "isolated at the start"])
@pytest.mark.parametrize("last", [3, 4, 5])
def test_infinite_rows_stay_out_of_the_sums_of_others_even_where_nodes_have_no_edges(targets, last):
    x = torch.full((4, 4), torch.inf)
    x[1] = 1
    known = traced(x, [[1, 1], targets])
    for name, result in written(known, (1, last))[1].items():
        assert np.array_equal(result, known[name]), name


@pytest.mark.parametrize("block", [(1, 3), (1, 4), (1, 5), (1, 7), (3, 5)])
def test_the_row_of_the_padding_node_is_cut_off_without_a_copy(block):
    known = traced(torch.ones(5, 4), [[0, 1, 2, 3, 4, 4, 4], [0, 0, 1, 1, 2, 2, 2]])
    results, outputs = written(known, block)
    for result, (name, array) in zip(results, outputs.items(), strict=True):
        assert array.shape == LAYER.values[name].shape(5, 7) and np.shares_memory(array, result)


def test_means_of_segments_are_one_operation():
    operations = {node.get_type_name() for node in segment_sums.build(LAYER, 1, 5).get_ops()}
    assert operations == {"Parameter", "EmbeddingBagOffsets", "Result"}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: reads(LAYER, 5, 7), "sum over no neighbours"),
        (lambda: preprocess(["col"], {"x": np.ones((2, 4)), "edge_index": np.zeros((2, 0), int)}), "without edges"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(ask, message):
    with refused(message):
        ask()
