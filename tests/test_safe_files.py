"""A file is whole or not there."""

import errno
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnnlab import safe_files
from gnnlab.safe_files import FileError


def test_a_disk_that_is_full_leaves_the_earlier_file_whole_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "01_a.json"
    safe_files.write_json(path, {"seconds": 1})
    before = path.read_bytes()
    real = os.fsync

    def full(descriptor):
        real(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match=r"No space left on device; what was there before is unchanged") as error:
        safe_files.write_json(path, {"seconds": 2})
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_the_writer_reports_a_really_full_device(monkeypatch, tmp_path):
    monkeypatch.setattr(
        safe_files.tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(tmp_path / "x"))
    )
    with pytest.raises(FileError, match="No space left"):
        safe_files.write_json(tmp_path / "a.json", {"a": 1})


def test_an_exception_while_writing_leaves_no_litter(tmp_path):
    def breaks(file):
        file.write("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        safe_files.write_atomically(tmp_path / "a.txt", breaks)
    assert list(tmp_path.iterdir()) == []


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        safe_files.write_json(tmp_path / "a.json", {"a": math.nan})


def killed_writer(path, then="os._exit(0)"):
    """A process that ends in the middle of writing `path`."""
    code = "import os; from pathlib import Path; from gnnlab.safe_files import write_atomically as w\n"
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
    safe_files.write_json(tmp_path / "a.json", {})
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", left[1].name, *planted}


def test_a_writer_that_lives_keeps_its_temporary_file(tmp_path):
    writer = killed_writer(tmp_path / "a[1].json", "input()")
    limit = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.iterdir()) and time.monotonic() < limit:
        time.sleep(0.02)
    safe_files.write_json(tmp_path / "a[1].json", {})
    assert len(list(tmp_path.iterdir())) == 2
    writer.communicate(b"\n")
    assert (tmp_path / "a[1].json").read_text() == "half"
