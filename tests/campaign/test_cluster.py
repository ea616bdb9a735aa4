"""A campaign on two workers of different resources: each cell where its device is, one measurement per host at once."""

import subprocess
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest
from distributed import Client, LocalCluster, Worker

from gnnlab.campaign import campaign, cluster, measure, sizes
from gnnlab.campaign.campaign import WantedCells
from gnnlab.campaign.cells import Cell, CellResult, Settings
from gnnlab.campaign.cluster import ClusterUnits
from gnnlab.errors import GnnlabError
from gnnlab.units.unit import Availability

RESOURCES = {"npu": {"NPU": 1, "HOST": 1}, "gpu": {"GPU": 1, "HOST": 1}}
CELLS = [
    Cell("sage", 4, nodes, 20, 1, 1, unit)
    for nodes in (10, 11, 12)
    for unit in ("simulated:NPU", "simulated:GPU", "torch:CPU")
]
_busy, _noticed = threading.Lock(), threading.Event()  # the workers are threads of this process


def fake_ask(cell, settings, timeout_s):
    """Fails where two measurements run at once; says on what worker it ran."""
    from distributed import get_worker

    if not _busy.acquire(blocking=False):
        return CellResult("failed", "two measurements at once")
    try:
        time.sleep(0.005)
        if cell.nodes == 13:
            raise RuntimeError("the driver\nis gone")
        return CellResult(
            "measured", samples_ms=(1.0,), median_ms=1.0, ci_ms=(1.0, 1.0), std_ms=0.0, device=get_worker().name
        )
    finally:
        _busy.release()


def fake_probe(unit):
    return Availability(unit != "openvino:NPU", "no such device", "a driver", device=unit)


@pytest.fixture(scope="module")
def client():
    options = {"dashboard_address": None, "processes": False, "n_workers": 0}
    with LocalCluster(**options) as local:
        for name, resources in RESOURCES.items():
            about = {"nthreads": 2, "resources": resources, "dashboard": False, "silence_logs": 50}
            local.worker_spec[name] = {"cls": Worker, "options": about}
        local.sync(local._correct_state)
        with Client(local) as connected:
            connected.wait_for_workers(2, timeout=30)
            yield connected


def units_of(client, cells):
    names = [cell.unit for cell in cells]
    return ClusterUnits(client, names, Settings(), 5.0, ask=fake_ask, probe=fake_probe)


def test_each_cell_runs_where_its_device_is_and_never_two_on_one_host(client, tmp_path):
    plan = WantedCells("c", {cell: cell.key for cell in CELLS})
    with units_of(client, CELLS) as remote:
        done = campaign.run(tmp_path, plan, remote, reference=remote.reference, every=4, drift=100.0)
    assert Counter(o.status for o in done.outcomes.values()) == {"measured": len(CELLS)}
    for cell, outcome in done.outcomes.items():
        if not cell.unit.endswith("CPU"):
            assert outcome.device == cell.unit.partition(":")[2].lower()
    assert len({answer.host for answer in done.answers}) == 1
    assert campaign.run(tmp_path, plan, remote, reference=remote.reference, drift=100.0).measured == 0


def test_a_resource_that_no_worker_has_any_more_is_said_once_it_does_not_come_back(client, monkeypatch):
    monkeypatch.setattr(cluster, "GONE_S", 0.2)
    with units_of(client, CELLS) as remote:
        remote._workers = lambda: [w for w in ClusterUnits._workers(remote) if "NPU" not in w.resources]
        start = time.perf_counter()
        found = {answer.cell: answer.outcome for answer in remote(CELLS)}
    assert time.perf_counter() - start < 30
    for cell in CELLS:
        assert found[cell].status == ("unavailable" if cell.unit == "simulated:NPU" else "measured")
    assert "no worker has NPU=1 HOST=1; start one with" in found[CELLS[0]].reason


def test_a_unit_without_its_driver_and_a_cell_that_fails_are_outcomes(client):
    cells = [Cell("sage", 4, 10, 20, 1, 1, "openvino:NPU"), Cell("sage", 4, 13, 20, 1, 1, "torch:CPU"), CELLS[2]]
    with units_of(client, cells) as remote:
        found = {answer.cell: answer.outcome for answer in remote(cells)}
    assert [found[cell].status for cell in cells] == ["unavailable", "failed", "measured"]
    assert found[cells[0]].reason == "no such device; what helps: a driver"
    assert "the driver" in found[cells[1]].reason and "\n" not in found[cells[1]].reason


def test_a_worker_that_is_lost_costs_its_cell(client, monkeypatch):
    monkeypatch.setattr(cluster, "_LOOK_S", 0.05)
    monkeypatch.setattr(cluster, "GONE_S", 0.2)
    with units_of(client, CELLS) as remote:
        looks = iter([remote._workers()])
        remote._workers = lambda: next(looks, [])  # both are gone at the second look
        remote._ask = ask_without_end
        found = [answer.outcome for answer in remote(CELLS[:2])]
        _noticed.set()
    assert [outcome.status for outcome in found] == ["failed", "unavailable"] and "was lost" in found[0].reason


def ask_without_end(cell, settings, timeout_s):
    _noticed.wait(60)
    return CellResult("failed", "nobody waits for this")


def test_the_reference_is_that_of_each_host(client):
    with units_of(client, CELLS) as remote:
        assert set(remote.reference()) == {worker.host for worker in remote._workers()}


def test_the_resources_follow_from_the_unit():
    assert cluster.needs("openvino:NPU") == {"NPU": 1, "HOST": 1}
    assert cluster.needs("torch:CUDA") == {"GPU": 1, "HOST": 1} and cluster.needs("torch:CPU") == {"HOST": 1}


def test_a_cluster_without_workers_is_one_line():
    class Empty:
        status, scheduler = "running", SimpleNamespace(identity=None, address="tcp://127.0.0.1:1")

        def sync(self, asked, n_workers):
            return {"workers": {}}

    with pytest.raises(GnnlabError, match="has no workers; start one"):
        ClusterUnits(Empty(), ["torch:CPU"], Settings(), 1.0)


def test_the_whole_campaign_runs_on_a_cluster_by_its_address(client, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "ask_child", fake_ask)
    monkeypatch.setattr(cluster, "probe_child", fake_probe)
    names = ["torch:CPU", "simulated:NPU"]
    asked = {"models": tmp_path, "sizes": sizes.read(["10/20"]), "blocks": ["1"], "names": names}
    address = client.scheduler.address
    found = measure.measure(tmp_path / "stages", **asked, features=4, cluster=address).cells.set_index("unit")
    assert dict(found["status"]) == dict.fromkeys(names, "measured") and found.loc["simulated:NPU", "device"] == "npu"


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "10.0.0.1:8786", "bench:8786", "tcp://0.0.0.0:8786"])
def test_an_address_without_tls_that_others_reach_is_warned_of(address):
    assert "can run any Python" in cluster.exposed(address)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8786", "[::1]:8786", "localhost:8786", "tls://bench:8786"])
def test_this_machine_and_tls_are_not_warned_of(address):
    assert cluster.exposed(address) is None


def test_a_cluster_started_as_documented_listens_to_this_machine_alone():
    assert cluster.SCHEDULER in cluster.__doc__ and cluster.LOOPBACK in cluster.WORKER
    options = cluster.SCHEDULER.removeprefix("dask scheduler").split()
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        next(line for line in process.stderr if "Scheduler at:" in line)
        found = [c.laddr.ip for c in psutil.Process(process.pid).net_connections("inet") if c.status == "LISTEN"]
        assert found and set(found) == {"127.0.0.1"}
    finally:
        process.kill()
        process.communicate()


def test_tls_without_certificates_is_one_line_that_names_the_settings(tmp_path):
    asked = {"models": tmp_path, "sizes": sizes.read(["10/20"]), "blocks": ["1"], "names": ["torch:CPU"], "features": 4}
    with pytest.raises(GnnlabError, match="set DASK_DISTRIBUTED__COMM__TLS__CA_FILE") as error:
        measure.measure(tmp_path / "stages", **asked, cluster="tls://127.0.0.1:9")
    assert "\n" not in str(error.value)
