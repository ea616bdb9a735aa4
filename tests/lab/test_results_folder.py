"""Results go to a folder that is theirs alone, one run at a time."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from gnnlab.lab import earlier, freshness, results, results_folder
from gnnlab.lab.results import ResultError
from gnnlab.lab.results_folder import FolderError, FolderInUseError, only_run


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text(errors="replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


def dead_process():
    """The id and start time of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(ended.pid).create_time()
    ended.wait()
    return {"pid": ended.pid, "started": started}


# ---- whose folder it is


def git(folder, *arguments):
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """A git repository with two tracked folders, and a git-ignored one."""
    for file in ("gnnlab/a.py", "notebooks/01_a.ipynb", "outputs/README.md"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("tracked")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    return tmp_path


def refusal(folder):
    """The one line that refuses a folder, in which nothing was written."""
    before = contents(folder)
    with pytest.raises(FolderError) as error, only_run(folder):
        pytest.fail("it is not for results")
    assert contents(folder) == before and len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.mark.parametrize("name", [".git", ".git/new", ".git/refs/heads"])
def test_git_s_own_folder_is_refused(repository, name):
    before = contents(repository)
    assert "lies in .git" in refusal(repository / name)
    assert contents(repository) == before


@pytest.mark.parametrize("name", [".", "gnnlab", "notebooks", "outputs"])
def test_a_folder_with_files_that_git_tracks_is_refused(repository, name):
    (repository / name / "runs.json").write_text("{}")
    assert "holds files that git tracks" in refusal(repository / name)


def test_a_folder_with_files_of_someone_is_refused(tmp_path):
    for file in ("Documents/thesis.tex", "figures/a.png", "12_months.json", "01_a.ipynb"):
        (tmp_path / "home" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / file).write_text("mine")
    assert "is not empty and holds no results of gnnlab (01_a.ipynb is there)" in refusal(tmp_path / "home")


@pytest.mark.parametrize("left", ["nothing", "a lock", "a record", "a result", "exported models"])
def test_a_new_an_empty_and_a_folder_of_results_are_taken(tmp_path, result_file, left):
    folder = tmp_path / "outputs/quick"
    (folder / ("exported_models" if left == "exported models" else "")).mkdir(parents=True)
    if left == "a lock":
        (folder / ".lock").write_text(json.dumps(dead_process()))
    if left == "a record":
        freshness.write_runs(folder, freshness.Runs())
    if left == "a result":
        results.write(folder / "02_b.failed.json", result_file(status="failed", reason="no luck"))
    with only_run(folder):
        pass
    with only_run(folder):  # and taken again
        pass


def test_a_folder_of_results_in_a_repository_is_taken(repository):
    with only_run(repository / "outputs/quick"):
        pass
    with only_run(repository / "outputs/quick"):
        pass


# ---- what dead runs left


def test_no_file_is_cleared_for_its_name_alone(tmp_path):
    with only_run(tmp_path):
        pass
    for file in ("01_a.running.ipynb", "draft.running.notes/a.txt", ".01_a.json.x1.tmp", "figures/.a.png.x.tmp"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("mine")
    (tmp_path / "01_a.running.earlier").mkdir()
    before = contents(tmp_path)
    with only_run(tmp_path):
        pass
    assert contents(tmp_path) == before and (tmp_path / "01_a.running.earlier").is_dir()


@pytest.mark.parametrize(
    "record", ["{", "[]", '{"notebook": "01_a", "made": ["thesis.tex"], "kept": [], "whole": true}']
)
def test_a_record_that_no_run_wrote_is_refused_and_clears_nothing(tmp_path, record):
    with only_run(tmp_path):
        pass
    (tmp_path / earlier.RECORD).write_text(record)
    (tmp_path / "thesis.tex").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ResultError, match="move it elsewhere") as error, only_run(tmp_path):
        pytest.fail("started")
    assert contents(tmp_path) == before and len(str(error.value).splitlines()) == 1


# ---- the lock


def test_a_second_run_is_refused_in_one_line_and_a_later_one_is_not(tmp_path):
    with only_run(tmp_path / "out"):
        with pytest.raises(FolderInUseError) as refusal, only_run(tmp_path / "out"):
            pytest.fail("two at once")
        assert f"process {os.getpid()} is running notebooks into {tmp_path / 'out'}" in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1
    with only_run(tmp_path / "out"):
        assert (tmp_path / "out/.lock").exists()
    assert set(contents(tmp_path)) == {"out/runs.json"}


def test_the_lock_is_given_back_after_an_error(tmp_path):
    with pytest.raises(KeyError), only_run(tmp_path):
        raise KeyError
    assert set(contents(tmp_path)) == {"runs.json"}


def test_the_lock_of_a_dead_run_is_taken_over(tmp_path):
    (tmp_path / ".lock").write_text(json.dumps(dead_process()))
    with only_run(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert set(contents(tmp_path)) == {"runs.json"}


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
