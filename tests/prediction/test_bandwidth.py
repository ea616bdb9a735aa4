"""What notebook 06 measures beside notebook 05, on planted times: what it compares, and the rows that it leaves."""

import pandas as pd
import pytest
from one_table import Recorder
from planted_campaign import BLOCKS, FEATURES, LAYER, SIZES, PlantedUnits, cells, leave

from gnnlab.campaign import campaign
from gnnlab.campaign.cells import Cell
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import GnnlabError, Untestable
from gnnlab.prediction import bandwidth, copies
from gnnlab.prediction.bandwidth import AGAIN, NEW, BandwidthFindings
from gnnlab.prediction.measured import need_times, sizes_of
from gnnlab.prediction.transfer import PLAIN_COPY
from gnnlab.units import registry as units

LOCAL = ("torch:CPU",)  # what can be loaded here without an exported model
NO_DEVICE = {"status": "unavailable", "reason": "no device", "samples_ms": (), "median_ms": None, "ci_ms": None,
             "std_ms": None}  # fmt: skip


def measuring(folder):
    leave(folder / "stages", cells=cells(units=LOCAL))
    options = {"stages": folder / "stages", "models": folder / "models", "budget_s": 0.01, "off_grid": 3}
    return lambda **changes: bandwidth.measure(folder / "tables", **(options | changes))


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "LocalUnits", PlantedUnits)
    return measuring(tmp_path)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign, "LocalUnits", PlantedUnits)
        return measuring(tmp_path_factory.mktemp("measured"))(extra=[GraphSize(150, 600)], again=2, points=8)


def of_kind(found, kind):
    return found.compared[found.compared["kind"] == kind]


def record(found, study, keys=("pu", "stage", "size")):
    lab = Recorder()
    return lab, lab.record(study, getattr(found, study)(), keys=list(keys)).rows


def test_sizes_never_fitted_are_measured_and_predicted(found):
    new, again = of_kind(found, NEW), of_kind(found, AGAIN)
    assert len(new) == 3 * len(BLOCKS) and (150, 600) in found.sizes
    assert not set(found.sizes) & set(zip(new["nodes"], new["edges"], strict=True))
    assert (new["predicted_ms"] / new["ms"]).between(0.99, 1.01).all()
    assert len(again) == 2 * len(BLOCKS) and (again["predicted_ms"] == again["ms"]).all()
    assert found.transfers.through["torch:CPU"].gb_s(1e6)[0] == pytest.approx(10, rel=0.02)
    assert found.transfers.plain.ms(1e5) > 0 and found.done.known == 0
    shares = found.errors_by_stage()
    assert shares["cells"].sum() == len(new) and (shares["off by 10 % at most (%)"] == 100).all()


def test_what_is_known_is_not_measured_again(measure):
    first, second = measure(), measure()
    assert first.done.known == 0 and second.done.known == len(second.done.answers)
    pd.testing.assert_frame_equal(first.compared, second.compared)


def test_another_seed_draws_other_sizes(measure):
    assert set(measure(seed=1).compared["size"]) != set(measure(seed=2).compared["size"])


def test_units_that_were_not_measured_are_refused(measure, tmp_path):
    with pytest.raises(GnnlabError, match="openvino:CPU was not measured by notebook 05; units with times: torch:CPU"):
        measure(names=["openvino:CPU"])
    leave(tmp_path / "stages", lambda cell: NO_DEVICE)
    with pytest.raises(GnnlabError, match="has measured no unit here"):
        measure()
    said = []
    need_times(tmp_path / "stages", said.append)
    assert said and "torch:CPU: no device" in said[0]


def test_only_what_is_random_is_measured_a_second_time(measure, tmp_path):
    real = [Cell("sage", FEATURES, 1797, 17970, *block, "torch:CPU", graph="digits") for block in BLOCKS]
    leave(tmp_path / "stages", cells=[*cells(units=LOCAL), *real])
    found = measure(again=100)
    assert (1797, 17970) in sizes_of(found.grid) and 1797 not in set(of_kind(found, AGAIN)["nodes"])


# ---- copies ---------------------------------------------------------------------------------------------------------


def test_a_unit_that_only_sums_has_no_copies(measure, tmp_path):
    assert [u for u in units.all_units() if copies.sums_only(u)] == ["openvino-handbuilt:CPU", "fast:CPU"]
    leave(tmp_path / "stages", cells=[*cells(units=LOCAL), *cells(units=("fast:CPU",), blocks=[(1, 5)])])
    found = measure()
    assert set(found.transfers.through) == {"torch:CPU"}
    assert {key[1:] for key in found.predictor.fits if key[0] == "fast:CPU"} == {(1, 5)}
    _, rates = record(found, "copy_rates", ["mib"])
    assert {row.form for row in rates} == {"torch:CPU", PLAIN_COPY}
    lab, times = record(found, "copy_times", ["mib"])
    assert {row.form for row in times} == {"torch:CPU", PLAIN_COPY} == set(found.copies["unit"])
    plain = [row for row in times if row.form == PLAIN_COPY]
    assert plain and all(len(lab.table.samples_of(row)) == row.n for row in plain)


def test_the_identity_is_exported_for_every_runtime_and_for_each_size_where_shapes_are_fixed(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(
        copies, "export", lambda layer, *stages, exporter, folder, size=None: made.append((exporter, size))
    )
    copies.export_identity(["torch:CPU", "onnxruntime:CPU", "openvino:NPU"], FEATURES, tmp_path, [1, 8])
    assert made == [("onnx", None), ("openvino", (2, 1)), ("openvino", (2, 8))]


def test_the_sweep_goes_from_4_kib_to_the_most_that_a_cell_moves(found):
    sweep = copies.sweep_sizes(found.grid, FEATURES, points=8)
    assert len(sweep) == 8 and sweep[0] * 4 * FEATURES == copies.LEAST_BYTES and sweep == sorted(sweep)
    most = max(LAYER.block(*block).bytes_moved(*size) for block in BLOCKS for size in SIZES)
    assert sweep[-1] * 4 * FEATURES == pytest.approx(most / 2, rel=0.01)
    assert set(found.copies["size_bytes"]) == {4 * FEATURES * edges for edges in sweep}


# ---- predicted beside measured --------------------------------------------------------------------------------------


def planted(error=0.0, per_size=1, new=40, **changes):
    """Cells of 1 ms at sizes never fitted, every other size predicted with that error; and 10 measured twice."""
    rows = []
    for kind, count in ((NEW, new), (AGAIN, 10)):
        for place in range(count):
            ms = 1 + (error if place // per_size % 2 else 0.0)
            rows.append({"kind": kind, "unit": "torch:CPU", "stage": f"{place} X", "size": f"{place // per_size}/9",
                         "predicted_ms": ms, "low_ms": ms - 0.02, "high_ms": ms + 0.02})  # fmt: skip
    fixed = {"ms": 1.0, "ms_low": 0.99, "ms_high": 1.01, "n": 25, "form": "work", "fitted": 12, "device": "planted",
             "runtime": "1", "precision": "float32", "threads": 1}  # fmt: skip
    samples = [(0.99, 1.0, 1.01) * 8 + (1.0,)] * len(rows)
    compared = pd.DataFrame(rows).assign(samples_ms=samples, **(fixed | changes))
    return BandwidthFindings(None, compared, None, None, {}, None)


def judged(found):
    lab, _ = record(found, "off_grid_error")
    return lab.judge("goal.predictor")


def test_the_goal_of_the_predictor_is_the_share_within_ten_percent():
    found, verdict = judged(planted())
    assert found.estimate.value == 1 and found.estimate.low > 0.9 and found.estimate.n == 40 and verdict == "met"
    half, verdict = judged(planted(error=0.3))
    assert half.estimate.value == 0.5 and half.estimate.low < 0.5 < half.estimate.high and verdict == "missed"
    assert any("50 % of 10 known cells are within 10 %" in note for note in half.rows[0].notes)
    with pytest.raises(Untestable):
        judged(planted(new=0))


def test_cells_of_one_size_are_no_samples_of_their_own():
    """40 cells at 4 sizes say less than 40 sizes, and those of one size nothing of others."""
    few = judged(planted(per_size=10))
    assert few[0].estimate.n == 40 and few[0].estimate.low < 0.9 and few[1] == "open"
    one = judged(planted(per_size=40))
    assert one[0].estimate.interval is None and one[1] == "open"


def test_predicted_times_are_no_measured_ones():
    lab, found = record(planted(error=0.3), "off_grid")
    origins = {row.form: (row.origin.value, row.interval.value, row.n) for row in found}
    assert origins == {
        "measured": ("measured", "95 % confidence", 25),
        "predicted": ("interpolated", "90 % prediction", 12),
    }
    assert all((lab.table.samples_of(row) is None) == (row.form == "predicted") for row in found)
    _, again = record(planted(), "repeat_error")
    assert len(again) == 10 and {row.value for row in again} == {0}


def test_a_cell_measured_twice_is_compared_with_its_first_time(found):
    again = found.grid.iloc[[0, 3]].assign(ms=lambda c: c["ms"] * 3, ms_high=lambda c: c["ms_high"] * 3, samples_ms="")
    held = bandwidth.repeats(found.predictor, found.grid, again)
    assert (held["predicted_ms"] / held["ms"] - 1).tolist() == pytest.approx([-2 / 3, -2 / 3])


def test_errors_at_sizes_left_out_are_recorded_under_the_conditions_of_their_unit(found):
    _, rows = record(found, "held_out", ["pu", "stage"])
    assert len(rows) == len(BLOCKS) and all(row.n > 1 and row.device == "CPU planted" for row in rows)
