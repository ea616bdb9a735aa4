"""What was exported is counted as it is; a total of export times exists only where all of its models were made."""

from dataclasses import replace

import pytest
from table_rows import as_rows

from gnnlab.export import inventory
from gnnlab.export.artefacts import Artefact


def artefact(number, exporter="openvino", seconds=1.0, nodes=None, last=None, **changes):
    place = ("sage", 500, number, last or number, exporter, "plain", nodes, nodes)
    return replace(Artefact(*place, ("x",), ("out",), seconds=seconds), **changes)


DYNAMIC = [artefact(n, exporter) for n in range(1, 8) for exporter in ("onnx", "openvino")]
STATIC = [artefact(n, seconds=0.5, nodes=size) for size in range(1, 16) for n in range(1, 8)]
OTHERS = [artefact(n, "handbuilt", seconds=1e6) for n in (3, 4)] + [artefact(1, "onnx", seconds=1e6, last=5)]


def total(artefacts):
    (row,) = as_rows(inventory.frames(artefacts)[2])
    return row


def test_the_total_of_as_many_models_as_the_document_is_one_sample_without_an_interval():
    row = total([*DYNAMIC, *OTHERS, *STATIC])
    assert row.value == pytest.approx((14 + 105 * 0.5) / 60) and (row.n, row.interval) == (1, "none")
    assert (row.origin, row.statistic, row.unit) == ("measured", "single", "min")
    assert "made and checked once by this run" in row.notes[0] and len(row.notes) == 1


@pytest.mark.parametrize(
    ("static", "made"),
    [
        (STATIC[:10], "14 dynamic and 10 static models"),
        ([*STATIC[1:], replace(STATIC[0], seconds=0.0)], "14 dynamic and 104 static models"),
        ([*STATIC[1:], replace(STATIC[0], status="wrong")], "14 dynamic and 104 static models"),
        ([replace(model, features=8) for model in STATIC], "14 dynamic and 0 static models"),
        ([*STATIC, artefact(1, seconds=0.5, nodes=99)], "14 dynamic and 106 static models"),
    ],
    ids=["fewer", "one found", "one wrong", "another width", "more"],
)
def test_a_total_of_other_models_has_no_number_and_says_what_it_would_take(static, made):
    row = total([*DYNAMIC, *static])
    assert row.status == "unavailable" and row.value is None
    assert made in row.reason and "params/full makes" in row.reason


def test_the_time_of_a_model_has_a_sample_for_each_that_this_run_made_and_found_right():
    static = [*STATIC[:2], replace(STATIC[2], seconds=0.0), replace(STATIC[3], status="wrong")]
    found = inventory.frames([*DYNAMIC, *static])[1].set_index("form")
    assert found.loc["onnx, dynamic", "samples"] == [1.0] * 7 and found.loc["openvino, static", "samples"] == [0.5] * 2
    assert "2 of 4" in found.loc["openvino, static", "notes"]
    (row,) = as_rows(inventory.frames([replace(STATIC[0], seconds=0.0)])[1], "exporter", "shapes")
    assert row.status == "unavailable" and "anew: true" in row.reason


def test_models_on_disk_are_counted_exactly(tmp_path):
    written = [replace(model, path=tmp_path / "one", size_bytes=2**20) for model in STATIC[:3]]
    counted = as_rows(
        inventory.frames([*DYNAMIC, *written, replace(STATIC[3], status="wrong")])[0], "exporter", "shapes"
    )
    found = {row.form: row.value for row in counted if row.keys == {"exporter": "openvino", "shapes": "static"}}
    assert found == {"models": 4, "ready": 3, "size on disk": 3}
    assert all((row.origin, row.interval, row.statistic) == ("counted", "exact", "count") for row in counted)
