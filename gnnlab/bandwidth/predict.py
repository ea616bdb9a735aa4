"""The time of a block of stages on a device at any graph size, with an interval.

    predictor = Predictor.fit(layer, measured, transfers)     # the frame of a journal
    predictor.predict("openvino:CPU", 1, 5, nodes=4000, edges=9000)      # time_ms, low_ms, high_ms, origin

A time is a sum of the block's work (`work`), and no coefficient is negative, so that more work never takes less time.
Errors count relative to the time. Each size is left out once and predicted from the others: the 90 % quantile of these
errors over a device's blocks is the half-width, in logarithms, of all its predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gnnlab.bandwidth.copies import CopyCurve, Transfers
from gnnlab.errors import GnnlabError
from gnnlab.workloads import staged
from gnnlab.workloads.staged import StagedLayer

RATE = 0.9  # share of the left-out errors that a half-width holds
FEWEST_SIZES = 3
NEEDED = f"{FEWEST_SIZES} at least are needed to predict others; measure more (sizes of notebook 05)"
MEASURED, INTERPOLATED, EXTRAPOLATED = "measured", "interpolated", "extrapolated"
BLOCK = ["device", "first", "last"]
_LEAST = 1e-6  # of a predicted time over the measured one
_RIM = 1e-9  # how far beyond the hull, in logarithms, still counts as inside
Pair = tuple[int, int]  # nodes and edges, or the first and the last stage
Key = tuple[str, int, int]  # `BLOCK`


@dataclass(frozen=True)
class Prediction:
    """A time in ms, its interval, and measured|interpolated|extrapolated. At a measured size the interval is that of
    the measurement (95 %), else that of the prediction (90 %)."""

    time_ms: float
    low_ms: float
    high_ms: float
    origin: str


@dataclass(frozen=True, eq=False)
class Predictor:
    """Fits of blocks on devices.

    coefficients: of the columns of `work`, ms.
    measured: (ms, low, high) by block and size.
    half_widths: of each device's predictions, in logarithms.
    """

    layer: StagedLayer
    coefficients: Mapping[Key, np.ndarray]
    measured: Mapping[Key, Mapping[Pair, Sequence[float]]]
    half_widths: Mapping[str, float]
    transfers: Transfers | None = None

    @classmethod
    def fit(cls, layer: StagedLayer, measured: pd.DataFrame, transfers: Transfers | None = None) -> Predictor:
        """From device, first, last, nodes, edges, ms, ms_low, ms_high; what has no time above 0 is left out.

        `transfers`: a device's own copies are a part of its work, plain ones where it has none.

        Raises:
            GnnlabError: no block of any device has three sizes.
        """
        coefficients, known, errors = {}, {}, {}
        for key, part in measured[measured["ms"] > 0].groupby(BLOCK, sort=False):
            times = part.groupby(["nodes", "edges"])[["ms", "ms_low", "ms_high"]].median()
            known[key] = dict(zip(times.index.tolist(), times.to_numpy().tolist(), strict=True))
            if len(times) >= FEWEST_SIZES:
                sizes, ms = np.array(times.index.tolist()), times["ms"].to_numpy()
                columns = work(layer, *key[1:], sizes, _curve(transfers, key[0])).to_numpy()
                coefficients[key] = _nonnegative(columns, ms)
                errors.setdefault(key[0], []).extend(_left_out(columns, ms, sizes[:, coordinates(layer, *key[1:])]))
        if not coefficients:
            most = max(map(len, known.values()), default=0)
            raise GnnlabError(f"nothing to predict from: times at {most} sizes; {NEEDED}")
        half_widths = {name: float(np.quantile(each, RATE, method="higher")) for name, each in errors.items()}
        return cls(layer, coefficients, known, half_widths, transfers)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.half_widths)

    def blocks(self, device: str) -> set[Pair]:
        """(first, last) of what can be predicted on a device."""
        return {key[1:] for key in self.coefficients if key[0] == device}

    def predict(self, device: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        """The time of a block at a size, ms.

        Raises:
            GnnlabError: an unknown block or size.
        """
        if nodes < 1 or edges < 1:
            raise GnnlabError(f"a graph of {nodes} nodes and {edges} edges; at least 1 of each is needed")
        key, size = (device, first, last), (int(nodes), int(edges))
        if key not in self.coefficients:
            count, known = len(self.measured.get(key, ())), ", ".join(self.devices)
            lacking = (
                f"times at {count} sizes; {NEEDED}" if count else f"none was measured; devices with times: {known}"
            )
            raise GnnlabError(f"no times of stages {first}-{last} on {device}: {lacking}")
        if size in self.measured[key]:
            return Prediction(*self.measured[key][size], MEASURED)
        columns = work(self.layer, first, last, np.array([size]), _curve(self.transfers, device)).to_numpy()
        ms, factor = max(float(columns[0] @ self.coefficients[key]), _LEAST), float(np.exp(self.half_widths[device]))
        axes = coordinates(self.layer, first, last)
        inside = inside_hull(np.array(list(self.measured[key]))[:, axes], np.array([size])[:, axes])[0]
        return Prediction(ms, ms / factor, ms * factor, INTERPOLATED if inside else EXTRAPOLATED)


def work(layer: StagedLayer, first: int, last: int, sizes: np.ndarray, curve: CopyCurve | None) -> pd.DataFrame:
    """What a block does at `sizes` (sizes, 2), a row each: one launch, bytes, FLOPs, those of nodes and edges that it
    depends on, and with a `curve` the ms of a copy of its bytes, which knows the caches."""
    block = layer.block(first, last)
    moved = [block.bytes_moved(*size) for size in sizes.tolist()]
    flops = [layer.flops(first, last, *size) for size in sizes.tolist()]
    sides = {("nodes", "edges")[axis]: sizes[:, axis] for axis in coordinates(layer, first, last)}
    copies = {"copy_ms": [curve.moving_ms(amount) for amount in moved]} if curve else {}
    return pd.DataFrame({"launch": 1.0, "moved_bytes": moved, "flops": flops, **sides, **copies}, dtype=float)


def coordinates(layer: StagedLayer, first: int, last: int) -> list[int]:
    """Which of N (0) and E (1) a block's values and arithmetic depend on."""
    block = layer.block(first, last)
    names = {*block.reads, *block.writes, *(stage.writes for stage in block.stages)}
    dims = {dim for name in names for dim in layer.values[name].dims}
    return [axis for axis, dim in enumerate((staged.NODES, staged.EDGES)) if dim in dims]


def inside_hull(known: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Which of `sizes` (m, d) lie in the convex hull of the `known` ones (k, d), in logarithms, (m,). Where the hull is
    flat, which lie in the box around it."""
    from scipy.spatial import Delaunay, QhullError

    points, at = np.log(known), np.log(sizes)
    try:
        return Delaunay(points).find_simplex(at, tol=_RIM) >= 0
    except (QhullError, ValueError):  # all on a line, or a single coordinate
        return ((at >= points.min(axis=0) - _RIM) & (at <= points.max(axis=0) + _RIM)).all(axis=1)


def _curve(transfers: Transfers | None, device: str) -> CopyCurve | None:
    return transfers and transfers.through.get(device, transfers.plain)


def _nonnegative(columns: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Coefficients of `columns` (sizes, columns) that make `ms` (sizes,), none below 0, by errors relative to `ms`."""
    from scipy.optimize import nnls

    return nnls(columns / ms[:, None], np.ones(len(ms)))[0]


def _left_out(columns: np.ndarray, ms: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """|log(measured / predicted)| of each size by a fit to the others, (sizes,).

    `sizes`: the coordinates that the block depends on. Equal ones are left out together, where three differ.
    """
    _, group = np.unique(sizes, axis=0, return_inverse=True)
    group = group.ravel() if group.max() >= FEWEST_SIZES - 1 else np.arange(len(ms))
    errors = np.empty(len(ms))
    for one in np.unique(group):
        out = group == one
        predicted = columns[out] @ _nonnegative(columns[~out], ms[~out])
        errors[out] = np.abs(np.log(np.maximum(predicted / ms[out], _LEAST)))
    return errors
