"""The one table: every number of the lab is a row, with its samples beside it.

    table = Table()
    table.put(Row(study="gat_layer", keys={"size": "58/776"}, form="PyG", ...), samples=[1.22, 1.25, ...])
    table.select("gat_layer", where={"size": "58/776"})
    table.samples_of(row)                     # (n,), of a race one a round

A raced form, a cell of the campaign, an epoch, an executed plan, a prediction, a count: all have these fields. None of
them has a default that could be untrue, and a row that contradicts itself is refused with `GnnlabError`.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gnnlab.errors import GnnlabError, first_wrong
from gnnlab.files import write_atomically
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate


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

    `keys` say of what it is (the size of a graph, a stage, a batch), `form` what is compared. `value` is the
    `statistic` of `n` samples in `unit`, `low` and `high` the ends of its `interval`. A comparison also has `ratio`,
    baseline over form (above 1: the form is faster or smaller). `device` is the chip that computed.
    """

    study: str = Field(min_length=1)
    keys: dict[str, str | int | float]
    form: str = Field(min_length=1)
    status: Literal["ok", "unavailable", "failed", "timeout"]
    reason: str | None
    origin: Origin
    statistic: Literal["median", "mean", "p95", "share", "single", "estimate", "count"]
    value: float | None
    low: float | None
    high: float | None
    interval: Interval
    n: int = Field(ge=0)
    unit: str
    better: Literal["lower", "higher", "neither"]
    baseline: str | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    parity_error: float | None
    device: str = Field(min_length=1)
    runtime: str
    precision: str
    threads: int = Field(ge=0)  # 0: none of a CPU
    notes: list[str]

    @property
    def id(self) -> tuple[Any, ...]:
        """What tells it from every other row of a run."""
        return self.study, tuple(sorted(self.keys.items())), self.form

    @property
    def label(self) -> str:
        """For a reader: "gat_layer, 58/776: PyG"."""
        return ", ".join([self.study, *map(str, self.keys.values())]) + f": {self.form}"

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
                raise ValueError(f"{self.label} is {self.status!r} without a reason")
            if self.value is not None or self.n:
                raise ValueError(f"{self.label} is {self.status!r} and has a value or samples")
            return self
        if self.value is None or self.n < 1:
            raise ValueError(f"{self.label} has status 'ok' and value {self.value} of n = {self.n}")
        _check_ends(self.label, self.value, self.low, self.high, self.interval)
        if self.interval is Interval.EXACT and self.origin is Origin.MEASURED:
            raise ValueError(f"{self.label} is measured, and no measured number is exact")
        if self.interval is Interval.CONFIDENCE and self.origin is Origin.MEASURED and self.n < 2:
            raise ValueError(f"{self.label}: one sample has no 95 % interval")
        if (self.ratio is None) != (self.baseline is None):
            raise ValueError(f"{self.label}: a ratio needs its baseline, and a baseline its ratio")
        if self.ratio is not None:
            ends = Interval.NONE if self.ratio_low is None else Interval.CONFIDENCE
            _check_ends(f"{self.label}, ratio", self.ratio, self.ratio_low, self.ratio_high, ends)
        return self


def _check_ends(label: str, value: float, low: float | None, high: float | None, kind: Interval) -> None:
    if (low is None) != (high is None) or (low is None) != (kind is Interval.NONE):
        raise ValueError(f"{label}: the interval {low} to {high} does not fit its kind, {kind.value!r}")
    if low is not None and not low <= value <= high:
        raise ValueError(f"{label}: the value {value} lies outside of its interval, {low} to {high}")
    if kind is Interval.EXACT and not low == value == high:
        raise ValueError(f"{label}: exact, yet {low} to {high} around {value}")


FIELDS = tuple(Row.model_fields)
_OPTIONAL = {  # what a row may leave out: there is none of it
    "reason": None,
    "baseline": None,
    "ratio": None,
    "ratio_low": None,
    "ratio_high": None,
    "parity_error": None,
    "notes": [],
    "keys": {},
    "status": "ok",
}


def row(**fields: Any) -> Row:
    """A row from its fields; those that may be absent (reason, ratio, parity error, notes) can be left out, and so can
    value, low, high and n of a row that is not "ok". Where `low` is missing or NaN there is no interval.
    Raises `GnnlabError`: a field is missing, unknown, or contradicts another; in one line.
    """
    plain = {name: _plain(value) for name, value in fields.items()}
    given = {**_OPTIONAL, "value": None, **{name: value for name, value in plain.items() if value is not None}}
    if given["status"] != "ok":
        given |= {"value": None, "low": None, "high": None, "n": 0, "interval": Interval.NONE}
        given.setdefault("statistic", "single")
    elif given.get("interval") in (Interval.EXACT, "exact"):
        given |= {"low": given.get("value"), "high": given.get("value")}
    elif given.get("low") is None or given.get("high") is None:
        given |= {"low": None, "high": None, "interval": Interval.NONE}
    if isinstance(given["notes"], str):
        given["notes"] = [part for part in given["notes"].split("; ") if part]
    try:
        return Row(**given)
    except ValidationError as error:
        wrong = ": ".join(filter(None, first_wrong(error)))
        raise GnnlabError(f"row of {given.get('study')}, {given.get('form')}: {wrong}") from None


def _plain(value: Any) -> Any:
    """Without numpy's types; NaN is no value."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


class Table:
    """Rows in the order in which they came, each with its samples where it has some."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._samples: dict[tuple[Any, ...], np.ndarray] = {}
        for each in rows:
            self.put(each)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def put(self, row: Row, samples: Sequence[float] | None = None) -> None:
        """Add a row, in place of one with the same study, keys and form: a cell of a notebook may run again."""
        self._rows[row.id] = row
        self._samples.pop(row.id, None)
        if samples is not None and len(samples):
            values = np.asarray(samples, dtype=float)
            if row.status == "ok" and len(values) != row.n:
                raise GnnlabError(f"{row.label}: {len(values)} samples, and n = {row.n}")
            self._samples[row.id] = values

    def samples_of(self, row: Row) -> np.ndarray | None:
        """(n,) in the row's unit; of the forms of a race in one cell, the i-th of each are of the same round."""
        return self._samples.get(row.id)

    def select(self, study: str, form: str | None = None, where: Mapping[str, Any] | None = None) -> list[Row]:
        """The rows of a study, of one form if named, whose keys have the values (or one of a list) in `where`."""
        return [
            each
            for each in self
            if each.study == study
            and (form is None or each.form == form)
            and all(fits(each.keys.get(key), wanted) for key, wanted in (where or {}).items())
        ]

    def write_samples(self, path: Path) -> str:
        """Write the samples as Parquet (columns row, sample, value; `row` is the row's place in the table).

        Returns the SHA-256 of the file, for the result file. Raises `GnnlabError`.
        """
        places = [place for place, each in enumerate(self) if each.id in self._samples]
        columns = [self._samples[each.id] for each in self if each.id in self._samples]
        counts = [len(values) for values in columns]
        content = pa.table(
            {
                "row": pa.array(np.repeat(places, counts).astype(np.int32)),
                "sample": pa.array(np.concatenate([np.arange(n) for n in counts] or [[]]).astype(np.int32)),
                "value": pa.array(np.concatenate(columns or [[]]).astype(np.float64)),
            }
        )
        buffer = io.BytesIO()
        pq.write_table(content, buffer, compression="zstd")
        write_atomically(path, lambda file: file.write(buffer.getvalue()), mode="wb")
        return hashlib.sha256(buffer.getvalue()).hexdigest()

    def read_samples(self, path: Path, digest: str) -> None:
        """Take the samples of the rows from the file of `write_samples`, which returned `digest`.

        Raises `GnnlabError`: it is missing, or another file.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise GnnlabError(f"could not read the samples {path}: {error.strerror}; run the notebook again") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise GnnlabError(f"the samples {path} are not those of their result file; run the notebook again")
        frame = pq.read_table(io.BytesIO(content)).to_pandas()
        rows = list(self)
        for place, part in frame.groupby("row", sort=False):
            self._samples[rows[place].id] = part["value"].to_numpy()


def over_baseline(rows: Iterable[Row], *, everywhere: bool = False) -> dict[str, Estimate]:
    """Each form over the baseline, the geometric mean over the cells in which it ran.

    With `everywhere` only those forms that ran in as many cells as any other.
    """
    cells: dict[str, list[Estimate]] = {}
    for each in rows:
        if each.status == "ok" and each.gain is not None:
            cells.setdefault(each.form, []).append(each.gain)
    most = max(map(len, cells.values()), default=0)
    return {form: estimates.geometric_mean(of) for form, of in cells.items() if len(of) == most or not everywhere}


def fits(value: Any, wanted: Any) -> bool:
    """Is it the wanted value, or one of several?"""
    return value in wanted if isinstance(wanted, list | tuple | set) else value == wanted
