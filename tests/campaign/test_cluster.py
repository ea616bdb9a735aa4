"""A campaign on a Dask cluster of two workers of different resources."""

import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from gnnlab import cli
from gnnlab.campaign import campaign, sizes

pytest.importorskip("distributed")
CPU, NPU = "torch:CPU", "fake_units:held_once"


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Two workers, each in a process that is started again when it is lost."""
    import dask
    from distributed import LocalCluster, Nanny

    monkeypatch.setenv("FAKE_UNIT_HELD", str(tmp_path / "held"))
    own = dask.config.set({"distributed.nanny.pre-spawn-environ": {}})  # it would stay in this process
    with own, LocalCluster(n_workers=0, dashboard_address=None) as local:
        for processor in ("CPU", "NPU"):
            about = {"nthreads": 1, "resources": {processor: 1}, "silence_logs": 50}
            local.worker_spec[processor] = {"cls": Nanny, "options": about}
        local.sync(local._correct_state)
        local.wait_for_workers(2, timeout=120)
        yield local


@pytest.mark.timeout(600)
def test_each_cell_runs_where_its_processor_is_and_a_lost_worker_costs_no_other(cluster, tmp_path):
    asked = {
        "models": tmp_path,
        "sizes": sizes.read(["30/90"]),
        "blocks": ["1", "3"],
        "names": [CPU, NPU, "openvino:GPU"],
    }
    with ThreadPoolExecutor(1) as pool:
        options = {"features": 8, "budget_s": 0.01, "cluster": cluster.scheduler_address}
        measuring = pool.submit(campaign.measure, tmp_path / "stages", **asked, **options)
        while not (tmp_path / "held").exists():
            assert not measuring.done(), measuring.result()
            time.sleep(0.05)
        psutil.Process(cluster.workers["NPU"].pid).kill()
        measured = measuring.result(timeout=300)
    assert measured.cells.groupby("unit")["status"].agg(set).to_dict() == {
        CPU: {"measured"},
        NPU: {"measured"},
        "openvino:GPU": {"unavailable"},
    }
    assert set(measured.cells.query("unit == 'openvino:GPU'")["reason"]) == {
        'no worker declares GPU=1 (dask worker --resources "GPU=1")'
    }


def test_a_scheduler_that_does_not_answer_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("gnnlab.campaign.cluster.CONNECT_S", 0.2)
    options = ["--sizes", "30/90", "--units", CPU, "--cluster", "tcp://127.0.0.1:9"]
    monkeypatch.setattr("gnnlab.lab.discovery.LAB", tmp_path)
    assert cli.main(["stages", "--measure", *options]) == cli.BAD_INPUT
    assert "no Dask scheduler answers at 'tcp://127.0.0.1:9'" in capsys.readouterr().err
