"""A result file is whole or not there, and reads back as it was written."""

import json
import math
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
