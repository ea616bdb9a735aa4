"""A bar while training runs, where somebody watches a terminal; notebooks and files stay free of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(total: int, done: int, shown: bool = True) -> Iterator[Callable[[], None]]:
    """A bar of `total` steps of which `done` are behind; gives the function that is called after each further one."""
    if not (shown and sys.stderr.isatty()):
        yield lambda: None
        return
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=total, completed=done)
        yield lambda: progress.advance(task)
