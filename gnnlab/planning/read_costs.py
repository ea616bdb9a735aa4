"""Costs from a lookup and a bandwidth table in S4's format, whoever made them, on whatever machine.

    costs = read_costs(Path("lookup_table.json"), Path("bandwidth_table.json"))
    planner_of(costs).rank(nodes=1000, edges=5000)

Units are the processors of the tables. Nothing of it was measured here, so every origin says "read", or that a time was
fitted between the read ones. A stage takes its `total_time_ms`; stages one after the other take the sum, since such
tables know no fused blocks. A hand-over between two processors takes its bytes over the bandwidth between them (where
the table gives only those of stages: over the lesser of the two), and the switch overhead where there is one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import HOST, Span
from gnnlab.prediction.predictor import EXTRAPOLATED, TimePredictor
from gnnlab.prediction.tables import BandwidthFile, LookupEntry, read_bandwidth, read_lookup
from gnnlab.workloads.staged import StagedLayer

READ, FITTED = "read", "read, fitted between"
_NORMAL_95 = 1.96
_FEATURES = 500  # of S4's GraphSAGE, which its tables are of


@dataclass(frozen=True, eq=False)
class ReadCosts:
    """Times by processor, stage and size, and what a hand-over takes.

    `lookup`: entries by (processor, stage, nodes, edges); `predictor`: fitted to them, None where no stage has enough
    sizes; `origins`: words for where they come from.
    """

    layer: StagedLayer
    lookup: dict[tuple[str, int, int, int], LookupEntry]
    bandwidth: BandwidthFile
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

    def time_ms(self, unit: str, first: int, last: int, nodes: int, edges: int) -> float:
        """ms of a stage (first == last). `GnnlabError` at a size that the table lacks, where nothing was fitted."""
        entry = self.lookup.get((unit, first, nodes, edges))
        return (
            entry.total_time_ms if entry else self._fit(nodes, edges).predict(unit, first, last, nodes, edges).time_ms
        )

    def origin(self, unit: str, first: int, last: int, nodes: int, edges: int) -> str:
        if (unit, first, nodes, edges) in self.lookup:
            return READ
        found = self._fit(nodes, edges).predict(unit, first, last, nodes, edges).origin
        return EXTRAPOLATED if found == EXTRAPOLATED else FITTED

    def samples(self, unit: str, first: int, last: int, nodes: int, edges: int, count: int, seed: int) -> np.ndarray:
        """Draws of that time (count): by its own standard deviation where it was read, none where none is given."""
        entry = self.lookup.get((unit, first, nodes, edges))
        if entry is None:
            return self._fit(nodes, edges).samples(unit, first, last, nodes, edges, count, seed)
        spread = (entry.std_ms or 0.0) / entry.total_time_ms
        return entry.total_time_ms * np.exp(np.random.default_rng(seed).normal(0, spread, count))

    def transfer_ms(self, source: str, target: str, size_bytes: float) -> float:
        """ms to hand bytes on; 0 within a processor. The host's memory is the CPU's."""
        ends = ["CPU" if unit == HOST else unit for unit in (source, target)]
        if ends[0] == ends[1] or size_bytes <= 0:
            return 0.0
        mb_s = self.bandwidth.between_mb_s(*ends)
        if mb_s is None:
            raise GnnlabError(
                f"the bandwidth table says nothing of {ends[0]} to {ends[1]}; add inter_device, or {ends[1]}_stageN, "
                "in MB/s"
            )
        return self.bandwidth.device_switch_overhead_ms + size_bytes / mb_s / 1e3

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
    rows = [
        {"unit": processor, "first": stage, "last": stage, "nodes": nodes, "edges": edges, **_interval(entry)}
        for (processor, stage, nodes, edges), entry in times.items()
    ]
    try:
        predictor = TimePredictor.fit(layer, pd.DataFrame(rows))
    except GnnlabError:  # too few sizes: those that are there can still be planned
        predictor = None
    return ReadCosts(layer, times, read_bandwidth(bandwidth), predictor)


def _interval(entry: LookupEntry) -> dict[str, float]:
    half = _NORMAL_95 * (entry.std_ms or 0.0)
    ms = entry.total_time_ms
    return {"ms": ms, "ms_low": max(ms - half, ms / 2), "ms_high": ms + half}
