"""Processes that measure keep what they freed, unless their caller's environment says otherwise."""

import subprocess
import sys

import pytest

from gnnlab.stages.child_environment import KEEP_MEMORY, child_environment

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
def test_a_result_takes_no_new_pages_from_the_second_time_on():
    def faults(environment):
        done = subprocess.run(
            [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    plain = {name: value for name, value in child_environment().items() if name not in KEEP_MEMORY}
    assert faults(child_environment()) < 100 < faults(plain)


def test_what_the_caller_sets_stays(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    found = child_environment(OMP_NUM_THREADS="1")
    assert found["MALLOC_ARENA_MAX"] == "7" and found["OMP_NUM_THREADS"] == "1"
    assert {name: found[name] for name in KEEP_MEMORY if name != "MALLOC_ARENA_MAX"}.items() <= KEEP_MEMORY.items()
