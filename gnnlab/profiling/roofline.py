"""This machine's ceilings, measured, and how near to them a piece of work comes.

    limits = ceilings()                                # some 3 s
    bound_ms(count(model, batch), limits) / 1.2        # 0.31 of what the machine could do, if it takes 1.2 ms

The bound is for the operators as they are: each has to move its bytes and do its FLOPs before the next begins. A fused
form moves less and may stay below it; that is what fusing is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.machine import cache_bytes

from .conditions import Conditions
from .counting import Count
from .dispatch import cpu_or_cuda
from .timing import race

WORKING_SETS = tuple(kib * 1024 for kib in (32, 64, 256, 1024, 2048, 8192, 32768, 65536, 131072, 262144))  # bytes
_GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
_LEAST_COPIED = 4 * 2**20  # bytes of one sample: smaller working sets are copied several times
_TARGET = 0.001  # of the intervals of the race, so that it lasts as long as the budget


@dataclass(frozen=True)
class Ceilings:
    """What a device can do at most: the best of several samples, as STREAM has it (McCalpin 1995).

    `copy_gb_s`: (bytes of the working set, GB/s) of a copy, smallest first; the working set is source and target
    together, and both the bytes read and the bytes written count. `gemm_gflop_s`: a large square matrix product. GB
    and GFLOP are 1e9.
    """

    copy_gb_s: list[tuple[int, float]]
    gemm_gflop_s: float
    precision: str
    threads: int
    device: str
    samples: int = 1  # of each figure, the least

    def bandwidth_gb_s(self, working_set: Any) -> Any:
        """GB/s at one or many working sets in bytes: between two measured ones on a logarithmic scale, beyond them the
        end's."""
        sizes, speeds = zip(*self.copy_gb_s, strict=True)
        return np.interp(np.log2(np.maximum(np.asarray(working_set, dtype=float), 1)), np.log2(sizes), speeds)

    def named_bandwidths(self) -> list[tuple[str, float]]:
        """For a figure: the fastest working set and the largest one, named by their sizes, with GB/s."""
        fastest, largest = max(self.copy_gb_s, key=lambda pair: pair[1]), self.copy_gb_s[-1]
        return [(f"copy within {size_text(size)}", rate) for size, rate in dict.fromkeys([fastest, largest])]


def ceilings(device: Any = "cpu", threads: int | None = None, budget_s: float = 2.5) -> Ceilings:
    """Measure the ceilings of a device in float32, products in full float32 precision, in about `budget_s` seconds.

    `threads` (of torch, on a CPU) are as they are unless given. The best of several samples counts, not their median:
    on a shared machine the other half of two threads can be kept waiting in most of them, and a ceiling from there
    would be no ceiling. A smaller working set counts as no slower than a larger one: where its copies seem to be, it
    is the way into torch that was measured.

    Raises:
        GnnlabError: the device is not there, or the budget or the threads are no positive number.
    """
    where = cpu_or_cuda(device, "a ceiling")
    if not budget_s > 0:
        raise GnnlabError(f"budget_s must be a positive number of seconds, not {budget_s!r}")
    threads = torch.get_num_threads() if threads is None else threads
    whole_numbers(1, threads=threads)
    with Conditions(threads, "highest").applied(), torch.no_grad():
        found = race(_product(where), _copies(where), parity=None, device=where, budget_s=budget_s, target=_TARGET)
        best = [_times(size) * size / min(pair.candidate.samples_ms) / 1e6 for size, pair in found.items()]
        product = next(iter(found.values())).baseline
        speeds = np.maximum.accumulate(best[::-1])[::-1].tolist()
        return Ceilings(
            copy_gb_s=list(zip(WORKING_SETS, speeds, strict=True)),
            gemm_gflop_s=2 * _GEMM_SIZE[where.type] ** 3 / min(product.samples_ms) / 1e6,
            precision="float32",
            threads=threads,
            device=torch.cuda.get_device_name(where) if where.type == "cuda" else str(where),
            samples=product.n,
        )


def _copies(device: torch.device) -> dict[int, Callable[[], None]]:
    """For each working set copies of half of it to the other half: one call of torch, so that the way into torch does
    not count where they are small."""
    floats = max(WORKING_SETS) // 8
    source, target = torch.ones(floats, device=device), torch.zeros(floats, device=device)
    return {
        size: partial(torch._foreach_copy_, [target[: size // 8]] * _times(size), [source[: size // 8]] * _times(size))
        for size in WORKING_SETS
    }


def _times(size: int) -> int:
    return max(1, _LEAST_COPIED // size)


def _product(device: torch.device) -> Callable[[], torch.Tensor]:
    n = _GEMM_SIZE[device.type]
    a, b = torch.ones(n, n, device=device), torch.ones(n, n, device=device)
    return partial(torch.mm, a, b, out=torch.empty(n, n, device=device))


def last_cache_bytes(device: Any = "cpu") -> int | None:
    """Bytes of the last cache before the memory of `device`; None where the system does not tell."""
    if str(device).startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return cache_bytes()[3]


def size_text(size: float) -> str:
    """Bytes for a reader: "32 KiB", "1.5 MiB"."""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_:
            return f"{size / bytes_:.3g} {unit}"
    return f"{size:.0f} bytes"


def bound_ms(count: Count, limits: Ceilings) -> float:
    """The least time for the counted operators one after another, in ms.

    The sum over the calls of max(bytes / bandwidth at the working set of that call, FLOPs / peak). Operators whose
    FLOPs are not known count with their bytes, so the bound stays one.
    """
    memory = count.records["bytes"] / limits.bandwidth_gb_s(count.records["working_set"]) / 1e6
    compute = count.records["flops"] / limits.gemm_gflop_s / 1e6
    return float((np.maximum(memory, compute) * count.records["calls"]).sum())


def against_copy(
    times: pd.DataFrame, moved: pd.Series, held: pd.Series, device: Any = "cpu", budget_s: float = 2.5
) -> pd.DataFrame:
    """How much of a copy's bandwidth work reaches that must move `moved` bytes of the `held` ones that its arrays take.

    `times` has rows of that table in ms. `value` becomes the share of the roofline: the bytes over the bandwidth of a
    copy of the same size, measured here in about `budget_s` seconds, over the time; it may pass 1 where a cache keeps
    what a copy moves. Adds bytes, bound_ms, and leaves_cache ("yes", "no", "unknown"): do its arrays take more than the
    device's last cache?
    """
    limits, cache = ceilings(device, budget_s=budget_s), last_cache_bytes(device)
    bound = moved.map(lambda size: size / limits.bandwidth_gb_s(size) / 1e6)
    leaves = held.map(lambda size: "unknown" if cache is None else "yes" if size > cache else "no")
    share = {"value": bound / times["value"], "low": bound / times["high"], "high": bound / times["low"]}
    told = {"unit": "share", "better": "higher", "origin": "measured", "statistic": "median"}
    kept = times.drop(columns=["ratio", "ratio_low", "ratio_high", "baseline", "parity_error"], errors="ignore")
    return kept.assign(bytes=moved, bound_ms=bound, leaves_cache=leaves, **share, **told)
