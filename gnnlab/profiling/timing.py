"""The heart of the lab: how long a form takes, and which of several forms is faster.

    timing = measure(lambda: model(x))                       # one form: median, interval, all samples
    race(baseline, {"fused": fused, "compiled": compiled})   # several forms, against the first, interleaved
    compare(baseline, candidate)                             # two of them

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

from .intervals import median_interval, percentile
from .parity import RTOL_FLOAT32, require_equal
from .sampling import (
    FIRST_SAMPLES,
    LEAST_SAMPLES,
    TARGET,
    Clock,
    Sampler,
    half_width,
    noise_notes,
    notes_on,
    quiet,
    steal_note,
    steal_s,
    wanted_samples,
)

Form = Callable[[], Any]
_WARM_SHARE = 0.3  # of the budget


@dataclass(frozen=True)
class Timing:
    """How long one call of a form took: every sample in ms, their median and its 95 % interval."""

    samples_ms: tuple[float, ...]
    calls_per_sample: int = 1
    warm_up_samples: int = 0
    first_call_ms: float | None = None
    target: float = TARGET
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.samples_ms)

    @cached_property
    def median_ms(self) -> float:
        return float(np.median(self.samples_ms))

    @cached_property
    def ci_ms(self) -> tuple[float, float]:
        return median_interval(self.samples_ms)

    @property
    def stable(self) -> bool:
        """Is the interval of the median within the target (2 % unless told)?"""
        return self.n >= LEAST_SAMPLES and half_width(self.median_ms, self.ci_ms) <= self.target

    @property
    def mean_ms(self) -> float:
        return float(np.mean(self.samples_ms))

    @property
    def std_ms(self) -> float:
        return float(np.std(self.samples_ms))

    @property
    def min_ms(self) -> float:
        return min(self.samples_ms)

    @property
    def max_ms(self) -> float:
        return max(self.samples_ms)

    def percentile(self, q: int) -> float | None:
        """The q-th percentile in ms, or None below its sample floor (p90: 64, p95: 130, p99: 662)."""
        return percentile(self.samples_ms, q)


@dataclass(frozen=True)
class Comparison:
    """A candidate against a baseline: `ratio` is baseline time over candidate time, above 1 the candidate is faster."""

    baseline: Timing
    candidate: Timing
    ratios: tuple[float, ...]  # one a round
    target: float = TARGET
    parity_error: float | None = None  # largest relative difference of the outputs; None: not asked for
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.ratios)

    @cached_property
    def ratio(self) -> float:
        return float(np.median(self.ratios))

    @cached_property
    def ci(self) -> tuple[float, float]:
        return median_interval(self.ratios)

    @property
    def difference_seen(self) -> bool:
        """Does the interval exclude 1?"""
        return not self.ci[0] <= 1 <= self.ci[1]

    @property
    def stable(self) -> bool:
        return self.n >= LEAST_SAMPLES and half_width(self.ratio, self.ci) <= self.target

    @property
    def sentence(self) -> str:
        low, high = self.ci
        interval = f"95 % interval {low:.3f} to {high:.3f}, {self.n} pairs"
        if not self.difference_seen:
            return f"no difference seen ({interval})"
        word = f"{self.ratio:.2f} times as fast" if self.ratio > 1 else f"slower: {1 / self.ratio:.2f} times the time"
        return f"{word} ({interval})"


@dataclass(frozen=True)
class Control:
    """A/A comparisons: what each reported, |ratio - 1| in percent, and of how many pairs."""

    differences: tuple[float, ...]
    pairs: tuple[int, ...]


def measure(
    form: Form,
    *,
    setup: Callable[[], Any] | None = None,
    device: Any = "cpu",
    target: float = TARGET,
    budget_s: float = 2.0,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Time one form until the interval of its median is within `target` or `budget_s` seconds are spent.

    Six samples are taken in any case, the fewest that a 95 % interval can be made of.

    With `setup`, each sample is one call `form(setup())` and the set-up is not timed (a backward pass needs a new
    graph). `device` is synchronized around each sample. `clock` is for tests.
    """
    run = Sampler(form, setup, device, clock)
    with quiet():
        deadline = clock() + budget_s
        warm_up, warm = run.warm_up(clock() + _WARM_SHARE * budget_s)
        steal = steal_s()
        started = clock()
        samples: list[float] = []
        while (wanted := wanted_samples(samples, target)) > len(samples) and _goes_on(samples, clock() < deadline):
            while len(samples) < wanted and _goes_on(samples, clock() < deadline):
                samples.append(run.sample_ms())
        notes = notes_on(samples, target, budget_s, warm) + steal_note(steal, clock() - started)
    return Timing(tuple(samples), run.calls, warm_up, run.first_call_ms, target, notes)


def sample(
    form: Callable[..., Any],
    *,
    runs: int,
    warm_up: int = 0,
    setup: Callable[[], Any] | None = None,
    device: Any = "cpu",
    clock: Clock = time.perf_counter,
) -> list[float]:
    """ms of each of `runs` single calls after `warm_up` that do not count; a fixed number, where one is asked for."""
    run = Sampler(form, setup, device, clock, single=True)
    with quiet():
        for _ in range(warm_up):
            run.sample_ms()
        return [run.sample_ms() for _ in range(runs)]


def compare(baseline: Form, candidate: Form, **options: Any) -> Comparison:
    """`race` of one candidate."""
    return race(baseline, {"candidate": candidate}, **options)["candidate"]


def race(
    baseline: Form,
    candidates: Mapping[str, Form],
    *,
    control: bool = False,
    parity: float | None = RTOL_FLOAT32,
    device: Any = "cpu",
    target: float = TARGET,
    budget_s: float = 4.0,
    seed: int = 0,
    least: int = LEAST_SAMPLES,
    clock: Clock = time.perf_counter,
) -> dict[str, Comparison]:
    """Time forms that compute the same, interleaved: in each round every form runs once, in random order.

    With `control` the baseline runs a second time in each round under the name "A/A": what that comparison shows is
    this run's noise floor. Before any timing the outputs of each candidate must agree with the baseline's within the
    relative error `parity` (`ParityError` otherwise); None skips that, for forms that have no output. `least`
    rounds are run whatever the budget.
    """
    if control:
        candidates = {"A/A": baseline, **candidates}
    if not candidates:
        raise ValueError("race: no candidates; give at least one, or control=True for the noise floor alone")
    errors = _parity_errors(baseline, candidates, parity)
    forms = [Sampler(form, None, device, clock) for form in (baseline, *candidates.values())]
    order = np.random.default_rng(seed)
    with quiet():
        deadline = clock() + budget_s
        share = _WARM_SHARE * budget_s / len(forms)
        warm = [form.warm_up(clock() + share) for form in forms]
        steal = steal_s()
        started = clock()
        table = _rounds(forms, order, target, deadline, clock, least)
        stolen = steal_note(steal, clock() - started)
    timings = [
        Timing(tuple(column), form.calls, n, form.first_call_ms, target, notes_on(column, target, budget_s, is_warm))
        for form, column, (n, is_warm) in zip(forms, table.T.tolist(), warm, strict=True)
    ]
    return {
        name: Comparison(
            timings[0],
            timings[i],
            tuple((table[:, 0] / table[:, i]).tolist()),
            target,
            errors.get(name),
            noise_notes(table[:, 0] / table[:, i], target, budget_s) + stolen,
        )
        for i, name in enumerate(candidates, start=1)
    }


def control_differences(
    form: Form,
    *,
    repeats: int = 130,
    device: Any = "cpu",
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


def _goes_on(samples: Sequence[Any], in_time: bool, least: int = LEAST_SAMPLES) -> bool:
    """Within the budget, and beyond it up to the fewest samples that make an interval."""
    return in_time or len(samples) < least


def _rounds(
    forms: Sequence[Sampler],
    order: np.random.Generator,
    target: float,
    deadline: float,
    clock: Clock,
    least: int = LEAST_SAMPLES,
) -> np.ndarray:
    """(rounds, forms) ms per call: rounds until the interval of every ratio is narrow enough or the time is over."""
    rounds: list[list[float]] = []
    while (wanted := _wanted_rounds(rounds, target)) > len(rounds) and _goes_on(rounds, clock() < deadline, least):
        while len(rounds) < wanted and _goes_on(rounds, clock() < deadline, least):
            rounds.append(_round(forms, order))
    return np.asarray(rounds)


def _round(forms: Sequence[Sampler], order: np.random.Generator) -> list[float]:
    times = [0.0] * len(forms)
    for i in order.permutation(len(forms)):
        times[i] = forms[i].sample_ms()
    return times


def _wanted_rounds(rounds: Sequence[Sequence[float]], target: float) -> int:
    if len(rounds) < FIRST_SAMPLES:
        return FIRST_SAMPLES
    table = np.asarray(rounds)
    return max(wanted_samples(table[:, 0] / table[:, i], target) for i in range(1, table.shape[1]))


def _parity_errors(baseline: Form, candidates: Mapping[str, Form], tolerance: float | None) -> dict[str, float]:
    if tolerance is None:
        return {}
    expected = baseline()
    return {
        name: require_equal(expected, form(), tolerance, name)
        for name, form in candidates.items()
        if form is not baseline
    }
