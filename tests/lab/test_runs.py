"""Runs go to a folder that is gnnlab's alone, one process at a time, and stand whole wherever a process ends."""

import errno
import os
import sys

import pytest
import table_rows
from moments import at_moment, killed

from gnnlab.errors import GnnlabError
from gnnlab.lab import results, runs


def contents(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


# ---- whose folder it is


def test_a_folder_with_files_of_someone_or_of_an_older_gnnlab_is_refused_in_one_line_and_left_alone(tmp_path):
    for names in (["Documents/thesis.tex", "12_months.json"], ["runs.json", "01_a.json", "01_a.ipynb"], [".git/HEAD"]):
        folder = tmp_path / names[0].partition("/")[0].strip(".")
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
        before = contents(folder)
        with pytest.raises(GnnlabError, match="is no outputs folder of this gnnlab") as error, runs.only_run(folder):
            pytest.fail("it is not for results")
        assert contents(folder) == before and len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("left", ["nothing", "half a mark", "stages"])
def test_a_new_folder_an_empty_one_and_one_of_ours_are_taken(tmp_path, left):
    folder = tmp_path / "outputs/quick"
    if left == "half a mark":  # of a process that was killed
        folder.mkdir(parents=True)
        (folder / "..gnnlab-x.tmp").write_text("")
    for _ in range(2):
        with runs.only_run(folder):
            (folder / left).mkdir(exist_ok=True)


# ---- whole or not at all


def work(folder, result_file, run):
    """What a run does with its files: fill a folder, put it in place."""
    with runs.only_run(folder):
        place = runs.begin(folder, "01_a")
        result = result_file(run=run, notebook="01_a", fingerprint={"code": {"a.py": run}})
        results.write(place / results.RESULT, result, table_rows.raced({"mine": 2.0}, seed=ord(run)))
        (place / results.NOTEBOOK).write_text(run)
        return runs.put(place, folder, "01_a")


def state(folder):
    """The run that stands: its result, samples and notebook belong together."""
    path, failed = results.newest(folder, "01_a")
    result = results.read(path)
    assert failed is None and results.table_of(path, result).samples_of(result.rows[0]) is not None
    assert path.with_name(results.NOTEBOOK).read_text() == result.run
    found, problems = results.runs_of(folder)
    assert problems == [] and [each.run for each, _ in found["01_a"]] == [result.run]
    return result.run


def refuse():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refused(folder, result_file, wanted):
    """Work until the disk is full. In one line?"""
    with pytest.MonkeyPatch.context() as patch:
        at_moment(patch, wanted, refuse)
        try:
            work(folder, result_file, "b")
        except (GnnlabError, OSError) as error:
            return len(str(error).splitlines()) == 1
    return False


def ended(folder, result_file, wanted):
    return killed(lambda: work(folder, result_file, "b"), wanted)


@pytest.mark.skipif(sys.platform == "win32", reason="kills a forked process; Windows has no fork")
@pytest.mark.parametrize("end", [refused, ended])
def test_at_each_write_and_rename_the_run_before_stands_or_the_new_one_and_the_next_run_goes_on(
    end, tmp_path, result_file
):
    with pytest.MonkeyPatch.context() as patch:
        calls = at_moment(patch, 0, refuse)
        work(tmp_path / "whole", result_file, "b")
    for wanted in range(1, calls["all"] + 1):
        folder = tmp_path / f"Ende {wanted} ä 名"
        work(folder, result_file, "a")
        gone = end(folder, result_file, wanted)
        assert state(folder) == ("a" if gone else "b"), wanted
        work(folder, result_file, "c")
        assert state(folder) == "c" and not list(folder.glob(".01_a.new")), wanted


def test_a_rename_puts_a_run_in_place_and_the_one_before_stays_as_it_was(tmp_path, result_file):
    first = work(tmp_path / "quick", result_file, "a")
    before = contents(first)
    second = work(tmp_path / "quick", result_file, "b")
    assert contents(first) == before and state(tmp_path / "quick") == "b"
    assert first.name < second.name and {path.name for path in second.iterdir()} == {
        results.RESULT,
        results.SAMPLES,
        results.NOTEBOOK,
    }
