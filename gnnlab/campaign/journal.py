"""The record of a campaign while it runs: JSON lines, each sealed with the one before it, on the disk before the next.

    journal = Journal(folder / "journal.jsonl", campaign)
    journal.append({"kind": "cell", ...})     # written, flushed to the disk
    journal.records                           # what was read, and what was appended since

A kill loses what had not been appended. A line that was cut, changed, doubled, dropped or moved is noticed, for each
carries a digest of itself and of the one before it: the damaged file is kept beside the journal, the lines before that
place stay, and what stood from there on is measured again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError
from gnnlab.files import SEAL, name_aside, sealed, unsealed, write_atomically

Record = dict[str, Any]


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
        self.records, self._last, damaged = read(content)
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
        line = encode(record, self._last)
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
        self._last = _seal(line)

    def _undo(self, end: int) -> None:
        with contextlib.suppress(OSError):  # what is left of the line has no valid digest and will be noticed
            self._file.truncate(end)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def encode(record: Record, before: str) -> bytes:
    """A record as its line: keys in order, no spaces, and the digest of all the rest and of the line before, which is
    "" for the first. NaN is refused (`ValueError`)."""
    return json.dumps(sealed(record, before), sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def lines(records: Iterable[Record]) -> Iterator[bytes]:
    """The lines of a journal that holds these records."""
    before = ""
    for record in records:
        line = encode(record, before)
        yield line
        before = _seal(line)


def read(content: bytes) -> tuple[list[Record], str, int]:
    """The records of a journal that can be believed, the digest of the last one, and how many lines cannot be.

    A good line is exactly what `encode` makes of its record after the line before it, so that a change of any byte or
    of the order is noticed. From the first that is not on, none is believed.
    """
    *whole, rest = content.split(b"\n")
    records: list[Record] = []
    last = ""
    for line in whole:
        record = _decode(line, last)
        if record is None:
            break
        records.append(record)
        last = _seal(line)
    return records, last, len(whole) - len(records) + bool(rest)


def _decode(line: bytes, before: str) -> Record | None:
    try:
        record = unsealed(json.loads(line), before)
        return record if encode(record, before) == line + b"\n" else None
    except (ValueError, RecursionError):
        return None


def _seal(line: bytes) -> str:
    return json.loads(line)[SEAL]


def _set_aside(path: Path, content: bytes, good: list[Record], damaged: int) -> str:
    """Keep the damaged file beside the journal, which then holds the good lines alone."""
    kept = name_aside(path)  # a copy, so that the journal is there whenever this is ended
    write_atomically(kept, lambda file: file.write(content), mode="wb")
    write_atomically(path, lambda file: file.writelines(lines(good)), mode="wb")
    which = "line that is" if damaged == 1 else "lines that are"
    told = f"{damaged} {which} not as written, or behind one"
    return f"{path} had {told}; it was kept as {kept.name}, and what was lost is measured again"
