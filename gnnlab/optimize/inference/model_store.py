"""Exported and compiled models on disk, under a name made of all that they were made from.

    store = ModelStore(folder)
    path, made = store.get("onnx", key, lambda folder: export(folder / "model.onnx"))

A package that is there whole is used again; one that is missing, incomplete or changed is made anew. It is made in a
folder of its own and put in place by renaming, so a kill leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnlab import safe_files
from gnnlab.kernels.errors import OptimizeError

_LIST = "files.json"


@dataclass(frozen=True)
class Stored:
    """A package in the store: its folder, the bytes of its files, and whether it was made just now."""

    folder: Path
    size_bytes: int
    made: bool


class ModelStore:
    """Packages in `folder`, each in a folder of its own: <kind>-<digest of its key>."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def get(self, kind: str, key: Mapping[str, Any], make: Callable[[Path], None]) -> Stored:
        """The package of `key` (JSON: weights, code, versions), made by `make(empty folder)` unless it is there.

        Raises:
            OptimizeError: the disk refuses; nothing half made stays. What `make` raises is passed on.
        """
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        place = self.folder / f"{kind}-{digest}"
        if (size := _whole(place)) is not None:
            return Stored(place, size, made=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=f".{kind}-", ignore_cleanup_errors=True) as name:
                fresh = Path(name) / "package"
                fresh.mkdir()
                make(fresh)
                safe_files.write_json(fresh / _LIST, _digests(fresh))
                if place.exists() and _whole(place) is None:
                    shutil.rmtree(place)
                if not place.exists():  # else another process was faster, with the same content
                    fresh.rename(place)
        except OSError as error:
            raise OptimizeError(
                f"could not store the {kind} model in {self.folder}: {error.strerror or error}; free some space or "
                "choose another folder"
            ) from error
        return Stored(place, _whole(place) or 0, made=True)


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.name != _LIST)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _whole(folder: Path) -> int | None:
    """The bytes of a package whose files are all there, unchanged; else None."""
    try:
        listed = json.loads((folder / _LIST).read_text(encoding="utf-8"))
        if listed != _digests(folder) or not listed:
            return None
        return sum((folder / name).stat().st_size for name in listed)
    except (OSError, ValueError):
        return None
