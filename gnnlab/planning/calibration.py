"""What executing plans taught about predicting them: contention, and how far streams are off what was expected.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.linear_model import Ridge

FEWEST_SIZES = 2
_SHRINKAGE = 0.1  # of the coefficients: a handful of plans says little of three
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
