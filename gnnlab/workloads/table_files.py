"""A user's own table: columns of categories and targets from `.csv`, `.tsv` or `.parquet`.

Nothing in a file is ever unpickled. What is wrong with it is a `GnnlabError` that names file and column; what had
to be filled in or left out stands in `FeatureTable.notes`. What a file of any kind would take is judged by what it
declares, before anything of it is allocated or parsed whole.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from gnnlab.errors import GnnlabError, meant, one_line, shown
from gnnlab.workloads.tables import FeatureTable, Target

SHARE = 0.5  # of the memory that is free, for what one file holds
LONGEST_LINE = 2**20  # bytes of a first line
MOST_COLUMNS = 10_000
_TEXT_FACTOR = 20  # bytes of memory for each of a text file, while its cells are Python's


def judge(path: Path, size_bytes: int, what: str) -> None:
    """Raises `GnnlabError` where `what` a file holds takes more than half of the memory that is free."""
    free = psutil.virtual_memory().available
    if size_bytes > SHARE * free:
        raise GnnlabError(
            f"{path}: {what} would take {size_bytes / 1e9:,.1f} GB and do not fit into memory: {free / 1e9:.1f} GB are "
            f"free, of which {100 * SHARE:.0f} % may be used; give a smaller file"
        )


def judge_text(path: Path, most_columns: int = MOST_COLUMNS) -> None:
    """Raises `GnnlabError` where a text file is too large, or its first line too long or of too many columns."""
    judge(path, path.stat().st_size * _TEXT_FACTOR, "its cells")
    with path.open("rb") as file:
        first = file.readline(LONGEST_LINE + 1)
    columns = 1 + first.count(b"\t" if path.suffix.lower() == ".tsv" else b",")
    if len(first) > LONGEST_LINE or columns > max(most_columns, MOST_COLUMNS):
        raise GnnlabError(
            f"{path}: its first line has {'at least ' * (len(first) > LONGEST_LINE)}{columns:,} columns; at most "
            f"{most_columns:,} are understood"
        )


_CELL_BYTES = 60  # of a cell as Python's text
SEPARATOR = ";"  # of the labels in one cell
ROWS_A_CLASS = 2  # fewer rows a class on average: the column is text or an identifier
MOST_FRACTIONS = 10  # more different numbers with a fraction: the column is a quantity
MISSING = ("", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "NULL", "null", "None")
WHOLE = r"[+-]?[0-9]+(\.0*)?"  # a column of integers is written as 1.0 where a cell is missing
TEXT_OR_NUMBERS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_null,
)
SUFFIXES = {".csv": ",", ".tsv": "\t"}


def load(path: str | Path, *, fields: Sequence[str], targets: Sequence[str]) -> FeatureTable:
    """The table in the file; `fields` and `targets` are names of columns, of which text and integers are taken.

    Categories and classes are numbered in ascending order; index 0 of a field is for missing values. A target with a
    `;` in any cell is multi-label: `pain;rash` are two labels, a separator alone is none. Rows without a target and
    fields with one value only are left out, and `notes` says so.
    Raises `GnnlabError`: no such file or column, a file of another kind, text or quantities as a target, one class
    only.

    >>> table = load("rows.csv", fields=["drug", "gene"], targets=["outcome"])
    """
    path = Path(path)
    fields, targets = _names(path, "fields", fields), _names(path, "targets", targets)
    columns, notes = _answered(path, read_columns(path, [*fields, *targets]), targets)
    found = {name: _target(path, columns[name]) for name in targets}
    categories = {name: _ascending(columns[name].dropna().unique()) for name in fields}
    for name, values in categories.items():
        _require_no_quantity(path, f"field {name!r}", values)
    constant = [name for name in fields if columns[name].nunique(dropna=False) < 2]
    if len(constant) == len(fields):
        raise GnnlabError(f"{path}: every field holds one value only ({', '.join(fields)}); choose fields that vary")
    notes += [f"field {name} is left out: it holds one value only" for name in constant]
    rare = [name for name in fields if len(categories[name]) * ROWS_A_CLASS > len(columns) and name not in constant]
    notes += [
        f"field {name} has {len(categories[name])} different values in {len(columns)} rows, as a date or an identifier "
        "has; hardly anything can be learned from it, so cut it into fewer (month, weekday, group)"
        for name in rare
    ]
    for spec, _ in found.values():
        if spec.kind == "labels":
            notes.append(f"target {spec.name} is read as {spec.size} labels separated by {SEPARATOR!r}")
    kept = [name for name in fields if name not in constant]
    indices = [pd.Index(categories[name]).get_indexer(columns[name]) + 1 for name in kept]  # missing is -1, and so 0
    for name, index in zip(kept, indices, strict=True):
        if missing := int((index == 0).sum()):
            notes.append(f"field {name}: {missing} of {len(columns)} values missing, read as index 0")
    return FeatureTable(
        fields=torch.from_numpy(np.stack(indices, axis=1).astype(np.int64)),
        targets={name: column for name, (_, column) in found.items()},
        specs=tuple(spec for spec, _ in found.values()),
        cardinalities=tuple(len(categories[name]) + 1 for name in kept),
        field_names=tuple(kept),
        notes=tuple(notes),
    )


def _names(path: Path, what: str, names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not names:
        there = shown(", ".join(opened(path, READERS, "table", _header)))
        raise GnnlabError(
            f"{path}: {what} must name one column or more, as [name, name], got {shown(names)}; the file has {there}"
        )
    return list(names)


def _answered(path: Path, columns: pd.DataFrame, targets: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """The rows that have every target."""
    notes = []
    for name in targets:
        out = columns[name].isna().to_numpy()
        if out.all():
            raise GnnlabError(f"{path}: no row is left: in each of {len(out)}, target {name} is missing")
        if out.any():
            notes.append(f"{int(out.sum())} of {len(out)} rows are left out: target {name} is missing")
            columns = columns[~out]
    return columns, notes


def _target(path: Path, column: pd.Series) -> tuple[Target, Tensor]:
    """What a column asks for, and its answers: classes (R,) or labels (R, size)."""
    kind = "labels" if column.str.contains(SEPARATOR, regex=False).any() else "classes"
    codes, cells = pd.factorize(column)
    if kind == "classes":
        answers = [[cell] for cell in cells]
    else:
        answers = [[label for part in cell.split(SEPARATOR) if (label := part.strip())] for cell in cells]
    values = _ascending({value for answer in answers for value in answer})
    _require_target(path, column, kind, values, answers)
    holds = torch.zeros(len(answers), len(values))
    place = {value: index for index, value in enumerate(values)}
    for row, answer in enumerate(answers):
        holds[row, [place[value] for value in answer]] = 1
    spec = Target(column.name, kind, len(values))
    return spec, (holds.argmax(dim=1) if kind == "classes" else holds)[codes]


def _require_target(path: Path, column: pd.Series, kind: str, values: list[str], answers: list[list[str]]) -> None:
    what = f"target {column.name!r}"
    _require_no_quantity(path, what, values)
    if kind == "labels" and len(set(map(frozenset, answers))) < 2:
        raise GnnlabError(f"{path}: {what} holds the same labels in all {len(column)} rows; nothing can be learned")
    if kind == "classes" and len(values) < 2:
        raise GnnlabError(
            f"{path}: {what} holds one class only ({shown(values[0])}) in {len(column)} rows; 2 are needed"
        )
    if len(values) > 2 and len(values) * ROWS_A_CLASS > len(column):
        whole = all(re.fullmatch(WHOLE, value) for value in values)
        looks, do = (
            ("a quantity or an identifier", "cut a quantity into ranges first (pandas.qcut)")
            if whole
            else ("text or an identifier", "")
        )
        raise GnnlabError(
            f"{path}: {what} looks like {looks}: {len(values)} different {kind} in {len(column)} rows; "
            f"{ROWS_A_CLASS} rows or more for each are needed on average{do and f', so {do}'}"
        )


def _require_no_quantity(path: Path, what: str, values: list[str]) -> None:
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
    fractions = numbers[numbers % 1 != 0]
    if numbers.notna().all() and len(fractions) > MOST_FRACTIONS:
        raise GnnlabError(
            f"{path}: {what} is a quantity (such as {fractions.iloc[0]:g}), categories are needed; "
            "cut it into ranges first (pandas.qcut)"
        )


def _ascending(values: Sequence[str] | set[str]) -> list[str]:
    """Integers by their size, anything else as text."""
    values = list(values)
    try:
        return sorted(values, key=lambda value: (int(value), value))
    except ValueError:
        return sorted(values)


# ---- columns as text, whichever kind of file it is ------------------------------------------------------------------


def read_columns(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """The named columns as stripped text, missing where a cell says nothing; one row a row of the file.

    Raises `GnnlabError` in one line that begins with the path.
    """
    columns = opened(path, READERS, "table", lambda path: READERS[path.suffix.lower()](path, names))
    if columns.empty:
        raise GnnlabError(f"{path}: the table has no rows; at least one is needed")
    return columns.apply(_clean)


def opened(path: Path, readers: Mapping[str, Any], what: str, read: Callable[[Path], Any]) -> Any:
    """What `read` makes of a file of a `what`, or one line on why it cannot be read; `readers` by the suffixes allowed.

    Raises `GnnlabError`: no such file, another suffix, what the system refuses, too little memory.
    """
    try:
        if path.is_dir():
            raise GnnlabError(f"{path}: is a folder; give the path of a file")
        if not path.exists():
            raise GnnlabError(f"{path}: there is no such file; check the path (the current folder is {Path.cwd()})")
        if path.suffix.lower() not in readers:
            raise GnnlabError(f"{path}: a {what} file ends in {', '.join(readers)}, not in {shown(path.suffix)}")
        return read(path)
    except OSError as error:
        raise GnnlabError(f"{path}: cannot be read: {one_line(error)}") from error
    except MemoryError as error:
        raise GnnlabError(f"{path}: the {what} does not fit into memory") from error


def _header(path: Path) -> list[str]:
    """The names of all columns; none where the file cannot tell them."""
    kind = path.suffix.lower()
    if kind != ".parquet":
        judge_text(path)
    try:
        if kind == ".parquet":
            return pq.read_schema(path).names
        return [str(name) for name in pd.read_csv(path, sep=SUFFIXES[kind], nrows=0, encoding="utf-8-sig")]
    except (ValueError, pa.ArrowException):
        return []


def _read_text(path: Path, names: Sequence[str]) -> pd.DataFrame:
    options = {"sep": SUFFIXES[path.suffix.lower()], "dtype": object, "keep_default_na": False, "encoding": "utf-8-sig"}
    judge_text(path)
    try:
        with warnings.catch_warnings():  # rows that are longer than the header are cut with a warning only
            warnings.simplefilter("error", pd.errors.ParserWarning)
            head = pd.read_csv(path, header=None, nrows=1, **options)
            header = [str(name).strip() for name in head.iloc[0]]
            places = _places(path, header, names)
            rows = pd.read_csv(path, header=0, names=range(len(header)), index_col=False, **options)
    except pd.errors.EmptyDataError as error:
        raise GnnlabError(f"{path}: the file is empty; a header with names of columns and rows are needed") from error
    except UnicodeDecodeError as error:
        raise GnnlabError(f"{path}: is no text in UTF-8 ({one_line(error)}); save it as UTF-8 or Parquet") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise GnnlabError(f"{path}: its rows do not fit its header ({one_line(error)})") from error
    return rows[places].set_axis(list(names), axis=1)


def _read_parquet(path: Path, names: Sequence[str]) -> pd.DataFrame:
    try:
        with pq.ParquetFile(path) as file:
            places = _places(path, file.schema_arrow.names, names)
            cells = file.metadata.num_rows * len(places)
            judge(path, cells * _CELL_BYTES, f"{cells:,} cells")
            table = file.read(columns=[file.schema_arrow.names[place] for place in places])
    except pa.ArrowException as error:
        raise GnnlabError(f"{path}: is no Parquet file ({one_line(error)})") from error
    return pd.DataFrame({name: _as_text(path, name, table[name]) for name in names})


def _as_text(path: Path, name: str, column: pa.ChunkedArray) -> pd.Series:
    """Values as pandas writes them into a CSV, so that both kinds of file give the same categories."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(holds(kind) for holds in TEXT_OR_NUMBERS):
        raise GnnlabError(f"{path}: column {name!r} holds {kind}; text, numbers or booleans are needed")
    return pd.Series([None if value is None else str(value) for value in column.to_pylist()], dtype=object)


def _places(path: Path, header: Sequence[str], names: Sequence[str]) -> list[int]:
    """Where the named columns are; each is there once, and asked for once."""
    for name in names:
        if list(names).count(name) > 1:
            raise GnnlabError(f"column {name!r} is asked for twice; name each field and target once")
        if header.count(name) > 1:
            raise GnnlabError(f"{path}: {header.count(name)} columns are named {name!r}; names must differ")
        if name not in header:
            there = f"there are {shown(', '.join(header))}"
            raise GnnlabError(f"{path}: there is no column {name!r}{meant(name, header)}; {there}")
    return [header.index(name) for name in names]


def _clean(column: pd.Series) -> pd.Series:
    column = column.astype(object).map(lambda cell: cell.strip() if isinstance(cell, str) else None)
    column = column.mask(column.isin(MISSING), None)
    present = column.dropna()
    if len(present) and present.str.fullmatch(WHOLE).all() and present.str.contains(".", regex=False).any():
        column = column.str.replace(r"\.0*$", "", regex=True)
    return column


READERS: dict[str, Callable[[Path, Sequence[str]], pd.DataFrame]] = {
    ".csv": _read_text,
    ".tsv": _read_text,
    ".parquet": _read_parquet,
}
