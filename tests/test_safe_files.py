"""A file is whole or not there."""

import errno
import math
import os
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
