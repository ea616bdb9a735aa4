"""The time of one block on one unit by the size of the graph: fitted, and judged at sizes left out.

    fit = choose(layer, 1, 5, sizes, ms, curve)
    fit.ms(4000, 9000); fit.form; fit.left_out                  # relative errors at sizes left out

Two forms compete. `work`: launch + bytes + FLOPs + nodes + edges. `work and caches`: in it the bytes count by the
measured time of a copy of them, which knows the caches. No coefficient is negative, and errors count relative to the
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import LeaveOneGroupOut, LeaveOneOut

from gnnlab.errors import GnnlabError
from gnnlab.prediction.measured import EDGES, NODES, Size, inside_hull
from gnnlab.prediction.transfer import CopyCurve
from gnnlab.workloads import staged
from gnnlab.workloads.staged import StagedLayer

WORK, CACHES = "work", "work and caches"
FEWEST_SIZES = 3
_LEAST_MS = 1e-6

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
        at = np.array([[nodes, edges]], dtype=float)
        return float(_predicted(self.columns(at), self.coefficients)[0])


def choose(
    layer: StagedLayer,
    first: int,
    last: int,
    sizes: Sequence[Size],
    ms: Sequence[float],
    curve: CopyCurve | None = None,
) -> Fit:
    """The form with the smallest errors at sizes left out. `curve`: copies, without which there is `work` alone.

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
    columns_of = forms(layer, first, last, along, curve)
    left_out = {form: _left_out(columns(at), at, times, along) for form, columns in columns_of.items()}
    errors = {form: float(_interpolation_errors(found)["error"].abs().mean()) for form, found in left_out.items()}
    form = min(errors, key=errors.get)
    columns = columns_of[form](at)
    coefficients = _fitted(columns, times)
    fitted = np.log(times / _predicted(columns, coefficients))
    return Fit(form, columns_of[form], coefficients, along, left_out[form], fitted, errors)


def coordinates(layer: StagedLayer, first: int, last: int) -> tuple[int, ...]:
    """Which of N (0) and E (1) a block's values and arithmetic depend on."""
    block = layer.block(first, last)
    dims = {dim for name in (*block.reads, *block.writes) for dim in layer.values[name].dims}
    dims |= {dim for stage in block.stages for dim in layer.values[stage.writes].dims}
    return (NODES,) * (staged.NODES in dims) + (EDGES,) * (staged.EDGES in dims)


def forms(
    layer: StagedLayer, first: int, last: int, along: Sequence[int], curve: CopyCurve | None
) -> dict[str, Columns]:
    """From sizes to the columns of each form, by its name."""
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

    return {WORK: work, CACHES: cached} if curve else {WORK: work}


def _left_out(columns: np.ndarray, at: np.ndarray, ms: np.ndarray, along: Sequence[int]) -> pd.DataFrame:
    """nodes, edges, error and inside of sizes left out, as in `Fit`."""
    parts = []
    for rest, out in _folds(at, along):
        predicted = _predicted(columns[out], _fitted(columns[rest], ms[rest]))
        missed = pd.DataFrame(at[out].astype(int), columns=["nodes", "edges"])
        parts.append(missed.assign(error=np.log(ms[out] / predicted), inside=inside_hull(at[rest], at[out], along)))
    return pd.concat(parts, ignore_index=True)


def _interpolation_errors(left_out: pd.DataFrame) -> pd.DataFrame:
    return left_out[left_out["inside"]] if left_out["inside"].any() else left_out


def _folds(at: np.ndarray, along: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Fitted and left out: all sizes of one N, all of one E together, so that a value in between is new to the fit.

    The same sizes are left out once. Where there are only two values, one size after the other.
    """
    varied = [c for c in along if len(np.unique(at[:, c])) > 2]
    every = [fold for c in varied for fold in LeaveOneGroupOut().split(at, groups=at[:, c])]
    return list({out.tobytes(): (rest, out) for rest, out in every}.values()) or list(LeaveOneOut().split(at))


def _fitted(columns: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Coefficients >= 0 of the least squares of relative errors."""
    fit = LinearRegression(positive=True, fit_intercept=False)
    return fit.fit(columns / ms[:, None], np.ones(len(ms))).coef_


def _predicted(columns: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    return np.maximum(columns @ coefficients, _LEAST_MS)
