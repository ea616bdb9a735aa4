"""What a block takes on a unit, and what it takes to hand bytes on: one table of times, whoever measured them.

    costs = load_costs(folder, ["openvino:CPU", "onnxruntime:CPU"])     # the tables of notebook 06
    costs = read_costs(Path("lookup_table.json"), Path("bandwidth_table.json"))     # S4's, of any machine
    costs.predict("openvino:CPU", 1, 5, nodes=4000, edges=9000)        # time_ms, low_ms, high_ms, origin
    costs.only("openvino:CPU").with_simulated(npu_cannot=())    # and a GPU and an NPU by constants
    costs.with_bandwidth(0.5)                                   # every transfer takes twice as long

A time is looked up where it is known at that size, else predicted from those that are. S4's tables name processors as
units and have single stages alone, each with its `total_time_ms`; nothing of them was measured here, and every origin
says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab.campaign.cells import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.prediction.predictor import EXTRAPOLATED, INTERPOLATED, MEASURED, Prediction, TimePredictor
from gnnlab.prediction.tables import load_tables, read_bandwidth, read_lookup
from gnnlab.units import registry
from gnnlab.units.simulated import NOISE, SCATTERS, SimulatedUnit
from gnnlab.workloads.staged import StagedLayer

Span = tuple[int, int]  # first and last stage
Key = tuple[str, int, int, int, int]  # `CALL`
CALL = ["unit", "first", "last", "nodes", "edges"]
HOST = "host"  # where graphs come from and results go to
READ, FITTED, SIMULATED = "read", "read, fitted between", "simulated"
LEAST_FIRST = (SIMULATED, EXTRAPOLATED, FITTED, READ, INTERPOLATED, MEASURED)  # origins, by what they say of here
SIMULATED_UNITS = ("simulated:GPU", "simulated:NPU")
SLOW_TO_LOAD = ("torch-compiled:CPU",)  # compiles each call for half a minute: only where it is named
S4_FEATURES = 500  # of S4's GraphSAGE, which its tables are of
NORMAL_95, NORMAL_90 = 1.96, 1.645  # standard deviations


@dataclass(frozen=True, eq=False)
class Costs:
    """Times of the units named.

    `predictor`: of sizes that are not `known`, None where there are too few. `copy_ms`: of a source, a target and bytes
    that go from one to the other. `processors`: CPU|GPU|NPU of each unit; `separate`: units with a memory of their own.
    `simulated`: units by their constants.
    """

    layer: StagedLayer
    units: tuple[str, ...]
    predictor: TimePredictor | None
    copy_ms: Callable[[str, str, float], float]
    processors: Mapping[str, str]
    separate: frozenset[str] = frozenset()
    known: Mapping[Key, Prediction] = field(default_factory=dict)
    simulated: Mapping[str, SimulatedUnit] = field(default_factory=dict)

    def only(self, *names: str) -> Costs:
        """The same with these units alone."""
        return replace(self, units=names)

    def with_simulated(self, npu_cannot: Collection[str] = SCATTERS) -> Costs:
        """The same with a simulated GPU and NPU, which copy as this machine's memory does; `npu_cannot`: names of
        stages that the NPU does not run."""
        gpu, npu = map(registry.find, SIMULATED_UNITS)
        devices = {gpu.name: gpu, npu.name: replace(npu, cannot=frozenset(npu_cannot))}
        return replace(
            self,
            units=(*self.units, *devices),
            processors={**self.processors, **{name: device.processor for name, device in devices.items()}},
            separate=self.separate | set(devices),
            simulated=devices,
        )

    def with_bandwidth(self, factor: float) -> Costs:
        """The same with so many times the bandwidth of all transfers."""
        return replace(self, copy_ms=lambda *given: self.copy_ms(*given) / factor)

    @property
    def devices(self) -> frozenset[str]:
        """Units that are hardware of their own: all that is no runtime of this CPU."""
        return frozenset(unit for unit in self.units if self.processors[unit] != "CPU")

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The (nodes, edges) at which the tables have times of these units."""
        fitted = self.predictor.measured if self.predictor else {}
        sizes = {size for key, at in fitted.items() if key[0] in self.units for size in at}
        return sorted(sizes | {key[3:] for key in self.known if key[0] in self.units})

    def blocks(self, unit: str) -> set[Span]:
        """The blocks (first, last) of which a unit's time is known."""
        if unit in self.simulated:
            cannot = self.simulated[unit].cannot
            able = {stage.number for stage in self.layer.stages if stage.name not in cannot}
            return {(a, b) for a, b in self.layer.blocks() if able.issuperset(range(a, b + 1))}
        fitted = set(self.predictor.blocks(unit)) if self.predictor else set()
        return fitted | {key[1:3] for key in self.known if key[0] == unit}

    @lru_cache(maxsize=100_000)  # noqa: B019 - a ranking asks for the same call in many plans
    def predict(self, unit: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        """The time of a block in one call, its interval (95 % where it was measured, else 90 %), and its origin:
        measured, interpolated, extrapolated, simulated, read, or "read, fitted between".

        Raises:
            GnnlabError: the tables give no time.
        """
        key = (unit, first, last, nodes, edges)
        if key in self.known:
            return self.known[key]
        if unit in self.simulated:
            device, noise = self.simulated[unit], math.exp(NORMAL_90 * NOISE)
            ms = device.time_ms(self.layer, first, last, nodes, edges, device.computes_in("float32"))
            return Prediction(ms, ms / noise, ms * noise, SIMULATED)
        if self.predictor is None:
            sizes = ", ".join(f"{n}/{e}" for n, e in self.sizes)
            raise GnnlabError(f"no times at {nodes}/{edges} and too few sizes to fit between them; there are {sizes}")
        predicted = self.predictor.predict(*key)
        was_read = any(each[0] == unit and time.origin == READ for each, time in self.known.items())
        return replace(predicted, origin=FITTED) if was_read and predicted.origin == INTERPOLATED else predicted

    def transfer_ms(self, source: str, target: str, size_bytes: float) -> float:
        """Handing bytes on; 0 within a unit. Times of measured devices hold their own copies in and out already."""
        return 0.0 if source == target or size_bytes <= 0 else self.copy_ms(source, target, size_bytes)


# ---- the tables of notebook 06 ---------------------------------------------------------------------------------------


def load_costs(folder: Path, names: Sequence[str] = ()) -> Costs:
    """The tables of notebook 06 in `folder`, for those units of `names` that have times; none: this CPU's runtimes.

    Raises:
        GnnlabError: the tables are missing, damaged or of another schema, a unit is not known, or none has times.
    """
    predictor, transfers = load_tables(folder)
    have = {name: registry.find(name) for name in predictor.units}
    here = [u.name for u in have.values() if u.processor == "CPU" and u.origin == "measured"]
    wanted = [registry.find(name).name for name in names] or [name for name in here if name not in SLOW_TO_LOAD]
    chosen = tuple(name for name in have if name in wanted)  # in one order, however they were named
    if not chosen:
        raise GnnlabError(
            f"no times of {', '.join(wanted) or 'a runtime of this CPU'} in {folder}; it has those of "
            f"{', '.join(predictor.units)} (notebooks 05 and 06 measure the others)"
        )
    processors = {name: have[name].processor for name in chosen}
    # units hand on by a plain copy, into memory that all of them read
    return Costs(predictor.layer, chosen, predictor, lambda source, target, size: transfers.plain.ms(size), processors)


# ---- S4's tables -----------------------------------------------------------------------------------------------------


def read_costs(lookup: Path, bandwidth: Path) -> Costs:
    """The costs that two files in S4's format give, of its GraphSAGE with 500 features. Stages one after the other take
    the sum; a hand-over takes its bytes over the lesser of both bandwidths, the medians over stages.

    Raises:
        GnnlabError: a file is missing, in another format, or holds an invalid time or bandwidth; one line.
    """
    layer, table, rates = layer_of("sage", S4_FEATURES), read_lookup(lookup), read_bandwidth(bandwidth)
    if strange := [stage for stage in table["stage"] if not 1 <= stage <= len(layer.stages)]:
        raise GnnlabError(f"{lookup}: stage {strange[0]}; S4's layer has stages 1 to {len(layer.stages)}")
    ms, half = table["total_time_ms"], NORMAL_95 * table["std_ms"].fillna(0.0)  # the time alone where it has none
    times = table[["processor", "stage", "stage", "nodes", "edges"]].set_axis(CALL, axis=1)
    times = times.assign(ms=ms, ms_low=np.maximum(ms - half, ms / 2), ms_high=ms + half)
    known = {row[:5]: Prediction(*row[5:], READ) for row in times.itertuples(index=False, name=None)}
    try:
        predictor = TimePredictor.fit(layer, times)
    except GnnlabError:  # too few sizes: those that are there can still be planned
        predictor = None
    processors = {key[0]: key[0] for key in known}
    mb_s = pd.Series(rates, dtype=float).groupby(lambda key: key.partition("_")[0]).median()

    def copy_ms(source: str, target: str, size_bytes: float) -> float:
        """The host's memory is the CPU's."""
        ends = ["CPU" if end == HOST else end for end in (source, target)]
        if ends[0] == ends[1]:
            return 0.0
        for end in ends:
            if end not in mb_s:
                raise GnnlabError(f"the bandwidth table says nothing of the {end}; add {end}_stageN, in MB/s")
        return size_bytes / mb_s[ends].min() / 1e3

    return Costs(layer, tuple(processors), predictor, copy_ms, processors, frozenset(processors) - {"CPU"}, known)
