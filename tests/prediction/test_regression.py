import numpy as np
import pandas as pd
import pytest
from one_table import Recorder

from gnnlab.campaign import sizes
from gnnlab.errors import GnnlabError, Untestable
from gnnlab.prediction import planted_truth, regression
from gnnlab.prediction.planted_truth import Truth, latencies
from gnnlab.prediction.regression import NO_END, NOT_ABOVE_0, FittedLines, Line
from gnnlab.workloads.graphsage import sage

LAYER = sage(500)
STUDY = [(size.nodes, size.edges) for size in sizes.read(["study"])]
ABOUT = {"pu": "torch:CPU", "origin": "measured", "device": "CPU planted", "runtime": "1", "precision": "float32",
         "threads": 1}  # fmt: skip


def s4(moved_bytes, ms):
    return np.polyfit(moved_bytes, ms, deg=1)


def own_bytes(stage, nodes, edges):
    return regression.data_bytes(stage, nodes, edges, 500)


def line_of(stage, **changes):
    """S4's line on planted latencies; `moved=own_bytes`: which are by its own count of bytes."""
    cells = latencies(LAYER, STUDY, Truth(), **{"noise": 0.0, "seed": 0, **changes})
    part = cells[cells["first"] == stage]
    columns = (own_bytes(stage, part["nodes"], part["edges"]), part["ms"], part["ms_low"], part["ms_high"])
    return regression.line(*(column.to_numpy() for column in columns), s4)


def test_bytes_are_as_the_study_estimates_them():
    estimated = [regression.data_bytes(stage, 10, 30, 500) for stage in range(1, 8)]
    assert estimated == [4 * n for n in (5060, 15060, 15060, 5060, 5010, 5000, 5000)]
    with pytest.raises(GnnlabError, match=r"stage 8; it has stages 1\.\.7"):
        regression.data_bytes(8, 1, 1, 1)


def test_a_truth_of_9537_mib_per_second_is_reported_as_557_with_a_perfect_fit():
    found = line_of(6, moved=own_bytes)
    assert Truth().gb_s * 1e9 / 2**20 == pytest.approx(9537, abs=1)
    assert found.gb_s[0] * 1e9 / 2**20 == pytest.approx(557, abs=1) and found.r2 > 0.999999
    assert line_of(6, moved=own_bytes, noise=0.02).r2 > 0.999


def test_a_stage_without_arithmetic_is_right_by_the_studys_own_bytes_alone():
    found = line_of(2, moved=own_bytes)
    assert found.gb_s[0] == pytest.approx(10) and found.intercept_ms[0] == pytest.approx(Truth().launch_ms)
    assert line_of(2).gb_s[0] == pytest.approx(5, rel=0.01)  # it counts what is read, not what is written


def test_intervals_hold_bandwidth_and_intercept():
    for stage in LAYER.numbers:
        for value, low, high in (line_of(stage, noise=0.05).gb_s, line_of(stage, noise=0.05).intercept_ms):
            assert low < value < high


def test_a_slope_that_is_not_above_zero_gives_no_bandwidth_and_one_that_may_be_zero_no_upper_end():
    size, falling = np.array([1e6, 2e6, 3e6]), np.array([3.0, 2, 1])
    found = regression.line(size, falling, falling, falling, s4)
    assert np.isnan(found.gb_s).all() and found.why == NOT_ABOVE_0
    rising = np.array([1.0, 1.1, 1.2])
    value, low, high = regression.line(size, rising, rising * 0.7, rising * 1.4, s4).gb_s
    assert value == pytest.approx(10) and low < value and np.isnan(high)


def test_copies_recover_planted_bandwidths_where_the_study_is_far_off():
    lab, keys = Recorder(), ["machine", "planted_gb_s"]
    copies, lines = planted_truth.machines([(1000, 1000), (2000, 5000), (10_000, 10_000)], s4, count=9)
    assert len(lab.record("planted_bandwidth", copies, keys=keys).rows) == 9
    times = lab.record("planted_regression", lines, keys=keys).frame
    figure, verdict = lab.judge("goal.transfer_truth")
    assert figure.estimate.value < 5 and verdict == "met" and {row.origin.value for row in lab.table} == {"simulated"}
    assert times["value"].between(5, 100).all()
    assert times.loc[times["planted_gb_s"] == 10, "value"].median() == pytest.approx(17, abs=2)


# ---- beside measured copies -----------------------------------------------------------------------------------------


def stage(number, times=1.0, low=0.999, high=1.001, intercept=(1.0, 1.0, 1.0), rest=(1.0, 1.0, 1.0), no_rest=""):
    """A copy of 10 GB/s, and so many times as much by S4; NaN: its slope is not above 0."""
    line = Line((10 * times, 10 * times * low, 10 * times * high), intercept, 1.0, 5)
    about = ABOUT | {"stage": f"{number} X"}
    return regression._Stage(about, line, line.why, (10.0, 10 * low, 10 * high), "", 25, rest, no_rest)


def lines(*ratios, **changes):
    return FittedLines(tuple(stage(number, ratio, **changes) for number, ratio in enumerate(ratios, 1)))


def judged(found):
    lab = Recorder()
    lab.record("bandwidth_ratio", found.bandwidth_ratio(), keys=["pu", "stage"])
    return lab.judge("stages.bandwidth")


def test_the_studys_bandwidth_is_confirmed_where_it_is_right():
    found, verdict = judged(lines(1.0, 1.0))
    assert verdict == "reproduced" and found.estimate.value == 1 and found.estimate.n == 5


@pytest.mark.parametrize(("ratios", "middle"), [((10.0, 0.1), 0.1), ((4.0, 0.2, 1.0), 0.25)])
def test_stages_that_are_too_high_make_up_for_none_that_are_too_low(ratios, middle):
    found, verdict = judged(lines(*ratios))
    assert found.estimate.value == pytest.approx(middle) and verdict == "refuted"


def test_noise_alone_refutes_no_bandwidth():
    """Both figures are uncertain by half, and one of them is half of the other."""
    assert judged(lines(1.4, 0.7, low=0.5, high=2.0))[1] == "inconclusive"


def test_where_the_slope_is_not_above_0_there_is_no_bandwidth_and_the_row_says_so():
    found = lines(1.0, np.nan)
    rows = Recorder().record("bandwidth", found.bandwidth(), keys=["pu", "stage"]).rows
    lacking = [row for row in rows if row.status == "unavailable"]
    assert [(row.form, row.reason) for row in lacking] == [(regression.S4, NOT_ABOVE_0)]
    assert {row.origin.value for row in rows if row.form == regression.A_COPY} == {"interpolated"}
    ratio, _ = judged(found)
    assert len(ratio.rows) == 1 and "1 of 2 stages have no such ratio" in ratio.rows[0].notes[0]
    with pytest.raises(Untestable, match="not above 0"):
        judged(lines(np.nan))


def test_a_slope_that_may_be_zero_has_no_interval_and_no_ratio():
    found = lines(1.0, high=np.nan)
    row = Recorder().record("bandwidth", found.bandwidth(), keys=["pu", "stage"]).rows[0]
    assert row.low is None and "no upper end" in row.notes[0]
    with pytest.raises(Untestable, match=NO_END[-20:]):
        judged(found)


def test_the_intercept_is_held_against_the_time_that_remains_behind_a_copy():
    found = FittedLines((
        stage(1, intercept=(2.0, 1.9, 2.1), rest=(2.0,) * 3),
        stage(2, intercept=(-1.0, -2.0, -0.5), rest=(2.0,) * 3),
        stage(3, no_rest="no compute time can be told"),
    ))  # fmt: skip
    lab = Recorder()
    rows = lab.record("intercept_ratio", found.intercept_ratio(), keys=["pu", "stage"]).rows
    assert [row.value for row in rows] == [1, 0, None] and rows[0].high == 1
    assert (rows[1].low, rows[1].high) == (0, 0) and "no compute time" in rows[2].reason
    figure, verdict = lab.judge("stages.intercept")
    assert figure.estimate.value == 0.5 and verdict == "refuted"
    assert "1 of 3 intercepts are negative" in figure.rows[0].notes


def test_an_intercept_that_may_be_anything_refutes_nothing():
    found, lab = lines(1.0, 1.0, intercept=(0.5, -1.0, 3.0)), Recorder()
    lab.record("intercept_ratio", found.intercept_ratio(), keys=["pu", "stage"])
    assert lab.judge("stages.intercept")[1] == "inconclusive"


def test_a_layer_or_a_stage_that_the_study_does_not_know_has_no_line():
    none = FittedLines(
        (regression._Stage(ABOUT | {"stage": "1 X"}, None, "no line", (1.0,) * 3, "", 9, (1.0,) * 3, ""),)
    )
    assert none.intercept_ratio().empty and set(none.bandwidth()["status"]) == {"unavailable", "ok"}
    assert isinstance(none.bandwidth_ratio(), pd.DataFrame)
