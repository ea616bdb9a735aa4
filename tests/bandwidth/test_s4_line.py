"""S4's line on synthetic machines, and its claims judged beside copies that are made up."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder
from synthetic_latencies import Truth, latencies

from gnnlab.bandwidth import line
from gnnlab.bandwidth.line import A_COPY, NO_COMPUTE, NO_END, NO_LINE, NOT_ABOVE_0, S4, s4_studies
from gnnlab.bandwidth.tables import NO_COPIES
from gnnlab.errors import Untestable
from gnnlab.stages.sizes import layer_of

LAYER = layer_of("sage", 500)


def s4(moved_bytes, ms):
    return np.polyfit(moved_bytes, ms, deg=1)


def own_bytes(stage, nodes, edges):
    return line.data_bytes(stage, nodes, edges, 500)


def line_of(stage, **changes):
    """S4's line on latencies of a synthetic machine; `moved=own_bytes`: which are by S4's own count of bytes."""
    part = latencies(LAYER, **changes).query("first == @stage")
    size = own_bytes(stage, part["nodes"], part["edges"]).to_numpy()
    return line.line(size, part[["ms", "ms_low", "ms_high"]].to_numpy().T, s4)


def test_bytes_are_as_the_study_estimates_them():
    estimated = [line.data_bytes(stage, 10, 30, 500) for stage in range(1, 8)]
    assert estimated == [4 * n for n in (5060, 15060, 15060, 5060, 5010, 5000, 5000)]


def test_a_truth_of_9537_mib_per_second_is_reported_as_557():
    assert Truth().gb_s * 1e9 / 2**20 == pytest.approx(9537, abs=1)
    assert line_of(6, moved=own_bytes)[0][0] * 1e9 / 2**20 == pytest.approx(557, abs=1)


def test_a_stage_without_arithmetic_is_right_by_the_studys_own_bytes_alone():
    gb_s, intercept_ms = line_of(2, moved=own_bytes)
    assert gb_s[0] == pytest.approx(10) and intercept_ms[0] == pytest.approx(Truth().launch_ms)
    assert line_of(2)[0][0] == pytest.approx(5, rel=0.01)  # it counts what is read, not what is written


def test_a_slope_that_is_not_above_zero_gives_no_bandwidth_and_one_that_may_be_zero_no_upper_end():
    size, falling, rising = np.array([1e6, 2e6, 3e6]), np.array([3.0, 2, 1]), np.array([1.0, 1.1, 1.2])
    assert np.isnan(line.line(size, np.array([falling] * 3), s4)[0]).all()
    value, low, high = line.line(size, np.array([rising, rising * 0.7, rising * 1.4]), s4)[0]
    assert value == pytest.approx(10) and low < value and np.isnan(high)


# ---- beside measured copies -----------------------------------------------------------------------------------------

ABOUT = {"device": "torch:CPU", "processor": "CPU", "chip": "synthetic", "runtime_version": "1", "threads": 1}
ABOUT |= {"precision": "float32", "gb_s": 10.0, "gb_s_low": 9.99, "gb_s_high": 10.01, "n": 25, "diagnosis": ""}
KEYS = ["runs_on", "stage"]


def studies(*ratios, half=1e-6, intercept_ms=1.0, rest_ms=1.0, nodes=(1000, 2000, 4000), **changes):
    """Rows of stages whose copies have 10 GB/s, and so many times as much by S4's line; times are off by +-`half`."""
    rates = [ABOUT | {"first": number, "stage": f"{number} X"} | changes for number in range(1, len(ratios) + 1)]
    entries = pd.DataFrame(rates).assign(ratio=ratios).merge(pd.DataFrame({"nodes": nodes}), "cross")
    entries["edges"] = entries["nodes"] * 2 + 1000
    size = [own_bytes(*at) for at in zip(entries["first"], entries["nodes"], entries["edges"], strict=True)]
    ms = intercept_ms + np.array(size) / (10 * entries["ratio"] * 1e6)
    entries = entries.assign(ms=ms, ms_low=ms * (1 - half), ms_high=ms * (1 + half), transfer_time_ms=ms - rest_ms)
    return s4_studies(SimpleNamespace(entries=entries, rates=pd.DataFrame(rates), layer=LAYER), s4)


def judged(studies, claim="stages.bandwidth"):
    study, lab = claim.replace("stages.", "") + "_ratio", Recorder()
    lab.record(study, studies[study], keys=KEYS)
    lab.summarize(study, "S4", how="median")
    return lab.judge(claim)


@pytest.mark.parametrize(
    ("ratios", "half", "middle", "verdict"),
    [
        ((1.0, 1.0), 1e-6, 1, "reproduced"),
        ((10.0, 0.1), 1e-6, 0.1, "refuted"),  # too high in one stage makes up for no other
        ((4.0, 0.2, 1.0), 1e-6, 0.25, "refuted"),
        ((1.2, 0.8), 0.25, None, "inconclusive"),  # noise alone refutes nothing
    ],
)
def test_the_studys_bandwidth_is_judged_stage_by_stage(ratios, half, middle, verdict):
    figure, judgement = judged(studies(*ratios, half=half, intercept_ms=0.01, rest_ms=0.01))
    assert judgement == verdict and (middle is None or figure.estimate.value == pytest.approx(middle, rel=1e-3))


def test_where_the_slope_is_not_above_0_there_is_no_bandwidth_and_the_row_says_so():
    one_of_two = studies(1.0, -1.0)
    rows = Recorder().record("bandwidth", one_of_two["bandwidth"], keys=KEYS).rows
    assert [(row.variant, row.reason) for row in rows if row.status == "unavailable"] == [(S4, NOT_ABOVE_0)]
    assert {row.origin for row in rows if row.variant == A_COPY} == {"interpolated"}
    assert judged(one_of_two)[0].rows[0].notes == ["median of 1 cells", "1 of 2 stages have no such ratio"]
    with pytest.raises(Untestable, match="not above 0"):
        judged(studies(-1.0))


def test_where_the_slope_may_be_0_there_is_no_upper_end_and_no_ratio():
    open_end = studies(10.0, half=0.5)
    assert open_end["bandwidth"]["high"].isna().any() and open_end["bandwidth"]["notes"].iloc[0] == NO_END
    with pytest.raises(Untestable, match=NO_END[-20:]):
        judged(open_end)


@pytest.mark.parametrize(("intercept_ms", "agree"), [(1.0, 0.5), (-1.0, 0.0)])
def test_the_intercept_is_judged_by_the_time_that_remains_behind_a_copy(intercept_ms, agree):
    figure, judgement = judged(studies(1.0, 1.0, intercept_ms=intercept_ms, rest_ms=2.0), "stages.intercept")
    assert figure.estimate.value == pytest.approx(agree, abs=1e-3) and judgement == "refuted"


def test_without_a_rest_or_a_line_there_is_no_ratio_of_compute_times():
    assert set(studies(1.0, rest_ms=0.0)["intercept_ratio"]["reason"]) == {NO_COMPUTE}
    assert set(studies(1.0, n=0)["intercept_ratio"]["reason"]) == {NO_COPIES}
    other = studies(1.0, nodes=(1000, 2000))
    assert other["intercept_ratio"].empty and set(other["bandwidth_ratio"]["reason"]) == {NO_LINE}
