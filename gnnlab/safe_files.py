"""Files that are written whole or not at all; what was there before survives a full disk and a kill."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class FileError(ValueError):
    """A file could not be written; says in one line which, and that the one before it is unchanged."""


def write_atomically(path: Path, write: Callable[[Any], None], mode: str = "w") -> None:
    """Write a file whole or not at all: temporary file beside it, fsync, rename.

    `write` is called with the open file. On any error the file at `path` stays as it was, the temporary file is
    removed and `FileError` says what happened (disk full, no permission) when the operating system refused.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
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
