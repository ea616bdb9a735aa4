"""A result file is whole or not there, and reads back as it was written."""

import errno
import json
import math
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from gnnlab.lab import results
from gnnlab.lab.results import Measurement, Quantity, ResultError

CONDITIONS = {"device": "a CPU", "runtime": "torch 1", "threads": 2}


def test_a_result_reads_back_as_it_was_written(tmp_path, result_file):
    result = result_file(
        metrics={"forward": Quantity(value=1.5, unit="ms", ci=(1.4, 1.6), n=30, better="lower")},
        measurements=[
            Measurement(
                name="forward", quantity=Quantity(value=1.5, unit="ms"), samples=[1.4, 1.6], conditions=CONDITIONS
            ),
            Measurement(name="cuda", status="unavailable", reason="no CUDA device", conditions=CONDITIONS),
        ],
    )
    results.write(tmp_path / "01_a.json", result)
    assert results.read(tmp_path / "01_a.json") == result


@pytest.mark.parametrize(
    "fields",
    [
        {"quantity": None},
        {"status": "failed"},
        {"status": "unavailable", "quantity": None},
        {"status": "guessed"},
    ],
)
def test_a_measurement_has_a_value_or_a_reason_and_never_both(fields):
    with pytest.raises(ValidationError):
        Measurement(**{"name": "m", "quantity": Quantity(value=1, unit="ms"), "conditions": CONDITIONS} | fields)


@pytest.mark.parametrize(
    "fields", [{"value": math.nan}, {"value": math.inf}, {"ci": (2, 1)}, {"origin": "guessed"}, {"n": 0}, {"speed": 1}]
)
def test_a_quantity_refuses(fields):
    with pytest.raises(ValidationError):
        Quantity(**{"value": 1.0, "unit": "ms"} | fields)


def test_a_disk_that_is_full_leaves_the_earlier_file_whole_and_no_litter(tmp_path, result_file, monkeypatch):
    path = tmp_path / "01_a.json"
    results.write(path, result_file(seconds=1))
    before = path.read_bytes()
    real = os.fsync

    def full(descriptor):
        real(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultError, match=r"No space left on device; what was there before is unchanged") as error:
        results.write(path, result_file(seconds=2))
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_the_writer_reports_a_really_full_device(monkeypatch, tmp_path):
    monkeypatch.setattr(
        results.tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(tmp_path / "x"))
    )
    with pytest.raises(ResultError, match="No space left"):
        results.write_json(tmp_path / "a.json", {"a": 1})


def test_an_exception_while_writing_leaves_no_litter(tmp_path):
    def breaks(file):
        file.write("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results.write_atomically(tmp_path / "a.txt", breaks)
    assert list(tmp_path.iterdir()) == []


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.write_json(tmp_path / "a.json", {"a": math.nan})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 99}', "\x00\xff"])
def test_a_damaged_file_is_refused_in_one_line_that_names_it(tmp_path, text):
    path = tmp_path / "01_a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ResultError, match=r"01_a\.json") as error:
        results.read(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_says_which_notebook_to_run(tmp_path):
    with pytest.raises(ResultError, match="gnnlab run 04"):
        results.read(tmp_path / "04_stage_export.json")


def test_the_published_schema_is_that_of_the_code():
    published = Path(__file__).parents[2] / "docs" / "result-file.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == results.schema(), (
        "write it again: python -m gnnlab.lab.results > docs/result-file.schema.json"
    )
