"""Columns of a file as text, whichever kind of file it is."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gnnlab.workloads.errors import one_line, shown
from gnnlab.workloads.vocabulary import TableError

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


def read_columns(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """The named columns as stripped text, missing where a cell says nothing; one row a row of the file.

    Raises `TableError` in one line that begins with the path.
    """
    try:
        if path.is_dir():
            raise TableError(f"{path}: is a folder; give the path of a file")
        if not path.exists():
            raise TableError(f"{path}: there is no such file; check the path (the current folder is {Path.cwd()})")
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise TableError(f"{path}: a table file ends in {', '.join(READERS)}, not in {shown(path.suffix)}")
        columns = reader(path, names)
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {one_line(error)}") from error
    except MemoryError as error:
        raise TableError(f"{path}: the table does not fit into memory") from error
    if columns.empty:
        raise TableError(f"{path}: the table has no rows; at least one is needed")
    return columns.apply(_clean)


def _read_text(path: Path, names: Sequence[str]) -> pd.DataFrame:
    options = {"sep": SUFFIXES[path.suffix.lower()], "dtype": object, "keep_default_na": False, "encoding": "utf-8-sig"}
    try:
        with warnings.catch_warnings():  # rows that are longer than the header are cut with a warning only
            warnings.simplefilter("error", pd.errors.ParserWarning)
            head = pd.read_csv(path, header=None, nrows=1, **options)
            header = [str(name).strip() for name in head.iloc[0]]
            places = _places(path, header, names)
            rows = pd.read_csv(path, header=0, names=range(len(header)), index_col=False, **options)
    except pd.errors.EmptyDataError as error:
        raise TableError(f"{path}: the file is empty; a header with names of columns and rows are needed") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: is no text in UTF-8 ({one_line(error)}); save it as UTF-8 or Parquet") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise TableError(f"{path}: its rows do not fit its header ({one_line(error)})") from error
    return rows[places].set_axis(list(names), axis=1)


def _read_parquet(path: Path, names: Sequence[str]) -> pd.DataFrame:
    try:
        with pq.ParquetFile(path) as file:
            places = _places(path, file.schema_arrow.names, names)
            table = file.read(columns=[file.schema_arrow.names[place] for place in places])
    except pa.ArrowException as error:
        raise TableError(f"{path}: is no Parquet file ({one_line(error)})") from error
    return pd.DataFrame({name: _as_text(path, name, table[name]) for name in names})


def _as_text(path: Path, name: str, column: pa.ChunkedArray) -> pd.Series:
    """Values as pandas writes them into a CSV, so that both kinds of file give the same categories."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(holds(kind) for holds in TEXT_OR_NUMBERS):
        raise TableError(f"{path}: column {name!r} holds {kind}; text, numbers or booleans are needed")
    return pd.Series([None if value is None else str(value) for value in column.to_pylist()], dtype=object)


def _places(path: Path, header: Sequence[str], names: Sequence[str]) -> list[int]:
    """Where the named columns are; each is there once, and asked for once."""
    for name in names:
        if list(names).count(name) > 1:
            raise TableError(f"column {name!r} is asked for twice; name each field and target once")
        if header.count(name) > 1:
            raise TableError(f"{path}: {header.count(name)} columns are named {name!r}; names must differ")
        if name not in header:
            close = difflib.get_close_matches(str(name), header, n=1, cutoff=0.5)
            there = f"did you mean {close[0]!r}?" if close else f"there are {shown(', '.join(header))}"
            raise TableError(f"{path}: there is no column {name!r}; {there}")
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
