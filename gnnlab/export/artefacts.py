"""Exported models on disk: found again by what they were made from, and only if no byte of them changed.

    store = ModelStore(folder)
    store.make(wanted, key, build)     # the model of that key, built and checked by `build` unless it is there
    load_artefacts(folder)             # all of them, whether ready or not

Their files lie in a `gnnlab.files.Store`, found by all that they depend on, so that sizes at which a model is the same
have its files in common. `index.json` says which of them each name stands for. Both are written whole or not at all: a
kill loses at most the model that was being made, and a damaged file or index is noticed and made anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError
from gnnlab.files import Store, digest, read_json, unsealed, write_json, write_sealed

INDEX, CHECK = "index.json", "check.json"
MODELS = ("model.onnx", "model.xml")
READY, FAILED, WRONG = "ready", "failed", "wrong"
DYNAMIC, STATIC = "dynamic", "static"


@dataclass(frozen=True)
class Check:
    """What became of a model: ready, failed (`reason` says why) or wrong; `error` is its largest relative error."""

    status: str
    reason: str | None = None
    error: float | None = None


@dataclass(frozen=True)
class Artefact:
    """One exported block of stages.

    `reads` and `writes` are its inputs and outputs in order; of the inputs `sized_by` only the number of rows counts.
    `nodes`, `edges`: the static size, None for dynamic shapes. `key`: a digest of all that it was made from. `status`:
    ready, failed (`reason` says why) or wrong (`parity_error` is too large). `seconds`: to make and check it, 0 where
    it was found.
    """

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
    key: str = ""
    path: Path | None = None
    size_bytes: int = 0
    seconds: float = 0.0
    status: str = READY
    reason: str | None = None
    parity_error: float | None = None

    @property
    def ready(self) -> bool:
        return self.status == READY

    @property
    def fresh(self) -> bool:
        """Was it made by this call?"""
        return self.seconds > 0

    @property
    def dynamic(self) -> bool:
        return self.nodes is None

    @property
    def shapes(self) -> str:
        return DYNAMIC if self.dynamic else STATIC

    @property
    def stages(self) -> str:
        """`3`, or `1-5`."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def name(self) -> str:
        """Its name; there is one model of each name."""
        size = DYNAMIC if self.dynamic else f"{self.nodes}x{self.edges}"
        return f"{self.layer}-{self.features}/{self.stages}/{self.exporter}/{self.form}/{size}"


class ModelStore:
    """The models of one folder. Not for two writers at once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = Path(folder), Store(folder)
        self.models = _read_index(self.folder / INDEX)

    def make(
        self, wanted: Artefact, key: Mapping[str, Any], build: Callable[[Path], Check], *, anew: bool = False
    ) -> Artefact:
        """The model `wanted`, made from `key`: found unchanged, or written into an empty folder and checked by `build`.

        What its name stood for before is removed. With `anew` it is built in any case, and replaced once it is whole.
        """
        made = self.store.make(key, lambda folder: write_json(folder / CHECK, asdict(build(folder))), anew=anew)
        before = self.models.get(wanted.name)
        now = {"key": dict(key), "nodes": wanted.nodes, "edges": wanted.edges}
        if before is None or digest(before) != digest(now):
            self.models[wanted.name] = now
            self.models = dict(sorted(self.models.items()))
            write_sealed(self.folder / INDEX, {"models": self.models})
            unused = before and all(other["key"] != before["key"] for other in self.models.values())
            if unused and (old := self.store.get(before["key"])):
                shutil.rmtree(old)
        return self._artefact(now, made.folder, made.seconds)

    def all(self) -> list[Artefact]:
        """Every model, by name. Raises `GnnlabError` where one is missing or was changed."""
        found = {name: self.store.get(model["key"]) for name, model in self.models.items()}
        if damaged := [name for name, place in found.items() if place is None]:
            raise GnnlabError(
                f"{', '.join(damaged[:3])} in {self.folder}: missing or damaged; gnnlab run 04 --force exports it anew"
            )
        return [self._artefact(model, found[name]) for name, model in self.models.items()]

    def _artefact(self, model: Mapping[str, Any], place: Path, seconds: float = 0.0) -> Artefact:
        key = model["key"]
        check = Check(**read_json(place / CHECK, "gnnlab run 04 --force exports it anew"))
        path = next((place / name for name in MODELS if (place / name).exists()), None)
        files = [path, path.with_suffix(".bin")] if path else []
        return Artefact(
            **{name: key[name] for name in ("layer", "features", "first", "last", "exporter", "form")},
            **{name: tuple(key[name]) for name in ("reads", "writes", "sized_by")},
            nodes=model["nodes"],
            edges=model["edges"],
            key=digest(key),
            path=path,
            size_bytes=sum(file.stat().st_size for file in files if file.exists()),
            seconds=seconds,
            status=check.status,
            reason=check.reason,
            parity_error=check.error,
        )


def load_artefacts(folder: Path) -> list[Artefact]:
    """Every model of `outputs/<set>/exported_models`, by name, ready or not.

    Raises:
        GnnlabError: nothing was exported to that folder, or its index or a file was changed since.
    """
    store = ModelStore(folder)
    if not store.models:
        raise GnnlabError(f"no exported models in {folder}: run notebook 04 first, with gnnlab run 04")
    return store.all()


def _read_index(path: Path) -> dict[str, dict[str, Any]]:
    """Which model each name stands for; none where the file is missing, cut or changed."""
    try:
        return dict(unsealed(json.loads(path.read_text(encoding="utf-8")))["models"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
