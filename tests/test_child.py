"""Whatever a task does to its process costs that task alone."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from refusals import refused

from gnnlab.child import KEEP_MEMORY, Worker, describe_exit, worker_environment
from gnnlab.errors import GnnlabError

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and the C library's sleep are POSIX's")
SHARED = Path(__file__).parent / "shared"


@pytest.fixture(scope="module")
def worker():
    """One for all: each test leaves behind whatever its target did to it."""
    with Worker() as one:
        yield one


def call(worker, name, timeout_s=60, **arguments):
    return worker.call(name if ":" in name else f"misbehaving:{name}", arguments, timeout_s=timeout_s)


def gone(pid, within_s=100):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_task_is_done_in_another_process_that_keeps_its_state(worker):
    assert call(worker, "chatter").status == "done"  # what a driver prints gets between no answers
    answer = call(worker, "behave", value={"ms": [1.5, None], "text": "ü\n"})
    assert answer.status == "done" and answer.get() == {"ms": [1.5, None], "text": "ü\n"} and not answer.lost
    call(worker, "keep", key="plan", value=[1, 2])
    assert call(worker, "sum_of_kept", key="plan").get() == 3
    assert call(worker, "os:getpid").get() != os.getpid()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fail", "RuntimeError: the plugin says no"),
        ("run_out_of_memory", "MemoryError"),
        ("give_what_json_cannot_hold", "TypeError: Object of type object is not JSON serializable"),
        ("is_not_there", "AttributeError: module 'misbehaving' has no attribute 'is_not_there'"),
    ],
)
def test_what_a_target_raises_is_said_and_the_process_goes_on(worker, name, reason):
    before = call(worker, "os:getpid").get()
    answer = call(worker, name)
    assert (answer.status, answer.reason, answer.lost) == ("raised", reason, False)
    with pytest.raises(GnnlabError) as error:
        answer.get()
    if name == "fail":  # a developer sees where it was raised
        (note,) = error.value.__notes__
        assert note.startswith("Traceback") and "in fail" in note
    assert str(error.value) == reason and call(worker, "os:getpid").value == before


@pytest.mark.parametrize(
    ("name", "limit_s", "status", "reason"),
    [
        ("hang", 0.5, "timeout", "no answer within 0.5 s"),
        pytest.param("hang_with_the_interpreter_locked", 0.5, "timeout", "no answer within 0.5 s", marks=POSIX),
        ("leave", 60, "failed", "the process exited with code 7"),
        ("leave_at_once", 60, "failed", "the process exited with code 3; it last said: driver: licence expired"),
        ("answer_rubbish", 60, "failed", "the process broke the channel of its answers"),
        pytest.param(
            "crash", 60, "failed", "the process died of SIGSEGV; it last said: driver: register dump follows",
            marks=POSIX,
        ),
    ],
)  # fmt: skip
def test_a_task_that_costs_its_process_costs_no_other_task(worker, name, limit_s, status, reason):
    before = call(worker, "os:getpid").get()
    answer = call(worker, name, limit_s)
    assert answer.status == status and answer.lost and answer.reason.startswith(reason)
    assert gone(before) and call(worker, "behave").status == "done"


def test_a_time_limit_has_to_be_one(worker):
    with refused("seconds above 0"):
        call(worker, "behave", 0)


@POSIX
def test_processes_that_a_task_started_end_with_it(worker):
    answer = call(worker, "start_a_process_and_hang", 2)
    assert answer.reason.startswith("no answer within 2 s; it last said: started ")
    assert gone(int(answer.reason.split("started ")[1]))


def test_a_process_that_died_between_two_calls_is_replaced(worker):
    pid = call(worker, "os:getpid").get()
    psutil.Process(pid).kill()
    worker._process.wait(timeout=100)  # the first thread of a process is seen as ended before its others are
    assert call(worker, "behave").status == "done"


def test_a_process_that_hangs_in_its_start_is_ended(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.setattr("gnnlab.child.START_S", 1.5)
    with Worker(PYTHONPATH=str(tmp_path)) as hanging:
        answer = hanging.call("misbehaving:behave", timeout_s=60)
    assert answer.status == "timeout" and "no answer within 1.5 s" in answer.reason


def test_the_process_ends_with_its_parent_even_while_it_hangs(tmp_path):
    script = tmp_path / "parent.py"  # without a main guard: starting the worker must not run it again
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(SHARED)!r})\n"
        "from gnnlab.child import Worker\n"
        "worker = Worker()\n"
        "print(worker.call('os:getpid', timeout_s=60).get(), flush=True)\n"
        "worker.call('misbehaving:hang', timeout_s=600)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert gone(pid)


def test_ctrl_c_ends_the_process_that_nobody_waits_for_any_more(worker, monkeypatch):
    pid = call(worker, "os:getpid").get()

    def interrupted(timer):  # as Ctrl-C does; the signal itself is ignored where tests run in the background of a shell
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Timer, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(worker, "hang")
    assert gone(pid) and call(worker, "behave").status == "done"


def test_exit_codes_are_said_in_words():
    assert describe_exit(-9) == "the process died of SIGKILL, most often for want of memory"
    assert describe_exit(1) == "the process exited with code 1"
    assert describe_exit(-200) == "the process died of signal 200"


FAULTS = """
import resource, numpy as np
def results():
    return [np.ones(mib * 2**17) for mib in (8, 40, 1)]
for _ in range(4):
    results()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    results()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library's settings")
def test_a_result_takes_no_new_pages_from_the_second_time_on(monkeypatch):
    def faults(environment):
        done = subprocess.run(
            [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    plain = {name: value for name, value in worker_environment().items() if name not in KEEP_MEMORY}
    assert faults(worker_environment()) < 100 < faults(plain)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")  # what the caller sets stays
    environment = worker_environment(OMP_NUM_THREADS="1")
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment | KEEP_MEMORY | {"MALLOC_ARENA_MAX": "7"} == environment
