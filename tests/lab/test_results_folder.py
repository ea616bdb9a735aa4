"""One run at a time; earlier results survive whatever happens to a new run; dead runs leave nothing behind."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from gnnlab.lab import results_folder
from gnnlab.lab.results import ResultError
from gnnlab.lab.results_folder import FolderInUseError, earlier_results, only_run

RESULT = json.dumps(
    {"figures": [{"png": "figures/a.png", "svg": "figures/a.svg"}, {"png": "../x.png", "svg": "no.svg"}]}
)


@pytest.fixture
def folder(tmp_path):
    """Earlier results of a notebook: the result file and a figure."""
    (tmp_path / "out/figures").mkdir(parents=True)
    (tmp_path / "x.png").write_text("not ours")
    (tmp_path / "out/01_a.json").write_text(RESULT)
    (tmp_path / "out/01_a.ipynb").write_text("earlier")
    for kind in ("png", "svg"):
        (tmp_path / f"out/figures/a.{kind}").write_text("earlier")
    return tmp_path / "out"


def overwrite(folder):
    """What a new run does before it fails."""
    for name in ("01_a.json", "01_a.ipynb", "figures/a.png"):
        (folder / name).write_text("new")
    (folder / "figures/a.svg").unlink()


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def dead_process():
    """The id and start time of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(ended.pid).create_time()
    ended.wait()
    return {"pid": ended.pid, "started": started}


# ---- earlier results


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_earlier_results_come_back_after_a_failure(folder, error):
    before = contents(folder)
    with pytest.raises(error), earlier_results(folder, "01_a"):
        overwrite(folder)
        raise error
    assert contents(folder) == before
    assert (folder.parent / "x.png").read_text() == "not ours"


def test_new_results_stand_when_the_earlier_are_let_go(folder):
    with earlier_results(folder, "01_a") as earlier:
        overwrite(folder)
        earlier.let_go()
    assert contents(folder) == {"01_a.json": "new", "01_a.ipynb": "new", "figures/a.png": "new"}


def test_a_first_result_of_a_failed_run_does_not_stay(tmp_path):
    with earlier_results(tmp_path, "01_a"):
        (tmp_path / "01_a.json").write_text("new")
        (tmp_path / "01_a.ipynb").write_text("new")
    assert contents(tmp_path) == {}


def test_a_damaged_earlier_result_is_kept_as_it_is(tmp_path):
    (tmp_path / "01_a.json").write_bytes(b"\xff{")
    with earlier_results(tmp_path, "01_a"):
        (tmp_path / "01_a.json").write_text("new")
    assert (tmp_path / "01_a.json").read_bytes() == b"\xff{"


def test_a_disk_too_full_for_the_copy_stops_before_anything_is_lost(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results_folder.shutil, "copy2", full)
    before = contents(folder)
    stops = pytest.raises(ResultError, match="No space left on device; earlier results are kept")
    with stops, earlier_results(folder, "01_a"):
        pytest.fail("started")
    assert contents(folder) == before


def test_earlier_results_of_a_killed_run_come_back_with_the_next(folder):
    before = contents(folder)
    results_folder.Earlier(folder, "01_a").keep()
    overwrite(folder)
    with only_run(folder):
        after = contents(folder)
        del after[".lock"]
        assert after == before


# ---- leftovers


def test_leftovers_of_dead_runs_are_cleared_and_nothing_else(folder):
    before = contents(folder)
    (folder / "01_a.running.ipynb").write_text("half")
    (folder / ".01_a.json.x1.tmp").write_text("half")
    (folder / "figures/.a.png.x1.tmp").write_text("half")
    (folder / "01_a.running.earlier.part/figures").mkdir(parents=True)
    (folder / "notes.tmp").write_text("mine")
    with only_run(folder):
        pass
    assert contents(folder) == before | {"notes.tmp": "mine"}


# ---- the lock


def test_a_second_run_is_refused_in_one_line_and_a_later_one_is_not(tmp_path):
    with only_run(tmp_path / "out"):
        with pytest.raises(FolderInUseError) as refusal, only_run(tmp_path / "out"):
            pytest.fail("two at once")
        assert f"process {os.getpid()} is running notebooks into {tmp_path / 'out'}" in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1
    with only_run(tmp_path / "out"):
        assert (tmp_path / "out/.lock").exists()
    assert contents(tmp_path) == {}


def test_the_lock_is_given_back_after_an_error(tmp_path):
    with pytest.raises(KeyError), only_run(tmp_path):
        raise KeyError
    assert contents(tmp_path) == {}


def test_the_lock_of_a_dead_run_is_taken_over(tmp_path):
    (tmp_path / ".lock").write_text(json.dumps(dead_process()))
    with only_run(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert contents(tmp_path) == {}


def test_another_process_with_the_id_of_a_dead_run_does_not_hold_the_lock(tmp_path):
    (tmp_path / ".lock").write_text(json.dumps({"pid": os.getpid(), "started": 1.0}))
    with only_run(tmp_path):
        pass


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"pid": 1}', '{"pid": -5, "started": 0}', '{"pid": 1e99, "started": 0}']
)
def test_a_damaged_lock_is_respected_while_young_and_taken_over_when_old(tmp_path, content):
    lock = tmp_path / ".lock"
    lock.write_text(content)
    if "started" not in content:
        with pytest.raises(FolderInUseError), only_run(tmp_path):
            pytest.fail("it may be being written")
    os.utime(lock, (time.time() - 60,) * 2)
    with only_run(tmp_path):
        pass


def test_a_run_that_was_quicker_keeps_its_lock(tmp_path, monkeypatch):
    lock = tmp_path / ".lock"
    lock.write_text(json.dumps(dead_process()))
    living = json.dumps({"pid": os.getpid(), "started": psutil.Process().create_time()})

    def quicker(*arguments):
        lock.write_text(living)
        return False

    monkeypatch.setattr(results_folder, "_is_alive", quicker)
    with pytest.raises(FolderInUseError, match="has just started"), only_run(tmp_path):
        pytest.fail("two at once")
    assert lock.read_text() == living


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a folder that refuses to be written to")
def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ResultError, match="could not write to"), only_run(tmp_path / "out"):
        pytest.fail("it cannot")


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ResultError, match="could not write to"), only_run(tmp_path / "out"):
        pytest.fail("it cannot")
