"""What notebook 04 records: rows that the table takes, and a total of exports only where all of them were made."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from table_rows import as_rows

from gnnlab.optimize.study import Conditions
from gnnlab.stages.export import study
from gnnlab.stages.export import study_rows as rows
from gnnlab.stages.export.artefacts import Artefact
from gnnlab.stages.export.checking import ONNXRUNTIME, OPENVINO


def artefact(number, exporter="openvino", seconds=1.0, nodes=None, **changes):
    place = {"layer": "sage", "features": 500, "first": number, "last": number, "nodes": nodes, "edges": nodes}
    model = {"exporter": exporter, "form": "plain", "reads": ("x",), "writes": ("out",), "fresh": True}
    return Artefact(key=f"{number} {exporter} {nodes}", seconds=seconds, **(place | model | changes))


DYNAMIC = [artefact(n, exporter) for n in range(1, 8) for exporter in ("onnx", "openvino")]
STATIC = [artefact(n, seconds=0.5, nodes=size) for size in range(1, 16) for n in range(1, 8)]
OTHERS = [artefact(n, "handbuilt", seconds=1e6) for n in (3, 4)] + [artefact(1, "onnx", seconds=1e6, last=5)]


def total(artefacts):
    (row,) = as_rows(rows.export_total(artefacts))
    return row


def test_the_total_of_as_many_models_as_the_document_is_one_sample_without_an_interval():
    row = total([*DYNAMIC, *OTHERS, *STATIC])
    assert row.value == pytest.approx((14 + 105 * 0.5) / 60) and (row.n, row.interval) == (1, "none")
    assert (row.origin, row.statistic, row.unit) == ("measured", "single", "min")
    assert "made and checked once by this run" in row.notes[0] and len(row.notes) == 1


def test_the_total_says_how_many_models_equal_another_sizes():
    same = [replace(model, key="one") if model.first == 6 else model for model in STATIC]
    assert "14 equal another size's and were made like all others" in total([*DYNAMIC, *same]).notes


@pytest.mark.parametrize(
    ("static", "told"),
    [
        (STATIC[:10], "14 dynamic and 10 static models in 0.32 minutes"),
        (
            [*STATIC[1:], replace(STATIC[0], fresh=False, seconds=0.0)],
            "104 static models in 1.1 minutes, of 119 asked for",
        ),
        ([*STATIC[1:], replace(STATIC[0], status="wrong")], "104 static models in 1.1 minutes, of 119 asked for"),
        ([replace(model, features=8) for model in STATIC], "of sage with 500 features"),
        ([*STATIC, artefact(1, seconds=0.5, nodes=99)], "14 dynamic and 106 static models"),
    ],
)
def test_any_other_models_have_no_total_but_are_counted_with_what_all_need(static, told):
    row = total([*DYNAMIC, *OTHERS, *static])
    assert row.status == "unavailable" and row.value is None and told in row.reason
    assert "params/full makes" in row.reason and "some 1.1 minutes at this rate" in row.reason
    assert "at this rate" not in total(DYNAMIC).reason


def test_the_time_of_a_model_has_a_sample_for_each_that_this_run_made_and_found_right():
    found = rows.export_times(
        [*DYNAMIC, *STATIC[:2], replace(STATIC[2], fresh=False), replace(STATIC[3], status="wrong")]
    )
    samples = found.set_index("form")["samples"]
    assert samples["onnx, dynamic"] == [1.0] * 7 and samples["openvino, static"] == [0.5] * 2
    assert "2 of 4" in found.set_index("form").loc["openvino, static", "notes"]
    (row,) = as_rows(rows.export_times([replace(STATIC[0], fresh=False)]), "exporter", "shapes")
    assert row.status == "unavailable" and "anew: true" in row.reason


def test_models_on_disk_are_counted_and_exact():
    counted = as_rows(rows.models(study.models([*DYNAMIC, replace(STATIC[0], status="wrong")])), "exporter", "shapes")
    found = {(row.keys["shapes"], row.form): row for row in counted if row.keys["exporter"] == "openvino"}
    assert found["static", "models"].value == 1 and found["static", "ready"].value == 0
    assert all((row.origin, row.interval, row.statistic) == ("counted", "exact", "count") for row in counted)


def test_statuses_are_counted_by_combination_with_the_largest_error_and_the_stages_that_are_off():
    judged = pd.DataFrame(
        [
            ("a: ONNX Runtime", ONNXRUNTIME, "1 GATHER", "right", 1e-7),
            ("a: ONNX Runtime", ONNXRUNTIME, "2 MESSAGE", "right", 3e-7),
            ("a: ONNX Runtime", ONNXRUNTIME, "3 REDUCE_SUM", "wrong", 0.9),
            ("b: OpenVINO", OPENVINO, "1 GATHER", "failed", np.nan),
        ],
        columns=["combination", "runtime", "stage", "status", "error"],
    )
    found = {(row.keys["combination"][0], row.form): row for row in as_rows(rows.correctness(judged), "combination")}
    assert [found["a", form].value for form in ("right", "wrong", "failed")] == [2, 1, 0]
    assert found["a", "right"].parity_error == 3e-7 and found["a", "wrong"].notes == ["in 3 REDUCE_SUM"]
    assert found["b", "failed"].value == 1 and found["b", "failed"].parity_error is None
    assert found["a", "right"].runtime.startswith("ONNX Runtime") and found["b", "right"].runtime.startswith("OpenVINO")
    assert {row.origin for row in found.values()} == {"counted"}


def test_waste_is_computed_and_never_measured():
    table = pd.DataFrame([{"policy": "powers", "size": "5/9", "bucket": "8/16", "waste": 40.0}])
    (row,) = as_rows(rows.waste(table), "size")
    assert (row.form, row.value, row.unit, row.notes) == ("powers", 40.0, "%", ["padded to 8/16"])
    assert (row.origin, row.interval) == ("counted", "exact")


def test_a_padding_race_is_over_dynamic_shapes_on_one_thread_whatever_torch_has():
    one = {"graph": "g", "size": "5/9", "under": Conditions(4, "highest"), "parity_error": 0.0, "notes": ""}
    ms = {"A/A": 1.0, "static, exact": 0.5}
    raced = pd.DataFrame([one | {"form": f, "rounds": np.array([[1.0, v]] * 12)} for f, v in ms.items()])
    found = rows.padding(raced).set_index("form")
    assert list(found.index) == ["dynamic shapes", "A/A", "static, exact"] and set(found["threads"]) == {1}
    assert found.loc["static, exact", "ratio"] == 2 and found.loc["static, exact", "baseline"] == "dynamic shapes"
    assert found["runtime"].str.startswith("OpenVINO").all()


def test_preparing_inputs_is_recorded_with_every_sample():
    table = study.preparation([(50, 90)], budget_s=0.01)
    found = rows.preparation(table).set_index("form")
    assert len(found.loc["sorted edges", "samples"]) == table.loc[0, "n"] and set(found["origin"]) == {"measured"}
