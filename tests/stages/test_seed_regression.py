import numpy as np
import pandas as pd
import pytest

from gnnlab.stages.bandwidth import seed_regression
from gnnlab.stages.bandwidth.planted_truth import Truth, latencies
from gnnlab.stages.bandwidth.quantities import Bandwidth
from gnnlab.stages.campaign import sizes
from gnnlab.stages.errors import StageError
from gnnlab.workloads.graphsage import gat, sage

LAYER = sage(500)
STUDY = [(size.nodes, size.edges) for size in sizes.read(["study"])]


def own_bytes(stage, nodes, edges):
    return seed_regression.data_bytes(stage, nodes, edges, 500)


def regressed(**changes):
    cells = latencies(LAYER, STUDY, Truth(), **{"noise": 0.0, "seed": 0, **changes})
    return seed_regression.regress(cells, 500).set_index("stage")


def test_bytes_are_as_the_study_estimates_them():
    estimated = [seed_regression.data_bytes(stage, 10, 30, 500) for stage in range(1, 8)]
    assert estimated == [4 * n for n in (5060, 15060, 15060, 5060, 5010, 5000, 5000)]
    with pytest.raises(StageError, match=r"stage 8; it has stages 1\.\.7"):
        seed_regression.data_bytes(8, 1, 1, 1)


def test_a_truth_of_9537_mib_per_second_is_reported_as_557_with_a_perfect_fit():
    found = regressed(moved=own_bytes).loc[6]
    assert Truth().bandwidth.mib_s == pytest.approx(9537, abs=1)
    assert Bandwidth.from_mb_s(found["mb_s"]).mib_s == pytest.approx(557, abs=1)
    assert found["r2"] > 0.999999
    assert regressed(moved=own_bytes, noise=0.02).loc[6, "r2"] > 0.999


def test_a_stage_without_arithmetic_is_right_by_the_studys_own_bytes_alone():
    assert regressed(moved=own_bytes).loc[2, "mb_s"] == pytest.approx(10_000, rel=1e-6)
    assert regressed().loc[2, "mb_s"] == pytest.approx(5000, rel=0.01)  # it counts what is read, not what is written
    assert regressed(moved=own_bytes).loc[2, "intercept_ms"] == pytest.approx(Truth().launch_ms)


def test_five_stages_have_five_distinct_sizes():
    assert regressed()["distinct"].tolist() == [15, 5, 5, 15, 5, 5, 5]


def test_a_slope_that_is_not_above_zero_gives_no_bandwidth():
    cells = pd.DataFrame({"unit": "u", "first": 6, "last": 6, "nodes": [10, 20, 30], "edges": 5, "ms": [3.0, 2, 1]})
    found = seed_regression.regress(cells.assign(ms_low=cells["ms"], ms_high=cells["ms"]), 4).iloc[0]
    assert found["slope_ms_per_byte"] < 0 and np.isnan(found["mb_s"])


def test_intervals_hold_slope_and_intercept():
    found = regressed(noise=0.05)
    assert (found["slope_low"] < found["slope_ms_per_byte"]).all()
    assert (found["slope_ms_per_byte"] < found["slope_high"]).all()
    assert (found["intercept_low"] < found["intercept_ms"]).all()


def test_two_sizes_another_layer_and_fused_blocks_are_left_out():
    cells = latencies(LAYER, STUDY[:2], Truth(), noise=0.0, seed=0)
    assert seed_regression.regress(cells, 500).empty
    many = latencies(LAYER, STUDY, Truth(), noise=0.0, seed=0)
    assert seed_regression.regress(many.assign(layer="gat"), 500).empty
    assert seed_regression.regress(many.assign(last=7), 500)["stage"].tolist() == [7]


def test_collinearity_of_the_study_is_found():
    found = seed_regression.collinearity(STUDY)
    assert found["correlation"] == pytest.approx(np.corrcoef(np.array(STUDY).T)[0, 1])
    assert found["fewer_edges"] == 0 and 1 < found["inflation"] < 2
    assert seed_regression.collinearity([(10, 10), (20, 20), (30, 30)])["condition"] == np.inf
    assert seed_regression.collinearity([(10, 10), (10, 20)])["inflation"] == np.inf


def test_condition_is_one_of_orthogonal_columns_and_unlimited_of_dependent_ones():
    assert seed_regression.condition(np.diag([1.0, 1000.0])) == pytest.approx(1)
    assert seed_regression.condition(np.array([[1.0, 2], [1, 2], [1, 2]])) == np.inf
    assert seed_regression.condition(np.zeros((3, 2))) == np.inf


def test_the_diagnosis_says_which_stages_cannot_tell_bandwidth_from_arithmetic():
    found = seed_regression.diagnosis(LAYER, STUDY).set_index("stage")
    assert found.index[found["bandwidth"]].tolist() == ["1 GATHER", "2 MESSAGE", "3 REDUCE_SUM"]
    assert found.loc["6 TRANSFORM", "condition"] == np.inf and "exactly as its bytes" in found.loc["6 TRANSFORM", "why"]
    assert found.loc["6 TRANSFORM", "counted"] == pytest.approx(1 / 3)
    few = seed_regression.diagnosis(LAYER, STUDY[:2])
    assert not few["bandwidth"].any() and few["why"].str.contains("different numbers of bytes").all()
    assert seed_regression.diagnosis(gat(8, 2, 4), STUDY)["counted"].isna().all()
