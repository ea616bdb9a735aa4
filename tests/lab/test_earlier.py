"""Earlier results survive whatever happens to a new run; a dead run leaves nothing of its own, and only of its own."""

import json
import shutil
from pathlib import Path

import pytest

from gnnlab.lab import earlier, freshness
from gnnlab.lab.earlier import Earlier, earlier_results
from gnnlab.lab.results import ResultError
from gnnlab.lab.results_folder import only_run

RESULT = json.dumps(
    {"figures": [{"png": "figures/a.png", "svg": "figures/a.svg"}, {"png": "../x.png", "svg": "no.svg"}]}
)
OUTPUTS = ("01_a.json", "01_a.samples.parquet", "01_a.ipynb", "figures/a.png")


@pytest.fixture
def folder(tmp_path):
    """Earlier results of a notebook: the result file, samples and a figure."""
    (tmp_path / "out/figures").mkdir(parents=True)
    (tmp_path / "x.png").write_text("not ours")
    (tmp_path / "out/01_a.json").write_text(RESULT)
    (tmp_path / "out/01_a.ipynb").write_text("earlier")
    (tmp_path / "out/01_a.samples.parquet").write_text("earlier")
    for kind in ("png", "svg"):
        (tmp_path / f"out/figures/a.{kind}").write_text("earlier")
    return tmp_path / "out"


def overwrite(folder):
    """What a new run does before it fails."""
    for name in OUTPUTS:
        (folder / name).write_text("new")
    (folder / "figures/a.svg").unlink()


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


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
    assert contents(folder) == dict.fromkeys(OUTPUTS, "new")


def test_a_first_result_of_a_failed_run_does_not_stay(tmp_path):
    with earlier_results(tmp_path, "01_a"):
        for name in OUTPUTS[:3]:
            (tmp_path / name).write_text("new")
    assert contents(tmp_path) == {}


def test_a_damaged_earlier_result_is_kept_as_it_is(tmp_path):
    (tmp_path / "01_a.json").write_bytes(b"\xff{")
    with earlier_results(tmp_path, "01_a"):
        (tmp_path / "01_a.json").write_text("new")
    assert (tmp_path / "01_a.json").read_bytes() == b"\xff{"


def test_a_disk_too_full_for_the_copy_stops_before_anything_is_lost(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    before = contents(folder)
    stops = pytest.raises(ResultError, match="No space left on device; earlier results are kept")
    with stops, earlier_results(folder, "01_a"):
        pytest.fail("started")
    assert contents(folder) == before


class Killed(BaseException):
    """The process ends: nothing of it runs on."""


def kill_at(monkeypatch, call, when):
    """Of the calls that change a file, let the process end before number `when`; `call` is the one that is made."""
    allowed = [when]

    def counted(real):
        def change(*arguments, **options):
            allowed[0] -= 1
            if allowed[0] < 0:
                raise Killed
            return real(*arguments, **options)

        return change

    for owner, name in ((shutil, "copy2"), (Path, "unlink"), (Path, "replace"), (Path, "mkdir"), (Path, "rmdir")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    monkeypatch.setattr(earlier, "write_json", counted(earlier.write_json))
    try:
        call()
    except Killed:
        return True
    finally:
        monkeypatch.undo()
    return False


def left(folder):
    """What is there but for the record half written: its writer, this process, still lives."""
    return {name: text for name, text in contents(folder).items() if not name.startswith("..running.json.gnnlab-")}


PLANTED = {"01_a.running.notes": "mine", ".01_a.json.x1.tmp": "mine", "figures/b.png": "mine", "02_b.json": "mine"}


def test_a_run_that_is_killed_at_any_moment_leaves_all_as_it_was(folder, monkeypatch):
    freshness.write_runs(folder, freshness.Runs())
    for name, text in PLANTED.items():
        (folder / name).write_text(text)
    before, ended = left(folder), 0

    def run():
        kept = Earlier(folder, "01_a")
        kept.keep()
        kept.running.write_text("half")
        overwrite(folder)
        kept.restore()

    while kill_at(monkeypatch, run, ended):
        with only_run(folder):
            pass
        assert left(folder) == before, f"killed after {ended} changes"
        ended += 1
    assert ended > 10 and left(folder) == before


def test_new_results_stand_whole_or_the_earlier_come_back_wherever_the_process_ends(folder, monkeypatch):
    freshness.write_runs(folder, freshness.Runs())
    before, stood, ended = left(folder), False, 0
    new = before | dict.fromkeys(OUTPUTS, "new")
    del new["figures/a.svg"]
    killed = True
    while killed:
        kept = Earlier(folder, "01_a")
        kept.keep()
        kept.running.write_text("half")
        overwrite(folder)
        killed = kill_at(monkeypatch, kept.let_go, ended)
        with only_run(folder):
            pass
        stands = left(folder) == new
        assert stands or (left(folder) == before and not stood), f"killed after {ended} changes"
        stood = stood or stands
        for name, text in before.items():
            (folder / name).write_text(text)
        ended += 1
    assert stood and ended > 5


@pytest.mark.parametrize("name", ["01_a.running.ipynb", "01_a.running.earlier"])
def test_a_file_in_the_place_of_the_runner_s_own_is_neither_used_nor_removed(folder, name):
    (folder / name).write_text("mine")
    before = contents(folder)
    with pytest.raises(ResultError, match=f"{name} is in the way") as error, earlier_results(folder, "01_a"):
        pytest.fail("started")
    assert contents(folder) == before and len(str(error.value).splitlines()) == 1


def test_a_file_that_someone_put_among_the_copies_stays(folder):
    with earlier_results(folder, "01_a") as kept:
        (kept.place / "figures/mine.png").write_text("mine")
        kept.let_go()
    assert contents(folder)["01_a.running.earlier/figures/mine.png"] == "mine"
