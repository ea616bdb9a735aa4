"""What a call costs: times of two calls in turns, with an interval, and the memory that a call holds at its peak."""

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

LEAST_ROUNDS = 6  # below it there is no 95 % interval of a median
SAMPLE_SECONDS, MOST_CALLS = 2e-3, 50  # of a sample on a CUDA device

MIB = 2**20
NOISE_BYTES, NOISE_SHARE, EVENT_BYTES = 3 * MIB // 4, 0.1, 200  # of the process's peak beside torch's; see `agrees`
LARGE_BYTES = 2**17  # of a block that the C library takes from the system by itself, before it adapts that
ARENA_BYTES = 132 * 1024  # with which the C library starts a thread's arena
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
    """Bytes above what was there before the call: by torch's allocator at the `peak` and `at_end`, its result still
    alive; by the resident memory of the `process` at its peak, None where the system does not tell that.

    torch sees its own allocator on the calling thread; the process sees numpy, numba and other threads, too.
    """

    peak: int
    at_end: int
    result: Any
    process: int | None = None
    allocated: int = 0  # by torch in all, freed again or not
    kept: int = 0  # free memory of other threads' arenas before the call; what they took of it is not seen
    events: int = 0  # that the profiler recorded, in memory of this process
    children: bool = False  # did child processes work during the call? Their memory is not seen

    @property
    def agrees(self) -> bool | None:
        """Is the peak the same for torch and for the process, within 0.75 MiB + 10 % + 200 bytes an event? None where
        that cannot be told.

        Measured: warm calls of GCN, GraphSAGE, GAT, MLP and attention, 0 to 230 MiB, forward and training, 1 and 2
        threads, differ by at most 0.44 MiB + 9 % + 200 bytes an event, where freed blocks go back to the system at
        once (`MALLOC_MMAP_THRESHOLD_=65536` when the process starts). Elsewhere freed blocks stay resident beside new
        ones, so nothing is told of a process that rises further, but by no more than all that torch allocated.
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
    """Call `fn` once and say how much memory it held at once on `device`; for a call on a CPU its tensors must be on
    that CPU.

    torch reports a free only of blocks that it saw being allocated by an earlier call of this function or by this one:
    for a call that replaces what an earlier one made (gradients), measure it twice and take the second.

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
    """How far the resident memory of this process rises from here on; on Linux with the GNU C library."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(None)
            library.malloc_trim(0)  # else blocks that were freed before would be taken and not be seen
            self.kept, self.children = _kept_by_threads(library), _children()
            CLEAR.write_text("5")  # the peak starts anew
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
    """Free bytes of the arenas of other threads, beyond what each starts with: `malloc_trim` leaves their ends."""
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(library.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    library.malloc_info(0, stream)
    library.fclose(stream)
    free = re.findall(rb'type="rest" count="\d+" size="(\d+)"', ctypes.string_at(text.value, size.value))
    library.free(text)
    return sum(max(0, int(one) - ARENA_BYTES) for one in free[1:-1])  # the first is the main arena, the last the sum


def _children() -> tuple[int, dict[str, str]]:
    """Page faults of the child processes that ended, and of each that lives: they grow where a child works."""
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
