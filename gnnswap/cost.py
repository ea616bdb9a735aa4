"""What a call costs: times of two calls in turns, with an interval, and the memory that a call holds at its peak."""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnnswap.errors import SwapError

if TYPE_CHECKING:
    import torch

LEAST_ROUNDS = 6  # below it there is no 95 % interval of a median
SAMPLE_SECONDS, MOST_CALLS = 2e-3, 50  # of a sample on a CUDA device


@dataclass(frozen=True)
class Ratio:
    """Time of one call over that of another: the median over `n` rounds, and its 95 % interval.

    With fewer than `LEAST_ROUNDS` rounds `low` and `high` are the smallest and the largest ratio, and no interval.
    `calls`: how many a sample is the mean of.
    """

    value: float
    low: float
    high: float
    n: int
    before_s: float
    after_s: float
    calls: int = 1

    def __str__(self) -> str:
        interval = f", 95 % interval {self.low:.2f} to {self.high:.2f}" if self.n >= LEAST_ROUNDS else ""
        return f"{self.value:.2f}x{interval}"


def compare_times(
    before: Callable[[], Any],
    after: Callable[[], Any],
    seconds: float,
    enough: Callable[[Ratio], bool] = lambda ratio: False,
    device: torch.device | None = None,
) -> Ratio:
    """Both are called in turns until `seconds` are spent or a ratio is `enough`, once at least.

    On a CUDA `device` the clock waits for the device, and a sample is a row of calls, as many as take `SAMPLE_SECONDS`:
    a call returns before the device has done its work, and waiting costs as much as a small kernel.

    Which comes first changes from round to round. `enough` is asked after the first round, then from round
    `LEAST_ROUNDS` on. What a first call prepares is the caller's business; on a CUDA device both are called once more
    before, to see how long they take.
    """
    ratios, times, end = [], ([], []), time.perf_counter() + seconds
    wait = _waiting(device)
    calls = 1 if wait is None else _calls(max(_seconds(run, 1, wait) for run in (before, after)))
    with quiet():
        while True:
            order = (before, after) if len(ratios) % 2 else (after, before)
            spent = {run: _seconds(run, calls, wait) for run in order}
            times[0].append(spent[before]), times[1].append(spent[after])
            ratios.append(spent[before] / spent[after])
            ratio = _ratio_of(ratios, times, calls)
            if time.perf_counter() > end or ((ratio.n == 1 or ratio.n >= LEAST_ROUNDS) and enough(ratio)):
                return ratio


def _ratio_of(ratios: list[float], times: tuple[list[float], list[float]], calls: int) -> Ratio:
    """The interval is one of order statistics, which asks nothing of the distribution."""
    n = len(ratios)
    cut = max(0, int((n - 1.96 * math.sqrt(n)) / 2)) if n >= LEAST_ROUNDS else 0
    in_order = sorted(ratios)
    ratio, before, after = (statistics.median(one) for one in (in_order, *times))
    return Ratio(ratio, in_order[cut], in_order[n - 1 - cut], n, before, after, calls)


def _seconds(run: Callable[[], Any], calls: int, wait: Callable[[], None] | None) -> float:
    """Of a call; where there is something to `wait` for, the mean of several."""
    if wait is None:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    wait()
    return (time.perf_counter() - start) / calls


def _calls(seconds: float) -> int:
    return max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / seconds)))


def _waiting(device: torch.device | None) -> Callable[[], None] | None:
    """What waits for a CUDA device; None where a call has done its work when it returns."""
    if device is None or device.type != "cuda":
        return None
    import torch

    return lambda: torch.cuda.synchronize(device)


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection while sampling."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class PeakMemory:
    """Bytes above what was alive before the call: at the peak, and at its end, its result still alive."""

    peak: int
    at_end: int
    result: Any


def peak_memory(fn: Callable[[], Any], device: torch.device) -> PeakMemory:
    """Call `fn` and say what torch's allocator gave it at once on `device`; for a call on a CPU its tensors must be on
    that CPU.

    Raises:
        SwapError: on a CPU, where a profiler of torch is running already: there can be one only.
    """
    import torch  # takes a second, which who only times need not spend
    from torch.autograd.profiler import profile

    if device.type == "cuda":
        gc.collect()  # garbage of earlier work must not die in the middle
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = fn()
        torch.cuda.synchronize(device)
        peak, end = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        return PeakMemory(peak - before, end - before, result)
    if torch.autograd.profiler._is_profiler_enabled:
        raise SwapError("torch's profiler is running; memory on a CPU is measured by it, so end it first")
    quiet_profiler()
    with quiet(), profile(profile_memory=True) as record:
        result = fn()
    now = peak = 0
    events = (event for event in record.kineto_results.events() if event.name() == "[memory]")
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == torch.profiler.DeviceType.CPU:
            now += event.nbytes()
            peak = max(peak, now)
    return PeakMemory(peak, now, result)


def quiet_profiler() -> None:
    """Keep torch's profiler from writing to the terminal at each start. It reads this once, at its first."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
