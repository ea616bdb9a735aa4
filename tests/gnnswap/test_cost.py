"""Peak memory by torch's allocator and by the process, in fresh processes: with the C library as it is, and as it gives
freed memory back at once."""

import json
import os
import subprocess
import sys

import pytest
import torch

from gnnswap import cost

CPU, MIB = torch.device("cpu"), 2**20
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
CASES = """
import json, subprocess, sys, threading
import numpy as np
import torch
from gnnswap.cost import peak_memory
torch.set_num_threads(1)
FLOATS = 2 * 2**20  # of 8 MiB
linear = torch.nn.Linear(1024, 1024)  # 4 MiB of gradients
x = torch.ones(8, 1024)

def on_a_thread():
    thread = threading.Thread(target=lambda: torch.ones(FLOATS))
    thread.start(), thread.join()

def step():
    linear.zero_grad()
    linear(x).sum().backward()

cases = {
    "nothing": lambda: None,
    "torch": lambda: torch.ones(FLOATS),
    "numpy": lambda: np.ones(FLOATS, np.float32),
    "thread": on_a_thread,
    "unwritten": lambda: torch.empty(FLOATS),
    "step": step,
    "child": lambda: subprocess.run([sys.executable, "-S", "-c", "0"]),
}
seen = {}
for name, run in cases.items():
    run(), run()
    peaks = [peak_memory(run, torch.device("cpu")) for _ in range(2)]
    seen[name] = [[p.peak / 2**20, p.process / 2**20, p.agrees, str(p)] for p in peaks]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen():
    """What two calls of each case gave, after two that do not count, by whether freed memory goes back at once."""
    found = {}
    for at_once in (True, False):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CASES],
            env=environment | (FREED_AT_ONCE if at_once else {}),
            capture_output=True,
            text=True,
            check=True,
        )
        found[at_once] = json.loads(done.stdout)
    return found


linux = pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell the peak of a process")


@linux
@pytest.mark.parametrize(
    ("case", "peak", "process", "agrees", "words"),
    [
        ("nothing", 0, 0, True, "they agree"),
        ("torch", 8, 8, True, "they agree"),
        ("numpy", 0, 8, False, "outside of torch's allocator or on another thread"),
        ("thread", 0, 8, False, "outside of torch's allocator or on another thread"),
        ("unwritten", 8, 0, False, "some blocks were never written"),
        ("child", 0, 0, False, "child processes worked, whose memory is not seen"),
    ],
)
def test_what_torch_does_not_see_the_process_does_and_where_they_differ_it_is_said(
    seen, case, peak, process, agrees, words
):
    for found in seen[True][case]:
        assert found[:2] == [pytest.approx(peak, abs=0.1), pytest.approx(process, abs=0.6)]
        assert found[2] is agrees and words in found[3]


@linux
def test_where_freed_memory_stays_resident_nothing_unseen_passes_for_agreement(seen):
    found = {case: {peak[2] for peak in peaks} for case, peaks in seen[False].items()}
    assert found["numpy"] == found["child"] == {False} and True not in found["thread"]
    assert False not in found["torch"]


@linux
def test_a_step_that_frees_older_gradients_is_said_to_differ_and_is_right_the_second_time(seen):
    (first, process, agrees, words), again = seen[True]["step"]
    assert first > 4 and process < 1 and agrees is False and "older ones freed, which torch does not see" in words
    assert again[0] < 0.2 and again[2] is True


def test_a_system_that_does_not_tell_the_peak_of_a_process_leaves_it_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(cost, "CLEAR", tmp_path / "no" / "clear_refs")
    peak = cost.peak_memory(lambda: torch.ones(MIB), CPU)
    assert (peak.peak, peak.process, peak.agrees) == (4 * MIB, None, None)
    assert str(peak) == "torch's allocator 4.0 MiB, process not known here"
