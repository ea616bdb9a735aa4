"""A process that has used OpenVINO survives the end of a child; all that runs there has the same conditions."""

import json
import subprocess
import sys
from pathlib import Path

from gnnlab.openvino_core import configuration

USES = """
import gc, signal, subprocess, sys
from gnnlab import machine
from gnnlab.openvino_core import openvino_core
from gnnlab.stages import runtimes

def used():
    core = openvino_core()
    core.get_property("CPU", "FULL_DEVICE_NAME")
    return core

first = used()
assert runtimes.openvino_refuses("CPU") is None
last = used()
machine.devices()
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


def test_a_device_is_told_precision_and_a_cpu_its_threads_which_are_not_bound_to_cores():
    assert configuration("CPU", "float32", 2) == {
        "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 2,
        "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False,
    }  # fmt: skip
    assert configuration("NPU", "float16", 2) == {"INFERENCE_PRECISION_HINT": "f16", "PERFORMANCE_HINT": "LATENCY"}


def test_notebooks_compile_for_openvino_under_that_configuration_and_no_other():
    for notebook in (Path(__file__).parents[1] / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        source = "".join(line for cell in cells if cell["cell_type"] == "code" for line in cell["source"])
        assert source.count("compile_model(") == 0 or "configuration(" in source, notebook
        assert "INFERENCE_" not in source and "NUM_STREAMS" not in source, notebook
