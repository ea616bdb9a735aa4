"""How far long work is, for who watches: a bar in a terminal and below a cell in JupyterLab, nothing in a file.

    with progress("cells", total=135) as step:
        for cell in cells:
            step(str(cell))                    # one more is done; the text says what

A run by papermill, a pipe, a log and a child process get nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm.std import tqdm

Step = Callable[..., None]  # step("what", done=3, total=8): without `done` one more than before


@contextmanager
def progress(what: str, total: int | None = None, *, file: TextIO | None = None) -> Iterator[Step]:
    """Show how many of `total` pieces of `what` are done; gives what is called after each.

    `file` is standard error unless given; the bar is gone when the work is done.
    """
    file = file or sys.stderr
    with tqdm(
        desc=what, total=total, file=file, disable=not (file.isatty() or _front_end()), leave=False, dynamic_ncols=True
    ) as bar:

        def step(note: str = "", done: int | None = None, total: int | None = None) -> None:
            bar.total = total or bar.total
            bar.update(1 if done is None else done - bar.n)
            bar.set_postfix_str(note)

        yield step


def _front_end() -> bool:
    """Is this a kernel whose cell was sent by JupyterLab or the like? Those let a cell ask for input, papermill and
    nbconvert do not.
    """
    shell = (ipython := sys.modules.get("IPython")) and ipython.get_ipython()
    return hasattr(shell, "get_parent") and shell.get_parent().get("content", {}).get("allow_stdin", False)
