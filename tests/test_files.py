"""A file is whole or not there."""

import errno
import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import refused

from gnnlab import files
from gnnlab.errors import GnnlabError


def test_a_disk_that_is_full_leaves_the_earlier_file_whole_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "01_a.json"
    files.write_json(path, {"seconds": 1})
    before = path.read_bytes()
    real = os.fsync

    def full(descriptor):
        real(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused(r"No space left on device; what was there before is unchanged"):
        files.write_json(path, {"seconds": 2})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_the_writer_reports_a_really_full_device(monkeypatch, tmp_path):
    monkeypatch.setattr(files.tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(tmp_path / "x")))
    with pytest.raises(GnnlabError, match="No space left"):
        files.write_json(tmp_path / "a.json", {"a": 1})


def test_an_exception_while_writing_leaves_no_litter(tmp_path):
    def breaks(file):
        file.write("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(tmp_path / "a.txt", breaks)
    assert list(tmp_path.iterdir()) == []


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", {"a": math.nan})


def killed_writer(path, then="os._exit(0)"):
    """A process that ends in the middle of writing `path`."""
    code = "import os; from pathlib import Path; from gnnlab.files import write_atomically as w\n"
    code += f"w(Path({str(path)!r}), lambda file: (file.write('half'), file.flush(), {then}))"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def test_what_a_killed_writer_left_is_cleared_by_the_next_of_the_same_file_and_nothing_else(tmp_path):
    for name in ("a.json", "b.json"):
        killed_writer(tmp_path / name).communicate()
    left = sorted(tmp_path.iterdir())
    assert [path.read_text() for path in left] == ["half", "half"]
    pid = left[0].name.split("-")[2]
    planted = [".a.json.x1.tmp", ".a.json.tmp", "notes.tmp", f"{left[0].name}.mine.tmp"]
    planted += [left[0].name.replace(f"-{pid}-", "--"), left[0].name.replace("gnnlab-", "gnnlab-0")]
    for name in planted:
        (tmp_path / name).write_text("mine")
    files.write_json(tmp_path / "a.json", {})
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", left[1].name, *planted}


def test_a_writer_that_lives_keeps_its_temporary_file(tmp_path):
    writer = killed_writer(tmp_path / "a[1].json", "input()")
    limit = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.iterdir()) and time.monotonic() < limit:
        time.sleep(0.02)
    files.write_json(tmp_path / "a[1].json", {})
    assert len(list(tmp_path.iterdir())) == 2
    writer.communicate(b"\n")
    assert (tmp_path / "a[1].json").read_text() == "half"


# ---- one process at a time


def hold(folder, held, leave):
    with files.locked(Path(folder), "measures into"):
        held.set()
        leave.wait(30)


def test_a_second_process_is_refused_and_told_of_the_first_until_that_is_dead(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    first = context.Process(target=hold, args=(str(tmp_path), held, leave))
    first.start()
    try:
        assert held.wait(30)
        named = pytest.raises(GnnlabError, match=f"process {first.pid}, started .* measures into .*; wait until it")
        with named, files.locked(tmp_path, "measures into"):
            pytest.fail("two at once")
    finally:
        first.kill()
        first.join()
    with files.locked(tmp_path, "measures into"):
        assert json.loads((tmp_path / files.HOLDER).read_bytes())["pid"] == os.getpid()


def test_the_lock_is_free_after_an_error_and_leaves_no_holder(tmp_path):
    refused = pytest.raises(GnnlabError, match=f"process {os.getpid()}")
    with files.locked(tmp_path, "runs in"), refused, files.locked(tmp_path, "runs in"):
        pytest.fail("two at once")  # in one process, too
    with pytest.raises(KeyError), files.locked(tmp_path, "runs in"):
        raise KeyError
    with files.locked(tmp_path, "runs in"):
        pass
    assert not (tmp_path / files.HOLDER).exists()


def test_the_lock_is_free_where_its_holder_s_name_cannot_be_removed(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    with files.locked(tmp_path, "runs in"):
        monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.undo()
    with files.locked(tmp_path, "runs in"):
        pass


def test_a_file_in_the_place_of_a_locked_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GnnlabError, match="could not write to") as error, files.locked(tmp_path / "file", "runs in"):
        pytest.fail("held a file")
    assert "\n" not in str(error.value)


# ---- found by what they were made from


def write(text):
    return lambda folder: (folder / "model.bin").write_text(text)


def never(folder):
    raise AssertionError("made again")


def test_what_is_there_is_not_made_again_and_keys_tell_apart(tmp_path):
    store = files.Store(tmp_path)
    first = store.make({"kind": "onnx", "weights": "a"}, write("one"))
    assert first.made and first.size_bytes == 3 and first.folder.name.startswith("onnx-")
    again = store.make({"weights": "a", "kind": "onnx"}, never)
    assert not again.made and again.folder == first.folder == store.get({"kind": "onnx", "weights": "a"})
    assert store.get({"kind": "onnx", "weights": "b"}) is None
    assert store.make({"kind": "ir", "weights": "a"}, write("two")).folder != first.folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.bin").write_text("onf"),
        lambda folder: (folder / "model.bin").unlink(),
        lambda folder: (folder / files.CONTENTS).unlink(),
        lambda folder: (folder / files.CONTENTS).write_text("{"),
        lambda folder: (folder / files.CONTENTS).write_text("[]"),
        lambda folder: (folder / "more.bin").write_text("x"),
    ],
)
def test_an_entry_that_was_changed_is_made_anew(tmp_path, damage):
    store = files.Store(tmp_path)
    damage(store.make({}, write("one")).folder)
    assert store.get({}) is None
    found = store.make({}, write("one"))
    assert found.made and (found.folder / "model.bin").read_text() == "one" and found.size_bytes == 3


def test_a_build_that_fails_leaves_nothing_behind_but_the_entry_that_it_was_to_replace(tmp_path):
    def half(folder):
        (folder / "model.bin").write_text("half")
        raise RuntimeError("no such operator")

    store = files.Store(tmp_path)
    with pytest.raises(RuntimeError, match="no such operator"):
        store.make({}, half)
    assert list(tmp_path.iterdir()) == []
    store.make({}, write("one"))
    with pytest.raises(RuntimeError, match="no such operator"):
        store.make({}, half, anew=True)
    assert (store.get({}) / "model.bin").read_text() == "one" and list(tmp_path.iterdir()) == [store.get({})]


def test_what_a_build_lacks_is_not_said_of_the_disk(tmp_path):
    def lacking(folder):
        raise FileNotFoundError(errno.ENOENT, "no such compiler")

    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FileNotFoundError, match="no such compiler"):
        files.Store(tmp_path).make({}, lacking)
    with pytest.raises(GnnlabError, match="No space left on device; free some space"):
        files.Store(tmp_path).make({}, full)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(r"could not store .*choose another folder"):
        files.Store(tmp_path / "file" / "models").make({}, write("one"))


DIES = """
import os, sys
from gnnlab.files import Store

def build(folder):
    (folder / "model.bin").write_text("half")
    os._exit(9)

Store(sys.argv[1]).make({}, build)
"""


def test_a_kill_halfway_leaves_no_entry(tmp_path):
    assert subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False).returncode == 9
    assert files.Store(tmp_path).make({}, write("one")).made
    assert files.Store(tmp_path).make({}, never).size_bytes == 3


DIES_REPLACING = """
import os, sys
from pathlib import Path
from gnnlab.files import Store

rename, left = Path.rename, int(sys.argv[2])

def dies(path, target):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return rename(path, target)

Path.rename = dies
Store(sys.argv[1]).make({}, lambda folder: (folder / "model.bin").write_text("new"), anew=True)
os._exit(9)
"""


@pytest.mark.parametrize(("renamed", "kept"), [(0, "one"), (1, "one"), (2, "new")])
def test_an_entry_that_is_made_anew_is_whole_whenever_a_kill_comes(tmp_path, renamed, kept):
    store = files.Store(tmp_path)
    store.make({}, write("one"))
    assert subprocess.run([sys.executable, "-c", DIES_REPLACING, str(tmp_path), str(renamed)]).returncode == 9
    assert (store.get({}) / "model.bin").read_text() == kept
    assert not store.make({}, never).made
    assert store.make({}, write("last"), anew=True).made and (store.get({}) / "model.bin").read_text() == "last"
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".making-")] == [store.get({}).name]


def test_a_digest_tells_values_and_contents_apart_and_not_the_order_of_keys(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    assert files.digest({"a": 1, "b": 2}) == files.digest({"b": 2, "a": 1}) != files.digest({"a": 2, "b": 1})
    assert files.digest(tmp_path / "a") == files.digest(b"content") != files.digest("content")
    assert len({files.digest("a", "bc"), files.digest("ab", "c"), files.digest("abc")}) == 3
    with pytest.raises(ValueError, match="JSON"):
        files.digest({"ms": math.nan})


@pytest.mark.parametrize(
    ("content", "said"), [(None, "could not read"), ("{", "is damaged"), ("[" * 10**5, "is damaged")]
)
def test_json_that_cannot_be_read_says_what_to_do(tmp_path, content, said):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(GnnlabError, match=f"{said}.*; run it again$"):
        files.read_json(path, "run it again")
