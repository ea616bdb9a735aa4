"""The matrix finds what is wrong, and what is said follows from the numbers."""

import pandas as pd
import pytest

from gnnlab.stages.export import study
from gnnlab.stages.export import study_reading as reading
from gnnlab.stages.export.artefacts import Artefact
from gnnlab.stages.export.checking import ONNXRUNTIME, OPENVINO
from gnnlab.stages.export.graph_inputs import DENSE_NODES
from gnnlab.workloads import graphs
from gnnlab.workloads.graphsage import sage

LAYER = sage(6)
QUICK = [
    ("handbuilt", "bag", OPENVINO),
    ("handbuilt", "dense", OPENVINO),
    ("onnx-legacy", "index_add", ONNXRUNTIME),
    ("onnx-legacy", "index_add", OPENVINO),
]


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    return study.matrix(LAYER, tmp_path_factory.mktemp("models"), blocks=[(1, 5)], combinations=QUICK)


def test_the_matrix_catches_the_silent_error_where_sums_are_and_nowhere_else(judged):
    wrong = judged[judged["status"] == "wrong"]
    assert set(wrong["exporter"]) == {"onnx-legacy"}
    assert set(wrong["stage"]) == {"3 REDUCE_SUM", "4 REDUCE_COUNT", "1-5"} and set(wrong["runtime"]) == {
        OPENVINO,
        ONNXRUNTIME,
    }
    assert (judged[judged["status"] == "right"]["error"] <= 1e-5).all()


def test_what_an_exporter_does_not_offer_has_no_row(judged):
    assert list(judged[judged["form"] == "bag"]["stage"]) == ["3 REDUCE_SUM", "4 REDUCE_COUNT", "1-5"]
    assert list(judged[judged["form"] == "dense"]["stage"]) == ["4 REDUCE_COUNT", "1-5"]
    assert len(judged[judged["combination"] == "onnx-legacy, index_add: OpenVINO"]) == 8


def test_the_matrix_is_read_as_it_is(judged):
    assert reading.matrix_title(judged) == "onnx-legacy with index_add is wrong in silence, 6 times of 21; none fails"
    said = reading.matrix(judged)
    assert "wrong in 3 REDUCE_SUM: off by" in said
    assert "Right wherever it is offered: handbuilt, bag: OpenVINO and handbuilt, dense: OpenVINO;" in said
    assert "15 right, 6 wrong, 0 failed of 21" in reading.matrix_alt(judged)
    counts = reading.statuses(judged).set_index("combination")
    assert tuple(counts.loc["onnx-legacy, index_add: ONNX Runtime"]) == (5, 3, 0)


def test_where_nothing_is_wrong_the_title_says_so(judged):
    right = judged[judged["status"] == "right"]
    assert reading.matrix_title(right) == "No exported model computes something else than torch; none fails"
    failed = right.assign(status="failed", reason="no rule")
    assert "21 others fail" not in reading.matrix_title(failed) and "15 others fail" in reading.matrix_title(failed)
    assert "fails in 3 REDUCE_SUM: no rule" in reading.matrix(pd.concat([right, failed.iloc[:1]]))


def test_waste_is_the_share_of_the_buckets_bytes_that_no_graph_is_in():
    table = study.waste(LAYER, [(1000, 1000), (1797, 24_678)]).set_index(["policy", "size"])
    assert (table.loc["exact", "waste"] == 0).all()
    own = sum(LAYER.bytes_moved(n, 1797, 24_678) for n in LAYER.numbers)
    wide = sum(LAYER.bytes_moved(n, 2048, 32_768) for n in LAYER.numbers)
    assert table.loc[("powers", "1797/24678"), "waste"] == pytest.approx(100 * (1 - own / wide))
    assert table.loc[("powers", "1797/24678"), "bucket"] == "2048/32768"
    flat = table.reset_index()
    assert "at worst (1797/24678 in 2048/32768)" in reading.waste(flat)
    assert reading.waste_title(flat).startswith("Of the bytes moved, padding is")


def test_a_real_graph_runs_padded_and_gives_the_same(tmp_path):
    table = study.padding_race("sage", graphs.load("digits"), tmp_path, budget_s=0.05).set_index("form")
    assert table.loc["static, exact", "bucket"] == table.loc["baseline", "bucket"] == "1797/24678"
    assert table.loc["static, powers", "bucket"] == "2048/32768"
    assert (table["parity_error"].dropna() <= 1e-5).all() and len(table["parity_error"].dropna()) >= 3
    said = reading.padding(table.reset_index())
    assert "On digits (1797/24678) the dynamic model takes" in said and "static, powers (2048/32768)" in said
    assert "times as fast" in reading.padding_title(table.reset_index())


def test_a_race_without_a_difference_says_so():
    rows = [
        {"form": "baseline", "graph": "g", "size": "2/3", "ms": 1.0, "ratio": 1.0},
        {"form": "static, exact", "ratio": 1.01, "ci_low": 0.9, "ci_high": 1.1, "parity_error": 0.0, "bucket": "2/3"},
        {"form": "static, powers", "ratio": 0.5, "ci_low": 0.4, "ci_high": 0.6, "parity_error": 0.0, "bucket": "4/4"},
    ]
    said = reading.padding(pd.DataFrame(rows))
    assert "static, exact (2/3) shows no difference; static, powers (4/4) is 0.5 times as fast (0.4 to 0.6)" in said


def test_a_matrix_too_large_to_be_dense_is_left_out_of_what_is_prepared():
    table = study.preparation([(50, 90), (DENSE_NODES + 1, 90)], budget_s=0.01)
    assert list(table["input"]) == ["sorted edges", "adjacency matrix", "sorted edges"]
    assert (table["ms_low"] <= table["ms"]).all() and (table["n"] >= 6).all()
    assert "adjacency" not in reading.preparation(table)


def test_the_stages_table_has_the_studys_bytes_and_the_cuts():
    table = study.stages(sage(500), 1000, 10_000)
    assert table.loc[1, "KiB"] == round(8 * 10_000 * 500 / 1024, 1)
    assert table.loc[1, "cut KiB"] == round((4 * 10_000 * 500 + 4 * 1000 * 500 + 16 * 10_000) / 1024, 1)
    said = reading.stages(sage(500), 1000, 10_000)
    assert (
        "cheapest cut is behind stage 6" in said and "dearest behind stage 1" in said and "edge_index and x_j" in said
    )


def artefact(number, exporter="onnx", seconds=1.0, nodes=None, status="ready", path=None):
    place = {"layer": "sage", "features": 6, "first": number, "last": number, "nodes": nodes, "edges": nodes}
    made = {"exporter": exporter, "form": "plain", "reads": ("x",), "writes": ("out",), "path": path}
    return Artefact(key=f"{number}{exporter}", seconds=seconds, status=status, **place, **made)


def test_models_are_counted_once_by_file(tmp_path):
    paths = [tmp_path / "a", tmp_path / "a", tmp_path / "b"]
    made = [artefact(5, "openvino", nodes=n, path=p) for n, p in enumerate(paths, 1)]
    table = study.models(made)
    assert tuple(table.loc[0, ["models", "files", "ready", "made", "seconds"]]) == (3, 2, 3, 0, 0)
    assert "which share 2 files" in reading.models(table) and "all are right" in reading.models(table)


def test_titles_of_export_times_follow_the_numbers():
    times = pd.DataFrame({"form": ["a", "b"], "value": [0.25, 2.0]})
    assert reading.times_title(times) == "A model takes 0.25 s (a) to 2 s (b)"
    assert reading.times_title(times.assign(value=None)).startswith("No model was exported by this run")
