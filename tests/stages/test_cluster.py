"""A sweep on a Dask cluster of two workers of different resources."""

import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from refusals import refused

from gnnlab.stages import measure, sizes

pytest.importorskip("distributed")
CPU, NPU, GPU = "torch:CPU", "fake_devices:held_once", "openvino:GPU"
ASKED = {"models": "none", "sizes": sizes.read(["30x90"]), "features": 16, "budget_s": 0.01, "blocks": ["1"]}


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Two workers, each in a process that is started again when it is lost."""
    import dask
    from distributed import LocalCluster, Nanny

    monkeypatch.setenv("FAKE_DEVICE_HELD", str(tmp_path / "held"))
    own = dask.config.set({"distributed.nanny.pre-spawn-environ": {}})  # it would stay in this process
    with own, LocalCluster(n_workers=0, dashboard_address=None) as local:
        for processor in ("CPU", "NPU"):
            about = {"nthreads": 1, "resources": {processor: 1}, "silence_logs": 50}
            local.worker_spec[processor] = {"cls": Nanny, "options": about}
        local.sync(local._correct_state)
        local.wait_for_workers(2, timeout=120)
        yield local


@pytest.mark.timeout(600)
def test_each_measurement_runs_where_its_processor_is_and_a_lost_worker_costs_no_other(cluster, tmp_path):
    asked = {**ASKED, "devices": [CPU, NPU, GPU], "cluster": cluster.scheduler_address}
    with ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(measure.measure, tmp_path / "stages", **asked)
        while not (tmp_path / "held").exists():
            assert not measuring.done(), measuring.result()
            time.sleep(0.05)
        psutil.Process(cluster.workers["NPU"].pid).kill()
        frame = measuring.result(timeout=300).frame
    statuses = frame.set_index("device")[["status", "reason"]].agg(tuple, axis=1).to_dict()
    why = 'no worker declares GPU=1 (dask worker --resources "GPU=1")'
    assert statuses == {CPU: ("measured", ""), NPU: ("measured", ""), GPU: ("unavailable", why)}


def test_a_scheduler_that_does_not_answer_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("gnnlab.stages.cluster.CONNECT_S", 0.2)
    with refused("no Dask scheduler answers at 'tcp://127.0.0.1:9'"):
        measure.measure(tmp_path, **ASKED, devices=[CPU], cluster="tcp://127.0.0.1:9")
