"""The time of one block on one unit by the size of the graph: fitted, and chosen by what it does to sizes left out.

    fit = choose(layer, 1, 5, sizes, ms, half, curve)
    fit.ms(4000, 9000); fit.form; fit.left_out                  # relative errors at sizes left out

Three forms compete. `work`: launch + bytes + FLOPs + nodes + edges. `work and caches`: in it the bytes count by the
measured time of a copy of them, which knows the caches. `monotone`: straight between the measured values of N and of E.
In all of them no coefficient is negative, and errors count relative to the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.optimize import nnls
from sklearn.model_selection import LeaveOneGroupOut, LeaveOneOut

from gnnlab.errors import GnnlabError
from gnnlab.prediction.measured import EDGES, NODES, Size, inside_hull
from gnnlab.prediction.transfer import CopyCurve
from gnnlab.workloads import staged
from gnnlab.workloads.staged import StagedLayer

WORK, CACHES, MONOTONE = "work", "work and caches", "monotone"
FEWEST_SIZES = 3
BETTER = 0.95  # a form with more freedom is taken where its error is below this share of a simpler one's
_FLOOR = 0.01  # relative error that a median of samples has at least, from one minute to the next
_ROUNDS, _HUBER = 5, 1.345
_LEAST_MS = 1e-6
_NO_ERROR = 1e-4

Columns = Callable[[np.ndarray], np.ndarray]  # sizes (n, 2) -> (n, columns)


@dataclass(frozen=True, eq=False)
class Fit:
    """A block's time on a unit. `left_out`: nodes, edges, error (log(measured / predicted)) of sizes left out, inside
    (did they lie between the others?). `fitted`: the error at the sizes of the fit (sizes,). `coordinates`: of N (0)
    and E (1) those that the block's work depends on. `errors`: of each form the mean |error| at sizes left out.
    """

    form: str
    columns: Columns
    coefficients: np.ndarray
    coordinates: tuple[int, ...]
    left_out: pd.DataFrame
    fitted: np.ndarray
    errors: dict[str, float]

    @property
    def interpolation_errors(self) -> pd.DataFrame:
        """Errors at sizes left out inside the hull of the others; all of them if none lies inside."""
        return _interpolation_errors(self.left_out)

    def ms(self, nodes: int, edges: int) -> float:
        return float(_predicted(self.columns, self.coefficients, np.array([[nodes, edges]], dtype=float))[0])


def choose(
    layer: StagedLayer,
    first: int,
    last: int,
    sizes: Sequence[Size],
    ms: Sequence[float],
    half: Sequence[float],
    curve: CopyCurve | None = None,
) -> Fit:
    """The form with the smallest errors at sizes left out. `half`: half-widths of the intervals over the times.

    Raises:
        GnnlabError: fewer than three sizes.
    """
    if len(set(sizes)) < FEWEST_SIZES:
        raise GnnlabError(
            f"stages {first}-{last}: times at {len(set(sizes))} sizes; {FEWEST_SIZES} at least are needed to predict "
            "others, so measure more (sizes of notebook 05)"
        )
    along = coordinates(layer, first, last)
    at, times = np.array(sizes, dtype=float), np.array(ms, dtype=float)
    weights = 1 / np.hypot(np.array(half, dtype=float), _FLOOR)
    makers = forms(layer, first, last, along, curve)
    found = {name: _left_out(make, at, times, weights, along) for name, make in makers.items()}
    errors = {name: float(_interpolation_errors(missed)["error"].abs().mean()) for name, missed in found.items()}
    form = _simplest(errors)
    columns = makers[form](at)
    coefficients = _nonnegative(columns(at), times, weights)
    fitted = np.log(times / _predicted(columns, coefficients, at))
    return Fit(form, columns, coefficients, along, found[form], fitted, errors)


def coordinates(layer: StagedLayer, first: int, last: int) -> tuple[int, ...]:
    """Which of N (0) and E (1) a block's values and arithmetic depend on."""
    block = layer.block(first, last)
    dims = {dim for name in (*block.reads, *block.writes) for dim in layer.values[name].dims}
    dims |= {dim for stage in block.stages for dim in layer.values[stage.writes].dims}
    return (NODES,) * (staged.NODES in dims) + (EDGES,) * (staged.EDGES in dims)


def forms(
    layer: StagedLayer, first: int, last: int, along: Sequence[int], curve: CopyCurve | None
) -> dict[str, Callable[[np.ndarray], Columns]]:
    """By name, the simplest first: from the sizes of a fit to the columns of its form."""
    block = layer.block(first, last)

    @cache
    def moved_and_flops(nodes: float, edges: float) -> tuple[float, float]:
        return block.bytes_moved(nodes, edges), sum(stage.flops(nodes, edges) for stage in block.stages)

    def work(at: np.ndarray) -> np.ndarray:
        amounts = np.array([moved_and_flops(*size) for size in at.tolist()])
        return np.column_stack([np.ones(len(at)), amounts, at[:, list(along)]])

    def cached(at: np.ndarray) -> np.ndarray:
        columns = work(at)
        columns[:, 1] = [curve.moving_ms(moved) for moved in columns[:, 1]]
        return columns

    found = {WORK: lambda _: work, CACHES: lambda _: cached, MONOTONE: lambda at: _ramps(at, along)}
    return found if curve else {name: make for name, make in found.items() if name != CACHES}


def _ramps(measured: np.ndarray, along: Sequence[int]) -> Columns:
    """1, and for each interval between two measured values how much of it lies below; the first from 0, the last on."""
    knots = {c: np.unique(measured[:, c])[1:-1] for c in along}

    def columns(at: np.ndarray) -> np.ndarray:
        found = [np.ones(len(at))]
        for c, inner in knots.items():
            ends = [0.0, *inner, np.inf]
            found += [np.clip(at[:, c] - low, 0, high - low) for low, high in pairwise(ends)]
        return np.column_stack(found)

    return columns


def _left_out(
    make: Callable[[np.ndarray], Columns], at: np.ndarray, ms: np.ndarray, weights: np.ndarray, along: Sequence[int]
) -> pd.DataFrame:
    """nodes, edges, error and inside of sizes left out, as in `Fit`."""
    parts = []
    for rest, out in _folds(at, along):
        columns = make(at[rest])
        predicted = _predicted(columns, _nonnegative(columns(at[rest]), ms[rest], weights[rest]), at[out])
        missed = pd.DataFrame(at[out].astype(int), columns=["nodes", "edges"])
        parts.append(missed.assign(error=np.log(ms[out] / predicted), inside=inside_hull(at[rest], at[out], along)))
    return pd.concat(parts, ignore_index=True)


def _interpolation_errors(left_out: pd.DataFrame) -> pd.DataFrame:
    return left_out[left_out["inside"]] if left_out["inside"].any() else left_out


def _folds(at: np.ndarray, along: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Fitted and left out: all sizes of one N, all of one E together, so that a value in between is new to the fit.

    The same sizes are left out once. Where there are only two values, one size after the other.
    """
    telling = [c for c in along if len(np.unique(at[:, c])) > 2]
    every = [fold for c in telling for fold in LeaveOneGroupOut().split(at, groups=at[:, c])]
    return list({out.tobytes(): (rest, out) for rest, out in every}.values()) or list(LeaveOneOut().split(at))


def _simplest(errors: dict[str, float]) -> str:
    """The first form, in the order given, that no other one beats clearly."""
    chosen = next(iter(errors))
    for name, error in errors.items():
        if max(error, _NO_ERROR) < BETTER * errors[chosen]:
            chosen = name
    return chosen


def _predicted(columns: Columns, coefficients: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.maximum(columns(at) @ coefficients, _LEAST_MS)


def _nonnegative(matrix: np.ndarray, ms: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Coefficients >= 0 of the least squares of relative errors; those far out count less (Huber 1964)."""
    rows = matrix * (weights / ms)[:, None]
    lengths = np.linalg.norm(rows, axis=0)
    rows, trust = rows / np.where(lengths > 0, lengths, 1), np.ones(len(ms))
    for _ in range(_ROUNDS):
        found, _far = nnls(rows * trust[:, None], weights * trust)
        off = np.abs(rows @ found / weights - 1)
        spread = max(1.4826 * float(np.median(off)), _FLOOR)
        trust = np.sqrt(np.minimum(1, _HUBER * spread / np.maximum(off, 1e-12)))
    return found / np.where(lengths > 0, lengths, 1)
