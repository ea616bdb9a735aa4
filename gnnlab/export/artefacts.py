"""Exported models on disk: a folder for each, by its name, with the model and what its check found.

make(folder, wanted, key, build)   # the model `wanted`, built and checked by `build` unless it is there
load_artefacts(folder)             # all of them, whether ready or not
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError
from gnnlab.files import digest, made_once, read_json, write_json

CHECK = "check.json"
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
    it was found on the disk.
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
        """Its name, which is its folder's: "sage-500/3/onnx/index_add/dynamic"."""
        size = DYNAMIC if self.dynamic else f"{self.nodes}x{self.edges}"
        return f"{self.layer}-{self.features}/{self.stages}/{self.exporter}/{self.form}/{size}"


def make(
    folder: Path, wanted: Artefact, key: Mapping[str, Any], build: Callable[[Path], Check], *, anew: bool = False
) -> Artefact:
    """The model `wanted` in `folder`: found if made from the same `key`, else written into an empty folder and checked
    by `build`. With `anew` it is built in any case."""

    def fill(empty: Path) -> None:
        check = build(empty)
        found = {"status": check.status, "reason": check.reason, "parity_error": check.error}
        write_json(empty / CHECK, asdict(replace(wanted, key=digest(dict(key)), **found)))

    place = Path(folder) / wanted.name
    seconds = made_once(place, key, fill, anew=anew)
    return replace(_read(place / CHECK), seconds=seconds)


def load_artefacts(folder: Path) -> list[Artefact]:
    """Every model of `outputs/<set>/exported_models`, by name, ready or not.

    Raises:
        GnnlabError: nothing was exported to that folder.
    """
    found = [_read(path) for path in sorted(Path(folder).glob(f"*/*/*/*/*/{CHECK}"))]
    if not found:
        raise GnnlabError(f"no exported models in {folder}: run notebook 04 first, with gnnlab run 04")
    return found


def _read(check: Path) -> Artefact:
    facts = read_json(check, "gnnlab run 04 --force exports it again")
    paths = [check.with_name(name) for name in MODELS]
    on_disk = {
        "path": next((path for path in paths if path.exists()), None),
        "size_bytes": sum(file.stat().st_size for file in check.parent.glob("model.*")),
    }
    return Artefact(**{name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()} | on_disk)
