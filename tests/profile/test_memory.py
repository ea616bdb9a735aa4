"""Memory against planted truth: what is held at once is known to the byte."""

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from gnnlab.errors import GnnlabError
from gnnlab.measure.tensors import span_bytes
from gnnlab.profile.memory import (
    MIB,
    MemoryProfiler,
    estimate_attention_memory,
    estimate_pe_storage,
    get_memory_breakdown,
    get_peak_memory,
    profile_memory_usage,
    reset_memory_stats,
    storages,
)
from gnnswap.cost import peak_memory
from gnnswap.errors import OneLineError

CPU = torch.device("cpu")
KB = 1024  # bytes of 256 floats
SCALARS = 64  # bytes that torch may take for moments to wrap a Python number


def floats(kib):
    return torch.empty(256 * kib)


def chain():
    a = floats(10)  # 10
    b = a + a  # 10 + 10, the peak
    del a
    return b.mul_(2).view(2, -1)  # in place and views: nothing


source = torch.ones(256)
PLANTED = {  # what is called: KiB at the peak, KiB at the end
    "chain": (chain, 20, 10),
    "keeps five": (lambda: [floats(3) for _ in range(5)], 15, 15),
    "a slice keeps its whole": (lambda: floats(100)[:256], 100, 100),
    "out of nothing": (lambda: torch.add(source, source, out=torch.empty(0)), 1, 1),
    "temporaries in a row": (lambda: [floats(7).sum() for _ in range(4)] and floats(2), 7, 2),
    "in inference mode": (torch.inference_mode()(lambda: (source.view(16, 16) @ source.view(16, 16)).relu_()), 1, 1),
    "views": (lambda: source.view(4, 64).t().detach(), 0, 0),
    "in place": (lambda: source.add_(0), 0, 0),
}


@pytest.mark.parametrize("case", PLANTED)
def test_what_a_call_holds_is_known_to_the_byte(case):
    fn, peak, end = PLANTED[case]
    held = peak_memory(fn, CPU)
    assert peak * KB <= held.peak <= peak * KB + SCALARS
    assert held.at_end == end * KB


def test_sparse_tensors_count_their_indices_and_values():
    indices, values = torch.zeros(1, 64, dtype=torch.long), torch.zeros(64, 3)
    tensor = torch.sparse_coo_tensor(indices, values, (9, 3), check_invariants=False)
    assert sum(storages([tensor]).values()) == span_bytes(tensor) == 64 * 8 + 64 * 3 * 4
    assert span_bytes(torch.zeros(9, 3).to_sparse()) == 0


def test_what_a_backward_pass_keeps_and_frees_is_accounted():
    weight = torch.ones(256, requires_grad=True)

    def keeps():
        return (weight * 2).exp().sum()  # 1 KiB that exp keeps; its input is gone, its output too

    forward = peak_memory(keeps, CPU)
    assert KB + 4 <= forward.at_end <= KB + 4 + SCALARS
    backward = peak_memory(forward.result.backward, CPU)
    assert abs(backward.at_end) <= SCALARS  # the activation went, the gradient came
    assert weight.grad.shape == (256,)


def test_stats_count_the_arguments_once_and_what_the_call_adds():
    x = floats(4)
    stats = profile_memory_usage(lambda a, b: a + b, x, x.view(2, -1)[0].repeat(2))
    mib = (stats.peak_mb, stats.rise_mb, stats.allocated_mb, stats.reserved_mb)
    assert stats.device == "cpu" and mib == pytest.approx([kib * KB / MIB for kib in (4 + 4 + 4, 4, 12, 12)])


class TwoLayers(nn.Module):
    """(64, 16) -> (64, 32) -> ReLU -> (64, 4), with a buffer that does nothing."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("table", torch.zeros(256))

    def forward(self, x):
        return self.second(self.first(x).relu())


def test_a_model_s_breakdown_is_what_is_worked_out_by_hand():
    model = TwoLayers()
    model(torch.ones(64, 16)).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [p.grad.clone() for p in model.parameters()]
    parts = get_memory_breakdown(model, (torch.ones(64, 16),), "cpu")
    numbers = {name: round(value * MIB) for name, value in parts.items() if not name.startswith("process_")}
    weights = 4 * (16 * 32 + 32 + 32 * 4 + 4)
    inner, outer = 64 * 32 * 4, 64 * 4 * 4
    assert numbers == {
        "parameters": weights,
        "buffers": 1024,
        "input": 64 * 16 * 4,
        "forward_activations": inner,  # ReLU's result: its own and the next layer's, once
        "output": outer,
        "peak_temporary": 2 * inner,  # both sides of ReLU
        "peak_training": numbers["peak_training"],
        "gradients": weights,
    }
    assert numbers["peak_training"] >= inner + 2 * outer + 4 * (32 * 4 + 4)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))


def test_shared_weights_and_inputs_count_once_and_what_a_dropped_branch_kept_is_no_activation():
    layer = nn.Linear(8, 8, bias=False)
    parts = get_memory_breakdown(nn.Sequential(layer, layer), (torch.ones(4, 8),))
    assert parts["parameters"] * MIB == 8 * 8 * 4
    assert parts["forward_activations"] * MIB == 4 * 8 * 4  # the middle; the input is counted as input

    def forward(x):
        (nn.functional.linear(x, layer.weight) * 2).exp().sum()  # nobody takes the result
        return nn.functional.linear(x, layer.weight)

    layer.forward = forward
    assert get_memory_breakdown(layer, (torch.ones(4, 8),))["forward_activations"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell the peak of a process")
def test_what_numpy_holds_is_in_the_process_s_number_and_a_note_says_that_torch_does_not_see_it():
    class InNumpy(nn.Linear):
        """(1, 2) -> (1, 2), by 32 MiB that torch does not see."""

        def forward(self, x):
            return super().forward(x) + float(np.ones(2**23, np.float32)[0])

    model, x = InNumpy(2, 2), torch.ones(1, 2)
    parts = get_memory_breakdown(model, x)
    assert parts["peak_temporary"] < 0.1 and parts["process_temporary"] > 31 and parts["process_training"] > 31
    temporary, training = parts.notes
    assert temporary.startswith("temporary: torch's allocator 0.0 MiB, process 3") and training.startswith("training: ")
    stats = profile_memory_usage(model, x)
    assert stats.rise_mb < 0.1 and stats.process_mb > 31 and str(stats).endswith(stats.note)
    assert "memory outside of torch's allocator" in stats.note


def test_a_warm_training_step_gives_the_same_number_each_time():
    layer, x = nn.Linear(1024, 1024), torch.ones(64, 1024)

    def step():
        layer.zero_grad(set_to_none=True)  # 4 MiB that an earlier step made
        layer(x).sum().backward()

    rises = [profile_memory_usage(step).rise_mb for _ in range(4)]
    assert rises[0] > 4 and rises[1] < 1
    assert rises[1:] == [pytest.approx(rises[1], abs=SCALARS / MIB)] * 3


@dataclass
class Boxed:
    x: torch.Tensor


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"data": x}, Boxed, lambda x: Data(x=x)])
def test_inputs_are_found_wherever_they_are_and_what_has_nothing_to_train_has_no_gradients(wrap):
    model = nn.Identity()
    model.forward = lambda data: floats(1)
    parts = get_memory_breakdown(model, wrap(floats(2)))
    assert (parts["input"] * MIB, parts["output"] * MIB) == (2 * KB, KB)
    assert parts["gradients"] == parts["parameters"] == parts["forward_activations"] == 0


def test_a_forward_pass_counts_memory_inside_kernels_and_training_takes_more():
    nodes, hidden, heads = 200, 32, 4
    layer, x = nn.MultiheadAttention(hidden, heads, batch_first=True).eval(), torch.ones(1, nodes, hidden)
    with torch.no_grad():
        layer(x, x, x)
        held = peak_memory(lambda: layer(x, x, x, need_weights=False), CPU)
    assert held.peak > nodes**2 * heads * 4  # the fused kernel keeps all its scores, in no tensor to be seen
    model = GATConv(16, 8, heads=2)
    batch = (torch.randn(50, 16), torch.randint(50, (2, 200)))
    forward, parts = MemoryProfiler(model, "cpu").profile_forward(batch), get_memory_breakdown(model, batch)
    assert 0 < forward.rise_mb < parts["peak_training"]
    assert forward.peak_mb > sum(p.numel() * 4 for p in model.parameters()) / MIB
    assert all(p.grad is None for p in model.parameters())


def test_the_peak_since_the_reset_is_the_largest_and_not_0_when_nothing_ran():
    profile_memory_usage(lambda: floats(9))
    reset_memory_stats()
    with pytest.raises(GnnlabError, match="no memory was measured on the CPU since the reset"):
        get_peak_memory("cpu")
    profile_memory_usage(lambda: floats(8))
    profile_memory_usage(lambda: floats(2))
    assert get_peak_memory(CPU) == pytest.approx(8 * KB / MIB)


def test_devices_that_are_not_there_and_a_second_profiler_are_refused():
    with torch.profiler.profile(), pytest.raises(OneLineError, match="torch's profiler is running"):
        profile_memory_usage(lambda: floats(1))
    with pytest.raises(GnnlabError, match="no device is called 'gpu'"):
        profile_memory_usage(lambda: None, device="gpu")
    with pytest.raises(GnnlabError, match="not on meta"):
        MemoryProfiler(nn.Linear(1, 1, device="meta"))
    if not torch.cuda.is_available():
        with pytest.raises(GnnlabError, match="torch sees no CUDA device"):
            MemoryProfiler(nn.Linear(1, 1), "cuda")


def test_the_estimates_to_the_digit():
    assert round(estimate_attention_memory(1000, 8, 256), 3) == 34.424
    assert estimate_attention_memory(1000, 8, 256, batch_size=3) == 3 * estimate_attention_memory(1000, 8, 256)
    storage = estimate_pe_storage(1000, 32, 16, 0.1)
    assert {name: round(value, 4) for name, value in storage.items()} == {
        "node_pe": 0.1221,
        "relative_pe_dense": 61.0352,
        "relative_pe_sparse": 7.6294,
    }
    with pytest.raises(GnnlabError, match="num_heads must be an integer"):
        estimate_attention_memory(1000, 8.0, 256)
    with pytest.raises(GnnlabError, match="sparse_ratio"):
        estimate_pe_storage(1000, 32, 16, 10)
