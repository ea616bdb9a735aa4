"""S4's two tables in its own format, what they lack, and the times and transfers that plans are made of.

    lookup_table.json       {"1000,1000,CPU,1": {"compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"}}
    bandwidth_table.json    {"CPU_stage1": MB/s}
    *.about.json            of each entry: the unit that it is of, origin, interval, diagnosis; and what is left out
    times.json              every time that predictions are fitted to, and every copy

    tables = S4Tables(measured.grid, measured.copies)        # as `bandwidth.measure` gives them
    tables.entries, tables.rates; tables.write(folder)

A processing unit of S4 is a processor; the lab has several units on one. An entry is of the best unit of its processor;
nothing simulated is among them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gnnlab.campaign import table as campaign_table
from gnnlab.campaign.cells import layer_of
from gnnlab.errors import GnnlabError, first_wrong
from gnnlab.files import read_json, write_json
from gnnlab.prediction.copies import CONDITIONS, HIDDEN, MeasuredTransfers
from gnnlab.prediction.predictor import TimePredictor
from gnnswap.errors import quoted

if TYPE_CHECKING:
    from gnnlab.workloads.staged import StagedLayer

REMEDY = "run notebooks 04, 05 and 06 first: gnnlab run 04 05 06"
LOOKUP, BANDWIDTH, TIMES = "lookup_table.json", "bandwidth_table.json", "times.json"
NO_COPIES = "no copies through this unit were measured, so all of its time counts as compute"
SCHEMA_VERSION = 4  # of times.json
_TIME = ["unit", "ms", "ms_low", "ms_high", "n"]
_ABOUT = ["processor", "unit", "stage", "nodes", "edges", "std_ms", "origin", *CONDITIONS]
_S4 = "give a table in S4's format"


# ---- what the files hold --------------------------------------------------------------------------------------------

_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive, NotNegative = Annotated[_Number, Field(gt=0)], Annotated[_Number, Field(ge=0)]
_KEYS = {"nodes,edges,PU,stage": r"\d+,\d+,(CPU|GPU|NPU),\d+", "PU_stageN": r"(CPU|GPU|NPU)_stage\d+"}


class LookupEntry(BaseModel):
    """An entry of S4's lookup table, ms. Published tables give the total alone; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    compute_time_ms: NotNegative | None = None
    transfer_time_ms: NotNegative | None = None
    total_time_ms: Positive
    std_ms: NotNegative | None = None


# ---- made of measured cells and copies ------------------------------------------------------------------------------


class S4Tables:
    """Both tables, of measured cells (`grid`) and copies. `layer`: of these cells; `transfers`: by these copies.

    `entries`, the lookup table as rows: key, processor, unit, stage, number, nodes, edges, the four fields, low_ms,
    high_ms, moved_bytes, flops, origin, diagnosis, conditions. Of each processor the unit that has times of most single
    stages and sizes, and of these the one that takes least. transfer: a copy, through that unit, of the bytes that the
    stage reads and writes, without its launch, and no more than the whole; compute: what remains of the measured time.

    `rates`, the bandwidth table as rows: key, processor, unit, stage, number, gb_s, gb_s_low, gb_s_high (NaN where
    launch or noise hide it), size_bytes, n (samples), why, origin, conditions. Of a copy, through that unit, of as many
    bytes as the stage moves, in the geometric mean over its sizes.

    Raises:
        GnnlabError: no stage has a time by itself.
    """

    def __init__(self, grid: pd.DataFrame, copies: pd.DataFrame) -> None:
        self.grid, self.copies, self.transfers = grid, copies, MeasuredTransfers.fit(copies)
        self.layer = layer_of(grid["layer"].iloc[0], int(grid["features"].iloc[0]))
        self.entries = _entries(self.layer, grid, self.transfers)
        self.rates = _rates(self.entries, self.transfers)

    def write(self, folder: Path) -> dict[str, int]:
        """Write all files, each whole or not at all; returns how many times, bandwidths and gaps the tables have.

        Raises `GnnlabError`: the disk refuses.
        """
        grid, rates, fields = self.grid, self.rates, list(LookupEntry.model_fields)
        timed = grid.groupby(["unit", "stage"])["ms"].transform("count") > 0  # else the unit does not run the stage
        lacking, known = campaign_table.gaps(grid[timed]).to_dict("records"), rates[rates["gb_s"].notna()]
        head = {"written": datetime.now(UTC).isoformat(timespec="seconds")}
        head |= {"layer": self.layer.name, "features": self.layer.features}
        units = dict(zip(self.entries["processor"], self.entries["unit"], strict=True))
        write_json(folder / LOOKUP, self.entries.set_index("key")[fields].to_dict("index"))
        write_json(folder / BANDWIDTH, dict(zip(known["key"], 1e3 * known["gb_s"], strict=True)))  # MB/s
        for name, table in ((LOOKUP, self.entries.drop(columns=fields)), (BANDWIDTH, rates)):
            plain = table.set_index("key").astype(object)
            about = {
                **head,
                "units": units,
                "lacking": lacking,
                "entries": plain.where(plain.notna(), None).T.to_dict(),
            }
            write_json(folder / name.replace(".json", ".about.json"), about)
        times = grid.loc[grid["ms"].notna(), [*_TIME, "first", "last", "nodes", "edges", "origin"]]
        copies = self.copies[[*_TIME, "size_bytes"]]
        both = {"times": times.to_dict("records"), "copies": copies.to_dict("records")}
        write_json(folder / TIMES, {"schema_version": SCHEMA_VERSION, **head, **both})
        gaps = {"stages without bandwidth": len(rates) - len(known), "gaps": len(lacking)}
        return {"times": len(self.entries), "bandwidths": len(known), **gaps}


def _entries(layer: StagedLayer, cells: pd.DataFrame, transfers: MeasuredTransfers) -> pd.DataFrame:
    rows = cells[~cells["fused"] & cells["ms"].notna()]
    if rows.empty:
        raise GnnlabError("no stage was timed by itself, so there are no tables; --blocks stages measures them")
    totals = rows.groupby(["processor", "unit"], sort=False)["ms"].agg(["size", "sum"]).reset_index()
    best = totals.sort_values(["size", "sum"], ascending=[False, True]).drop_duplicates("processor")["unit"]
    rows = rows[rows["unit"].isin(best)]
    names = {"first": "number", "ms": "total_time_ms", "ms_low": "low_ms", "ms_high": "high_ms"}
    rows = rows.rename(columns=names)[[*names.values(), *_ABOUT]]
    moved = [layer.bytes_moved(row.number, row.nodes, row.edges) for row in rows.itertuples()]
    curves = [transfers.through.get(unit) for unit in rows["unit"]]
    copy_ms = np.array([c.moving_ms(m) if c else np.nan for c, m in zip(curves, moved, strict=True)], dtype=float)
    transfer_ms = np.minimum(np.nan_to_num(copy_ms), rows["total_time_ms"])
    why = [NO_COPIES, "takes no longer than a copy of its bytes, so no compute time can be separated from it"]
    diagnosis = np.select([np.isnan(copy_ms), copy_ms >= rows["total_time_ms"]], why, "measured copy taken off")
    return rows.assign(
        key=[f"{row.nodes},{row.edges},{row.processor},{row.number}" for row in rows.itertuples()],
        compute_time_ms=rows["total_time_ms"] - transfer_ms,
        transfer_time_ms=transfer_ms,
        moved_bytes=moved,
        flops=[layer.flops(row.number, row.number, row.nodes, row.edges) for row in rows.itertuples()],
        diagnosis=diagnosis,
    )


def _rates(entries: pd.DataFrame, transfers: MeasuredTransfers) -> pd.DataFrame:
    rows = []
    for _, part in entries.groupby(["unit", "number"], sort=False):
        row = part.iloc[0][["processor", "unit", "stage", "number", "origin", *CONDITIONS]].to_dict()
        size, curve = float(np.exp(np.log(part["moved_bytes"]).mean())) / 2, transfers.through.get(row["unit"])
        value, low, high = curve.gb_s(size) if curve else (np.nan,) * 3
        why = "" if np.isfinite(value) else HIDDEN if curve else NO_COPIES
        row |= {"key": f"{row['processor']}_stage{row['number']}", "gb_s": value, "gb_s_low": low, "gb_s_high": high}
        rows.append({**row, "size_bytes": size, "n": curve.n if curve else 0, "why": why})
    return pd.DataFrame(rows)


# ---- read -----------------------------------------------------------------------------------------------------------


def load_tables(folder: Path) -> tuple[TimePredictor, MeasuredTransfers]:
    """What plans are made of: predicted times of blocks and measured transfers, as `S4Tables` wrote them.

    Raises:
        GnnlabError: the file is missing, damaged, or of another version.
    """
    stored = read_json(folder / TIMES, REMEDY)
    if not isinstance(stored, dict) or stored.get("schema_version") != SCHEMA_VERSION:
        raise GnnlabError(f"{folder / TIMES} is of another version of gnnlab; {REMEDY}")
    transfers = MeasuredTransfers.fit(pd.DataFrame(stored["copies"]))
    layer = layer_of(stored["layer"], stored["features"])
    return TimePredictor.fit(layer, pd.DataFrame(stored["times"]), transfers), transfers


def read_lookup(path: Path) -> pd.DataFrame:
    """A lookup table in S4's format, whoever wrote it: nodes, edges, processor, stage, and the four fields (NaN where
    there is none).

    Raises:
        GnnlabError: the file is missing, in another format, empty, or holds an invalid time; one line.
    """
    entries = _validated(dict[str, LookupEntry], path, "nodes,edges,PU,stage")
    if not entries:
        raise GnnlabError(f"{path} is empty; measure first (notebook 05)")
    keys = pd.DataFrame([key.split(",") for key in entries], columns=["nodes", "edges", "processor", "stage"])
    fields = pd.DataFrame([entry.model_dump() for entry in entries.values()], dtype=float)
    return pd.concat([keys.astype({"nodes": int, "edges": int, "stage": int}), fields], axis=1)


def read_bandwidth(path: Path) -> dict[str, float]:
    """A bandwidth table in S4's format, whoever wrote it: MB/s by processor and stage ("CPU_stage1").

    Raises:
        GnnlabError: the file is missing, in another format, or holds an invalid bandwidth; one line.
    """
    return _validated(dict[str, Positive], path, "PU_stageN")


def _validated(kind: Any, path: Path, keys: str) -> Any:
    """The content of a JSON file as `kind`, its keys written as `keys`, one of `_KEYS`."""
    data = read_json(path, _S4)
    for key in data if isinstance(data, dict) else ():
        if not re.fullmatch(_KEYS[keys], key, re.ASCII):
            raise GnnlabError(f'{path}: key {quoted(key)} is not understood; write "{keys}"')
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        where, what = first_wrong(error)
        got = quoted(error.errors()[0]["input"])
        raise GnnlabError(f"{path}, {where or 'all of it'}: {what}, got {got}; {_S4}") from None
