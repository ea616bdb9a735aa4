"""Memory: the peak of a call, where the bytes of a model are, and what attention and encodings will take.

    MemoryProfiler(model).profile_forward(batch).peak_mb
    get_memory_breakdown(model, batch)["forward_activations"]

Names are those of S1, the document "Profiling framework" (docs/glossary.md). Its "MB" are MiB here (2**20 bytes), in
every field and function. A batch is what `gnnswap.inputs.call` takes: a tuple is spread, a mapping gives keywords, all
else is one argument. On CUDA peaks are the allocator's; on a CPU torch's profiler records each allocation, those inside
kernels too (fused attention: all its scores). It sees torch's own allocator on the calling thread, so beside it stands
how far the resident memory of the process rose, which numpy, numba and other threads raise, too; where the two differ a
note says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.measure.race import Backward
from gnnlab.measure.restore import unchanged
from gnnlab.measure.tensors import cpu_or_cuda, device_of, parts_of
from gnnswap.cost import PeakMemory, peak_memory
from gnnswap.inputs import call, tensors_in

from .flops import share_of_pairs

MIB = 2**20
FLOAT, INDEX = 4, 8  # bytes of float32 and int64

_peak_on_cpu = 0  # bytes, the largest accounted since the last reset


@dataclass(frozen=True)
class MemoryStats:
    """Memory of one call, in MiB.

    On CUDA `peak_mb`, `allocated_mb` (at the end, the result still alive) and `reserved_mb` are the allocator's, with
    all else that lives on the device. On a CPU they are the tensors of the model and its arguments and what the call
    held beside them; nothing is reserved in advance, so `reserved_mb` is `allocated_mb`. `rise_mb` is the peak above
    what was there before the call, on both; `process_mb` is that rise by the resident memory of the process, None where
    the system does not tell it and on CUDA. `note` says where the two differ, and is "" elsewhere.
    """

    peak_mb: float
    allocated_mb: float
    reserved_mb: float
    device: str
    rise_mb: float
    process_mb: float | None = None
    note: str = ""

    def __str__(self) -> str:
        process = "" if self.process_mb is None else f" (process {self.process_mb:.4g} MiB)"
        text = f"peak {self.peak_mb:.4g} MiB, {self.rise_mb:.4g} MiB above what was there{process}, on {self.device}"
        return f"{text}\n  {self.note}" if self.note else text


def reset_memory_stats(device: Any = None) -> None:
    """Forget the peak so far, of the CPU and of the CUDA device (the current one unless given)."""
    global _peak_on_cpu
    _peak_on_cpu = 0
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats(None if str(device) == "cpu" else device)


def get_peak_memory(device: Any = "cpu") -> float:
    """The peak since the last reset, in MiB: on CUDA of everything, on a CPU of the calls measured in between.

    Raises:
        GnnlabError: on a CPU, when nothing was measured since: there is no peak to tell, and it was not 0; on a device
            that is not there, or is neither a CPU nor CUDA.
    """
    where = cpu_or_cuda(device, "memory")
    peak = torch.cuda.max_memory_allocated(where) if where.type == "cuda" else _peak_on_cpu
    if where.type == "cpu" and not peak:
        raise GnnlabError("no memory was measured on the CPU since the reset: call profile_memory_usage first")
    return peak / MIB


def profile_memory_usage(fn: Callable[..., Any], *args: Any, device: Any = None, **kwargs: Any) -> MemoryStats:
    """The memory of `fn(*args, **kwargs)`, called once. `device` is that of the arguments unless given.

    On a CPU torch reports a free only of blocks that it saw being allocated here. A call that replaces what an earlier
    one made, as a training step does with its gradients, counts both when it is first measured, and from the second
    time on what it needs; the process's rise is right at once.

    Raises:
        GnnlabError: the device is not there, or is neither a CPU nor CUDA.
        SwapError: on a CPU, while torch's profiler is running.

    >>> profile_memory_usage(torch.ones, 2**20).peak_mb  # MiB
    4.0
    """
    global _peak_on_cpu
    where = cpu_or_cuda(device_of(fn, args, kwargs) if device is None else device, "memory")
    cuda = where.type == "cuda"
    before = torch.cuda.memory_allocated(where) if cuda else sum(storages(fn, args, kwargs).values())
    held = peak_memory(lambda: fn(*args, **kwargs), where)
    peak, end = before + held.peak, before + held.at_end
    if not cuda:
        _peak_on_cpu = max(_peak_on_cpu, peak)
    reserved = torch.cuda.memory_reserved(where) if cuda else end
    process = None if held.process is None else held.process / MIB
    note = str(held) if held.agrees is False else ""
    return MemoryStats(peak / MIB, end / MIB, reserved / MIB, str(where), held.peak / MIB, process, note)


class MemoryProfiler:
    """The memory of a model's forward pass, on the device where it is.

    Raises:
        GnnlabError: the model is on another device than the one named, or on neither a CPU nor CUDA.
    """

    def __init__(self, model: nn.Module, device: Any = None) -> None:
        self.model, self.device = model, _model_device(model, device)

    @torch.no_grad()
    def profile_forward(self, batch: Any) -> MemoryStats:
        """One forward pass without gradients, in the mode that the model is in; it is as before after it."""
        with unchanged(self.model, trains=False):
            return profile_memory_usage(call, self.model, batch, device=self.device)


class Breakdown(dict[str, float]):
    """MiB by what they are for; `notes`: for each pass that torch and the process do not see alike, how they differ."""

    notes: tuple[str, ...] = ()


def get_memory_breakdown(model: nn.Module, batch: Any, device: Any = None) -> Breakdown:
    """Where the memory of a model goes, in MiB; shared storage counts once, at the first place that it fits.

    - parameters, buffers, input: what is there before anything runs;
    - forward_activations: what a forward pass keeps for the backward pass;
    - output: what it returns, unless counted before;
    - peak_temporary: the most that a forward pass without gradients holds at once, its output included;
    - peak_training: the most that forward and backward pass hold at once, activations and gradients included;
    - gradients: of the parameters that get one;
    - process_temporary, process_training: the two peaks by the resident memory of the process, where it is known.

    Raises:
        GnnlabError: as of `MemoryProfiler`.
    """
    _model_device(model, device)
    where = device_of(model, batch)
    parts = {
        "parameters": storages(list(model.parameters())),
        "buffers": storages(list(model.buffers())),
        "input": storages(batch),
    }
    with unchanged(model):
        parts["forward_activations"], parts["output"] = _saved_by_forward(model, batch)
        peaks = {
            "temporary": warm_peak(torch.no_grad()(lambda: call(model, batch)), where),
            "training": warm_peak(training_pass(model, batch), where),
        }
    counted: set[int] = set()
    sizes = Breakdown()
    for name, bytes_of in parts.items():
        sizes[name] = sum(size for key, size in bytes_of.items() if key not in counted)
        counted |= bytes_of.keys()
    sizes |= {f"peak_{name}": peak.peak for name, peak in peaks.items()}
    sizes["gradients"] = sum(storages(peaks["training"].result[1]).values())
    sizes |= {f"process_{name}": peak.process for name, peak in peaks.items() if peak.process is not None}
    breakdown = Breakdown((name, size / MIB) for name, size in sizes.items())
    breakdown.notes = tuple(f"{name}: {peak}" for name, peak in peaks.items() if peak.agrees is False)
    return breakdown


def warm_peak(fn: Callable[[], Any], device: torch.device) -> PeakMemory:
    """The peak of a second call, in bytes: the first loads and keeps what it needs, and torch sees its blocks being
    allocated.

    Where the process does not agree with torch, the best of three: its other threads allocate memory, too.
    """
    peak_memory(fn, device)
    peaks = [peak_memory(fn, device)]
    while peaks[-1].agrees is False and len(peaks) < 3:
        peaks.append(peak_memory(fn, device))
    return min(peaks, key=lambda peak: abs((peak.process or 0) - peak.peak))


def estimate_attention_memory(num_nodes: int, num_heads: int, hidden_dim: int, batch_size: int = 1) -> float:
    """MiB of one attention layer that keeps its scores, float32: 4 B (N^2 H + 4 N h) bytes.

    For each of B graphs: the scores, and query, key, value and output of h = `hidden_dim` numbers a node.

    Raises:
        GnnlabError: a size is no whole number, or negative.
    """
    whole_numbers(0, num_nodes=num_nodes, num_heads=num_heads, hidden_dim=hidden_dim, batch_size=batch_size)
    return batch_size * FLOAT * (num_nodes**2 * num_heads + 4 * num_nodes * hidden_dim) / MIB


def estimate_pe_storage(
    num_nodes: int, node_pe_dim: int, relative_pe_buckets: int, sparse_ratio: float = 0.1
) -> dict[str, float]:
    """MiB of encodings, float32: N d for each node; N^2 b for each pair, or for the share `sparse_ratio` of the pairs.

    A pair that is stored by itself also stores its two node numbers (int64).

    Raises:
        GnnlabError: a size is no whole number, or negative; `sparse_ratio` is not in 0..1.
    """
    whole_numbers(0, num_nodes=num_nodes, node_pe_dim=node_pe_dim, relative_pe_buckets=relative_pe_buckets)
    pair = FLOAT * relative_pe_buckets
    return {
        "node_pe": FLOAT * num_nodes * node_pe_dim / MIB,
        "relative_pe_dense": num_nodes**2 * pair / MIB,
        "relative_pe_sparse": round(num_nodes**2 * share_of_pairs(sparse_ratio)) * (pair + 2 * INDEX) / MIB,
    }


def storages(*things: Any) -> dict[int, int]:
    """Bytes of each storage behind the tensors of models and batches, every storage once, by its identity."""
    sizes = {}
    for tensor in tensors_in(things):
        for part in () if isinstance(tensor, UninitializedTensorMixin) else parts_of(tensor):
            sizes[part.untyped_storage()._cdata] = part.untyped_storage().nbytes()
    return sizes


def _saved_by_forward(model: nn.Module, batch: Any) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes of each storage that is kept for the backward pass when the forward pass is over, and of its output; read
    while they are alive, as the address of a storage that has gone may be that of another one."""
    seen = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        for part in parts_of(tensor):
            storage = part.untyped_storage()
            seen[storage._cdata] = weakref.ref(storage)
        return tensor.detach()  # a saved result would hold itself, through the graph that leads to it

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = call(model, batch)
    alive = {key: reference() for key, reference in seen.items()}
    return {key: storage.nbytes() for key, storage in alive.items() if storage is not None}, storages(output)


def training_pass(model: nn.Module, batch: Any) -> Callable[[], tuple[Any, list[torch.Tensor]]]:
    """A function that gives (output, gradients) of one forward and backward pass; `.grad` of the parameters is not
    touched."""
    starts = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ones = lambda ends: [torch.ones_like(end) for end in ends]  # noqa: E731
    both = Backward(lambda: call(model, batch), starts, ones)

    @torch.enable_grad()
    def run() -> tuple[Any, list[torch.Tensor]]:
        output, gradients = both() if starts else (call(model, batch), [])
        return output, [gradient for gradient in gradients if gradient is not None]

    return run


def _model_device(model: nn.Module, device: Any) -> torch.device:
    own = cpu_or_cuda(device_of(model), "memory")
    if device is not None and cpu_or_cuda(device, "memory").type != own.type:
        raise GnnlabError(f"{type(model).__name__} is on {own}, not on {device}: move it there by model.to({device!r})")
    return own
