"""The study of notebook 06 on planted times: what it measures, compares, says and claims."""

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder
from planted_campaign import BLOCKS, FEATURES, LAYER, SIZES, TRUTH, UNITS, PlantedUnits, cells, leave, outcome

from gnnlab.lab.ledger import Untestable
from gnnlab.stages.bandwidth import bandwidth, seed_regression, tables, transfer
from gnnlab.stages.bandwidth import study_frames as shown
from gnnlab.stages.bandwidth import study_reading as reading
from gnnlab.stages.bandwidth import study_rows as rows
from gnnlab.stages.bandwidth.planted_truth import latencies, sweep
from gnnlab.stages.bandwidth.transfer import Curve, Transfers
from gnnlab.stages.campaign.cells import Cell
from gnnlab.stages.campaign.sizes import Size
from gnnlab.stages.errors import StageError
from gnnlab.stages.units import registry as units

PLANTED = {"device": "planted", "runtime_version": "1", "precision": "float32", "threads": 1}
CONDITIONS = {"torch:CPU": {"device": "CPU planted", "runtime": "1", "precision": "float32", "threads": 1}}
COPIED = pd.DataFrame({"unit": ["torch:CPU"], "n": [25]})
LOCAL = ("torch:CPU",)  # what can be loaded here without an exported model


def curve(noise=0.0):
    return Curve.fit(sweep(TRUTH, [256 * 4**k for k in range(9)], noise=noise, seed=0))


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setattr(bandwidth, "LocalUnits", PlantedUnits)
    leave(tmp_path / "stages", cells=cells(units=LOCAL))
    options = {"stages": tmp_path / "stages", "models": tmp_path / "models", "budget_s": 0.01, "off_grid": 3}

    def run(**changes):
        return bandwidth.measure(tmp_path / "tables", **(options | changes))

    return run


def test_sizes_never_fitted_are_measured_and_predicted(measure):
    study = measure(extra=[Size(150, 600)], again=2)
    new = study.compared[study.compared["kind"] == bandwidth.NEW]
    fitted = set(bandwidth.sizes_of(study.grid))
    assert len(new) == 3 * len(BLOCKS) and (150, 600) in fitted
    assert not fitted & set(zip(new["nodes"], new["edges"], strict=True))
    assert new["within"].all() and new["error"].abs().max() < 0.01
    again = study.compared[study.compared["kind"] == bandwidth.AGAIN]
    assert len(again) == 2 * len(BLOCKS) and (again["error"] == 0).all()
    assert study.transfers.through["torch:CPU"].bandwidth(1e6).gb_s == pytest.approx(10, rel=0.02)
    assert study.transfers.out_of["torch:CPU"].ms(1e5) > 0 and study.done.measured > 0


def test_what_is_known_is_not_measured_again(measure):
    first, second = measure(), measure()
    assert first.done.measured > 0 and second.done.measured == 0
    pd.testing.assert_frame_equal(first.compared, second.compared)


def test_another_seed_draws_other_sizes(measure):
    assert set(measure(seed=1).compared["size"]) != set(measure(seed=2).compared["size"])


def test_units_that_were_not_measured_are_refused(measure, tmp_path):
    with pytest.raises(StageError, match="openvino:CPU was not measured by notebook 05; units with times: torch:CPU"):
        measure(names=["openvino:CPU"])
    nothing = {"status": "unavailable", "reason": "no device", "samples_ms": (), "median_ms": None, "ci_ms": None,
               "std_ms": None}  # fmt: skip
    leave(tmp_path / "stages", lambda cell: nothing)
    with pytest.raises(StageError, match="has measured no unit here"):
        measure()
    said = []
    bandwidth.need_times(tmp_path / "stages", said.append)
    assert said and "torch:CPU: no device" in said[0]


def test_only_what_is_random_is_measured_a_second_time(measure, tmp_path):
    real = [Cell("sage", FEATURES, 1797, 17970, *block, "torch:CPU", graph="digits") for block in BLOCKS]
    leave(tmp_path / "stages", cells=[*cells(units=LOCAL), *real])
    study = measure(again=100)
    again = study.compared[study.compared["kind"] == bandwidth.AGAIN]
    assert (1797, 17970) in bandwidth.sizes_of(study.grid) and 1797 not in set(again["nodes"])


def test_a_unit_that_only_sums_copies_as_the_plain_one_of_its_runtime_does(measure, tmp_path):
    assert [u for u in units.all_units() if transfer.sums_only(u)] == ["openvino-handbuilt:CPU", "fast:CPU"]
    assert transfer.base("fast:CPU") == transfer.base("torch-compiled:CPU") == "torch:CPU"
    assert transfer.base("openvino-handbuilt:CPU") == "openvino:CPU"
    assert transfer.base("fake_units:behaves") == "fake_units:behaves"
    leave(tmp_path / "stages", cells=[*cells(units=LOCAL), *cells(units=("fast:CPU",), blocks=[(1, 5)])])
    found = measure()
    assert found.transfers.through["fast:CPU"] == found.transfers.through["torch:CPU"]
    assert found.transfers.out_of["fast:CPU"] == found.transfers.out_of["torch:CPU"]
    assert set(found.copies["unit"]) == {"torch:CPU", transfer.PLAIN_COPY}
    assert {key[1:] for key in found.predictor.fits if key[0] == "fast:CPU"} == {(1, 5)}


def test_the_identity_is_exported_for_every_runtime_and_for_each_size_where_shapes_are_fixed(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(
        bandwidth, "export", lambda layer, *stages, exporter, folder, size=None: made.append((exporter, size))
    )
    bandwidth._export_identity(["torch:CPU", "onnxruntime:CPU", "openvino:NPU"], FEATURES, tmp_path, [1, 8])
    assert made == [("onnx", None), ("openvino", (2, 1)), ("openvino", (2, 8))]


def test_the_sweep_goes_from_4_kib_to_the_most_that_a_cell_moves(measure):
    found = measure()
    sweep = bandwidth.sweep_sizes(found.grid, FEATURES, points=8)
    assert len(sweep) == 8 and sweep[0] * 4 * FEATURES == bandwidth.LEAST_BYTES and sweep == sorted(sweep)
    most = max(LAYER.block(*block).bytes_moved(*size) for block in BLOCKS for size in SIZES)
    assert sweep[-1] * 4 * FEATURES == pytest.approx(most / 2, rel=0.01)
    assert set(found.copies["size_bytes"]) == {4 * FEATURES * edges for edges in sweep}


def test_a_runtime_that_copies_something_else_is_not_timed(monkeypatch, tmp_path):
    import fake_units

    like = Cell("sage", FEATURES, 2, 16, 2, 2, "torch:CPU")
    with pytest.raises(StageError, match="is not what it was given"):
        bandwidth._out_of(fake_units.lies(), like, tmp_path, np.empty((16, FEATURES), np.float32), 16)


def planted_study(error=0.0, wide=False, per_size=1):
    rows = []
    for kind, count in ((bandwidth.NEW, 40), (bandwidth.AGAIN, 10)):
        for place in range(count):
            off = error if place // per_size % 2 else 0.0
            rows.append({"kind": kind, "unit": "torch:CPU", "stage": f"{place} X", "size": f"{place // per_size}/9",
                         "ms": 1.0, "ms_low": 0.99, "ms_high": 1.01, "predicted_ms": 1 + off, "low_ms": 0.98 + off,
                         "high_ms": 1.02 + off, "n": 25, "samples_ms": (0.99, 1.0, 1.01) * 8 + (1.0,), **PLANTED,
                         "error": off, "within": abs(off) <= 0.1, "covered": True, "wide": wide, "form": "work",
                         "fitted": 12})  # fmt: skip
    return pd.DataFrame(rows)


def recorded_errors(compared):
    lab = Recorder()
    lab.record("off_grid_error", rows.off_grid_error(compared), keys=["pu", "stage", "size"])
    return lab


def test_the_goal_of_the_predictor_is_the_share_within_ten_percent():
    found, verdict = recorded_errors(planted_study()).judge("goal.predictor")
    assert found.estimate.value == 1 and found.estimate.low > 0.9 and found.estimate.n == 40 and verdict == "met"
    half, verdict = recorded_errors(planted_study(error=0.3)).judge("goal.predictor")
    assert half.estimate.value == 0.5 and half.estimate.low < 0.5 < half.estimate.high and verdict == "missed"
    assert any("50% of 10 known cells come within 10 %" in note for note in half.rows[0].notes)
    with pytest.raises(Untestable):
        recorded_errors(planted_study().iloc[:0]).judge("goal.predictor")


def test_cells_of_one_size_are_no_samples_of_their_own():
    """40 cells at 4 sizes say less than 40 sizes, and those of one size nothing of others."""
    few = recorded_errors(planted_study(per_size=10)).judge("goal.predictor")
    assert few[0].estimate.n == 40 and few[0].estimate.low < 0.9 and few[1] == "open"
    one = recorded_errors(planted_study(per_size=40)).judge("goal.predictor")
    assert one[0].estimate.interval is None and one[1] == "open"


def test_predicted_times_are_no_measured_ones():
    lab = Recorder()
    found = lab.record("off_grid", rows.off_grid(planted_study(error=0.3)), keys=["pu", "stage", "size"]).rows
    origins = {row.form: (row.origin.value, row.interval.value, row.n) for row in found}
    assert origins == {
        "measured": ("measured", "95 % confidence", 25),
        "predicted": ("interpolated", "90 % prediction", 12),
    }
    assert all((lab.table.samples_of(row) is None) == (row.form == "predicted") for row in found)
    again = lab.record("repeat_error", rows.repeat_error(planted_study()), keys=["pu", "stage", "size"]).rows
    assert len(again) == 10 and {row.value for row in again} == {0}


def test_what_several_visits_found_keeps_the_wider_interval():
    wide = planted_study().assign(ms_low=0.8, ms_high=1.2)
    row = Recorder().record("off_grid", rows.off_grid(wide), keys=["pu", "stage", "size"]).rows[0]
    assert (row.low, row.high, row.n, row.statistic) == (0.8, 1.2, 25, "estimate")


def regressed_and_rates(stages):
    found = tables.measured_cells(stages)
    transfers = Transfers(curve(), {unit: curve() for unit in UNITS}, {})
    entries, rates = tables.write(stages / "tables", found, transfers)
    regressed = seed_regression.regress(found[found["unit"] == "torch:CPU"], FEATURES)
    return regressed, shown.side_by_side(regressed, rates, LAYER), entries


def judged(both, regressed):
    lab = Recorder()
    lab.record("bandwidth_ratio", rows.bandwidth_ratio(both, regressed, CONDITIONS), keys=["pu", "stage"])
    return lab.judge("stages.bandwidth")


def test_the_studys_bandwidth_is_refuted_where_it_is_wrong(tmp_path):
    regressed, both, _ = regressed_and_rates(leave(tmp_path))
    found, verdict = judged(both, regressed)
    assert verdict == "refuted" and found.estimate.low < found.estimate.value < found.estimate.high < 0.95
    transform = both[both["stage"] == "6 TRANSFORM"].set_index("method")["gb_s"]
    assert transform[shown.STUDY] < transform[shown.COPY] / 2
    assert "4 REDUCE_COUNT" in reading.regression(regressed, both)  # its result grows with the nodes, too


def figures(*ratios, low=0.999, high=1.001):
    """A copy of 10 GB/s in each stage, and so many times as much by S4; NaN: its slope is not above 0."""
    every = [(n, m, r if m == shown.STUDY else 1.0) for n, r in enumerate(ratios, 1) for m in (shown.STUDY, shown.COPY)]
    return pd.DataFrame(
        {"unit": "torch:CPU", "stage": f"{n} X", "method": m, "gb_s": 10 * r, "ci_low": 10 * r * low,
         "ci_high": 10 * r * high, "why": shown.NOT_ABOVE_0 if np.isnan(r) else ""} for n, m, r in every
    )  # fmt: skip


FITS = pd.DataFrame({"unit": "torch:CPU", "stage": range(1, 8), "sizes": 5})


def test_the_studys_bandwidth_is_confirmed_where_it_is_right():
    found, verdict = judged(figures(1.0, 1.0), FITS)
    assert verdict == "reproduced" and found.estimate.value == 1 and found.estimate.n == 5


def test_stages_that_are_too_high_make_up_for_none_that_are_too_low():
    found, verdict = judged(figures(10.0, 0.1), FITS)
    assert found.estimate.value == pytest.approx(0.1) and verdict == "refuted"
    figure, verdict = judged(figures(4.0, 0.2, 1.0), FITS)
    assert figure.estimate.value == pytest.approx(0.25) and verdict == "refuted"


def test_noise_alone_refutes_no_bandwidth():
    """Both figures are uncertain by half, and one of them is half of the other."""
    assert judged(figures(1.4, 0.7, low=0.5, high=2.0), FITS)[1] == "inconclusive"


def test_where_the_slope_is_not_above_0_there_is_no_bandwidth_and_the_row_says_so():
    both = figures(1.0, np.nan)
    lab = Recorder()
    found = lab.record("bandwidth", rows.bandwidth(both, FITS, COPIED, CONDITIONS), keys=["pu", "stage"]).rows
    lacking = [row for row in found if row.status == "unavailable"]
    assert [(row.form, row.reason) for row in lacking] == [(rows.S4, shown.NOT_ABOVE_0)]
    assert {row.origin.value for row in found if row.form == rows.A_COPY} == {"interpolated"}  # between sizes of copies
    ratio, _ = judged(both, FITS)
    assert len(ratio.rows) == 1 and "1 of 2 stages have no such ratio" in ratio.rows[0].notes[0]
    with pytest.raises(Untestable, match="not above 0"):
        judged(figures(np.nan), FITS)


def intercepts(low, ms, high, compute):
    """Intercepts of stages 1.. with their intervals, and the measured compute times."""
    number = range(1, len(ms) + 1)
    regressed = pd.DataFrame({"unit": "torch:CPU", "stage": number, "intercept_ms": ms, "intercept_low": low,
                              "intercept_high": high, "sizes": 5})  # fmt: skip
    entries = pd.DataFrame({"unit": "torch:CPU", "stage": number, "total_time_ms": compute, "transfer_time_ms": 0.0,
                            "diagnosis": "measured copy taken off"})  # fmt: skip
    entries = entries.assign(low_ms=entries["total_time_ms"], high_ms=entries["total_time_ms"])
    lab = Recorder()
    found = rows.intercept_ratio(regressed, entries, dict.fromkeys(number, "X"), CONDITIONS)
    return lab.record("intercept_ratio", found, keys=["pu", "stage"]).rows, lab


def test_the_intercept_is_held_against_the_time_that_remains_behind_a_copy():
    found, lab = intercepts([1.9, -2.0, 4.0], [2.0, -1.0, 5.0], [2.1, -0.5, 6.0], [2.0, 2.0, 0.0])
    assert [row.value for row in found] == [1, 0, None] and found[0].high == 1
    assert (found[1].low, found[1].high) == (0, 0) and "no compute time" in found[2].reason
    figure, verdict = lab.judge("stages.intercept")
    assert figure.estimate.value == 0.5 and verdict == "refuted"
    assert "1 of 3 intercepts are negative" in figure.rows[0].notes


def test_an_intercept_that_may_be_anything_refutes_nothing():
    _, lab = intercepts([-1.0, -1.0], [0.5, 0.2], [3.0, 3.0], [1.0, 1.0])
    assert lab.judge("stages.intercept")[1] == "inconclusive"


def test_copies_recover_planted_bandwidths_where_the_study_is_far_off():
    found = shown.recovered(500, [(1000, 1000), (2000, 5000), (10_000, 10_000)], machines=9)
    lab = Recorder()
    recorded = lab.record("planted_bandwidth", rows.planted(found), keys=["machine", "planted_gb_s"]).rows
    lab.record("planted_regression", rows.planted_s4(found), keys=["machine", "planted_gb_s"])
    figure, verdict = lab.judge("goal.transfer_truth")
    assert figure.estimate.value < 5 and verdict == "met" and {row.origin.value for row in lab.table} == {"simulated"}
    assert len(recorded) == 9 and found["study_times"].between(5, 100).all()
    assert found.loc[found["planted_gb_s"] == 10, "study_times"].median() == pytest.approx(17, abs=2)


def test_no_unit_has_the_copies_of_another_one(measure, tmp_path):
    leave(tmp_path / "stages", cells=[*cells(units=LOCAL), *cells(units=("fast:CPU",), blocks=[(1, 5)])])
    study, lab = measure(), Recorder()
    at = rows.conditions(study.grid)
    found = lab.record("copies", rows.copies(study.transfers, study.copies, at), keys=["mib"]).rows
    fast = [row for row in found if row.form == "fast:CPU"]
    assert fast and {row.status for row in fast} == {"unavailable"} and "torch:CPU was measured" in fast[0].reason
    assert {row.form for row in found if row.status == "ok"} <= {"torch:CPU", transfer.PLAIN_COPY}
    times = lab.record("copy_times", rows.copy_times(study.copies), keys=["mib"]).rows
    assert {row.form for row in times} == {"torch:CPU", transfer.PLAIN_COPY}
    plain = [row for row in times if row.form == transfer.PLAIN_COPY]
    assert plain and all(len(lab.table.samples_of(row)) == row.n for row in plain)
    assert "fast:CPU has no copies of its own" in reading.copies(study.transfers, shown.copy_rates(study.transfers))


def test_a_sum_unit_that_stands_for_its_processor_has_no_bandwidth_of_another_one(tmp_path):
    found = tables.measured_cells(leave(tmp_path, cells=cells(units=("fast:CPU",), blocks=[(3, 3)])))
    lent = Transfers(curve(), {"fast:CPU": curve()}, {})
    entries, told = tables.write(tmp_path / "tables", found, lent)
    assert told["mb_s"].isna().all() and told["why"].str.contains("torch:CPU was measured in its stead").all()
    assert entries["diagnosis"].str.contains("a copy through torch:CPU taken off").all()


def test_sizes_left_out_together_are_one_sample_of_the_error():
    """Ten errors of one N are no ten samples, and quartiles no interval."""
    errors = np.array([1.0] * 10 + [30.0] * 10 + [2.0] * 10)
    sizes = [(n, e) for n in (100, 200, 300) for e in range(10)]
    low, high = shown._over_groups(errors, sizes, (0,))
    assert low == 0 and high >= 30 and np.isnan(shown._over_groups(errors[:10], sizes[:10], (0,))).all()


def test_errors_at_sizes_left_out_are_recorded_with_what_they_rest_on(measure):
    study, lab = measure(), Recorder()
    errors = shown.held_out(study.predictor)
    found = lab.record("held_out", rows.held_out(errors, rows.conditions(study.grid)), keys=["pu", "stage"]).rows
    assert len(found) == len(BLOCKS) and all(row.n > 1 and row.device == "CPU planted" for row in found)


def test_a_layer_that_the_study_does_not_know_is_said_so():
    none = seed_regression.regress(latencies(LAYER, SIZES, TRUTH, noise=0.0, seed=0).assign(layer="gat"), FEATURES)
    assert "no estimate of bytes" in reading.regression(none, pd.DataFrame())


def test_surfaces_show_origins_and_measured_corners(measure):
    found = shown.surface(measure().predictor, 1, 5, LOCAL, count=4)
    assert len(found) == 16 and set(found["origin"]) == {"measured", "interpolated"}
    corner = found[(found["nodes"] == 100) & (found["edges"] == 400)].iloc[0]
    assert corner["origin"] == "measured" and corner["at_nodes"] == "N 100"
    assert corner["ms"] == outcome(Cell("sage", FEATURES, 100, 400, 1, 5, "torch:CPU")).median_ms
    assert "0%" in reading.surface_title(found, "1-5")
    assert shown.surface(measure().predictor, 1, 3, LOCAL).empty


def test_sentences_follow_the_numbers(measure):
    study = measure(again=1)
    assert "100% of 24 cells" in reading.off_grid_title(study.compared)
    assert f"100% of {len(BLOCKS)} cases" in reading.off_grid(study.compared)
    errors = shown.held_out(study.predictor)
    assert len(errors) == len(BLOCKS) and errors["percent"].max() < 0.1
    assert "chosen was *work* for 8" in reading.predictions(study.predictor)
    assert set(reading.forms_table(errors)["chosen"]) == {"work"}
    assert "tell a bandwidth" in reading.copies(study.transfers, shown.copy_rates(study.transfers))
    assert reading.perfect(study.compared)["ms"].tolist() == [study.compared["ms"].min(), study.compared["ms"].max()]
    handed = shown.handed_on(study.transfers, 1e6)
    assert handed.loc["torch:CPU", "torch:CPU"] == 0 and handed.loc["torch:CPU", "host"] > 0
    assert reading.campaign(study).startswith(f"{len(study.done.answers)} cells")


def test_the_report_holds_every_section(tmp_path):
    regressed, both, entries = regressed_and_rates(leave(tmp_path))
    found = tables.measured_cells(tmp_path)
    rates = study_rates(found)
    text = reading.report(entries, rates, planted_study(), [("Study 5", reading.regression(regressed, both))])
    for part in ("Study 5\n-------", "CPU_stage1", "compute_time_ms", "at sizes never fitted"):
        assert part in text
    assert "CPU is torch:CPU" in reading.tables(entries, rates, ["a line"]) and "\n- a line" in reading.tables(
        entries, rates, ["a line"]
    )


def study_rates(found):
    from gnnlab.stages.bandwidth import study_tables

    transfers = Transfers(curve(), {unit: curve() for unit in UNITS}, {})
    return study_tables.bandwidths(study_tables.entries(found, transfers, {"CPU": "torch:CPU"}), found, transfers)


def test_cells_without_a_time_and_those_outside_the_hull_are_not_compared(measure):
    study = measure()
    gone = study.grid.assign(status="timeout")
    assert bandwidth.compare(study.predictor, gone).empty
    assert bandwidth.repeats(study.predictor, study.grid, gone).empty
    outside = study.grid[study.grid["first"] == 1].assign(nodes=5000, edges=50_000)
    assert bandwidth.compare(study.predictor, outside).empty


def test_a_cell_measured_twice_counts_with_both_and_is_held_against_its_first(measure):
    study = measure()
    again = study.grid.iloc[[0, 3]].assign(ms=lambda c: c["ms"] * 3, ms_high=lambda c: c["ms_high"] * 3, samples_ms="")
    merged = bandwidth.both_times(study.grid, again)
    assert merged["ms"].iloc[[0, 3]].tolist() == pytest.approx((study.grid["ms"].iloc[[0, 3]] * 2).tolist())
    assert merged["ms_high"].iloc[3] == pytest.approx(again["ms_high"].iloc[1])
    assert merged["n"].iloc[0] == 2 * study.grid["n"].iloc[0]
    pd.testing.assert_frame_equal(merged.drop([0, 3]), study.grid.drop([0, 3]))
    held = bandwidth.repeats(study.predictor, study.grid, again)
    assert held["error"].tolist() == pytest.approx([-2 / 3, -2 / 3]) and not held["within"].any()


def test_a_slope_that_may_be_zero_has_no_upper_end_and_no_interval():
    row = pd.Series({"slope_ms_per_byte": 1e-7, "slope_low": -1e-8, "slope_high": 2e-7})
    value, low, high = shown.study_figure(row)
    assert value == pytest.approx(10) and low == pytest.approx(5) and np.isnan(high)
    assert np.isnan(shown.study_figure(row * 0)).all()
    both = figures(1.0)
    both.loc[both["method"] == shown.STUDY, "ci_high"] = np.nan
    found = Recorder().record("bandwidth", rows.bandwidth(both, FITS, COPIED, CONDITIONS), keys=["pu", "stage"]).rows
    assert found[0].low is None and "no upper end" in found[0].notes[0]
    with pytest.raises(Untestable, match="has no upper end"):
        judged(both, FITS)
