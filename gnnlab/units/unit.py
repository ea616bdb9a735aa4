"""The interface of a processing unit: a CPU, GPU or NPU together with the runtime that reaches it.

A unit says whether it can be used here, and loads a block of stages. What it loaded runs from numpy arrays in this
machine's memory to numpy arrays there: binding the inputs, a device's copies in and out, and fetching the results are
in the time of every unit. The arrays that `run` gives are valid until its next call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnlab.errors import Unavailable

if TYPE_CHECKING:
    from gnnlab.export.artefacts import Artefact
    from gnnlab.workloads.staged import StagedLayer

Values = Mapping[str, np.ndarray]
# of the largest magnitude: what a unit may differ from the float32 block of torch, by the precision it computes in
TOLERANCES = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Availability:
    """Can a unit be used here? If not: why, and what to install."""

    usable: bool
    why: str | None = None
    remedy: str | None = None
    device: str = ""
    version: str = ""

    @property
    def reason(self) -> str:
        """Why it cannot be used here, and what would help, in one line."""
        return "; what helps: ".join(filter(None, (self.why, self.remedy)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Loaded:
    """A block of stages on a unit, ready to run.

    `notes`: what to know beside its times, some of it only after the first run. `simulated_ms`: the samples of a unit
    that is not really there.
    """

    run: Callable[[Values], dict[str, np.ndarray]]
    device: str
    version: str
    notes: list[str] = field(default_factory=list)
    simulated_ms: tuple[float, ...] | None = None
    close: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class Unit(ABC):
    """A processing unit by name, as "openvino:CPU".

    `exporter` and `form` say whose artefact it runs, and of what form; no exporter: it runs the block itself.
    `static_shapes`: each size needs a model of its own. `precisions` are those it can be told to compute in; where
    float32 is none of them, it computes in the first of them when asked for float32, as NPUs do.
    """

    name: str
    processor: str  # CPU|GPU|NPU
    runtime: str
    exporter: str | None = None
    form: str | None = None
    origin: str = "measured"  # measured|simulated
    static_shapes: bool = False
    precisions: tuple[str, ...] = ("float32",)

    @abstractmethod
    def probe(self) -> Availability:
        """Try the unit in this process. A driver may crash in here: `units.probe` asks a worker instead."""

    @abstractmethod
    def load(
        self,
        layer: StagedLayer,
        first: int,
        last: int,
        artefact: Artefact | None,
        *,
        nodes: int,
        edges: int,
        threads: int,
        precision: str,
    ) -> Loaded:
        """Make the stages `first`..`last` of a layer ready for a graph of that size.

        Raises `Unavailable`: the unit lacks this block, precision or model.
        """

    def computes_in(self, precision: str) -> str:
        """The precision that this unit sets when asked for one. Raises `Unavailable` where it has none to offer."""
        if precision in self.precisions:
            return precision
        if precision == "float32":
            return self.precisions[0]
        raise Unavailable(f"{self.name} computes in {' or '.join(self.precisions)}, not in {precision}")


def require_artefact(unit: Unit, artefact: Artefact | None, first: int, last: int) -> Artefact:
    """The exported model that a unit needs, with its file. Raises `Unavailable` where there is none."""
    what = f"stages {first}-{last}" if first != last else f"stage {first}"
    if artefact is None:
        raise Unavailable(f"no model of {what} by the exporter {unit.exporter}; export it first (notebook 04)")
    if artefact.status != "ready" or artefact.path is None:
        raise Unavailable(f"the exported model of {what} is {artefact.status}: {artefact.reason}")
    return artefact
