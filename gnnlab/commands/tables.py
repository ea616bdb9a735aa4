"""What commands print: text, tables, and a warning of a busy machine.

show(table("units", ("unit", "usable"), [("torch:CPU", "yes")]))
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

WIDTH_IN_A_FILE = 160  # columns of a table that goes to a file or a pipe
STYLES = {"good": "green", "best": "green", "bad": "red", "fair": "yellow", "better": "green", "worse": "red"}


def show(what: object) -> None:
    """Print text as it is, and anything else as rich renders it."""
    if isinstance(what, str):
        print(what)
        return
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_IN_A_FILE
    Console(width=wide).print(what)


def say(line: str) -> None:
    """Print a line of progress on standard error, at once."""
    print(line, file=sys.stderr, flush=True)


def json_text(data: Any) -> str:
    """As JSON for a file or another program."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> Table:
    """A table of rich, whose cells show as they are; a column in which no row has anything is left out.

    Numbers stand in the columns `right`; those named `whole` are never wrapped.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(title=title, title_justify="left", box=box.HEAVY_HEAD)
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    filled = [place for place in range(len(columns)) if not cells or any(row[place].plain for row in cells)]
    for name in (columns[place] for place in filled):
        justify = "right" if name in right else "left"
        result.add_column(name, justify=justify, overflow="fold", no_wrap=name in whole)
    for row in cells:
        result.add_row(*(row[place] for place in filled))
    return result


def warn_if_busy() -> None:
    """Say on standard error that the machine is busy, before something is measured on it."""
    from gnnlab import machine

    if busy := machine.warning():
        say(f"gnnlab: {busy}")
