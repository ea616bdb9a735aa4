"""The heart of the lab: how long a form takes, and which of several forms is faster.

    timing = measure(lambda: model(x))                       # one form: median, interval, all samples
    race({"plain": plain, "fused": fused})                   # several forms, interleaved; the first is the baseline
    with stopwatch() as took: session = compile_it()         # what happens once: took.s, no interval

The rules behind it (docs/measuring.md): parity before time; runs interleaved in random order, in rounds; the figure
is the median of the ratios within a round; an A/A control in the same rounds gives the noise floor; warm up until
block medians agree; sample until the interval is narrow enough or the budget is spent; keep every sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gnnswap.cost import quiet

from .estimates import CONTROL, LEAST_SAMPLES, median_interval, percentile
from .sampling import (
    FIRST_SAMPLES,
    TARGET,
    Clock,
    Sampler,
    drift_note,
    noise_notes,
    notes_on,
    steal_note,
    steal_s,
    synchronizer,
    wanted_samples,
)

Form = Callable[[], Any]
_WARM_SHARE = 0.3  # of the budget


class stopwatch:
    """How long something took that happens once (an export, a build, a first call): `.s` and `.ms`, within the block
    so far, after it in all, also where it raised. What can be repeated is measured (`measure`, `race`).

    Each reading waits for `device`; see `sampling.synchronizer`.
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
        return (self._clock() if self._end is None else self._end) - self._start

    @property
    def ms(self) -> float:
        return 1e3 * self.s


@dataclass(frozen=True)
class Timing:
    """How long one call of a form took: every sample in ms, their median and its 95 % interval."""

    samples_ms: tuple[float, ...]
    calls_per_sample: int = 1
    warm_up_samples: int = 0
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.samples_ms)

    @cached_property
    def median_ms(self) -> float:
        return float(np.median(self.samples_ms))

    @cached_property
    def ci_ms(self) -> tuple[float, float] | None:
        """The 95 % interval of the median; None of fewer than six samples, whose extremes do not reach 95 %."""
        return median_interval(self.samples_ms) if self.n >= LEAST_SAMPLES else None

    def percentile(self, q: int) -> float | None:
        """The q-th percentile in ms, or None below its sample floor (p90: 64, p95: 130, p99: 662)."""
        return percentile(self.samples_ms, q)


@dataclass(frozen=True)
class Control:
    """A/A comparisons: what each reported, |ratio - 1| in percent, and of how many pairs."""

    differences: tuple[float, ...]
    pairs: tuple[int, ...]


def measure(
    form: Form,
    *,
    setup: Callable[[], Any] | None = None,
    device: Any = None,
    target: float = TARGET,
    budget_s: float = 2.0,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Time one form until the interval of its median is within `target` or `budget_s` seconds are spent.

    Six samples are taken in any case, the fewest that a 95 % interval can be made of.

    With `setup`, each sample is one call `form(setup())` and the set-up is not timed (a backward pass needs a new
    graph). Each sample begins and ends when `device` is idle (`sampling.synchronizer`). `clock` is for tests.
    """
    run = Sampler(form, setup, device, clock)
    with quiet():
        deadline = clock() + budget_s
        warm_up, warm = run.warm_up(clock() + _WARM_SHARE * budget_s)
        steal = steal_s()
        started = clock()
        samples = _rounds([run], np.random.default_rng(0), target, deadline, clock)[:, 0].tolist()
        notes = notes_on(samples, target, budget_s, warm) + steal_note(steal, clock() - started)
    return Timing(tuple(samples), run.calls, warm_up, notes)


def sample(
    form: Callable[..., Any],
    *,
    runs: int,
    warm_up: int = 0,
    setup: Callable[[], Any] | None = None,
    device: Any = None,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """ms of each of `runs` single calls after `warm_up` that do not count; a fixed number, where one is asked for."""
    run = Sampler(form, setup, device, clock, single=True)
    with quiet():
        for _ in range(warm_up):
            run.sample_ms()
        return [run.sample_ms() for _ in range(runs)]


def race(
    forms: Mapping[str, Form],
    *,
    control: bool = False,
    device: Any = None,
    target: float = TARGET,
    budget_s: float = 4.0,
    seed: int = 0,
    least: int = LEAST_SAMPLES,
    clock: Clock = time.perf_counter,
) -> dict[str, Timing]:
    """Time forms that compute the same, interleaved: in each round every form runs once, in random order.

    Check first that they do (`races.require_equal`). The first form is the baseline, which has no notes; notes of the
    others refer to its times over theirs (`estimates.ratio`). With `control` the baseline runs a second time in each
    round under the name "A/A": what that comparison shows is this run's noise floor. `least` rounds are run whatever
    the budget.
    """
    if CONTROL in forms:
        raise ValueError(f"race: {CONTROL!r} names the control, not a form; give that form another name")
    names = [*forms][:1] + [CONTROL] * control + [*forms][1:]
    if len(names) < 2:
        raise ValueError("race: no candidates; give at least one, or control=True for the noise floor alone")
    samplers = [Sampler(forms[names[0] if name == CONTROL else name], None, device, clock) for name in names]
    order = np.random.default_rng(seed)
    with quiet():
        deadline = clock() + budget_s
        spent = [sampler.warm_up(clock() + _WARM_SHARE * budget_s / len(names))[0] for sampler in samplers]
        steal = steal_s()
        started = clock()
        table = _rounds(samplers, order, target, deadline, clock, least)
        stolen = steal_note(steal, clock() - started)
    timings = {}
    for name, sampler, times, warm_up in zip(names, samplers, table.T, spent, strict=True):
        ratios = table[:, 0] / times
        notes = drift_note(ratios, "ratios is at") + noise_notes(ratios, target, budget_s) + stolen if timings else ()
        timings[name] = Timing(tuple(times.tolist()), sampler.calls, warm_up, notes)
    return timings


def control_differences(
    form: Form,
    *,
    repeats: int = 130,
    device: Any = None,
    target: float = TARGET,
    budget_s: float = 0.2,
    clock: Clock = time.perf_counter,
) -> Control:
    """What an A/A control reports, `repeats` times over.

    Each comparison is sampled as `race` does, within `budget_s`; all share one warm-up.
    """
    forms = [Sampler(form, None, device, clock) for _ in range(2)]
    order = np.random.default_rng(0)
    with quiet():
        forms[0].warm_up(clock() + 1.0)
        collected = [_rounds(forms, order, target, clock() + budget_s, clock) for _ in range(repeats)]
    differences = [abs(float(np.median(rounds[:, 0] / rounds[:, 1])) - 1) * 100 for rounds in collected]
    return Control(tuple(differences), tuple(len(rounds) for rounds in collected))


def _rounds(
    forms: Sequence[Sampler],
    order: np.random.Generator,
    target: float,
    deadline: float,
    clock: Clock,
    least: int = LEAST_SAMPLES,
) -> np.ndarray:
    """(rounds, forms) ms per call: rounds until the interval of every ratio (of a single form: of its times) is narrow
    enough or the time is over, but at least the fewest that make an interval."""
    rounds: list[list[float]] = []
    wanted = FIRST_SAMPLES
    while len(rounds) < wanted and (clock() < deadline or len(rounds) < least):
        times = [0.0] * len(forms)
        for i in order.permutation(len(forms)):
            times[i] = forms[i].sample_ms()
        rounds.append(times)
        if len(rounds) == wanted:
            base, *others = np.asarray(rounds).T
            wanted = max(wanted_samples(samples, target) for samples in ([base / other for other in others] or [base]))
    return np.asarray(rounds)
