"""Costs from a lookup and a bandwidth table in S4's format, whoever made them, on whatever machine.

    costs = read_costs(Path("lookup_table.json"), Path("bandwidth_table.json"))
    planner_of(costs).rank(nodes=1000, edges=5000)

Units are the processors of the tables. Nothing of it was measured here, so every origin says "read", or that a time was
fitted between the read ones. A stage takes its `total_time_ms`; stages one after the other take the sum, since such
tables know no fused blocks. A hand-over between two processors takes its bytes over the lesser of their bandwidths, the
medians over stages.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import HOST, Span
from gnnlab.prediction.predictor import EXTRAPOLATED, Prediction, TimePredictor
from gnnlab.prediction.tables import LookupEntry, read_bandwidth, read_lookup
from gnnlab.workloads.staged import StagedLayer

READ, FITTED = "read", "read, fitted between"
_NORMAL_90, _NORMAL_95 = 1.645, 1.96
_FEATURES = 500  # of S4's GraphSAGE, which its tables are of


@dataclass(frozen=True, eq=False)
class ReadCosts:
    """Times by processor, stage and size, and what a hand-over takes.

    `lookup`: entries by (processor, stage, nodes, edges); `predictor`: fitted to them, None where no stage has enough
    sizes; `origins`: words for where they come from.
    """

    layer: StagedLayer
    lookup: dict[tuple[str, int, int, int], LookupEntry]
    bandwidth: dict[str, float]
    predictor: TimePredictor | None

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(processor for processor, *_ in self.lookup))

    @property
    def devices(self) -> frozenset[str]:
        """Each processor is hardware of its own."""
        return frozenset(self.units)

    @property
    def separate(self) -> frozenset[str]:
        """Those that do not read the host's memory."""
        return frozenset(self.units) - {"CPU"}

    @property
    def sizes(self) -> list[tuple[int, int]]:
        return sorted({key[2:] for key in self.lookup})

    @property
    def noise_known(self) -> bool:
        """Does every entry say how its time varied?"""
        return all(entry.std_ms is not None for entry in self.lookup.values())

    def processor(self, unit: str) -> str:
        return unit

    def blocks(self, unit: str) -> Collection[Span]:
        """(first, last) of single stages, the only ones that such tables have."""
        return {(stage, stage) for processor, stage, *_ in self.lookup if processor == unit}

    def predict(self, unit: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        """The time of a stage (first == last), its interval, by the standard deviation where it was read, and origin.

        Raises:
            GnnlabError: a size that the table lacks, where nothing was fitted.
        """
        if entry := self.lookup.get((unit, first, nodes, edges)):
            return Prediction(entry.total_time_ms, *_interval(entry, _NORMAL_90), READ)
        found = self._fit(nodes, edges).predict(unit, first, last, nodes, edges)
        return found if found.origin == EXTRAPOLATED else replace(found, origin=FITTED)

    def transfer_ms(self, source: str, target: str, size_bytes: float) -> float:
        """ms to hand bytes on; 0 within a processor. The host's memory is the CPU's."""
        ends = ["CPU" if unit == HOST else unit for unit in (source, target)]
        if ends[0] == ends[1] or size_bytes <= 0:
            return 0.0
        rates = [[mb_s for key, mb_s in self.bandwidth.items() if key.startswith(f"{end}_")] for end in ends]
        if not all(rates):
            lacking = next(end for end, known in zip(ends, rates, strict=True) if not known)
            raise GnnlabError(f"the bandwidth table says nothing of the {lacking}; add {lacking}_stageN, in MB/s")
        return size_bytes / min(float(np.median(known)) for known in rates) / 1e3

    def _fit(self, nodes: int, edges: int) -> TimePredictor:
        if self.predictor is None:
            known = ", ".join(f"{n}/{e}" for n, e in self.sizes)
            raise GnnlabError(
                f"the lookup table has no times at {nodes}/{edges} and too few sizes to fit between them; it has "
                f"{known}"
            )
        return self.predictor


def read_costs(lookup: Path, bandwidth: Path) -> ReadCosts:
    """The costs that two files in S4's format give, of its GraphSAGE with 500 features.

    Raises:
        GnnlabError: a file is missing, in another format, or holds an invalid time or bandwidth; one line.
    """
    layer, found = layer_of("sage", _FEATURES), read_lookup(lookup)
    times = {(processor, stage, nodes, edges): entry for (nodes, edges, processor, stage), entry in found.items()}
    if strange := [stage for _, stage, *_ in times if not 1 <= stage <= len(layer.stages)]:
        raise GnnlabError(f"{lookup}: stage {strange[0]}; S4's layer has stages 1 to {len(layer.stages)}")
    rows = []
    for (processor, stage, nodes, edges), entry in times.items():
        low, high = _interval(entry, _NORMAL_95)
        at = {"unit": processor, "first": stage, "last": stage, "nodes": nodes, "edges": edges}
        rows.append({**at, "ms": entry.total_time_ms, "ms_low": low, "ms_high": high})
    try:
        predictor = TimePredictor.fit(layer, pd.DataFrame(rows))
    except GnnlabError:  # too few sizes: those that are there can still be planned
        predictor = None
    return ReadCosts(layer, times, read_bandwidth(bandwidth), predictor)


def _interval(entry: LookupEntry, deviations: float) -> tuple[float, float]:
    """So many standard deviations around the time of an entry; the time alone where it has none."""
    ms, half = entry.total_time_ms, deviations * (entry.std_ms or 0.0)
    return max(ms - half, ms / 2), ms + half
