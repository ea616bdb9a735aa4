"""The time of a block of stages on a unit at any graph size, with an interval that holds at its stated rate.

    predictor = TimePredictor.fit(layer, cells, transfers)    # cells: the table of a campaign
    predictor.predict("openvino:CPU", 1, 5, nodes=4000, edges=9000)      # time_ms, low_ms, high_ms, origin
    predictor.fitted("openvino:CPU", 1, 5)      # a row a size: what the fit of this block is made from

A time is a sum of the block's work, and no coefficient is negative, so that more work never takes less time. Errors
count relative to the time. Intervals are conformal: sizes are left out, predicted and compared, and the 90 % quantile
of the errors of a unit's blocks is the half-width of the next prediction (Vovk 2005; Lei et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.prediction.copies import CopyCurve, MeasuredTransfers
from gnnlab.workloads import staged
from gnnlab.workloads.staged import StagedLayer

if TYPE_CHECKING:
    from scipy.spatial import Delaunay
    from sklearn.linear_model import LinearRegression

RATE = 0.9  # at which an interval holds the time that is measured
FEWEST_SIZES = 3
NEEDED = f"{FEWEST_SIZES} at least are needed to predict others, so measure more (sizes of notebook 05)"
MEASURED = "measured"
INTERPOLATED, EXTRAPOLATED = "interpolated", "extrapolated"
NODES, EDGES = 0, 1  # columns of sizes
BLOCK = ["unit", "first", "last"]
_LEAST = 1e-6  # of a predicted time over the measured one
_RIM = 1e-9  # how far beyond the hull, in logarithms, still counts as inside
Size = tuple[int, int]  # nodes, edges
Span = tuple[int, int]  # first and last stage of a block
Key = tuple[str, int, int]  # unit, first, last


@dataclass(frozen=True)
class Prediction:
    """A time in ms, its interval, and measured|interpolated|extrapolated. The interval is that of the measurement at a
    measured size (95 %), else holds the time at 90 %."""

    time_ms: float
    low_ms: float
    high_ms: float
    origin: str


@dataclass(frozen=True, eq=False)
class TimePredictor:
    """Fits of blocks on units. `left_out`: unit, first, last, nodes, edges, group (what was left out together), error
    (log(measured / predicted)), inside (did the size lie between the others?)."""

    layer: StagedLayer
    coefficients: Mapping[Key, np.ndarray]  # of `work`, ms
    measured: Mapping[Key, Mapping[Size, Sequence[float]]]  # ms, low, high
    transfers: MeasuredTransfers | None
    left_out: pd.DataFrame

    @classmethod
    def fit(cls, layer: StagedLayer, cells: pd.DataFrame, transfers: MeasuredTransfers | None = None) -> TimePredictor:
        """From a table with unit, first, last, nodes, edges, ms, ms_low, ms_high; what has no time is left out.

        `transfers`: of a unit its own copies are used, plain ones where it has none.

        Raises:
            GnnlabError: no block of any unit has three sizes.
        """
        coefficients, measured, left_out = {}, {}, []
        for key, part in cells[cells["ms"].notna()].groupby(BLOCK, sort=False):
            part = part.groupby(["nodes", "edges"])[["ms", "ms_low", "ms_high"]].median()
            measured[key] = dict(zip(part.index.tolist(), part.to_numpy().tolist(), strict=True))
            if len(part) >= FEWEST_SIZES:
                columns = _columns(layer, key, part, transfers)
                coefficients[key] = _nonnegative().fit(*_relative(columns)).coef_
                left_out.append(_left_out(layer, key, columns))
        if not coefficients:
            most = max(map(len, measured.values()), default=0)
            raise GnnlabError(f"nothing to predict from: times at {most} sizes; {NEEDED}")
        return cls(layer, coefficients, measured, transfers, pd.concat(left_out, ignore_index=True))

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(unit for unit, _, _ in self.coefficients))

    def blocks(self, unit: str) -> set[Span]:
        """(first, last) of what can be predicted on a unit."""
        return {key[1:] for key in self.coefficients if key[0] == unit}

    def fitted(self, unit: str, first: int, last: int) -> pd.DataFrame:
        """What the fit of a block is made from, a row a size (nodes, edges): the columns of `work`, in the end `group`,
        sizes that are left out together, and `ms`."""
        times = pd.DataFrame.from_dict(self.measured[unit, first, last], "index", columns=["ms", "low", "high"])
        times.index = pd.MultiIndex.from_tuples(times.index, names=["nodes", "edges"])
        return _columns(self.layer, (unit, first, last), times, self.transfers)

    def predict(self, unit: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        """The time of a block at a size, ms.

        Raises:
            GnnlabError: an unknown block or size.
        """
        if nodes < 1 or edges < 1:
            raise GnnlabError(f"a graph of {nodes} nodes and {edges} edges; at least 1 of each is needed")
        key, size = (unit, first, last), (int(nodes), int(edges))
        if key not in self.coefficients:
            count, units = len(self.measured.get(key, ())), ", ".join(self.units)
            lacking = f"times at {count} sizes; {NEEDED}" if count else f"none was measured; units with times: {units}"
            raise GnnlabError(f"no times of stages {first}-{last} on {unit}: {lacking}")
        if size in self.measured[key]:
            return Prediction(*self.measured[key][size], MEASURED)
        columns = work(self.layer, first, last, np.array([size], dtype=float), _curve(self.transfers, unit))
        ms = max(float(columns.to_numpy()[0] @ self.coefficients[key]), _LEAST)
        inside = inside_hull(list(self.measured[key]), [size], coordinates(self.layer, first, last))[0]
        errors = self.left_out[self.left_out["unit"] == unit]
        half = conformal_quantile(between(errors)["error"] if inside else errors["error"])
        return Prediction(ms, ms * np.exp(-half), ms * np.exp(half), INTERPOLATED if inside else EXTRAPOLATED)


# ---- the fit ---------------------------------------------------------------------------------------------------------


def work(layer: StagedLayer, first: int, last: int, sizes: np.ndarray, curve: CopyCurve | None) -> pd.DataFrame:
    """What a block does at `sizes` (sizes, 2), a row each: one launch, bytes, FLOPs, those of nodes and edges that it
    depends on, and with a `curve` the ms of a copy of its bytes, which knows the caches."""
    block = layer.block(first, last)
    moved = [block.bytes_moved(*size) for size in sizes.tolist()]
    flops = [sum(stage.flops(*size) for stage in block.stages) for size in sizes.tolist()]
    sides = {("nodes", "edges")[axis]: sizes[:, axis] for axis in coordinates(layer, first, last)}
    copies = {"copy_ms": [curve.moving_ms(amount) for amount in moved]} if curve else {}
    return pd.DataFrame({"launch": 1.0, "moved_bytes": moved, "flops": flops, **sides, **copies})


def coordinates(layer: StagedLayer, first: int, last: int) -> list[int]:
    """Which of N (0) and E (1) a block's values and arithmetic depend on."""
    block = layer.block(first, last)
    names = {*block.reads, *block.writes, *(stage.writes for stage in block.stages)}
    dims = {dim for name in names for dim in layer.values[name].dims}
    return [axis for axis, dim in ((NODES, staged.NODES), (EDGES, staged.EDGES)) if dim in dims]


def between(left_out: pd.DataFrame) -> pd.DataFrame:
    """Errors at sizes left out that lie between the others; all of them if none does."""
    return left_out[left_out["inside"]] if left_out["inside"].any() else left_out


def conformal_quantile(errors: Sequence[float]) -> float:
    """The next |error| is below it at the stated rate; twice the largest where there are too few errors for that."""
    ordered = np.sort(np.abs(errors))
    place = int(np.ceil((len(ordered) + 1) * RATE)) - 1
    return float(ordered[place]) if place < len(ordered) else 2 * float(ordered[-1])


def _nonnegative() -> LinearRegression:
    from sklearn.linear_model import LinearRegression  # here, as units' own processes fit nothing

    return LinearRegression(positive=True, fit_intercept=False)


def _curve(transfers: MeasuredTransfers | None, unit: str) -> CopyCurve | None:
    return transfers and transfers.through.get(unit, transfers.plain)


def _columns(layer: StagedLayer, key: Key, times: pd.DataFrame, transfers: MeasuredTransfers | None) -> pd.DataFrame:
    """`TimePredictor.fitted` of a block, of its times by nodes and edges.

    All sizes of one N are left out together (of one E where a block depends on that alone), so that a value in between
    is new to the fit; one size after the other where there are fewer than three values.
    """
    unit, first, last = key
    sizes = np.array(times.index.tolist(), dtype=float)
    groups = sizes[:, coordinates(layer, first, last)[0]].astype(int)
    groups = groups if len(np.unique(groups)) > 2 else np.arange(len(sizes))
    columns = work(layer, first, last, sizes, _curve(transfers, unit)).set_index(times.index)
    return columns.assign(group=groups, ms=times["ms"])


def _relative(columns: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """The work over the time, and ones, which it should make: so errors count relative to the time."""
    return columns.drop(columns=["group", "ms"]).div(columns["ms"], axis=0), np.ones(len(columns))


def _left_out(layer: StagedLayer, key: Key, columns: pd.DataFrame) -> pd.DataFrame:
    """`TimePredictor.left_out` of one block."""
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict

    options = {"groups": columns["group"], "cv": LeaveOneGroupOut()}
    predicted = cross_val_predict(_nonnegative(), *_relative(columns), **options)
    left_out = columns.index.to_frame(index=False).assign(group=columns["group"].to_numpy())
    axes = coordinates(layer, *key[1:])
    inside = [
        inside_hull(left_out.loc[left_out["group"] != group, ["nodes", "edges"]], [(nodes, edges)], axes)[0]
        for nodes, edges, group in left_out.itertuples(index=False)
    ]
    error = -np.log(np.maximum(predicted, _LEAST))
    return left_out.assign(**dict(zip(BLOCK, key, strict=True)), error=error, inside=inside)


def inside_hull(known: Sequence[Size], sizes: Sequence[Size], axes: Sequence[int] = (NODES, EDGES)) -> np.ndarray:
    """Which of `sizes` lie in the convex hull of the `known` ones in log N and log E, of which only `axes` (0 nodes, 1
    edges) are looked at, (sizes,). Where the hull is flat, which lie in the box around it."""
    with np.errstate(divide="ignore"):
        at = np.log(np.array(sizes, dtype=float).reshape(-1, 2)[:, list(axes)])
    points, mesh = _hull(frozenset(map(tuple, np.array(known).tolist())), tuple(axes))
    if mesh is not None:
        return mesh.find_simplex(at, tol=_RIM) >= 0
    return ((at >= points.min(axis=0) - _RIM) & (at <= points.max(axis=0) + _RIM)).all(axis=1)


@lru_cache(maxsize=1024)
def _hull(known: frozenset[Size], axes: tuple[int, ...]) -> tuple[np.ndarray, Delaunay | None]:
    """The logarithms of the known sizes (k, axes), and their triangles where they span some."""
    from scipy.spatial import Delaunay, QhullError

    points = np.log(np.array(sorted(known), dtype=float)[:, list(axes)])
    try:
        return points, Delaunay(points)
    except (QhullError, ValueError):  # all on a line, or a single coordinate
        return points, None
