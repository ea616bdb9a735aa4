import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnnlab.campaign import cells
from gnnlab.campaign.cells import Cell, Settings, ask, measure, values_of
from gnnlab.child import Worker
from gnnlab.errors import GnnlabError
from gnnlab.workloads import graphs

SMALL = Cell("sage", 6, 11, 30, 1, 5, "torch:CPU")
QUICK = Settings(budget_s=0.01)


def test_a_measured_cell_has_all_its_samples_their_interval_and_its_conditions():
    assert SMALL.key == "11,30,torch:CPU,1-5" and replace(SMALL, first=5).key == "11,30,torch:CPU,5"
    outcome = measure(replace(SMALL, threads=2), QUICK)
    assert outcome.status == "measured" and outcome.reason is None and outcome.parity_error == 0
    assert outcome.median_ms == np.median(outcome.samples_ms) and outcome.std_ms == np.std(outcome.samples_ms)
    assert outcome.ci_ms[0] <= outcome.median_ms <= outcome.ci_ms[1]
    assert (outcome.precision, outcome.threads) == ("float32", 2)
    assert outcome.device and outcome.runtime_version == f"torch {torch.__version__}"


@pytest.mark.parametrize(
    ("off", "words"),
    [
        (lambda means: means + np.float32(1e-4) * np.abs(means).max(), "differs from torch's float32 block"),
        (lambda means: means * np.float32("nan"), "differs from torch's float32 block"),
        (lambda means: np.ones(3), "shape"),
    ],
)
def test_what_computes_something_else_is_wrong_and_never_timed(monkeypatch, off, words):
    monkeypatch.setattr(cells.timing, "measure", lambda *_, **__: pytest.fail("timed"))
    run = cells.Loaded(lambda values: {"means": off(values["means"])}, "device", "1.0")
    monkeypatch.setattr(cells, "load", lambda *_: run)
    outcome = measure(SMALL, QUICK)
    assert (outcome.status, outcome.samples_ms) == ("wrong", ()) and words in outcome.reason
    assert json.loads(json.dumps(outcome.to_json(), allow_nan=False))["device"] == "device"


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"unit": "fake_units:raises"}, "failed", "RuntimeError: the plugin says no"),
        ({"unit": "fake_units:runs_out_of_memory"}, "failed", "out of memory"),
        ({"unit": "fake_units:lies"}, "wrong", "differs from torch's float32 block"),
        ({"unit": "openvino:CPU"}, "unavailable", "openvino:CPU runs exported models, and no folder of them was given"),
        ({"unit": "fast:CPU", "first": 6, "last": 7}, "unavailable", "without a sum over neighbours"),
        ({"precision": "float16"}, "unavailable", "torch:CPU computes in float32 or bfloat16, not in float16"),
        ({"nodes": 0}, "failed", "random graph of 0 nodes"),
        ({"layer": "gat", "unit": "fast:CPU"}, "unavailable", "the fast forms are of GraphSAGE's stages, not of gat's"),
        ({"first": 5, "last": 8}, "failed", "sage: no block of stages 5..8"),
        ({"graph": "karate"}, "failed", "graph karate has 34 nodes and 156 edges, the cell says 11 and 30"),
        ({"graph": "not/there.npz"}, "failed", ""),
    ],
)
def test_what_goes_wrong_with_a_cell_is_its_outcome(changes, status, reason):
    threads = torch.get_num_threads()
    outcome = measure(replace(SMALL, threads=threads + 1, **changes), QUICK)
    assert outcome.status == status and outcome.reason.startswith(reason), outcome.reason
    assert outcome.samples_ms == () and outcome.median_ms is None
    assert ("in fail" in outcome.detail) == (changes.get("unit") == "fake_units:raises")  # where a unit raised it
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": "openvino:TPU"}, "unit 'openvino:TPU' is not known; one of openvino:CPU"),
        ({"layer": "gcn"}, "layer 'gcn' is not known; one of sage, gat"),
    ],
)
def test_a_cell_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(GnnlabError, match=message):
        measure(replace(SMALL, **changes), QUICK)


def test_lower_precision_is_set_and_has_its_own_bound():
    outcome = measure(Cell("sage", 64, 50, 100, 6, 6, "torch:CPU", "bfloat16"), QUICK)
    assert outcome.status == "measured" and outcome.precision == "bfloat16"
    assert 1e-5 < outcome.parity_error < 2e-2


def test_a_cell_can_be_on_a_real_graph():
    karate = graphs.load("karate")
    cell = Cell("sage", karate.num_features, 34, 156, 1, 5, "fast:CPU", graph="karate")
    assert measure(cell, QUICK).status == "measured"
    values = values_of(cell)
    assert np.array_equal(values["edge_index"], karate.edge_index) and np.array_equal(values["x"], karate.x)
    assert values_of(replace(cell, features=3))["x"].shape == (34, 3)


@pytest.fixture(scope="module")
def worker():
    with Worker() as one:
        yield one


@pytest.mark.parametrize(
    ("unit", "limit_s", "status", "reason"),
    [
        ("is_not_there", 60, "failed", "unit 'fake_units:is_not_there' is not known"),
        ("hangs", 0.5, "timeout", "no answer within 0.5 s"),
        ("exits_at_once", 60, "failed", "the process exited with code 3; it last said: driver: licence expired"),
    ],
)
def test_what_a_unit_does_to_its_process_costs_its_own_cell_alone(worker, unit, limit_s, status, reason):
    outcome = ask(worker, replace(SMALL, unit=f"fake_units:{unit}"), QUICK, limit_s)
    assert outcome.status == status and outcome.reason.startswith(reason)
    assert outcome.samples_ms == () and outcome.median_ms is None
    other = ask(worker, replace(SMALL, unit="fake_units:chatters"), QUICK, 60)
    assert other.status == "measured" and len(other.samples_ms) >= 6 and other.parity_error == 0
