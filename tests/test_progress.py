"""Progress is shown to who watches, and nobody else."""

import io
import sys
from types import SimpleNamespace

import pytest

from gnnlab.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def work():
    with progress("cells", 3) as step:
        for note in ("first", "second", "third"):
            step(note)


def test_a_terminal_has_a_bar_that_goes_when_the_work_is_done(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    work()
    assert "3/3" in terminal.getvalue() and "third" in terminal.getvalue()
    assert terminal.getvalue().rstrip("\r").rpartition("\r")[2].strip() == ""


@pytest.mark.parametrize("allow_stdin", [True, False])
def test_cells_run_by_hand_have_a_bar_and_papermill_and_files_have_none(monkeypatch, capsys, allow_stdin):
    shell = SimpleNamespace(get_parent=lambda: {"content": {"allow_stdin": allow_stdin}})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    work()
    assert ("3/3" in capsys.readouterr().err) == allow_stdin
