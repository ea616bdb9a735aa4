"""A user's own table: columns of categories and targets from `.csv`, `.tsv` or `.parquet`.

`load` learns what values there are; `load_as` reads another file by a vocabulary that was kept. Nothing in a file is
ever unpickled. What is wrong with one is a `TableError` that names the file and the column; what had to be filled in or
left out stands in `Table.notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gnnlab.workloads.errors import shown
from gnnlab.workloads.table_columns import read_columns
from gnnlab.workloads.tables import Table, Target
from gnnlab.workloads.vocabulary import TableError, TargetValues, Vocabulary

ROWS_A_CLASS = 2  # fewer rows a class on average: the column is text or an identifier
MOST_FRACTIONS = 10  # more different numbers with a fraction: the column is a quantity


def load(path: str | Path, *, fields: Sequence[str], targets: Sequence[str], separator: str = ";") -> Table:
    """The table in the file; `fields` and `targets` are names of columns, of which text and integers are taken.

    Categories and classes are numbered in ascending order; index 0 of a field is for missing values. A target with a
    `separator` in any cell is multi-label: `pain;rash` are two labels, a separator alone is none. Rows without a target
    and fields with one value only are left out, and `notes` says so. `vocabulary` of the result reads other files.

    Raises:
        TableError: no such file or column, a file of another kind, text or quantities as a target, one class only.

    >>> table = load("rows.csv", fields=["drug", "gene"], targets=["outcome"])
    >>> table.vocabulary.save("vocabulary.json")
    """
    path, fields, targets = Path(path), _names("fields", fields), _names("targets", targets)
    if not isinstance(separator, str) or not separator.strip():
        raise TableError(f"separator must be a character that is no blank, such as ';', got {shown(separator)}")
    columns, notes = _answered(path, read_columns(path, [*fields, *targets]), targets)
    found = {name: _target_values(path, columns[name], separator) for name in targets}
    categories = {name: _categories(path, columns[name]) for name in fields}
    constant = [name for name, values in categories.items() if columns[name].nunique(dropna=False) < 2]
    if len(constant) == len(fields):
        raise TableError(f"{path}: every field holds one value only ({', '.join(fields)}); choose fields that vary")
    notes += [f"field {name} is left out: it holds one value only" for name in constant]
    kept = {name: values for name, values in categories.items() if name not in constant}
    many = {name: len(target.values) for name, target in found.items() if target.kind == "labels"}
    notes += [f"target {name} is read as {count} labels separated by {separator!r}" for name, count in many.items()]
    return _table(path, columns, Vocabulary(fields=kept, targets=found, separator=separator), notes)


def load_as(path: str | Path, vocabulary: Vocabulary) -> Table:
    """The table in another file with the same columns, numbered as `vocabulary` says.

    Categories that it does not know become index 0, rows with a class or label that it does not know are left out;
    `notes` counts both. Raises `TableError` as `load` does.
    """
    path, targets = Path(path), list(vocabulary.targets)
    columns, notes = _answered(path, read_columns(path, [*vocabulary.fields, *targets]), targets)
    for name, target in vocabulary.targets.items():
        codes, answers = _answers(columns[name], target.kind, vocabulary.separator)
        strange = np.array([not set(target.values).issuperset(answer) for answer in answers])[codes]
        columns, notes = _without(path, columns, strange, f"target {name} is not in the vocabulary", notes)
    return _table(path, columns, vocabulary, notes)


def _names(what: str, names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not names:
        raise TableError(f"{what} must be a list of one name of a column or more, got {shown(names)}")
    return list(names)


def _table(path: Path, columns: pd.DataFrame, vocabulary: Vocabulary, notes: list[str]) -> Table:
    indices = []
    for name, categories in vocabulary.fields.items():
        index = pd.Index(categories).get_indexer(columns[name]) + 1  # unknown is -1, and so 0
        missing = int(columns[name].isna().sum())
        unseen = int((index == 0).sum()) - missing
        for count, what in ((missing, "missing"), (unseen, "not in the vocabulary")):
            if count:
                notes = [*notes, f"field {name}: {count} of {len(columns)} values {what}, read as index 0"]
        indices.append(index)
    return Table(
        fields=torch.from_numpy(np.stack(indices, axis=1).astype(np.int64)),
        targets={n: _target(columns[n], target, vocabulary.separator) for n, target in vocabulary.targets.items()},
        specs=tuple(Target(n, target.kind, len(target.values)) for n, target in vocabulary.targets.items()),
        cardinalities=tuple(len(categories) + 1 for categories in vocabulary.fields.values()),
        field_names=tuple(vocabulary.fields),
        vocabulary=vocabulary,
        notes=tuple(notes),
    )


def _answered(path: Path, columns: pd.DataFrame, targets: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """The rows that have every target."""
    notes: list[str] = []
    for name in targets:
        columns, notes = _without(path, columns, columns[name].isna().to_numpy(), f"target {name} is missing", notes)
    return columns, notes


def _without(
    path: Path, columns: pd.DataFrame, out: np.ndarray, why: str, notes: list[str]
) -> tuple[pd.DataFrame, list[str]]:
    if out.all():
        raise TableError(f"{path}: no row is left: in each of {len(out)}, {why}")
    if not out.any():
        return columns, notes
    return columns[~out], [*notes, f"{int(out.sum())} of {len(out)} rows are left out: {why}"]


def _categories(path: Path, column: pd.Series) -> list[str]:
    values = _ascending(column.dropna().unique())
    _require_no_quantity(path, f"field {column.name!r}", values)
    return values


def _target_values(path: Path, column: pd.Series, separator: str) -> TargetValues:
    kind = "labels" if column.str.contains(separator, regex=False).any() else "classes"
    answers = _answers(column, kind, separator)[1]
    values = _ascending({value for answer in answers for value in answer})
    what = f"target {column.name!r}"
    _require_no_quantity(path, what, values)
    if kind == "labels" and len(set(map(frozenset, answers))) < 2:
        raise TableError(f"{path}: {what} holds the same labels in all {len(column)} rows; nothing can be learned")
    if kind == "classes" and len(values) < 2:
        raise TableError(
            f"{path}: {what} holds one class only ({shown(values[0])}) in {len(column)} rows; 2 are needed"
        )
    if len(values) > 2 and len(values) * ROWS_A_CLASS > len(column):
        raise TableError(
            f"{path}: {what} looks like text or an identifier: {len(values)} different {kind} in {len(column)} rows; "
            f"{ROWS_A_CLASS} rows or more for each are needed on average"
        )
    return TargetValues(kind=kind, values=values)


def _require_no_quantity(path: Path, what: str, values: list[str]) -> None:
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
    fractions = numbers[numbers % 1 != 0]
    if numbers.notna().all() and len(fractions) > MOST_FRACTIONS:
        raise TableError(
            f"{path}: {what} is a quantity (such as {fractions.iloc[0]:g}), categories are needed; "
            "cut it into ranges first (pandas.qcut)"
        )


def _answers(column: pd.Series, kind: str, separator: str) -> tuple[np.ndarray, list[list[str]]]:
    """The different cells, each as the classes (one) or labels in it, and which of them each row holds."""
    codes, cells = pd.factorize(column)
    if kind == "classes":
        return codes, [[cell] for cell in cells]
    return codes, [[label for part in cell.split(separator) if (label := part.strip())] for cell in cells]


def _ascending(values: Sequence[str] | set[str]) -> list[str]:
    """Integers by their size, anything else as text."""
    values = list(values)
    try:
        return sorted(values, key=lambda value: (int(value), value))
    except ValueError:
        return sorted(values)


def _target(column: pd.Series, target: TargetValues, separator: str) -> Tensor:
    place = {value: index for index, value in enumerate(target.values)}
    codes, answers = _answers(column, target.kind, separator)
    if target.kind == "classes":
        return torch.tensor([place[value] for (value,) in answers])[codes]
    holds = torch.zeros(len(answers), len(place))
    for row, answer in enumerate(answers):
        holds[row, [place[label] for label in answer]] = 1
    return holds[codes]
