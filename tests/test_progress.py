"""Progress is shown to who watches, and nobody else."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from gnnlab.progress import progress


def watched(monkeypatch, allow_stdin):
    """Cells sent by a front end that can be asked for input, or by papermill; gives what they display."""
    shown = []
    shell = SimpleNamespace(get_parent=lambda: {"content": {"allow_stdin": allow_stdin}})
    line = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data["text/plain"]) or line)
    return shown


def work(console=None, **options):
    with progress("cells", 3, console=console, **options) as step:
        step("first")
        step("second", done=3)


def test_a_terminal_has_a_bar_that_goes_when_the_work_is_done():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, _environ={"TERM": "xterm"})
    work(console)
    written = console.file.getvalue()
    assert "3/3" in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written) and written.endswith("\x1b[2K")


def test_a_notebook_by_hand_has_a_line_of_plain_text(monkeypatch):
    shown = watched(monkeypatch, allow_stdin=True)
    work()
    assert shown[0] == "cells: 0 of 3, 0 s" and "first" in shown[1] and shown[-1] == "cells: 3 of 3, 0 s"


@pytest.mark.parametrize("console", [None, Console(file=io.StringIO())])
def test_papermill_and_files_get_nothing(monkeypatch, capsys, console):
    shown = watched(monkeypatch, allow_stdin=False)
    work(console)
    assert shown == [] and capsys.readouterr() == ("", "") and not (console and console.file.getvalue())


def test_what_pyg_loads_does_not_warn_in_a_notebook():
    from tqdm import notebook

    assert notebook.IProgress is not None  # what tqdm asks before it warns that ipywidgets is missing
