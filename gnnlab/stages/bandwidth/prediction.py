"""Times of blocks on units at any graph size, each with an interval that holds at its stated rate.

    predictor = Predictor.fit(layer, cells, curves)           # cells: the table of a campaign
    predictor.predict("openvino:CPU", 1, 5, nodes=4000, edges=9000)      # time_ms, low_ms, high_ms, origin
    predictor.samples("openvino:CPU", 1, 5, 4000, 9000, count=400, seed=0)

Intervals are conformal: sizes are left out, predicted and compared, and the 90 % quantile of the errors, each over what
is usual for its block, is the half-width of the next prediction (Vovk 2005; Lei et al. 2018). A measured size gives its
measured time; one outside the hull of those measured is `extrapolated`, or refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gnnlab.stages.bandwidth.fitting import Fit, choose
from gnnlab.stages.bandwidth.measured_hull import Size, holds
from gnnlab.stages.bandwidth.transfer import Curve
from gnnlab.stages.errors import StageError
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.simulated import NOISE, SimulatedUnit
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
        """At which a next error stays with the stated rate; beyond them all where they are too few to tell."""
        ordered = np.sort(np.abs(self.scores))
        place = int(np.ceil((len(ordered) + 1) * RATE)) - 1
        return float(ordered[place]) if place < len(ordered) else 2 * float(ordered[-1])

    @property
    def enough(self) -> bool:
        return int(np.ceil((len(self.scores) + 1) * RATE)) <= len(self.scores)


@dataclass(frozen=True, eq=False)
class Predictor:
    """`refuse_outside`: raise instead of extrapolating. `lacking`: why a block of a unit has no fit."""

    layer: StagedLayer
    fits: Mapping[Key, Fit]
    measured: Mapping[Key, Mapping[Size, Sequence[float]]]  # ms, low, high
    spreads: Mapping[Key, float]
    errors: Mapping[str, Mapping[str, Errors]]  # by unit, by origin
    simulated: Mapping[str, Collection[tuple[int, int]]] = field(default_factory=dict)
    lacking: Mapping[Key, str] = field(default_factory=dict)
    refuse_outside: bool = False

    @classmethod
    def fit(
        cls,
        layer: StagedLayer,
        cells: pd.DataFrame,
        curves: Mapping[str, Curve] | None = None,
        *,
        refuse_outside: bool = False,
    ) -> Predictor:
        """From a table with unit, first, last, nodes, edges, ms, ms_low, ms_high, and origin where some are simulated.

        `curves`: copies through a unit's runtime, by unit.

        Raises:
            StageError: no block of any unit has enough sizes.
        """
        simulated = _simulated(cells)
        real = cells[cells["ms"].notna() & ~cells["unit"].isin(simulated)]
        fits, measured, lacking = {}, {}, {}
        for key, part in real.groupby(["unit", "first", "last"], sort=False):
            part = part.groupby(["nodes", "edges"], as_index=False)[["ms", "ms_low", "ms_high"]].median()
            sizes = list(zip(part["nodes"].tolist(), part["edges"].tolist(), strict=True))
            half = (part["ms_high"] - part["ms_low"]) / 2 / part["ms"]
            measured[key] = dict(zip(sizes, part[["ms", "ms_low", "ms_high"]].to_numpy().tolist(), strict=True))
            try:
                fits[key] = choose(layer, *key[1:], sizes, part["ms"], half, (curves or {}).get(key[0]))
            except StageError as error:
                lacking[key] = str(error)
        if not fits and (lacking or not simulated):
            reason = next(iter(lacking.values()), "there are no measured times")
            raise StageError(f"nothing to predict from: {reason}")
        spreads = _spreads(fits)
        return cls(layer, fits, measured, spreads, _errors(fits, spreads), simulated, lacking, refuse_outside)

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(key[0] for key in self.fits), *self.simulated]))

    def blocks(self, unit: str) -> set[tuple[int, int]]:
        """(first, last) of what can be predicted on a unit."""
        return {key[1:] for key in self.fits if key[0] == unit} | set(self.simulated.get(unit, ()))

    def predict(self, unit: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        """The time of a block at a size, ms.

        Raises:
            StageError: an unknown block or size, or one outside the measured hull where that is refused.
        """
        if nodes < 1 or edges < 1:
            raise StageError(f"a graph of {nodes} nodes and {edges} edges; at least 1 of each is needed")
        if (first, last) in self.simulated.get(unit, ()):
            return self._simulation(unit, first, last, nodes, edges)
        key, size = (unit, first, last), (int(nodes), int(edges))
        origin, middle = self._origin(key, size), self._middle(key, size)
        half = self.errors[unit][origin].quantile * self.spreads[key]
        ends = (middle * float(np.exp(-half)), middle * float(np.exp(half)))
        if origin == MEASURED:
            _, low, high = self.measured[key][size]
            ends = min(low, ends[0]), max(high, ends[1])
        return Prediction(middle, *ends, origin)

    def samples(self, unit: str, first: int, last: int, nodes: int, edges: int, count: int, seed: int) -> np.ndarray:
        """Draws (count) of a block's time in ms: the prediction, and errors as they were at sizes left out."""
        found = self.predict(unit, first, last, nodes, edges)
        random = np.random.default_rng(seed)
        if found.origin == SIMULATED:
            return found.time_ms * np.exp(random.normal(0, NOISE, count))
        scores = self.errors[unit][found.origin].scores
        drawn = random.choice(scores, count) * self.spreads[unit, first, last]
        return found.time_ms * np.exp(drawn)

    def origin(self, unit: str, first: int, last: int, nodes: int, edges: int) -> str:
        """measured|interpolated|extrapolated|simulated"""
        return self.predict(unit, first, last, nodes, edges).origin

    def fitted_ms(self, unit: str, first: int, last: int, nodes: int, edges: int) -> float:
        """What the fit says, at measured sizes, too."""
        return self._fit((unit, first, last)).ms(nodes, edges)

    def _fit(self, key: Key) -> Fit:
        if key in self.fits:
            return self.fits[key]
        unit, first, last = key
        known = ", ".join(f"{a}-{b}" for a, b in sorted(self.blocks(unit)))
        why = self.lacking.get(key) or (f"it has {known}" if known else f"units with times: {', '.join(self.units)}")
        raise StageError(f"no times of stages {first}-{last} on {unit}: {why}")

    def _middle(self, key: Key, size: Size) -> float:
        found = self.measured[key].get(size)
        return found[0] if found else self._fit(key).ms(*size)

    def _origin(self, key: Key, size: Size) -> str:
        fit = self._fit(key)
        if size in self.measured[key]:
            return MEASURED
        if holds(list(self.measured[key]), size, fit.coordinates):
            return INTERPOLATED
        if self.refuse_outside:
            sizes = np.array(list(self.measured[key]))
            (least_n, least_e), (most_n, most_e) = sizes.min(axis=0), sizes.max(axis=0)
            raise StageError(
                f"{size[0]} nodes and {size[1]} edges lie outside the sizes measured for stages {key[1]}-{key[2]} on "
                f"{key[0]} ({least_n} to {most_n} nodes, {least_e} to {most_e} edges, and what lies between them); "
                "measure there, or allow extrapolation"
            )
        return EXTRAPOLATED

    def _simulation(self, unit: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        device: SimulatedUnit = units.find(unit)
        ms = device.time_ms(self.layer, first, last, nodes, edges, device.computes_in("float32"))
        half = 1.645 * NOISE  # 90 % of a normal
        return Prediction(ms, ms * float(np.exp(-half)), ms * float(np.exp(half)), SIMULATED)


def _simulated(cells: pd.DataFrame) -> dict[str, set[tuple[int, int]]]:
    """Blocks of simulated units that have a time; their constants give it at any size, and there is nothing to fit."""
    if "origin" not in cells:
        return {}
    made_up = cells[(cells["origin"] == SIMULATED) & cells["ms"].notna()]
    found = made_up.groupby("unit", sort=False)
    return {u: set(zip(p["first"].tolist(), p["last"].tolist(), strict=True)) for u, p in found}


def _spreads(fits: Mapping[Key, Fit]) -> dict[Key, float]:
    """What error is usual for a block: its own median at sizes left out, drawn towards that of its unit's blocks."""
    own = {key: np.abs(fit.inside or fit.beyond) for key, fit in fits.items()}
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
        keys = [key for key in fits if key[0] == unit]

        def scores(name: str, keys: Sequence[Key] = keys) -> np.ndarray:
            return np.array([error / spreads[key] for key in keys for error in getattr(fits[key], name)])

        inside, beyond, fitted = scores("inside"), scores("beyond"), scores("fitted")
        inside = inside if len(inside) else np.concatenate([inside, beyond])
        beyond = np.concatenate([inside, beyond])  # no narrower than between sizes
        parts = {INTERPOLATED: inside, EXTRAPOLATED: beyond, MEASURED: fitted}
        found[unit] = {origin: Errors(part) for origin, part in parts.items()}
    return found
