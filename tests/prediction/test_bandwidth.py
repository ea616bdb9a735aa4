"""What notebook 06 measures beside notebook 05, on planted times: what it compares, and the rows that it leaves."""

import pandas as pd
import pytest
from one_table import Recorder
from planted_campaign import BLOCKS, FEATURES, LAYER, SIZES, PlantedUnits, cells, leave, no_time

from gnnlab.campaign import campaign
from gnnlab.campaign.cells import Cell
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import GnnlabError, Untestable
from gnnlab.prediction import bandwidth, copies
from gnnlab.prediction.bandwidth import COMPARED, compare, repeats, sizes_of
from gnnlab.prediction.copies import PLAIN_COPY, MeasuredTransfers
from gnnlab.prediction.predictor import TimePredictor
from gnnlab.units import registry as units

LOCAL = ("torch:CPU",)  # what can be loaded here without an exported model


def measuring(folder):
    leave(folder / "stages", cells=cells(units=LOCAL))
    options = {"stages": folder / "stages", "models": folder / "models", "budget_s": 0.01, "off_grid": 3}
    return lambda **changes: bandwidth.measure(folder / "tables", **(options | changes))


def predictor_of(measured):
    return TimePredictor.fit(LAYER, measured.grid, MeasuredTransfers.fit(measured.copies))


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "LocalUnits", PlantedUnits)
    return measuring(tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign, "LocalUnits", PlantedUnits)
        return measuring(tmp_path_factory.mktemp("measured"))(extra=[GraphSize(150, 600)], again=2, points=8)


def record(frame, study="study", keys=("pu", "stage", "size")):
    lab = Recorder()
    return lab, lab.record(study, frame, keys=list(keys)).rows


def test_sizes_never_fitted_are_measured_and_predicted(measured):
    known, new = sizes_of(measured.grid), compare(predictor_of(measured), measured.new)
    assert len(new) == len(measured.new) == 3 * len(BLOCKS) and (150, 600) in known
    assert not set(known) & set(zip(new["nodes"], new["edges"], strict=True))
    assert (new["predicted_ms"] / new["ms"]).between(0.99, 1.01).all() and set(new["fitted"]) == {len(SIZES) + 1}
    again = repeats(measured.grid, measured.again.assign(ms=lambda cells: cells["ms"] * 3))
    assert len(again) == 2 * len(BLOCKS) and (again["predicted_ms"] / again["ms"]).tolist() == pytest.approx(
        [1 / 3] * 16
    )
    transfers = MeasuredTransfers.fit(measured.copies)
    assert transfers.through["torch:CPU"].gb_s(1e6)[0] == pytest.approx(10, rel=0.02) and transfers.plain.ms(1e5) > 0


def test_what_is_known_is_not_measured_again_and_only_what_is_random_a_second_time(measure, tmp_path):
    real = [Cell("sage", FEATURES, 1797, 17970, *block, "torch:CPU", graph="digits") for block in BLOCKS]
    leave(tmp_path / "stages", cells=[*cells(units=LOCAL), *real])
    first, second = measure(again=100), measure(again=100)
    assert "0 known" in first.messages[0] and "0 cells to measure" in second.messages[0]
    pd.testing.assert_frame_equal(first.new, second.new)
    assert (1797, 17970) in sizes_of(first.grid) and 1797 not in set(first.again["nodes"])


def test_units_that_were_not_measured_are_refused(measure, tmp_path):
    with pytest.raises(GnnlabError, match="openvino:CPU was not measured by notebook 05; units with times: torch:CPU"):
        measure(names=["openvino:CPU"])
    leave(tmp_path / "stages", lambda cell: no_time("unavailable", "no device"))
    with pytest.raises(GnnlabError, match="has measured no unit here"):
        measure()
    skipped = []
    bandwidth.need_times(tmp_path / "stages", skipped.append)
    assert "no device" in skipped[0]
    with pytest.raises(GnnlabError, match="measure first"):
        bandwidth.measured_cells(tmp_path)


# ---- copies ---------------------------------------------------------------------------------------------------------


def test_a_unit_that_only_sums_has_no_copies(measure, tmp_path):
    assert [u for u in units.all_units() if copies.sums_only(u)] == ["openvino-handbuilt:CPU", "fast:CPU"]
    leave(tmp_path / "stages", cells=[*cells(units=LOCAL), *cells(units=("fast:CPU",), blocks=[(1, 5)])])
    measured = measure()
    assert predictor_of(measured).blocks("fast:CPU") == {(1, 5)}
    frames = bandwidth.copy_studies(measured.copies)
    (_, rates), (lab, times) = (record(frames[name], keys=["mib"]) for name in ("copies", "copy_times"))
    assert {row.form for row in rates} == {row.form for row in times} == {"torch:CPU", PLAIN_COPY}
    plain = [row for row in times if row.form == PLAIN_COPY]
    assert plain and all(len(lab.table.samples_of(row)) == row.n for row in plain)


def test_the_identity_is_exported_for_every_runtime_and_for_each_size_where_shapes_are_fixed(monkeypatch, tmp_path):
    exported = []
    monkeypatch.setattr(
        copies, "export", lambda layer, *stages, exporter, folder, size=None: exported.append((exporter, size))
    )
    like, names = cells()[0], ["torch:CPU", "onnxruntime:CPU", "openvino:NPU", "fast:CPU"]
    asked = copies.identity_cells(like, [1, 8], names, tmp_path)
    assert exported == [("onnx", None), ("openvino", (2, 1)), ("openvino", (2, 8))]
    assert [(cell.edges, cell.unit) for cell in asked] == [(edges, name) for edges in (1, 8) for name in names[:3]]


def test_the_sweep_goes_from_4_kib_to_the_most_that_a_cell_moves(measured):
    sweep = copies.sweep_sizes(measured.grid, points=8)
    assert len(sweep) == 8 and sweep[0] * 4 * FEATURES == copies.LEAST_BYTES and sweep == sorted(sweep)
    most = max(LAYER.block(*block).bytes_moved(*size) for block in BLOCKS for size in SIZES)
    assert sweep[-1] * 4 * FEATURES == pytest.approx(most / 2, rel=0.01)
    assert set(measured.copies["size_bytes"]) == {4 * FEATURES * edges for edges in sweep}


# ---- predicted beside measured --------------------------------------------------------------------------------------


def planted(error=0.0, per_size=1, count=40):
    """Cells of 1 ms at sizes never fitted, every other size predicted with that error."""
    rows = []
    for place in range(count):
        ms = 1 + (error if place // per_size % 2 else 0.0)
        predicted = {"predicted_ms": ms, "predicted_low_ms": ms - 0.02, "predicted_high_ms": ms + 0.02}
        rows.append({"stage": f"{place} X", "size": f"{place // per_size}/9", **predicted})
    about = {"unit": "torch:CPU", "pu": "torch:CPU", "device": "planted", "runtime": "1", "precision": "float32"}
    about |= {"ms": 1.0, "ms_low": 0.99, "ms_high": 1.01, "n": 25, "fitted": 12, "threads": 1}
    samples = [(0.99, 1.0, 1.01) * 8 + (1.0,)] * count
    return pd.DataFrame(rows, columns=COMPARED).assign(**about, samples_ms=samples)


def judged(compared):
    lab, _ = record(bandwidth.off_grid_error_rows(compared, planted(error=0.3, count=10)), "off_grid_error")
    lab.summarize("off_grid_error", "predicted", how="share", within=10, cluster="size")
    return lab.judge("goal.predictor")


def test_the_goal_of_the_predictor_is_the_share_within_ten_percent():
    share, verdict = judged(planted())
    assert share.estimate.value == 1 and share.estimate.low > 0.9 and share.estimate.n == 40 and verdict == "met"
    half, verdict = judged(planted(error=0.3))
    assert half.estimate.value == 0.5 and half.estimate.low < 0.5 < half.estimate.high and verdict == "missed"
    assert any("50 % of 10 known cells are within 10 %" in note for note in half.rows[0].notes)
    with pytest.raises(Untestable):
        judged(planted(count=0))
    few, verdict = judged(planted(per_size=10))  # 40 cells at 4 sizes say less than 40 sizes
    assert few.estimate.n == 40 and few.estimate.low < 0.9 and verdict == "open"
    assert judged(planted(per_size=40))[0].estimate.interval is None  # those of one size nothing of others


def test_predicted_times_are_no_measured_ones():
    lab, rows = record(bandwidth.off_grid_rows(planted(error=0.3)))
    assert {row.form: (row.origin.value, row.interval.value, row.n) for row in rows} == {
        "measured": ("measured", "95 % confidence", 25),
        "predicted": ("interpolated", "90 % prediction", 12),
    }
    assert all((lab.table.samples_of(row) is None) == (row.form == "predicted") for row in rows)
    _, again = record(bandwidth.repeat_error_rows(planted(count=10)))
    assert len(again) == 10 and {row.value for row in again} == {0}


def test_errors_at_sizes_left_out_are_recorded_under_the_conditions_of_their_unit(measured):
    scores = bandwidth.scores(predictor_of(measured), measured)
    assert {name: len(rows) for name, rows in scores.items() if name != "held_out"} == {
        "off_grid": 2 * len(measured.new), "off_grid_error": len(measured.new), "repeat_error": len(measured.again)
    }  # fmt: skip
    _, rows = record(scores["held_out"], keys=["pu", "stage"])
    assert [row.keys["stage"] for row in rows] == [*(f"{s.number} {s.name}" for s in LAYER.stages), "1-5"]
    assert all(row.n > 1 and row.device == "CPU planted" for row in rows)
    assert all("between the others" in row.notes[0] for row in rows)
