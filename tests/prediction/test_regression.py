import numpy as np
import pandas as pd
import pytest
from one_table import Recorder
from planted_latencies import latencies

from gnnlab.campaign import sizes
from gnnlab.errors import Untestable
from gnnlab.prediction import planted_truth, regression
from gnnlab.prediction.planted_truth import Truth
from gnnlab.prediction.regression import NO_END, NO_LINE, NONE, NOT_ABOVE_0
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


def test_a_truth_of_9537_mib_per_second_is_reported_as_557():
    assert Truth().gb_s * 1e9 / 2**20 == pytest.approx(9537, abs=1)
    assert line_of(6, moved=own_bytes)["gb_s"][0] * 1e9 / 2**20 == pytest.approx(557, abs=1)


def test_a_stage_without_arithmetic_is_right_by_the_studys_own_bytes_alone():
    fitted = line_of(2, moved=own_bytes)
    assert fitted["gb_s"][0] == pytest.approx(10) and fitted["intercept_ms"][0] == pytest.approx(Truth().launch_ms)
    assert line_of(2)["gb_s"][0] == pytest.approx(5, rel=0.01)  # it counts what is read, not what is written


def test_a_slope_that_is_not_above_zero_gives_no_bandwidth_and_one_that_may_be_zero_no_upper_end():
    size, falling, rising = np.array([1e6, 2e6, 3e6]), np.array([3.0, 2, 1]), np.array([1.0, 1.1, 1.2])
    assert np.isnan(regression.line(size, falling, falling, falling, s4)["gb_s"]).all()
    value, low, high = regression.line(size, rising, rising * 0.7, rising * 1.4, s4)["gb_s"]
    assert value == pytest.approx(10) and low < value and np.isnan(high)


def test_copies_recover_planted_bandwidths_where_the_study_is_far_off():
    machines = planted_truth.machines([(1000, 1000), (2000, 5000), (10_000, 10_000)], s4, count=9)
    copies, lines = machines["planted_bandwidth"], machines["planted_regression"]
    assert len(copies) == len(lines) == 9 and copies["value"].mean() < 5 and (copies["n"] > 1).all()
    assert lines["value"].between(5, 100).all()
    assert lines.loc[lines["planted_gb_s"] == 10, "value"].median() == pytest.approx(17, abs=2)


# ---- beside measured copies -----------------------------------------------------------------------------------------


def lines(*ratios, low=0.999, high=1.001, **changes):
    """A row a stage: a copy of 10 GB/s, and so many times as much by S4; NaN: its slope is not above 0."""
    rows = []
    for number, times in enumerate(ratios, 1):
        reasons = {"no_line": NOT_ABOVE_0 if np.isnan(times) else "", "no_copy": "", "no_rest": ""}
        numbers = {"gb_s": (10 * times, 10 * times * low, 10 * times * high), "copy_gb_s": (10.0, 10 * low, 10 * high)}
        numbers |= {"intercept_ms": (1.0,) * 3, "rest_ms": (1.0,) * 3, "sizes": 5, "copies": 25}
        each = {name: value[number - 1] if isinstance(value, list) else value for name, value in changes.items()}
        rows.append(ABOUT | {"stage": f"{number} X"} | numbers | reasons | each)
    return pd.DataFrame(rows)


def judged(lines, claim="stages.bandwidth"):
    make = {"stages.bandwidth": regression.bandwidth_ratio_rows, "stages.intercept": regression.intercept_ratio_rows}
    lab = Recorder()
    study = claim.replace("stages.", "") + "_ratio"
    rows = lab.record(study, make[claim](lines), keys=["pu", "stage"]).rows
    lab.summarize(study, "S4", how="median")
    return *lab.judge(claim), rows


@pytest.mark.parametrize(
    ("ratios", "ends", "middle", "verdict"),
    [
        ((1.0, 1.0), (0.999, 1.001), 1, "reproduced"),
        ((10.0, 0.1), (0.999, 1.001), 0.1, "refuted"),  # too high in one stage makes up for no other
        ((4.0, 0.2, 1.0), (0.999, 1.001), 0.25, "refuted"),
        ((1.4, 0.7), (0.5, 2.0), None, "inconclusive"),  # noise alone refutes nothing
    ],
)
def test_the_studys_bandwidth_is_judged_stage_by_stage(ratios, ends, middle, verdict):
    figure, judgement, _ = judged(lines(*ratios, low=ends[0], high=ends[1]))
    assert judgement == verdict and (middle is None or figure.estimate.value == pytest.approx(middle))


def test_where_the_slope_is_not_above_0_there_is_no_bandwidth_and_the_row_says_so():
    rows = Recorder().record("bandwidth", regression.bandwidth_rows(lines(1.0, np.nan)), keys=["pu", "stage"]).rows
    lacking = [row for row in rows if row.status == "unavailable"]
    assert [(row.form, row.reason) for row in lacking] == [(regression.S4, NOT_ABOVE_0)]
    assert {row.origin.value for row in rows if row.form == regression.A_COPY} == {"interpolated"}
    figure, _, _ = judged(lines(1.0, np.nan))
    assert figure.rows[0].notes[0] == "median of 1 cells" and "1 of 2 stages have" in figure.rows[0].notes[1]
    with pytest.raises(Untestable, match="not above 0"):
        judged(lines(np.nan))
    open_end = lines(1.0, high=np.nan)  # the slope may be 0
    row = Recorder().record("bandwidth", regression.bandwidth_rows(open_end), keys=["pu", "stage"]).rows[0]
    assert row.low is None and "no upper end" in row.notes[0]
    with pytest.raises(Untestable, match=NO_END[-20:]):
        judged(open_end)


def test_the_intercept_is_held_against_the_time_that_remains_behind_a_copy():
    intercepts, rests = [(2.0, 1.9, 2.1), (-1.0, -2.0, -0.5), (1.0,) * 3], [(2.0,) * 3, (2.0,) * 3, (0.0,) * 3]
    reasons = ["", "", "no compute time"]
    stages = lines(1.0, 1.0, 1.0, intercept_ms=intercepts, rest_ms=rests, no_rest=reasons)
    figure, verdict, rows = judged(stages, "stages.intercept")
    assert [row.value for row in rows] == [1, 0, None] and rows[0].high == 1
    assert (rows[1].low, rows[1].high) == (0, 0) and "no compute time" in rows[2].reason
    assert figure.estimate.value == 0.5 and verdict == "refuted"
    assert "1 of 3 intercepts are negative" in figure.rows[0].notes
    assert judged(lines(1.0, 1.0, intercept_ms=(0.5, -1.0, 3.0)), "stages.intercept")[1] == "inconclusive"


def test_a_layer_or_a_stage_that_the_study_does_not_know_has_no_line():
    none = lines(1.0, no_line=NO_LINE, gb_s=NONE, intercept_ms=NONE, sizes=0)
    assert regression.intercept_ratio_rows(none).empty
    assert set(regression.bandwidth_rows(none)["status"]) == {"unavailable", "ok"}
    assert set(regression.bandwidth_ratio_rows(none)["reason"]) == {NO_LINE}
