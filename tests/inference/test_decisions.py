"""Decisions are counted as they are, and a form that changes too many says so."""

import numpy as np
import pytest
import torch
from edge_states import usual_states
from one_table import Recorder

from gnnlab.errors import Unavailable
from gnnlab.inference import decisions
from gnnlab.lab import claims, table
from gnnlab.measure.conditions import under
from gnnlab.workloads.edge_allocator import load, regret
from gnnlab.workloads.edge_networks import edges, features

STATES = usual_states(70, nodes=5)  # more than a pass holds
MODEL = load("hybrid")
FORMS = {
    "original": MODEL,
    "shifted": lambda x, edge_index: MODEL(x, edge_index) + 1,  # other scores, the same decisions
    "first": lambda x, edge_index: torch.arange(len(x), 0, -1.0),  # always the first node
    "broken": lambda x, edge_index: x[:, 9],
}


def missing(x, edge_index):
    raise Unavailable("no such runtime here")


@pytest.fixture(scope="module")
def counted():
    first = under(FORMS["first"], runtime="by hand", notes=["the first"])
    return decisions.count(FORMS | {"first": first, "missing": missing}, STATES, bound=0.01)


def test_a_decision_is_counted_where_it_is_that_of_the_first_form(counted):
    kept = counted[0].set_index("form")
    best = [int(MODEL(torch.from_numpy(features(s)), torch.from_numpy(edges(s))).argmax()) for s in STATES]
    assert kept.loc["shifted", "samples"].all() and kept.loc["shifted", "parity_error"] > 0.01
    assert np.array_equal(kept.loc["first", "samples"], np.equal(best, 0)) and kept.loc["first", "nodes"] == "5 to 74"
    assert "original" not in kept.index  # counted against itself it would say nothing


def test_regret_is_that_of_each_state_by_the_model_of_the_networks(counted):
    samples = counted[1].set_index("form")["samples"]
    assert np.allclose(samples["first"], [regret(features(s), edges(s), 0)[0] for s in STATES])
    assert samples["original"].mean() < samples["first"].mean()


def test_a_form_that_changes_more_than_the_bound_says_so_with_its_interval(counted):
    share = counted[0].set_index("form").loc["first", "samples"].mean()
    notes = counted[0].set_index("form")["notes"]
    assert notes["first"][0] == "the first" and notes["first"][1].startswith(
        f"changes {100 * (1 - share):.1f} % of the decisions ("
    )
    assert notes["first"][1].endswith("the bound is 1 %") and notes["shifted"] == []
    assert decisions.count(FORMS, STATES, bound=1.0)[0].set_index("form")["notes"]["first"] == []


def test_the_rows_are_those_of_the_table_and_what_fails_has_a_reason(counted):
    lab = Recorder()
    for study, frame in zip(("decisions_kept", "decision_regret"), counted, strict=True):
        lab.record(study, frame, keys=["nodes"])
    rows = {row.form: row for row in lab.study("decisions_kept").rows}
    assert rows["broken"].status == "failed" and rows["broken"].reason.startswith("IndexError")
    assert rows["missing"].status == "unavailable" and rows["missing"].reason.endswith("no such runtime here")
    assert (rows["first"].statistic, rows["first"].origin, rows["first"].n) == ("share", "counted", len(STATES))
    assert rows["first"].low <= rows["first"].value <= rows["first"].high and rows["first"].runtime == "by hand"
    assert {row.origin for row in lab.study("decision_regret").rows} == {"simulated"}


def test_a_form_on_a_gpu_is_judged_over_the_original_on_the_cpu():
    shared = {"study": "replaced_model", "keys": {"nodes": 10}, "unit": "ms", "better": "lower", "origin": "measured",
              "statistic": "median", "interval": "95 % confidence", "n": 12, "runtime": "torch", "precision": "float32",
              "threads": 1}  # fmt: skip
    rng, rows = np.random.default_rng(0), table.Table()
    for form, device, ms in (("original", "CPU x", 10.0), ("A/A", "CPU x", 10.0), ("cuda", "CUDA y", 2.0)):
        over = {} if form == "original" else {"baseline": "original", "ratio": 10.0 / ms}
        samples = ms * rng.uniform(0.99, 1.01, 12)
        row = table.row(**shared, **over, form=form, device=device, value=ms, low=0.9 * ms, high=1.1 * ms)
        rows.put(row, samples)
    found = claims.evaluate(claims.catalogue()["infer.gpu"], rows)
    assert found.estimate.value == pytest.approx(5, rel=0.02) and found.rows[0].device == "CUDA y"
