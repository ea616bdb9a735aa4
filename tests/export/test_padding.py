"""A padded graph gives what the graph gives; buckets hold what they are for."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.export.padding import POLICIES, bucket, crop, pad
from gnnlab.workloads.graphsage import gat, random_inputs, sage

LAYERS = [sage(5), gat(5, heads=2, channels=3)]
counts = st.integers(1, 100_000)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LAYERS), st.integers(1, 12), st.integers(1, 30), st.integers(1, 9), st.integers(0, 15))
def test_padded_equals_unpadded_in_every_value_of_every_stage(layer, nodes, edges, more_nodes, more_edges):
    with torch.no_grad():
        values = {k: v.numpy() for k, v in layer.trace(**random_inputs(nodes, edges, 5)).items()}
        wide = pad(layer, {k: values[k] for k in layer.inputs}, nodes + more_nodes, edges + more_edges)
        padded = layer.trace(**{k: torch.from_numpy(v) for k, v in wide.items()})
    cropped = crop(layer, {k: v.numpy() for k, v in padded.items()}, nodes, edges)
    for name, value in cropped.items():
        np.testing.assert_allclose(value, values[name], rtol=1e-6, atol=1e-6, err_msg=name)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(LAYERS), st.data())
def test_a_block_of_padded_values_gives_what_the_block_gives(layer, data):
    first, last = data.draw(st.sampled_from(layer.blocks()))
    with torch.no_grad():
        values = {k: v.numpy() for k, v in layer.trace(**random_inputs(7, 19, 5)).items()}
        block, wide = layer.block(first, last), pad(layer, values, 11, 32)
        results = block(*(torch.from_numpy(wide[name]) for name in block.reads))
    cropped = crop(layer, {k: v.numpy() for k, v in zip(block.writes, results, strict=True)}, 7, 19)
    for name, value in cropped.items():
        np.testing.assert_allclose(value, values[name], rtol=1e-6, atol=1e-6, err_msg=name)


@given(counts, counts, st.sampled_from(POLICIES))
def test_a_bucket_holds_the_graph_and_a_ghost_where_edges_are_added(nodes, edges, policy):
    wide_nodes, wide_edges = bucket(nodes, edges, policy)
    assert wide_nodes >= nodes and wide_edges >= edges
    assert wide_edges == edges or wide_nodes > nodes
    if policy == "exact":
        assert (wide_nodes, wide_edges) == (nodes, edges)
    for side, wide in ((nodes + 1, wide_nodes), (edges, wide_edges)) if policy == "powers" else ():
        assert wide < 2 * side and wide & (wide - 1) == 0


def test_graphs_that_do_not_fit_and_buckets_that_there_are_not_are_refused():
    graph = {name: tensor.numpy() for name, tensor in random_inputs(4, 9, 5).items()}
    for nodes, edges in ((3, 20), (9, 8), (4, 10)):
        with refused(f"does not fit into {nodes} and {edges}"):
            pad(LAYERS[0], graph, nodes, edges)
    for wrong in ((0, 5, "exact"), (5, 0, "powers"), (5, 5, "tens")):
        with refused(r"exact\|powers"):
            bucket(*wrong)
