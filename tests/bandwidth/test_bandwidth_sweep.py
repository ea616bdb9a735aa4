"""What notebook 06 measures beside notebook 05, on synthetic devices: what it compares, and the rows that it leaves."""

import re

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder
from refusals import refused
from synthetic_latencies import BLOCKS, DEVICE, SIZES, SMALL, SyntheticDevices, configs, leave, no_time, outcome

from gnnlab import bandwidth
from gnnlab.bandwidth import sweep
from gnnlab.bandwidth.copies import PLAIN_COPY, Transfers
from gnnlab.bandwidth.predict import Predictor
from gnnlab.bandwidth.sweep import prediction_rows, sizes_of
from gnnlab.errors import Untestable
from gnnlab.stages import journal
from gnnlab.stages.sizes import Size


def measuring(folder, patch):
    patch.setattr(sweep, "devices_at_work", SyntheticDevices)
    patch.setattr("gnnlab.bandwidth.copies.export", lambda *block, **options: None)
    leave(folder / "stages")
    options = {"stages": folder / "stages", "models": folder / "models", "test_sizes": 3}
    return lambda **changes: bandwidth.measure(folder / "tables", **(options | changes))


@pytest.fixture
def measure(tmp_path, monkeypatch):
    return measuring(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return measuring(tmp_path_factory.mktemp("measured"), patch)(fit_sizes=[Size(150, 600)])


def predictor_of(measured):
    return Predictor.fit(SMALL, measured.fit, Transfers.fit(measured.copies))


def recorded(frame, study="study", keys=("runs_on", "stage", "size")):
    lab = Recorder()
    return lab, lab.record(study, frame, keys=list(keys)).rows


def test_sizes_never_fitted_are_measured_and_predicted(measured):
    known, test = set(sizes_of(measured.fit)), measured.test
    assert known == {*SIZES, (150, 600)} and len(test) == 3 * len(BLOCKS)
    assert not known & set(zip(test["nodes"], test["edges"], strict=True))
    transfers = Transfers.fit(measured.copies)
    assert transfers.through[DEVICE].gb_s(1e6)[0] == transfers.plain.gb_s(1e6)[0] == pytest.approx(10, rel=0.02)
    errors = prediction_rows(predictor_of(measured), test)["off_grid_error"]
    assert len(errors) == len(test) and (errors["value"] < 1).all()


def test_what_is_known_is_not_measured_again_and_is_read_from_the_journals_alone(measure, tmp_path):
    first = measure()
    assert "0 known before" in first.messages[-1] and first.messages[-1].startswith("test: ")
    second, read = measure(), bandwidth.read(tmp_path / "tables", tmp_path / "stages")
    assert all(re.search(r"(\d+) measurements, \1 known before", message) for message in second.messages)
    for name in ("fit", "test", "copies"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name))
        pd.testing.assert_frame_equal(getattr(first, name), getattr(read, name))
    assert not (tmp_path / "tables" / "times.json").exists()


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
    leave(tmp_path / "none", answer=lambda config: no_time("unavailable", "no device"))
    with refused("no times of any device; devices with times: none"):
        measure(stages=tmp_path / "none")
    with refused("no measurements in"):
        measure(stages=tmp_path / "nowhere")


def test_only_the_devices_asked_for_are_taken_and_what_they_cannot_run_is_not_asked_of_them(measure, tmp_path):
    two = (DEVICE, "onnxruntime:CPU")
    leave(tmp_path / "stages", configs(devices=two[1:], blocks=[(1, 5)]))
    assert set(measure(devices=two[:1]).fit["device"]) == {DEVICE}
    both = measure()
    assert set(both.copies["device"]) == {PLAIN_COPY, *two}
    assert set(both.test.loc[both.test["device"] == two[1], "stage"]) == {"1-5 GATHER..NORMALIZE"}


def test_of_several_settings_those_with_most_times_are_fitted_and_a_message_says_so(measure, tmp_path):
    leave(tmp_path / "stages", configs(SIZES[:1], threads=2))
    leave(tmp_path / "stages", configs(SIZES[:2], precision="bfloat16"))
    measured = measure()
    assert set(measured.fit["threads"]) == {1} and set(measured.fit["precision"]) == {"float32"}
    assert "3 layers and settings were measured; that with most times" in measured.messages[0]


# ---- predicted beside measured --------------------------------------------------------------------------------------


def judged(folder, off, per_size=1):
    """The goal's verdict where every other size takes `off` times what is predicted; `per_size`: blocks of a size."""
    predictor = Predictor.fit(SMALL, journal.read(leave(folder / "fit")))
    sizes = sweep.draw(SIZES, 40 // per_size, seed=0)

    def answer(config):
        return outcome(config, outcome(config)["ms"] * (off if sizes.index((config.nodes, config.edges)) % 2 else 1))

    asked = configs(sizes, [(6, 6), (7, 7), (5, 5), (4, 4), (3, 3)][:per_size])
    rows = prediction_rows(predictor, journal.read(leave(folder / "test", asked, answer)))
    lab, _ = recorded(rows["off_grid_error"], "off_grid_error")
    lab.summarize("off_grid_error", "predicted", how="share", within=10, cluster="size")
    return *lab.judge("goal.predictor"), rows


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
    rows = judged(tmp_path, 1.3, per_size=5)[2]
    lab, both = recorded(rows["off_grid"])
    assert {row.form: (row.origin.value, row.interval.value, row.n) for row in both} == {
        "measured": ("measured", "95 % confidence", 25),
        "predicted": ("interpolated", "90 % prediction", len(SIZES)),
    }
    assert all((lab.table.samples_of(row) is None) == (row.form == "predicted") for row in both)
    errors = rows["off_grid_error"]
    assert set(errors["value"].round(1)) == {0.0, np.round(100 * (1 - 1 / 1.3), 1)} and set(errors["unit"]) == {"%"}
    assert ((errors["low"] <= errors["value"]) & (errors["value"] <= errors["high"])).all()
