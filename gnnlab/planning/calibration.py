"""How many times as long as expected plans take: measured on plans drawn at random, a correction for all others.

    calibration = Calibration(streams)                   # executed streams
    calibration.factors(Group(several=True, timed=False))     # median, 5 % and 95 % of executed over expected

A stream takes longer than its blocks by themselves: its first graphs find cold caches, units wait for each other and
share memory, other programs take their part of the cores, and the tables may be of another hour. All that is in what
executed plans took over what was expected of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

INTERVAL = (5, 95)  # percentiles: 90 %, as predictions of blocks have it


class Group(NamedTuple):
    """Plans that share a correction: of one unit or of several; with all calls measured at this size, or predicted."""

    several: bool
    timed: bool


class Stream(NamedTuple):
    """An executed stream of a plan drawn at random. `ratio`: executed over expected time."""

    size: str
    group: Group
    ratio: float


@dataclass(frozen=True)
class Calibration:
    """Without streams it knows no group."""

    streams: tuple[Stream, ...] = ()

    def knows(self, groups: Sequence[Group]) -> bool:
        return {stream.group for stream in self.streams} >= set(groups)

    def factors(self, group: Group) -> tuple[float, float, float]:
        """Median, 5 % and 95 % of executed over expected."""
        return tuple(np.percentile(self._ratios(group), [50, *INTERVAL]).tolist())

    def count(self, group: Group) -> int:
        """How many streams that correction rests on."""
        return len(self._ratios(group))

    def rows(self) -> pd.DataFrame:
        """Executed over expected, a row for plans of one unit and of several, by whether their calls were timed."""
        rows = []
        for timed, several in product((False, True), repeat=2):
            ratios = self._ratios(Group(several, timed))
            if not len(ratios):
                continue
            sizes = len({stream.size for stream in self.streams if stream.group == (several, timed)})
            key = {"calls": "timed" if timed else "by the tables", "form": "several units" if several else "one unit"}
            ends = f"from {ratios.min():.3g} to {ratios.max():.3g} over {len(ratios)} plans at {sizes} sizes"
            fields = {"unit": "x", "better": "neither", "origin": "measured", "statistic": "median", "notes": [ends]}
            rows.append({**key, "samples": ratios, **fields})
        return pd.DataFrame(rows)

    def _ratios(self, group: Group) -> np.ndarray:
        return np.array([stream.ratio for stream in self.streams if stream.group == group])
