"""What the indices of a table stand for, so that another file can be read in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gnnlab.safe_files import write_json
from gnnlab.workloads.errors import one_line, shown

KINDS = ("classes", "labels")


class TableError(ValueError):
    """A table that cannot be had: a file, a column or values that are wrong."""


class TargetValues(BaseModel):
    """Classes or labels of one target; the value at place i has index i."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["classes", "labels"]
    values: list[str]


class Vocabulary(BaseModel):
    """Categories by field and values by target, in the order of the columns.

    The category at place i of a field has index i + 1: 0 is for what is missing or was not there when the vocabulary
    was made. `separator` stands between the labels of one cell.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    fields: dict[str, list[str]]
    targets: dict[str, TargetValues]
    separator: str

    @model_validator(mode="after")
    def _nothing_twice(self) -> Vocabulary:
        columns = self.fields | {name: target.values for name, target in self.targets.items()}
        twice = [name for name, values in columns.items() if len(set(values)) < len(values)]
        if twice:
            raise ValueError(f"column {twice[0]!r} names a value twice")
        if not self.fields or not self.targets or not self.separator:
            raise ValueError("fields, targets and a separator are needed")
        return self

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all (`FileError`)."""
        write_json(Path(path), self.model_dump())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what `save` wrote; raises `TableError` in one line that begins with the path."""
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise TableError(f"{path}: cannot be read: {one_line(error)}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise TableError(
                f"{path}: is no vocabulary ({place + ': ' if place else ''}{first['msg']}, got "
                f"{shown(first['input'])}); write one with Table.vocabulary.save"
            ) from error
        except ValueError as error:  # UnicodeDecodeError
            raise TableError(f"{path}: is no vocabulary ({one_line(error)})") from error
