"""What notebook 06 measures beside notebook 05, on synthetic devices: what it compares, and the rows that it leaves."""

import re

import pandas as pd
import pytest
from one_table import Recorder
from refusals import refused
from synthetic_latencies import BLOCKS, DEVICE, SIZES, SMALL, SyntheticDevices, configs, leave, outcome

from gnnlab import bandwidth
from gnnlab.bandwidth import sweep
from gnnlab.bandwidth.copies import PLAIN_COPY, Transfers
from gnnlab.bandwidth.predict import TimePredictor
from gnnlab.bandwidth.sweep import prediction_rows, sizes_of
from gnnlab.errors import Untestable
from gnnlab.stages import journal
from gnnlab.stages.measurement import without_time
from gnnlab.stages.sizes import Size

OTHER = "onnxruntime:CPU"


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "devices_at_work", SyntheticDevices)
    monkeypatch.setattr("gnnlab.bandwidth.copies.export", lambda *block, **options: None)
    options = {"stages": leave(tmp_path / "stages"), "models": tmp_path / "models", "test_sizes": 3}
    return lambda **changes: bandwidth.measure(tmp_path / "tables", **(options | changes))


def test_sizes_never_fitted_are_measured_and_predicted(measure):
    measured = measure(fit_sizes=[Size(150, 600)])
    known, test = set(sizes_of(measured.fit)), measured.test
    assert known == {*SIZES, (150, 600)} and len(test) == 3 * len(BLOCKS) and not known & set(sizes_of(test))
    transfers = Transfers.fit(measured.copies)
    assert transfers.plain.gb_s(1e6)[0] == pytest.approx(10, rel=0.02)
    errors = prediction_rows(TimePredictor.fit(SMALL, measured.fit, transfers), test)["off_grid_error"]
    assert len(errors) == len(test) and (errors["value"] < 1).all()


def test_what_is_known_is_not_measured_again_and_is_read_from_the_journals_alone(measure, tmp_path):
    first, second = measure(), measure()
    assert "0 known before" in first.messages[-1] and first.messages[-1].startswith("test: ")
    assert all(re.search(r"(\d+) measurements, \1 known before", message) for message in second.messages)
    for other in (second, bandwidth.read(tmp_path / "tables", tmp_path / "stages")):
        for name in ("fit", "test", "copies"):
            pd.testing.assert_frame_equal(getattr(first, name), getattr(other, name))


def test_a_size_that_is_fitted_later_is_no_longer_one_of_the_test(measure):
    size = sizes_of(measure().test)[0]
    later = measure(fit_sizes=[Size(*size)])
    assert size in sizes_of(later.fit) and size not in sizes_of(later.test)
    assert measure(test_sizes=0).test.equals(later.test)


def test_devices_that_were_not_measured_are_refused(measure, tmp_path):
    with refused("no times of openvino:CPU; devices with times: torch:CPU"):
        measure(devices=["openvino:CPU"])
    with refused("run notebooks 04, 05 and 06 first"):
        bandwidth.read(tmp_path / "tables", tmp_path / "stages")
    leave(tmp_path / "none", answer=lambda config: without_time("unavailable", "no device"))
    with refused("no times of any device; devices with times: none"):
        measure(stages=tmp_path / "none")
    with refused("no measurements in"):
        measure(stages=tmp_path / "nowhere")


def test_only_the_devices_asked_for_are_taken_and_what_they_cannot_run_is_not_asked_of_them(measure, tmp_path):
    leave(tmp_path / "stages", configs(devices=[OTHER], blocks=[(1, 5)]))
    alone, both = measure(devices=[DEVICE]), measure()
    assert set(alone.fit["device"]) == {DEVICE} and set(alone.copies["device"]) == {PLAIN_COPY}
    assert set(both.copies["device"]) == {PLAIN_COPY, OTHER}  # torch hands its input on
    assert set(both.test.loc[both.test["device"] == OTHER, "stage"]) == {"1-5 GATHER..NORMALIZE"}


def test_of_several_settings_those_with_most_times_are_fitted_and_a_message_says_so(measure, tmp_path):
    leave(tmp_path / "stages", configs(SIZES[:1], threads=2))
    leave(tmp_path / "stages", configs(SIZES[:2], precision="bfloat16"))
    measured = measure()
    assert set(measured.fit["threads"]) == {1} and set(measured.fit["precision"]) == {"float32"}
    assert "3 layers and settings were measured; that with most times" in measured.messages[0]


# ---- predicted beside measured --------------------------------------------------------------------------------------


def judged(folder, off, per_size=1):
    """The goal's figure, its verdict and its table where every other size takes `off` times what is predicted, with
    `per_size` blocks of a size."""
    predictor = TimePredictor.fit(SMALL, journal.read(leave(folder / "fit")))
    sizes = sweep.draw(SIZES, 40 // per_size, seed=0)

    def answer(config):
        return outcome(config, outcome(config)["ms"] * (off if sizes.index((config.nodes, config.edges)) % 2 else 1))

    asked, lab = configs(sizes, [(6, 6), (7, 7), (5, 5), (4, 4), (3, 3)][:per_size]), Recorder()
    for study, rows in prediction_rows(predictor, journal.read(leave(folder / "test", asked, answer))).items():
        lab.record(study, rows, keys=["runs_on", "stage", "size"])
    lab.summarize("off_grid_error", "predicted", how="share", within=10, cluster="size")
    return *lab.judge("goal.predictor"), lab


def test_the_goal_of_the_predictor_is_the_share_within_ten_percent(tmp_path):
    share, verdict, _ = judged(tmp_path / "right", 1.0)
    assert share.estimate.value == 1 and share.estimate.low > 0.9 and share.estimate.n == 40 and verdict == "met"
    half, verdict, _ = judged(tmp_path / "half", 1.3)
    assert half.estimate.value == 0.5 and half.estimate.low < 0.5 < half.estimate.high and verdict == "missed"
    few, verdict, _ = judged(tmp_path / "few", 1.0, per_size=5)  # 40 at 8 sizes say less than 40 sizes
    assert few.estimate.n == 40 and few.estimate.low < 0.9 and verdict == "open"
    with pytest.raises(Untestable):
        Recorder().judge("goal.predictor")


def test_predicted_times_are_no_measured_ones(tmp_path):
    *_, lab = judged(tmp_path, 1.3, per_size=5)
    times, errors = lab.study("off_grid").rows, lab.study("off_grid_error").rows
    assert {(row.variant, row.origin, row.interval, row.n) for row in times} == {
        ("measured", "measured", "95 % confidence", 25),
        ("predicted", "interpolated", "90 % prediction", len(SIZES)),
    }
    assert all((lab.table.samples_of(row) is None) == (row.variant == "predicted") for row in times)
    assert {(round(row.value, 1), row.unit) for row in errors} == {(0.0, "%"), (round(100 - 100 / 1.3, 1), "%")}
    assert all(row.low <= row.value <= row.high for row in errors)


def test_without_a_time_between_the_fitted_sizes_there_are_no_rows(tmp_path):
    fit = journal.read(leave(tmp_path / "fit"))
    beyond = journal.read(leave(tmp_path / "beyond", configs([(9999, 9999)])))
    for test in (fit[:0], beyond):
        rows = prediction_rows(TimePredictor.fit(SMALL, fit), test)["off_grid_error"]
        assert rows.empty and {"value", "runs_on", "stage"} <= {*rows}
