"""What a block takes on a device, and what it takes to hand bytes on.

    costs = Costs.measured(folder / "tables", folder / "stages")          # this machine, by the journals of 05 and 06
    costs = Costs.from_tables(Path("lookup_table.json"), Path("bandwidth_table.json"))    # S4's tables of any machine
    costs.predict("openvino:CPU", 1, 5, nodes=4000, edges=9000)           # time_ms, low_ms, high_ms, origin
    costs.lacking(4000, 9000)                                             # {"NPU": "no times of stages 3, 4"}

A time is looked up where it is known at that size, else predicted from those that are. Times that were measured here
hold the copies into a device and out of it, so a hand-over costs one plain copy and no more. Tables in S4's format are
used by S4's rule: compute times are looked up, and what is handed on takes its bytes over the bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab.bandwidth.copies import Transfers
from gnnlab.bandwidth.predict import EXTRAPOLATED, INTERPOLATED, MEASURED, Prediction, TimePredictor
from gnnlab.bandwidth.sweep import read
from gnnlab.bandwidth.tables import read_bandwidth, read_lookup
from gnnlab.errors import GnnlabError
from gnnlab.stages import devices as registry
from gnnlab.stages.sizes import layer_of
from gnnlab.workloads.staged import StagedLayer

Span = tuple[int, int]  # first and last stage
Call = tuple[str, int, int, int, int]  # `CALL`
CALL = ["device", "first", "last", "nodes", "edges"]
HOST = "CPU"  # in whose memory graphs come and results are left
READ = "read"  # origin of what stands in a table of another machine
ELSEWHERE = "They are of the machine that the tables were made on: none was measured here. Stages run one by one."
LEAST_FIRST = (EXTRAPOLATED, INTERPOLATED, READ, MEASURED)  # origins, by what they say of a time
S4_FEATURES = 500
NORMAL_95 = 1.96  # standard deviations


@dataclass(frozen=True, eq=False)
class Costs:
    """Times of blocks on `devices`.

    `predictor`: of sizes that are not `known`, None where there are too few. `copy_ms`: of a source, a target and bytes
    that go from one to the other. `processors`: CPU|GPU|NPU of each device; `separate`: devices that are sent their
    inputs and send their results back by `copy_ms`. `notes`: what a reader should know of the times.
    """

    layer: StagedLayer
    devices: tuple[str, ...]
    predictor: TimePredictor | None
    copy_ms: Callable[[str, str, float], float]
    processors: Mapping[str, str]
    separate: frozenset[str] = frozenset()
    known: Mapping[Call, Prediction] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def measured(cls, tables: Path, stages: Path, devices: Sequence[str] = ()) -> Costs:
        """The times and copies measured here, of the `devices` named; of none: this CPU's. Raises
        `GnnlabError`: the journals are missing, a device is not known, or none has times.
        """
        fit, _, copies, _ = read(tables, stages)
        layer, features, precision, threads = fit[["layer", "features", "precision", "threads"]].iloc[0]
        if (precision, threads) != ("float32", 1):
            given = f"{precision}, {threads} threads"
            raise GnnlabError(f"{stages} has times of {given}; plans need float32 and one thread")
        transfers = Transfers.fit(copies)
        predictor = TimePredictor.fit(layer_of(layer, int(features)), fit, transfers)
        timed = predictor.devices
        processors = {name: registry.find(name).processor for name in (*timed, *devices)}  # in one order
        usual = [name for name in timed if processors[name] == "CPU"]
        chosen = tuple(name for name in processors if name in (devices or usual))
        if not set(chosen) & set(timed):
            named, have = ", ".join(chosen) or "a device of this CPU", ", ".join(timed)
            raise GnnlabError(f"no times of {named} in {stages}; it has those of {have} (notebook 05 measures others)")
        plain = transfers.plain  # devices hand on by a plain copy, into memory that all of them read
        return cls(predictor.layer, chosen, predictor, lambda source, target, size: plain.ms(size), processors)

    @classmethod
    def from_tables(cls, lookup: Path, bandwidth: Path) -> Costs:
        """The costs that two files in S4's format give, of its GraphSAGE with 500 features.

        Stages take their `compute_time_ms`, one after the other. A hand-over takes its bytes over the lesser bandwidth
        of both ends, each the median over stages.

        Raises:
            GnnlabError: a file is missing, in another format, or holds an invalid number; one line.
        """
        layer, table, rates = layer_of("sage", S4_FEATURES), read_lookup(lookup), read_bandwidth(bandwidth)
        times, notes = _compute_times(layer, table, rates)
        known = {tuple(row[:5]): Prediction(*row[5:], READ) for row in times.itertuples(index=False, name=None)}
        try:
            predictor = TimePredictor.fit(layer, times[times["ms"] > 0])
        except GnnlabError:  # too few sizes: those that are there can still be planned
            predictor = None
        mb_s = pd.Series(rates, dtype=float).groupby(lambda key: key.partition("_")[0]).median()
        names = tuple(dict.fromkeys([*table["processor"], *mb_s.index]))

        def copy_ms(source: str, target: str, size_bytes: float) -> float:
            if lost := [end for end in (source, target) if end not in mb_s]:
                raise GnnlabError(f"no bandwidth of the {lost[0]} ({lost[0]}_stageN, MB/s)")
            return float(size_bytes / mb_s[[source, target]].min() / 1e3)

        separate = frozenset(names) - {"CPU"}
        return cls(layer, names, predictor, copy_ms, dict(zip(names, names, strict=True)), separate, known, notes)

    @property
    def accelerators(self) -> set[str]:
        """The devices that need no core of the CPU."""
        return {device for device in self.devices if self.processors[device] != "CPU"}

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The (nodes, edges) at which there are times of these devices."""
        fitted = self.predictor.measured if self.predictor else {}
        sizes = {size for key, at in fitted.items() if key[0] in self.devices for size in at}
        return sorted(sizes | {call[3:] for call in self.known})

    def blocks(self, device: str, size: tuple[int, int] | None = None) -> set[Span]:
        """The blocks (first, last) of which a device's time is known: at a size (nodes, edges), or at any."""
        fitted = self.predictor.blocks(device) if self.predictor else set()
        return fitted | {call[1:3] for call in self.known if call[0] == device and size in (None, call[3:])}

    @lru_cache(maxsize=100_000)  # noqa: B019 - a ranking asks for the same call in many plans
    def predict(self, device: str, first: int, last: int, nodes: int, edges: int) -> Prediction:
        """The time of a block in one call, its interval (95 % where it was measured, else 90 %), and its origin:
        measured, interpolated, extrapolated or read. Raises `GnnlabError`: there is no time.
        """
        call = (device, first, last, nodes, edges)
        if call in self.known:
            return self.known[call]
        if self.predictor is None:
            sizes = ", ".join(f"{n}x{e}" for n, e in self.sizes)
            raise GnnlabError(f"no times at {nodes}x{edges} and too few sizes to fit between them; there are {sizes}")
        return self.predictor.predict(*call)

    def transfer_ms(self, source: str, target: str, size_bytes: float) -> float:
        """Handing bytes on; 0 within a device. `GnnlabError`: no bandwidth is known."""
        return 0.0 if source == target or size_bytes <= 0 else self.copy_ms(source, target, size_bytes)

    def lacking(self, nodes: int, edges: int) -> dict[str, str]:
        """What there is no number of at a size, in words, by device."""
        said = {}
        for device in self.devices:
            there, words = sorted(self.blocks(device, (nodes, edges))), []
            missing = [n for n in self.layer.numbers if not any(first <= n <= last for first, last in there)]
            if missing:
                stages = f" of stages {', '.join(map(str, missing))}" if there else ""
                words.append(f"no times{stages} at {nodes}x{edges}")
            elif any((n, n) not in there for n in self.layer.numbers):
                words.append(f"times of {', '.join(self.layer.label(*block) for block in there)} alone")
            try:
                self.transfer_ms(HOST, device, 1)
            except GnnlabError as error:
                words.append(f"{error}: plans that hand over to it are not costed")
            if words:
                said[device] = "; ".join(words)
        return said


def _compute_times(layer: StagedLayer, table: pd.DataFrame, rates: Mapping[str, float]) -> tuple[pd.DataFrame, tuple]:
    """The compute time of each entry (`CALL`, ms, ms_low, ms_high), and what is to be said of it.

    An entry with a total alone computes for what remains of it after its bytes over the stage's bandwidth, and for all
    of it where that is not known or nothing remains.
    """
    rate = (table["processor"] + "_stage" + table["stage"].astype(str)).map(rates)  # MB/s, NaN where there is none
    moved = [layer.bytes_moved(*row) for row in table[["stage", "nodes", "edges"]].itertuples(index=False)]
    remains = table["total_time_ms"] - moved / rate / 1e3
    ms = table["compute_time_ms"].fillna(remains.where(remains >= 0, table["total_time_ms"]))
    half = NORMAL_95 * table["std_ms"].fillna(0.0)  # the time alone where it has none
    times = table[["processor", "stage", "stage", "nodes", "edges"]].set_axis(CALL, axis=1)
    notes, whole = [ELSEWHERE], table[table["compute_time_ms"].isna() & ~(remains >= 0)]
    if not whole.empty:
        parts = whole.groupby("processor", sort=False)["stage"]
        stages = "; ".join(f"{name} {', '.join(map(str, sorted(part.unique())))}" for name, part in parts)
        notes.append(f"All of total_time_ms counts as compute time for stages of {stages}.")
    if table["std_ms"].isna().any():
        notes.append("Some entries have no std_ms: their noise is in no interval.")
    return times.assign(ms=ms, ms_low=np.maximum(ms - half, ms / 2), ms_high=ms + half), tuple(notes)
