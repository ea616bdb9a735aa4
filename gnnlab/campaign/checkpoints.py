"""The files of a campaign.

    journal.jsonl                                  a JSON line for each cell, flushed before the next is measured
    checkpoint_cpugpu.json, checkpoint_npu.json    {"campaign": ..., "measurements": {key: {"cell", "outcome", ...}}}
    raw_measurements.json                          the same for all of them: every sample of every cell
    profiling_report.txt                           for reading; `report.report` makes it

A key, as "1000,1000,openvino:CPU,1", is nodes, edges, processing unit, stage; fused stages are named by the first and
the last, as in "1-5". The names of the files but for the journal are S4's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError
from gnnlab.files import read_json, write_json

NAMES = {"cpugpu": "checkpoint_cpugpu.json", "npu": "checkpoint_npu.json"}
JOURNAL, RAW, REPORT = "journal.jsonl", "raw_measurements.json", "profiling_report.txt"
SCHEMA_VERSION = 1
DRIFT = 0.15  # between the reference workload before and after a phase; beyond it a message says so
REMEDY = "measure first: gnnlab stages --measure, which goes on from the journal"
Record = dict[str, Any]


def read_journal(path: Path) -> dict[str, Record]:
    """The records of a journal by what their cells are known by (`known_by`), the latest of each.

    A line that a kill cut off does not parse, and is left out.
    """
    found = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            record = json.loads(line)
            found[record["known_by"]] = record
        except (ValueError, KeyError, TypeError):
            continue
    return found


@contextmanager
def open_journal(path: Path) -> Iterator[Callable[[Record], None]]:
    """A function that appends a record to the journal: in the file when it returns."""
    with path.open("ab") as file:
        if file.tell() and not path.read_bytes().endswith(b"\n"):  # a kill cut the last line off
            file.write(b"\n")

        def append(record: Record) -> None:
            file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            file.flush()

        yield append


def write(
    folder: Path, phase: str, records: Sequence[Record], campaign: str, reference_ms: Sequence[float] = ()
) -> None:
    """Write the checkpoint of a phase. `reference_ms`: of the reference workload before it and after it, if it ran."""
    fields = ("cell", "host", "took_s", "outcome")
    measurements = {record["key"]: {name: record[name] for name in fields} for record in records}
    about = {"phase": phase, "reference_ms": list(reference_ms), **_head(campaign)}
    write_json(folder / NAMES[phase], {**about, "measurements": measurements})


def merge(folder: Path) -> list[str]:
    """Write `raw_measurements.json` from the checkpoints that are there; returns what a reader should know.

    A checkpoint of an earlier campaign (other code, versions, settings) than the newest is left out. Raises
    `GnnlabError` where there is none.
    """
    found = {name: _read(folder / name) for name in NAMES.values() if (folder / name).exists()}
    if not found:
        raise GnnlabError(f"no checkpoint in {folder}; {REMEDY}")
    newest = max(found.values(), key=lambda checkpoint: checkpoint["written"])
    messages, measurements = [], {}
    for name, checkpoint in found.items():
        if checkpoint["campaign"] != newest["campaign"]:
            messages.append(f"{name} is of another campaign ({checkpoint['written']}) and was left out")
            continue
        measurements |= checkpoint["measurements"]
        if reference := checkpoint.get("reference_ms"):
            drift = reference[1] / reference[0] - 1
            if abs(drift) > DRIFT:
                messages.append(f"{name}: the reference workload took {100 * drift:+.0f} % after the phase; {_UNSURE}")
    messages += [
        f"{name} is missing: that phase has not come to its end" for name in NAMES.values() if name not in found
    ]
    write_json(folder / RAW, {**_head(newest["campaign"]), "measurements": measurements})
    return messages


_UNSURE = "the machine has changed on the way, so its times are less sure than their intervals say"


def raw(folder: Path) -> dict[str, Record]:
    """The measurements of `raw_measurements.json` by key. Raises `GnnlabError` where it is missing or damaged."""
    return _read(folder / RAW)["measurements"]


def _head(campaign: str) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"schema_version": SCHEMA_VERSION, "campaign": campaign, "written": now}


def _read(path: Path) -> Mapping[str, Any]:
    data = read_json(path, REMEDY)
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise GnnlabError(f"{path} is of another version of gnnlab; {REMEDY}")
    return data
