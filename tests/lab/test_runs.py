"""Runs go to a folder that is gnnlab's alone, one process at a time, stand whole wherever a process ends, and hold
exactly as long as everything that they were made from is as it was.
"""

import errno
import os
import sys

import pytest
import run_folders
import small_notebooks
import table_rows
from moments import at_moment, killed
from refusals import refused as refused_in_one_line

import gnnlab
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
        with refused_in_one_line("is no outputs folder of this gnnlab"), runs.only_run(folder):
            pytest.fail("it is not for results")
        assert contents(folder) == before


@pytest.mark.parametrize("there", ["nothing", "empty", "stages"])
def test_a_new_folder_an_empty_one_and_one_of_ours_are_taken(tmp_path, there):
    folder = tmp_path / "outputs/quick"
    if there == "empty":
        folder.mkdir(parents=True)
    for _ in range(2):
        with runs.only_run(folder):
            (folder / there).mkdir(exist_ok=True)


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


def refused(folder, result_file, wanted):
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
@pytest.mark.parametrize("end", [refused, ended])
def test_at_each_write_and_rename_the_run_before_stands_or_the_new_one_and_the_next_run_goes_on(
    end, tmp_path, result_file
):
    with pytest.MonkeyPatch.context() as patch:
        calls = at_moment(patch, 0, None)
        work(tmp_path / "whole", result_file, "b")
    for wanted in range(1, calls["all"] + 1):
        folder = tmp_path / f"Ende {wanted} ä 名"
        first = work(folder, result_file, "a")
        before = contents(first)
        gone = end(folder, result_file, wanted)
        assert state(folder) == ("a" if gone else "b") and contents(first) == before, wanted
        second = work(folder, result_file, "c")
        assert state(folder) == "c" and not list(folder.glob(".01_a.new")), wanted
        assert {path.name for path in second.iterdir()} == {results.RESULT, results.SAMPLES, results.NOTEBOOK}


# ---- as long as nothing has changed


@pytest.fixture
def repository(tmp_path, result_file, monkeypatch):
    """A repository with a notebook, a user's files, and the results of a run; what surrounds it stays the same."""
    monkeypatch.setattr(runs, "package_code", lambda: {"lab/a.py": "1"})
    monkeypatch.setattr(runs, "this_machine", lambda: {"cores": 2})
    monkeypatch.setattr(runs.machine, "versions", lambda *_: {"torch": "2.13"})
    run_folders.put(tmp_path / "outputs/quick", result_file(notebook="01_a"), table_rows.raced({}))
    for name in ("outputs/quick/01_a/1/notebook.ipynb", "00_need/1/result.json", "graph.npz", "mine/models.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("made")
    write_notebook(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_notebook(root, code="x = 1", prose="words"):
    small_notebooks.write(root / "01_a.ipynb", "", f"# {prose}", code)


def fingerprint(root, **parameters):
    values = {"width": 8, "graph": "graph.npz", "model": "mine.models:make", "kinds": ["lap"]} | parameters
    needs = [root / "00_need/1/result.json"]
    return runs.fingerprint(root / "01_a.ipynb", values, needs, root / "outputs/quick")


def why(root, before, now):
    path = root / "outputs/quick/01_a/1/result.json"
    results.write(path, results.read(path).model_copy(update={"fingerprint": before}))
    return runs.why_again(path, results.read(path), now)


def test_what_is_as_it_was_holds_whatever_the_prose_around_it(repository):
    before = fingerprint(repository)
    assert why(repository, before, fingerprint(repository)) is None
    write_notebook(repository, prose="better words")
    assert why(repository, before, fingerprint(repository)) is None


CHANGES = {
    "code changed (the notebook's code cells)": lambda root, patch: write_notebook(root, code="x = 2"),
    "code changed (lab/a.py)": lambda root, patch: patch(runs, "package_code", lambda: {"lab/a.py": "2"}),
    "code changed (0.py, 1.py and 4 more)": lambda root, patch: patch(
        runs, "package_code", lambda: {"lab/a.py": "1"} | {f"{i}.py": "1" for i in range(6)}
    ),
    "inputs changed (graph.npz)": lambda root, patch: (root / "graph.npz").write_text("other"),
    "inputs changed (mine/models.py)": lambda root, patch: (root / "mine/models.py").write_text("other"),
    "inputs changed (00_need)": lambda root, patch: (root / "00_need/1/result.json").write_text("[]"),
    "versions changed (torch)": lambda root, patch: patch(runs.machine, "versions", lambda *_: {"torch": "2.14"}),
    "machine changed (gpus)": lambda root, patch: patch(runs, "this_machine", lambda: {"cores": 2, "gpus": []}),
}


@pytest.mark.parametrize("clause", CHANGES)
def test_each_change_is_seen_and_named(repository, monkeypatch, clause):
    before = fingerprint(repository)
    CHANGES[clause](repository, monkeypatch.setattr)
    assert why(repository, before, fingerprint(repository)) == clause
    both = f"parameters changed (width); {clause}"
    assert why(repository, before, fingerprint(repository, width=9)) == both


@pytest.mark.parametrize("lost", ["notebook.ipynb", "samples.parquet"])
def test_an_output_that_is_missing_is_made_again(repository, lost):
    (repository / "outputs/quick/01_a/1" / lost).unlink()
    assert why(repository, fingerprint(repository), fingerprint(repository)) == f"{lost} is missing"


def test_a_result_that_gnnlab_run_did_not_make_is_made_again(repository):
    assert why(repository, {"run": {"id": "a"}}, fingerprint(repository)) == "its last run was not by gnnlab run"


@pytest.mark.parametrize(
    "value", ["outputs/quick/01_a/1/result.json", "", ".", "x" * 5000, "~nobody/x", "no.such:module", "C:\\x"]
)
def test_results_and_values_that_name_no_file_are_no_inputs(repository, value):
    assert list(fingerprint(repository, graph=value, model="")["inputs"]) == ["00_need"]


def test_code_is_every_module_and_data_file_but_what_renders(tmp_path, monkeypatch):
    for name in ("a.py", "lab/b.py", "lab/claims.yaml", "lab/templates/page.j2", "__pycache__/a.pyc", ".hidden/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(gnnlab, "__file__", str(tmp_path / "__init__.py"))
    before = runs.package_code()
    assert list(before) == ["a.py", "lab/b.py", "lab/claims.yaml"]
    (tmp_path / "a.py").write_text("changed")
    assert runs.package_code()["a.py"] != before["a.py"]
