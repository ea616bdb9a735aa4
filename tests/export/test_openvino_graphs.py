"""Graphs built by hand give what torch gives, whatever the graph: empty bags, empty ends, edges twice."""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.export import checking, exporters, openvino_graphs, padding
from gnnlab.export.openvino_graphs import prepared
from gnnlab.export.padding import Feed
from gnnlab.workloads.graphsage import gat, sage

LAYER = sage(4, 3)
BAGS = [b for b in LAYER.blocks() if b[0] <= 3 <= b[1] or b[0] <= 4 <= b[1]]


@lru_cache
def compiled(first, last):
    with TemporaryDirectory() as folder:
        exporters.save(openvino_graphs.build(LAYER, first, last), Path(folder))
        return checking.loaded(Path(folder) / "model.xml", checking.OPENVINO)


def written(known, first, last):
    """What the compiled block writes for the nodes of the graph, by name."""
    names = openvino_graphs.reads(LAYER, first, last)
    given = {**known, **prepared(names, known)}
    results = compiled(first, last)({name: given[name] for name in names})
    outputs = dict(zip(LAYER.block(first, last).writes, results, strict=True))
    return padding.crop(LAYER, outputs, known["x"].shape[0], known["edge_index"].shape[1])


@st.composite
def values(draw):
    nodes, edges = draw(st.integers(1, 8)), draw(st.integers(1, 16))
    ends = st.lists(st.integers(0, nodes - 1), min_size=edges, max_size=edges)
    edge_index = torch.tensor([draw(ends), draw(ends)])
    x = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return {name: tensor.numpy() for name, tensor in LAYER.trace(x, edge_index).items()}


@settings(max_examples=120, deadline=None)
@given(values(), st.sampled_from(BAGS))
def test_a_hand_built_block_is_the_block(known, block):
    for name, result in written(known, *block).items():
        np.testing.assert_allclose(result, known[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("targets", [[0, 1], [2, 3]], ids=["isolated at the end", "isolated at the start"])
@pytest.mark.parametrize("last", [3, 4, 5])
def test_rows_that_are_not_finite_stay_out_of_the_sums_of_others_even_where_nodes_have_no_edges(targets, last):
    x = torch.full((4, 4), torch.inf)
    x[1] = 1
    known = {name: tensor.numpy() for name, tensor in LAYER.trace(x, torch.tensor([[1, 1], targets])).items()}
    for name, result in written(known, 1, last).items():
        assert np.array_equal(result, known[name]), name


@pytest.mark.parametrize("block", [(1, 3), (1, 4), (1, 5), (1, 7), (3, 5)])
def test_what_a_bag_model_gives_through_its_feed_has_a_row_for_each_node_and_is_no_copy(block):
    graph = {"x": torch.ones(5, 4), "edge_index": torch.tensor([[0, 1, 2, 3, 4, 4, 4], [0, 0, 1, 1, 2, 2, 2]])}
    known = {name: tensor.numpy() for name, tensor in LAYER.trace(**graph).items()}
    names, writes = openvino_graphs.reads(LAYER, *block), LAYER.block(*block).writes
    model = SimpleNamespace(exporter="handbuilt", reads=names, writes=writes, sized_by=(), nodes=None, edges=None)
    feed = Feed(LAYER, model, 5, 7)
    results = compiled(*block)(feed.inputs(known))
    for result, (name, array) in zip(results, feed.outputs(results).items(), strict=True):
        assert array.shape == LAYER.values[name].shape(5, 7) and np.shares_memory(array, result)
        np.testing.assert_allclose(array, known[name], rtol=1e-5, atol=1e-5)


def test_means_of_bags_are_one_operation():
    model = openvino_graphs.build(LAYER, 1, 5)
    assert [node.get_type_name() for node in model.get_ops()].count("EmbeddingBagOffsets") == 1
    assert {node.get_type_name() for node in model.get_ops()} == {"Parameter", "EmbeddingBagOffsets", "Result"}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: openvino_graphs.reads(LAYER, 5, 7), "sum over no neighbours"),
        (lambda: openvino_graphs.reads(gat(4), 1, 5), "of a sage layer"),
        (lambda: prepared(["col"], {"x": np.ones((2, 4)), "edge_index": np.zeros((2, 0), int)}), "without edges"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(ask, message):
    with refused(message):
        ask()


def test_an_input_that_is_looked_at_is_not_taken_out():
    model = openvino_graphs.build(LAYER, 1, 7)
    model.reshape({"x": [6, 4], "rowptr": [7], "col": [10]})
    with refused("looks at the numbers"):
        exporters.without_inputs(model, ["x"])
