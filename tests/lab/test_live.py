"""The printed lines: whole, plain, and as many as promised."""

import io

import pytest
from rich.console import Console

from gnnlab.lab.live import Live, duration


@pytest.fixture
def log():
    return Live(Console(file=io.StringIO(), width=40), width=10)


def printed(live):
    return live.console.file.getvalue()


def test_a_line_is_not_wrapped_and_not_read_as_markup(log):
    log.ended("01_first", "failed", "3 s", "IndexError: [red]" + "long " * 30)
    assert printed(log) == "01_first    failed   3 s  IndexError: [red]" + "long " * 30 + "\n"


def test_a_log_says_at_the_start_why_and_draws_no_bar(log):
    with log.running("01_first", "runs again: code changed (a.py)") as bar:
        for done in range(1000):
            bar.show(done, 1000, "A heading")
    log.ended("01_first", "passed", "3 s", why="runs again: code changed (a.py)")
    assert printed(log).splitlines() == [
        "01_first    running  runs again: code changed (a.py)",
        "01_first    passed   3 s",
    ]


def test_which_of_several_runs_this_is_stands_before_why(log):
    with log.running("01_first", "first run", "run 1 of 5"):
        pass
    with log.running("01_first", "", "run 2 of 5"):
        pass
    assert printed(log).splitlines() == [
        "01_first    running  run 1 of 5, first run",
        "01_first    running  run 2 of 5",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.84, "0.8 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s")],
)
def test_durations_are_said_as_readers_say_them(seconds, text):
    assert duration(seconds) == text
