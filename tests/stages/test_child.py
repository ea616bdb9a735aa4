import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gnnlab.stages.campaign.cells import Cell, Outcome, Settings
from gnnlab.stages.campaign.child import Child, _manner
from gnnlab.stages.errors import StageError

SETTINGS = Settings(budget_s=0.01)
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def child():
    """One for all: each test leaves behind whatever its unit did to it."""
    with Child() as one:
        yield one


def cell(unit, **changes):
    fields = {
        "layer": "sage",
        "features": 4,
        "nodes": 8,
        "edges": 12,
        "first": 1,
        "last": 2,
        "unit": f"fake_units:{unit}",
    }
    return Cell(**(fields | changes))


def gone(pid, within_s=10):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_cell_is_measured_in_another_process_and_comes_back_whole(child):
    outcome = child.ask(cell("behaves"), SETTINGS, 60)
    assert outcome.status == "measured" and outcome.parity_error == 0
    assert len(outcome.samples_ms) >= 6 and outcome.ci_ms[0] <= outcome.median_ms <= outcome.ci_ms[1]
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert child.pid not in (None, os.getpid())


def test_the_process_serves_on_while_nothing_goes_wrong(child):
    child.ask(cell("behaves"), SETTINGS, 60)
    before = child.pid
    assert child.ask(cell("raises"), SETTINGS, 60).reason == "RuntimeError: the plugin says no"
    assert child.ask(cell("lies"), SETTINGS, 60).status == "wrong"
    assert child.ask(cell("behaves"), SETTINGS, 60).status == "measured"
    assert child.pid == before


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and the C library's sleep are POSIX's")


@pytest.mark.parametrize(
    ("unit", "limit_s", "status", "reason"),
    [
        ("hangs", 0.5, "timeout", "no answer within 0.5 s"),
        pytest.param(
            "crashes", 60, "failed", "the process died of SIGSEGV; it last said: driver: register dump follows",
            marks=POSIX,
        ),
    ],
)  # fmt: skip
def test_what_a_unit_does_to_its_process_costs_its_own_cell_alone(child, unit, limit_s, status, reason):
    outcome = child.ask(cell(unit), SETTINGS, limit_s)
    assert outcome.status == status and outcome.reason.startswith(reason)
    assert outcome.samples_ms == () and outcome.median_ms is None and outcome.started
    assert child.pid is None
    assert child.ask(cell("behaves"), SETTINGS, 60).status == "measured"


@pytest.mark.parametrize(
    ("unit", "limit_s", "why"),
    [
        ("exits", 60, "the process exited with code 7"),
        ("answers_rubbish", 60, "answered rubbish"),
        ("exits_at_once", 60, "the process exited with code 3; it last said: driver: licence expired"),
        pytest.param("hangs_locked", 0.5, "no answer within 0.5 s", marks=POSIX),
        ("raises", 60, "RuntimeError: the plugin says no"),
        ("is_not_there", 60, "StageError: unit 'fake_units:is_not_there' is not known"),
    ],
)
def test_a_unit_that_cannot_even_be_tried_is_not_usable_and_says_why(child, unit, limit_s, why):
    found = child.probe(f"fake_units:{unit}", limit_s)
    assert not found.usable and found.why.startswith(why)
    assert child.probe("fake_units:behaves", 60).usable


def test_a_unit_that_eats_memory_is_ended_at_the_limit():
    with Child(memory_bytes=400_000_000) as small:
        found = small.probe("fake_units:eats", 60)
        assert not found.usable and "GB of memory, allowed are 0.40 GB" in found.why


def test_what_a_driver_prints_gets_between_no_answers(child):
    for _ in range(2):
        assert child.ask(cell("chatters"), SETTINGS, 60).status == "measured"


def test_processes_that_a_unit_started_end_with_it(child):
    found = child.probe("fake_units:starts_a_process", 2)
    assert found.why.startswith("no answer within 2 s; it last said: started ")
    assert gone(int(found.why.split("started ")[1]))


def test_a_process_killed_between_two_cells_is_replaced(child):
    child.probe("fake_units:behaves", 60)
    for _ in range(3):  # noticed before the request is sent, or only then
        psutil.Process(child.pid).kill()
        assert child.probe("fake_units:behaves", 60).usable


def test_what_a_cell_cannot_be_asked_for_is_said(child):
    outcome = child.ask(cell("is_not_there"), SETTINGS, 60)
    assert outcome.status == "failed" and "is not known" in outcome.reason
    with pytest.raises(StageError, match="seconds above 0"):
        child.ask(cell("behaves"), SETTINGS, 0)


@pytest.mark.parametrize(
    ("unit", "limit_s"), [("hangs", 600), pytest.param("hangs_locked", 4, marks=POSIX)]
)  # with the interpreter locked nothing sees the parent go: the limit ends it
def test_the_process_ends_with_its_parent_even_while_it_hangs(tmp_path, unit, limit_s):
    script = tmp_path / "parent.py"  # without a main guard: starting the child must not run it again
    script.write_text(
        "import sys, threading, time\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from gnnlab.stages.campaign.child import Child\n"
        "child = Child()\n"
        f"threading.Thread(target=child.probe, args=('fake_units:{unit}', {limit_s}), daemon=True).start()\n"
        "while child.pid is None: time.sleep(0.01)\n"
        "time.sleep(1)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert gone(pid, within_s=15)


def test_ctrl_c_ends_the_process_that_nobody_waits_for_any_more(child, monkeypatch):
    child.probe("fake_units:behaves", 60)
    pid = child.pid
    monkeypatch.setattr(type(child._process), "_check_memory", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        child.ask(cell("hangs"), SETTINGS, 60)
    assert gone(pid) and child.pid is None


@pytest.mark.parametrize(
    ("code", "manner"),
    [(-9, "died of SIGKILL (the system does that when memory runs out)"), (1, "exited with code 1"),
     (0xC0000005, "crashed with code 0xC0000005"), (-200, "died of signal 200")],
)  # fmt: skip
def test_exit_codes_are_said_in_words(code, manner):
    assert manner in _manner(code)
