"""The environment of a run is whole, without what it does not need, and says where it ran."""

import json
import platform

import pytest

from gnnlab import machine
from gnnlab.lab import provenance


def test_the_environment_has_what_matters_is_json_and_does_not_name_the_computer(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = provenance.collect()
    assert json.loads(json.dumps(environment, allow_nan=False)) == environment
    assert environment["cpu"]["logical"] >= 1 and environment["memory_gb"] > 0 and environment["threads"] >= 1
    assert environment["omp_num_threads"] == "1" and environment["cpu"]["usable"] == machine.cores()
    assert environment["versions"]["torch"].startswith("2.") and len(environment["load"]) == 3
    assert environment["devices"][0]["kind"] == "CPU" and environment["devices"][0]["name"] == machine.processor()
    assert platform.node() not in json.dumps(environment | {"os": None}) or not platform.node()


@pytest.mark.parametrize(
    ("cpu", "phrase"),
    [
        ({"cores": 2, "logical": 2, "usable": 2, "quota": None}, "A, 2 cores"),
        ({"cores": 1, "logical": 2, "usable": 1, "quota": None}, "A, 1 of 2 logical cores"),
        ({"cores": 4, "logical": 8, "usable": 2, "quota": 1.5}, "A, 1.5 of 8 logical cores"),
        ({"cores": 1, "logical": 1}, "A, 1 core"),  # a run of an earlier version
        ({"cores": None, "logical": None, "usable": 1}, "A"),
    ],
)
def test_a_reader_is_told_how_many_of_the_cores_a_run_might_use(cpu, phrase):
    assert provenance.in_a_phrase({"cpu": {"model": "A", **cpu}}) == phrase


def test_a_reader_sees_all_that_is_known_and_nothing_else():
    devices = [{"name": "A", "kind": "CPU", "driver": None}, {"name": "G", "kind": "GPU"}]
    state = {"omp_num_threads": "1", "load": [0.5, 1.0], "dirty": False}
    environment = {
        "cpu": {"model": "A", "l2_cache_bytes": 2**19},
        "devices": devices,
        "os": None,
        **state,
        "finished": state,
    }
    assert dict(provenance.in_rows(environment)) == {
        "cpu": "model A, l2 cache 0.5 MiB",
        "devices": "name A, kind CPU; name G, kind GPU",
        "OMP_NUM_THREADS": "1",
        "load (1, 5, 15 min)": "0.5 1.0",
        "uncommitted changes": "False",
        "at its end": "OMP_NUM_THREADS 1, load (1, 5, 15 min) 0.5 1.0, uncommitted changes False",
    }
    assert provenance.in_a_phrase(environment | {"versions": {"torch": "2"}}) == "A, G, torch 2"
