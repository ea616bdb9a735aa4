"""Which kernels serve a tensor: by its device, and by what is installed.

    passes = triton_for(x)       # the module of Triton kernels for x, None where x is on a CPU or there is no Triton
    sum_kernels(x.device)        # kernels for sums with fixed weights; `swap` times them

On a CPU sums are torch's `embedding_bag`, other passes loops compiled by numba. On a CUDA device a sum with fixed
weights has three kernels: Triton's, cuSPARSE by torch's sparse matrices, and `embedding_bag`. The fastest depends on
the graph and the cost of a launch, so `swap` times them on the example. Other passes are Triton's. On other devices
the layers' own code runs.
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
_HIP = torch.version.hip is not None  # AMD's devices call themselves CUDA; nothing was tested there
# two threads in torch.get_rng_state can deadlock: it waits for the generator's lock with the interpreter's, and may
# collect garbage with the generator's
_RNG_LOCK = threading.Lock()
_PASSES: list[ModuleType | None] = []  # the module of Triton's passes, once imported


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
    """The kernels for a sum with fixed weights on this device, the default first. No cuSPARSE in half precision, where
    two of its runs differ."""
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
    """Is a CUDA graph captured on the current stream? Results have no contents before its first replay."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def refuse_capture() -> None:
    """`SwapError` while a CUDA graph is captured: what is cached has to be computed before."""
    if capturing():
        raise SwapError(
            "a CUDA graph is captured: call the layer once before, backward too, so that its graph is prepared"
        )


def cannot_compare(x: Tensor) -> bool:
    """Would a comparison read values during a CUDA graph capture, or wait for the thread that computes gradients on a
    CUDA device from within it?"""
    return x.is_cuda and (capturing() or torch._C._current_graph_task_id() != -1)


def kernel_missing(x: Tensor) -> str:
    """Why no pass over edges serves this tensor; empty where one does."""
    if not computes(x):
        return f"no kernel for {x.dtype} on {x.device}"
    return "no kernel for cuda: triton is not installed" if x.is_cuda and triton_passes() is None else ""


def _state() -> Tensor:
    with _RNG_LOCK:
        return torch.get_rng_state()


def random_state(device: torch.device) -> Callable[[], bool]:
    """A function that restores the generators of the CPU and of this device to their state now, and tells whether they
    had changed. A CUDA generator is compared by its offset, without waiting for the device."""
    before, on_device = _state(), None
    if device.type == "cuda" and not capturing():
        on_device = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    seed = None if on_device is None else (on_device.initial_seed(), on_device.get_offset())

    def back() -> bool:
        moved = not torch.equal(before, _state())
        if moved:
            with _RNG_LOCK:
                torch.set_rng_state(before)
        if seed is not None and seed != (on_device.initial_seed(), on_device.get_offset()):
            moved = True
            on_device.manual_seed(seed[0])
            on_device.set_offset(seed[1])
        return moved

    return back
