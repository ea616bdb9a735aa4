"""Rows over several small workloads."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gnnlab.profile import survey
from gnnlab.profile.roofline import Ceilings

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
    assert list(timed["variant"]) == ["wide"] * 3 + ["thin"] * 3
    assert list(timed["phase"][:3]) == ["forward", "backward", "training step"]
    assert all(len(samples) >= 6 for samples in timed["samples"])
    table = survey.against_the_roof(subjects, valued(timed), CEILINGS).set_index("variant")
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


def test_memory_is_counted_but_for_the_process_s_which_is_measured_once(subjects):
    held = survey.memory(subjects).set_index("part")
    process = held.index.str.startswith("process ")
    assert held.loc["parameters", "value"].iloc[1] == pytest.approx(10 * 4 / 2**20)
    assert set(held[~process]["origin"]) == {"counted"} and set(held[~process]["interval"]) == {"exact"}
    assert set(held[process]["origin"]) <= {"measured"} and set(held[process]["interval"]) <= {"none"}
