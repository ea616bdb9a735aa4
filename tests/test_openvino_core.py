"""A process that has used OpenVINO survives the end of a child while a signal handler waits for it."""

import subprocess
import sys

USES = """
import gc, signal, subprocess, sys
from gnnlab.lab import provenance
from gnnlab.openvino_core import openvino_core
from gnnlab.stages.units import openvino_units

def used():
    core = openvino_core()
    core.get_property("CPU", "FULL_DEVICE_NAME")
    return core

first = used()
openvino_units._try("CPU")
last = used()
provenance.devices()
del first
gc.collect()
del last
gc.collect()
signal.signal(signal.SIGCHLD, lambda number, frame: print("handled"))
subprocess.run([sys.executable, "-c", ""], check=True)
print("alive")
"""


def test_a_handled_signal_finds_its_stack():
    done = subprocess.run([sys.executable, "-c", USES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["handled", "alive"]), done.stderr
