"""How samples are taken: one form at a time, warm, synchronized, as many as the interval needs, with notes on what went
wrong. `timing` decides what is compared with what."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil

from .estimates import order_interval

Clock = Callable[[], float]  # seconds

TARGET = 0.02  # half-width of the interval over the median
FIRST_SAMPLES = 24
MOST_SAMPLES = 2000
SLOW_CALL_S = 0.01  # a call that long needs no repetition within a sample
SHORTEST_SAMPLE_S = 5e-4  # shorter forms are called several times a sample, so that the clock's grain vanishes
_WARM_BLOCK = 5
_DRIFT = 0.05
_NOISY = 0.10


def wait_for_cuda() -> None:
    """Wait until the current CUDA device has done its work, if this process uses one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def synchronizer(device: Any = None) -> Callable[[], None]:
    """A function that waits until `device` has done its work.

    A CPU has, when a call returns. But whoever names it, or no device, may be wrong: then the current CUDA device is
    waited for, in a process that uses one.
    """
    kind = str(device).split(":")[0]
    if device is None or kind == "cpu":
        return wait_for_cuda
    import torch

    module = getattr(torch, kind, None)
    if module is None or not hasattr(module, "synchronize"):
        raise ValueError(f"device {device!r}: cannot wait for it; torch knows cpu, cuda, mps and xpu")
    index = torch.device(device).index
    return module.synchronize if index is None else partial(module.synchronize, index)


class Sampler:
    """One form, ready to be sampled: synchronized, and called often enough per sample for the clock."""

    def __init__(
        self, form: Callable[..., Any], setup: Callable[[], Any] | None, device: Any, clock: Clock, single: bool = False
    ) -> None:
        self.form, self.setup, self.clock = form, setup, clock
        self.synchronize = synchronizer(device)
        self.calls, self.repeats = 1, setup is None and not single
        if not single and self.sample_ms() < 1e3 * SLOW_CALL_S:
            self._choose_calls(self.sample_ms() for _ in range(3))

    def _choose_calls(self, single_calls_ms: Iterable[float]) -> None:
        """How often the form is called in a sample, from the fastest of some single calls."""
        if self.repeats:
            one_call_s = min(single_calls_ms) / 1e3
            self.calls = max(1, min(10_000, math.ceil(SHORTEST_SAMPLE_S / max(one_call_s, 1e-9))))

    def sample_ms(self) -> float:
        """ms per call."""
        arguments = () if self.setup is None else (self.setup(),)
        form, calls = self.form, range(self.calls)
        self.synchronize()
        start = self.clock()
        for _ in calls:
            form(*arguments)
        self.synchronize()
        return (self.clock() - start) * 1e3 / self.calls

    def warm_up(self, deadline: float) -> tuple[int, bool]:
        """Run until two blocks in a row have the same median within 2 %; returns samples spent, and whether they do."""
        before, spent = math.inf, 0
        while self.clock() < deadline or spent == 0:
            block = [self.sample_ms()]
            while len(block) < _WARM_BLOCK and self.clock() < deadline:
                block.append(self.sample_ms())
            spent += len(block)
            if self.calls == 1:  # the first call was slow, as one that compiles is: what follows may be fast
                self._choose_calls(block)
            if len(block) < _WARM_BLOCK:
                break
            median = float(np.median(block))
            if abs(median - before) <= TARGET * median:
                return spent, True
            before = median
        return spent, False


def half_width(median: float, ci: tuple[float, float]) -> float:
    return (ci[1] - ci[0]) / 2 / median if median > 0 else math.inf


def wanted_samples(samples: Sequence[float], target: float) -> int:
    """How many samples the interval needs, planned from the spread of the `FIRST_SAMPLES` or more so far.

    Looking at the interval after every few samples and stopping when it is narrow makes it too narrow, so the number
    is planned from the interquartile range, at few looks: each look at least doubles what it looks at or ends it.
    """
    n, median = len(samples), float(np.median(samples))
    if half_width(median, order_interval(samples)) <= target:
        return n
    q1, q3 = np.quantile(samples, [0.25, 0.75])
    sigma = (q3 - q1) / 1.349 / median
    planned = math.ceil(1.25 * (1.2533 * 1.96 * sigma / target) ** 2)
    return min(MOST_SAMPLES, max(planned, 2 * n)) if n < MOST_SAMPLES else n


def notes_on(samples: Sequence[float], target: float, budget_s: float, warm: bool) -> tuple[str, ...]:
    """What a reader should know of the samples of one form: not warm, drift, noise, an interval wider than wanted."""
    notes = () if warm else ("block medians still differed when the warm-up time was spent",)
    return notes + drift_note(samples) + noise_notes(samples, target, budget_s)


def noise_notes(samples: Sequence[float], target: float, budget_s: float) -> tuple[str, ...]:
    """The notes that hold for ratios too: noise, and an interval wider than wanted."""
    median = float(np.median(samples))
    q1, q3 = np.quantile(samples, [0.25, 0.75])
    notes = []
    if median > 0 and (q3 - q1) / median > _NOISY:
        notes.append(f"noisy: half of the samples spread over {100 * (q3 - q1) / median:.0f} % of the median")
    half = half_width(median, order_interval(samples))
    if half > target or len(samples) < FIRST_SAMPLES:
        reached = f"interval is ±{100 * half:.1f} % after {len(samples)} samples in {budget_s:g} s"
        notes.append(f"{reached}, wanted ±{100 * target:.0f} %")
    return tuple(notes)


def drift_note(samples: Sequence[float], what: str = "samples took") -> tuple[str, ...]:
    """A note where the last third of the samples lies wholly beside the first, by more than `_DRIFT`."""
    third = len(samples) // 3
    if third < 5:
        return ()
    first, last = samples[:third], samples[-third:]
    (low_1, high_1), (low_2, high_2) = order_interval(first), order_interval(last)
    change = float(np.median(last) / np.median(first)) - 1
    if abs(change) > _DRIFT and (low_2 > high_1 or high_2 < low_1):
        return (f"drift: the last third of the {what} {change:+.0%} against the first",)
    return ()


def steal_s() -> float:
    """CPU seconds that the hypervisor gave to others, all cores; 0 where the system does not tell."""
    return getattr(psutil.cpu_times(), "steal", 0.0)


def steal_note(before: float, seconds: float) -> tuple[str, ...]:
    """A note where the hypervisor took more than 2 % since `before` (from `steal_s`), in `seconds` of wall time."""
    share = (steal_s() - before) / max(seconds, 1e-9) / (psutil.cpu_count() or 1)
    return (f"the hypervisor took {100 * share:.0f} % of this machine's time meanwhile",) if share > 0.02 else ()
