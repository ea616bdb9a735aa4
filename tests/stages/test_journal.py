"""What is known stays known, whatever was asked last; S4's files are written from it. The times are made up."""

import json
import multiprocessing
import sys
import time

import numpy as np
import pytest
from refusals import refused
from synthetic_sweep import FAST, GPU, NPU, TORCH, Working, config, leave, missing, outcome

from gnnlab.stages import journal
from gnnlab.stages.measure import run
from gnnlab.stages.measurement import record

CPU_GPU, NPUS, RAW = journal.FILES


def measurements(folder, name=RAW):
    return json.loads((folder / name).read_bytes())["measurements"]


def test_a_measurement_comes_back_from_the_journal_as_it_went(tmp_path):
    odd = outcome(2.0, notes=["é \u2028 \n", "second"], samples_ms=[0.1 + 0.2, 1e-9], ms_low=None, ms_high=None)
    frame = leave(tmp_path, (config(graph="digits"), odd), (config(first=1, last=5, threads=2), missing()))
    one, fused = (row for _, row in frame.iterrows())
    assert (one["key"], one["stage"], one["size"]) == ("10,20,torch:CPU,1,digits", "1 GATHER", "10x20")
    assert one["samples_ms"] == odd["samples_ms"] and one["notes"] == "é \u2028 \n; second" and one["n"] == 2
    assert np.isnan(one["ms_low"]) and not one["within"] and one["processor"] == "CPU" and one["took_s"] == 0.5
    assert fused["key"] == "10,20,torch:CPU,1-5,2 threads" and fused["stage"] == "1-5 GATHER..NORMALIZE"
    assert fused["fused"] and np.isnan(fused["ms"]) and fused["reason"] == "no such device" and fused["n"] == 0


def test_the_latest_that_is_known_counts_and_no_later_failure_hides_it(tmp_path):
    at = config()
    assert leave(tmp_path, (at, missing()))["status"][0] == "unavailable"
    assert leave(tmp_path, (at, outcome(1.0)), (at, missing("failed", "crashed")))["ms"][0] == 1.0
    assert leave(tmp_path, (at, outcome(2.0, runtime_version="runtime 2")))["ms"][0] == 2.0
    assert leave(tmp_path, (at, missing("wrong", "off")))["status"].tolist() == ["wrong"]


def test_two_graphs_of_one_size_stand_side_by_side_and_a_changed_one_counts_as_it_is_now(tmp_path):
    a, b = (config(graph="a.csv", graph_digest=digest) for digest in ("old", "new"))
    frame = leave(tmp_path, (a, outcome(1.0)), (config(graph="b.csv"), outcome(2.0)))
    assert list(frame["graph"]) == ["a.csv", "b.csv"] and frame["key"].is_unique
    frame = leave(tmp_path, (b, missing("failed", "crashed")))
    assert frame.set_index("graph")["status"].to_dict() == {"a.csv": "failed", "b.csv": "measured"}


@pytest.mark.parametrize("wrong", ["{", "[]", "null", '"a"', "{}", "cut off", "status", "conditions", "written"])
def test_a_line_that_was_cut_off_or_lacks_a_field_is_left_out(tmp_path, wrong):
    """Fault 12: a line without an outcome was a KeyError."""
    leave(tmp_path, (config(), outcome(1.0)))
    whole = json.loads((tmp_path / journal.JOURNAL).read_text()) | {"key": "other", "nodes": 99}
    if wrong in whole:
        del whole[wrong]
        wrong = json.dumps(whole)
    with (tmp_path / journal.JOURNAL).open("a") as file:
        file.write("\n" + (json.dumps(whole)[:-9] if wrong == "cut off" else wrong))
    assert list(journal.read(tmp_path)["nodes"]) == [10] and len(journal.known(tmp_path)) == 1
    assert len(leave(tmp_path, (config(first=2), outcome(1.0)))) == 2  # what comes after it is read


def test_a_disk_that_refuses_names_the_file_in_one_line(tmp_path):
    (tmp_path / journal.JOURNAL).symlink_to("/dev/full")
    with refused(rf"could not write {tmp_path}.*journal\.jsonl: No space left on device; .* goes on"):
        journal.append(tmp_path, record(config(), outcome(1.0)))


# ---- S4's files


def test_the_files_hold_all_that_is_known_whatever_was_measured_last(tmp_path):
    """Fault 2: measuring phase 2 alone emptied phase 1's checkpoint."""
    leave(
        tmp_path, *[(config(first=first, device=device), outcome(1.0)) for first in (1, 3) for device in (TORCH, GPU)]
    )
    assert journal.write_files(tmp_path) == ["checkpoint_npu.json is not written: no device of NPU was measured"]
    assert {path.name for path in tmp_path.iterdir()} == {journal.JOURNAL, journal.REPORT, CPU_GPU, RAW}
    before = measurements(tmp_path, CPU_GPU)
    leave(tmp_path, (config(device=NPU), outcome(3.0)), (config(first=3, device=NPU), missing()))
    assert journal.write_files(tmp_path) == []
    phase_1, phase_2, raw = (measurements(tmp_path, name) for name in journal.FILES)
    assert phase_1 == before and len(phase_1) == 4 and set(phase_2) == {f"10,20,{NPU},1", f"10,20,{NPU},3"}
    assert raw == phase_1 | phase_2
    one, lost = raw[f"10,20,{NPU},1"], raw[f"10,20,{NPU},3"]
    assert len(one["samples_ms"]) == 25 and one["ms"] == 3.0 and one["first"] == 1 and one["fused"] is False
    assert lost["status"] == "unavailable" and lost["ms"] is None and lost["samples_ms"] == []


def test_the_report_names_everything_that_is_known(tmp_path):
    two = [(config(first=first, device=device), outcome(first)) for first in (1, 2) for device in (TORCH, FAST)]
    frame = leave(tmp_path, *two, (config(last=2), outcome(3.0)), (config(device=GPU), missing()))
    text = journal.report(frame, ["a message"])
    for words in ("a message", "10x20", "sage-500", "1 GATHER", "1-2 GATHER..MESSAGE", "no such device", "5 measured"):
        assert words in text
    assert "no such device" in journal.report(frame[frame["status"] != "measured"], [])


def test_an_empty_folder_says_what_to_do(tmp_path):
    with refused("no measurements in .*; measure first: gnnlab stages --measure"):
        journal.write_files(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="kills a forked process; Windows has no fork")
def test_ten_kills_at_random_moments_lose_nothing_and_measure_nothing_twice(tmp_path):
    """The sweep is killed while it measures, writes the journal or writes S4's files, and started again."""
    every = [config(n, first, device) for n in range(10, 26) for first in range(1, 8) for device in (TORCH, NPU)]
    random, path = np.random.default_rng(7), tmp_path / journal.JOURNAL
    path.touch()
    slow = Working(lambda asked: (time.sleep(0.002), outcome(1.0))[1])
    for _ in range(10):
        process = multiprocessing.get_context("fork").Process(target=run, args=(tmp_path, every, slow))
        until = path.stat().st_size + int(random.integers(1, 9000))
        process.start()
        while process.is_alive() and path.stat().st_size < until:
            time.sleep(0.0005)
        time.sleep(random.uniform(0, 0.01))
        process.kill()
        process.join()
    before, last = {each["key"] for each in journal.records(tmp_path)}, Working()
    run(tmp_path, every, last)
    assert {asked.key for asked in last.asked} == {asked.key for asked in every} - before
    keys = [each["key"] for each in journal.records(tmp_path)]
    assert len(keys) == len(set(keys)) == 224 and set(measurements(tmp_path)) == set(keys)
