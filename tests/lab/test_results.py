"""A run is whole or not there, reads back as it was written, and is told apart from others."""

import errno
import json
import math
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
from moments import at_moment, killed
from refusals import refused
from table_rows import TORCH, counted, put, raced

from gnnlab.errors import GnnlabError
from gnnlab.lab import results
from gnnlab.lab.table import Table, row


def table(study="gat_layer"):
    """A row with samples, one without, and one that could not be measured."""
    made = Table()
    put(made, study, {"size": "58x776"}, "PyG", [1.0, 2.0, 3.0] * 3)
    made.put(*counted(study, parameters=4))
    absent = {"status": "unavailable", "reason": "no CUDA", "origin": "measured", "unit": "ms", "better": "lower"}
    made.put(row(study=study, variant="cuda", **TORCH, **absent))
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


def replaced(old, new):
    return lambda path: path.write_text(path.read_text().replace(old, new))


def older(path):
    """As it was written before rows had `variant`."""
    path.write_text(path.read_text().replace('"schema_version": 3', '"schema_version": 2').replace("variant", "form"))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (replaced('"value": 2.0', '"value": 3.5'), r"rows\.0"),  # a row that contradicts itself
        (replaced('"schema_version": 3', '"schema_version": 1'), "schema_version: Input should be 2"),
        (older, r"variant: Field required \(it is of version 2, this one writes 3\)"),
        (lambda path: path.write_bytes(b"\x00\xff"), "JSON"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line_that_says_what_to_do(tmp_path, result_file, change, part):
    path = tmp_path / "01_a/1/result.json"
    results.write(path, result_file(), table())
    change(path)
    with refused(rf"01_a/1/result\.json is not a result file of this version: .*{part}.*; run it again"):
        results.read(path)


def test_a_folder_in_the_place_of_a_result_file_is_a_line(tmp_path):
    with refused("could not read .*result.json: Is a directory; run it again" if os.name == "posix" else "could not"):
        (tmp_path / "result.json").mkdir()
        results.read(tmp_path / "result.json")


def edited(of="row", by=str):
    """Samples of the result, a column of them changed."""

    def change(path):
        frame = pd.read_parquet(path)
        frame.assign(**{of: frame[of].map(by)}).to_parquet(path)

    return change


EDITED = [edited(), edited(by=float), edited(by=lambda _: -1), edited("value", str), edited("value", lambda _: None)]
EDITED += [edited("value", lambda value, odd=odd: odd if value == 2 else value) for odd in (math.nan, math.inf)]


def of_another_result(path):
    other = Table()
    put(other, "s", {}, "PyG", [1.0, 2.0])
    other.write_samples(path)


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"PAR1"), of_another_result, Path.unlink, *EDITED])
def test_samples_that_are_damaged_or_missing_or_of_another_result_are_refused(tmp_path, result_file, change):
    path = tmp_path / "01_a/1/result.json"
    results.write(path, result_file(), table())
    change(path.with_name(results.SAMPLES))
    with refused(r"01_a/1/samples\.parquet"):
        results.table_of(path, results.read(path))


# ---- several runs


def put_run(folder, result, table=None):
    """Put a run in place; its result file."""
    with results.place(folder) as place:
        results.write(place / results.RESULT, result, table)
        return results.put(place, result.notebook) / results.RESULT


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
    "not recorded": {"environment": {}},
    **{name: environment(**{name: 1.5}) for name in ("commit", "usable", "quota", "threads", "model", "versions")},
    "OMP": environment(omp_num_threads="1"),
}


@pytest.mark.parametrize("changed", UNLIKE.values(), ids=UNLIKE)
def test_only_runs_that_were_made_alike_are_pooled_the_newest_first(tmp_path, result_file, changed):
    for run, changes in (("a", {}), ("b", environment(load=[9.0])), ("d", changed), ("c", {}), ("b", {})):
        known = environment() | {"run": run, "notebook": "01_a", **changes}
        put_run(tmp_path, result_file(**known), table())
    assert runs(tmp_path) == (["b", "c", "a"], [])


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
    assert runs(folder) == (["c", "b", "a"], [])
    passed = put_run(folder, result_file(run="e", notebook="01_a"))
    assert results.newest(folder, "01_a") == (passed, None)
    assert results.newest(folder, "02_b") == (None, None)


def test_a_run_is_newer_than_all_that_are_there_whatever_their_clocks_said(folder, result_file):
    (folder / "01_a/0003").rename(folder / "01_a/20991231-235959-999999")  # as reference runs are named
    path = put_run(folder, result_file(run="d", notebook="01_a", started="2001-01-01T00:00:00+00:00"), table())
    assert results.newest(folder, "01_a")[0] == path and runs(folder)[0][0] == "d"
    assert put_run(folder, result_file(run="e", notebook="01_a")) == results.newest(folder, "01_a")[0]


# ---- whole or not at all


def work(folder, result_file, run):
    """What a run does with its files: fill a folder, put it in place."""
    with results.only_run(folder), results.place(folder) as place:
        result = result_file(run=run, notebook="01_a", made_from=run)
        results.write(place / results.RESULT, result, raced({"mine": 2.0}, seed=ord(run)))
        (place / results.NOTEBOOK).write_text(run)
        return results.put(place, "01_a")


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


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_without_locks_a_run_is_put_in_place_and_what_others_fill_stays(tmp_path, result_file, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with results.only_run(tmp_path), results.place(tmp_path) as live:
        run = work(tmp_path, result_file, "a")
        assert results.read(run / results.RESULT).status == "passed" and live.exists()


def test_the_published_schema_is_that_of_the_code():
    published = Path(__file__).parents[2] / "docs" / "result-file.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == results.ResultFile.model_json_schema(), (
        "write it again: python -m gnnlab.lab.results > docs/result-file.schema.json"
    )


@pytest.mark.parametrize("there", ["thesis.tex", "01_a.json", ".git/HEAD"])
def test_a_folder_with_files_is_refused_and_left_alone_unless_it_is_one_of_ours(tmp_path, there):
    folder, mine = tmp_path / "mine", tmp_path / "mine" / there
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with refused("is not empty and is no outputs folder of this gnnlab; choose a new folder"), results.only_run(folder):
        pytest.fail("it is not for results")
    assert [path for path in folder.rglob("*") if path.is_file()] == [mine]
    for _ in range(2):  # a new one, and then one of ours
        with results.only_run(tmp_path / "outputs/quick"):
            (tmp_path / "outputs/quick/stages").mkdir(exist_ok=True)
