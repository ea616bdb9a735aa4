"""What a user's file would take, judged by what it declares before anything of it is allocated or parsed whole."""

from __future__ import annotations

from pathlib import Path

import psutil

from gnnlab.errors import GnnlabError

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
            f"free, of which {SHARE:.0%} may be used; give a smaller file"
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
