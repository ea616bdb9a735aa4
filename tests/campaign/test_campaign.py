"""Every cell ends in an outcome, in random order, and what is known is not measured again. The units here are fakes."""

import json
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from moments import at_moment, die, killed

from gnnlab.campaign import checkpoints
from gnnlab.campaign.campaign import reference, run
from gnnlab.campaign.cells import Cell, CellResult, Settings
from gnnlab.campaign.checkpoints import JOURNAL, read_journal, record
from gnnlab.errors import GnnlabError
from gnnlab.files import write_json
from gnnlab.units.unit import Availability

CPU, NPU = "openvino:CPU", "simulated:NPU"


def cell(nodes=10, first=1, unit=CPU, **changes):
    return Cell("sage", 4, nodes, 2 * nodes, first, first, unit, **changes)


CELLS = [cell(n, first, unit) for n in (10, 20, 30) for first in range(1, 8) for unit in (CPU, NPU)]


def outcome(cell, status="measured", **changes):
    """What the fake unit gives: the same at every time."""
    ms = cell.nodes * cell.first / 100
    result = CellResult.timed(status, [ms, ms, 1.1 * ms]) if status == "measured" else CellResult(status, "fake")
    fixed = {"parity_error": 0.0, "device": "fake", "runtime_version": "1", "precision": "float32", "threads": 1}
    return replace(result, **fixed, **changes)


class Fake:
    """Answers each cell as `of` says, and remembers what it was asked."""

    def __init__(self, of=outcome, settings=None, device="a", reference_ms=()):
        self.of, self.asked, self.settings = of, [], settings or Settings()
        self.available = {unit: Availability(True, device=device) for unit in (CPU, NPU)}
        self.reference_ms = list(reference_ms)

    def call(self, function, *arguments):
        return self.reference_ms.pop(0) if self.reference_ms else [1.0]

    def __call__(self, cells):
        for one in cells:
            self.asked.append(one)
            yield record(one, self.of(one), took_s=0.5)


def comparable(folder):
    """raw_measurements.json without the times at which it was written."""
    return json.loads((folder / "raw_measurements.json").read_bytes())["measurements"]


# ---- one campaign


def test_every_cell_is_asked_once_the_npus_last_and_ends_in_its_outcome_in_the_files_of_the_study(tmp_path):
    fake = Fake()
    done = run(tmp_path, CELLS, fake)
    assert Counter(fake.asked) == Counter(CELLS) and fake.asked[:21] != CELLS[::2]
    assert [c.unit for c in fake.asked] == [CPU] * 21 + [NPU] * 21
    assert done.records == [record(c, outcome(c), took_s=0.5) for c in CELLS]
    assert done.messages[-1] == "42 cells, 0 known before. All of them took 21 s."
    names = {"checkpoint_cpugpu.json", "checkpoint_npu.json", "raw_measurements.json", "journal.jsonl", ".lock"}
    assert {path.name for path in tmp_path.iterdir()} == names
    halves = [json.loads(path.read_bytes())["measurements"] for path in sorted(tmp_path.glob("checkpoint_*"))]
    assert comparable(tmp_path) == halves[0] | halves[1] and len(halves[0]) == len(halves[1]) == 21
    one = checkpoints.raw(tmp_path)["20,40,openvino:CPU,3"]
    assert one["outcome"]["samples_ms"] == outcome(cell(20, 3)).samples_ms and one["host"] == "here"


def test_an_outcome_comes_back_from_its_file_as_it_went(tmp_path):
    odd = replace(outcome(cell()), notes=("é \u2028 \n",), parity_error=1e-300, samples_ms=(0.1 + 0.2, 1e-9))
    for known in (0, 1):
        assert run(tmp_path, [cell()], Fake(lambda c: odd)).known == known
        assert CellResult.from_json(checkpoints.raw(tmp_path)[cell().key]["outcome"]) == odd


def test_a_complete_campaign_measures_nothing_when_started_again_unless_anew(tmp_path):
    run(tmp_path, CELLS, Fake())
    whole, before, again = comparable(tmp_path), (tmp_path / JOURNAL).read_bytes(), Fake()
    done = run(tmp_path, CELLS, again)
    assert again.asked == [] and (tmp_path / JOURNAL).read_bytes() == before
    assert comparable(tmp_path) == whole and done.known == len(CELLS)
    assert run(tmp_path, CELLS[:4], Fake(settings=Settings(models="elsewhere"))).known == 4
    assert set(comparable(tmp_path)) == {c.key for c in CELLS[:4]}
    assert run(tmp_path, CELLS, again, anew=True).known == 0 and len(again.asked) == len(CELLS)


@pytest.mark.parametrize("status", ["failed", "unavailable"])
def test_a_cell_without_a_time_keeps_its_reason_and_is_tried_again_by_the_next_campaign(tmp_path, status):
    bad = cell(20, 3)
    fake = Fake(lambda c: outcome(c, status) if c == bad else outcome(c))
    done = run(tmp_path, CELLS, fake)
    assert record(bad, outcome(bad, status), took_s=0.5) in done.records and fake.asked.count(bad) == 1
    row = checkpoints.raw(tmp_path)[bad.key]["outcome"]
    assert row["status"] == status and row["reason"] == "fake" and not row["samples_ms"]
    later = Fake()
    run(tmp_path, CELLS, later)
    assert later.asked == [bad] and comparable(tmp_path)[bad.key]["outcome"]["status"] == "measured"


@pytest.mark.parametrize("cells", [[], [cell(), cell(threads=2)]])
def test_no_cells_and_two_of_one_key_are_refused(tmp_path, cells):
    with pytest.raises(GnnlabError, match=r"no cells|asked for twice"):
        run(tmp_path, cells, Fake())


# ---- what is known


@pytest.mark.parametrize("part", ["settings", "device", "machine.versions", "package_digest"])
def test_other_settings_device_versions_or_code_are_measured_anew(tmp_path, part, monkeypatch):
    run(tmp_path, CELLS, Fake())
    settings = Settings(budget_s=9.0) if part == "settings" else None
    again = Fake(settings=settings, device="b" if part == "device" else "a")
    if part in ("machine.versions", "package_digest"):
        monkeypatch.setattr(f"gnnlab.campaign.campaign.{part}", lambda: "other")
    run(tmp_path, CELLS, again)
    assert len(again.asked) == len(CELLS)


def test_a_last_line_that_was_cut_off_is_left_out_and_its_cell_measured_again(tmp_path):
    run(tmp_path, CELLS, Fake())
    whole, content = comparable(tmp_path), (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(b"[]\nnull\n{}" + content[:-6])
    again = Fake()
    run(tmp_path, CELLS, again)
    assert len(again.asked) == 1 and comparable(tmp_path) == whole
    assert len(read_journal(tmp_path / JOURNAL)) == len(CELLS)


@pytest.mark.skipif(sys.platform == "win32", reason="kills a forked process; Windows has no fork")
def test_a_few_kills_lose_nothing_and_measure_nothing_twice(tmp_path):
    moments = ((CellResult, "to_json"), (checkpoints, "write_json"))
    with pytest.MonkeyPatch.context() as patch:
        calls = at_moment(patch, 0, die, moments)
        run(tmp_path / "whole", CELLS, Fake())
    expected = {key: row["outcome"] for key, row in comparable(tmp_path / "whole").items()}
    for wanted in (np.random.default_rng(5).permutation(calls["all"])[:6] + 1).tolist():
        folder = tmp_path / f"killed{wanted}"
        assert killed(lambda folder=folder: run(folder, CELLS, Fake()), wanted, moments)
        before = {record["key"] for record in read_journal(folder / JOURNAL).values()}
        fake = Fake()
        run(folder, CELLS, fake)
        assert {c.key for c in fake.asked} == {c.key for c in CELLS} - before
        assert {key: row["outcome"] for key, row in comparable(folder).items()} == expected


# ---- checkpoints and the reference workload


def test_phase_1_alone_can_be_analyzed_when_phase_2_was_stopped(tmp_path):
    def of(one):
        if one.unit == NPU:
            raise KeyboardInterrupt
        return outcome(one)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, CELLS, Fake(of))
    assert len(read_journal(tmp_path / JOURNAL)) == 21
    assert checkpoints.merge(tmp_path) == ["checkpoint_npu.json is missing: that phase has not come to its end"]
    assert {row["cell"]["unit"] for row in comparable(tmp_path).values()} == {CPU}


def test_checkpoints_of_two_campaigns_are_not_mixed(tmp_path):
    checkpoints.write(tmp_path, "npu", [record(cell(unit=NPU), outcome(cell()))], "old")
    old = json.loads((tmp_path / "checkpoint_npu.json").read_bytes())
    write_json(tmp_path / "checkpoint_npu.json", old | {"written": "2020-01-01"})
    checkpoints.write(tmp_path, "cpugpu", [record(cell(), outcome(cell()))], "new")
    assert checkpoints.merge(tmp_path) == ["checkpoint_npu.json is of another campaign (2020-01-01) and was left out"]
    assert set(checkpoints.raw(tmp_path)) == {cell().key}


@pytest.mark.parametrize("content", ["", '{"schema_version": 2}'])
def test_missing_and_damaged_files_say_how_they_are_made_anew(tmp_path, content):
    for read in (checkpoints.merge, checkpoints.raw):
        with pytest.raises(GnnlabError, match="measure first"):
            read(tmp_path)
    (tmp_path / "checkpoint_npu.json").write_text(content)
    with pytest.raises(GnnlabError, match=r"(damaged|another version).*; measure first: gnnlab stages --measure"):
        checkpoints.merge(tmp_path)


def test_the_reference_workload_runs_before_and_after_each_phase_that_measures(tmp_path):
    taken = [[1.0, 1.2, 1.1], [1.2], [1.0], [1.5]]
    done = run(tmp_path, CELLS, Fake(reference_ms=taken))
    assert done.messages[1] == "reference workload: 1.1 ms before, 1.2 ms after"
    assert list(done.reference["samples"]) == taken and list(done.reference["form"]) == ["before", "after"] * 2
    assert json.loads((tmp_path / "checkpoint_npu.json").read_bytes())["reference_ms"] == taken[2:]
    assert run(tmp_path, CELLS, Fake()).reference.empty


def test_the_reference_workload_is_timed():
    assert len(reference()) > 5 and min(reference()) > 0
