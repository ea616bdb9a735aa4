"""The files of a campaign: its journal while it runs, and what S4 names, each written whole or not at all, and sealed.

    journal.jsonl                                  sealed JSON lines, each on the disk before the next
    checkpoint_cpugpu.json, checkpoint_npu.json    {"campaign": ..., "measurements": {key: {"cell", "host", "outcome"}}}
    raw_measurements.json                          the same for all of them: every sample of every cell
    profiling_report.txt                           for reading; `report.report` makes it

A key, as "1000,1000,openvino:CPU,1", is nodes, edges, processing unit, stage; fused stages are named by the first and
the last, as in "1-5".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError
from gnnlab.files import read_sealed, sealed_line, take_lines, write_atomically, write_sealed

NAMES = {"cpugpu": "checkpoint_cpugpu.json", "npu": "checkpoint_npu.json"}
RAW, REPORT = "raw_measurements.json", "profiling_report.txt"
SCHEMA_VERSION = 1
LOST = "lost"  # the kind of a record in whose place lines are missing
Record = dict[str, Any]
REMEDY = "measure first: gnnlab stages --measure, which goes on from the journal"


class Journal(AbstractContextManager):
    """An append-only file of records. `campaign` goes into each line; `message` says what was damaged, if anything.

    A kill loses what had not been appended. Each line carries its number, the name of its file and a digest of itself
    (`files.sealed_line`), so that one that was cut, changed, doubled, dropped or moved is noticed and all others are
    still believed: the damaged file is kept beside the journal, a record of the kind "lost" stands where lines are
    missing, and what they held is measured again.

    Raises `GnnlabError` where the file can be neither read nor written, or a damaged one cannot be kept.
    """

    def __init__(self, path: Path, campaign: str) -> None:
        self.path, self.campaign = path, campaign
        self.records, self._name, message = take_lines(path, {"kind": LOST, "campaign": campaign})
        self.message = message and f"{message}, and what was lost is measured again"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise GnnlabError(f"could not write to {path}: {error.strerror or error}") from None

    def append(self, record: Record) -> None:
        """Add a record: on the disk when this returns, or not in the file at all.

        Raises `GnnlabError` when the disk refuses, and `ValueError` for NaN.
        """
        record = {**record, "campaign": self.campaign}
        line = sealed_line(record, self._name, len(self.records))
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):  # what is left of the line has no valid digest and will be noticed
                self._file.truncate(end)
            raise GnnlabError(
                f"could not write to {self.path}: {error.strerror or error}; its {len(self.records)} records are kept. "
                "Free some space, then run again: it goes on from there"
            ) from error
        self.records.append(record)

    def close(self) -> None:
        self._file.close()

    def __exit__(self, *exception: object) -> None:
        self.close()


def write(folder: Path, phase: str, answers: Iterable[Mapping[str, Any]], campaign: str) -> Path:
    """Write the checkpoint of a phase. Raises `GnnlabError` when the disk refuses."""
    path = folder / NAMES[phase]
    measurements = {answer["key"]: {k: v for k, v in answer.items() if k != "key"} for answer in answers}
    write_sealed(path, {"phase": phase, **_head(campaign), "measurements": measurements})
    return path


def merge(folder: Path) -> list[str]:
    """Write `raw_measurements.json` from the checkpoints that are there; returns what a reader should know.

    A checkpoint of an earlier campaign (other code, versions, machine) than the newest is left out, and so is one that
    is not as it was written. Raises `GnnlabError` where there is no other.
    """
    found, messages, measurements = {}, [], {}
    for phase in (phase for phase, name in NAMES.items() if (folder / name).exists()):
        try:
            found[phase] = _read(folder / NAMES[phase])
        except GnnlabError as error:
            messages.append(f"left out: {error}")
    if not found:
        raise GnnlabError("; ".join(messages) or f"no checkpoint in {folder}; {REMEDY}")
    newest = max(found.values(), key=lambda checkpoint: checkpoint["written"])
    for phase, checkpoint in found.items():
        if checkpoint["campaign"] == newest["campaign"]:
            measurements |= checkpoint["measurements"]
        else:
            messages.append(f"{NAMES[phase]} is of another campaign ({checkpoint['written']}) and was left out")
    missing = [name for name in NAMES.values() if not (folder / name).exists()]
    messages += [f"{name} is missing: that phase has not come to its end" for name in missing]
    write_sealed(folder / RAW, {**_head(newest["campaign"]), "measurements": measurements})
    return messages


def raw(folder: Path) -> dict[str, dict[str, Any]]:
    """The measurements of `raw_measurements.json` by key. Raises `GnnlabError` where it is missing or damaged."""
    return _read(folder / RAW)["measurements"]


def write_report(folder: Path, text: str) -> Path:
    path = folder / REPORT
    write_atomically(path, lambda file: file.write(text))
    return path


def _head(campaign: str) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"schema_version": SCHEMA_VERSION, "campaign": campaign, "written": now}


def _read(path: Path) -> dict[str, Any]:
    data = read_sealed(path, REMEDY)
    try:
        if data["schema_version"] != SCHEMA_VERSION or not isinstance(data["written"], str):
            raise ValueError
        return {name: data[name] for name in ("campaign", "written", "measurements")}
    except (ValueError, KeyError, TypeError):
        raise GnnlabError(f"{path} is damaged; {REMEDY}") from None
