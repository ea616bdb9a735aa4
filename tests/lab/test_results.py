"""A run is whole or not there, reads back as it was written, and is told apart from others."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
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


def put_run(folder, result, table=None):
    """Put a run in place; its result file."""
    with results.Place(folder) as place:
        results.write(place.path / results.RESULT, result, table)
        return place.put(result.notebook) / results.RESULT


@pytest.fixture
def folder(tmp_path, result_file):
    """Three runs of a notebook, the newest "c"."""
    for run in "abc":
        put_run(tmp_path, result_file(run=run, notebook="01_a"), table())
    return tmp_path


def runs(folder):
    by_notebook, problems = results.runs_of(folder)
    return [result.run for result, _ in by_notebook["01_a"]], problems


def environment(**changes):
    """That of a run, one thing of it changed: of its processor, or itself."""
    cpu = {"model": "A", "cores": 2, "logical": 2, "usable": 2, "quota": None}
    seen = {"commit": "1", "threads": 2, "omp_num_threads": None, "versions": {"torch": "2"}, "load": [1.0]}
    for name, value in changes.items():
        (cpu if name in cpu else seen)[name] = value
    return {"environment": {"cpu": cpu, **seen}}


UNLIKE = {
    "parameters": {"parameters": {"size": 9}},
    "code": {"made_from": "2"},
    "commit": environment(commit="2"),
    "cores": environment(usable=1),
    "quota": environment(quota=1.5),
    "threads": environment(threads=1),
    "OMP": environment(omp_num_threads="1"),
    "machine": environment(model="B"),
    "versions": environment(versions={"torch": "3"}),
}


@pytest.mark.parametrize("changed", UNLIKE.values(), ids=UNLIKE)
def test_only_runs_that_were_made_alike_are_pooled_the_newest_first(tmp_path, result_file, changed):
    for run, changes in (("a", {}), ("b", environment(load=[9.0])), ("d", changed), ("c", {}), ("b", {})):
        known = environment() | {"run": run, "notebook": "01_a", **changes}
        put_run(tmp_path, result_file(**known), table())
    assert runs(tmp_path) == (["b", "a", "c"], [])


def test_runs_that_did_not_record_where_they_ran_are_pooled_with_each_other_alone(folder, result_file):
    assert runs(folder) == (["c", "a", "b"], [])
    put_run(folder, result_file(run="d", notebook="01_a", **environment()), table())
    assert runs(folder) == (["d"], [])


def test_a_run_that_cannot_be_read_is_a_line_and_the_others_count(folder):
    (folder / "01_a/0002/samples.parquet").write_text("PAR1")
    (folder / "01_a/0001/result.json").write_text("{")
    readable, problems = runs(folder)
    assert readable == ["c"] and len(problems) == 2
    assert "01_a/0002/samples.parquet" in problems[0] and "01_a/0001/result.json" in problems[1]


def test_the_newest_run_that_passed_is_the_result_and_one_that_failed_since_stands_beside_it(folder, result_file):
    failed = put_run(folder, result_file(notebook="01_a", status="failed", reason="late"))
    (folder / "claims.json").write_text("{")
    assert results.newest(folder, "01_a") == (folder / "01_a/0003/result.json", failed)
    assert runs(folder) == (["c", "a", "b"], [])
    passed = put_run(folder, result_file(run="e", notebook="01_a"))
    assert results.newest(folder, "01_a") == (passed, None)
    assert results.newest(folder, "02_b") == (None, None)


def test_a_run_is_newer_than_all_that_are_there_whatever_their_clocks_said(folder, result_file):
    (folder / "01_a/0003").rename(folder / "01_a/20991231-235959-999999")  # as earlier versions named runs
    path = put_run(folder, result_file(run="d", notebook="01_a", started="2001-01-01T00:00:00+00:00"), table())
    assert results.newest(folder, "01_a")[0] == path and runs(folder)[0][0] == "d"
    assert put_run(folder, result_file(run="e", notebook="01_a")) == results.newest(folder, "01_a")[0]


# ---- whole or not at all


def work(folder, result_file, run):
    """What a run does with its files: fill a folder, put it in place."""
    with files.locked(folder, "runs notebooks into"), results.Place(folder) as place:
        result = result_file(run=run, notebook="01_a", made_from=run)
        results.write(place.path / results.RESULT, result, raced({"mine": 2.0}, seed=ord(run)))
        (place.path / results.NOTEBOOK).write_text(run)
        return place.put("01_a")


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
        assert state(folder) == "c" and not list(folder.glob(".run-*")), wanted
        assert {path.name for path in second.iterdir()} == {results.RESULT, results.SAMPLES, results.NOTEBOOK}


def test_what_a_killed_run_left_goes_at_the_next_start_and_what_a_live_one_fills_stays(tmp_path):
    dies = "import os, pathlib; from gnnlab.lab import results; "
    dies += f"place = results.Place(pathlib.Path({str(tmp_path)!r})); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", dies], check=False).returncode == 9
    left, _ = sorted(tmp_path.glob(".run-*"))  # and its lock
    with results.Place(tmp_path) as live, results.Place(tmp_path) as other:
        assert not left.exists() and live.path.exists() and other.path.exists()
    assert not list(tmp_path.glob(".run-*"))


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_without_locks_a_run_is_put_in_place_and_what_others_fill_stays(tmp_path, result_file, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with results.Place(tmp_path) as live:
        path = put_run(tmp_path, result_file())
        assert live.path.exists() and results.read(path).status == "passed"


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
