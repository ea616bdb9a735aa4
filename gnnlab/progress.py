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

from tqdm.std import tqdm


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show how many of `total` pieces of `what` are done; gives what is called after each, with a text."""
    watched = sys.stderr.isatty() or _front_end()
    with tqdm(desc=what, total=total, file=sys.stderr, disable=not watched, leave=False, dynamic_ncols=True) as bar:

        def step(note: str = "") -> None:
            bar.update()
            bar.set_postfix_str(note)

        yield step


def _front_end() -> bool:
    """Is this a kernel whose cell was sent by JupyterLab or the like? Those let a cell ask for input, papermill and
    nbconvert do not.
    """
    shell = (ipython := sys.modules.get("IPython")) and ipython.get_ipython()
    return hasattr(shell, "get_parent") and shell.get_parent().get("content", {}).get("allow_stdin", False)
