"""How long a variant takes, and which of several variants is faster.

    timing = measure(lambda: model(x))                       # one variant: median, interval, all samples
    race({"plain": plain, "fused": fused})                   # several variants, interleaved; the first is the baseline
    with stopwatch() as took: session = compile_it()         # what happens once: took.s, no interval

The rules behind it are in docs/measuring.md.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import psutil

from gnnswap.cost import quiet

from .estimates import CONTROL, LEAST_SAMPLES, interval_so_far, median_interval, order_interval

Variant = Callable[[], Any]
Clock = Callable[[], float]  # seconds

TARGET = 0.02  # half-width of the interval over the median
FIRST_SAMPLES = 24  # before the interval is looked at
MOST_SAMPLES = 2000  # of a variant
SHORTEST_SAMPLE_S = 5e-4  # shorter variants are called several times a sample, so that the clock's grain vanishes
_WARM_SHARE = 0.3  # of the budget
_WARM_BLOCK = 5  # samples
_DRIFT = 0.05  # change of the median from the first third to the last that is noted
_NOISY = 0.10  # interquartile range over the median that is noted


def synchronizer(device: Any = None) -> Callable[[], None]:
    """A function that waits until `device` has done its work.

    A CPU has, when a call returns. But whoever names it, or no device, may be wrong: then the current CUDA device is
    waited for, in a process that uses one.

    Raises:
        ValueError: torch cannot wait for a device of this kind.
    """
    kind = str(device).split(":")[0]
    if device is None or kind == "cpu":
        return _wait_for_cuda
    import torch

    module = getattr(torch, kind, None)
    if module is None or not hasattr(module, "synchronize"):
        raise ValueError(f"device {device!r}: cannot wait for it; torch knows cpu, cuda, mps and xpu")
    index = torch.device(device).index
    return module.synchronize if index is None else partial(module.synchronize, index)


def _wait_for_cuda() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class stopwatch:
    """How long something took that happens once (an export, a build, a first call): `.s` and `.ms`, within the block
    so far, after it in all, also where it raised. What can be repeated is measured (`measure`, `race`).

    Each reading waits for `device`; see `synchronizer`.
    """

    def __init__(self, clock: Clock = time.perf_counter, device: Any = None) -> None:
        wait = synchronizer(device)
        self._clock, self._end = lambda: (wait(), clock())[1], None

    def __enter__(self) -> stopwatch:
        self._start = self._clock()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end = self._clock()

    @property
    def s(self) -> float:
        """Seconds since the block began, or, after it, that it took."""
        return (self._clock() if self._end is None else self._end) - self._start

    @property
    def ms(self) -> float:
        """`s` in milliseconds."""
        return 1e3 * self.s


@dataclass(frozen=True)
class Timing:
    """How long one call of a variant took: every sample in ms, in their order, their median and its 95 % interval.

    A sample is the mean of several calls where one is short. `notes` say what disturbs the comparison: drift, noise, an
    interval that is wider than wanted; none where nothing does.
    """

    samples_ms: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.samples_ms)

    @cached_property
    def median_ms(self) -> float:
        """The median of the samples, in ms."""
        return float(np.median(self.samples_ms))

    @cached_property
    def ci_ms(self) -> tuple[float, float] | None:
        """The 95 % interval of the median, in ms (`estimates.median_interval`); None of fewer than six samples."""
        return median_interval(self.samples_ms)


def measure(
    variant: Callable[..., Any],
    *,
    setup: Callable[[], Any] | None = None,
    device: Any = None,
    target: float = TARGET,
    budget_s: float = 2.0,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Time one variant until the half-width of its median's 95 % interval, over the median, is at most `target`.

    It ends earlier when `budget_s` seconds are spent, or after 2,000 samples. The first call, which may compile, is
    not in the budget. Six samples are taken in any case, the fewest that a 95 % interval can be made of.

    With `setup`, each sample is one call `variant(setup())` and the set-up is not timed (a backward pass needs a new
    graph). Each sample begins and ends when `device` is idle (`synchronizer`). `clock` is for tests.
    """
    run = _Sampler(variant, setup, device, clock)
    with quiet():
        run.sample_ms()  # what is compiled in the first call is not in the budget
        deadline = clock() + budget_s
        warm = (
            () if run.warm_up(_WARM_SHARE * budget_s) else ("block medians differed until the warm-up time was over",)
        )
        table, stolen = _rounds([run], np.random.default_rng(0), target, deadline)
    samples = table[:, 0]
    return Timing(tuple(samples.tolist()), warm + _notes(samples, "samples took", target, budget_s) + stolen)


def sample(
    variant: Callable[..., Any],
    *,
    runs: int,
    warm_up: int = 0,
    setup: Callable[[], Any] | None = None,
    device: Any = None,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """ms of each of `runs` single calls after `warm_up` that do not count; a fixed number, where one is asked for."""
    run = _Sampler(variant, setup, device, clock)
    with quiet():
        return [run.sample_ms() for _ in range(warm_up + runs)][warm_up:]


def race(
    variants: Mapping[str, Variant],
    *,
    control: bool = False,
    device: Any = None,
    target: float = TARGET,
    budget_s: float = 4.0,
    seed: int = 0,
    least: int = LEAST_SAMPLES,
    clock: Clock = time.perf_counter,
) -> dict[str, Timing]:
    """Time variants that compute the same, interleaved: in each round every variant runs once, in random order.

    Check first that they do (`race.require_equal`). The first variant is the baseline, which has no notes; notes of the
    others refer to its times over theirs (`estimates.ratio`). With `control` the baseline runs a second time in each
    round under the name "A/A": what that comparison shows is this run's noise floor. `least` rounds are run whatever
    the budget; `target` and `budget_s` as in `measure`, of the ratios.

    Returns:
        timings by name, in the order of `variants`, "A/A" second; the k-th samples of all are of one round.

    Raises:
        ValueError: a variant is named "A/A", or there is none beside the baseline and no `control`.
    """
    if CONTROL in variants:
        raise ValueError(f"race: {CONTROL!r} names the control, not a variant; give that variant another name")
    names = [*variants][:1] + [CONTROL] * control + [*variants][1:]
    if len(names) < 2:
        raise ValueError("race: no candidates; give at least one, or control=True for the noise floor alone")
    samplers = [_Sampler(variants[names[0] if name == CONTROL else name], None, device, clock) for name in names]
    with quiet():
        for sampler in samplers:
            sampler.sample_ms()
        deadline = clock() + budget_s
        for sampler in samplers:
            sampler.warm_up(_WARM_SHARE * budget_s / len(names))
        table, stolen = _rounds(samplers, np.random.default_rng(seed), target, deadline, least)
    timings = {}
    for name, times in zip(names, table.T, strict=True):
        notes = _notes(table[:, 0] / times, "ratios is at", target, budget_s) + stolen if timings else ()
        timings[name] = Timing(tuple(times.tolist()), notes)
    return timings


def control_differences(variant: Variant, *, repeats: int = 130, budget_s: float = 0.2, **options: Any) -> list[float]:
    """|ratio - 1| in percent that each of `repeats` A/A comparisons reports; `options` are those of `race`."""
    differences = []
    for seed in range(repeats):
        raced = race({"once": variant}, control=True, budget_s=budget_s, seed=seed, **options)
        once, again = (np.asarray(timed.samples_ms) for timed in raced.values())
        differences.append(100 * abs(float(np.median(once / again)) - 1))
    return differences


# ---- how samples are taken -------------------------------------------------------------------------------------------


class _Sampler:
    """One variant: synchronized, and called often enough in a sample for the clock."""

    def __init__(self, variant: Callable[..., Any], setup: Callable[[], Any] | None, device: Any, clock: Clock) -> None:
        self.variant, self.setup, self.clock = variant, setup, clock
        self.synchronize, self.calls = synchronizer(device), 1

    def sample_ms(self) -> float:
        """ms per call."""
        arguments = () if self.setup is None else (self.setup(),)
        variant, calls = self.variant, range(self.calls)
        self.synchronize()
        start = self.clock()
        for _ in calls:
            variant(*arguments)
        self.synchronize()
        return (self.clock() - start) * 1e3 / self.calls

    def warm_up(self, seconds: float) -> bool:
        """Run until two blocks in a row have the same median within 2 %, and tell whether they do. The first block says
        how often the variant is called in a sample."""
        before, deadline = math.inf, self.clock() + seconds
        while True:
            block = [self.sample_ms()]
            while len(block) < _WARM_BLOCK and self.clock() < deadline:
                block.append(self.sample_ms())
            if self.calls == 1 and self.setup is None:
                self.calls = max(1, min(10_000, math.ceil(SHORTEST_SAMPLE_S / max(min(block) / 1e3, 1e-9))))
            median = float(np.median(block))
            warm = len(block) == _WARM_BLOCK and abs(median - before) <= TARGET * median
            if warm or self.clock() >= deadline:
                return warm
            before = median


def _rounds(
    variants: Sequence[_Sampler], order: np.random.Generator, target: float, deadline: float, least: int = LEAST_SAMPLES
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(rounds, variants) ms per call: rounds until the interval of every ratio (of a single variant: of its times) is
    narrow enough or the time is over, but at least `least`. And a note where the hypervisor took more than 2 % of the
    time."""
    rounds: list[list[float]] = []
    wanted, clock = FIRST_SAMPLES, variants[0].clock
    stolen_s, started = _steal_s(), clock()
    while len(rounds) < wanted and (clock() < deadline or len(rounds) < least):
        times = [0.0] * len(variants)
        for i in order.permutation(len(variants)):
            times[i] = variants[i].sample_ms()
        rounds.append(times)
        if len(rounds) == wanted:
            base, *others = np.asarray(rounds).T
            wanted = max(_wanted(samples, target) for samples in ([base / other for other in others] or [base]))
    share = (_steal_s() - stolen_s) / max(clock() - started, 1e-9) / (psutil.cpu_count() or 1)
    note = f"the hypervisor took {100 * share:.0f} % of this machine's time meanwhile"
    return np.asarray(rounds), (note,) if share > 0.02 else ()


def _steal_s() -> float:
    """CPU seconds that the hypervisor gave to others, all cores; 0 where the system does not tell."""
    return getattr(psutil.cpu_times(), "steal", 0.0)


def _wanted(samples: np.ndarray, target: float) -> int:
    """How many samples the interval needs, planned from the spread of the `FIRST_SAMPLES` or more so far.

    Looking at the interval after every few samples and stopping when it is narrow makes it too narrow, so the number
    is planned from the interquartile range, at few looks: each look at least doubles what it looks at or ends it. Of a
    normal distribution that range is 1.349 sigma, and the standard error of the median 1.2533 sigma / sqrt(n). A
    quarter is added.
    """
    n, median = len(samples), float(np.median(samples))
    if _half_width(samples) <= target:
        return n
    q1, q3 = np.quantile(samples, [0.25, 0.75])
    sigma = (q3 - q1) / 1.349 / median
    planned = math.ceil(1.25 * (1.2533 * 1.96 * sigma / target) ** 2)
    return min(MOST_SAMPLES, max(planned, 2 * n)) if n < MOST_SAMPLES else n


def _half_width(samples: np.ndarray) -> float:
    """Of the interval so far, over the median."""
    low, high = interval_so_far(samples)
    median = float(np.median(samples))
    return (high - low) / 2 / median if median > 0 else math.inf


def _notes(samples: np.ndarray, what: str, target: float, budget_s: float) -> tuple[str, ...]:
    """Drift, where the last third lies wholly beside the first; noise; and an interval that is wider than wanted."""
    notes, third, median = [], len(samples) // 3, float(np.median(samples))
    if third >= 5:
        first, last = samples[:third], samples[-third:]
        (low_1, high_1), (low_2, high_2) = order_interval(first), order_interval(last)
        change = float(np.median(last) / np.median(first)) - 1
        if abs(change) > _DRIFT and (low_2 > high_1 or high_2 < low_1):
            notes.append(f"drift: the last third of the {what} {change:+.0%} against the first")
    q1, q3 = np.quantile(samples, [0.25, 0.75])
    if median > 0 and (q3 - q1) / median > _NOISY:
        notes.append(f"noisy: half of the samples spread over {100 * (q3 - q1) / median:.0f} % of the median")
    half_width = _half_width(samples)
    if half_width > target or len(samples) < FIRST_SAMPLES:
        reached = f"interval is ±{100 * half_width:.1f} % after {len(samples)} samples in {budget_s:g} s"
        notes.append(f"{reached}, wanted ±{100 * target:.0f} %")
    return tuple(notes)
