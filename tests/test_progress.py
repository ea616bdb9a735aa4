"""Progress is shown to who watches, and nobody else."""

import io
from types import SimpleNamespace

import pytest

from gnnlab.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def work(file=None):
    with progress("cells", 3, file=file) as step:
        step("first")
        step("second", done=3)


def test_a_terminal_has_a_bar_that_goes_when_the_work_is_done_and_a_file_has_none():
    work(file := io.StringIO())
    assert file.getvalue() == ""
    terminal = Terminal()
    work(terminal)
    assert "1/3" in terminal.getvalue() and "second" in terminal.getvalue()
    assert terminal.getvalue().rstrip("\r").rpartition("\r")[2].strip() == ""


@pytest.mark.parametrize("allow_stdin", [True, False])
def test_cells_run_by_hand_have_a_bar_and_papermill_has_none(monkeypatch, capsys, allow_stdin):
    shell = SimpleNamespace(get_parent=lambda: {"content": {"allow_stdin": allow_stdin}})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    work()
    assert ("3/3" in capsys.readouterr().err) == allow_stdin
