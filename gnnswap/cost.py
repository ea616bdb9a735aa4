"""The cost of a call: interleaved times of two calls, with an interval, and the peak memory of a call."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnswap.errors import SwapError

if TYPE_CHECKING:
    import torch

LEAST_ROUNDS = 6  # with fewer a median has no 95 % interval
FEW_ROUNDS = 3  # at least, so that one disturbance decides nothing; of a call above `LONG_SECONDS` one is enough
LONG_SECONDS = 1.0
SAMPLE_SECONDS, MOST_CALLS = 2e-3, 50  # of a sample on a CUDA device

MIB = 2**20
NOISE_BYTES, NOISE_SHARE, EVENT_BYTES = 3 * MIB // 4, 0.1, 200  # of the process's peak beside torch's; see `agrees`
LARGE_BYTES = 2**17  # of a block that the C library takes from the system by itself, before it adapts that
ARENA_BYTES = 132 * 1024  # with which the C library starts a thread's arena
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Ratio:
    """Time of one call over that of another: the median over `n` rounds, and its 95 % interval.

    With fewer than `LEAST_ROUNDS` rounds `low` and `high` are the smallest and the largest ratio. A sample is the mean
    of `calls` calls.
    """

    value: float
    low: float
    high: float
    n: int
    before_s: float
    after_s: float
    calls: int = 1

    def __str__(self) -> str:
        if self.n == 1:
            return f"{self.value:.2f}x, one round"
        interval = "95 % interval" if self.n >= LEAST_ROUNDS else f"{self.n} rounds from"
        return f"{self.value:.2f}x, {interval} {self.low:.2f} to {self.high:.2f}"


def compare_times(
    before: Callable[[], Any],
    after: Callable[[], Any],
    seconds: float,
    enough: Callable[[Ratio], bool] = lambda ratio: False,
    device: torch.device | None = None,
) -> Ratio:
    """Call both alternately until `seconds` are spent or a ratio is `enough`; their order alternates.

    There are at least `FEW_ROUNDS`, but one where `before` takes `LONG_SECONDS`. The caller warms both up. On a CUDA
    `device` a sample waits for the device, which costs as much as a small kernel, so it is several calls, as many as
    take `SAMPLE_SECONDS`; both are called once before to tell how many.
    """
    ratios, times, end = [], ([], []), time.perf_counter() + seconds
    wait = _waiting(device)
    calls = 1
    if wait is not None:
        slower = max(_seconds(run, 1, wait) for run in (before, after))
        calls = max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / slower)))
    with quiet():
        while True:
            order = (before, after) if len(ratios) % 2 else (after, before)
            spent = {run: _seconds(run, calls, wait) for run in order}
            times[0].append(spent[before]), times[1].append(spent[after])
            ratios.append(spent[before] / spent[after])
            ratio = _ratio_of(ratios, times, calls)
            if ratio.n < FEW_ROUNDS and spent[before] < LONG_SECONDS:
                continue
            if time.perf_counter() > end or enough(ratio):
                return ratio


def _ratio_of(ratios: list[float], times: tuple[list[float], list[float]], calls: int) -> Ratio:
    """With an interval of order statistics, for any distribution."""
    n = len(ratios)
    cut = max(0, int((n - 1.96 * math.sqrt(n)) / 2)) if n >= LEAST_ROUNDS else 0
    in_order = sorted(ratios)
    ratio, before, after = (statistics.median(one) for one in (in_order, *times))
    return Ratio(ratio, in_order[cut], in_order[n - 1 - cut], n, before, after, calls)


def _seconds(run: Callable[[], Any], calls: int, wait: Callable[[], None] | None) -> float:
    """Of a call; with `wait` the mean of several."""
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


def _waiting(device: torch.device | None) -> Callable[[], None] | None:
    """A function that waits for a CUDA device; None for others, where a call has finished when it returns."""
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
    """Bytes above those before the call: of torch's allocator at the `peak` and `at_end`, with its result alive; of the
    resident memory of the `process` at its peak, None where the system does not tell.

    torch sees its own allocator on the calling thread; the process includes numpy, numba and other threads.
    """

    peak: int
    at_end: int
    result: Any
    process: int | None = None
    allocated: int = 0  # by torch in all, also what was freed
    kept: int = 0  # free memory in other threads' arenas before the call, whose use is not seen
    events: int = 0  # of the profiler, which take memory of this process
    children: bool = False  # did child processes run during the call? Their memory is not seen

    @property
    def agrees(self) -> bool | None:
        """Are the peaks of torch and of the process equal, within 0.75 MiB + 10 % + 200 bytes an event? None where that
        is unknown.

        Warm calls of GCN, GraphSAGE, GAT, MLP and attention, 0 to 230 MiB, forward and training, 1 and 2 threads,
        differ by at most 0.44 MiB + 9 % + 200 bytes an event, where freed blocks go back to the system at once
        (`MALLOC_MMAP_THRESHOLD_=65536` when the process starts). Elsewhere freed blocks may stay resident, so a process
        that rises higher, by at most all that torch allocated, tells nothing.
        """
        if self.process is None:
            return None
        over, noise = self.process - self.peak, NOISE_BYTES + NOISE_SHARE * self.peak + EVENT_BYTES * self.events
        most = noise if _frees_at_once() else noise + self.allocated - self.peak
        if self.children or over > most or over + self.kept < -noise:
            return False
        return True if max(abs(over), self.kept) <= noise else None

    def __str__(self) -> str:
        text = f"torch's allocator {self.peak / MIB:.1f} MiB"
        if self.process is None:
            return f"{text}, process not known here"
        text += f", process {self.process / MIB:.1f} MiB"
        if self.children:
            return f"{text}; child processes worked, whose memory is not seen"
        if self.agrees is None:
            return f"{text}; with MALLOC_MMAP_THRESHOLD_=65536 in the environment it can be told whether they agree"
        if self.agrees:
            return f"{text}: they agree"
        if self.process > self.peak:
            return f"{text}: they differ, so memory outside of torch's allocator or on another thread was used"
        return f"{text}: they differ, so some blocks were never written, or older ones freed, which torch does not see"


def peak_memory(fn: Callable[[], Any], device: torch.device) -> PeakMemory:
    """Call `fn` once and measure its peak memory on `device`; on a CPU all of its tensors must be there.

    torch reports the free only of blocks that were allocated within a call of this function: if `fn` replaces tensors
    of an earlier call (gradients), measure it twice and take the second.

    Raises:
        SwapError: on a CPU, if torch's profiler runs already: there can be only one.
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
        process = _Process()
        result = fn()
        seen = process.seen()
    recorded, now, peak, allocated = record.kineto_results.events(), 0, 0, 0
    ours = (event for event in recorded if event.name() == "[memory]")
    for event in sorted(ours, key=lambda event: event.start_ns()):
        if event.device_type() == torch.profiler.DeviceType.CPU:
            now += event.nbytes()
            allocated += max(event.nbytes(), 0)
            peak = max(peak, now)
    return PeakMemory(peak, now, result, **seen, allocated=allocated, events=len(recorded))


class _Process:
    """The rise of this process's resident memory from now on; on Linux with the GNU C library."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(None)
            library.malloc_trim(0)  # else blocks that were freed before would be taken and not be seen
            self.kept, self.children = _kept_by_threads(library), _children()
            CLEAR.write_text("5")  # resets the peak
            self.before = _status("VmRSS")
        except (OSError, AttributeError, TypeError, ValueError):  # Windows has no CDLL(None), macOS no malloc_trim
            self.before = None

    def seen(self) -> dict[str, Any]:
        if self.before is None:
            return {}
        peak = _status("VmHWM") - self.before
        return {"process": peak, "kept": self.kept, "children": _children() != self.children}


def _status(name: str) -> int:
    return 1024 * int(re.search(rf"^{name}:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)[1])


def _kept_by_threads(library: ctypes.CDLL) -> int:
    """Free bytes of other threads' arenas, beyond their initial ones: `malloc_trim` does not return them."""
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(library.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    library.malloc_info(0, stream)
    library.fclose(stream)
    free = re.findall(rb'type="rest" count="\d+" size="(\d+)"', ctypes.string_at(text.value, size.value))
    library.free(text)
    return sum(max(0, int(one) - ARENA_BYTES) for one in free[1:-1])  # the first is the main arena, the last the sum


def _children() -> tuple[int, dict[str, str]]:
    """Page faults of the child processes that ended, and of each that lives: they grow while a child runs."""
    import resource

    ended, living = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt, {}
    with suppress(ChildProcessError):  # there is none
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has just ended
                _, parent, *fields = stat.read_text().rpartition(")")[2].split()
                if int(parent) == os.getpid():
                    living[stat.parent.name] = fields[5]
    return ended, living


def _frees_at_once() -> bool:
    """Does the C library give large blocks back to the system as soon as they are freed?"""
    threshold = os.environ.get("MALLOC_MMAP_THRESHOLD_", "")
    return threshold.isdecimal() and int(threshold) <= LARGE_BYTES


def quiet_profiler() -> None:
    """Keep torch's profiler from writing to the terminal at each start. It reads this once, at its first."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
