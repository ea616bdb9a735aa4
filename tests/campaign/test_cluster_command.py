"""`gnnlab stages --cluster` as it is typed, on two `dask worker` processes, one of which is killed in the middle."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("distributed")

ROOT = Path(__file__).parents[2]
LOOPBACK = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
NPU, CPU = "held_unit:npu", "torch:CPU"
UNIT = """
import time
from dataclasses import dataclass
from pathlib import Path

from gnnlab.units.torch_units import TorchUnit
from gnnlab.units.unit import Availability, Unit

HELD = Path(__file__).with_name("held")


@dataclass(frozen=True)
class Held(Unit):
    def probe(self):
        return Availability(True, device="a device of one worker")

    def load(self, layer, first, last, artefact=None, *, nodes, **conditions):
        if not HELD.exists():  # the first cell: here the worker is killed
            HELD.touch()
            time.sleep(600)
        return TorchUnit("torch:CPU", "CPU", "torch").load(layer, first, last, nodes=nodes, **conditions)


def npu():
    return Held("npu", "NPU", "fake")
"""


@contextmanager
def started(folder, name, *options):
    """A Dask process in `folder`, whose log is `name`."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{name.partition('-')[0]}", *options, *LOOPBACK]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    with (folder / name).open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stderr=log, stdout=log, env=environment)
    try:
        yield process
    finally:
        end(process.pid)
        process.wait()


def end(pid):
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] if psutil.pid_exists(pid) else []
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def waited_for(what, timeout_s=400):
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


def address_of(log):
    lines = [line.split()[-1] for line in log.read_text().splitlines() if "Scheduler at:" in line]
    return lines[0] if lines else None


def gnnlab(folder, *arguments):
    command = [sys.executable, "-m", "gnnlab", "stages", *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def measurements(folder):
    raw = json.loads((folder / "out/stages/raw_measurements.json").read_bytes())["measurements"]
    return {key: (found["outcome"]["status"], found["outcome"]["reason"]) for key, found in raw.items()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_that_is_killed_in_the_middle_costs_one_cell_and_the_same_command_measures_it(tmp_path):
    (tmp_path / "held_unit.py").write_text(UNIT)
    set_ = tmp_path / "mine"
    set_.mkdir()
    for name in ("05_npu_measure", "06_bandwidth_analysis"):
        extra = "points: 2\n" if name.startswith("06") else "features: 8\n"
        (set_ / f"{name}.yaml").write_text(f"{extra}budget_s: 0.01\noutput_dir: {tmp_path / 'out'}\n")
    with started(tmp_path, "scheduler", "--port", "0") as scheduler:
        address = waited_for(lambda: address_of(tmp_path / "scheduler"))
        one = ["--nthreads", "1", "--resources"]
        with (
            started(tmp_path, "worker-npu", address, *one, "NPU=1 HOST=1") as npu,
            started(tmp_path, "worker-cpu", address, *one, "HOST=1"),
        ):
            given = ["--params", str(set_), "--sizes", "30/90", "--blocks", "3", "6", "7", "--units", NPU, CPU]
            measuring = gnnlab(tmp_path, "--measure", "--cluster", address, *given)
            waited_for(lambda: (tmp_path / "held").exists() or measuring.poll() is not None)
            assert measuring.poll() is None, measuring.communicate()[1]
            for child in psutil.Process(npu.pid).children():  # what `dask worker` watches over, and starts again
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()
            said = measuring.communicate(timeout=240)[1]
            assert measuring.returncode == 0, said
            found = measurements(tmp_path)
            lost = {key: why for key, (status, why) in found.items() if status != "measured"}
            assert len(found) == 6 and len(lost) == 1 and NPU in next(iter(lost)), said
            assert "was lost" in next(iter(lost.values())) and "failed, 1 of held_unit:npu: worker" in said
            again = gnnlab(tmp_path, "--measure", "--analyze", "--cluster", address, *given)
            printed, said = again.communicate(timeout=240)
            assert again.returncode == 0 and "6 cells, 5 known before" in said, said
            assert {status for status, _ in measurements(tmp_path).values()} == {"measured"}
            lookup = json.loads((tmp_path / "out/tables/lookup_table.json").read_bytes())
            assert {key.split(",")[2] for key in lookup} == {"CPU", "NPU"} and "held_unit:npu" in printed
            (tmp_path / "held").unlink()
            lost = gnnlab(tmp_path, "--measure", "--cluster", address, "--params", str(set_), "--sizes", "40/90",
                          "--blocks", "3", "--units", NPU)  # fmt: skip
            waited_for((tmp_path / "held").exists)
            end(scheduler.pid)
            said = lost.communicate(timeout=240)[1].splitlines()
            assert lost.returncode == 2 and "the scheduler of the cluster is gone" in said[-1], said
