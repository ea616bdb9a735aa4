import numpy as np
import pytest
from one_table import Recorder
from synthetic_latencies import Truth, latencies

from gnnlab.bandwidth import line
from gnnlab.bandwidth.line import A_COPY, NO_END, NO_LINE, NONE, NOT_ABOVE_0, S4, s4_studies
from gnnlab.errors import Untestable
from gnnlab.stages.sizes import layer_of

ABOUT = {"runs_on": "torch:CPU", "device": "CPU synthetic", "runtime": "1", "precision": "float32", "threads": 1}


def s4(moved_bytes, ms):
    return np.polyfit(moved_bytes, ms, deg=1)


def own_bytes(stage, nodes, edges):
    return line.data_bytes(stage, nodes, edges, 500)


def line_of(stage, **changes):
    """S4's line on latencies of a synthetic machine; `moved=own_bytes`: which are by S4's own count of bytes."""
    table = latencies(layer_of("sage", 500), **changes)
    part = table[table["first"] == stage]
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


def lines(*ratios, low=0.999, high=1.001, **changes):
    """A stage for each ratio: a copy of 10 GB/s, and so many times as much by S4; NaN: its slope is not above 0."""
    found = []
    for number, times in enumerate(ratios, 1):
        gb_s, copy = (10 * times, 10 * times * low, 10 * times * high), (10.0, 10 * low, 10 * high)
        no_line = NOT_ABOVE_0 if np.isnan(times) else ""
        each = line.Line(ABOUT | {"stage": f"{number} X"}, gb_s, (1.0,) * 3, 5, no_line, copy, 25, "", (1.0,) * 3, "")
        here = {name: value[number - 1] if isinstance(value, list) else value for name, value in changes.items()}
        found.append(each._replace(**here))
    return found


def recorded(lines, study):
    lab = Recorder()
    return lab, lab.record(study, s4_studies(lines)[study], keys=["runs_on", "stage"]).rows


def judged(lines, claim="stages.bandwidth"):
    study = claim.replace("stages.", "") + "_ratio"
    lab, rows = recorded(lines, study)
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
    _, rows = recorded(lines(1.0, np.nan), "bandwidth")
    lacking = [row for row in rows if row.status == "unavailable"]
    assert [(row.form, row.reason) for row in lacking] == [(S4, NOT_ABOVE_0)]
    assert {row.origin.value for row in rows if row.form == A_COPY} == {"interpolated"}
    figure, _, _ = judged(lines(1.0, np.nan))
    assert figure.rows[0].notes[0] == "median of 1 cells" and "1 of 2 stages have" in figure.rows[0].notes[1]
    with pytest.raises(Untestable, match="not above 0"):
        judged(lines(np.nan))
    open_end = lines(1.0, high=np.nan)  # the slope may be 0
    row = recorded(open_end, "bandwidth")[1][0]
    assert row.low is None and "no upper end" in row.notes[0]
    with pytest.raises(Untestable, match=NO_END[-20:]):
        judged(open_end)


def test_the_intercept_is_judged_by_the_time_that_remains_behind_a_copy():
    intercepts, rests = [(2.0, 1.9, 2.1), (-1.0, -2.0, -0.5), (1.0,) * 3], [(2.0,) * 3, (2.0,) * 3, NONE]
    reasons = ["", "", "no compute time"]
    stages = lines(1.0, 1.0, 1.0, intercept_ms=intercepts, rest_ms=rests, no_rest=reasons)
    figure, verdict, rows = judged(stages, "stages.intercept")
    assert [row.value for row in rows] == [1, 0, None] and rows[0].high == 1
    assert (rows[1].low, rows[1].high) == (0, 0) and "no compute time" in rows[2].reason
    assert figure.estimate.value == 0.5 and verdict == "refuted"
    assert "1 of 3 intercepts are negative" in figure.rows[0].notes
    assert judged(lines(1.0, 1.0, intercept_ms=(0.5, -1.0, 3.0)), "stages.intercept")[1] == "inconclusive"


def test_a_layer_or_a_stage_that_the_study_does_not_know_has_no_line():
    studies = s4_studies(lines(1.0, no_line=NO_LINE, gb_s=NONE, intercept_ms=NONE, sizes=0))
    assert studies["intercept_ratio"].empty
    assert set(studies["bandwidth"]["status"]) == {"unavailable", "ok"}
    assert set(studies["bandwidth_ratio"]["reason"]) == {NO_LINE}
