"""A table of categorical columns and what is to be predicted from them, as tensors in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from gnnlab.workloads.errors import shown
from gnnlab.workloads.vocabulary import KINDS, TableError, Vocabulary


@dataclass(frozen=True)
class Target:
    """One thing to predict.

    `kind` "classes": one of `size` classes, int64 (R,); "labels": `size` independent yes/no labels, float32 (R, size).
    """

    name: str
    kind: str  # classes|labels
    size: int

    def __post_init__(self) -> None:
        least = 2 if self.kind == "classes" else 1
        if not isinstance(self.name, str) or not self.name:
            raise TableError(f"a target needs a name, got {shown(self.name)}")
        if self.kind not in KINDS:
            raise TableError(f"target {self.name!r}: kind must be one of {', '.join(KINDS)}, got {shown(self.kind)}")
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < least:
            raise TableError(f"target {self.name!r}: {least} or more {self.kind} are needed, got {shown(self.size)}")


@dataclass(frozen=True)
class Table:
    """R rows of M categorical fields and T targets.

    Raises `TableError` where shapes, types or ranges do not fit together.
    """

    fields: Tensor  # (R, M) int64; column m holds 0..cardinalities[m]-1; in a user's table 0 is missing or unseen
    targets: Mapping[str, Tensor]  # by Target.name; shapes and types as in Target
    specs: tuple[Target, ...]
    cardinalities: tuple[int, ...]
    field_names: tuple[str, ...]
    truth: Mapping[str, Tensor] | None = field(default=None, repr=False)  # (R, size) true probabilities, where known
    vocabulary: Vocabulary | None = field(default=None, repr=False)  # what the indices stand for
    notes: tuple[str, ...] = ()  # what was left out or filled in when the table was read, a sentence each

    def __post_init__(self) -> None:
        _check_fields(self)
        names = [spec.name for spec in self.specs]
        if not names or len(set(names)) < len(names) or set(self.targets) != set(names):
            raise TableError(f"a table needs one column for each target {names}, got {shown(list(self.targets))}")
        for spec in self.specs:
            _check_target(spec, self.targets[spec.name], len(self))

    def __len__(self) -> int:
        return self.fields.shape[0]

    @cached_property
    def best_score(self) -> dict[str, float] | None:
        """What the true probabilities score on these rows, by target: no model does better but by luck.

        Accuracy for classes; for labels the mean area under the ROC curve (AUROC) over the labels of which both
        answers occur. None where the truth is not known; a target without any such label is left out.
        """
        if self.truth is None:
            return None
        scores = {spec.name: _score(spec, self.truth[spec.name], self.targets[spec.name]) for spec in self.specs}
        return {name: score for name, score in scores.items() if score is not None}

    def rows(self, index: Tensor) -> Table:
        """The table of these rows; `index` int64 (K,)."""
        return replace(
            self,
            fields=self.fields[index],
            targets={name: column[index] for name, column in self.targets.items()},
            truth=None if self.truth is None else {name: p[index] for name, p in self.truth.items()},
        )

    def split(self, validation: float, seed: int) -> tuple[Table, Table]:
        """Rows to train on, and the share `validation` (above 0, below 1) of the rows, drawn by `seed`, to validate."""
        if not isinstance(validation, (int, float)) or not 0 < validation < 1:
            raise TableError(f"validation must be a share of the rows above 0 and below 1, got {shown(validation)}")
        kept = round(len(self) * validation)
        if not 0 < kept < len(self):
            raise TableError(f"{len(self)} rows cannot be split: {validation} of them for validation are {kept} rows")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self.rows(order[kept:].sort().values), self.rows(order[:kept].sort().values)


def _check_fields(table: Table) -> None:
    fields, sizes = table.fields, table.cardinalities
    if not isinstance(fields, Tensor) or fields.dtype != torch.int64 or fields.dim() != 2 or not fields.numel():
        got = f"{fields.dtype} {tuple(fields.shape)}" if isinstance(fields, Tensor) else type(fields).__name__
        raise TableError(f"the fields of a table are int64 of shape (rows, fields), at least one of each, got {got}")
    if not len(sizes) == len(table.field_names) == fields.shape[1]:
        counts = f"{len(sizes)} cardinalities and {len(table.field_names)} names"
        raise TableError(f"the table has {fields.shape[1]} fields, but {counts}; give one of each a field")
    least, most = fields.amin(dim=0).tolist(), fields.amax(dim=0).tolist()
    for name, size, low, high in zip(table.field_names, sizes, least, most, strict=True):
        if low < 0 or high >= size:
            raise TableError(f"field {name!r} holds {low if low < 0 else high}; 0..{size - 1} are allowed")


def _check_target(spec: Target, column: Tensor, rows: int) -> None:
    shape, dtype = ((rows,), torch.int64) if spec.kind == "classes" else ((rows, spec.size), torch.float32)
    if not isinstance(column, Tensor) or tuple(column.shape) != shape or column.dtype != dtype:
        got = f"{column.dtype} {tuple(column.shape)}" if isinstance(column, Tensor) else type(column).__name__
        raise TableError(f"target {spec.name!r} ({spec.kind}) must be {dtype} of shape {shape}, got {got}")
    if spec.kind == "labels":
        wrong = column[(column != 0) & (column != 1)]  # NaN is neither
        if wrong.numel():
            raise TableError(f"target {spec.name!r} holds {wrong[0].item()}; labels are 0 or 1")
        return
    low, high = column.min().item(), column.max().item()
    if low < 0 or high >= spec.size:
        raise TableError(f"target {spec.name!r} holds {low if low < 0 else high}; 0..{spec.size - 1} are allowed")


def _score(spec: Target, probabilities: Tensor, column: Tensor) -> float | None:
    if spec.kind == "classes":
        return (probabilities.argmax(dim=1) == column).double().mean().item()
    varied = [i for i in range(spec.size) if 0 < column[:, i].mean() < 1]
    areas = [roc_auc_score(column[:, i].numpy(), probabilities[:, i].numpy()) for i in varied]
    return sum(areas) / len(areas) if areas else None
