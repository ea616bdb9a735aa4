"""Cells that were missed, measured again: planted machines whose reason is known."""

import numpy as np
import pandas as pd
import pytest

from gnnlab.errors import GnnlabError
from gnnlab.prediction import bandwidth, missed
from gnnlab.prediction.missed import DRIFTED, MODEL, ONCE, SCATTERS

KEY, FITTED = ("torch:CPU", 1, 1, 300, 900), ("torch:CPU", 1, 1, 250, 800)
ABOUT = {"device": "CPU", "runtime": "torch", "precision": "float32", "threads": 1}
PREDICTED_MS, FITTED_MS = 1.0, 0.8


def frame(key, **columns):
    named = dict(zip(["unit", "first", "last", "nodes", "edges"], key, strict=True))
    return pd.DataFrame([{**named, "stage": "1 GATHER", "size": f"{key[3]}/{key[4]}", **ABOUT, **columns}])


def why(first_ms, again_ms, fitted_ms=(0.8, 0.81, 0.79, 0.8)):
    off = frame(KEY, ms=first_ms, predicted_ms=PREDICTED_MS)
    times = [{KEY: ms, FITTED: other} for ms, other in zip(again_ms, fitted_ms, strict=True)]
    (row,) = missed.judged(off, frame(FITTED, ms=FITTED_MS), {KEY: FITTED}, times).to_dict("records")
    assert row["low"] <= row["value"] <= row["high"] and row["value"] == pytest.approx(
        float(np.exp(np.mean(np.log(again_ms)))) / PREDICTED_MS
    )
    return row["form"]


def test_what_comes_again_while_fitted_sizes_stay_is_the_models():
    assert why(1.4, [1.4, 1.41, 1.39, 1.4]) == MODEL
    assert why(0.7, [0.7, 0.71, 0.7, 0.69]) == MODEL


def test_what_fitted_sizes_do_as_well_is_the_machines():
    assert why(1.4, [1.4, 1.41, 1.39, 1.4], [1.12, 1.13, 1.11, 1.12]) == DRIFTED


def test_a_miss_that_does_not_come_again_is_the_machines():
    assert why(1.4, [1.01, 1.0, 0.99, 1.02]) == ONCE


def test_processes_on_both_sides_of_ten_percent_are_the_machines():
    assert why(1.3, [0.8, 1.5, 1.0, 1.4]) == SCATTERS


def test_a_cell_that_failed_in_one_process_has_a_reason_and_no_number():
    off = frame(KEY, ms=2.0, predicted_ms=PREDICTED_MS)
    rows = missed.judged(off, frame(FITTED, ms=FITTED_MS), {KEY: FITTED}, [{KEY: 1.0, FITTED: 1.0}, {FITTED: 1.0}])
    assert list(rows["status"]) == ["failed"] and sum(missed.causes(rows).values()) == 0


def test_each_process_is_a_fresh_one_and_measures_each_cell_beside_the_nearest_fitted_one(tmp_path, monkeypatch):
    from planted_campaign import PlantedUnits, cells, leave

    from gnnlab.campaign import measure as campaign_measure

    begun = []

    class Counted(PlantedUnits):
        def __call__(self, asked):
            begun.append({cell.key for cell in asked})
            return super().__call__(asked)

    monkeypatch.setattr(campaign_measure, "LocalUnits", Counted)
    leave(tmp_path / "stages", cells=cells(units=("torch:CPU",)))
    options = {"stages": tmp_path / "stages", "models": tmp_path / "models", "budget_s": 0.01}
    found = bandwidth.measure(tmp_path / "tables", off_grid=2, again=0, points=3, **options)
    found.compared["predicted_ms"] *= 1.5  # a model that is wrong everywhere
    begun.clear()
    rows = missed.missed_again(found, models=tmp_path / "models", processes=3)
    assert len(rows) == len(found.compared) > 0 and missed.causes(rows)[MODEL] == len(rows)
    assert len(begun) == 3 and begun[0] == begun[1] and len(begun[0]) > len(rows)
    with pytest.raises(GnnlabError, match="at least 3"):
        missed.missed_again(found, models=tmp_path, processes=2)
