"""The one table: every number of the lab is a row, with its samples beside it.

    table = Table()
    table.put(Row(study="gat_layer", keys={"size": "58x776"}, variant="PyG", ...), samples=[1.22, 1.25, ...])
    table.select("gat_layer", where={"size": "58x776"})
    table.samples_of(row)                     # (n,), of a race one a round

A benchmarked variant, an epoch, an executed plan, a prediction, a count: all have these fields. No field has a default
that could be untrue, and a row that contradicts itself is refused with `GnnlabError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gnnlab.errors import GnnlabError, first_wrong
from gnnlab.files import write_atomically
from gnnlab.measure import estimates
from gnnlab.measure.estimates import Estimate


class Origin(StrEnum):
    """Where a number comes from. Tables and figures show them apart."""

    MEASURED = "measured"
    COUNTED = "counted"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    SIMULATED = "simulated"
    PREDICTED = "predicted"


class Interval(StrEnum):
    """What the ends `low` and `high` of a row are."""

    CONFIDENCE = estimates.CONFIDENCE  # of the statistic
    PREDICTION = estimates.PREDICTION  # of a single new value
    PREDICTION_95 = estimates.PREDICTION_95
    EXACT = "exact"  # counted or computed: all three are equal
    NONE = "none"  # too few samples for one


class Strict(BaseModel):
    """A model without unknown fields and without NaN or infinity: JSON has no word for either."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Row(Strict):
    """One number of the lab, or why there is none.

    `keys` say of what it is (the size of a graph, a stage, a batch), `variant` what is compared. `value` is the
    `statistic` of `n` samples in `unit`, `low` and `high` the ends of its `interval`. A comparison also has `ratio`,
    baseline over variant (above 1: the variant is faster or smaller). `device` is the chip that computed.
    """

    study: str = Field(min_length=1)
    keys: dict[str, str | int | float] = Field(default_factory=dict)
    variant: str = Field(min_length=1)
    status: Literal["ok", "unavailable", "failed", "timeout"] = "ok"
    reason: str | None = None
    origin: Origin
    statistic: Literal["median", "mean", "p95", "share", "single", "estimate", "count"]
    value: float | None = None
    low: float | None = None
    high: float | None = None
    interval: Interval
    n: int = Field(ge=0)
    unit: str
    better: Literal["lower", "higher", "neither"]
    baseline: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    parity_error: float | None = None
    device: str = Field(min_length=1)
    runtime: str
    precision: str
    threads: int = Field(ge=0)  # 0: none of a CPU
    notes: list[str] = Field(default_factory=list)

    @property
    def id(self) -> tuple[Any, ...]:
        """What tells it from every other row of a run."""
        return self.study, tuple(sorted(self.keys.items())), self.variant

    @property
    def label(self) -> str:
        """For a reader: "gat_layer, 58x776: PyG"."""
        return ", ".join([self.study, *map(str, self.keys.values())]) + f": {self.variant}"

    def get(self, name: str) -> Any:
        """The value of a key or of a field; None where it has neither."""
        return self.keys[name] if name in self.keys else getattr(self, name, None)

    @property
    def estimate(self) -> Estimate:
        if self.value is None:
            raise GnnlabError(f"{self.label} has no value: {self.reason}")
        return Estimate(self.value, self.low, self.high, self.n)

    @property
    def gain(self) -> Estimate | None:
        """How many times as fast as the baseline; None of what was not compared."""
        return None if self.ratio is None else Estimate(self.ratio, self.ratio_low, self.ratio_high, self.n)

    @model_validator(mode="after")
    def _consistent(self) -> Row:
        if self.status != "ok":
            if not self.reason:
                raise ValueError(f"{self.status}, which needs a reason")
            return self
        if self.value is None or self.n < 1:
            raise ValueError(f"status 'ok' and value {self.value} of n = {self.n}")
        if (self.ratio is None) != (self.baseline is None):
            raise ValueError("a ratio needs its baseline, and a baseline its ratio")
        _ = self.estimate, self.gain  # an `Estimate` refuses a value outside of its interval
        kind, measured = self.interval, self.origin is Origin.MEASURED
        of_one = measured and (kind is Interval.EXACT or (kind is Interval.CONFIDENCE and self.n < 2))
        if of_one or (self.low is None) != (kind is Interval.NONE):
            raise ValueError(f"{self.origin.value}, with n = {self.n}, has no interval of kind {kind.value!r}")
        return self


FIELDS = tuple(Row.model_fields)


def row(**fields: Any) -> Row:
    """A row from its fields, where NaN and None say that a field is absent. Without `low` there is no interval, and
    what is not "ok" has no number. Notes may be one text, parts joined by "; ".

    Raises `GnnlabError`: a field is missing, unknown, or contradicts another; in one line.
    """
    given = {name: plain for name, value in fields.items() if (plain := _plain(value)) is not None}
    if given.get("status", "ok") != "ok":
        given = {"statistic": "single", **given, "value": None, "low": None, "high": None, "n": 0}
        given["interval"] = Interval.NONE
    elif given.get("interval") == Interval.EXACT:
        given["low"] = given["high"] = given.get("value")
    elif "low" not in given or "high" not in given:
        given |= {"low": None, "high": None, "interval": Interval.NONE}
    if isinstance(given.get("notes"), str):
        given["notes"] = [part for part in given["notes"].split("; ") if part]
    try:
        return Row(**given)
    except ValidationError as error:
        wrong = ": ".join(filter(None, first_wrong(error)))
        raise GnnlabError(f"row of {given.get('study')}, {given.get('variant')}: {wrong}") from None


def of_estimate(estimate: Estimate) -> dict[str, Any]:
    """Value, interval and n of an estimate, as fields of a row."""
    kind = Interval.NONE if estimate.low is None else Interval.CONFIDENCE
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n, "interval": kind}


def _plain(value: Any) -> Any:
    """Without numpy's types; NaN is no value."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


class Table:
    """Rows in the order in which they came, each with its samples where it has some."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = {each.id: each for each in rows}
        self._samples: dict[tuple[Any, ...], np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def put(self, row: Row, samples: Sequence[float] | None = None) -> None:
        """Add a row, in place of one with the same study, keys and variant: a cell of a notebook may run again."""
        values = np.asarray([] if samples is None else samples, dtype=float)
        if len(values) and row.status == "ok" and len(values) != row.n:
            raise GnnlabError(f"{row.label}: {len(values)} samples, and n = {row.n}")
        self._rows[row.id] = row
        self._samples.pop(row.id, None)
        if len(values):
            self._samples[row.id] = values

    def samples_of(self, row: Row) -> np.ndarray | None:
        """(n,) in the row's unit; of the variants of a race in one cell, the i-th of each are of the same round."""
        return self._samples.get(row.id)

    def select(self, study: str, variant: str | None = None, where: Mapping[str, Any] | None = None) -> list[Row]:
        """The rows of a study, of one variant if named, whose keys have the values (or one of a list) in `where`."""
        of_study = [each for each in self if each.study == study and variant in (None, each.variant)]
        return [each for each in of_study if all(fits(each.keys.get(key), w) for key, w in (where or {}).items())]

    def write_samples(self, path: Path) -> None:
        """Write the samples as Parquet (columns row, sample, value; `row` is the row's place in the table)."""
        columns = {"row": "int32", "sample": "int32", "value": "float64"}
        parts = [pd.DataFrame([], columns=[*columns])] * (not self._samples)
        for place, each in enumerate(self):
            if (values := self.samples_of(each)) is not None:
                parts.append(pd.DataFrame({"row": place, "sample": np.arange(len(values)), "value": values}))
        frame = pd.concat(parts).astype(columns)
        write_atomically(path, lambda file: frame.to_parquet(file, index=False, compression="zstd"), mode="wb")

    def read_samples(self, path: Path) -> None:
        """Take the samples of the rows from what `write_samples` wrote. Raises `GnnlabError` where it did not."""
        rows = list(self)
        try:
            for place, part in pd.read_parquet(path).groupby("row", sort=False):
                if place not in range(len(rows)):
                    raise LookupError
                values = part["value"].to_numpy()
                if not np.isfinite(values).all():
                    raise GnnlabError(f"{rows[place].label}: one of its samples is no finite number")
                self.put(rows[place], values)
        except (OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
            reason = str(error) if isinstance(error, GnnlabError) else getattr(error, "strerror", None)
            reason = reason or "they are not those of their result file"
            raise GnnlabError(f"could not read the samples {path}: {reason}; run the notebook again") from None


def over_baseline(rows: Iterable[Row], *, everywhere: bool = False) -> dict[str, Estimate]:
    """Each variant over the baseline, the geometric mean over the cells in which it ran.

    With `everywhere` only those variants that ran in as many cells as any other.
    """
    cells: dict[str, list[Estimate]] = {}
    for each in rows:
        if each.status == "ok" and each.gain is not None:
            cells.setdefault(each.variant, []).append(each.gain)
    most = max(map(len, cells.values()), default=0)
    return {variant: estimates.geometric_mean(of) for variant, of in cells.items() if len(of) == most or not everywhere}


def fits(value: Any, wanted: Any) -> bool:
    """Is it the wanted value, or one of several?"""
    return value in wanted if isinstance(wanted, list | tuple | set) else value == wanted
