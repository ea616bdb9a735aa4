"""The study of notebook 06 on planted times: what it measures, compares, says and claims."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from planted_campaign import BLOCKS, FEATURES, LAYER, SIZES, TRUTH, UNITS, PlantedUnits, cells, leave, outcome

from gnnlab.stages.bandwidth import bandwidth, seed_regression, tables
from gnnlab.stages.bandwidth import study_claims as claims
from gnnlab.stages.bandwidth import study_frames as shown
from gnnlab.stages.bandwidth import study_reading as reading
from gnnlab.stages.bandwidth.planted_truth import latencies, sweep
from gnnlab.stages.bandwidth.transfer import Curve, Transfers
from gnnlab.stages.campaign.cells import Cell
from gnnlab.stages.campaign.sizes import Size
from gnnlab.stages.errors import StageError
from gnnlab.stages.units import registry as units

CATALOGUE = {
    "goal.transfer_truth": SimpleNamespace(claimed=(None, 5)),
    "goal.predictor": SimpleNamespace(claimed=(0.9, None)),
}
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
    assert [u for u in units.all_units() if bandwidth.sums_only(u)] == ["openvino-handbuilt:CPU", "fast:CPU"]
    assert bandwidth.base("fast:CPU") == bandwidth.base("torch-compiled:CPU") == "torch:CPU"
    assert bandwidth.base("openvino-handbuilt:CPU") == "openvino:CPU"
    assert bandwidth.base("fake_units:behaves") == "fake_units:behaves"
    leave(tmp_path / "stages", cells=[*cells(units=LOCAL), *cells(units=("fast:CPU",), blocks=[(1, 5)])])
    found = measure()
    assert found.transfers.through["fast:CPU"] == found.transfers.through["torch:CPU"]
    assert found.transfers.out_of["fast:CPU"] == found.transfers.out_of["torch:CPU"]
    assert set(found.copies["unit"]) == {"torch:CPU"}
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


def planted_study(error=0.0, wide=False):
    rows = []
    for kind, count in ((bandwidth.NEW, 40), (bandwidth.AGAIN, 10)):
        for place in range(count):
            off = error if place % 2 else 0.0
            rows.append({"kind": kind, "unit": "torch:CPU", "stage": "1 GATHER", "size": f"{place}/9", "ms": 1.0,
                         "error": off, "within": abs(off) <= 0.1, "covered": True, "wide": wide})  # fmt: skip
    return pd.DataFrame(rows)


def test_the_goal_of_the_predictor_is_the_share_within_ten_percent():
    row = claims.predictor(planted_study(), CATALOGUE)
    assert row["measured"] == 1 and row["ci"][0] > 0.9 and row["n"] == 40 and row["why"].startswith("met: 40 of 40")
    half = claims.predictor(planted_study(error=0.3), CATALOGUE)
    assert half["measured"] == 0.5 and half["ci"][0] < 0.5 < half["ci"][1] and half["why"].startswith("missed")
    assert "measured a second time, 50% of 10" in half["why"]
    assert claims.predictor(planted_study().iloc[:0], CATALOGUE)["measured"] is None


def regressed_and_rates(stages):
    found = tables.measured_cells(stages)
    transfers = Transfers(curve(), {unit: curve() for unit in UNITS}, {})
    entries, rates = tables.write(stages / "tables", found, transfers)
    regressed = seed_regression.regress(found[found["unit"] == "torch:CPU"], FEATURES)
    return regressed, shown.side_by_side(regressed, rates, LAYER), entries


def test_the_studys_bandwidth_is_refuted_where_it_is_wrong(tmp_path):
    regressed, both, entries = regressed_and_rates(leave(tmp_path))
    row = claims.bandwidth(both)
    assert row["ci"][0] < row["measured"] < row["ci"][1] and abs(np.log(row["measured"])) > 0.1
    assert "geometric mean over" in row["why"] and "TRANSFORM" in row["why"]
    transform = both[both["stage"] == "6 TRANSFORM"].set_index("method")["gb_s"]
    assert transform[shown.STUDY] < transform[shown.COPY] / 2
    assert "4 REDUCE_COUNT" in reading.regression(regressed, both)  # its result grows with the nodes, too
    assert claims.intercept(regressed, entries)["n"] > 0


def test_the_studys_bandwidth_is_confirmed_where_it_is_right():
    """Both figures of every stage are the same."""
    rows = [{"unit": "u", "stage": f"{n} X", "method": m, "gb_s": 10.0, "ci_low": 9.0, "ci_high": 11.0}
            for n in (1, 2) for m in (shown.STUDY, shown.COPY)]  # fmt: skip
    row = claims.bandwidth(pd.DataFrame(rows))
    assert row["measured"] == pytest.approx(1) and row["ci"][0] < 1 < row["ci"][1] and row["n"] == 2


def test_the_intercept_is_held_against_the_time_that_remains_behind_a_copy():
    regressed = pd.DataFrame({"unit": "u", "stage": [1, 2, 3], "intercept_ms": [2.0, -1.0, 5.0],
                              "intercept_low": [1.0, -2.0, 4.0], "intercept_high": [3.0, 0.5, 6.0]})  # fmt: skip
    entries = pd.DataFrame({"unit": "u", "stage": [1, 2, 3], "compute_time_ms": [2.0, 2.0, 0.0]})
    row = claims.intercept(regressed, entries)
    assert row["measured"] == pytest.approx(0.25) and row["ci"] == (-0.25, 0.875) and row["n"] == 2
    assert "1 intercepts are negative" in row["why"] and "1 stages take no longer than a copy" in row["why"]
    assert claims.intercept(regressed.iloc[:0], entries)["measured"] is None


def test_copies_recover_planted_bandwidths_where_the_study_is_far_off():
    found = shown.recovered(500, [(1000, 1000), (2000, 5000), (10_000, 10_000)], machines=9)
    row = claims.transfer_truth(found, CATALOGUE)
    assert row["measured"] < 5 and row["why"].startswith("met") and found["study_times"].between(5, 100).all()
    assert found.loc[found["planted_gb_s"] == 10, "study_times"].median() == pytest.approx(17, abs=2)


def test_claims_are_one_row_for_each_id_and_all_are_handed_over(tmp_path):
    regressed, both, entries = regressed_and_rates(leave(tmp_path))
    machines = shown.recovered(500, [(1000, 1000), (2000, 5000), (10_000, 10_000)], machines=3)
    rows = claims.rows(planted_study(), both, regressed, entries, machines, CATALOGUE)
    taken = []
    assert claims.record(lambda **row: taken.append(row["id"]), rows) == 4
    assert taken == ["stages.bandwidth", "stages.intercept", "goal.transfer_truth", "goal.predictor"]


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
    again = study.grid.iloc[[0, 3]].assign(ms=lambda c: c["ms"] * 3, ms_high=lambda c: c["ms_high"] * 3)
    merged = bandwidth.both_times(study.grid, again)
    assert merged["ms"].iloc[[0, 3]].tolist() == pytest.approx((study.grid["ms"].iloc[[0, 3]] * 2).tolist())
    assert merged["ms_high"].iloc[3] == pytest.approx(again["ms_high"].iloc[1])
    assert merged["n"].iloc[0] == 2 * study.grid["n"].iloc[0]
    pd.testing.assert_frame_equal(merged.drop([0, 3]), study.grid.drop([0, 3]))
    held = bandwidth.repeats(study.predictor, study.grid, again)
    assert held["error"].tolist() == pytest.approx([-2 / 3, -2 / 3]) and not held["within"].any()


def test_a_slope_that_may_be_zero_has_no_upper_end_and_the_claim_keeps_its_interval():
    row = pd.Series({"slope_ms_per_byte": 1e-7, "slope_low": -1e-8, "slope_high": 2e-7})
    value, low, high = shown.study_figure(row)
    assert value == pytest.approx(10) and low == pytest.approx(5) and np.isnan(high)
    rows = [{"unit": "u", "stage": "1 X", "method": m, "gb_s": 10.0, "ci_low": 9.0, "ci_high": h}
            for m, h in ((shown.STUDY, np.nan), (shown.COPY, 11.0))]  # fmt: skip
    assert np.isfinite(claims.bandwidth(pd.DataFrame(rows))["ci"]).all()
    assert np.isnan(shown.study_figure(row * 0)).all()
