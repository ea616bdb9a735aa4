"""The times that plans are made of, from the tables of the bandwidth study; and machines that one does not have.

costs = load_costs(folder, ["openvino:CPU", "onnxruntime:CPU"])
costs.only("openvino:CPU").with_simulated(npu_cannot=())      # a GPU and an NPU by constants, the NPU running all
costs.with_bandwidth(0.5)                                     # every transfer takes twice as long
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnlab.campaign.cells import Cell, CellResult, Settings
from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import Span
from gnnlab.prediction.predictor import MEASURED, Prediction, simulated_time
from gnnlab.prediction.tables import load_tables
from gnnlab.units import registry as units
from gnnlab.units.simulated import SCATTERS, SimulatedUnit
from gnnlab.workloads.staged import StagedLayer

if TYPE_CHECKING:
    from gnnlab.prediction.predictor import TimePredictor
    from gnnlab.prediction.transfer import MeasuredTransfers

Key = tuple[str, int, int, int, int]  # unit, first, last, nodes, edges
GPU, NPU = SIMULATED = ("simulated:GPU", "simulated:NPU")
SLOW_TO_LOAD = ("torch-compiled:CPU",)  # compiles each call for half a minute: only where it is named


def load_costs(folder: Path, names: Sequence[str] = ()) -> TableCosts:
    """The tables of notebook 06 in `folder`, for those units of `names` that have times; none: this CPU's runtimes.

    Raises:
        GnnlabError: the tables are missing, damaged or of another schema, a unit is not known, or none has times.
    """
    predictor, transfers = load_tables(folder)
    wanted = [units.find(name).name for name in names] or [name for name in predictor.units if _is_cpu(name)]
    chosen = tuple(name for name in predictor.units if name in wanted)  # in one order, however they were named
    if not chosen:
        raise GnnlabError(
            f"no times of {', '.join(wanted) or 'a runtime of this CPU'} in {folder}; it has those of "
            f"{', '.join(predictor.units)} (notebooks 05 and 06 measure the others)"
        )
    return TableCosts(predictor.layer, predictor, transfers, chosen)


def _is_cpu(name: str) -> bool:
    found = units.find(name)
    return found.processor == "CPU" and found.origin == "measured" and name not in SLOW_TO_LOAD


@dataclass(frozen=True, eq=False)
class TableCosts:
    """Times of the units named: measured ones by `predictor` and `transfers`, simulated ones by their constants.

    `bandwidth`: of transfers, over the measured one. A simulated device copies as this machine's memory does.
    `measured`: calls whose times were measured since, by unit, first, last, nodes, edges; they come before predictions.

    Raises:
        GnnlabError: the tables know nothing of a unit.
    """

    layer: StagedLayer
    predictor: TimePredictor
    transfers: MeasuredTransfers
    units: tuple[str, ...]
    simulated: Mapping[str, SimulatedUnit] = field(default_factory=dict)
    bandwidth: float = 1.0
    measured: Mapping[Key, CellResult] = field(default_factory=dict)
    _known: dict[Key, Prediction] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if unknown := [u for u in self.units if u not in self.simulated and u not in self.predictor.units]:
            raise GnnlabError(
                f"no times of {', '.join(unknown)} in the tables; there are those of {', '.join(self.predictor.units)} "
                "(notebook 05 measures the others)"
            )

    def only(self, *names: str) -> TableCosts:
        """The same with these units alone."""
        return replace(self, units=names)

    def with_simulated(self, names: Collection[str] = SIMULATED, npu_cannot: Collection[str] = SCATTERS) -> TableCosts:
        """The same with simulated devices; `npu_cannot`: names of stages that the NPU does not run."""
        found = {name: units.find(name) for name in names}
        if NPU in found:
            found[NPU] = replace(found[NPU], cannot=frozenset(npu_cannot))
        named = tuple(dict.fromkeys([*self.units, *names]))
        return replace(self, units=named, simulated={**self.simulated, **found})

    def with_measured(
        self, calls: Collection[Key], measure: Callable[[Cell, Settings], CellResult], models: Path | str, budget_s=0.1
    ) -> TableCosts:
        """The same once `measure` has measured these calls, each after its parity; a failed one stays as it was."""
        found = dict(self.measured)
        for unit, first, last, nodes, edges in calls:
            cell = Cell(self.layer.name, self.layer.features, nodes, edges, first, last, unit)
            outcome = measure(cell, Settings(str(models), budget_s))
            if outcome.status == "measured":
                found[unit, first, last, nodes, edges] = outcome
        return replace(self, measured=found)

    def with_bandwidth(self, factor: float) -> TableCosts:
        return replace(self, bandwidth=self.bandwidth * factor)

    @property
    def devices(self) -> frozenset[str]:
        """Units that are hardware of their own."""
        return frozenset(name for name in self.units if self.processor(name) != "CPU")

    @property
    def separate(self) -> frozenset[str]:
        """Units with a memory of their own."""
        return frozenset(self.simulated)

    def processor(self, unit: str) -> str:
        return units.find(unit).processor

    def blocks(self, unit: str) -> Collection[Span]:
        """The blocks (first, last) of which a unit's time is known."""
        if unit not in self.simulated:
            return self.predictor.blocks(unit)
        cannot = self.simulated[unit].cannot
        return {
            block for block in self.layer.blocks() if not {s.name for s in self.layer.block(*block).stages} & cannot
        }

    def predict(self, unit: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        """The time of a block in one call, its interval (95 % where it was measured), and its origin:
        measured|interpolated|extrapolated|simulated. Raises `GnnlabError` where the tables give none that makes sense.
        """
        key = (unit, first, last, nodes, edges)
        if key not in self._known:
            self._known[key] = self._look_up(*key)
        return self._known[key]

    def transfer_ms(self, source: str, target: str, size_bytes: float) -> float:
        """A plain copy into memory that all units read; 0 within a unit.

        Times of measured devices hold their own copies in and out already; simulated ones copy as this memory does.
        """
        if source == target or size_bytes <= 0:
            return 0.0
        return self.transfers.plain.ms(size_bytes) / self.bandwidth

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The (nodes, edges) at which blocks of these units were measured."""
        found = (at for key, at in self.predictor.measured.items() if key[0] in self.units)
        return sorted({size for at in found for size in at})

    def _look_up(self, unit: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        if (outcome := self.measured.get((unit, first, last, nodes, edges))) is not None:
            return Prediction(outcome.median_ms, *outcome.ci_ms, MEASURED)
        if unit in self.simulated:
            return simulated_time(self.simulated[unit], self.layer, first, last, nodes, edges)
        predicted = self.predictor.predict(unit, first, last, nodes, edges)
        if not (np.isfinite(predicted.time_ms) and predicted.time_ms > 0):
            raise GnnlabError(
                f"the tables give {predicted.time_ms} ms for stages {first}-{last} on {unit} at {nodes}/{edges}; "
                "measure them anew (notebooks 05 and 06)"
            )
        return predicted
