"""The record of a campaign while it runs: JSON lines, each with its own checksum, on the disk before the next begins.

    journal = Journal(folder / "journal.jsonl", campaign)
    journal.append({"kind": "cell", ...})     # written, flushed to the disk
    journal.records                           # what was read, and what was appended since

A kill loses what had not been appended. A line that was cut or changed is noticed: the damaged file is kept beside the
journal, the good lines stay, and what the others held is measured again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError
from gnnlab.files import name_aside, write_atomically

Record = dict[str, Any]
SUM = "sha256"


class Journal:
    """An append-only file of records. `campaign` goes into each line; `message` says what was damaged, if anything.

    Raises `GnnlabError` where the file can be neither read nor written, or a damaged one cannot be kept.
    """

    def __init__(self, path: Path, campaign: str) -> None:
        self.path, self.campaign = path, campaign
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise GnnlabError(f"could not read {path}: {error.strerror or error}") from None
        self.records, damaged = read(content)
        self.message = _set_aside(path, content, self.records, damaged) if damaged else None
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise GnnlabError(f"could not write to {path}: {error.strerror or error}") from None

    def append(self, record: Record) -> None:
        """Add a record: on the disk when this returns, or not in the file at all.

        Raises `GnnlabError` when the disk refuses.
        """
        record = {**record, "campaign": self.campaign}
        line = encode(record)
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            self._undo(end)
            raise GnnlabError(
                f"could not write to {self.path}: {error.strerror or error}; its {len(self.records)} records are kept. "
                "Free some space, then run again: it goes on from there"
            ) from error
        self.records.append(record)

    def _undo(self, end: int) -> None:
        with contextlib.suppress(OSError):  # what is left of the line has no valid checksum and will be noticed
            self._file.truncate(end)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def encode(record: Record) -> bytes:
    """A record as its line: keys in order, no spaces, and the digest of all the rest. NaN is refused (`ValueError`)."""
    return _line({**record, SUM: _digest(record)})


def read(content: bytes) -> tuple[list[Record], int]:
    """The records of a journal, and how many of its lines are damaged.

    A good line is exactly what `encode` makes of its record, so that a change of any byte is noticed.
    """
    *lines, rest = content.split(b"\n")
    found = [_decode(line) for line in lines]
    return [record for record in found if record is not None], found.count(None) + bool(rest)


def _decode(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
        del record[SUM]
        good = encode(record) == line + b"\n"  # the digest in it is made anew
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return None
    return record if good else None


def _line(record: Record) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _digest(record: Record) -> str:
    return hashlib.sha256(_line(record)).hexdigest()[:32]


def _set_aside(path: Path, content: bytes, good: list[Record], damaged: int) -> str:
    """Keep the damaged file beside the journal, which then holds the good lines alone."""
    kept = name_aside(path)  # a copy, so that the journal is there whenever this is ended
    write_atomically(kept, lambda file: file.write(content), mode="wb")
    write_atomically(path, lambda file: file.writelines(encode(record) for record in good), mode="wb")
    lines = f"{damaged} damaged line{'s' * (damaged != 1)}"
    return f"{path} had {lines}; it was kept as {kept.name}, and what was lost is measured again"
