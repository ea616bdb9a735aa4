"""What rows are called, and why some have no number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from gnnlab.files import digest

MOST_NAMED = 2  # of several values that `Study.only` kept


def grouped_reasons(cells: Iterable[tuple[Any, Any, str]], column: str, columns: int) -> list[str]:
    """A line for each reason, of (row, column, reason) `cells`, and where it holds: "why (a × every size; b × 10/20)".

    `column` is what a column is called, `columns` how many there are.
    """
    frame = pd.DataFrame(cells, columns=["row", "column", "reason"]).astype(str).drop_duplicates()
    lines = []
    for reason, of_reason in frame.groupby("reason", sort=False):
        places = [
            f"{row} × {f'every {column}' if len(at) == columns > 1 else ', '.join(at)}"
            for row, at in of_reason.groupby("row", sort=False)["column"]
        ]
        lines.append(f"{reason} ({'; '.join(places)})")
    return lines


def words_of(wanted: Any, distinct: bool = False) -> str:
    """One value, or the first of several and how many more: `distinct` from every other choice of them."""
    if not isinstance(wanted, list | tuple | set):
        return str(wanted)
    named = [str(each) for each in wanted]
    more = len(named) - MOST_NAMED
    if more <= 0:
        return ", ".join(named)
    text = f"{', '.join(named[:MOST_NAMED])} and {more} more"
    return f"{text} {digest(named)[:6]}" if distinct else text


def plain(name: str) -> str:
    """A name for a reader, its unit in brackets: "planted bandwidth (GB/s)" of `planted_bandwidth_gb_s`."""
    if name == "pu":  # as S4 calls it
        return "processing unit"
    for ending, unit, quantity in (("gb_s", "GB/s", "bandwidth"), ("mib", "MiB", "size"), ("ms", "ms", "time")):
        if name == ending:
            return f"{quantity} ({unit})"
        if name.endswith(f"_{ending}"):
            return f"{name.removesuffix(f'_{ending}').replace('_', ' ')} ({unit})"
    return name.replace("_", " ")


def cell_name(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The name of a cell: "1000/1000, features 64"."""
    return ", ".join(named(key, row[key]) for key in keys if key in row)


def named(key: str, value: Any) -> str:
    """A text speaks for itself, a number needs its name."""
    if isinstance(value, str):
        return value
    name, bracket, unit = plain(key).partition(" (")
    unit = f" {unit.removesuffix(')')}" if bracket else ""
    return f"{name} {value:.4g}{unit}" if isinstance(value, float) else f"{name} {value}{unit}"


def named_series(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """The frame with the values of `by` as a legend says them: "nodes 10" of a number."""
    return frame.assign(**{by: [named(by, value) for value in frame[by]]})
