"""Exported models on disk: found again by what they were made from, and only if no byte of them changed.

    shelf = Shelf(folder)
    shelf.get(wanted)                  # None: never made, made from something else, or damaged since
    shelf.put(made, {".onnx": data})
    load_artefacts(folder)             # all of them, whether ready or not

`index.json` says for each model what it was made from (its key), the digest of each of its files, how long it took, and
whether it computes the right thing. Files and index are written whole or not at all, so a kill loses at most the model
that was being made; a damaged file or index is noticed and made anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gnnlab.safe_files import write_atomically, write_json
from gnnlab.stages.errors import StageError

INDEX = "index.json"
READY, FAILED, WRONG = "ready", "failed", "wrong"
DYNAMIC = "dynamic"
_TUPLES = ("reads", "writes", "sized_by")


@dataclass(frozen=True)
class Artefact:
    """One exported block of stages.

    `reads` and `writes` are its inputs and outputs in order; of the inputs `sized_by` only the number of rows counts.
    `nodes`, `edges`: the static size, None for dynamic shapes. `key`: a digest of all that it was made from; models of
    one key share their files. `status`: ready, failed (`reason` says why) or wrong (`parity_error` is too large).
    """

    key: str
    layer: str
    features: int
    first: int
    last: int
    exporter: str
    form: str
    nodes: int | None
    edges: int | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sized_by: tuple[str, ...] = ()
    path: Path | None = None
    size_bytes: int = 0
    seconds: float = 0.0
    status: str = READY
    reason: str | None = None
    parity_error: float | None = None
    fresh: bool = False  # made by this call, not found

    @property
    def ready(self) -> bool:
        return self.status == READY

    @property
    def dynamic(self) -> bool:
        return self.nodes is None

    def files(self) -> dict[str, bytes]:
        """What is on disk, by ending."""
        paths = [] if self.path is None else [self.path, self.path.with_suffix(".bin")]
        return {path.suffix: path.read_bytes() for path in paths if path.exists()}

    @property
    def stages(self) -> str:
        """`3`, or `1-5`."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def size(self) -> str:
        return DYNAMIC if self.dynamic else f"{self.nodes}x{self.edges}"

    @property
    def slot(self) -> str:
        """Its name; there is one model of each name."""
        return f"{self.layer}-{self.features}/{self.stages}/{self.exporter}/{self.form}/{self.size}"


class Shelf:
    """The models of one folder. Not for two writers at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.records = _read_index(self.folder / INDEX)

    def get(self, wanted: Artefact) -> Artefact | None:
        """The model of this key, if its files are as they were written; also one that was made for another size."""
        same = [r for r in self.records.values() if r["key"] == wanted.key and self._intact(r)]
        if not same:
            return None
        found = self.records.get(wanted.slot)
        if found not in same:
            placed = {"nodes": wanted.nodes, "edges": wanted.edges, "seconds": 0.0}
            self.records[wanted.slot] = found = {**same[0], **placed}
            self._write()
        return _artefact(found, self.folder)

    def put(self, made: Artefact, files: Mapping[str, bytes]) -> Artefact:
        """Write the model's files, by their endings, and its record; what its name stood for before is removed."""
        stem = f"{made.layer}-{made.stages}-{made.exporter}-{made.form}-{made.size}-{made.key[:12]}"
        names = {f"{stem}{ending}": data for ending, data in files.items()}
        for name, data in names.items():
            write_atomically(self.folder / name, lambda file, data=data: file.write(data), mode="wb")
        record = {**asdict(made), "path": next(iter(names), None), "size_bytes": sum(map(len, names.values()))}
        record |= {"files": {name: hashlib.sha256(data).hexdigest() for name, data in names.items()}, "fresh": False}
        before = self.records.get(made.slot, {"files": {}})
        self.records[made.slot] = record
        self._write()
        kept = {name for other in self.records.values() for name in other["files"]}
        for name in before["files"].keys() - kept:
            (self.folder / name).unlink(missing_ok=True)
        return replace(_artefact(record, self.folder), fresh=True)

    def all(self) -> list[Artefact]:
        return [_artefact(record, self.folder) for record in self.records.values()]

    def _intact(self, record: Mapping[str, Any]) -> bool:
        return all(_digest(self.folder / name) == digest for name, digest in record["files"].items())

    def _write(self) -> None:
        self.records = dict(sorted(self.records.items()))
        write_json(self.folder / INDEX, {"digest": _digest_of(self.records), "models": self.records})


def load_artefacts(folder: Path) -> list[Artefact]:
    """Every model of `outputs/<set>/exported_models`, by name, ready or not.

    Raises:
        StageError: nothing was exported to that folder, or its index or a file was changed since.
    """
    shelf = Shelf(folder)
    if not shelf.records:
        raise StageError(f"no exported models in {folder}: run notebook 04 first, with gnnlab run 04")
    for record in shelf.records.values():
        if not shelf._intact(record):
            damaged = ", ".join(record["files"])
            raise StageError(f"{damaged} in {folder} is missing or damaged; gnnlab run 04 --force exports it anew")
    return shelf.all()


def find(
    artefacts: Sequence[Artefact],
    *,
    layer: str,
    features: int,
    first: int,
    last: int,
    exporter: str,
    form: str | None = None,
    size: tuple[int, int] | None = None,
) -> Artefact | None:
    """The ready model of this block; `size` (nodes, edges) asks for the static one, `form` for a certain form."""
    nodes, edges = size or (None, None)
    wanted = {"layer": layer, "features": features, "first": first, "last": last, "exporter": exporter}
    wanted |= {"nodes": nodes, "edges": edges, "status": READY} | ({} if form is None else {"form": form})
    return next((a for a in artefacts if all(getattr(a, name) == value for name, value in wanted.items())), None)


def _read_index(path: Path) -> dict[str, dict[str, Any]]:
    """The records; none where the file is missing, cut or changed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        records = content["models"]
        return dict(records) if content["digest"] == _digest_of(records) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _artefact(record: Mapping[str, Any], folder: Path) -> Artefact:
    known = {name: value for name, value in record.items() if name != "files"}
    known |= {name: tuple(known[name]) for name in _TUPLES}
    known["path"] = None if known["path"] is None else folder / known["path"]
    return Artefact(**known)


def _digest_of(records: Any) -> str:
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
