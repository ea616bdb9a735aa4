"""The largest memory that training took, as far as a device tells; `profiling.memory` accounts single calls."""

from __future__ import annotations

import sys

import psutil
import torch

MIB = 2**20


def forget_peak(device: str) -> None:
    """Start anew on CUDA; the peak of a process cannot be forgotten."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mib(device: str) -> float:
    """CUDA: of the allocator since `forget_peak`. CPU: the largest resident set of this process since it started."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / MIB
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
