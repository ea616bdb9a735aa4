"""Rows of the one table follow the measurements, and nothing is filled in. The times are made up."""

import pandas as pd
import pytest
from synthetic_sweep import FAST, GPU, ORT, TORCH, config, leave, missing, outcome
from table_rows import as_rows

from gnnlab.stages import devices, rows, sizes
from gnnlab.stages.devices import Availability

HERE = Availability(True, chip="chip", version="runtime 1")


@pytest.fixture
def frame(tmp_path):
    """Makes the frame of a journal of (config, outcome) pairs."""
    return lambda *answers: leave(tmp_path, *answers)


def at(*times, edges=20, **changes):
    """A pair for each (device, stage, ms)."""
    return [(config(first=stage, device=name, edges=edges, **changes), outcome(ms)) for name, stage, ms in times]


def test_a_measurement_is_a_row_with_every_sample_and_its_conditions(frame):
    measured = (config(first=2, threads=2), outcome(2.0))
    (row,) = as_rows(rows.measurement_rows(frame(measured), {TORCH: HERE}), "size", "stage")
    assert (row.origin, row.statistic, row.unit, row.n, row.value) == ("measured", "median", "ms", 25, 2.0)
    assert row.keys == {"size": "10x20", "stage": "2 MESSAGE"} and (row.variant, row.reason) == (TORCH, None)
    assert (row.device, row.runtime, row.precision, row.threads) == ("CPU chip", "runtime 1", "float32", 2)


def test_a_measurement_without_a_time_has_a_reason_and_no_number(frame):
    lost = [(config(first=stage), missing(status)) for stage, status in enumerate(("timeout", "wrong", "failed"), 1)]
    found = frame(*lost, (config(first=4, device=GPU), missing(reason="no GPU")))
    probed = {TORCH: HERE, GPU: Availability(False, "no GPU", version="OpenVINO 1")}
    *cpu, gpu = as_rows(rows.measurement_rows(found, probed), "size", "stage")
    assert [row.status for row in cpu] == ["timeout", "failed", "failed"] and gpu.status == "unavailable"
    assert all(row.reason and row.value is None and row.n == 0 and row.device == "CPU chip" for row in cpu)
    assert (gpu.device, gpu.runtime, gpu.threads) == ("GPU (none here)", "OpenVINO 1", 0)


@pytest.mark.parametrize(("half", "notes", "marks"), [(0.01, [], 0), (0.03, [], 1), (0.03, ["interval is ±3.0 %"], 1)])
def test_a_wide_interval_is_marked_once_and_a_narrow_one_never(frame, half, notes, marks):
    (row,) = as_rows(rows.measurement_rows(frame((config(), outcome(1.0, half, notes=notes)))), "size", "stage")
    assert sum(note.startswith("interval is ±3.0 %") for note in row.notes) == marks == len(row.notes)


def test_gains_are_over_torch_at_all_sizes_of_a_stage_and_keep_their_interval(frame):
    answers = at((TORCH, 1, 1.0), (ORT, 1, 0.5), (TORCH, 2, 2.0), (ORT, 2, 1.99), (GPU, 1, 0.1))
    answers += at((TORCH, 1, 4.0), (ORT, 1, 2.0), (FAST, 1, 0.1), edges=40) + at((TORCH, 1, 0.1), threads=2)
    first, second = as_rows(rows.gain_rows(frame(*answers)), "stage")  # none of the GPU, nor of a device at one size
    assert (first.keys, first.variant, first.baseline) == ({"stage": "1 GATHER"}, ORT, TORCH)
    assert first.value == first.ratio == pytest.approx(2) and first.low < 2 < first.high and first.n == 25
    assert "over 2 sizes" in first.notes[0] and second.ratio == pytest.approx(2 / 1.99) and second.ratio_low < 1


def test_without_torch_another_device_is_the_baseline(frame):
    (row,) = as_rows(rows.gain_rows(frame(*at((ORT, 1, 1.0), (FAST, 1, 0.5)))), "stage")
    assert {row.variant, row.baseline} == {ORT, FAST}


def test_sums_of_stages_are_over_the_same_stages_fused_on_the_same_device(frame):
    alone, fused = at((TORCH, 1, 2.0), (TORCH, 2, 2.0), (FAST, 2, 2.0)), at((TORCH, 1, 2.0), (FAST, 1, 1.0), last=2)
    (row,) = as_rows(rows.sum_rows(frame(*alone, *fused)), "size", "block")
    assert row.variant == TORCH and row.value == pytest.approx(2) and row.low < 2 < row.high and row.n == 25
    assert row.keys == {"size": "10x20", "block": "1-2 GATHER..MESSAGE"} and row.threads == 1


def test_what_has_no_time_has_gaps_with_reasons_and_no_gains_or_sums(frame):
    lost = [(config(first=first, last=last, device=GPU), missing()) for first, last in ((1, 5), (2, 2), (1, 1))]
    found = frame(*lost, *at((TORCH, 1, 1.0)))
    (gap,) = rows.gaps(found).to_dict("records")
    assert (gap["status"], gap["reason"], gap["measurements"]) == ("unavailable", "no such device", 3)
    assert gap["stages"] == "1, 2, 1-5" and rows.gaps(found[found["status"] == "measured"]).empty
    of_gpu = found[found["device"] == GPU]
    assert rows.gain_rows(of_gpu).empty and rows.sum_rows(of_gpu).empty


def test_the_conclusion_names_the_fastest_and_what_the_machine_did(frame):
    times = at((TORCH, 1, 1.0), (FAST, 1, 2.0), (TORCH, 6, 4.0), (FAST, 6, 3.0), (TORCH, 7, 1.0), (FAST, 7, 2.0))
    times += at((TORCH, 1, 9.0), (FAST, 1, 6.0), last=7)
    found = frame(*times, (config(device=GPU), missing()))
    reference = pd.DataFrame({"phase": ["1", "1"], "variant": ["before", "after"], "samples": [[2.0], [2.6]]})
    won = f"stages and blocks are fastest on {TORCH} (2), {FAST} (2)"
    fastest, remarks = rows.conclusion(found, reference)
    assert fastest == f"**At 10x20, {won}; 1-7 GATHER..ACTIVATE takes 6 ms on {FAST}.**"
    assert remarks.startswith("1 of 9 measurements have no time; the reference workload changed by 30 %")
    assert rows.conclusion(found[found["device"] == GPU], reference[:0]) == ["1 of 1 measurements have no time."]


# ---- how long the sweep took

ALL = {name: Availability(False) for name in devices.all_devices()} | {TORCH: HERE}


def whole(device, **changes):
    return [
        (config(size.nodes, stage, device, edges=size.edges), outcome(1.0, **changes))
        for size in sizes.read(["study"])
        for stage in range(1, 8)
    ]


def durations(found, available, known=0):
    return as_rows(rows.duration_rows(found, available, known))


def test_minutes_are_one_sample_of_the_stages_of_every_usable_device(frame):
    found = frame(*whole(TORCH), *whole(ORT, half=0.03), (config(last=5), outcome(1.0)))
    row, _ = durations(found, ALL | {ORT: HERE})
    assert row.value == pytest.approx(210 * 0.5 / 60) and (row.n, row.interval, row.statistic) == (1, "none", "single")
    assert row.notes[0] == "210 measurements of 2 devices, 105 intervals within 2 %" and row.variant == "this sweep"
    half = found[found["device"] == TORCH]
    lacking = [(half, ALL | {ORT: HERE}), (half, {TORCH: HERE}), (half.assign(features=8), ALL), (half, ALL, 3)]
    for row, _ in (durations(*given) for given in lacking):  # a device, devices tried, S4's width, some known before
        assert row.status == "unavailable" and "of every device that is usable here" in row.reason


def test_hours_are_extrapolated_from_whole_devices_which_are_what_is_resampled(frame):
    found = frame(*whole(TORCH), *whole(ORT), *whole(FAST), (config(last=5), outcome(1.0)))
    found["took_s"] = found["device"].map({TORCH: 1.0, ORT: 3.0, FAST: 2.0})
    available = ALL | {ORT: HERE, FAST: HERE}
    _, row = durations(found, available)
    assert row.value == pytest.approx(2 * 315 / 3600)
    assert (row.origin, row.statistic, row.n) == ("extrapolated", "estimate", 315)
    assert row.variant == "as many cells as S4 measured"
    assert row.low <= 1 * 315 / 3600 and row.high >= 3 * 315 / 3600 and "scaled to S4's 315" in row.notes[0]
    _, alone = durations(found[found["device"] == TORCH], available)
    assert alone.interval == "none" and alone.value == pytest.approx(315 / 3600)
    _, few = durations(found[:1], available)
    assert few.status == "unavailable" and "15 sizes" in few.reason
