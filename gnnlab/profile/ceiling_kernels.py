"""The kernels whose best times are a device's ceilings: copies, reads, writes, changes in place, matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from gnnlab.measure.timing import synchronizer

_KIB = 32, 64, 256, 1024, 2048, 8192, 12288, 16384, 32768, 65536, 131072, 262144
WORKING_SETS = tuple(kib * 1024 for kib in _KIB)  # bytes
_LEAST_MOVED, _IN_CACHES = 4 * 2**20, 32 * 2**20  # bytes of one call; of a working set that a cache may hold
_FIRST_PRODUCT, _LONG_PRODUCT_S = {"cpu": 256, "cuda": 2048}, 0.005
_PRODUCT_TYPES = {"cpu": (torch.float32, torch.float64, torch.bfloat16)}
_PRODUCT_TYPES["cuda"] = (*_PRODUCT_TYPES["cpu"], torch.float16)  # which takes a CPU without it 70 times as long
_SAMPLE_S, _MOST_CALLS = 5e-4, 20  # of a sample on a CUDA device, which is waited for
_IN_A_ROW = 3  # samples of one kernel: the first finds the data of others in the caches
_HELD_UP, _OTHERS_TURN_S = 3, 0.001


def best_rates(device: torch.device, threads: int, budget_s: float) -> tuple[dict[tuple[str, Any], float], int]:
    """(the best rate of each, the fewest samples of a kernel), in about `budget_s` seconds.

    Rates are GB/s of "copy", "read", "write" and "in place" at each of `WORKING_SETS`, and GFLOP/s of "product" in each
    type, by its name. The first sample of each kernel is that of one thread, which is set already; `threads` stay set.
    """
    end = time.perf_counter() + budget_s
    kernels = [*_moving(device), *_multiplying(device, _LONG_PRODUCT_S * threads)]
    seconds, samples = _fastest([kernel.run for kernel in kernels], device, threads, end)
    best: dict[tuple[str, Any], float] = {}
    for (what, at, amount, _), took in zip(kernels, seconds, strict=True):
        best[what, at] = max(best.get((what, at), 0.0), amount / took / 1e9)
    for what, at in [pair for pair in best if pair[0] in ("read", "write")]:  # what copies has read and written as much
        best[what, at] = max(best[what, at], best["copy", at] / 2, best["in place", at] / 2)
    return best, samples


class _Kernel(NamedTuple):
    """`what` it does `at` a working set or a type, the bytes or FLOPs of a call, and the call."""

    what: str
    at: Any
    amount: int
    run: Callable[[], Any]


def _moving(device: torch.device) -> Iterator[_Kernel]:
    """What copies, reads, writes and changes each working set: small ones several times in a call of torch, so that the
    way into it does not count. From `_LEAST_MOVED` to `_IN_CACHES` bytes it is two kernels, either of which may win."""
    room = torch.ones(max(WORKING_SETS) // 4, device=device)
    for size in WORKING_SETS:
        times, whole = max(1, _LEAST_MOVED // size), room[: size // 4]
        (source, target), again = whole.chunk(2), whole.expand(times, -1)
        ways: dict[str, list[Callable[[], Any]]] = {
            "copy": [
                partial(torch._foreach_copy_, [target] * times, [source] * times),
                partial(torch.clamp_min, source, 0.0, out=target),
            ],
            "read": [partial(again.sum, 1), partial(again.amax, 1)],
            "write": [partial(torch._foreach_zero_, [whole] * times), partial(whole.fill_, 1.0)],
            "in place": [partial(torch._foreach_clamp_min_, [whole] * times, 0.0), partial(whole.mul_, 1.0)],
        }
        for what, runs in ways.items():
            for run in runs[: 2 if _LEAST_MOVED <= size <= _IN_CACHES else 1]:
                yield _Kernel(what, size, times * size * (2 if what == "in place" else 1), run)


def _multiplying(device: torch.device, long_s: float) -> Iterator[_Kernel]:
    """Square products in each type, each twice as large as the one before, until one takes `long_s` seconds."""
    for dtype in _PRODUCT_TYPES[device.type]:
        n, took = _FIRST_PRODUCT[device.type], 0.0
        while took < long_s:
            a, b, out = (torch.ones(n, n, dtype=dtype, device=device) for _ in range(3))
            run = partial(torch.mm, a, b, out=out)
            _seconds(run, device)  # the first call prepares
            took = _seconds(run, device)
            yield _Kernel("product", str(dtype).removeprefix("torch."), 2 * n**3, run)
            n *= 2


def _seconds(run: Callable[[], Any], device: torch.device, calls: int = 1) -> float:
    """Of one call, in a row of them."""
    wait = synchronizer(device)
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    wait()
    return (time.perf_counter() - start) / calls


def _fastest(
    runs: Sequence[Callable[[], Any]], device: torch.device, threads: int, end: float
) -> tuple[list[float], int]:
    """(seconds of the fastest call of each, the fewest samples of one): one sample of each on one thread, then more
    until `end` of the clock; of what takes longer fewer, by the square root of its time."""
    best, samples = [_seconds(run, device) for run in runs], [1] * len(runs)
    torch.set_num_threads(threads)
    while fitting := [at for at, took in enumerate(best) if time.perf_counter() + took < end]:
        at = min(fitting, key=lambda at: best[at] ** 0.5 * samples[at])
        calls = 1 if device.type == "cpu" else max(1, min(_MOST_CALLS, int(_SAMPLE_S / best[at])))
        took = min(
            _seconds(runs[at], device, calls) for _ in range(_IN_A_ROW)
        )  # the first finds others' data in caches
        if took > _HELD_UP * best[at]:
            time.sleep(_OTHERS_TURN_S)  # a process that waits for a core has it now, and not in the next sample
        best[at], samples[at] = min(best[at], took), samples[at] + calls * _IN_A_ROW
    return best, min(samples)
