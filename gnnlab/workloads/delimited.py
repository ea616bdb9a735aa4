"""Rows of cells as people have them, read by pandas: `.csv`, `.tsv`, `.txt`, each also as `.gz`.

The first lines say how a file is written: its separator, its comments, its header. What may mean two things is refused,
with both readings.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnswap.errors import quoted

SAMPLE = 200  # lines that decide how a file is read
BLOCK = 1 << 18  # bytes that are looked at in one go
LONGEST_LINE = 1 << 20  # bytes
MOST_COLUMNS = 10_000
SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "bars", " ": "blanks"}
OF_SUFFIX = {".csv": ",", ".tsv": "\t"}
SUSPECTS = frozenset(b'#% \t,;|\r\n"s')  # how a line without data begins
NO_DATA = re.compile(rb'[ \t,;|]*(?:[#%].*|"?sep=.?"?[\t,;]*)?')
PADDED = re.compile(rb'[\n,;|\t "]0[0-9]')
NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]*)*|[.,][0-9]+)([eE][+-]?[0-9]+)?|nan|NaN")
PRINTED = re.compile(  # (1, 2) of Python, or a node with its neighbours as 1: 2 3
    r"\s*([\[({]+[^\[\](){}]+[\])}][\])},\s]*[0-9.]*|[0-9]+:(\s.*)?|[^\s:]+:(\s[^:]*)?)\s*"
)
NOT_GIVEN = ["", "NaN", "nan", "NA"]  # in a column of numbers
TWINS = ("12", "01", "ab", "ij", "uv")  # in which the names of two like columns differ: txId1,txId2

Ids = tuple[int, ...]
FindIds = Callable[[Sequence[str]], Ids | None]  # the places of the ids' columns among names; none: it is no header


@dataclass
class DelimitedTable:
    """The cells of a file: integers, numbers or text by column; the names in its header; how it was read."""

    lines: Lines
    cells: pd.DataFrame
    header: list[str] | None
    separator: str
    how: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


class Lines:
    """The lines of a file that hold data. Each reading also finds: how many there are, its comments with the number of
    data lines before each, and whether a cell begins with 0 before a digit (`padded`)."""

    def __init__(self, path: Path, row: str) -> None:
        self.path, self.name, self.row = path, path.name, row
        lines = itertools.islice(itertools.chain.from_iterable(self.blocks()), SAMPLE)
        self.first = [line.decode() for line in lines]
        if not self.first:
            raise GnnlabError(f"it holds no rows; write {row}")

    @property
    def suffix(self) -> str:
        return Path(self.name.lower().removesuffix(".gz")).suffix

    def blocks(self) -> Iterator[list[bytes]]:
        """Read the file once, some MB at a time."""
        self.count, self.padded = 0, False
        self.comments: list[tuple[int, str]] = []
        with gzip.open(self.path) if self.path.suffix.lower() == ".gz" else self.path.open("rb") as file:
            block = [line.removeprefix(b"\xef\xbb\xbf") for line in file.readlines(BLOCK)]
            while block:
                _check(block)
                data = []
                for line in block:
                    if line[0] not in SUSPECTS or not NO_DATA.fullmatch(line.rstrip(b"\r\n")):
                        data.append(line)
                    elif (comment := line.strip())[:1] in (b"#", b"%"):
                        self.comments.append((self.count + len(data), comment.decode()))
                self.count += len(data)
                self.padded = self.padded or PADDED.search(b"\n" + b"".join(data)) is not None
                yield data
                block = file.readlines(BLOCK)

    def by_networkx(self, kind: str, separator: str = " ") -> str:
        """The line of Python that makes of the file one that is read."""
        between = "" if separator in " \t" else f', delimiter="{separator}"'
        read = f'networkx.read_{kind}("{self.name}", create_using=networkx.DiGraph{between})'
        return f'networkx.write_graphml({read}, "new.graphml")'

    def rows(self, find_ids: FindIds) -> tuple[list[list[str]], str]:
        """The cells of the first lines, and what separates them: a header that is understood tells, or equal rows."""
        if braces := [line for line in self.first if " {" in line]:
            kind = "multiline_adjlist" if re.fullmatch(r"\S+ {}\s*", braces[0]) else "edgelist"
            raise GnnlabError(f"networkx wrote it with {{}}: {self.by_networkx(kind)}")
        if all(map(PRINTED.fullmatch, self.first[1:] or self.first)):
            one = quoted(self.first[-1].strip())
            raise GnnlabError(f"{one} is a printed tuple, or a node with its neighbours; write {self.row}")
        by_separator = {separator: _cells(self.first, separator) for separator in SEPARATORS}
        several = {s: rows for s, rows in by_separator.items() if max(map(len, rows)) > 1}
        if not several:
            raise GnnlabError(f"{quoted(self.first[0].strip())} is one cell; write {self.row}")
        even = {s: r for s, r in several.items() if len(r[-1]) > 1 and len({len(row) for row in r[1:] or r}) == 1}
        known = {s: r for s, r in several.items() if find_ids(r[0])}
        known = {s: r for s, r in known.items() if len(r[0]) == len(r[-1])} or known
        choices, own = known or even or several, OF_SUFFIX.get(self.suffix)
        if own and len(choices) > 1:
            choices.pop(" ", None)
        clean = [s for s, rows in choices.items() if not _holds_others(rows, s, choices)]
        if len(choices) > 1 and len(clean) != 1:
            clean = [own] if own in choices else list(choices)
            if len(clean) > 1 and even:
                one, other = (f"{SEPARATORS[s]} ({' | '.join(choices[s][-1])})" for s in clean[:2])
                raise GnnlabError(
                    f"cells may be separated by {one} or by {other}: write a header, source and target with the same "
                    "between them, or call a file with commas .csv, one with tabs .tsv"
                )
        return several[clean[0]], clean[0]


class _Stream:
    """The blocks of some lines as a file that pandas reads."""

    def __init__(self, lines: Lines) -> None:
        self.blocks = map(b"".join, lines.blocks())

    def read(self, size: int) -> bytes:
        return next(filter(None, self.blocks), b"")

    def __iter__(self) -> Iterator[bytes]:
        return self.blocks


def _check(block: list[bytes]) -> None:
    """Refuses what is no text, or has no lines."""
    text = b"".join(block)
    if b"\0" in text or text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise GnnlabError("it is not text in UTF-8; save it so (in Excel: CSV UTF-8)")
    if max(map(len, block)) >= LONGEST_LINE or max(block[0].count(s.encode()) for s in SEPARATORS) >= MOST_COLUMNS:
        raise GnnlabError(f"a line of more than {MOST_COLUMNS:,} cells; a row is one edge: source,target")
    if text.count(b"\r") > text.count(b"\r\n") + text.endswith(b"\r"):
        raise GnnlabError("lines end in a carriage return alone; save it with line feeds")


def _cells(lines: Iterable[str], separator: str) -> list[list[str]]:
    lines = [" ".join(line.split()) for line in lines] if separator == " " else lines
    return [[c.strip() for c in row] for row in csv.reader(lines, delimiter=separator, skipinitialspace=True)]


def _holds_others(rows: list[list[str]], separator: str, choices: Iterable[str]) -> bool:
    """Whether cells hold what may separate them, too; a decimal comma does not, nor a comma before a blank."""
    if separator == " " and "\t" in choices:
        return True
    others = {" "} & set(choices) if separator == "\t" else set(choices) - {separator}
    cells = (cell.replace(", ", " ") for row in rows for cell in row if not NUMBER.fullmatch(cell) or cell[-1:] == ",")
    return any(other in cell for cell in cells for other in others)


def _has_header(rows: list[list[str]], find_ids: FindIds, default: Ids) -> bool | None:
    """Whether row 1 is a header; none: it may be an edge as well."""
    first, rest = rows[0], [row for row in rows[1:] if row != rows[0]]
    ids = find_ids(first)
    if {"source", "target"} <= {key(name) for name in first}:
        return True
    if not rest or (not ids and any(NUMBER.fullmatch(cell) for cell in first)):
        by_pandas = [str(i) for i in range(len(first))]  # so it names columns, and its index not at all
        if first == ["", *by_pandas[:-1]]:
            return True
        known = {cell for row in rest for cell in row[: len(default)]}
        return None if rest and first == by_pandas and not known & set(first[:2]) else False
    for column in range(min(map(len, rows))):
        below = [row[column] for row in rest if row[column]]
        if below and all(map(NUMBER.fullmatch, below)) and not NUMBER.fullmatch(first[column]):
            return True
    others = {cell for row in rest for cell in row}
    if others & set(first) - {""}:
        return False
    if ids:
        return True
    shapes = {_shape(cell) for cell in others}
    if all(_shape(cell) in shapes for cell in first[:2]):  # n1,n2 above n3,n4
        return False
    return True if twins(first) else None


def read(path: Path, find_ids: FindIds, row: str, default: Ids) -> DelimitedTable:
    """All cells of a file; ids that are no plain integers, such as those padded with zeros, stay text.

    Args:
        row: what a row is, as messages say it.
        default: the places of the ids where no header tells them.
    """
    lines = Lines(path, row)
    rows, separator = lines.rows(find_ids)
    width = max(map(len, rows))
    header = _commented_header(lines, separator, width, find_ids)
    has_header = False if header else _has_header(rows, find_ids, default)
    if has_header:
        header, rows = rows[0], rows[1:]
        if not rows:
            raise GnnlabError(f"it holds a header and no rows; write {lines.row}")
        quotes = lines.first[1].startswith('"') and all(row[0].isdigit() for row in rows)
        if quotes and len(header) == width - 1:  # R does not name the column of its row names
            header = ["", *header]
    if header is None and len(fewest_most := {len(row) for row in rows}) > 1:
        of_neighbours = f" (of neighbours in a row, {lines.by_networkx('adjlist', separator)})" * (len(default) > 1)
        raise GnnlabError(f"rows have {min(fewest_most)} to {width} cells; write {lines.row}{of_neighbours}")
    ids = list(find_ids(header or []) or (len(default) > 1 and twins(header or [])) or default)
    plain = all(re.fullmatch("[0-9]{1,18}", row[i]) for row in rows for i in ids if i < len(row))
    no_ids = {i: NOT_GIVEN for i in range(width) if i not in ids}
    cells = _read(lines, separator, int(has_header or 0), ids, plain, no_ids)
    _commented_header(lines, separator, width, find_ids)  # comments further down
    if has_header is None and not cells.loc[1:, ids].isin(list(cells.loc[0, ids])).any(axis=None):
        first = quoted(",".join(rows[0]))
        kind, names = ("an edge", "source,target") if len(default) > 1 else ("a node", "id and other names")
        raise GnnlabError(f"row 1, {first}, may be a header or {kind}: write {names} in place of it, or above")
    cells = cells.drop(columns=[i for i in cells if i not in ids and cells[i].isna().all()])
    if header:
        _check_header(header, cells, ids)
    names = ",".join(header[i] for i in cells if header[i])[:80] if header else ""
    how = [f"header {names}" if header else "no header"]
    if separator != OF_SUFFIX.get(lines.suffix, separator):
        how.append(f"{SEPARATORS[separator]} between cells")
    if count := len(lines.comments):
        how.append(f"{count:,} comment{'s' * (count > 1)} left out")
    return DelimitedTable(lines, cells, header, separator, how)


def _commented_header(lines: Lines, separator: str, width: int, find_ids: FindIds) -> list[str] | None:
    """The header that stands in a comment above the rows; comments that are no such thing are refused."""
    header = None
    for place, text in lines.comments:
        if place == 0 and re.match(r"%\s*bip\b", text):
            raise GnnlabError("KONECT's bip: node 1 on the left is not node 1 on the right; give them different names")
        if place == 0 and text.startswith("%%MatrixMarket"):
            raise GnnlabError("a matrix of Matrix Market; call it .mtx")
        named = text[1:2].strip("#% ")  # a name may begin so, and a comment rather with a blank
        if place and not named:
            if [comment for _, comment in lines.comments] == ["#"]:
                raise GnnlabError("a row of # alone, above which a .tgf has nodes; delete it, and what is no edge")
            continue
        cells = _cells([text.lstrip("#% ")], separator)[0]
        if place == 0 and len(cells) == width and (find_ids(cells) or twins(cells)):
            header = cells
        elif named and len(cells) == width and (place or separator != " "):
            raise GnnlabError(f"{quoted(text)} may be a comment or an edge; put names that begin with # in quotes")
    return header


def _read(
    lines: Lines, separator: str, skip: int, ids: Sequence[int], plain: bool, not_given: Mapping[int, list[str]]
) -> pd.DataFrame:
    """The cells of the lines behind `skip`, as many rows as lines.

    Read in parts, which takes half the memory. A column of several types is read again as text, and so are all ids
    where one of them is no plain integer.
    """
    as_text: set[int] = set() if plain else set(ids)
    while True:
        try:
            with warnings.catch_warnings(action="ignore", category=pd.errors.DtypeWarning):
                cells = pd.read_csv(
                    _Stream(lines),
                    sep=r"\s+" if separator == " " else separator,
                    header=None,
                    skiprows=skip,
                    keep_default_na=False,
                    na_values=not_given,
                    skipinitialspace=True,
                    dtype=dict.fromkeys(as_text, str),
                )
        except pd.errors.ParserError as error:
            raise GnnlabError(uneven(error)) from error
        mixed = {i for i in cells if cells[i].dtype == object}
        if lines.padded or any(cells[i].dtype.kind not in "iu" for i in ids):
            mixed |= set(ids)
        if mixed <= as_text:
            break
        as_text |= mixed
    if len(cells) != lines.count - skip:
        odd = next((line for block in lines.blocks() for line in block if line.count(b'"') % 2), b'"').decode().strip()
        raise GnnlabError(
            f"{quoted(odd)}: a quotation mark is opened or closed in another line; close or delete it (a name holds no "
            "line break)"
        )
    return cells


def _check_header(header: list[str], cells: pd.DataFrame, ids: Sequence[int]) -> None:
    if len(header) <= max(cells):
        raise GnnlabError(f"{len(header)} names in the header, {max(cells) + 1} cells in a row; name each column")
    names = [header[i] for i in cells if header[i]]
    if twice := [name for name in names if names.count(name) > 1]:
        raise GnnlabError(f"two columns have the name {twice[0]!r} in the header; rename or delete one")
    again = np.flatnonzero((cells[ids] == [header[i] for i in ids]).all(axis=1))
    if len(again):
        raise GnnlabError(f"row {again[0] + 2} is the header again; delete it, and what does not belong to the file")


def uneven(error: pd.errors.ParserError) -> str:
    """What pandas says of rows of different lengths, or of quotation marks."""
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
        return f"row {found[2]} has {found[3]} cells, those above {found[1]}; give each row the same"
    return "a quotation mark is opened and not closed; close or delete it"


def is_numeric(column: pd.Series) -> bool:
    """Whether a column holds numbers, perhaps with decimal commas."""
    return column.dtype.kind in "iuf" or column.astype(str).str.fullmatch(NUMBER).all()


def numbers(columns: Mapping[str, pd.Series], separator: str) -> dict[str, np.ndarray]:
    """int64 or float64 (R,) by name; commas are decimal where they do not separate cells."""
    texts = {name: c.astype(str) for name, c in columns.items() if c.dtype.kind not in "iuf" and is_numeric(c)}
    commas = [name for name, text in texts.items() if text.str.contains(",").any()]
    points = [name for name, text in texts.items() if text.str.contains(".", regex=False).any()]
    points += [name for name, column in columns.items() if column.dtype.kind == "f"]
    if commas and points:
        raise GnnlabError(
            f"numbers with commas in {commas[0]} and with points in {points[0]}, of thousands or decimal; write "
            "decimal points alone"
        )
    return {name: _numbers(name, column, separator) for name, column in columns.items()}


def _numbers(name: str, column: pd.Series, separator: str) -> np.ndarray:
    complete(name, column)
    if column.dtype.kind not in "iuf":
        text = column.astype(str).str.strip()
        thousands = text[text.str.fullmatch(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+")]
        if len(thousands):
            one = thousands.iloc[0]
            both = f"{one.replace(',', '')} or {one.replace(',', '.')}"
            raise GnnlabError(f"column {name}: {one!r} may be {both}; write numbers without separators of thousands")
        column = pd.to_numeric(text.str.replace(",", ".") if separator != "," else text, errors="coerce")
        if column.isna().any():
            one = text[column.isna()].iloc[0]
            clean = column.notna().any() or re.search("[0-9]", one)
            how = "make all of it numbers" if clean else "number it (pandas.factorize)"
            raise GnnlabError(f"column {name} holds text, {quoted(one)}; {how} or delete the column")
    return column.to_numpy(dtype=np.int64 if column.dtype.kind == "i" else np.float64)  # uint64 is beyond int64


def complete(name: str, column: pd.Series) -> None:
    """Refuses a column with gaps."""
    if missing := int(column.isna().sum()):
        raise GnnlabError(f"column {name} holds nan or nothing in {missing:,} of {len(column):,} rows; fill it in")


def twins(names: Sequence[str]) -> tuple[int, int] | None:
    """Two neighbouring columns whose names differ in one place, x1,x2 or gene_a,gene_b, if no others do so.

    x1 and x2 beside other columns are rather features.
    """
    found = []
    for i, (one, other) in enumerate(itertools.pairwise(map(key, names))):
        differing = [a + b for a, b in zip(one, other, strict=False) if a != b]
        if len(one) == len(other) and len(differing) == 1 and differing[0] in TWINS:
            found.append((i, i + 1))
    alone = len(found) == 1 and not (len(names) > 2 and key(names[found[0][0]])[0] == "x")
    return found[0] if alone else None


def key(name: str) -> str:
    """A name without case, blanks and underscores."""
    return re.sub(r"[\W_]", "", name.lower())


def _shape(name: str) -> str:
    return re.sub(r"[0-9]+", "0", name) if len(name) > 1 else "a"
