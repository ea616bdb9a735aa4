"""The time of a block of stages on a device at any graph size, with an interval.

    predictor = TimePredictor.fit(layer, measured, transfers)     # the frame of a journal
    predictor.predict("openvino:CPU", 1, 5, nodes=4000, edges=9000)      # time_ms, low_ms, high_ms, origin

A time is a sum of the block's work (`work`), and no coefficient is negative, so that more work never takes less time.
Errors count relative to the time. Each size is left out once and predicted from the others: the 90 % quantile of these
errors over a device's blocks is the half-width, in logarithms, of all its predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
BLOCK, SIDES = ["device", "first", "last"], ["nodes", "edges"]
_LEAST = 1e-6  # of a predicted time over the measured one
_RIM = 1e-9  # how far beyond the hull, in logarithms, still counts as inside
Pair = tuple[int, int]  # nodes and edges, or the first and the last stage
Key = tuple[str, int, int]  # `BLOCK`


class Prediction(NamedTuple):
    """A time in ms, its interval, and measured|interpolated|extrapolated. At a measured size the interval is that of
    the measurement (95 %), else that of the prediction (90 %)."""

    time_ms: float
    low_ms: float
    high_ms: float
    origin: str


@dataclass(frozen=True, eq=False)
class TimePredictor:
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
    def fit(cls, layer: StagedLayer, measured: pd.DataFrame, transfers: Transfers | None = None) -> TimePredictor:
        """From device, first, last, nodes, edges, ms, ms_low, ms_high; what has no time above 0 is left out.

        `transfers`: a device's own copies are a part of its work, plain ones where it has none.
        Raises `GnnlabError`: no block of any device has three sizes.
        """
        coefficients, known, errors = {}, {}, {}
        for key, part in measured[measured["ms"] > 0].groupby(BLOCK, sort=False):
            times = part.groupby(SIDES)[["ms", "ms_low", "ms_high"]].median()
            known[key] = times.T.to_dict("list")
            if len(times) >= FEWEST_SIZES:
                columns = work(layer, *key[1:], list(known[key]), transfers and transfers.of(key[0]))
                coefficients[key] = _nonnegative(columns.to_numpy(), times["ms"].to_numpy())
                errors.setdefault(key[0], []).extend(_left_out(columns, times["ms"].to_numpy()))
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
        """The time of a block at a size, ms. Raises `GnnlabError`: an unknown block or size."""
        if nodes < 1 or edges < 1:
            raise GnnlabError(f"a graph of {nodes} nodes and {edges} edges; at least 1 of each is needed")
        key, size = (device, first, last), (nodes, edges)
        known = self.measured.get(key, {})
        if key not in self.coefficients:
            what = f"times of stages {first}-{last} on {device} at {len(known)} sizes; {NEEDED}"
            raise GnnlabError(f"{what}; devices with times: {', '.join(self.devices)}")
        if size in known:
            return Prediction(*known[size], MEASURED)
        columns = work(self.layer, first, last, [size], self.transfers and self.transfers.of(device))
        ms = max(float(columns.to_numpy()[0] @ self.coefficients[key]), _LEAST)
        factor = float(np.exp(self.half_widths[device]))
        sides = columns.columns.intersection(SIDES)
        inside = inside_hull(pd.DataFrame(list(known), columns=SIDES)[sides].to_numpy(), columns[sides].to_numpy())
        return Prediction(ms, ms / factor, ms * factor, INTERPOLATED if inside[0] else EXTRAPOLATED)


def work(layer: StagedLayer, first: int, last: int, sizes: Sequence[Pair], curve: CopyCurve | None) -> pd.DataFrame:
    """What a block does at `sizes`, a row each: one launch, bytes, FLOPs, those of nodes and edges that its values and
    arithmetic depend on, and with a `curve` the ms of a copy of its bytes, which knows the caches."""
    block = layer.block(first, last)
    dims = {dim for name in (*block.reads, *(s.writes for s in block.stages)) for dim in layer.values[name].dims}
    sides = [name for name, dim in zip(SIDES, (staged.NODES, staged.EDGES), strict=True) if dim in dims]
    moved = [block.bytes_moved(*size) for size in sizes]
    flops = [layer.flops(first, last, *size) for size in sizes]
    copies = {"copy_ms": [curve.moving_ms(amount) for amount in moved]} if curve else {}
    of_sizes = pd.DataFrame(sizes, columns=SIDES)[sides]
    return pd.DataFrame({"launch": 1.0, "moved_bytes": moved, "flops": flops, **of_sizes, **copies}, dtype=float)


def inside_hull(known: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Which of `sizes` (m, d) lie in the convex hull of the `known` ones (k, d), in logarithms, (m,). Where the hull is
    flat, which lie in the box around it."""
    from scipy.spatial import Delaunay, QhullError

    points, at = np.log(known), np.log(sizes)
    try:
        return Delaunay(points).find_simplex(at, tol=_RIM) >= 0
    except (QhullError, ValueError):  # all on a line, or a single coordinate
        return ((at >= points.min(axis=0) - _RIM) & (at <= points.max(axis=0) + _RIM)).all(axis=1)


def _nonnegative(columns: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Coefficients of `columns` (sizes, columns) that make `ms` (sizes,), none below 0, by errors relative to `ms`."""
    from scipy.optimize import nnls

    return nnls(columns / ms[:, None], np.ones(len(ms)))[0]


def _left_out(work: pd.DataFrame, ms: np.ndarray) -> np.ndarray:
    """|log(measured / predicted)| of each size by a fit to the others, (sizes,). Sizes that are equal in what the block
    depends on are left out together, where three differ."""
    group, columns = work.groupby([*work.columns.intersection(SIDES)]).ngroup().to_numpy(), work.to_numpy()
    if group.max() < FEWEST_SIZES - 1:
        group = np.arange(len(ms))
    predicted = np.empty(len(ms))
    for one in set(group):
        out = group == one
        predicted[out] = columns[out] @ _nonnegative(columns[~out], ms[~out])
    return np.abs(np.log(np.maximum(predicted / ms, _LEAST)))
