"""Rows over several small workloads."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from gnnlab.profile import survey
from gnnlab.profile.roofline import Ceilings
from gnnlab.profile.runtime import RuntimeStats
from gnnlab.profile.scaling import ScalingResult, fit_power_law

CEILINGS = Ceilings([(2**15, 100.0), (2**28, 10.0)], 50.0, "float32", 2, "cpu")


@dataclass
class Small:
    label: str
    model: nn.Module
    batch: Any


@pytest.fixture(scope="module")
def subjects():
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    return [Small("wide", wide, torch.randn(32, 64)), Small("thin", nn.Linear(4, 2), torch.randn(8, 4))]


@pytest.fixture(scope="module")
def timed(subjects):
    return survey.times(subjects, budget_s=0.02)


def valued(timed):
    """As the lab's table has them, with value and interval."""
    middle = timed["samples"].map(np.median)
    return timed.assign(value=middle, low=middle * 0.9, high=middle * 1.2, n=6, interval="95 % confidence")


def test_operators_have_a_share_for_each_run_and_traces_are_written(subjects, tmp_path):
    assert survey.operators(subjects, k=2, runs=3)[["low", "high"]].isna().all(axis=None)  # below six there is none
    rows = survey.operators(subjects, k=2, runs=6)
    assert (rows["low"] <= rows["value"]).all() and (rows["value"] <= rows["high"]).all()
    assert len(rows) == 4 and {len(samples) for samples in rows["samples"]} == {6}
    assert all(0 <= share <= 1 for samples in rows["samples"] for share in samples)
    survey.operators(subjects[1:], runs=2, trace_folder=tmp_path)
    assert (tmp_path / "thin.json.gz").stat().st_size > 100


def test_times_of_each_phase_and_what_of_the_limit_they_reach(subjects, timed):
    assert list(timed["form"]) == ["wide"] * 3 + ["thin"] * 3
    assert list(timed["phase"][:3]) == ["forward", "backward", "training step"]
    assert all(len(samples) >= 6 for samples in timed["samples"])
    table = survey.against_the_roof(subjects, valued(timed), CEILINGS).set_index("form")
    assert table.loc["wide"]["gflop"] == pytest.approx((2 * 32 * 64 * 64 + 2 * 32 * 64 * 8) / 1e9, rel=0.1)
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()
    assert (table["coverage"] == 1).all() and set(table["phase"]) == {"forward"}


def test_what_is_counted_is_what_is_timed():
    """Inside torch's fused attention nothing can be counted, so the limit stands beside the time without it."""
    subject = Small("attention", nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8))
    rows = valued(survey.times([subject], budget_s=0.02))
    assert survey.UNFUSED in list(rows["phase"]) and torch.backends.mha.get_fastpath_enabled()
    rows.loc[rows["phase"] == "forward", ["value", "low", "high"]] = 1e9
    found = survey.against_the_roof([subject], rows, CEILINGS).iloc[0]
    assert found["phase"] == survey.UNFUSED and found["bound_ms"] / found["value"] < 1e6
    assert found["value"] > 1e-6


def test_sweeps_vary_one_parameter_of_the_graph_or_the_model():
    asked = []

    def build(graph, **options):
        asked.append((graph, options))
        return Small("", nn.Identity(), 0)

    varied = {"nodes": [40], "edges": [70], "degrees": ["powerlaw"], "layers": [3], "encoding": ["lap"]}
    done = survey.sweeps("mine", build, varied, nodes=20, budget_s=0.01)
    assert list(survey.points(done, "nodes", "encoding")["at"]) == [40, "lap"] and survey.exponents(done).empty
    uniform = "random:seed=42,edges=100,nodes=20,degrees=uniform"
    assert list(done) == [("mine", parameter) for parameter in varied]
    assert asked == [
        ("random:seed=42,edges=200,nodes=40,degrees=uniform", {}),
        ("random:seed=42,edges=70,nodes=20,degrees=uniform", {}),
        ("random:seed=42,edges=100,nodes=20,degrees=powerlaw", {}),
        (uniform, {"num_layers": 3}),
        (uniform, {"pe_type": "lap"}),
    ]


def swept(parameter, values, times_ms):
    stats = tuple(RuntimeStats((ms,) * 24) for ms in times_ms)
    fit = fit_power_law(values[:-1], times_ms[:-1]) if parameter == "nodes" else None
    prediction = fit.predict(values[-1]) if fit else None
    return {("dense", parameter): ScalingResult(parameter, tuple(values), stats, fit, prediction)}


def test_an_exponent_has_its_interval_or_a_reason_and_a_prediction_the_origin_predicted():
    n = np.array([100, 200, 400, 800, 1600])
    done = swept("nodes", n, 0.1 + n**1.5 / 1000) | swept("kind", ["a", "b"], [1.0, 2.0])
    (exponent,) = survey.exponents(done).to_dict("records")
    assert exponent["value"] == pytest.approx(1.5, abs=0.02) and exponent["n"] == 4
    (held,) = survey.held_out(done).to_dict("records")
    assert (held["at"], held["origin"], held["interval"]) == (1600, "predicted", "95 % prediction")
    assert held["measured"] == pytest.approx(0.1 + 1600**1.5 / 1000) and held["inside"] == "yes"
    noisy = swept("nodes", n, np.array([1.0, 3.0, 6.0, 5.0, 30.0]))
    (wide,) = survey.held_out(noisy).to_dict("records")
    assert wide["high"] > 20 * wide["low"] and wide["inside"] == "too wide to tell"
    (row,) = survey.exponents(swept("nodes", n, np.array([1.0, 3.0, 0.5, 2.0, 1.0]))).to_dict("records")
    assert row["status"] == "unavailable" and "too few or too noisy" in row["reason"] and "value" not in row


def test_an_encoding_is_timed_on_each_graph_once_if_it_takes_longer_than_the_budget():
    graphs = {"small": Data(num_nodes=1), "large": Data(num_nodes=2)}
    frame = survey.encodings(graphs, {"lap": lambda data: data, "rwse": lambda data: data}, budget_s=0.01)
    assert [*zip(frame["graph"], frame["form"], strict=True)] == [*itertools.product(graphs, ("lap", "rwse"))]
    assert all(len(samples) >= 6 for samples in frame["samples"]) and set(frame["unit"]) == {"ms"}
    calls = []
    frame = survey.encodings({"large": Data(num_nodes=1)}, {"slow": calls.append}, budget_s=1e-9)
    assert len(frame["samples"][0]) == 1 and len(calls) == 1


def test_memory_is_counted_but_for_the_process_s_which_is_measured_once(subjects):
    held = survey.memory(subjects).set_index("part")
    process = held.index.str.startswith("process ")
    assert held.loc["parameters", "value"].iloc[1] == pytest.approx(10 * 4 / 2**20)
    assert set(held[~process]["origin"]) == {"counted"} and set(held[~process]["interval"]) == {"exact"}
    assert set(held[process]["origin"]) <= {"measured"} and set(held[process]["interval"]) <= {"none"}
