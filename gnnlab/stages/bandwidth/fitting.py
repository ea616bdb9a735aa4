"""The time of one block on one unit by the size of the graph: fitted, and chosen by what it does to sizes left out.

    fit = choose(layer, 1, 5, sizes, ms, half, curve)
    fit.ms(4000, 9000); fit.form; fit.inside; fit.beyond        # relative errors at sizes left out

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
from scipy.optimize import nnls

from gnnlab.stages.bandwidth.measured_hull import EDGES, NODES, Size, holds
from gnnlab.stages.bandwidth.transfer import Curve
from gnnlab.stages.errors import StageError
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
LeftOut = tuple[Size, float]  # a size that was left out, log(measured / predicted)


@dataclass(frozen=True)
class Fit:
    """A block's time on a unit. `inside`: log(measured / predicted) at sizes left out that lay between the others;
    `beyond`: at those that did not; `fitted`: at the sizes of the fit. `inside_at`, `beyond_at`: the sizes of these
    errors. `coordinates`: of N (0) and E (1) those that the block's work depends on.
    """

    form: str
    columns: Columns
    coefficients: np.ndarray
    coordinates: tuple[int, ...]
    inside: tuple[float, ...]
    beyond: tuple[float, ...]
    fitted: tuple[float, ...]
    inside_at: tuple[Size, ...]
    beyond_at: tuple[Size, ...]
    errors: dict[str, float]  # of each form: mean |log error| at sizes left out

    def ms(self, nodes: int, edges: int) -> float:
        return float(_predicted(self.columns, self.coefficients, np.array([[nodes, edges]], dtype=float))[0])


def choose(
    layer: StagedLayer,
    first: int,
    last: int,
    sizes: Sequence[Size],
    ms: Sequence[float],
    half: Sequence[float],
    curve: Curve | None = None,
) -> Fit:
    """The form that predicts best what it was not fitted to. `half`: half-widths of the intervals over the times.

    Raises:
        StageError: fewer than three sizes.
    """
    if len(set(sizes)) < FEWEST_SIZES:
        raise StageError(
            f"stages {first}-{last}: times at {len(set(sizes))} sizes; {FEWEST_SIZES} at least are needed to predict "
            "others, so measure more (sizes of notebook 05)"
        )
    along = coordinates(layer, first, last)
    at, times = np.array(sizes, dtype=float), np.array(ms, dtype=float)
    weights = 1 / np.hypot(np.array(half, dtype=float), _FLOOR)
    makers = forms(layer, first, last, along, curve)
    found = {name: _left_out(make, at, times, weights, along) for name, make in makers.items()}
    errors = {name: _error(_errors(inside or beyond)) for name, (inside, beyond) in found.items()}
    form = _simplest(errors)
    columns = makers[form](at)
    coefficients = _nonnegative(columns(at), times, weights)
    fitted = np.log(times / _predicted(columns, coefficients, at))
    inside, beyond = (_errors(part) for part in found[form])
    places = (tuple(size for size, _ in part) for part in found[form])
    return Fit(form, columns, coefficients, along, inside, beyond, tuple(fitted.tolist()), *places, errors)


def coordinates(layer: StagedLayer, first: int, last: int) -> tuple[int, ...]:
    """Which of N (0) and E (1) a block's values and arithmetic depend on."""
    block = layer.block(first, last)
    dims = {dim for name in (*block.reads, *block.writes) for dim in layer.values[name].dims}
    dims |= {dim for stage in block.stages for dim in layer.values[stage.writes].dims}
    return (NODES,) * (staged.NODES in dims) + (EDGES,) * (staged.EDGES in dims)


def forms(
    layer: StagedLayer, first: int, last: int, along: Sequence[int], curve: Curve | None
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
) -> tuple[list[LeftOut], list[LeftOut]]:
    """Errors at sizes left out: those between the others, and those beyond them."""
    inside, beyond = [], []
    for out in _folds(at, along):
        rest = ~out
        columns = make(at[rest])
        predicted = _predicted(columns, _nonnegative(columns(at[rest]), ms[rest], weights[rest]), at[out])
        others = [tuple(map(int, size)) for size in at[rest]]
        for size, error in zip(at[out], np.log(ms[out] / predicted), strict=True):
            place = tuple(map(int, size))
            (inside if holds(others, place, tuple(along)) else beyond).append((place, float(error)))
    return inside, beyond


def _folds(at: np.ndarray, along: Sequence[int]) -> list[np.ndarray]:
    """What is left out together: all sizes of one N, all of one E, so that a value in between is new to the fit.

    The same sizes are left out once. Where there are only two values, one size after the other.
    """
    every = [at[:, c] == value for c in along for value in np.unique(at[:, c]) if len(np.unique(at[:, c])) > 2]
    folds = list({fold.tobytes(): fold for fold in every}.values())
    return folds or [np.arange(len(at)) == i for i in range(len(at))]


def _errors(found: Sequence[LeftOut]) -> tuple[float, ...]:
    return tuple(error for _, error in found)


def _error(errors: Sequence[float]) -> float:
    return float(np.mean(np.abs(errors)))


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
