"""What moving bytes takes, measured by itself: copies over a sweep of sizes, through each unit and between units.

    curve = Curve.fit(table)                      # size_bytes, ms, ms_low, ms_high of copies
    curve.ms(3e6); curve.bandwidth(3e6)           # between measured sizes; None where it cannot be told
    transfers.time_ms("openvino:CPU", "fast:CPU", size_bytes=2e7)

A copy of so many bytes reads them and writes them, so it moves twice as many. Through a runtime it is stage 2 of
GraphSAGE, the identity, as a model. Units of this machine's memory hand on a result by copying it once, into memory
that all of them read; a device with a memory of its own has each way half of its round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression

from gnnlab.stages.bandwidth.quantities import Bandwidth
from gnnlab.stages.errors import StageError
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.torch_units import FastUnit

HOST, PLAIN_COPY = "host", "plain copy"
TELLING = 0.2  # a bandwidth is known where the half-width of its interval is less than this share of it
_DRIFT = 0.015  # what two medians differ by, from one minute to the next, beside what their intervals say
_COLUMNS = ("size_bytes", "ms", "ms_low", "ms_high")


def sums_only(unit: str) -> bool:
    """Has a unit only blocks that sum over neighbours, and so no identity?"""
    found = units.find(unit)
    return isinstance(found, FastUnit) or found.exporter == "handbuilt"


def base(unit: str) -> str:
    """The plain unit of the same runtime and processor, which writes its results as this one does; or itself."""
    found, every = units.find(unit), units.all_units().values()
    return next((u.name for u in every if (u.runtime, u.processor) == (found.runtime, found.processor)), unit)


def copier(unit: str) -> str:
    """The unit whose copies are measured where those of `unit` are wanted: itself, unless it only sums."""
    return base(unit) if sums_only(unit) else unit


def lent(unit: str) -> str:
    """Why a unit has no copies of its own; empty where it has."""
    other = copier(unit)
    return "" if other == unit else f"it only sums, so nothing is copied through it; {other} was measured in its stead"


@dataclass(frozen=True)
class Curve:
    """ms of a copy by bytes, never less for more of them. `launch_ms`: what it takes beside moving bytes."""

    size_bytes: tuple[float, ...]
    at_ms: tuple[float, ...]
    low_ms: tuple[float, ...]
    high_ms: tuple[float, ...]

    @classmethod
    def fit(cls, table: pd.DataFrame) -> Curve:
        """Of at least two sizes, each with a time and its interval.

        Raises:
            StageError: fewer sizes, or a time that is none.
        """
        table = table.loc[:, list(_COLUMNS)].astype(float).groupby("size_bytes", as_index=False).median()
        numbers = table.to_numpy()
        if len(table) < 2 or not (np.isfinite(numbers).all() and (numbers > 0).all()):
            raise StageError(
                f"a sweep of {len(table)} sizes with times {table['ms'].tolist()} ms; at least two sizes, each with a "
                "time above 0, are needed"
            )
        times = table["ms"].to_numpy()
        rising = IsotonicRegression().fit_transform(table["size_bytes"], times, sample_weight=1 / times**2)
        ends = (rising * table[name].to_numpy() / times for name in ("ms_low", "ms_high"))  # each keeps its own width
        return cls(tuple(table["size_bytes"]), *(tuple(map(float, column)) for column in (rising, *ends)))

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

    def bandwidth(self, size_bytes: float) -> Bandwidth | None:
        """Bytes read and written in a second by a copy of that size, by what it does and takes beyond the smallest one;
        None where launch and noise leave it open."""
        ends = self.bandwidth_interval(size_bytes)
        return ends and Bandwidth.of(self._moved(size_bytes), self.ms(size_bytes) - self.launch_ms)

    def _moved(self, size_bytes: float) -> float:
        return 2 * (size_bytes - self.size_bytes[0])

    def bandwidth_interval(self, size_bytes: float) -> tuple[Bandwidth, Bandwidth] | None:
        """Between which it lies (95 %), where it is known."""
        low, high = self.interval_ms(size_bytes)
        middle = self.ms(size_bytes) - self.launch_ms
        drift = _DRIFT * self.ms(size_bytes)
        below = np.linalg.norm([self.ms(size_bytes) - low, self.high_ms[0] - self.launch_ms, drift])
        above = np.linalg.norm([high - self.ms(size_bytes), self.launch_ms - self.low_ms[0], drift])
        if size_bytes <= self.size_bytes[0] or not middle > 0 or max(below, above) > TELLING * middle:
            return None
        moved = self._moved(size_bytes)
        return Bandwidth.of(moved, middle + above), Bandwidth.of(moved, middle - below)

    def to_json(self) -> list[dict[str, float]]:
        rows = zip(self.size_bytes, self.at_ms, self.low_ms, self.high_ms, strict=True)
        return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]

    @classmethod
    def from_json(cls, data: Any) -> Curve:
        """Reads `to_json` back. Raises `StageError` where it is none."""
        try:
            columns = [tuple(float(row[name]) for row in data) for name in _COLUMNS]
            numbers = np.array(columns)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise StageError(f"no sweep of copies: {str(data)[:80]}") from None
        rising = numbers.size > 4 and np.isfinite(numbers).all() and (numbers > 0).all()
        if not rising or (np.diff(numbers[0]) <= 0).any() or (np.diff(numbers[1]) < 0).any():
            raise StageError(f"a sweep of copies with times that are none, or that fall: {str(data)[:80]}")
        return cls(*columns)


@dataclass(frozen=True)
class Transfers:
    """Copies through units (`through`), out of their results into shared memory (`out_of`), plain ones there.

    `separate`: units with a memory of their own.
    """

    plain: Curve
    through: Mapping[str, Curve]
    out_of: Mapping[str, Curve]
    separate: frozenset[str] = frozenset()

    def time_ms(self, source: str, target: str, size_bytes: float) -> float:
        """ms to hand so many bytes on; 0 within a unit, and for nothing. "host" is memory that no unit owns; from there
        to there it is a plain copy.

        Raises:
            StageError: nothing was measured for one of the two.
        """
        if source == target != HOST or size_bytes <= 0:
            return 0.0
        if not {source, target} & self.separate:
            return self._out(source).ms(size_bytes)
        return sum(self._way(unit).ms(size_bytes) / 2 for unit in (source, target) if unit in self.separate)

    def samples(self, source: str, target: str, size_bytes: float, count: int, seed: int) -> np.ndarray:
        """Draws (count) of `time_ms`, as the intervals of the measured copies leave it open."""
        middle = self.time_ms(source, target, size_bytes)
        if middle == 0:
            return np.zeros(count)
        names = [unit for unit in (source, target) if unit in self.separate]
        curves = [self._way(unit) for unit in names] or [self._out(source)]
        spread = max(np.log(np.divide(*curve.interval_ms(size_bytes)[::-1])) / (2 * 1.96) for curve in curves)
        return middle * np.exp(np.random.default_rng(seed).normal(0, spread, count))

    def _out(self, unit: str) -> Curve:
        """A plain copy for the host, and for whatever writes into memory as any program does."""
        return self.out_of.get(unit, self.plain)

    def _way(self, unit: str) -> Curve:
        if unit not in self.through:
            raise StageError(f"no transfer was measured for {unit}; measure it (notebook 06), or leave the unit out")
        return self.through[unit]

    def to_json(self) -> dict[str, Any]:
        each = {name: {u: c.to_json() for u, c in getattr(self, name).items()} for name in ("through", "out_of")}
        return {"plain": self.plain.to_json(), **each, "separate": sorted(self.separate)}

    @classmethod
    def from_json(cls, data: Any) -> Transfers:
        """Reads `to_json` back. Raises `StageError` where it is none."""
        try:
            each = {n: {u: Curve.from_json(c) for u, c in data[n].items()} for n in ("through", "out_of")}
            return cls(Curve.from_json(data["plain"]), **each, separate=frozenset(data["separate"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise StageError(f"no measured transfers: {type(error).__name__} {error}; run notebook 06 again") from None
