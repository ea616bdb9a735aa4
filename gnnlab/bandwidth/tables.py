"""S4's two tables in its own format: made of measured stages and copies, and read, whoever wrote them.

    lookup_table.json       {"1000,1000,CPU,1": {"compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"}}
    bandwidth_table.json    {"CPU_stage1": MB/s}
    *.about.json            devices, chips, versions; of each entry device, origin, interval, diagnosis

    tables = S4Tables(measured.fit, measured.copies)        # as `bandwidth.measure` gives them
    tables.entries, tables.rates; tables.write(folder)

S4 names processors, and the lab has several devices on one: an entry is of that which has times of most stages and
sizes, and of these of the fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.bandwidth.copies import CopyCurve, Transfers
from gnnlab.bandwidth.predict import MEASURED
from gnnlab.errors import GnnlabError
from gnnlab.files import read_json, write_json
from gnnlab.stages.sizes import RANDOM, layer_of
from gnnswap.errors import quoted

LOOKUP, BANDWIDTH = "lookup_table.json", "bandwidth_table.json"
FIELDS = ["compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"]
HIDDEN = "hidden by launch time or noise at this size"
NO_COPIES = "no copies through this device were measured, so all of its time counts as compute"
NO_REST = "takes no longer than a copy of its bytes, so no compute time can be separated from it"
TAKEN_OFF = "measured copy taken off"
TOLD = ["device", "origin", "ms_low", "ms_high", "gb_s_low", "gb_s_high", "diagnosis"]  # of each entry
_DEVICE = ["device", "processor", "chip", "runtime_version", "precision", "threads"]
_MOST = 1e12  # ms, or MB/s
_LOOKUP_KEY = r"([1-9]\d{0,7}),([1-9]\d{0,7}),(CPU|GPU|NPU),([1-7])"
_RATE_KEY = r"(CPU|GPU|NPU)_stage[1-7]"
_S4 = "give a table in S4's format"


class S4Tables:
    """Both tables, of measurements (`fit`) and copies.

    entries: the lookup table as rows: measurements with key, `FIELDS`, moved_bytes, flops, origin, diagnosis. transfer:
        a copy through the device of the bytes that the stage moves, without its launch, and no more than the whole;
        compute: what remains of the measured time.
    rates: the bandwidth table as rows, with gb_s, gb_s_low, gb_s_high (NaN where launch or noise hide it), n (samples).
        Of a copy of as many bytes as the stage moves in the geometric mean over its sizes.

    Raises `GnnlabError`: no stage has a time by itself, or there are no plain copies.
    """

    def __init__(self, fit: pd.DataFrame, copies: pd.DataFrame) -> None:
        alone = fit[~fit["fused"] & fit["ms"].notna()]
        if alone.empty:
            raise GnnlabError("no stage was timed by itself, so there are no tables; --blocks stages measures them")
        self.transfers = Transfers.fit(copies)
        self.layer = layer_of(fit["layer"].iloc[0], int(fit["features"].iloc[0]))
        self.entries = self._entries(_best(alone))
        stages = self.entries.groupby(["device", "first"], sort=False)
        self.rates = pd.DataFrame([self._rate(part) for _, part in stages])

    def _curve(self, row: Any) -> CopyCurve | None:
        """Copies through the device of a row; plain ones where one on the CPU has none, as it shares its memory."""
        return self.transfers.of(row.device) if row.processor == "CPU" else self.transfers.through.get(row.device)

    def _entries(self, rows: pd.DataFrame) -> pd.DataFrame:
        stages = list(rows.itertuples())
        moved = [self.layer.bytes_moved(row.first, row.nodes, row.edges) for row in stages]
        curves = zip(map(self._curve, stages), moved, strict=True)
        copy_ms = np.array([curve.moving_ms(size) if curve else np.nan for curve, size in curves])
        transfer_ms = np.minimum(np.nan_to_num(copy_ms), rows["ms"])
        return rows.assign(
            key=[f"{row.nodes},{row.edges},{row.processor},{row.first}" for row in stages],
            compute_time_ms=rows["ms"] - transfer_ms,
            transfer_time_ms=transfer_ms,
            total_time_ms=rows["ms"],
            moved_bytes=moved,
            flops=[self.layer.flops(row.first, row.last, row.nodes, row.edges) for row in stages],
            origin=MEASURED,
            diagnosis=np.select([np.isnan(copy_ms), copy_ms >= rows["ms"]], [NO_COPIES, NO_REST], TAKEN_OFF),
        )

    def _rate(self, part: pd.DataFrame) -> dict[str, Any]:
        """The bandwidth of a stage, from its entries."""
        row, curve = part.iloc[0], self._curve(part.iloc[0])
        value, low, high = curve.gb_s(np.exp(np.log(part["moved_bytes"]).mean()) / 2) if curve else (np.nan,) * 3
        diagnosis = NO_COPIES if not curve else HIDDEN if np.isnan(value) else ""
        rate = {"gb_s": value, "gb_s_low": low, "gb_s_high": high, "n": curve.n if curve else 0, "diagnosis": diagnosis}
        about = {"key": f"{row['processor']}_stage{row['first']}", "origin": "measured copy"}
        return row[[*_DEVICE, "stage", "first"]].to_dict() | about | rate

    def write(self, folder: Path) -> dict[str, int]:
        """Write both tables and what is to know about them, each file whole or not at all.

        Returns how many times, bandwidths and stages without one there are. Raises `GnnlabError`: the disk refuses.
        """
        entries, rates = self.entries.set_index("key"), self.rates.set_index("key")
        known = rates["gb_s"].dropna()
        head = {"written": datetime.now(UTC).isoformat(timespec="seconds"), "layer": self.layer.name}
        head |= {"features": self.layer.features, "devices": entries[_DEVICE].drop_duplicates().to_dict("records")}
        write_json(folder / LOOKUP, entries[FIELDS].to_dict("index"))
        write_json(folder / BANDWIDTH, (1e3 * known).to_dict())  # MB/s
        for name, table in ((LOOKUP, entries), (BANDWIDTH, rates)):
            told = table[[column for column in TOLD if column in table]].astype(object).replace(np.nan, None)
            write_json(folder / name.replace(".json", ".about.json"), {**head, "entries": told.to_dict("index")})
        return {"times": len(entries), "bandwidths": len(known), "stages without bandwidth": len(rates) - len(known)}


def _best(alone: pd.DataFrame) -> pd.DataFrame:
    """Measurements of each processor's best device; where several graphs are of one size, of the random one."""
    alone = alone.sort_values("graph", key=lambda graph: graph != RANDOM, kind="stable")
    alone = alone.drop_duplicates(["device", "first", "nodes", "edges"]).sort_index()
    totals = alone.groupby(["processor", "device"], sort=False)["ms"].agg(["size", "sum"]).reset_index()
    best = totals.sort_values(["size", "sum"], ascending=[False, True]).drop_duplicates("processor")["device"]
    return alone[alone["device"].isin(best)]


# ---- read -----------------------------------------------------------------------------------------------------------


def read_lookup(path: Path) -> pd.DataFrame:
    """A lookup table in S4's format: nodes, edges, processor, stage and `FIELDS`, ms; NaN where one is missing.

    Raises `GnnlabError`: the file is missing, in another format or empty; an entry has no time, or contradicts itself.
    """
    rows = []
    for key, entry in _items(path, _LOOKUP_KEY, '"nodes,edges,PU,stage"; PU: CPU, GPU, NPU; stage: 1 to 7'):
        where, fields = f"{path}, {key}", entry if isinstance(entry, dict) else {}
        given = {name: value for name in FIELDS if (value := fields.get(name)) is not None}
        times = {n: _number(f"{where}, {n}", value, may_be_0=n != "total_time_ms") for n, value in given.items()}
        compute, transfer, total, std = (times.get(name, np.nan) for name in FIELDS)
        if np.isnan(compute) and np.isnan(total):
            raise GnnlabError(f"{where}: {quoted(entry)} has no time; give total_time_ms, compute_time_ms, or both")
        if abs(compute + transfer - total) > max(0.01 * total, 1e-6):  # False where one of them is missing
            parts = f"compute {compute:g} + transfer {transfer:g} ms"
            raise GnnlabError(f"{where} contradicts itself: {parts}, total {total:g} ms")
        nodes, edges, processor, stage = key.split(",")
        rows.append((int(nodes), int(edges), processor, int(stage), compute, transfer, total, std))
    if not rows:
        raise GnnlabError(f"{path} is empty; measure first (notebook 05)")
    return pd.DataFrame(rows, columns=["nodes", "edges", "processor", "stage", *FIELDS])


def read_bandwidth(path: Path) -> dict[str, float]:
    """A bandwidth table in S4's format: MB/s by processor and stage ("CPU_stage1"). Raises as `read_lookup`."""
    items = _items(path, _RATE_KEY, '"PU_stageN"; PU: CPU, GPU, NPU; N: 1 to 7')
    return {key: _number(f"{path}, {key}", value) for key, value in items}


def _items(path: Path, pattern: str, known: str) -> Iterator[tuple[str, Any]]:
    """The keys and values of a JSON object whose keys are written as `pattern`."""
    data = read_json(path, _S4)
    if not isinstance(data, dict):
        raise GnnlabError(f"{path} holds no object of keys and values; {_S4}")
    for key, value in data.items():
        if not re.fullmatch(pattern, key, re.ASCII):
            raise GnnlabError(f"{path}: key {quoted(key)} is not understood; write {known}")
        yield key, value


def _number(where: str, value: Any, *, may_be_0: bool = False) -> float:
    """A time (ms) or a bandwidth (MB/s)."""
    if type(value) not in (int, float) or not 0 <= value <= _MOST or not (value or may_be_0):
        raise GnnlabError(f"{where}: {quoted(value)}; a number {'of 0 or more' if may_be_0 else 'above 0'} is needed")
    return float(value)
