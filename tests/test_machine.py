"""What the machine is, for JSON, and what is said of a busy one, from planted loads."""

import json
import platform
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


GROUPS = {  # files of control groups, the groups of the process, and the cores that they grant
    "version 2, of a group above": ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 1.5),
    "version 2, the least": ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
    "version 1": (
        {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"},
        "4:memory:/z\n3:cpuacct,cpu:/a\n0::/",
        2.0,
    ),
    "version 1, no limit": ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/", None),
    "a container": ({"cpu.max": "50000 100000"}, "0::/hidden/from/here", 0.5),
}


@pytest.mark.parametrize(("written", "own", "granted"), GROUPS.values(), ids=GROUPS)
def test_the_quota_of_control_groups_is_seen_in_cores(tmp_path, written, own, granted):
    for name, text in written.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own + "\n")
    assert machine.quota(tmp_path / "cgroup", tmp_path / "own") == granted
    assert machine.quota(tmp_path / "none", tmp_path / "no file") is None


@pytest.mark.parametrize(("affinity", "quota", "cores"), [(8, None, 8), (1, None, 1), (8, 1.5, 2), (2, 4.0, 2)])
def test_the_cores_are_those_that_this_process_may_use(monkeypatch, affinity, quota, cores):
    process = SimpleNamespace(cpu_affinity=lambda: [*range(affinity)])
    monkeypatch.setattr(machine.psutil, "Process", lambda: process)
    monkeypatch.setattr(machine, "quota", lambda: quota)
    assert machine.cores() == cores


def test_the_environment_has_what_matters_is_json_and_does_not_name_the_computer(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = machine.environment()
    assert json.loads(json.dumps(environment, allow_nan=False)) == environment
    assert environment["cpu"]["logical"] >= 1 and environment["memory_gb"] > 0 and environment["threads"] >= 1
    assert environment["omp_num_threads"] == "1" and environment["cpu"]["usable"] == machine.cores()
    assert environment["versions"]["torch"].startswith("2.") and len(environment["load"]) == 3
    assert environment["devices"][0]["kind"] == "CPU" and environment["devices"][0]["name"] == machine.processor()
    assert platform.node() not in json.dumps(environment | {"os": None}) or not platform.node()
