"""Units that misbehave, for the tests of the child process; each is `fake_units:name`."""

import os
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np

from gnnlab.stages.units.torch_units import TorchUnit
from gnnlab.stages.units.unit import Availability, Unit


@dataclass(frozen=True)
class Fake(Unit):
    act: object = None

    def probe(self):
        self.act()
        return Availability(True)

    def load(self, layer, first, last, artefact, **conditions):
        self.act()
        like = TorchUnit("torch:CPU", "CPU", "torch")
        return like.load(layer, first, last, **conditions)


def fake(act):
    return lambda: Fake("fake", "CPU", "fake", act=act)


def _hang():
    time.sleep(3600)


def _hang_with_the_interpreter_locked():
    import ctypes

    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the lock


def _crash():
    print("driver: register dump follows", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def _exit():
    sys.exit(7)


def _exit_at_once():
    os.write(2, b"driver: licence expired\n")
    os._exit(3)


def _raise():
    raise RuntimeError("Exception from plugin.cpp:12:\nthe plugin says no")


def _eat():
    kept = []
    while True:
        kept.append(np.ones(2**22))  # 32 MiB, written
        time.sleep(0.005)


def _chatter():
    os.write(1, b'{"id": 1, "answer": {}}\nnot an answer\n' * 5000)
    print("more of it", file=sys.stderr)


def _rubbish():
    for descriptor in range(3, 30):
        try:
            os.write(descriptor, b"\x00\xffrubbish\n")
        except OSError:
            continue


def _start_a_process_and_hang():
    import subprocess

    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    print(f"started {started.pid}", flush=True)
    time.sleep(3600)


def _run_out_of_memory():
    raise MemoryError


def _nothing():
    pass


hangs, crashes, exits, exits_at_once = fake(_hang), fake(_crash), fake(_exit), fake(_exit_at_once)
hangs_locked, raises, eats, chatters = fake(_hang_with_the_interpreter_locked), fake(_raise), fake(_eat), fake(_chatter)
answers_rubbish, starts_a_process, behaves = fake(_rubbish), fake(_start_a_process_and_hang), fake(_nothing)


runs_out_of_memory = fake(_run_out_of_memory)


@dataclass(frozen=True)
class Liar(Fake):
    """Computes something else than it should."""

    def load(self, *arguments, **conditions):
        loaded = super().load(*arguments, **conditions)
        right = loaded.run
        loaded.run = lambda values: {name: array + 1 for name, array in right(values).items()}
        return loaded


def lies():
    return Liar("lies", "CPU", "fake", act=_nothing)
