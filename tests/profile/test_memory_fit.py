"""What a graph takes is found from planted and from real peaks, and so is the largest graph that fits."""

import numpy as np
import pytest
import torch
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.profile import memory
from gnnlab.profile.memory_fit import MEMORY_SIZES, MIB, fit_memory, memory_here, run_memory_scaling
from gnnswap.cost import PeakMemory


@pytest.mark.parametrize(
    ("square", "fits", "words"),
    [
        (0, 5_726_390, "5.7 million nodes fit into 24 GiB (2 kB a node + 0.5 kB an edge; held-out 4,000 nodes off by"),
        (16, 39_991, "40,000 nodes fit into 24 GiB (2 kB a node + 0.5 kB an edge + 0.016 kB a pair of nodes; held"),
    ],
)
def test_synthetic_memory_is_found_from_noisy_sizes_and_says_what_fits(square, fits, words):
    def planted(nodes, edges, noise=0.0):
        return (2**20 + 2000 * nodes + 500 * edges + square * nodes**2) * (1 + noise)

    noise = np.random.default_rng(0).normal(0, 0.0002, len(MEMORY_SIZES))
    fit = fit_memory(MEMORY_SIZES, [planted(*size, off) for size, off in zip(MEMORY_SIZES, noise, strict=True)], 24)
    assert fit.predict(100_000, 500_000) == pytest.approx(planted(100_000, 500_000) / MIB, rel=0.02)
    assert (fit.square > 0) == (square > 0) and abs(fit.off) < 0.01
    exact = fit_memory(MEMORY_SIZES, [planted(*size) for size in MEMORY_SIZES], 24)
    assert exact.largest(5) == pytest.approx(fits, abs=2)
    curve = exact.curve(5).set_index("nodes")["value"]
    assert curve.index[-1] == exact.largest(5) and curve.iloc[-1] == pytest.approx(24 * 1024, rel=1e-3)
    assert f"forward pass: at 5.0 edges a node up to {words}" in exact.sentence(5)


def test_a_bend_shows_at_the_size_that_was_held_out():
    bent = [2000 * nodes + (1e6 if nodes < 4000 else 1e8) for nodes, _ in MEMORY_SIZES]
    fit = fit_memory(MEMORY_SIZES, bent, 24)
    sentence = fit.sentence(5)
    assert set(fit.curve()["status"]) == {"unavailable"} and "off by -9" in fit.curve()["reason"][0]
    assert "these sizes do not tell what fits into 24 GiB" in sentence and "held-out 4,000 nodes off by 9" in sentence


def test_memory_that_does_not_grow_fits_any_graph_and_too_little_memory_none():
    fit = fit_memory(MEMORY_SIZES, [2**20] * len(MEMORY_SIZES), 1)
    assert (
        fit.largest(5) is None and "any number of nodes fit" in fit.sentence(5) and fit.curve()["nodes"].max() == 32_000
    )
    fit = fit_memory(MEMORY_SIZES, [2**20] * len(MEMORY_SIZES), 1e-4)
    assert fit.largest(5) == 0 and fit.curve()["nodes"].min() == 1 and 0 < memory_here() < 1e6


@pytest.mark.parametrize("sizes", [[], MEMORY_SIZES[:4], [(n, 5 * n) for n in range(1, 9)]])
def test_sizes_that_tell_nodes_and_edges_not_apart_are_refused(sizes):
    with pytest.raises(GnnlabError, match="nodes and edges varied apart"):
        fit_memory(sizes, [1.0] * len(sizes), 24)


class EdgeSum(nn.Module):
    """N x 16 -> N x 16: a message of 16 floats for each edge, summed at its target; with a numpy array beside it."""

    def __init__(self, unseen_mib=0):
        super().__init__()
        self.unseen_mib, self.layer = unseen_mib, nn.Linear(16, 16)

    def forward(self, data):
        held = np.ones(self.unseen_mib * 2**18, np.float32)
        source, target = data.edge_index
        return torch.zeros_like(data.x).index_add(0, target, self.layer(data.x)[source]) + float(held.sum() > 0)


@pytest.mark.parametrize(("training", "messages"), [(False, 1), (True, 2)])
def test_memory_of_a_real_model_is_what_its_tensors_take(training, messages):
    fit = run_memory_scaling(EdgeSum, training=training)
    assert abs(fit.off) < 0.02 and fit.square == 0 and not fit.notes
    assert fit.edge == pytest.approx(2 * 8 + messages * 64, rel=0.01)  # its ends, its message, and that one's gradient
    assert fit.node == pytest.approx(3 * 64, rel=0.01)  # its features, an empty sum and the sum


@pytest.mark.skipif("__import__('sys').platform != 'linux'", reason="the system does not tell the peak of a process")
def test_memory_that_torch_does_not_see_counts_as_the_process_has_it():
    fit = run_memory_scaling(lambda: EdgeSum(unseen_mib=64))
    assert fit.offset > 60 * MIB and "memory outside of torch's allocator" in fit.notes[0]


def test_what_another_thread_takes_in_one_call_is_not_the_model_s(monkeypatch):
    found = iter([PeakMemory(8, 8, None, process=mib * MIB) for mib in (0, 64, 0)])  # the first prepares
    monkeypatch.setattr(memory, "peak_memory", lambda fn, device: next(found))
    assert memory.warm_peak(lambda: None, torch.device("cpu")).process == 0
