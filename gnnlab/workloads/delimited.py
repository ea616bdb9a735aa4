"""Rows of cells as people have them, read by pandas: `.csv`, `.tsv`, `.txt`, each also as `.gz`.

The first lines say how a file is written: its separator, its comments, its header. What may mean two things is refused,
with both readings.
"""

from __future__ import annotations

import csv
import gzip
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnswap.errors import quoted

SAMPLE = 200  # lines that decide how a file is read
LONGEST_LINE = 1 << 20  # bytes
MOST_COLUMNS = 10_000
SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "bars", " ": "blanks"}
OF_SUFFIX = {".csv": ",", ".tsv": "\t"}
NO_DATA = re.compile(rb'^[ \t,;|]*(?:[#%][^\n]*|"?sep=.?"?[\t,;]*)?\r?$', re.MULTILINE)
BEFORE_NO_DATA, BEFORE_CELL, DIGIT = (
    np.isin(np.arange(256), list(some)) for some in (b"#% \t,;|\r\n", b'\n,;|\t "', b"0123456789")
)
NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]*)*|[.,][0-9]+)([eE][+-]?[0-9]+)?|nan|NaN")
NOT_GIVEN = ["", "NaN", "nan", "NA"]  # in a column of numbers
TWINS = ("12", "01", "ab", "ij", "uv", "xy")  # in which the names of two like columns differ: txId1,txId2

Ids = tuple[int, ...]
FindIds = Callable[[Sequence[str]], Ids | None]  # the places of the ids' columns among names; none: it is no header


@dataclass
class Table:
    """The cells of a file: integers, numbers or text by column; the names in its header; how it was read."""

    cells: pd.DataFrame
    header: list[str] | None
    separator: str
    how: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


def first_rows(path: Path, find_ids: FindIds, most: float = SAMPLE) -> list[list[str]]:
    """The cells of the first rows, and of a header."""
    return _rows(_sample(path, most)[0], find_ids)[0]


def _sample(path: Path, most: float = SAMPLE) -> tuple[list[str], list[tuple[int, str]]]:
    """The first lines with data; the comments among them, each with the number of data lines before it."""
    lines, comments = [], []
    with _open(path) as file:
        while len(lines) < most and (raw := file.readline(LONGEST_LINE)):
            if b"\0" in raw or raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise GnnlabError("it is not text in UTF-8; save it so (in Excel: CSV UTF-8)")
            if len(raw) == LONGEST_LINE or max(raw.count(s.encode()) for s in "\t,;|") >= MOST_COLUMNS:
                raise GnnlabError(f"a line of more than {MOST_COLUMNS:,} cells; a row is one edge: source,target")
            if b"\r" in raw.rstrip(b"\r\n"):
                raise GnnlabError("lines end in a carriage return alone; save it with line feeds")
            text = raw.decode("utf-8-sig")
            if not NO_DATA.fullmatch(text.strip("\r\n").encode()):
                lines.append(text)
            elif text.lstrip()[:1] in ("#", "%"):
                comments.append((len(lines), text.strip()))
    if not lines:
        raise GnnlabError("it holds no rows; write one edge a row: source,target")
    return lines, comments


def _cells(lines: Sequence[str], separator: str) -> list[list[str]]:
    lines = [" ".join(line.split()) for line in lines] if separator == " " else lines
    return [[c.strip() for c in row] for row in csv.reader(lines, delimiter=separator, skipinitialspace=True)]


def _rows(lines: Sequence[str], find_ids: FindIds) -> tuple[list[list[str]], str]:
    """The cells of the first lines, and what separates them: a header that is understood tells, or equal rows."""
    by_separator = {separator: _cells(lines, separator) for separator in SEPARATORS}
    several = {s: rows for s, rows in by_separator.items() if max(map(len, rows)) > 1}
    even = {s: rows for s, rows in several.items() if len({len(row) for row in rows[1:] or rows}) == 1}
    even = {s: rows for s, rows in even.items() if len(rows[-1]) > 1}
    if not several:
        raise GnnlabError(f"{quoted(lines[0].strip())} is one cell; write one edge a row: source,target")
    separator = min(even or several, key=lambda s: not find_ids(by_separator[s][0]))
    rows = by_separator[separator]
    if any("\n" in cell for row in rows for cell in row):
        raise GnnlabError("a quotation mark is opened and not closed in its line; close or delete it")
    if any("{" in cell for cell in rows[0]):
        raise GnnlabError("networkx wrote it with {}: write networkx.write_graphml(networkx.read_edgelist(path), new)")
    return rows, separator


def _has_header(rows: list[list[str]], find_ids: FindIds) -> bool | None:
    """Whether row 1 is a header; none: it may be an edge as well."""
    first, rest = rows[0], rows[1:]
    if {"source", "target"} <= {key(name) for name in first}:
        return True
    if not rest or any(NUMBER.fullmatch(cell) for cell in first):
        return False
    for column in range(min(map(len, rows))):
        below = [row[column] for row in rest if row[column]]
        if below and all(map(NUMBER.fullmatch, below)):
            return True
    others = {cell for row in rest for cell in row}
    if others & set(first) - {""}:
        return False
    if find_ids(first):
        return True
    shapes = {_shape(cell) for cell in others}
    if all(_shape(cell) in shapes for cell in first[:2]):  # n1,n2 above n3,n4
        return False
    return True if twins(first) else None


def read(path: Path, find_ids: FindIds, default: Ids = (0, 1)) -> Table:
    """All cells of a file; integers that are padded with zeros stay text."""
    lines, comments = _sample(path)
    rows, separator = _rows(lines, find_ids)
    header, width = None, max(map(len, rows))
    for place, text in comments:
        cells = _cells([text.lstrip("#% ")], separator)[0]
        if place == 0 and len(cells) == width and find_ids(cells):  # the header may be a comment
            header = cells
        elif separator != " " and len(cells) == width and text[1:2].strip("#% "):
            raise GnnlabError(f"{quoted(text)} may be a comment or an edge; put names that begin with # in quotes")
    empty, count, padded = _scan(path)
    has_header = False if header else _has_header(rows, find_ids)
    if has_header:
        header, rows = rows[0], rows[1:]
        if not rows:
            raise GnnlabError("it holds a header and no rows; write one edge a row: source,target")
        empty.add(next(line for line in range(len(empty) + 1) if line not in empty))
    if header and separator in " \t" and len(header) == width - 1:  # R does not name the column of its row names
        header = ["", *header]
    if header is None and len(fewest_most := {len(row) for row in rows}) > 1:
        raise GnnlabError(
            f"rows have {min(fewest_most)} to {width} cells; write one edge a row: source,target "
            "(of neighbours in a row, networkx.read_adjlist makes a graph)"
        )
    ids = list(find_ids(header or []) or (len(default) > 1 and twins(header or [])) or default)
    whole = all(re.fullmatch(r"[0-9]{1,18}(\.0*)?", row[i]) for row in rows for i in ids if i < len(row))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)  # text among numbers, further down
        cells = pd.read_csv(
            path,
            sep=r"\s+" if separator == " " else separator,
            header=None,
            skiprows=empty,
            keep_default_na=False,
            na_values={i: NOT_GIVEN for i in range(width) if i not in ids},
            encoding="utf-8-sig",
            skipinitialspace=True,
            dtype={} if whole and not padded else dict.fromkeys(ids, str),
        )
    if has_header is None and not cells.loc[1:, ids].isin(list(cells.loc[0, ids])).any(axis=None):
        first = quoted(",".join(rows[0]))
        raise GnnlabError(f"row 1, {first}, may be a header or an edge: write source,target in place of it, or above")
    cells = cells.drop(columns=[i for i in cells if i not in ids and cells[i].isna().all()])
    if header and len(header) <= max(cells):
        raise GnnlabError(f"{len(header)} names in the header, {max(cells) + 1} cells in a row; name each column")
    names = ",".join(header[i] for i in cells if header[i])[:80] if header else ""
    how = [f"header {names}" if header else "no header"]
    if separator != OF_SUFFIX.get(Path(path.name.lower().removesuffix(".gz")).suffix, separator):
        how.append(f"{SEPARATORS[separator]} between cells")
    if count:
        how.append(f"{count:,} comment{'s' * (count > 1)} left out")
    return Table(cells, header, separator, how)


def is_numeric(column: pd.Series) -> bool:
    """Whether a column holds numbers, perhaps with decimal commas."""
    return column.dtype.kind in "iuf" or column.astype(str).str.fullmatch(NUMBER).all()


def numbers(name: str, column: pd.Series, separator: str) -> np.ndarray:
    """int64 or float64 (R,); commas are decimal where they do not separate cells."""
    if missing := int(column.isna().sum()):
        raise GnnlabError(f"column {name} holds nan or nothing in {missing:,} of {len(column):,} rows; fill it in")
    if column.dtype.kind not in "iuf":
        text = column.astype(str).str.strip()
        thousands = text[text.str.fullmatch(r"[+-]?[1-9][0-9]{0,2}([,.][0-9]{3})+") & text.str.contains(",")]
        if len(thousands):
            one = thousands.iloc[0]
            both = f"{one.replace(',', '')} or {one.replace(',', '.')}"
            raise GnnlabError(f"column {name}: {one!r} may be {both}; write numbers without separators of thousands")
        column = pd.to_numeric(text.str.replace(",", ".") if separator != "," else text, errors="coerce")
        if column.isna().any():
            one = quoted(text[column.isna()].iloc[0])
            raise GnnlabError(f"column {name} holds text, {one}; number it (pandas.factorize) or delete the column")
    return column.to_numpy(dtype=np.float64 if column.dtype.kind == "f" else np.int64)


def twins(names: Sequence[str]) -> tuple[int, int] | None:
    """Two neighbouring columns whose names differ in one place: x1,x2 or gene_a,gene_b."""
    for i, (one, other) in enumerate(pairwise(map(key, names))):
        differing = [a + b for a, b in zip(one, other, strict=False) if a != b]
        if len(one) == len(other) and len(differing) == 1 and differing[0] in TWINS:
            return i, i + 1
    return None


def key(name: str) -> str:
    """A name without case, blanks and underscores."""
    return re.sub(r"[\W_]", "", name.lower())


def _shape(name: str) -> str:
    return re.sub(r"[0-9]+", "0", name) if len(name) > 1 else "a"


def _scan(path: Path) -> tuple[set[int], int, bool]:
    """The lines without data, how many of them are comments, and whether a cell begins with 0 before a digit."""
    empty, comments, padded, line = set(), 0, False, 0
    with _open(path) as file:
        while lines := file.readlines(1 << 22):
            block = b"".join([b"\n", *lines])
            block = block if line else block.replace(b"\xef\xbb\xbf", b"", 1)
            at = np.frombuffer(block, dtype=np.uint8)
            padded = padded or bool((BEFORE_CELL[at[:-2]] & (at[1:-1] == ord("0")) & DIGIT[at[2:]]).any())
            ends = np.flatnonzero(at == ord("\n"))
            suspects = np.flatnonzero(BEFORE_NO_DATA[at[ends[:-1] + 1]] | (np.arange(len(ends) - 1) + line == 0))
            for i in suspects.tolist():
                if found := NO_DATA.match(block, ends[i] + 1):
                    empty.add(line + i)
                    comments += found[0].lstrip()[:1] in (b"#", b"%")
            line += len(lines)
    return empty, comments, padded


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
