"""Results go to a folder that is theirs alone, one run at a time, and stand whole wherever a process ends."""

import os
import shutil
from pathlib import Path

import pytest
import table_rows

from gnnlab import files
from gnnlab.errors import GnnlabError
from gnnlab.lab import outputs, provenance, results
from gnnlab.lab.outputs import only_run


def contents(folder):
    """But for the lock, and files half written."""
    found = (p for p in folder.rglob("*") if p.is_file() and p.name != files.LOCK and p.suffix != ".tmp")
    return {path.relative_to(folder).as_posix(): path.read_text(errors="replace") for path in found}


# ---- whose folder it is


def refusal(folder):
    """The one line that refuses a folder, in which nothing was written."""
    before = contents(folder)
    with pytest.raises(GnnlabError) as error, only_run(folder):
        pytest.fail("it is not for results")
    assert contents(folder) == before and len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_a_folder_with_files_of_someone_is_refused(tmp_path):
    for file in ("Documents/thesis.tex", "figures/a.png", "12_months.json", "01_a.ipynb"):
        (tmp_path / "home" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / file).write_text("mine")
    assert "is not empty and holds no results of gnnlab (01_a.ipynb is there)" in refusal(tmp_path / "home")


EARLY = ["exported_models", "stages"]


@pytest.mark.parametrize("left", ["nothing", "a record", "a result", *EARLY])
def test_a_new_an_empty_and_a_folder_of_results_are_taken(tmp_path, result_file, left):
    folder = tmp_path / "outputs/quick"
    (folder / (left if left in EARLY else "")).mkdir(parents=True)
    if left == "a record":
        outputs.write_runs(folder, outputs.Runs())
    if left == "a result":
        results.write(folder / "02_b.json", result_file(), table_rows.raced({"mine": 2.0}))
        (folder / "notes.txt").write_text("mine")
    for _ in range(2):
        with only_run(folder):
            pass


# ---- whole or not at all


def make(place, result_file, run):
    """What a run of notebook 01_a leaves at `place`."""
    figure = {"name": "a", "title": "t", "alt": "x", "png": "figures/a.png", "svg": "figures/a.svg"}
    for name in ("figures/a.png", "figures/a.svg", "01_a.ipynb", "01_a.samples.parquet"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(run)
    results.write(place / "01_a.json", result_file(run=run, notebook="01_a", figures=[figure]))
    result = results.read(place / "01_a.json")
    return outputs.record(result, {"code": {"a.py": run}}, 1.0)


@pytest.fixture
def folder(tmp_path, result_file):
    """Results of a run, and files of someone beside them."""
    folder = tmp_path / "quick"
    outputs.commit(*staged(folder, result_file, "earlier"))
    for name in ("01_a.notes", "figures/b.png", "02_b.json", "runs/notes"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    (folder / "01_a.failed.json").write_text("failed")
    return folder


def staged(folder, result_file, run):
    """The arguments of `commit` for a run that has ended."""
    place = outputs.stage(folder, "01_a")
    record = make(place, result_file, run)
    return place, folder, "01_a", record


def test_new_results_replace_the_earlier_ones_and_what_failed_and_are_younger_than_a_page(folder, result_file):
    before, arguments = contents(folder), staged(folder, result_file, "new")
    os.utime(arguments[0] / "01_a.json", (1, 1))
    (folder / "01_a.html").write_text("rendered")  # while they waited
    outputs.commit(*arguments)
    assert (folder / "01_a.json").stat().st_mtime >= (folder / "01_a.html").stat().st_mtime
    (folder / "01_a.html").unlink()
    after = contents(folder)
    assert after.pop("figures/a.png") == after.pop("01_a.ipynb") == "new" and "01_a.failed.json" not in after
    assert results.read(folder / "01_a.json").run == "new"
    assert set(after) == set(before) - {"figures/a.png", "01_a.ipynb", "01_a.failed.json"}
    assert outputs.read_runs(folder)[0].runs["01_a"].fingerprint == {"code": {"a.py": "new"}}


def test_one_run_more_keeps_the_one_before_and_a_run_anew_drops_them_all(folder, result_file):
    for run in ("second", "third"):
        outputs.commit(*staged(folder, result_file, run), more=True)
    assert [results.read(path).run for path in results.further_runs(folder, "01_a")] == ["earlier", "second"]
    assert (folder / "runs/01_a.2.samples.parquet").read_text() == "second"
    outputs.commit(*staged(folder, result_file, "anew"))
    assert [path.name for path in (folder / "runs").iterdir()] == ["notes"]


class Killed(BaseException):
    """The process ends: nothing of it runs on."""


def kill_at(monkeypatch, call, when):
    """Let the process end before change number `when` of a file that `call` makes; whether it got so far."""
    allowed = [when]

    def counted(real):
        def change(*arguments, **options):
            allowed[0] -= 1
            if allowed[0] < 0:
                raise Killed
            return real(*arguments, **options)

        return change

    for owner, name in ((Path, "unlink"), (Path, "replace"), (Path, "rename"), (Path, "mkdir"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    monkeypatch.setattr(files, "write_json", counted(files.write_json))
    try:
        call()
    except Killed:
        return True
    finally:
        monkeypatch.undo()
    return False


@pytest.mark.parametrize("more", [False, True])
def test_wherever_the_process_ends_the_earlier_results_stand_or_the_new_ones_do(
    folder, result_file, monkeypatch, tmp_path, more
):
    outputs.commit(*staged(folder, result_file, "second"), more=True)  # so that there is a further run to lose
    before = contents(folder)
    whole = shutil.copytree(folder, tmp_path / "whole")
    outputs.commit(*staged(whole, result_file, "new"), more=more)
    new, ended, killed, stood = contents(whole), 0, True, False
    while killed:
        place = shutil.copytree(folder, tmp_path / f"killed {ended}")
        arguments = staged(place, result_file, "new")
        killed = kill_at(monkeypatch, lambda a=arguments: outputs.commit(*a, more=more), ended)
        with only_run(place):
            pass
        now = contents(place)
        for each in (now, new):
            each.pop("runs.json")  # holds the time of the record
        stands = now == new
        if not stands:
            assert now == {k: v for k, v in before.items() if k != "runs.json"} and not stood, ended
        assert outputs.why_again("01_a", place, outputs.read_runs(place)[0].runs["01_a"], FINGERPRINTS[stands]) is None
        new, stood, ended = contents(whole), stood or stands, ended + 1
    assert stood and ended > 6


FINGERPRINTS = {
    stands: {**{part: {} for part in provenance.PARTS}, "code": {"a.py": run}}
    for stands, run in ((True, "new"), (False, "second"))
}
