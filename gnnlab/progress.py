"""How far long work is, for who watches: a bar in a terminal, one line below a cell in JupyterLab, nothing in a file.

    with progress("cells", total=135) as step:
        for cell in cells:
            step(str(cell))                    # one more is done; the text says what

The line in JupyterLab is plain text that is written again, no widget. A run by papermill, a pipe, a log and a child
process get nothing.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Step = Callable[..., None]  # step("what", done=3, total=8): without `done` one more than before
NOTE = 48  # characters of what a line says of the work
SELDOM_S = 0.25  # between two writings of the line in a notebook


def by_hand() -> bool:
    """Does someone run notebook cells one by one in this process? JupyterLab and VS Code let a cell ask for input;
    `gnnlab run`, papermill and nbconvert do not. That parameters were put in says nothing: an executed notebook can be
    opened. Outside of IPython nobody does.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return False
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return request.get("content", {}).get("allow_stdin", True)


@contextmanager
def progress(
    what: str,
    total: int | None = None,
    *,
    done: int = 0,
    note: str = "",
    shown: bool = True,
    console: Console | None = None,
) -> Iterator[Step]:
    """Show how many of `total` pieces of `what` are done, `done` of them before; gives what is called after each.

    `console` is where a terminal's bar goes, standard error unless given; it is gone when the work is done.
    """
    from rich.console import Console

    console = console or Console(stderr=True)
    if not shown:
        yield lambda note="", **at: None
    elif console.is_terminal:
        with _bar(console, what, total, done, note) as step:
            yield step
    elif by_hand():
        with _line(what, total, done, note) as step:
            yield step
    else:
        yield lambda note="", **at: None


@contextmanager
def _bar(console: Console, what: str, total: int | None, done: int, note: str) -> Iterator[Step]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total, completed=done, note=note)

        def step(note: str = "", done: int | None = None, total: int | None = None) -> None:
            moved = {"advance": 1} if done is None else {"completed": done}
            bar.update(task, **moved, total=total, note=_short(note))

        yield step


@contextmanager
def _line(what: str, total: int | None, done: int, note: str) -> Iterator[Step]:
    from IPython.display import display

    started, written, at = time.monotonic(), 0.0, [done, total]

    def text(note: str) -> dict[str, str]:
        of = f" of {at[1]}" if at[1] else ""
        line = f"{what}: {at[0]}{of}, {time.monotonic() - started:.0f} s"
        return {"text/plain": f"{line}, {_short(note)}" if note else line}

    shown = display(text(note), raw=True, display_id=True)

    def step(note: str = "", done: int | None = None, total: int | None = None) -> None:
        nonlocal written
        at[:] = [at[0] + 1 if done is None else done, total or at[1]]
        if time.monotonic() - written > SELDOM_S:
            written = time.monotonic()
            shown.update(text(note), raw=True)

    try:
        yield step
    finally:
        shown.update(text(""), raw=True)


def _short(note: str) -> str:
    return textwrap.shorten(note, NOTE, placeholder=" …")
