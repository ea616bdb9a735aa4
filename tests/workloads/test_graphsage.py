"""The layer taken apart is PyG's layer, its bytes are the study's, and any block is its stages."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch_geometric.nn import SAGEConv

from gnnlab.errors import GnnlabError
from gnnlab.workloads.graphsage import random_inputs, sage
from gnnlab.workloads.staged import REDUCTIONS

N, E, F = 1000, 5000, 500


@st.composite
def inputs(draw):
    """Small graphs with repeated edges, self-loops and nodes without edges, x anywhere between -10 and 10."""
    nodes, edges = draw(st.integers(1, 9)), draw(st.integers(0, 20))
    ends = st.lists(st.integers(0, nodes - 1), min_size=edges, max_size=edges)
    edge_index = torch.tensor([draw(ends), draw(ends)], dtype=torch.int64).view(2, edges)
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return {"x": 20 * torch.rand(nodes, 6, generator=random) - 10, "edge_index": edge_index}


@settings(max_examples=40, deadline=None)
@given(inputs(), st.sampled_from(REDUCTIONS), st.sampled_from([None, 4]))
def test_seven_stages_are_pygs_sage_layer_and_relu(graph, reduction, out):
    layer = sage(6, out).reduced_by(reduction)
    conv = SAGEConv(6, out or 6)
    conv.load_state_dict(layer.stages[5].module.state_dict())
    torch.testing.assert_close(layer.run(**graph), conv(**graph).relu(), rtol=1e-5, atol=1e-5)


def test_each_of_the_28_blocks_is_its_stages_one_after_the_other():
    layer = sage(8)
    values = layer.trace(**random_inputs(12, 30, 8))
    assert len(layer.blocks()) == 28
    for value, tensor in values.items():
        assert (layer.values[value].shape(12, 30), layer.values[value].dtype) == (tensor.shape, tensor.dtype)
    for first, last in layer.blocks():
        block = layer.block(first, last)
        results = block(*(values[value] for value in block.reads))
        assert len(results) == len(block.writes)
        for value, result in zip(block.writes, results, strict=True):
            assert torch.equal(result, values[value]), (first, last, value)
            assert result.data_ptr() not in {values[read].data_ptr() for read in block.reads}
        later = {read for stage in layer.stages[last:] for read in stage.reads} | {layer.result}
        assert set(block.writes) == later & {stage.writes for stage in block.stages}


def test_blocks_are_read_or_refused_in_one_line():
    layer = sage(4)
    assert layer.blocks(["stages"]) == [(n, n) for n in range(1, 8)]
    assert layer.blocks(["3", "1-5", "3"]) == [(3, 3), (1, 5)]
    for texts in ([], ["8"], ["0"], ["5-1"], ["1-8"], ["x"], ["1-"], ["-1"], ["1-2-3"], ["٣"]):
        with pytest.raises(GnnlabError, match="write 1"):
            layer.blocks(texts)


def test_bytes_are_those_of_the_study_and_a_fused_block_moves_what_it_reads_and_writes_only():
    layer, gather = sage(F), 4 * N * F + 16 * E + 4 * E * F
    expected = [gather, 8 * E * F, gather, 16 * E + 4 * N, 8 * N * F + 4 * N, 12 * N * F, 8 * N * F]
    assert [layer.bytes_moved(number, N, E) for number in layer.numbers] == expected
    assert layer.block(1, 5).bytes_moved(N, E) == layer.block(1, 7).bytes_moved(N, E) == 8 * N * F + 16 * E
    assert layer.block(3, 5).bytes_moved(N, E) == 4 * E * F + 16 * E + 4 * N * F  # x for its shape alone


def test_a_cut_carries_what_later_stages_still_read():
    layer, x, edges = sage(F), 4 * N * F, 16 * E
    messages = 4 * E * F + x + edges
    carried = [x + edges, messages, messages, 2 * x + edges, 2 * x + 4 * N, 2 * x, x, x]
    assert [layer.cut_bytes(after, N, E) for after in range(8)] == carried


def test_flops_are_those_of_products_sums_and_comparisons():
    layer = sage(F)
    assert layer.flops(6, 6, N, E) == 2 * (2 * N * F * F) + 2 * N * F
    assert layer.flops(1, 2, N, E) == 0
    assert layer.flops(1, 7, N, E) == sum(layer.flops(n, n, N, E) for n in layer.numbers)
    assert layer.flops(3, 3, N, E) == E * F


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, same, other = (sage(4, seed=seed).block(1, 7).fingerprint() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    assert first == same != other
    assert sage(4).reduced_by("scatter_add").block(1, 7).fingerprint() == first


def test_random_inputs_repeat_targets_leave_the_last_node_out_and_are_the_same_again():
    graph = random_inputs(50, 200, 3)
    degree = torch.bincount(graph["edge_index"][1], minlength=50)
    assert graph["x"].shape == (50, 3) and graph["edge_index"].dtype == torch.int64
    assert degree[-1] == 0 and degree.max() > 1
    assert all(torch.equal(graph[name], again) for name, again in random_inputs(50, 200, 3).items())
    assert random_inputs(1, 3, 2)["edge_index"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert random_inputs(4, 0, 2)["edge_index"].shape == (2, 0)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: sage(0), "features must be an integer of 1 or more, got 0"),
        (lambda: sage(np.int64(4), 0), "out_features must be"),
        (lambda: sage(4).block(0, 3), "1 <= first <= last <= 7"),
        (lambda: sage(4).block(3, 2), "no block of stages 3..2"),
        (lambda: sage(4).block(1, 8), "no block"),
        (lambda: sage(4).cut_bytes(8, 1, 1), "no cut behind stage 8"),
        (lambda: sage(4).reduced_by("sum"), "no reduction 'sum'"),
        (lambda: random_inputs(0, 3, 4), "0 nodes"),
        (lambda: random_inputs(3, -1, 4), "-1 edges"),
    ],
)
def test_what_there_is_not_is_refused_in_one_line(ask, message):
    with refused(message):
        ask()
