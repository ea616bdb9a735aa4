import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.campaign import cells
from gnnlab.campaign.cell_inputs import _values, graph_of, values_of
from gnnlab.campaign.cells import Cell, CellResult, Settings, ask, measure
from gnnlab.errors import GnnlabError
from gnnlab.profiling.timing import Timing
from gnnlab.worker import Worker
from gnnlab.workloads import graphs

SMALL = Cell("sage", 6, 11, 30, 1, 5, "torch:CPU")
QUICK = Settings(budget_s=0.01)


def test_a_cell_is_known_by_nodes_edges_unit_and_stages():
    assert replace(SMALL, first=1, last=1, unit="openvino:CPU").key == "11,30,openvino:CPU,1"
    assert SMALL.key == "11,30,torch:CPU,1-5"


def test_a_measured_cell_has_all_its_samples_their_interval_and_its_conditions():
    outcome = measure(replace(SMALL, threads=2), QUICK)
    assert outcome.status == "measured" and outcome.reason is None and outcome.parity_error == 0
    assert outcome.median_ms == np.median(outcome.samples_ms) and outcome.std_ms == np.std(outcome.samples_ms)
    assert outcome.ci_ms[0] <= outcome.median_ms <= outcome.ci_ms[1]
    assert (outcome.precision, outcome.threads) == ("float32", 2)
    assert outcome.device and outcome.runtime_version == f"torch {torch.__version__}"


@pytest.mark.parametrize("error", [1e-4, math.nan, math.inf])
def test_what_computes_something_else_is_wrong_and_never_timed(monkeypatch, error):
    def off(values):
        return {"means": values["means"] + np.float32(error) * np.abs(values["means"]).max()}

    monkeypatch.setattr(cells.timing, "measure", lambda *_, **__: pytest.fail("timed"))
    monkeypatch.setattr(cells, "load", lambda *_: cells.Loaded(off, "device", "1.0"))
    outcome = measure(SMALL, QUICK)
    assert (outcome.status, outcome.samples_ms) == ("wrong", ())
    assert "differs from torch's float32 block" in outcome.reason
    assert json.loads(json.dumps(outcome.to_json(), allow_nan=False))["device"] == "device"


def test_an_output_of_another_shape_is_an_outcome_too(monkeypatch):
    monkeypatch.setattr(cells, "load", lambda *_: cells.Loaded(lambda values: {"means": np.ones(3)}, "device", "1.0"))
    outcome = measure(SMALL, QUICK)
    assert outcome.status == "wrong" and "shape" in outcome.reason and outcome.parity_error is None


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"unit": "fake_units:raises"}, "failed", "RuntimeError: the plugin says no"),
        ({"unit": "fake_units:runs_out_of_memory"}, "failed", "out of memory"),
        ({"unit": "fake_units:lies"}, "wrong", "differs from torch's float32 block"),
        ({"unit": "openvino:CPU"}, "unavailable", "openvino:CPU runs exported models, and no folder of them was given"),
        ({"unit": "fast:CPU", "first": 6, "last": 7}, "unavailable", "TRANSFORM..ACTIVATE has no sum over neighbours"),
        ({"precision": "float16"}, "unavailable", "torch:CPU computes in float32 or bfloat16, not in float16"),
        ({"nodes": 0}, "failed", "random graph of 0 nodes"),
        ({"layer": "gat", "unit": "fast:CPU"}, "unavailable", "the fast forms are of GraphSAGE's stages, not of gat's"),
        ({"first": 5, "last": 8}, "failed", "sage: no block of stages 5..8"),
        (
            {"graph": "karate"},
            "failed",
            "graph karate has 34 nodes and 156 edges, the cell says 11 and 30",
        ),
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
        ({"unit": "json:loads"}, "is not known"),
        ({"unit": ""}, "is not known"),
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


def test_random_graphs_repeat_targets_leave_a_node_alone_and_are_always_the_same():
    target = values_of(SMALL)["edge_index"][1]
    degrees = np.bincount(target, minlength=11)
    assert degrees.max() > 1 and degrees.min() == 0
    graph_of.cache_clear()
    _values.cache_clear()
    assert np.array_equal(values_of(SMALL)["edge_index"][1], target)


def test_samples_are_taken_by_the_rules_of_the_lab(monkeypatch):
    asked = {}

    def timed(form, **options):
        asked.update(options, gave=form())
        return Timing((1.0, 2.0, 3.0, 2.0, 2.0, 2.0), notes=("noisy",))

    monkeypatch.setattr(cells.timing, "measure", timed)
    outcome = measure(SMALL, Settings(budget_s=3))
    assert asked["budget_s"] == 3 and set(asked["gave"]) == {"means"}
    assert outcome.samples_ms == (1.0, 2.0, 3.0, 2.0, 2.0, 2.0)
    assert (outcome.median_ms, outcome.notes) == (2.0, ("noisy",))


times = st.floats(min_value=0, max_value=1e9, allow_nan=False)
outcomes = st.builds(
    CellResult,
    status=st.sampled_from(["measured", "simulated"]),
    samples_ms=st.lists(times, min_size=1, max_size=5).map(tuple),
    median_ms=times,
    ci_ms=st.tuples(times, times),
    std_ms=times,
    parity_error=st.none() | times,
    device=st.text(),
    notes=st.lists(st.text(), max_size=2).map(tuple),
) | st.builds(CellResult, status=st.sampled_from(["failed", "timeout", "unavailable", "wrong"]), reason=st.text())


@given(outcomes)
def test_an_outcome_comes_back_from_json_as_it_went(outcome):
    assert CellResult.from_json(json.loads(json.dumps(outcome.to_json(), allow_nan=False))) == outcome


@pytest.fixture(scope="module")
def worker():
    with Worker() as one:
        yield one


def test_a_cell_is_measured_in_another_process_and_comes_back_whole(worker):
    outcome = ask(worker, replace(SMALL, unit="fake_units:chatters"), QUICK, 60)
    assert outcome.status == "measured" and outcome.parity_error == 0
    assert len(outcome.samples_ms) >= 6 and outcome.ci_ms[0] <= outcome.median_ms <= outcome.ci_ms[1]
    assert CellResult.from_json(outcome.to_json()) == outcome


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
    assert ask(worker, replace(SMALL, unit="fake_units:behaves"), QUICK, 60).status == "measured"
