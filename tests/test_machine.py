"""What is said of a busy machine, from planted loads."""

from collections import namedtuple
from types import SimpleNamespace

import pytest

from gnnlab import machine


@pytest.mark.parametrize(
    ("others", "steal", "words"),
    [
        (3.0, 0.0, None),
        (3.0, None, None),
        (41.6, 0.5, "42 % of its CPU time goes to other programs"),
        (3.0, 12.0, "12 % of its CPU time goes to other guests of its host"),
    ],
)
def test_a_busy_machine_is_named_and_a_quiet_one_not(others, steal, words):
    assert machine.busy({"others_percent": others, "steal_percent": steal}) == words
    assert machine.busy({}) is None


def test_what_others_compute_is_what_is_neither_idle_nor_stolen_nor_this_process(monkeypatch, quiet_machine):
    Times = namedtuple("Times", ("user", "system", "idle", "steal"))
    times = [Times(10.0, 0.0, 90.0, 0.0), Times(16.0, 0.0, 92.0, 2.0)]
    own = [Times(1.0, 0.0, 0.0, 0.0), Times(2.0, 0.0, 0.0, 0.0)]
    monkeypatch.setattr(machine.psutil, "cpu_times", lambda: times.pop(0))
    monkeypatch.setattr(machine.psutil, "Process", lambda: SimpleNamespace(cpu_times=lambda: own.pop(0)))
    assert quiet_machine(0.0) == {"others_percent": 50.0, "steal_percent": 20.0}
