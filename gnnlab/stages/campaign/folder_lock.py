"""One campaign in a folder at a time.

The operating system holds the lock and lets go of it when the process ends, however it ends: there is no stale lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from gnnlab.stages.errors import StageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

LOCK = "campaign.lock"
_FAR = 2**20  # Windows locks bytes: one behind all content, so that the content can be read


@contextmanager
def only_campaign(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where missing) for this process. Raises `StageError`, which names the holder, where another
    campaign has it.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise StageError(f"could not write to {folder}: {error.strerror or error}") from None
    with file:
        try:
            _lock(file)
        except OSError:
            raise StageError(f"{_holder(file)} measures into {folder}; wait until it ends, or stop it") from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "since": f"{datetime.now():%Y-%m-%d %H:%M}"}).encode())
        yield


def _lock(file: BinaryIO) -> None:
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        file.seek(_FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


def _holder(file: BinaryIO) -> str:
    try:
        file.seek(0)
        known = json.loads(file.read())
        return f"process {int(known['pid'])}, started {known['since']},"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
