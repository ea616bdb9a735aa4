"""The record of a campaign while it runs: sealed JSON lines, each on the disk before the next.

    journal = Journal(folder / "journal.jsonl", campaign)
    journal.append({"kind": "cell", ...})     # written, flushed to the disk
    journal.records                           # what was read, and what was appended since

A kill loses what had not been appended. Each line carries its number, the name of its file and a digest of itself
(`files.sealed_line`), so that one that was cut, changed, doubled, dropped or moved is noticed and all others are still
believed: the damaged file is kept beside the journal, a record of the kind "lost" stands where lines are missing, and
what they held is measured again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError
from gnnlab.files import sealed_line, take_lines

Record = dict[str, Any]
LOST = "lost"  # the kind of a record in whose place lines are missing


class Journal:
    """An append-only file of records. `campaign` goes into each line; `message` says what was damaged, if anything.

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
            self._undo(end)
            raise GnnlabError(
                f"could not write to {self.path}: {error.strerror or error}; its {len(self.records)} records are kept. "
                "Free some space, then run again: it goes on from there"
            ) from error
        self.records.append(record)

    def _undo(self, end: int) -> None:
        with contextlib.suppress(OSError):  # what is left of the line has no valid digest and will be noticed
            self._file.truncate(end)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
