"""What a notebook leaves behind: the models of a quantity, a measurement, a claim record and a result file.

The JSON written from these is the truth of a run; reports and tables are rendered from it. The JSON Schema is
published in `docs/result-file.schema.json`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gnnlab.safe_files import write_json

SCHEMA_VERSION = 1


class Origin(StrEnum):
    """Where a number comes from. Tables and figures show the four apart."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    SIMULATED = "simulated"


class Status(StrEnum):
    """How the run of a notebook ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"


class Verdict(StrEnum):
    """What the lab says of a claim; `gnnlab.lab.claims.verdict` computes it."""

    REPRODUCED = "reproduced"
    EXCEEDED = "exceeded"
    WEAKER = "weaker"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    UNTESTABLE = "untestable here"


class Strict(BaseModel):
    """A model without unknown fields and without NaN or infinity: JSON has no word for either."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Conditions(Strict):
    """Under what conditions a number was measured."""

    processing_unit: str = "CPU"  # CPU, CUDA, GPU, NPU
    device: str  # the name of the chip
    runtime: str  # with its version: "torch 2.13.0"
    precision: str = "float32"
    threads: int = Field(ge=1)


class Quantity(Strict):
    """A number with its unit, its 95 % interval and its origin. `better` tells `compare` how to read a change."""

    value: float
    unit: str
    ci: tuple[float, float] | None = None  # None: exact (a count), no interval exists
    n: int = Field(default=1, ge=1)  # samples behind it
    origin: Origin = Origin.MEASURED
    better: Literal["lower", "higher", "neither"] = "neither"

    @model_validator(mode="after")
    def _interval_in_order(self) -> Quantity:
        if self.ci is not None and self.ci[0] > self.ci[1]:
            raise ValueError(f"the interval {self.ci} of {self.value} {self.unit} has its ends swapped")
        return self


class Measurement(Strict):
    """One attempt to measure: a quantity with every sample, or the reason why there is none."""

    name: str
    status: Literal["measured", "unavailable", "failed", "timeout"] = "measured"
    reason: str | None = None
    quantity: Quantity | None = None
    samples: list[float] = []
    conditions: Conditions
    notes: list[str] = []

    @model_validator(mode="after")
    def _value_or_reason(self) -> Measurement:
        if (self.status == "measured") != (self.quantity is not None):
            raise ValueError(f"measurement {self.name!r}: status {self.status!r} does not fit quantity {self.quantity}")
        if self.status != "measured" and not self.reason:
            raise ValueError(f"measurement {self.name!r} is {self.status!r} without a reason")
        return self


class ClaimRecord(Strict):
    """One row of the ledger. A bound of None is open: no end on that side."""

    id: str
    source: str  # "000".."004": the document that claims it; "goal": the lab's own
    statement: str
    metric: str
    claimed: tuple[float | None, float | None] | None
    measured: float | None
    ci: tuple[float, float] | None
    n: int
    unit: str
    precision: str
    verdict: Verdict
    notebook: str
    why: str
    figure: str | None = None  # name of the figure that shows it


class FigureRecord(Strict):
    """A figure on disk. Paths are relative to the result file."""

    name: str
    title: str
    alt: str
    png: str
    svg: str
    key: bool = False  # the one that the front page shows


class ResultFile(Strict):
    """`NN_name.json`: everything one run of one notebook found."""

    schema_version: Literal[1] = SCHEMA_VERSION
    notebook: str
    params_set: str
    status: Status
    reason: str | None = None  # why skipped, failed or timed out
    parameters: dict[str, Any]
    environment: dict[str, Any]
    metrics: dict[str, Quantity] = {}
    measurements: list[Measurement] = []
    claims: list[ClaimRecord] = []
    figures: list[FigureRecord] = []
    started: str  # ISO 8601, UTC
    seconds: float = Field(ge=0)


class ResultError(ValueError):
    """A result file that cannot be read or used. The message is one line for the reader."""


def write(path: Path, result: ResultFile) -> None:
    """Write a result file atomically."""
    write_json(path, result.model_dump(mode="json"))


def read(path: Path) -> ResultFile:
    """Read a result file; `ResultError` says in one line what is wrong with it."""
    path = Path(path)
    try:
        return ResultFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ResultError(f"no result file {path}; run the notebook first: gnnlab run {path.name[:2]}") from None
    except OSError as error:
        raise ResultError(f"could not read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ResultError(
            f"{path} is not a result file of this version: {where}: {first['msg']}; run it again"
        ) from None


def schema() -> dict[str, Any]:
    """JSON Schema of a result file."""
    return ResultFile.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
