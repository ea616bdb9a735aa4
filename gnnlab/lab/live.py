"""The lines that a run prints: in a terminal one with a progress bar, in a log one at the start and one at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

COLOURS = {"passed": "green", "skipped": "yellow", "failed": "red", "timeout": "red"}
_HEADING_WIDTH = 40  # characters of the heading beside the bar


class Live:
    """Prints to one console. `width` is that of the longest notebook name, so that the columns align."""

    def __init__(self, console: Console | None = None, width: int = 0):
        self.console = console or Console()
        self.width = width

    def say(self, text: str) -> None:
        """One line, never wrapped, and nothing in it read as markup."""
        self.console.print(Text(text), soft_wrap=True)

    def ended(self, name: str, status: str, *notes: str, why: str = "") -> None:
        """The line of a notebook that is done: "01_profile_bottlenecks  passed   41 s"; `why` it ran, unless told."""
        told = [note for note in (*notes, why if self.console.is_terminal else "") if note]
        line = Text.assemble(
            name.ljust(self.width), "  ", (status.ljust(7), COLOURS.get(status, "")), "  ", "  ".join(told)
        )
        self.console.print(line, soft_wrap=True)

    @contextmanager
    def running(self, name: str, why: str, place: str = "") -> Iterator[Bar]:
        """A bar while a notebook runs, or its one line at the start where the console is no terminal.

        `place` says which of its runs this is: "run 3 of 5".
        """
        if not self.console.is_terminal:
            self.say(f"{name.ljust(self.width)}  running  {', '.join(part for part in (place, why) if part)}")
            yield Bar()
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[heading]}", markup=False),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(f"{name.ljust(self.width)} {place}".rstrip(), total=None, heading=why)
            yield Bar(progress, task)


class Bar:
    """The bar of one notebook; does nothing where there is none."""

    def __init__(self, progress: Progress | None = None, task: int = 0):
        self.progress, self.task = progress, task

    def show(self, done: int, total: int, heading: str) -> None:
        if self.progress is not None:
            text = heading if len(heading) <= _HEADING_WIDTH else heading[: _HEADING_WIDTH - 1] + "…"
            self.progress.update(self.task, completed=done, total=total, heading=text)


def duration(seconds: float) -> str:
    """Seconds as a reader says them: "0.8 s", "41 s", "2 min 5 s".

    >>> duration(125.4)
    '2 min 5 s'
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
