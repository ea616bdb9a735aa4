"""Which kernels serve a tensor: by its device, and by what is installed.

    passes = triton_for(x)       # the module of Triton kernels for x, None where x is on a CPU or there is no Triton
    sum_kernels(x.device)        # what a sum with fixed weights may be computed by; a clock chooses

On a CPU there is one of each: embedding bags of torch, and loops compiled by numba. On a CUDA device a sum with fixed
weights has three: a Triton kernel, cuSPARSE by torch's sparse matrices, and an embedding bag; which of them is fastest
depends on the graph and on what a launch costs, so `swap` times them on the example. All else is Triton's. On other
devices the layers' own code runs.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from gnnswap.errors import SwapError

TRITON, CUSPARSE, BAG = "Triton", "cuSPARSE", "embedding bag"
ON_CPU = torch.float32, torch.float64
ON_CUDA = *ON_CPU, torch.float16, torch.bfloat16
_HIP = torch.version.hip is not None  # AMD's devices call themselves CUDA; nothing was tried there
# torch.get_rng_state keeps the interpreter's lock while it waits for the generator's, and may collect garbage while it
# has that: of two threads that ask at once each can wait for the other for ever. Here one asks after the other.
_ONE_ASKS = threading.Lock()
_PASSES: list[ModuleType | None] = []  # the module of Triton's passes, when it was first asked for


def on_gpu(x: Tensor) -> bool:
    """Is it on a CUDA device of NVIDIA?"""
    return x.is_cuda and not _HIP


def triton_passes() -> ModuleType | None:
    """The passes over edges by Triton; None where Triton is not installed."""
    if not _PASSES:
        there = importlib.util.find_spec("triton") is not None
        _PASSES.append(importlib.import_module("gnnswap.triton_passes") if there else None)
    return _PASSES[0]


def triton_for(x: Tensor) -> ModuleType | None:
    """The passes over edges by Triton, for a tensor on a CUDA device; None for any other."""
    return triton_passes() if on_gpu(x) else None


def sum_kernels(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[str, ...]:
    """Names of what computes a sum with fixed weights on this device, the usual one first.

    cuSPARSE is left out in half precision, where two of its runs differ.
    """
    if device.type != "cuda":
        return (BAG,)
    found = (BAG,) if dtype not in ON_CPU else (BAG, CUSPARSE)
    return found if triton_passes() is None else (TRITON, *found)


def device_type(x: Tensor) -> str:
    """As `x.device.type`, which takes six times as long; "" for devices without kernels."""
    return "cpu" if x.is_cpu else "cuda" if on_gpu(x) else ""


def computes(x: Tensor) -> bool:
    """Are there kernels for tensors of its device and type?"""
    return x.dtype in ON_CPU if x.is_cpu else on_gpu(x) and x.dtype in ON_CUDA


def capturing() -> bool:
    """Is a CUDA graph recorded on the current stream? What is computed then has no contents before the first replay."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def refuse_capture() -> None:
    """`SwapError` while a CUDA graph is recorded: what is kept for later calls has to be made before."""
    if capturing():
        raise SwapError(
            "a CUDA graph is captured: call the layer once before, backward too, so that its graph is prepared"
        )


def cannot_compare(x: Tensor) -> bool:
    """Is a CUDA graph recorded, in which no value can be asked for, or does the one thread that computes gradients on a
    CUDA device run this, for which a comparison would wait?"""
    return x.is_cuda and (capturing() or torch._C._current_graph_task_id() != -1)


def kernel_missing(x: Tensor) -> str:
    """Why no pass over edges serves this tensor; empty where one does."""
    if not computes(x):
        return f"no kernel for {x.dtype} on {x.device}"
    return "no kernel for cuda: triton is not installed" if x.is_cuda and triton_passes() is None else ""


def _state() -> Tensor:
    with _ONE_ASKS:
        return torch.get_rng_state()


def random_state(device: torch.device) -> Callable[[], bool]:
    """A function that puts the generators of the CPU and of this device back to where they are now, and says whether
    they were elsewhere. That of a CUDA device is known by its offset, which asks the device nothing."""
    before, on_device = _state(), None
    if device.type == "cuda" and not capturing():
        on_device = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    seed = None if on_device is None else (on_device.initial_seed(), on_device.get_offset())

    def back() -> bool:
        moved = not torch.equal(before, _state())
        if moved:
            with _ONE_ASKS:
                torch.set_rng_state(before)
        if seed is not None and seed != (on_device.initial_seed(), on_device.get_offset()):
            moved = True
            on_device.manual_seed(seed[0])
            on_device.set_offset(seed[1])
        return moved

    return back
