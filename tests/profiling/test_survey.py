"""Tables over several small workloads, and the sentences that read them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from gnnlab.profiling import reading, survey
from gnnlab.profiling.roofline import Ceilings
from gnnlab.profiling.runtime import RuntimeStats
from gnnlab.profiling.scaling import HeldOut, ScalingResult, fit_power_law
from gnnlab.profiling.timing import Control


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
    return survey.times(subjects, num_runs=5, warmup_runs=1)


@pytest.fixture(scope="module")
def profiles(subjects):
    return survey.operators(subjects, runs=3)


CEILINGS = Ceilings([(2**15, 100.0), (2**28, 10.0)], 50.0, "float32", 2, "cpu")


def test_times_have_a_row_for_each_phase_of_each_workload(timed):
    assert list(timed["workload"]) == ["wide"] * 3 + ["thin"] * 3
    assert list(timed["phase"][:3]) == ["forward", "backward", "training step"]
    assert (timed["ci_low"] <= timed["median_ms"]).all() and (timed["n"] == 5).all()


def test_profiled_models_are_left_in_the_mode_that_they_were_in(subjects):
    subjects[0].model.train()
    survey.times(subjects[:1], num_runs=1, warmup_runs=0)
    survey.counts(subjects[:1])
    assert subjects[0].model.training


def test_shares_are_percent_and_traces_are_written(subjects, profiles, tmp_path):
    top = survey.top_operators(profiles, k=2)
    assert len(top) == 4 and top["share"].between(0, 100).all() and top["share"].max() > 1
    survey.operators(subjects[1:], runs=2, trace_folder=tmp_path)
    assert (tmp_path / "thin.json.gz").stat().st_size > 100


def test_the_joint_share_of_operators_is_within_the_sum_of_their_own(profiles):
    profile = profiles["wide"]
    names = list(profile.frame["operator"][:2])
    joint = profile.joint_share(*names)
    assert joint["n"] == 3 and joint["ci"][0] <= joint["value"] <= joint["ci"][1]
    assert joint["value"] == pytest.approx(profile.frame["share"][:2].sum(), rel=0.3)
    assert profile.joint_share("aten::no_such")["value"] == 0
    assert profile.calls("aten::addmm", "aten::no_such") == {"aten::addmm": 2, "aten::no_such": 0}


def test_modules_name_the_model_itself(profiles):
    assert "(the model itself)" in set(survey.top_modules(profiles)["module"])


def test_the_roofline_time_is_a_share_of_the_measured_one(subjects, timed):
    table = survey.against_the_roof(survey.counts(subjects), timed, CEILINGS)
    wide = table.set_index("workload").loc["wide"]
    assert wide["gflop"] == pytest.approx((2 * 32 * 64 * 64 + 2 * 32 * 64 * 8) / 1e9, rel=0.1)
    assert wide["reached"] == pytest.approx(wide["bound_ms"] / wide["measured_ms"])
    assert (table["reached_low"] <= table["reached"]).all() and (table["coverage"] == 1).all()
    points = survey.roofline_points(table)
    assert (points["ci_low"] <= points["gflop_s"]).all() and (points["gflop_s"] <= points["ci_high"]).all()


def swept(parameter, values, times_ms):
    stats = tuple(RuntimeStats.of([ms] * 24) for ms in times_ms)
    fit = fit_power_law(values[:-1], times_ms[:-1]) if parameter == "nodes" else None
    held_out = HeldOut(values[-1], *fit.predict(values[-1]), stats[-1]) if fit else None
    return survey.Swept("dense", parameter, ScalingResult(parameter, tuple(values), stats, fit, held_out))


def test_every_sweep_of_a_plan_is_run():
    def build(n):
        return nn.Linear(n, n), torch.randn(8, n)

    plan = {("dense", "nodes"): ([8, 16, 32], build), ("dense", "kind"): (["a", "b"], lambda _: build(8))}
    done = survey.sweeps(plan, budget_s=0.02)
    assert [(s.workload, s.parameter) for s in done] == list(plan)
    assert len(survey.sweep_points(done, "nodes")) == 3
    assert list(survey.named_points(done, "kind")["value"]) == ["kind: a", "kind: b"]


def test_sweeps_give_points_curves_and_exponents():
    n = np.array([100, 200, 400, 800, 1600])
    done = [swept("nodes", n, 0.1 + n**1.5 / 1000), swept("kind", ["a", "b"], [1.0, 2.0])]
    exponents = survey.exponents(done)
    assert len(exponents) == 1 and exponents["held_out"][0] == 1600 and exponents["inside"][0]
    assert exponents["exponent"][0] == pytest.approx(1.5, abs=0.02)
    curve = survey.sweep_curves(done, "nodes")
    assert (curve["ci_low"] <= curve["median_ms"]).all() and survey.sweep_curves(done, "kind") is None
    assert "nodes^1.50" in reading.scaling(exponents) and "1 of 1 lie inside" in reading.scaling(exponents)


def test_an_exponent_that_the_sizes_do_not_tell_is_not_printed():
    n = np.array([100, 200, 400, 800, 1600])
    noise = [swept("nodes", n, np.array([1.0, 3.0, 0.5, 2.0, 1.0]))]
    exponents = survey.exponents(noise)
    assert exponents["exponent"].isna().all() and survey.sweep_curves(noise, "nodes") is None
    assert "these sizes do not tell" in reading.scaling(exponents)
    assert reading.scaling_title(exponents, "nodes") == "Time of a forward pass over nodes"


def test_memory_names_its_parts(subjects):
    held = survey.memory(subjects).set_index(["workload", "part"])["mib"]
    assert held["thin", "parameters"] == pytest.approx(10 * 4 / 2**20)
    assert "times the parameters" in reading.memory(survey.memory(subjects))


def test_findings_have_their_columns_even_where_nothing_is_found():
    found = survey.findings([Small("fine", nn.Linear(4, 2), torch.randn(8, 4))])
    assert list(found.columns) == ["workload", "kind", "where", "sentence"]


def test_plain_layers_are_deterministic(subjects):
    assert survey.deterministic_share(subjects, runs=3) == 1


# ---- sentences -------------------------------------------------------------------------------------------------------


def test_sentences_carry_the_numbers_of_their_tables(timed, profiles):
    assert "wide: forward" in reading.times(timed) and "training step" in reading.times(timed)
    assert "%" in reading.operators(profiles) and "aten::" in reading.operators_title(profiles)
    assert "100 GB/s" in reading.machine(CEILINGS) and "32 KiB" in reading.machine(CEILINGS)


@pytest.mark.parametrize(("value", "text"), [(1256.3, "1,256"), (99.99, "100"), (12.345, "12.3"), (0.00123, "0.00123")])
def test_numbers_read_without_exponents(value, text):
    assert reading._number(value) == text


def test_rows_that_are_not_stable_are_said_to_be():
    rows = {"workload": ["w"], "phase": ["forward"], "median_ms": [1.0], "ci_low": [0.8], "ci_high": [1.2]}
    stable = pd.DataFrame(rows | {"notes": [""]})
    shaky = pd.DataFrame(rows | {"notes": ["interval is ±20 % after 9 samples in 1 s, wanted ±2%"]})
    assert "Every interval is within 2 %" in reading.times(stable)
    assert "1 of the rows did not" in reading.times(shaky) and "±20%" in reading.times(shaky)


def test_the_95th_percentile_of_the_control_needs_130_comparisons():
    few, many = (reading.control(Control(tuple(np.linspace(0, 1, n)), (24,) * n)) for n in (129, 130))
    assert few["p95"] is None and "it takes 130" in reading.control_why(few)
    assert many["p95"] == pytest.approx(0.95) and many["ci"][0] < 0.95 < many["ci"][1]
    assert "of 24 pairs each" in reading.control_why(many)
    assert "0.95 %" in reading.control_title(many) and "(median of 129)" in reading.control_title(few)


@pytest.mark.parametrize(
    ("share", "words"), [(1.0, "every output was bit-equal"), (0.9, "10.0% of the outputs differed")]
)
def test_determinism_is_read_from_the_share(share, words):
    assert words in reading.deterministic(share)


def test_a_scaling_without_a_fit_says_what_is_missing():
    assert "Too few sizes" in reading.scaling(pd.DataFrame())
    assert reading.scaling_title(pd.DataFrame(), "nodes") == "Time of a forward pass over nodes"


def test_named_values_are_compared_within_a_parameter():
    rows = [("w", "degrees", 1.0), ("w", "degrees", 3.0), ("w", "encoding", 9.0)]
    points = pd.DataFrame(rows, columns=["workload", "parameter", "median_ms"])
    sure = points.assign(ci_low=points["median_ms"] * 0.9, ci_high=points["median_ms"] * 1.1)
    assert reading.named_title(sure) == "Degrees: the slowest takes 3.00 times as long as the fastest (w)"
    assert "no difference seen" in reading.named_title(sure.assign(ci_high=4.0))
    assert "No degree" in reading.named_title(points.iloc[:0])
