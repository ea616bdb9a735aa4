"""What a driver may do to its process, as targets of a worker; none of them needs torch."""

import os
import signal
import subprocess
import sys
import time

kept = {}


def behave(value=1):
    return value


def hang():
    time.sleep(3600)


def hang_with_the_interpreter_locked():
    import ctypes

    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the lock


def crash():
    print("driver: register dump follows", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    sys.exit(7)


def leave_at_once():
    os.write(2, b"driver: licence expired\n")
    os._exit(3)


def fail():
    raise RuntimeError("Exception from plugin.cpp:12:\nthe plugin says no")


def chatter():
    os.write(1, b'{"id": 1, "status": "done"}\nnot an answer\n' * 5000)
    print("more of it", file=sys.stderr)


def answer_rubbish():
    for descriptor in range(3, 30):
        try:
            os.write(descriptor, b"\x00\xffrubbish\n")
        except OSError:
            continue


def give_what_json_cannot_hold():
    return object()


def start_a_process_and_hang():
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    print(f"started {started.pid}", flush=True)
    time.sleep(3600)


def run_out_of_memory():
    raise MemoryError


def keep(key, value):
    kept[key] = value


def sum_of_kept(key):
    return sum(kept[key])
