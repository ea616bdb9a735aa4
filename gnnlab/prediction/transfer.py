"""The time of moving bytes, by measured copies over a sweep of sizes: plain ones, and through each unit.

    curve = CopyCurve.fit(table)                  # size_bytes, ms, ms_low, ms_high, n of copies
    curve.ms(3e6); curve.gb_s(3e6)                # between measured sizes; NaN where launch or noise hide it
    transfers.plain.ms(2e7)

A copy of so many bytes reads them and writes them, so it moves twice as many. Through a runtime it is stage 2 of
GraphSAGE, the identity, as a model. Units hand on a result by a plain copy, into memory that all of them read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression

from gnnlab.errors import GnnlabError, shown

PLAIN_COPY = "plain copy"
WIDEST = 0.2  # a bandwidth is known where the half-width of its interval is less than this share of it
HIDDEN = "hidden by launch time or noise at this size"
_DRIFT = 0.015  # by which two medians differ from one minute to the next, in addition to their intervals


@dataclass(frozen=True)
class CopyCurve:
    """ms of a copy by bytes, never less for more of them. `n`: samples of the size that has the fewest.

    Raises:
        GnnlabError: fewer than two sizes, an invalid time, or one that falls.
    """

    size_bytes: tuple[float, ...]
    at_ms: tuple[float, ...]
    low_ms: tuple[float, ...]
    high_ms: tuple[float, ...]
    n: int

    def __post_init__(self) -> None:
        _check_sweep(self.size_bytes, self.at_ms, self.low_ms, self.high_ms)
        if (np.diff(self.size_bytes) <= 0).any() or (np.diff(self.at_ms) < 0).any():
            raise GnnlabError(f"a sweep of copies whose sizes or times fall: {shown(self.at_ms)} ms")

    @classmethod
    def fit(cls, table: pd.DataFrame) -> CopyCurve:
        """Of at least two sizes (size_bytes, ms, ms_low, ms_high, n), each with a time and its interval."""
        found = table[["size_bytes", "ms", "ms_low", "ms_high"]].astype(float).groupby("size_bytes").median()
        size, (ms, low, high) = found.index.to_numpy(), found.to_numpy().T
        _check_sweep(size, ms, low, high)
        rising = IsotonicRegression().fit_transform(size, ms, sample_weight=1 / ms**2)
        columns = (size, rising, rising * low / ms, rising * high / ms)  # each interval keeps its own width
        return cls(*(tuple(column.tolist()) for column in columns), int(table["n"].min()))

    @property
    def launch_ms(self) -> float:
        """The time of the smallest copy, which hardly moves anything."""
        return self.at_ms[0]

    def ms(self, size_bytes: float) -> float:
        """Straight between measured sizes, as bytes cost; below them the launch, beyond them at the mean bandwidth of
        the largest."""
        return self._between(self.at_ms, size_bytes)

    def interval_ms(self, size_bytes: float) -> tuple[float, float]:
        return self._between(self.low_ms, size_bytes), self._between(self.high_ms, size_bytes)

    def _between(self, times: tuple[float, ...], size_bytes: float) -> float:
        last, end = self.size_bytes[-1], times[-1]
        if size_bytes > last:
            start = min(times[0], end)
            return start + (end - start) * size_bytes / last
        return float(np.interp(size_bytes, self.size_bytes, times))

    def moving_ms(self, moved_bytes: float) -> float:
        """ms for reading and writing so many bytes in all, without the launch."""
        return max(0.0, self.ms(moved_bytes / 2) - self.launch_ms)

    def gb_s(self, size_bytes: float) -> tuple[float, float, float]:
        """GB/s that a copy of that size reads and writes, low and high (95 %): by what it moves and takes beyond the
        smallest one. NaN where launch and noise leave it open."""
        ms, (low, high) = self.ms(size_bytes), self.interval_ms(size_bytes)
        moved, beyond = 2 * (size_bytes - self.size_bytes[0]), ms - self.launch_ms
        below = np.linalg.norm([ms - low, self.high_ms[0] - self.launch_ms, _DRIFT * ms])
        above = np.linalg.norm([high - ms, self.launch_ms - self.low_ms[0], _DRIFT * ms])
        if moved <= 0 or beyond <= 0 or max(below, above) > WIDEST * beyond:
            return (np.nan,) * 3
        return tuple(float(moved / time_ms / 1e6) for time_ms in (beyond, beyond + above, beyond - below))


def _check_sweep(*columns: Any) -> None:
    """At least two sizes, all numbers above 0."""
    numbers = np.array(columns, dtype=float)
    if numbers.shape[1] < 2 or not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise GnnlabError(
            f"a sweep of {numbers.shape[1]} sizes with times {shown(numbers[1].tolist())} ms; at least two sizes, each "
            "with a time above 0, are needed"
        )


@dataclass(frozen=True)
class MeasuredTransfers:
    """Plain copies, and copies through the units that have the identity (`through`)."""

    plain: CopyCurve
    through: Mapping[str, CopyCurve]
