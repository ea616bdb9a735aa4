"""Times of blocks on units at any graph size, each with an interval that holds at its stated rate.

    predictor = TimePredictor.fit(layer, cells, transfers)    # cells: the table of a campaign
    predictor.predict("openvino:CPU", 1, 5, nodes=4000, edges=9000)      # time_ms, low_ms, high_ms, origin

Intervals are conformal: sizes are left out, predicted and compared, and the 90 % quantile of the errors, each over what
is usual for its block, is the half-width of the next prediction (Vovk 2005; Lei et al. 2018). A measured size gives its
measured time; one outside the hull of those measured is `extrapolated`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.prediction.fitting import Fit, choose
from gnnlab.prediction.measured import Size, Span, inside_hull
from gnnlab.prediction.transfer import MeasuredTransfers
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import CONFIDENCE
from gnnlab.units import registry as units
from gnnlab.units.simulated import NOISE, SimulatedUnit
from gnnlab.workloads.staged import StagedLayer

RATE = 0.9  # at which an interval holds the time that is measured
MEASURED, SIMULATED = "measured", "simulated"
INTERPOLATED, EXTRAPOLATED = "interpolated", "extrapolated"
_OWN = 4  # errors of its own that weigh as much as those of all blocks of the unit, in what is usual for a block
_LEAST_SPREAD = 0.005
Key = tuple[str, int, int]  # unit, first, last


@dataclass(frozen=True)
class Prediction:
    """A time in ms, the interval that holds it at 90 %, and measured|interpolated|extrapolated|simulated."""

    time_ms: float
    low_ms: float
    high_ms: float
    origin: str


@dataclass(frozen=True)
class Errors:
    """Errors of a unit's blocks at sizes left out, each over the spread of its block. `quantile` of their absolutes."""

    scores: np.ndarray

    @property
    def quantile(self) -> float:
        """The next error is below it at the stated rate; twice the largest where there are too few."""
        ordered = np.sort(np.abs(self.scores))
        place = int(np.ceil((len(ordered) + 1) * RATE)) - 1
        return float(ordered[place]) if place < len(ordered) else 2 * float(ordered[-1])

    @property
    def enough(self) -> bool:
        """Are there enough errors for the stated rate?"""
        return int(np.ceil((len(self.scores) + 1) * RATE)) <= len(self.scores)


@dataclass(frozen=True, eq=False)
class TimePredictor:
    """`lacking`: why a block of a unit has no fit."""

    layer: StagedLayer
    fits: Mapping[Key, Fit]
    measured: Mapping[Key, Mapping[Size, Sequence[float]]]  # ms, low, high
    spreads: Mapping[Key, float]
    errors: Mapping[str, Mapping[str, Errors]]  # by unit, by origin
    simulated: Mapping[str, Collection[Span]] = field(default_factory=dict)
    lacking: Mapping[Key, str] = field(default_factory=dict)

    @classmethod
    def fit(cls, layer: StagedLayer, cells: pd.DataFrame, transfers: MeasuredTransfers | None = None) -> TimePredictor:
        """From a table with unit, first, last, nodes, edges, ms, ms_low, ms_high, and origin where some are simulated.

        `transfers`: of a unit its own copies are used, plain ones where it has none.

        Raises:
            GnnlabError: no block of any unit has enough sizes.
        """
        simulated = _simulated(cells)
        real = cells[cells["ms"].notna() & ~cells["unit"].isin(simulated)]
        fits, measured, lacking = {}, {}, {}
        for key, part in real.groupby(["unit", "first", "last"], sort=False):
            part = part.groupby(["nodes", "edges"], as_index=False)[["ms", "ms_low", "ms_high"]].median()
            sizes = list(zip(part["nodes"].tolist(), part["edges"].tolist(), strict=True))
            measured[key] = dict(zip(sizes, part[["ms", "ms_low", "ms_high"]].to_numpy().tolist(), strict=True))
            try:
                curve = transfers and transfers.through.get(key[0], transfers.plain)
                fits[key] = choose(layer, *key[1:], sizes, part["ms"], curve)
            except GnnlabError as error:
                lacking[key] = str(error)
        if not fits and (lacking or not simulated):
            reason = next(iter(lacking.values()), "there are no measured times")
            raise GnnlabError(f"nothing to predict from: {reason}")
        spreads = _spreads(fits)
        return cls(layer, fits, measured, spreads, _errors(fits, spreads), simulated, lacking)

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(key[0] for key in self.fits), *self.simulated]))

    def blocks(self, unit: str) -> set[Span]:
        """(first, last) of what can be predicted on a unit."""
        return {key[1:] for key in self.fits if key[0] == unit} | set(self.simulated.get(unit, ()))

    def predict(self, unit: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        """The time of a block at a size, ms.

        Raises:
            GnnlabError: an unknown block or size.
        """
        if nodes < 1 or edges < 1:
            raise GnnlabError(f"a graph of {nodes} nodes and {edges} edges; at least 1 of each is needed")
        if (first, last) in self.simulated.get(unit, ()):
            return simulated_time(units.find(unit), self.layer, first, last, nodes, edges)
        key, size = (unit, first, last), (int(nodes), int(edges))
        fit, known = self._fit(key), self.measured[key].get(size)
        middle = known[0] if known else fit.ms(*size)
        inside = known or inside_hull(list(self.measured[key]), [size], fit.coordinates)[0]
        origin = MEASURED if known else INTERPOLATED if inside else EXTRAPOLATED
        half = self.errors[unit][origin].quantile * self.spreads[key]
        ends = (middle * float(np.exp(-half)), middle * float(np.exp(half)))
        if known:
            ends = min(known[1], ends[0]), max(known[2], ends[1])
        return Prediction(middle, *ends, origin)

    def _fit(self, key: Key) -> Fit:
        if key in self.fits:
            return self.fits[key]
        unit, first, last = key
        known = ", ".join(f"{a}-{b}" for a, b in sorted(self.blocks(unit)))
        why = self.lacking.get(key) or (f"it has {known}" if known else f"units with times: {', '.join(self.units)}")
        raise GnnlabError(f"no times of stages {first}-{last} on {unit}: {why}")

    # ---- as rows -----------------------------------------------------------------------------------------------------

    def held_out(self) -> pd.DataFrame:
        """Median error (%) at sizes left out of the fit, by unit (pu) and stage, stages before blocks of several.

        Sizes of one N, and of one E, were left out together and are no samples of their own, so each kind of group is
        resampled, and the wider ends of the interval count; there is none where there is one group.
        """
        rows = []
        for (unit, first, last), fit in sorted(
            self.fits.items(), key=lambda item: (item[0][1] != item[0][2], *item[0][1:])
        ):
            missed = fit.interpolation_errors
            percent, sizes = 100 * np.abs(np.expm1(missed["error"].to_numpy())), missed[["nodes", "edges"]].to_numpy()
            low, high = over_groups(percent, sizes, fit.coordinates)
            means = ", ".join(f"{form} {_percent(np.expm1(error))}" for form, error in fit.errors.items())
            where = "between the others" if missed["inside"].all() else "beyond the others"
            notes = [
                f"form: {fit.form}",
                f"mean errors: {means}",
                f"sizes left out: {len(np.unique(sizes, axis=0))}, {where}",
            ]
            if not self.errors[unit][INTERPOLATED].enough:
                notes.append("too few sizes were left out for the rate of the intervals")
            found = {"value": float(np.median(percent)), "low": low, "high": high, "n": len(percent), "notes": notes}
            rows.append({"pu": unit, "stage": self.label(first, last), **found})
        fixed = {"form": "predicted", "unit": "%", "better": "lower", "origin": MEASURED, "statistic": "median"}
        return pd.DataFrame(rows).assign(**fixed, interval=CONFIDENCE)

    def label(self, first: int, last: int) -> str:
        """ "6 TRANSFORM", or "1-5"."""
        return f"{first} {self.layer.stages[first - 1].name}" if first == last else f"{first}-{last}"


def over_groups(errors: np.ndarray, sizes: Sequence[Sequence[int]], along: Sequence[int]) -> tuple[float, float]:
    """95 % interval of the median error, over groups of sizes of one N and of one E; NaN where there is one group."""
    found = [estimates.over_clusters(errors, [size[c] for size in sizes], "median") for c in along]
    if any(each.low is None for each in found):
        return np.nan, np.nan
    return max(0.0, min(each.low for each in found)), max(each.high for each in found)


def simulated_time(
    device: SimulatedUnit, layer: StagedLayer, first: int, last: int, nodes: int, edges: int
) -> Prediction:
    """By its constants, with 90 % of its noise."""
    ms = device.time_ms(layer, first, last, nodes, edges, device.computes_in("float32"))
    half = 1.645 * NOISE  # 90 % of a normal
    return Prediction(ms, ms * float(np.exp(-half)), ms * float(np.exp(half)), SIMULATED)


def _simulated(cells: pd.DataFrame) -> dict[str, set[Span]]:
    """Blocks of simulated units that have a time; their constants give it at any size, and there is nothing to fit."""
    if "origin" not in cells:
        return {}
    made_up = cells[(cells["origin"] == SIMULATED) & cells["ms"].notna()]
    found = made_up.groupby("unit", sort=False)
    return {u: set(zip(p["first"].tolist(), p["last"].tolist(), strict=True)) for u, p in found}


def _spreads(fits: Mapping[Key, Fit]) -> dict[Key, float]:
    """The usual error of a block: its own median at sizes left out, shrunk towards that of its unit's blocks."""
    own = {key: fit.interpolation_errors["error"].abs().to_numpy() for key, fit in fits.items()}
    spreads = {}
    for key, errors in own.items():
        usual = float(np.median([np.median(e) for k, e in own.items() if k[0] == key[0]]))
        mixed = (len(errors) * float(np.median(errors)) + _OWN * usual) / (len(errors) + _OWN)
        spreads[key] = max(mixed, _LEAST_SPREAD)
    return spreads


def _errors(fits: Mapping[Key, Fit], spreads: Mapping[Key, float]) -> dict[str, dict[str, Errors]]:
    """Of each unit: at sizes between others, beyond them, and, for what is measured, at those of the fit itself."""
    found = {}
    for unit in dict.fromkeys(key[0] for key in fits):
        own = [(fit, spreads[key]) for key, fit in fits.items() if key[0] == unit]
        missed = pd.concat([fit.left_out.assign(score=fit.left_out["error"] / spread) for fit, spread in own])
        every, inside = missed["score"].to_numpy(), missed.loc[missed["inside"], "score"].to_numpy()
        found[unit] = {
            INTERPOLATED: Errors(inside if len(inside) else every),
            EXTRAPOLATED: Errors(every),  # no narrower than between sizes
            MEASURED: Errors(np.concatenate([fit.fitted / spread for fit, spread in own])),
        }
    return found


def _percent(share: float) -> str:
    """ "0.49 %", "520 %": two digits, and never a power of ten."""
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
