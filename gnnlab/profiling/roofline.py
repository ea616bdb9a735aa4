"""This machine's ceilings, measured, and how near to them a piece of work comes.

    limits = ceilings()                                              # under 3 s
    share_reached(count(model, batch), limits, measured_ms=1.2)      # 0.31: a third of what the machine could do

The bound is for the operators as they are: each has to move its bytes and do its FLOPs before the next begins. A fused
form moves less and may stay below it; that is what fusing is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from gnnlab.machine import cache_bytes

from .costs import Cost
from .counting import Count

WORKING_SETS = tuple(kib * 1024 for kib in (32, 64, 256, 1024, 2048, 8192, 32768, 65536, 131072, 262144))  # bytes
_GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
_COPY_SHARE = 0.7  # of the budget; the rest is for the product
_SAMPLE_S = 3e-4  # small copies are repeated up to this, so that neither the clock nor Python counts


class RooflineError(ValueError):
    """A device, a budget or a time that no ceiling can be had for. The message is one line for the reader."""


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

    def bandwidth_gb_s(self, working_set: float) -> float:
        """GB/s at a working set in bytes: between two measured ones on a logarithmic scale, beyond them the end's."""
        sizes, speeds = zip(*self.copy_gb_s, strict=True)
        return float(np.interp(np.log2(max(working_set, 1)), np.log2(sizes), speeds))

    def named_bandwidths(self) -> list[tuple[str, float]]:
        """For a figure: the fastest working set and the largest one, named by their sizes, with GB/s."""
        fastest, largest = max(self.copy_gb_s, key=lambda pair: pair[1]), self.copy_gb_s[-1]
        return [(f"copy within {size_text(size)}", rate) for size, rate in dict.fromkeys([fastest, largest])]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `Ceilings.from_dict` reads it back."""
        return asdict(self) | {"copy_gb_s": [list(pair) for pair in self.copy_gb_s]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ceilings:
        return cls(**{**data, "copy_gb_s": [(int(size), float(speed)) for size, speed in data["copy_gb_s"]]})


def ceilings(device: Any = "cpu", threads: int | None = None, budget_s: float = 2.5) -> Ceilings:
    """Measure the ceilings of a device in float32, products in full float32 precision, in about `budget_s` seconds.

    `threads` (of torch, on a CPU) are as they are unless given. The best of several samples counts, not their median:
    on a shared machine the other half of two threads can be kept waiting in most of them, and a ceiling from there
    would be no ceiling. A smaller working set counts as no slower than a larger one: where its copies seem to be, it
    is the way into torch that was measured.

    Raises:
        RooflineError: the device is not there, or the budget or the threads are no positive number.
    """
    where = _device(device)
    if not budget_s > 0:
        raise RooflineError(f"budget_s must be a positive number of seconds, not {budget_s!r}")
    with _conditions(threads):
        start = time.perf_counter()
        copies, products = _copies(where), _product(where)
        copy_samples = _sample(copies, start + _COPY_SHARE * budget_s, where)
        gemm_samples = _sample([products], start + budget_s, where)
        best = [max(samples) / 1e9 for samples in copy_samples]
        speeds = np.maximum.accumulate(best[::-1])[::-1].tolist()
        return Ceilings(
            copy_gb_s=list(zip(WORKING_SETS, speeds, strict=True)),
            gemm_gflop_s=max(gemm_samples[0]) / 1e9,
            precision="float32",
            threads=torch.get_num_threads(),
            device=torch.cuda.get_device_name(where) if where.type == "cuda" else str(where),
            samples=min(len(copy_samples[0]), len(gemm_samples[0])),
        )


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
    return sum(_cost_ms(cost, limits)[0] * calls for (_, _, cost), calls in count.records.items())


def against_copy(times: pd.DataFrame, moved: pd.Series, held: pd.Series, device: Any = "cpu") -> pd.DataFrame:
    """How much of a copy's bandwidth work reaches that must move `moved` bytes of the `held` ones that its arrays take.

    `times` has rows of that table in ms. `value` becomes the share of the roofline: the bytes over the bandwidth of a
    copy of the same size, measured here, over the time; it may pass 1 where a cache keeps what a copy moves. Adds
    bytes, bound_ms, and leaves_cache ("yes", "no", "unknown"): do its arrays take more than the device's last cache?
    """
    limits, cache = ceilings(device), last_cache_bytes(device)
    bound = moved.map(lambda size: size / limits.bandwidth_gb_s(size) / 1e6)
    leaves = held.map(lambda size: "unknown" if cache is None else "yes" if size > cache else "no")
    share = {"value": bound / times["value"], "low": bound / times["high"], "high": bound / times["low"]}
    told = {"unit": "share", "better": "higher", "origin": "measured", "statistic": "median"}
    kept = times.drop(columns=["ratio", "ratio_low", "ratio_high", "baseline", "parity_error"], errors="ignore")
    return kept.assign(bytes=moved, bound_ms=bound, leaves_cache=leaves, **share, **told)


def share_reached(count: Count, limits: Ceilings, measured_ms: float) -> float:
    """`bound_ms` over the measured time: 1 is the roofline."""
    if not measured_ms > 0:
        raise RooflineError(f"measured_ms must be a positive number of milliseconds, not {measured_ms!r}")
    return bound_ms(count, limits) / measured_ms


def bounds(count: Count, limits: Ceilings) -> pd.DataFrame:
    """A row for each operator: operator, calls, flops, bytes, flops_per_byte, bound_ms, limit (memory or compute)."""
    rows: dict[str, dict[str, Any]] = {}
    for (name, _, cost), calls in count.records.items():
        row = rows.setdefault(
            name, {"operator": name, "calls": 0, "flops": 0, "bytes": 0, "memory": 0.0, "compute": 0.0}
        )
        ms, limit = _cost_ms(cost, limits)
        row["calls"] += calls
        row["flops"] += cost.flops * calls
        row["bytes"] += (cost.bytes_read + cost.bytes_written) * calls
        row[limit] = row.get(limit, 0.0) + ms * calls
    columns = ["operator", "calls", "flops", "bytes", "memory", "compute"]
    table = pd.DataFrame(list(rows.values()), columns=columns).fillna(0.0)
    table["flops_per_byte"] = table.flops / table.bytes.where(table.bytes > 0)
    table["bound_ms"] = table.memory + table.compute
    table["limit"] = np.where(table.compute > table.memory, "compute", "memory")
    table = table.sort_values("bound_ms", ascending=False, kind="stable", ignore_index=True)
    return table.drop(columns=["memory", "compute"])


def point(label: str, count: Count, measured_ms: float) -> dict[str, Any]:
    """Where a piece of work stands in a roofline picture: label, flops_per_byte, gflop_s."""
    if not measured_ms > 0 or not count.bytes:
        raise RooflineError(
            f"{label}: a point needs a positive time and bytes, not {measured_ms!r} ms and {count.bytes} B"
        )
    return {"label": label, "flops_per_byte": count.flops / count.bytes, "gflop_s": count.flops / measured_ms / 1e6}


def _cost_ms(cost: Cost, limits: Ceilings) -> tuple[float, str]:
    memory = (cost.bytes_read + cost.bytes_written) / limits.bandwidth_gb_s(cost.working_set) / 1e6
    compute = cost.flops / limits.gemm_gflop_s / 1e6
    return max(memory, compute), "compute" if compute > memory else "memory"


Task = tuple[Callable[[int], None], float, list[int]]  # run it so many times; its bytes or FLOPs; how many times


def _copies(device: torch.device) -> list[Task]:
    """A copy for each working set: half of it source, half target."""
    floats = max(WORKING_SETS) // 8
    source, target = torch.ones(floats, device=device), torch.zeros(floats, device=device)
    return [(_copy(source[: size // 8], target[: size // 8]), size, [1]) for size in WORKING_SETS]


def _copy(source: torch.Tensor, target: torch.Tensor) -> Callable[[int], None]:
    def run(times: int) -> None:  # one call of torch for all, so that the way into torch does not count
        torch._foreach_copy_([target] * times, [source] * times)

    return run


def _product(device: torch.device) -> Task:
    n = _GEMM_SIZE[device.type]
    a, b = torch.ones(n, n, device=device), torch.ones(n, n, device=device)
    out = torch.empty(n, n, device=device)

    def run(times: int) -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    return run, 2 * n**3, [1]


def _sample(tasks: list[Task], until: float, device: torch.device) -> list[list[float]]:
    """Bytes or FLOPs per second of each task, in turns until the time is up: at least one sample after a warm-up."""
    samples: list[list[float]] = [[] for _ in tasks]
    for run, _, times in tasks:
        _seconds(run, 1, device)
        times[0] = max(1, int(_SAMPLE_S / max(_seconds(run, 1, device), 1e-7)))
    while True:
        for (run, work, times), found in zip(tasks, samples, strict=True):
            found.append(work * times[0] / _seconds(run, times[0], device))
        if time.perf_counter() >= until:
            return samples


def _seconds(run: Callable[[int], None], times: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run(times)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@contextmanager
def _conditions(threads: int | None) -> Iterator[None]:
    """Threads and precision set, and put back."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise RooflineError(f"threads must be a whole number of at least 1, not {threads!r}")
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(before)


def _device(device: Any) -> torch.device:
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise RooflineError(f"no device is called {device!r}; use cpu or cuda") from error
    if where.type not in _GEMM_SIZE:
        raise RooflineError(f"ceilings are measured on cpu and cuda, not on {where.type}")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise RooflineError(f"device {where} was asked for, but torch sees no CUDA device here; use cpu")
    return where
