"""A table of categorical columns and what is to be predicted from them, as tensors in memory, and how well it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from gnnlab.errors import GnnlabError, shown

KINDS = ("classes", "labels")


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
            raise GnnlabError(f"a target needs a name, got {shown(self.name)}")
        if self.kind not in KINDS:
            raise GnnlabError(f"target {self.name!r}: kind must be one of {', '.join(KINDS)}, got {shown(self.kind)}")
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < least:
            raise GnnlabError(f"target {self.name!r}: {least} or more {self.kind} are needed, got {shown(self.size)}")


@dataclass(frozen=True)
class Scores:
    """A metric in 0..1 by target: accuracy for classes, mean area under the ROC curve (AUROC) for labels.

    `left_out` counts labels of which only one answer occurs; they have no AUROC, nor has a target of such labels alone.
    """

    by_target: dict[str, float]
    left_out: int

    @property
    def score(self) -> float:
        """The mean over the targets."""
        return float(np.mean(list(self.by_target.values())))


def scores(outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], specs: Sequence[Target]) -> Scores:
    """Logits or probabilities (R, size) against (R,) classes or (R, size) labels, each by target name.

    Raises `GnnlabError` where one of them is nan.
    """
    from sklearn.metrics import roc_auc_score  # over a second to load, and classes need none

    by_target, left_out = {}, 0
    for spec in specs:
        found, wanted = outputs[spec.name].detach().float().cpu(), targets[spec.name].cpu()
        if found.isnan().any():
            raise GnnlabError(f"target {spec.name}: outputs are nan, which have no score; lower the learning rate")
        if spec.kind == "classes":
            by_target[spec.name] = float((found.argmax(dim=1) == wanted).double().mean())
            continue
        varied = (wanted != wanted[0]).any(dim=0)
        left_out += int((~varied).sum())
        if varied.any():
            by_target[spec.name] = float(roc_auc_score(wanted[:, varied].numpy(), found[:, varied].numpy()))
    return Scores(by_target, left_out)


@dataclass(frozen=True)
class FeatureTable:
    """R rows of M categorical fields and T targets.

    Raises `GnnlabError` where shapes, types or ranges do not fit together.
    """

    fields: Tensor  # (R, M) int64; column m holds 0..cardinalities[m]-1; in a user's table 0 is missing
    targets: Mapping[str, Tensor]  # by Target.name; shapes and types as in Target
    specs: tuple[Target, ...]
    cardinalities: tuple[int, ...]
    field_names: tuple[str, ...]
    truth: Mapping[str, Tensor] | None = field(default=None, repr=False)  # (R, size) true probabilities, where known
    notes: tuple[str, ...] = ()  # what was left out or filled in when the table was read, a sentence each

    def __post_init__(self) -> None:
        _check_fields(self)
        names = [spec.name for spec in self.specs]
        if not names or len(set(names)) < len(names) or set(self.targets) != set(names):
            raise GnnlabError(f"a table needs one column for each target {names}, got {shown(list(self.targets))}")
        for spec in self.specs:
            _check_target(spec, self.targets[spec.name], len(self))

    def __len__(self) -> int:
        return self.fields.shape[0]

    def __str__(self) -> str:
        """For a reader: rows, fields with the categories that occur, targets with their sizes, and the notes."""
        columns = zip(self.field_names, self.fields.unbind(1), strict=True)
        fields = ", ".join(f"{name} ({len(column.unique()):,} categories)" for name, column in columns)
        targets = ", ".join(f"{spec.name} ({spec.size} {spec.kind})" for spec in self.specs)
        return ". ".join([f"{len(self):,} rows. Fields: {fields}. Targets: {targets}", *self.notes]) + "."

    @property
    def best_score(self) -> dict[str, float] | None:
        """What the true probabilities score on these rows, by target: no model does better but by luck.

        None where the truth is not known; a target that has no AUROC is left out.
        """
        return None if self.truth is None else scores(self.truth, self.targets, self.specs).by_target

    def rows(self, index: Tensor) -> FeatureTable:
        """The table of these rows; `index` int64 (K,)."""
        return replace(
            self,
            fields=self.fields[index],
            targets={name: column[index] for name, column in self.targets.items()},
            truth=None if self.truth is None else {name: p[index] for name, p in self.truth.items()},
        )

    def split(self, validation: float, seed: int) -> tuple[FeatureTable, FeatureTable]:
        """Rows to train on, and the share `validation` (above 0, below 1) of the rows, drawn by `seed`, to validate."""
        if not isinstance(validation, (int, float)) or not 0 < validation < 1:
            raise GnnlabError(f"validation must be a share of the rows above 0 and below 1, got {shown(validation)}")
        kept = round(len(self) * validation)
        if not 0 < kept < len(self):
            raise GnnlabError(f"{len(self)} rows cannot be split: {validation} of them for validation are {kept} rows")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self.rows(order[kept:].sort().values), self.rows(order[:kept].sort().values)


def _check_fields(table: FeatureTable) -> None:
    fields, sizes = table.fields, table.cardinalities
    if not isinstance(fields, Tensor) or fields.dtype != torch.int64 or fields.dim() != 2 or not fields.numel():
        raise GnnlabError(
            f"the fields of a table are int64 of shape (rows, fields), at least one of each, got {_kind_of(fields)}"
        )
    if not len(sizes) == len(table.field_names) == fields.shape[1]:
        counts = f"{len(sizes)} cardinalities and {len(table.field_names)} names"
        raise GnnlabError(f"the table has {fields.shape[1]} fields, but {counts}; give one of each a field")
    for name, size, column in zip(table.field_names, sizes, fields.unbind(dim=1), strict=True):
        _check_range(f"field {name!r}", column, size)


def _check_target(spec: Target, column: Tensor, rows: int) -> None:
    shape, dtype = ((rows,), torch.int64) if spec.kind == "classes" else ((rows, spec.size), torch.float32)
    if not isinstance(column, Tensor) or tuple(column.shape) != shape or column.dtype != dtype:
        needed = f"target {spec.name!r} ({spec.kind}) must be {dtype} of shape {shape}"
        raise GnnlabError(f"{needed}, got {_kind_of(column)}")
    if spec.kind == "classes":
        _check_range(f"target {spec.name!r}", column, spec.size)
    elif len(wrong := column[(column != 0) & (column != 1)]):  # NaN is neither
        raise GnnlabError(f"target {spec.name!r} holds {wrong[0].item()}; labels are 0 or 1")


def _check_range(what: str, column: Tensor, size: int) -> None:
    low, high = column.min().item(), column.max().item()
    if low < 0 or high >= size:
        raise GnnlabError(f"{what} holds {low if low < 0 else high}; 0..{size - 1} are allowed")


def _kind_of(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
