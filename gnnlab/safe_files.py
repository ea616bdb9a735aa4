"""Files that are written whole or not at all; what was there before survives a full disk and a kill."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


class FileError(ValueError):
    """A file could not be written; says in one line which, and that the one before it is unchanged."""


def write_atomically(path: Path, write: Callable[[Any], None], mode: str = "w") -> None:
    """Write a file whole or not at all: temporary file beside it, fsync, rename.

    `write` is called with the open file. On any error the file at `path` stays as it was, the temporary file is
    removed and `FileError` says what happened (disk full, no permission) when the operating system refused. What a
    killed process left of writing the same file is removed by the next one that writes it.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear_dead(path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{_prefix(path)}{os.getpid()}-", suffix=".tmp")
        temporary = Path(name)
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise FileError(
            f"could not write {path}: {error.strerror or error}; what was there before is unchanged. "
            "Free some space or choose another output_dir, then run again"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write `data` as indented JSON, atomically. NaN and infinity are refused (`ValueError`)."""
    text = json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False)
    write_atomically(path, lambda file: file.write(text + "\n"))


def _prefix(path: Path) -> str:
    """How the temporary files of `path` begin: its name and this machine's, for another may write to the same disk."""
    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    return f".{path.name}.gnnlab-{machine}-"


def _clear_dead(path: Path) -> None:
    """Remove temporary files of `path` whose process, which their names tell, has ended on this machine."""
    prefix = _prefix(path)
    for found in path.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        process = re.fullmatch(r"(\d{1,9})-\w{8}\.tmp", found.name.removeprefix(prefix))
        if process and not psutil.pid_exists(int(process[1])):
            with suppress(OSError):  # it is in nobody's way
                found.unlink()
