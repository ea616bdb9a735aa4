"""Every cell ends in an outcome, in random order, none twice, whatever happens on the way. The units here are fakes."""

import json
import os
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from moments import at_moment, die, killed

from gnnlab.campaign import campaign, checkpoints, reference
from gnnlab.campaign.campaign import JOURNAL, CellAnswer, WantedCells, run
from gnnlab.campaign.cells import Cell, CellResult
from gnnlab.errors import GnnlabError
from gnnlab.files import read_lines, read_sealed, write_json, write_sealed

CPU, NPU = "openvino:CPU", "simulated:NPU"


def cell(nodes=10, first=1, unit=CPU, **changes):
    return Cell("sage", 4, nodes, 2 * nodes, first, first, unit, **changes)


CELLS = [cell(n, first, unit) for n in (10, 20, 30) for first in range(1, 8) for unit in (CPU, NPU)]


def plan(cells=CELLS, campaign="c", **prints):
    return WantedCells(campaign, {c: prints.get(c.key, f"{campaign}:{c.key}") for c in cells})


def outcome(cell, status="measured", **changes):
    """What the fake unit gives: the same at every time."""
    if status in ("measured", "simulated"):
        ms = cell.nodes * cell.first / 100
        times = {"samples_ms": (ms, ms, 1.1 * ms), "median_ms": ms, "ci_ms": (ms, 1.1 * ms), "std_ms": 0.01}
    else:
        times = {"samples_ms": (), "median_ms": None, "ci_ms": None, "std_ms": None, "reason": "fake"}
    fixed = {"parity_error": 0.0, "device": "fake", "runtime_version": "1", "precision": "float32", "threads": 1}
    return CellResult(
        **{"status": status, "notes": (), "started": "", "seconds": 0.1, "reason": None, **times, **fixed, **changes}
    )


class Fake:
    """Answers each cell as `of` says, and remembers what it was asked."""

    def __init__(self, of=outcome):
        self.of, self.asked = of, []

    def __call__(self, cells):
        for one in cells:
            self.asked.append(one)
            yield CellAnswer(one, self.of(one), took_s=0.5)


def steady():
    return {"here": 1.0}


def records(folder, kind="cell"):
    found, _, as_written = read_lines((folder / JOURNAL).read_bytes())
    assert as_written
    return [record for record in found if record["kind"] == kind]


def comparable(folder):
    """raw_measurements.json without the times at which it was written."""
    return json.loads((folder / "raw_measurements.json").read_bytes())["measurements"]


# ---- one campaign


def test_every_cell_is_asked_once_and_ends_in_its_outcome(tmp_path):
    fake = Fake()
    done = run(tmp_path, plan(), fake, reference=steady)
    assert Counter(fake.asked) == Counter(CELLS)
    assert done.outcomes == {c: outcome(c) for c in CELLS} and list(done.outcomes) == CELLS
    assert (done.measured, done.again) == (len(CELLS), 0)
    assert done.seconds == pytest.approx(0.5 * len(CELLS))


def test_the_npu_comes_after_cpu_and_gpu_and_the_order_within_is_random_by_the_seed(tmp_path):
    orders = []
    for seed in (0, 0, 1):
        fake = Fake()
        run(tmp_path / str(len(orders)), plan(), fake, reference=steady, seed=seed)
        orders.append(fake.asked)
    units = [c.unit for c in orders[0]]
    assert units == [CPU] * 21 + [NPU] * 21
    assert orders[0] == orders[1] != orders[2] and orders[0][:21] != CELLS[::2]


def test_the_files_are_those_of_the_study_with_every_sample(tmp_path):
    run(tmp_path, plan(), Fake(), reference=steady)
    names = {"checkpoint_cpugpu.json", "checkpoint_npu.json", "raw_measurements.json", "journal.jsonl", ".lock"}
    assert {path.name for path in tmp_path.iterdir()} == names
    cpugpu = json.loads((tmp_path / "checkpoint_cpugpu.json").read_bytes())["measurements"]
    npu = json.loads((tmp_path / "checkpoint_npu.json").read_bytes())["measurements"]
    assert comparable(tmp_path) == cpugpu | npu and len(cpugpu) == len(npu) == 21
    one = checkpoints.raw(tmp_path)["20,40,openvino:CPU,3"]
    assert one["outcome"]["samples_ms"] == list(outcome(cell(20, 3)).samples_ms)
    assert one["cell"]["unit"] == CPU and one["host"] == "here"


def test_a_complete_campaign_measures_nothing_when_started_again(tmp_path):
    first = run(tmp_path, plan(), Fake(), reference=steady)
    before = (tmp_path / JOURNAL).read_bytes()
    again = Fake()
    done = run(tmp_path, plan(), again, reference=steady)
    assert again.asked == [] and (tmp_path / JOURNAL).read_bytes() == before
    assert (done.outcomes, done.seconds) == (first.outcomes, first.seconds) and done.measured == 0


def test_a_cell_with_another_fingerprint_is_measured_anew_and_no_other(tmp_path):
    run(tmp_path, plan(), Fake(), reference=steady)
    changed, again = cell(20, 3), Fake()
    run(tmp_path, plan(**{changed.key: "other weights"}), again, reference=steady)
    assert again.asked == [changed]


def test_more_cells_are_added_to_what_is_known_and_fewer_are_not_mixed_up(tmp_path):
    run(tmp_path, plan(CELLS[:10]), Fake(), reference=steady)
    more = Fake()
    run(tmp_path, plan(), more, reference=steady)
    assert set(more.asked) == set(CELLS[10:])
    run(tmp_path, plan(CELLS[:4]), Fake(), reference=steady)
    assert set(comparable(tmp_path)) == {c.key for c in CELLS[:4]}


@pytest.mark.parametrize("status", ["failed", "timeout", "unavailable", "wrong", "simulated"])
def test_a_cell_that_does_not_succeed_keeps_its_reason_and_is_filled_from_nowhere(tmp_path, status):
    bad = cell(20, 3)
    fake = Fake(lambda c: outcome(c, status) if c == bad else outcome(c))
    done = run(tmp_path, plan(), fake, reference=steady)
    assert done.outcomes[bad] == outcome(bad, status) and Counter(fake.asked)[bad] == 1
    if status != "simulated":
        row = checkpoints.raw(tmp_path)[bad.key]["outcome"]
        assert row["status"] == status and row["reason"] == "fake" and not row["samples_ms"]


@pytest.mark.parametrize(("status", "again"), [("failed", 1), ("timeout", 1), ("unavailable", 0), ("wrong", 0)])
def test_what_failed_in_a_complete_campaign_is_tried_again_by_the_next_one(tmp_path, status, again):
    run(tmp_path, plan(), Fake(lambda c: outcome(c, status)), reference=steady)
    later = Fake()
    run(tmp_path, plan(), later, reference=steady)
    assert len(later.asked) == again * len(CELLS)


@pytest.mark.parametrize("cells", [[], [cell(), cell(threads=2)], [cell(), cell(precision="bfloat16")]])
def test_a_plan_without_cells_or_with_two_of_one_key_is_refused(cells):
    with pytest.raises(GnnlabError, match=r"no cells|asked for twice"):
        plan(cells)


@pytest.mark.parametrize("answers", [[], [cell()] * 2, [cell(99)]])
def test_a_unit_that_answers_something_else_stops_the_campaign(tmp_path, answers):
    with pytest.raises(GnnlabError, match=r"no answer|not asked for"):
        run(
            tmp_path,
            plan([cell(), cell(20)]),
            lambda cells: (CellAnswer(c, outcome(c)) for c in answers),
            reference=steady,
        )


@pytest.mark.parametrize("options", [{"every": 0}, {"drift": 0.0}, {"drift": float("nan")}])
def test_a_reference_that_could_never_be_judged_is_refused(tmp_path, options):
    with pytest.raises(GnnlabError, match="are needed"):
        run(tmp_path, plan(), Fake(), reference=steady, **options)


# ---- the reference workload


class Weather:
    """A machine whose reference takes as long as `of` says at its n-th run; the fake unit's cells take as long."""

    def __init__(self, of):
        self.of, self.songs = of, 0

    def reference(self):
        self.songs += 1
        return {"here": self.of(self.songs - 1)}

    def outcome(self, cell):
        return outcome(cell, device=f"{self.of(self.songs - 1):g}")


def test_cells_beside_a_reference_that_drifted_are_measured_again(tmp_path):
    weather = Weather(lambda n: 1.5 if n == 2 else 1.0)  # five cells between songs: 0 1 2 3 4 5
    fake = Fake(weather.outcome)
    done = run(tmp_path, plan(CELLS[::2]), fake, reference=weather.reference, every=5)
    twice = [c for c, times in Counter(fake.asked).items() if times == 2]
    assert set(twice) == set(fake.asked[5:15]) and done.again == 10 and len(fake.asked) == 31
    assert all(answer.device == "1" and answer.notes == () for answer in done.outcomes.values())
    assert done.seconds == pytest.approx(0.5 * 31)
    assert run(tmp_path, plan(CELLS[::2]), Fake(), reference=weather.reference).measured == 0


def test_visits_are_passes_over_all_cells_and_their_samples_count_together(tmp_path):
    asked = Counter()

    def visited(cell):
        asked[cell] += 1
        return outcome(cell, samples_ms=(1.0 * asked[cell], 3.0), ci_ms=(0.5 * asked[cell], 4.0 + asked[cell]))

    fake = Fake(visited)
    cells = CELLS[::2][:6]
    done = run(tmp_path, plan(cells), fake, reference=steady, visits=3)
    passes = [fake.asked[start : start + 6] for start in (0, 6, 12)]
    assert [set(one) for one in passes] == [set(cells)] * 3 and passes[0] != passes[1] and done.again == 0
    measured = [o for o in done.outcomes.values() if o.status == "measured"]
    assert measured and {o.samples_ms for o in measured} == {(1.0, 3.0, 2.0, 3.0, 3.0, 3.0)}
    assert {(o.median_ms, o.ci_ms) for o in measured} == {(3.0, (0.5, 7.0))}
    assert run(tmp_path, plan(cells), Fake(), reference=steady, visits=3).measured == 0
    assert run(tmp_path, plan(cells), Fake(), reference=steady, visits=4).measured == 6


def test_what_failed_is_not_visited_again(tmp_path):
    fake = Fake(lambda c: outcome(c, "failed"))
    run(tmp_path, plan(), fake, reference=steady, visits=3)
    assert len(fake.asked) == len(CELLS)


def test_a_steady_drift_ends_after_two_attempts_and_says_so(tmp_path):
    weather = Weather(lambda n: 1.0 if n % 2 else 2.0)
    fake = Fake(weather.outcome)
    done = run(tmp_path, plan(CELLS[::2]), fake, reference=weather.reference, every=5)
    assert max(Counter(fake.asked).values()) == 2
    assert all("off its median beside this measurement" in o.notes[0] for o in done.outcomes.values())


def test_a_little_drift_is_let_be(tmp_path):
    weather = Weather(lambda n: 1 + 0.1 * (n % 2))
    assert run(tmp_path, plan(), Fake(weather.outcome), reference=weather.reference, every=5).again == 0


def test_what_was_not_measured_is_not_measured_again_for_the_weather(tmp_path):
    weather = Weather(lambda n: 1.0 if n % 2 else 2.0)
    fake = Fake(lambda c: outcome(c, "simulated" if c.unit == NPU else "failed"))
    run(tmp_path, plan(), fake, reference=weather.reference, every=5)
    assert len(fake.asked) == len(CELLS)


def test_hosts_are_judged_each_by_its_own_reference():
    songs = [{"a": 1.0, "b": 5.0}, {"a": 1.0, "b": 9.0}, {"a": 1.0, "b": 5.0}]
    lines = []
    for song in songs:
        lines += [{"kind": "reference", "ms": song, "campaign": "c", "phase": "npu"}]
        lines += [{"kind": "cell", "host": host, "fingerprint": f"{host}{len(lines)}"} for host in "ab"]
    off = {name: found[0].off for name, found in reference.visits_of(lines, "c", "npu").items()}
    assert off["a1"] == off["a4"] == 0 and off["b1"] == off["b4"] == pytest.approx(0.8) and off["b7"] == 0
    assert all(a[0].off == 0 for a in reference.visits_of(lines, "other", "npu").values())


def test_the_reference_takes_time():
    ticks = iter(np.arange(100) * 1e-3)
    assert reference.reference(lambda: next(ticks)) == {"here": pytest.approx(1.0)}
    assert reference.reference()["here"] > 0


# ---- killed at any moment


def work(folder, seed=0):
    return run(folder, plan(), Fake(), reference=steady, every=5, seed=seed)


@pytest.mark.skipif(sys.platform == "win32", reason="kills a forked process; Windows has no fork")
def test_a_dozen_kills_lose_nothing_and_measure_nothing_twice(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        calls = at_moment(patch, 0, die)
        work(tmp_path / "whole")
    expected = {key: row["outcome"] for key, row in comparable(tmp_path / "whole").items()}
    for wanted in (np.random.default_rng(5).permutation(calls["all"])[:12] + 1).tolist():
        folder = tmp_path / f"killed{wanted}"
        assert killed(lambda folder=folder, wanted=wanted: work(folder, seed=wanted), wanted)
        before = {r["fingerprint"] for r in records(folder)} if (folder / JOURNAL).exists() else set()
        fake = Fake()
        done = run(folder, plan(), fake, reference=steady)
        assert {plan().fingerprints[c] for c in fake.asked} == {*plan().fingerprints.values()} - before
        assert max(Counter(r["fingerprint"] for r in records(folder)).values()) == 1
        assert {key: row["outcome"] for key, row in comparable(folder).items()} == expected
        assert not done.messages or "damaged" not in done.messages[0]
        assert not list(folder.glob("*.damaged-*"))


def test_a_damaged_journal_is_kept_and_what_it_lost_is_measured_again(tmp_path):
    run(tmp_path, plan(), Fake(), reference=steady)
    whole = comparable(tmp_path)
    content = bytearray((tmp_path / JOURNAL).read_bytes())
    content[content.index(b'"kind":"cell"')] ^= 4
    (tmp_path / JOURNAL).write_bytes(content)
    said, again = [], Fake()
    done = run(tmp_path, plan(), again, reference=steady, say=said.append)
    assert len(again.asked) == 1 and comparable(tmp_path) == whole
    assert "not as written" in said[0] and done.messages[0] == said[0]
    assert [path.read_bytes() for path in tmp_path.glob("*.damaged-*")] == [content]


def test_what_no_reference_that_is_left_tells_the_drift_of_is_measured_again(tmp_path):
    """The first batch loses the reference before it and the one behind it; the second one has the one behind it."""
    run(tmp_path, plan(), Fake(), reference=steady, every=3)
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    places = [place for place, line in enumerate(lines) if b'"kind":"reference"' in line]
    (tmp_path / JOURNAL).write_bytes(b"".join(line for place, line in enumerate(lines) if place not in places[:2]))
    beside = {json.loads(line)["key"] for line in lines[places[0] + 1 : places[1]]}
    again = Fake()
    run(tmp_path, plan(), again, reference=steady, every=3)
    assert {one.key for one in again.asked} == beside and len(beside) == 3


def test_a_full_disk_stops_with_one_line_and_the_next_run_goes_on(tmp_path, monkeypatch):
    fake, calls = Fake(), []

    def sync(handle):
        calls.append(handle)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        os.fdatasync(handle) if hasattr(os, "fdatasync") else None

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.os, "fsync", sync)
        with pytest.raises(GnnlabError, match="No space left on device; its 8 records are kept"):
            run(tmp_path, plan(), fake, reference=steady)
    later = Fake()
    run(tmp_path, plan(), later, reference=steady)
    assert len(records(tmp_path)) == len(CELLS) and len(later.asked) == len(CELLS) - 7


def test_a_disk_too_full_for_a_checkpoint_keeps_the_one_before(tmp_path, monkeypatch):
    run(tmp_path, plan(CELLS[:4]), Fake(), reference=steady)
    before = comparable(tmp_path)

    def full(path, data):
        raise GnnlabError("could not write: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_sealed", full)
        with pytest.raises(GnnlabError):
            run(tmp_path, plan(), Fake(), reference=steady)
    assert comparable(tmp_path) == before
    later = Fake()
    run(tmp_path, plan(), later, reference=steady)
    assert len(comparable(tmp_path)) == len(CELLS) and {c.unit for c in later.asked} == {NPU}


def test_ctrl_c_keeps_what_is_measured(tmp_path):
    def of(one):
        if len(fake.asked) == 10:
            raise KeyboardInterrupt
        return outcome(one)

    fake = Fake(of)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, plan(), fake, reference=steady)
    assert len(records(tmp_path)) == 9


# ---- checkpoints


def test_phase_1_alone_can_be_analyzed_when_phase_2_was_stopped(tmp_path):
    def of(one):
        if one.unit == NPU:
            raise KeyboardInterrupt
        return outcome(one)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, plan(), Fake(of), reference=steady)
    assert checkpoints.merge(tmp_path) == ["checkpoint_npu.json is missing: that phase has not come to its end"]
    assert {row["cell"]["unit"] for row in comparable(tmp_path).values()} == {CPU}


def test_checkpoints_of_two_campaigns_are_not_mixed(tmp_path):
    checkpoints.write(tmp_path, "npu", [campaign.as_json(CellAnswer(cell(unit=NPU), outcome(cell())))], "old")
    old = read_sealed(tmp_path / "checkpoint_npu.json", "")
    write_sealed(tmp_path / "checkpoint_npu.json", old | {"written": "2020-01-01"})
    checkpoints.write(tmp_path, "cpugpu", [campaign.as_json(CellAnswer(cell(), outcome(cell())))], "new")
    assert checkpoints.merge(tmp_path) == ["checkpoint_npu.json is of another campaign (2020-01-01) and was left out"]
    assert set(checkpoints.raw(tmp_path)) == {cell().key}


@pytest.mark.parametrize("content", ["", "[]", '{"schema_version": 2}', '{"schema_version": 1, "written": 3}', "\x00"])
def test_missing_and_damaged_files_say_how_they_are_made_anew(tmp_path, content):
    with pytest.raises(GnnlabError, match="measure first"):
        checkpoints.merge(tmp_path)
    with pytest.raises(GnnlabError, match="measure first"):
        checkpoints.raw(tmp_path)
    (tmp_path / "checkpoint_npu.json").write_text(content)
    with pytest.raises(GnnlabError, match=r"is damaged.*; measure first: gnnlab stages --measure"):
        checkpoints.merge(tmp_path)


def test_an_edited_time_is_not_reported_and_the_report_says_which_file_was_left_out(tmp_path):
    run(tmp_path, plan(), Fake(), reference=steady)
    edited = json.loads((tmp_path / "checkpoint_npu.json").read_bytes())
    next(iter(edited["measurements"].values()))["outcome"]["median_ms"] = 1e-3
    write_json(tmp_path / "checkpoint_npu.json", edited)
    (told,) = checkpoints.merge(tmp_path)
    assert "left out" in told and "checkpoint_npu.json" in told and "not believed" in told
    assert {row["cell"]["unit"] for row in comparable(tmp_path).values()} == {CPU}
    write_json(tmp_path / "raw_measurements.json", {**edited, "phase": "all"})
    with pytest.raises(GnnlabError, match="not believed"):
        checkpoints.raw(tmp_path)


def test_an_outcome_survives_the_journal_and_the_checkpoint(tmp_path):
    odd = replace(outcome(cell()), notes=("é \u2028 \n",), parity_error=1e-300, samples_ms=(0.1 + 0.2, 1e-9))
    done = run(tmp_path, plan([cell()]), Fake(lambda c: odd), reference=steady)
    assert done.outcomes[cell()] == odd == CellResult.from_json(checkpoints.raw(tmp_path)[cell().key]["outcome"])
