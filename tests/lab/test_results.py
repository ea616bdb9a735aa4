"""A run is whole or not there, reads back as it was written, and is told apart from others."""

import errno
import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
import run_folders
from moments import at_moment, killed
from refusals import refused
from table_rows import TORCH, counted, put, raced

from gnnlab import files
from gnnlab.errors import GnnlabError
from gnnlab.lab import results
from gnnlab.lab.table import Table, row


def table(study="gat_layer"):
    """A row with samples, one without, and one that could not be measured."""
    made = Table()
    put(made, study, {"size": "58/776"}, "PyG", [1.0, 2.0, 3.0] * 3)
    made.put(*counted(study, parameters=4))
    absent = {"status": "unavailable", "reason": "no CUDA", "origin": "measured", "unit": "ms", "better": "lower"}
    made.put(row(study=study, form="cuda", **TORCH, **absent))
    return made


def test_rows_and_samples_read_back_as_they_were_written(tmp_path, result_file):
    path = tmp_path / "01_a/1/result.json"
    results.write(path, result_file(), table())
    result = results.read(path)
    assert result.rows == list(table())
    again = results.table_of(path, result)
    assert [again.samples_of(each) is not None for each in again] == [True, False, False]
    assert again.samples_of(result.rows[0]).tolist() == [1.0, 2.0, 3.0] * 3
    assert list(pd.read_parquet(path.with_name(results.SAMPLES)).columns) == ["row", "sample", "value"]


def test_a_row_that_contradicts_itself_is_refused_in_a_file_too(tmp_path, result_file):
    path = tmp_path / "01_a/1/result.json"
    results.write(path, result_file(), table())
    path.write_text(path.read_text().replace('"value": 2.0', '"value": 3.5'))
    with refused(r"01_a/1/result\.json is not a result file of this version: rows\.0"):
        results.read(path)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"schema_version": 1}', "\x00\xff"])
def test_a_damaged_or_missing_file_is_refused_in_one_line_that_says_what_to_do(tmp_path, text):
    path = tmp_path / "result.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with refused(r"result\.json.* run "):
        results.read(path)


def of_another_result(path):
    other = Table()
    put(other, "s", {}, "PyG", [1.0, 2.0])
    other.write_samples(path)


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"PAR1"), of_another_result, Path.unlink])
def test_samples_that_are_damaged_or_missing_or_of_another_result_are_refused_in_one_line(
    tmp_path, result_file, change
):
    path = tmp_path / "01_a/1/result.json"
    results.write(path, result_file(), table())
    change(path.with_name(results.SAMPLES))
    with refused(r"01_a/1/samples\.parquet"):
        results.table_of(path, results.read(path))


# ---- several runs


@pytest.fixture
def folder(tmp_path, result_file):
    """Three runs of a notebook, the newest "c"."""
    for run in "abc":
        run_folders.put(tmp_path, result_file(run=run, notebook="01_a"), table(), at=run)
    return tmp_path


def runs(folder):
    by_notebook, problems = results.runs_of(folder)
    return [result.run for result, _ in by_notebook["01_a"]], problems


@pytest.mark.parametrize("changed", [{"parameters": {"size": 9}}, {"fingerprint": {"code": {"a.py": "2"}}}])
def test_a_run_counts_once_the_newest_first_and_those_made_from_something_else_not_at_all(folder, result_file, changed):
    assert runs(folder) == (["c", "a", "b"], [])
    run_folders.put(folder, result_file(run="b", notebook="01_a"), table(), at="bb")
    run_folders.put(folder, result_file(run="d", notebook="01_a", **changed), table(), at="aa")
    assert runs(folder) == (["c", "a", "b"], [])


def test_a_run_that_cannot_be_read_is_a_line_and_the_others_count(folder):
    (folder / "01_a/b/samples.parquet").write_text("PAR1")
    (folder / "01_a/a/result.json").write_text("{")
    readable, problems = runs(folder)
    assert readable == ["c"] and len(problems) == 2
    assert "01_a/b/samples.parquet" in problems[0] and "01_a/a/result.json" in problems[1]


def test_the_newest_run_that_passed_is_the_result_and_one_that_failed_since_stands_beside_it(folder, result_file):
    failed = run_folders.put(folder, result_file(notebook="01_a", status="failed", reason="late"), at="d")
    (folder / "claims.json").write_text("{")
    assert results.newest(folder, "01_a") == (folder / "01_a/c/result.json", failed)
    assert runs(folder) == (["c", "a", "b"], [])
    passed = run_folders.put(folder, result_file(run="e", notebook="01_a"), at="e")
    assert results.newest(folder, "01_a") == (passed, None)
    assert results.newest(folder, "02_b") == (None, None)


# ---- whole or not at all


def work(folder, result_file, run):
    """What a run does with its files: fill a folder, put it in place."""
    with files.locked(folder, "runs notebooks into"):
        place = results.begin(folder, "01_a")
        result = result_file(run=run, notebook="01_a", fingerprint={"code": {"a.py": run}})
        results.write(place / results.RESULT, result, raced({"mine": 2.0}, seed=ord(run)))
        (place / results.NOTEBOOK).write_text(run)
        return results.put(place, folder, "01_a")


def state(folder):
    """The run that stands: its result, samples and notebook belong together."""
    path, failed = results.newest(folder, "01_a")
    result = results.read(path)
    assert failed is None and results.table_of(path, result).samples_of(result.rows[0]) is not None
    assert path.with_name(results.NOTEBOOK).read_text() == result.run
    assert runs(folder) == ([result.run], [])
    return result.run


def no_space(folder, result_file, wanted):
    """Work until the disk is full. In one line?"""

    def refuse():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

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
@pytest.mark.parametrize("end", [no_space, ended])
def test_at_each_write_and_rename_the_run_before_stands_or_the_new_one_and_the_next_run_goes_on(
    end, tmp_path, result_file
):
    with pytest.MonkeyPatch.context() as patch:
        calls = at_moment(patch, 0, None)
        work(tmp_path / "whole", result_file, "b")
    for wanted in range(1, calls["all"] + 1):
        folder = tmp_path / f"Ende {wanted} ä 名"
        first = work(folder, result_file, "a")
        before = first.joinpath(results.RESULT).read_bytes()
        gone = end(folder, result_file, wanted)
        assert state(folder) == ("a" if gone else "b") and first.joinpath(results.RESULT).read_bytes() == before, wanted
        second = work(folder, result_file, "c")
        assert state(folder) == "c" and not list(folder.glob(".01_a.new")), wanted
        assert {path.name for path in second.iterdir()} == {results.RESULT, results.SAMPLES, results.NOTEBOOK}


def test_the_published_schema_is_that_of_the_code():
    published = Path(__file__).parents[2] / "docs" / "result-file.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == results.ResultFile.model_json_schema(), (
        "write it again: python -m gnnlab.lab.results > docs/result-file.schema.json"
    )


def test_a_folder_with_files_of_someone_or_of_an_older_gnnlab_is_refused_in_one_line_and_left_alone(tmp_path):
    for names in (["Documents/thesis.tex", "12_months.json"], ["runs.json", "01_a.json", "01_a.ipynb"], [".git/HEAD"]):
        folder = tmp_path / names[0].partition("/")[0].strip(".")
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
        before = sorted(folder.rglob("*"))
        with refused("is no outputs folder of this gnnlab"), results.only_run(folder):
            pytest.fail("it is not for results")
        assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("there", ["nothing", "empty", "stages"])
def test_a_new_folder_an_empty_one_and_one_of_ours_are_taken(tmp_path, there):
    folder = tmp_path / "outputs/quick"
    if there == "empty":
        folder.mkdir(parents=True)
    for _ in range(2):
        with results.only_run(folder):
            (folder / there).mkdir(exist_ok=True)
