"""Exported models on disk: a folder for each, by its name, with the model and what its check found.

make(folder, wanted, key, build)                  # the model `wanted`, built and checked by `build` unless it is there
of_block(folder, "sage", 500, 1, 5, "onnx")       # what is there of a block by an exporter, ready or not
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gnnlab.files import made_once, read_json, write_json

CHECK = "check.json"
MODELS = ("model.onnx", "model.xml")
READY, FAILED, WRONG = "ready", "failed", "wrong"
DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Artefact:
    """One exported block of stages.

    `reads` and `writes` are its inputs and outputs in order; of the inputs `sized_by` only the number of rows counts.
    `nodes`, `edges`: the static size, None for dynamic shapes. `status`: ready, failed (`reason` says why) or wrong
    (`parity_error`, its largest relative error, is too large). `seconds`: to make and check it, 0 where it was there.
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
    status: str = READY
    reason: str | None = None
    parity_error: float | None = None
    path: Path | None = None
    size_bytes: int = 0
    seconds: float = 0.0

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
    def stages(self) -> str:
        """`3`, or `1-5`."""
        return _numbers(self.first, self.last)

    @property
    def name(self) -> str:
        """Its name, which is its folder's: "sage-500/3/onnx/index_add/dynamic"."""
        size = DYNAMIC if self.dynamic else f"{self.nodes}x{self.edges}"
        return f"{self.layer}-{self.features}/{self.stages}/{self.exporter}/{self.form}/{size}"


def make(
    folder: Path, wanted: Artefact, key: Mapping[str, Any], build: Callable[[Path], Artefact], *, anew: bool = False
) -> Artefact:
    """The model `wanted` in `folder`: as it is there if made from the same `key`, else what `build` writes into an
    empty folder, with the outcome of its check. With `anew` it is built in any case."""

    def fill(empty: Path) -> None:
        write_json(empty / CHECK, {**asdict(build(empty)), "path": None})

    place = Path(folder) / wanted.name
    seconds = made_once(place, key, fill, anew=anew)
    return replace(_read(place / CHECK), seconds=seconds)


def of_block(folder: Path, layer: str, features: int, first: int, last: int, exporter: str) -> list[Artefact]:
    """The models of a block by an exporter, in every form and size, ready or not."""
    models = Path(folder) / f"{layer}-{features}" / _numbers(first, last) / exporter
    return [_read(path) for path in sorted(models.glob(f"*/*/{CHECK}"))]


def _numbers(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _read(check: Path) -> Artefact:
    facts = read_json(check, "gnnlab run 04 exports it again")
    facts["path"] = next((path for path in map(check.with_name, MODELS) if path.exists()), None)
    facts["size_bytes"] = sum(file.stat().st_size for file in check.parent.glob("model.*"))
    return Artefact(**{name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()})
