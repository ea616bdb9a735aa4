"""The time of moving bytes, by measured copies over a sweep of sizes: plain ones, and through each unit.

    curve = CopyCurve.fit(table)                  # size_bytes, ms, ms_low, ms_high, n of copies
    curve.ms(3e6); curve.gb_s(3e6)                # between measured sizes; NaN where launch or noise hide it
    transfers.plain.ms(2e7)

A copy of so many bytes reads them and writes them, so it moves twice as many. Through a runtime it is stage 2 of
GraphSAGE, the identity, as a model: the same processes and checks serve as for the stages. Units hand on a result by a
plain copy, into memory that all of them read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab import machine
from gnnlab.campaign.cells import Cell, layer_of
from gnnlab.errors import GnnlabError
from gnnlab.export.export import export
from gnnlab.measure import timing
from gnnlab.measure.estimates import CONFIDENCE
from gnnlab.units import registry as units
from gnnlab.units.torch_units import FastUnit
from gnnswap.errors import quoted

PLAIN_COPY = "plain copy"
WIDEST = 0.2  # a bandwidth is known where the half-width of its interval is less than this share of it
HIDDEN = "hidden by launch time or noise at this size"
IDENTITY, STAGE = "sage", 2
LEAST_BYTES = 4096
NODES = 2  # of the graph of a copy, which the identity does not look at
CONDITIONS = ["device", "runtime", "precision", "threads"]
COPIES = ["unit", "size_bytes", "mib", "ms", "ms_low", "ms_high", "n", "samples_ms", *CONDITIONS]
_DRIFT = 0.015  # by which two medians differ from one minute to the next, in addition to their intervals


# ---- the curve of a sweep --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyCurve:
    """ms of a copy by bytes, never less for more of them. `n`: samples of the size that has the fewest."""

    size_bytes: tuple[float, ...]
    at_ms: tuple[float, ...]
    low_ms: tuple[float, ...]
    high_ms: tuple[float, ...]
    n: int

    @classmethod
    def fit(cls, table: pd.DataFrame) -> CopyCurve:
        """Of copies of at least two sizes: size_bytes, ms, ms_low, ms_high, n. `GnnlabError`: fewer, or no time above
        0."""
        from sklearn.isotonic import IsotonicRegression

        sweep = table[["size_bytes", "ms", "ms_low", "ms_high"]].astype(float).groupby("size_bytes").median()
        size, (ms, low, high) = sweep.index.to_numpy(), sweep.to_numpy().T
        if len(sweep) < 2 or not (sweep > 0).all(axis=None):
            raise GnnlabError(
                f"a sweep of {len(sweep)} sizes with times {quoted(ms.tolist())} ms; two with times above 0 are needed"
            )
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
        ms, low, high = (self._between(times, size_bytes) for times in (self.at_ms, self.low_ms, self.high_ms))
        moved, beyond = 2 * (size_bytes - self.size_bytes[0]), ms - self.launch_ms
        below = np.linalg.norm([ms - low, self.high_ms[0] - self.launch_ms, _DRIFT * ms])
        above = np.linalg.norm([high - ms, self.launch_ms - self.low_ms[0], _DRIFT * ms])
        if moved <= 0 or beyond <= 0 or max(below, above) > WIDEST * beyond:
            return (np.nan,) * 3
        return tuple(float(moved / time_ms / 1e6) for time_ms in (beyond, beyond + above, beyond - below))


@dataclass(frozen=True)
class MeasuredTransfers:
    """Plain copies, and copies through the units that have the identity (`through`)."""

    plain: CopyCurve
    through: Mapping[str, CopyCurve]

    @classmethod
    def fit(cls, copies: pd.DataFrame) -> MeasuredTransfers:
        """Of copies by unit (those of `PLAIN_COPY` among them): the columns of `CopyCurve.fit`, and unit.

        Raises:
            GnnlabError: there are no plain copies, or a sweep is invalid.
        """
        curves = {unit: CopyCurve.fit(part) for unit, part in copies.groupby("unit", sort=False) if len(part) > 1}
        if PLAIN_COPY not in curves:
            raise GnnlabError("no sweep of plain copies")
        return cls(curves.pop(PLAIN_COPY), curves)


# ---- measuring -------------------------------------------------------------------------------------------------------


def sweep_sizes(cells: pd.DataFrame, points: int) -> list[int]:
    """Edges of the copies: from 4 KiB to the most that any cell reads and writes, evenly on a logarithmic scale."""
    features = int(cells["features"].iloc[0])
    layer, row_bytes = layer_of(cells["layer"].iloc[0], features), 4 * features
    most = max(layer.block(r.first, r.last).bytes_moved(r.nodes, r.edges) for r in cells.itertuples()) / 2
    sizes = np.geomspace(max(LEAST_BYTES, row_bytes), max(most, 4 * LEAST_BYTES, 4 * row_bytes), points)
    return [int(edges) for edges in np.unique(np.maximum(1, np.rint(sizes / row_bytes)))]


def identity_cells(like: Cell, sweep: Sequence[int], chosen: Sequence[str], models: Path) -> list[Cell]:
    """A cell for each size and unit that has the identity, once that is exported for its runtime, of each size where
    shapes are fixed; what is there stays."""
    copying = [unit for unit in chosen if not sums_only(unit)]
    for unit in map(units.find, copying):
        if unit.exporter is not None:
            for size in [(NODES, edges) for edges in sweep] if unit.static_shapes else [None]:
                layer = layer_of(IDENTITY, like.features)
                export(layer, STAGE, STAGE, exporter=unit.exporter, folder=models, size=size)
    return [
        Cell(IDENTITY, like.features, NODES, edges, STAGE, STAGE, unit, like.precision, like.threads)
        for edges in sweep
        for unit in copying
    ]


def sums_only(unit: str) -> bool:
    """Has a unit only blocks that sum over neighbours, and so no identity?"""
    processing_unit = units.find(unit)
    return isinstance(processing_unit, FastUnit) or processing_unit.exporter == "handbuilt"


def through_units(measured: pd.DataFrame, sweep: Sequence[int]) -> pd.DataFrame:
    """The copies among measured cells: unit, size_bytes, mib, ms, ms_low, ms_high, n, samples_ms, conditions."""
    swept = measured[(measured["nodes"] == NODES) & measured["edges"].isin(sweep) & measured["ms"].notna()]
    swept = _sized(swept.assign(size_bytes=4 * swept["edges"] * swept["features"]))
    return swept[COPIES].sort_values(["unit", "size_bytes"], kind="stable", ignore_index=True)


def plain_copies(sweep: Sequence[int], features: int, budget_s: float) -> pd.DataFrame:
    """Copies by numpy from array to array, as `through_units` gives those through units."""
    rows = []
    for edges in sweep:
        source = np.ones((edges, features), np.float32)
        timed = timing.measure(partial(np.copyto, np.empty_like(source), source), budget_s=budget_s / 2)
        low, high = timed.ci_ms
        row = {"size_bytes": source.nbytes, "ms": timed.median_ms, "ms_low": low, "ms_high": high}
        rows.append({**row, "n": timed.n, "samples_ms": timed.samples_ms})
    about = {"device": f"CPU {machine.processor()}", "runtime": f"numpy {np.__version__}"}
    return _sized(pd.DataFrame(rows).assign(unit=PLAIN_COPY, precision="float32", threads=1, **about))[COPIES]


def _sized(copies: pd.DataFrame) -> pd.DataFrame:
    return copies.assign(mib=(copies["size_bytes"] / 2**20).round(4))


def rates(copies: pd.DataFrame) -> pd.DataFrame:
    """Rows for `Lab.record`: GB/s of the copies by size (mib) and unit (form)."""
    transfers = MeasuredTransfers.fit(copies)
    curves = {**transfers.through, PLAIN_COPY: transfers.plain}
    rows = copies[copies["unit"].isin(curves)]
    numbers = [curves[unit].gb_s(size) for unit, size in zip(rows["unit"], rows["size_bytes"], strict=True)]
    value, low, high = np.array(numbers).reshape(-1, 3).T
    hidden = np.isnan(value)
    status = {"status": np.where(hidden, "unavailable", "ok"), "reason": np.where(hidden, HIDDEN, None)}
    fixed = {"unit": "GB/s", "better": "higher", "statistic": "estimate", "interval": CONFIDENCE, "origin": "measured"}
    columns = {"form": rows["unit"], "value": value, "low": low, "high": high}
    return rows.drop(columns="samples_ms").assign(**columns, **status, **fixed)
