"""A file is whole or not there, a folder has one writer, and what is made once is made again when its key changes."""

import errno
import math
import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from refusals import refused

from gnnlab import files


def test_a_disk_that_is_full_leaves_the_earlier_file_whole_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "01_a.json"
    files.write_json(path, {"seconds": 1})
    before = path.read_bytes()
    real = os.fsync

    def full(descriptor):
        real(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused(r"No space left on device; it is as it was before"):
        files.write_json(path, {"seconds": 2})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"a": math.nan})


# ---- one process at a time


def hold(folder, held, leave):
    with files.locked(Path(folder), "measures into"):
        held.set()
        leave.wait(30)


def test_a_second_process_is_refused_until_the_first_is_dead_or_has_an_error(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    first = context.Process(target=hold, args=(str(tmp_path), held, leave))
    first.start()
    try:
        assert held.wait(30)
        with refused(r"another process measures into .*; wait until it"), files.locked(tmp_path, "measures into"):
            pytest.fail("two at once")
    finally:
        first.kill()
        first.join()
    with pytest.raises(KeyError), files.locked(tmp_path, "runs in"):
        with refused("another process runs in"), files.locked(tmp_path, "runs in"):
            pytest.fail("two at once")  # in one process, too
        raise KeyError
    with files.locked(tmp_path, "measures into"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
@pytest.mark.parametrize("refusal", files.NO_LOCKS, ids=errno.errorcode.get)
def test_a_file_system_without_locks_is_no_hindrance_and_is_named(tmp_path, monkeypatch, capsys, refusal):
    def flock(*_):
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr("fcntl.flock", flock)
    with files.locked(tmp_path, "measures into"):
        assert "has no locks; run one process at a time there" in capsys.readouterr().err


def test_a_digest_tells_values_and_contents_apart_and_not_the_order_of_keys(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    assert files.digest({"a": 1, "b": 2}) == files.digest({"b": 2, "a": 1}) != files.digest({"a": 2, "b": 1})
    assert files.digest(tmp_path / "a") == files.digest(b"content") != files.digest("content")
    assert len({files.digest("a", "bc"), files.digest("ab", "c"), files.digest("abc")}) == 3
    with pytest.raises(ValueError, match="JSON"):
        files.digest({"ms": math.nan})


@pytest.mark.parametrize(
    ("content", "part"),
    [(None, "could not read"), ("{", "is damaged"), ("[" * 10**5, "is damaged")],
    ids=["no", "{", "["],
)
def test_json_that_cannot_be_read_says_what_to_do(tmp_path, content, part):
    if content is not None:
        (tmp_path / "a").write_text(content)
    with refused(f"{part}.*; run it again$"):
        files.read_json(tmp_path / "a", "run it again")
