"""What executing plans taught about predicting them: contention, and how far streams are off what was expected.

    ratios = contention((u, v), make, model)              # measured: {"products beside sums": [1.02, 1.05, ...], ...}
    calibration.contention                                # {"products beside sums": 1.04, ...}
    middle, draws = calibration.factors(traits, 400, seed=0)       # times what was expected: (plans,), (plans, draws)

A stream takes longer than its blocks by themselves: its first graphs find cold caches, units wait for each other, other
programs take their part of the cores, and the tables may be of another hour. All that is seen when plans that were
drawn at random are executed, at sizes of their own. The logarithm of executed over expected is fitted by whether
several units work and for how much of the time they do so at once. The rest is drawn as it was at a size that the fit
had not seen: a size for all plans of a draw, for what its plans have in common, and one of its plans for each (CV+ of
Barber et al. 2021, by groups).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.linear_model import Ridge

from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import Model, halo_ends, kind_of
from gnnlab.planning.plans import Block, Plan
from gnnlab.planning.simulation import beside

if TYPE_CHECKING:
    from gnnlab.planning.execution import Executor

FEWEST_SIZES = 2
_SHRINKAGE = 0.1  # of the coefficients: a handful of plans says little of three
_ROUNDS = 4  # of contention
_LEAST_MS = 10.0  # of work between two looks at the clock: a switch of tasks is short beside it
_END = 0.95  # of the intervals that the draws are to hold at: 90 % between both ends


class Traits(NamedTuple):
    """What a plan's error depends on. `overlap`: for what share of the busiest core's time others work, too; `timed`:
    were all of its calls measured at this size, or are they predicted?"""

    several: bool
    overlap: float
    timed: bool


@dataclass(frozen=True)
class Stream:
    """An executed stream of a plan (in words) drawn at random: log(executed / expected)."""

    size: str
    plan: str
    several: bool
    overlap: float
    timed: bool
    log_ratio: float


@dataclass(frozen=True)
class Calibration:
    """`contention`: as `Machine` has it; `streams`: those executed."""

    contention: Mapping[str, float] = field(default_factory=dict)
    streams: tuple[Stream, ...] = ()

    def knows(self, traits: Sequence[Traits]) -> bool:
        """Were such streams executed at two sizes or more?"""
        return all(len(self._sizes(timed)) >= FEWEST_SIZES for timed in {each.timed for each in traits})

    def factors(self, traits: Sequence[Traits], draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Times what is expected: the middle (plans,), and draws (plans, draws)."""
        middle, drawn = np.empty(len(traits)), np.empty((len(traits), draws))
        for timed in {each.timed for each in traits}:
            places = [place for place, each in enumerate(traits) if each.timed == timed]
            columns = np.array([_columns(traits[place]) for place in places])
            middle[places] = np.exp(_fit(self._of(timed)).predict(columns))
            drawn[places] = self._draws(columns, timed, draws, seed)
        return middle, drawn

    def rows(self) -> pd.DataFrame:
        """Executed over expected, a row for plans of one unit and of several, by whether their calls were timed."""
        found = []
        for timed, several in product((False, True), repeat=2):
            logs = np.array([s.log_ratio for s in self.streams if (s.timed, s.several) == (timed, several)])
            if not len(logs):
                continue
            sizes = len({s.size for s in self.streams if (s.timed, s.several) == (timed, several)})
            key = {"calls": "timed" if timed else "by the tables", "form": "several units" if several else "one unit"}
            ends = f"from {np.exp(logs.min()):.3g} to {np.exp(logs.max()):.3g} over {len(logs)} plans at {sizes} sizes"
            fields = {"unit": "x", "better": "neither", "origin": "measured", "statistic": "median", "notes": [ends]}
            found.append({**key, "samples": np.exp(logs), **fields})
        return pd.DataFrame(found)

    def _draws(self, columns: np.ndarray, timed: bool, draws: int, seed: int) -> np.ndarray:
        sizes, random = self._sizes(timed), np.random.default_rng(seed)
        wider = stats.t.ppf(_END, len(sizes) - 1) / stats.norm.ppf(_END)  # of few sizes the worst was not yet seen
        chosen = random.integers(len(sizes), size=draws)
        logs = np.empty((len(columns), draws))
        for place, size in enumerate(sizes):
            rest = [stream for stream in self._of(timed) if stream.size != size]
            own = [stream for stream in self._of(timed) if stream.size == size]
            fit = _fit(rest)
            errors = np.array([stream.log_ratio for stream in own]) - fit.predict([_columns(stream) for stream in own])
            at = np.flatnonzero(chosen == place)
            logs[:, at] = fit.predict(columns)[:, None] + wider * random.choice(errors, (len(columns), len(at)))
        return np.exp(logs)

    def _of(self, timed: bool) -> list[Stream]:
        return [stream for stream in self.streams if stream.timed == timed]

    def _sizes(self, timed: bool) -> list[str]:
        return list(dict.fromkeys(stream.size for stream in self._of(timed)))


def _columns(of: Traits | Stream) -> list[float]:
    return [float(of.several), of.overlap]


def _fit(streams: Sequence[Stream]) -> Ridge:
    return Ridge(alpha=_SHRINKAGE).fit([_columns(s) for s in streams], [s.log_ratio for s in streams])


# ---- contention ------------------------------------------------------------------------------------------------------


def contending(units: Sequence[str], model: Model) -> tuple[str, ...]:
    """The first two of these units that run both kinds of block; empty where there are no two, or the layer has one."""
    cut, last = halo_ends(model.layer), len(model.layer.stages)
    if cut is None:
        return ()
    spans = ((1, cut), (cut + 1, last))
    able = [unit for unit in units if all(model.pieces(unit, *span, shared=False) for span in spans)]
    return tuple(able[:2]) if len(able) > 1 else ()


def contention(
    units: tuple[str, str], make: Callable[[Plan, dict[str, int]], Executor], model: Model
) -> dict[str, list[float]]:
    """How many times as long a block took while another core worked, one of each unit and round, by what worked beside
    what ("products beside sums", as `beside` names it).

    `make` opens a plan with its units on the cores given. Two plans are opened: the blocks before the products on one
    unit and the products on the other, and the other way round. So each kind of block runs on each unit, by itself and
    beside each kind on the other's core, in turns.

    Raises:
        GnnlabError: a unit failed.
    """
    cut, last = halo_ends(model.layer), len(model.layer.stages)
    cores = {unit: core for core, unit in enumerate(units)}
    blocks: dict[str, list[_Busy]] = {unit: [] for unit in units}
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        for first, second in (units, units[::-1]):
            executor = stack.enter_context(
                make(Plan((Block((first,), 1, cut), Block((second,), cut + 1, last))), cores)
            )
            executor.burst(len(executor.graphs))  # what a block reads is there from now on
            blocks[first].append(_Busy(executor, 0, kind_of(model.layer, 1, cut)))
            blocks[second].append(_Busy(executor, 1, kind_of(model.layer, cut + 1, last)))
        for _ in range(_ROUNDS):
            alone = {block: _ms({block: ceil(_LEAST_MS / block.call_ms)})[block] for block in chain(*blocks.values())}
            for both in product(*blocks.values()):
                longest = max(_LEAST_MS, *(2 * alone[block] for block in both))
                took = _ms({block: ceil(longest / alone[block]) for block in both})
                for block, other in (both, both[::-1]):
                    found.setdefault(beside(block.kind, other.kind), []).append(took[block] / alone[block])
    return found


@dataclass(frozen=True, eq=False)
class _Busy:
    """A block that its unit may be kept busy with. `call_ms`: about what a call takes."""

    executor: Executor
    place: int
    kind: str

    @cached_property
    def call_ms(self) -> float:
        return _ms({self: 2})[self]


def _ms(counts: Mapping[_Busy, int]) -> dict[_Busy, float]:
    """ms of a call, median, where all of these blocks are at work so often at once."""
    for executor in {block.executor for block in counts}:
        executor.workers.pin(executor.cores)
    for block, count in counts.items():
        for turn in range(count):
            block.executor.send(block.place, turn, turn % len(block.executor.graphs), slot=0)
    took: dict[_Busy, list[float]] = {block: [] for block in counts}
    for block, count in counts.items():
        for _ in range(count):
            report = block.executor.next_report()
            if report is None:
                raise GnnlabError(f"{block.executor.plan.words()}: a unit gave no answer in time")
            report.answer.get(report.unit)
            owner = next(b for b in counts if (b.executor, b.place) == (block.executor, report.block))
            took[owner].append((report.answer.end_s - report.answer.start_s) * 1e3)
    return {block: float(np.median(ms)) for block, ms in took.items()}
