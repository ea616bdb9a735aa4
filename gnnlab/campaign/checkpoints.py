"""The files of a campaign.

    journal.jsonl                                  a JSON line for each cell, flushed before the next is measured
    checkpoint_cpugpu.json, checkpoint_npu.json    {"campaign": ..., "measurements": {key: {"cell", "outcome", ...}}}
    raw_measurements.json                          the same for all of them: every sample of every cell
    profiling_report.txt                           for reading: what was measured, what could not be and why

A key, as "1000,1000,openvino:CPU,1", is nodes, edges, processing unit, stage; fused stages are named by the first and
the last, as in "1-5". The names of the files but for the journal are S4's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from gnnlab.campaign import table as tables
from gnnlab.campaign.cells import Cell, CellResult
from gnnlab.errors import GnnlabError
from gnnlab.files import read_json, write_json

NAMES = {"cpugpu": "checkpoint_cpugpu.json", "npu": "checkpoint_npu.json"}
JOURNAL, RAW, REPORT = "journal.jsonl", "raw_measurements.json", "profiling_report.txt"
SCHEMA_VERSION = 1
HERE = "here"  # the name of this machine
REMEDY = "measure first: gnnlab stages --measure, which goes on from the journal"
STAR = "*"
DEVICES = ["unit", "device", "runtime_version", "precision", "threads"]
CELLS = ["stage", "size", "unit", "status", "ms", "ms_low", "ms_high", "n", "within"]
GAINS = ["stage", "form", "baseline", "value", "low", "high"]
SUMS = ["size", "block", "form", "origin", "value", "low", "high"]
Record = dict[str, Any]  # key, cell, host, took_s, outcome, as `record` makes it


def record(cell: Cell, outcome: CellResult, *, host: str = HERE, took_s: float = 0.0) -> Record:
    """What became of a cell, on what host, and the seconds that it took, loading included; of JSON's types."""
    about = {"key": cell.key, "cell": asdict(cell), "host": host, "took_s": round(took_s, 4)}
    return {**about, "outcome": outcome.to_json()}


def read_journal(path: Path) -> dict[str, Record]:
    """The records with a time of a journal by what their cells are known by (`known_by`), the latest of each.

    A line that a kill cut off does not parse, and is left out.
    """
    records = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            each = json.loads(line)
            records[each["known_by"]] = each
        except (ValueError, KeyError, TypeError):
            continue
    return {known_by: each for known_by, each in records.items() if each["outcome"]["samples_ms"]}


def open_journal(folder: Path) -> TextIO:
    """The journal, for `append`."""
    return (folder / JOURNAL).open("a", encoding="utf-8")


def append(journal: TextIO, each: Record) -> None:
    """Add a record: in the file when it returns. The line break comes first, which ends a line that a kill cut off."""
    journal.write("\n" + json.dumps(each, allow_nan=False))
    journal.flush()


def write(
    folder: Path, phase: str, records: Sequence[Record], campaign: str, reference_ms: Sequence[Sequence[float]] = ()
) -> None:
    """Write the checkpoint of a phase. `reference_ms`: of the reference workload before it and after it, if it ran."""
    fields = ("cell", "host", "took_s", "outcome")
    measurements = {each["key"]: {name: each[name] for name in fields} for each in records}
    about = {"phase": phase, "reference_ms": list(reference_ms)}
    write_json(folder / NAMES[phase], about | _file(campaign, measurements))


def merge(folder: Path) -> list[str]:
    """Write `raw_measurements.json` from the checkpoints that are there; returns what a reader should know.

    A checkpoint of an earlier campaign (other code, versions, settings) than the newest is left out. Raises
    `GnnlabError` where there is none.
    """
    written = {name: _read(folder / name) for name in NAMES.values() if (folder / name).exists()}
    if not written:
        raise GnnlabError(f"no checkpoint in {folder}; {REMEDY}")
    campaign = max(written.values(), key=lambda checkpoint: checkpoint["written"])["campaign"]
    messages, measurements = [], {}
    for name in NAMES.values():
        if name not in written:
            messages.append(f"{name} is missing: that phase has not come to its end")
        elif written[name]["campaign"] != campaign:
            messages.append(f"{name} is of another campaign ({written[name]['written']}) and was left out")
        else:
            measurements |= written[name]["measurements"]
    write_json(folder / RAW, _file(campaign, measurements))
    return messages


def raw(folder: Path) -> dict[str, Record]:
    """The measurements of `raw_measurements.json` by key. Raises `GnnlabError` where it is missing or damaged."""
    return _read(folder / RAW)["measurements"]


def _file(campaign: str, measurements: Mapping[str, Any]) -> dict[str, Any]:
    written = datetime.now(UTC).isoformat(timespec="seconds")
    return {"schema_version": SCHEMA_VERSION, "campaign": campaign, "written": written, "measurements": measurements}


def _read(path: Path) -> Mapping[str, Any]:
    data = read_json(path, REMEDY)
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise GnnlabError(f"{path} is of another version of gnnlab; {REMEDY}")
    return data


def report(cells: pd.DataFrame, messages: Sequence[str] = ()) -> str:
    """The text of `profiling_report.txt`, as S4 has it. What was simulated is starred wherever it stands."""
    starred = cells.assign(unit=cells["unit"] + np.where(cells["origin"] == tables.SIMULATED, STAR, ""))
    timed = tables.timed(starred)
    statistics = {"mean": lambda ms: np.exp(np.log(ms).mean()), "least": "min", "most": "max", "sizes": "size"}
    latency = timed.groupby(["stage", "unit"], sort=False)["ms"].agg(**statistics).reset_index()
    parts = {
        "Units": timed[DEVICES].drop_duplicates(),
        "Latency in ms, geometric mean over sizes (least to most)": latency,
        "Every cell in ms, 95 % interval (within: 2 %)": starred.loc[starred["unit"].isin(timed["unit"]), CELLS],
        "On the CPU, times as fast as the baseline": tables.gain_rows(cells).reindex(columns=GAINS),
        "Stages one by one over fused": tables.sum_rows(cells).reindex(columns=SUMS),
        "What could not be measured, and why": tables.gaps(cells),
    }
    counts = ", ".join(f"{count} {status}" for status, count in cells["status"].value_counts().items())
    lines = ["GNN stage profile", "=" * 17, *messages]
    lines.append(f"layer {_each(cells['layer'])}, {_each(cells['features'])} features")
    lines.append(f"sizes (nodes/edges) {_each(cells['size'])}")
    lines.append(f"{counts}; {int(timed['within'].sum())} with an interval within 2 %")
    if (cells["origin"] == tables.SIMULATED).any():
        lines.append(f"{STAR} simulated from published constants; no such device was measured.")
    for title, frame in parts.items():
        text = frame.to_string(index=False, float_format="{:.4g}".format, max_colwidth=None)
        lines += ["", title, "-" * len(title), "none" if frame.empty else text]
    return "\n".join(lines) + "\n"


def _each(values: pd.Series) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))
