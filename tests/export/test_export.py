"""Exported models are right or say that they are not, and are made again exactly when something has changed."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused
from table_rows import as_rows

from gnnlab.export import checking, export, exporters
from gnnlab.export.artefacts import FAILED, WRONG, Artefact, of_block
from gnnlab.export.checking import ONNXRUNTIME, OPENVINO
from gnnlab.export.export import every_combination, export_all
from gnnlab.export.export import export as export_block
from gnnlab.openvino_core import openvino_core
from gnnlab.workloads.graphsage import gat, sage

pytestmark = pytest.mark.usefixtures("one_registry")
LAYER = sage(6)
SIZES = [(20, 40), (20, 60)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """What a campaign runs, exported once for all tests: the folder and the models."""
    folder = tmp_path_factory.mktemp("exported_models")
    return folder, export_all(LAYER, SIZES, folder, static_sums=True)


@pytest.fixture
def folder(exported, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(exported[0], tmp_path / "models")


def model_of(folder, first, exporter, nodes=None):
    """The model of one stage."""
    models = of_block(folder, "sage", 6, first, first, exporter)
    (model,) = [m for m in models if (m.nodes, m.edges) == (nodes, nodes and 3 * nodes)]
    return model


def test_a_campaign_gets_fourteen_dynamic_models_and_seven_static_ones_a_size_all_right(exported):
    models = exported[1]
    assert all(m.ready and m.parity_error <= 1e-5 for m in models), [m.reason for m in models]
    assert sum(m.dynamic and m.exporter in ("onnx", "openvino") for m in models) == 14
    assert sum(not m.dynamic for m in models) == 7 * len(SIZES)
    assert sorted({m.first for m in models if m.exporter == "handbuilt"}) == [3, 4]


def test_static_models_have_every_dimension_bounded_and_read_nothing_for_its_shape(exported):
    for made in [m for m in exported[1] if not m.dynamic]:
        model = openvino_core().read_model(made.path)
        assert not model.is_dynamic() and len(model.inputs) == len(made.reads) and not made.sized_by
    reduce = model_of(exported[0], 3, "openvino", 20)
    assert reduce.reads == ("messages", "edge_index") and reduce.size_bytes < 20_000


def test_dynamic_models_leave_open_the_width_of_what_is_read_for_its_rows_alone_and_get_one_column_of_it(exported):
    made = model_of(exported[0], 3, "openvino")
    assert made.reads == ("messages", "edge_index", "x") and made.sized_by == ("x",)
    model = openvino_core().read_model(made.path)
    assert {p.get_any_name(): str(p.get_partial_shape()) for p in model.inputs} == {
        "messages": "[?,6]", "edge_index": "[2,?]", "x": "[?,?]"
    }  # fmt: skip
    values = checking.check_graphs(LAYER)["large negative numbers only"]
    fed = checking.feed_for(made, LAYER, values).inputs(values)
    assert fed["x"].shape == (37, 1) and list(fed) == list(made.reads)


def test_what_is_unchanged_is_not_exported_again_unless_anew(folder, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(export, "_written", lambda *_: pytest.fail("exported again"))
        assert not any(model.fresh for model in export_all(LAYER, SIZES, folder, static_sums=True))
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    model = export_block(LAYER, 4, 4, exporter="handbuilt", folder=folder, anew=True)
    assert model.fresh and model.ready and model.path == folder / model.name / "model.xml"


@pytest.mark.parametrize("change", ["weights", "versions", "width"])
def test_a_change_of_what_a_model_is_made_from_exports_it_anew(folder, monkeypatch, change):
    def ask(layer=LAYER, stages=(3, 6)):
        return export_block(layer, *stages, exporter="handbuilt", folder=folder)

    first, layer = ask(), {"weights": sage(6, seed=1), "width": sage(7)}.get(change, LAYER)
    if change == "versions":
        monkeypatch.setattr(export.machine, "versions", lambda *_: {"torch": "another"})
    second = ask(layer)
    assert second.fresh and (second.path == first.path) == (change != "width")  # one model of each name
    assert not ask(layer).fresh and ask(layer, (4, 4)).fresh == (change != "weights")  # stage 4 has none


def test_the_legacy_exporter_is_caught_being_wrong_in_silence(tmp_path):
    made = export_block(LAYER, 3, 3, exporter="onnx-legacy", folder=tmp_path)
    assert made.status == WRONG and made.parity_error > 0.1 and "repeated targets" in made.reason
    right = export_block(LAYER, 3, 3, exporter="onnx-legacy", form="scatter_add", folder=tmp_path)
    assert right.ready


def test_a_model_that_cannot_be_converted_says_why_and_is_not_tried_again(tmp_path):
    asked = {"exporter": "openvino", "form": "index_add", "folder": tmp_path}
    made, again = export_block(LAYER, 4, 4, **asked), export_block(LAYER, 4, 4, **asked)
    static = export_block(LAYER, 4, 4, **asked, size=(5, 9))
    assert all(m.status == FAILED and "aten.index_add" in m.reason for m in (made, again, static))
    assert "\n" not in made.reason and made.path is None and not made.size_bytes and not again.fresh


def test_a_wrong_converter_is_caught_on_the_graph_that_shows_it(tmp_path, monkeypatch):
    """A maximum that starts at zero: right on the first graph, wrong on negative numbers."""

    def positive(block, example, folder):
        class Positive(type(block)):
            def forward(self, *tensors):
                return tuple(t.abs() for t in super().forward(*tensors))

        block.__class__ = Positive
        exporters.onnx_dynamo(block, example, folder)

    (usual, values), *others = checking.check_graphs(LAYER).items()
    graphs = {usual: {k: np.abs(v) for k, v in values.items()}, **dict(others)}
    monkeypatch.setattr(checking, "check_graphs", lambda *_: graphs)
    monkeypatch.setitem(exporters.TRACING, "onnx", positive)
    made = export_block(LAYER, 2, 2, exporter="onnx", folder=tmp_path)
    assert made.status == WRONG and "large negative numbers only" in made.reason


def test_converting_reports_nothing_over_the_network_and_leaves_the_environment_alone(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with exporters.quiet():
        assert os.environ["CI"] == "true"
    assert "CI" not in os.environ


def test_a_gat_layer_exports_too_its_maxima_right_on_negative_scores(tmp_path):
    layer = gat(5, heads=2, channels=3)
    made = export_block(layer, 4, 4, exporter="onnx", folder=tmp_path)
    assert made.ready, made.reason
    assert export_block(layer, 4, 4, exporter="openvino-onnx", folder=tmp_path, size=(9, 20)).ready
    without_maxima = export_block(layer, 4, 4, exporter="openvino", folder=tmp_path)
    assert without_maxima.ready or "scatter_reduce" in without_maxima.reason


def test_checks_use_another_graph_than_the_traced_one_with_all_that_is_awkward():
    usual, negative = checking.check_graphs(LAYER).values()
    nodes, edges = usual["x"].shape[0], usual["edge_index"].shape[1]
    degree = np.bincount(usual["edge_index"][1], minlength=nodes)
    assert (nodes, edges) != export.TRACED and degree.max() > 1 and degree.min() == 0 == degree[-1]
    assert all((negative[name] < 0).all() for name in ("x", "x_j", "messages", "sums", "means", "hidden"))
    static, _ = checking.check_graphs(LAYER, (20, 60)).values()
    assert static["x"].shape[0] < 20 and static["edge_index"].shape[1] < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exporter": "tflite"}, "exporter 'tflite' is not known; one of onnx, openvino"),
        ({"exporter": "onnx", "form": "bag"}, "no form 'bag'; one of index_add, scatter_add"),
        ({"exporter": "onnx", "size": (5, 5)}, "can be static"),
        ({"exporter": "openvino", "size": (0, 5)}, "from 1 node, 1 edge"),
        ({"exporter": "onnx", "last": 9}, "no block of stages 3..9"),
    ],
)
def test_what_there_is_not_is_refused_in_one_line_before_anything_is_made(options, message, tmp_path):
    with refused(message):
        export_block(LAYER, 3, options.pop("last", 3), folder=tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_a_model_on_one_graph_gives_the_layers_result_padded_or_not(folder):
    values = checking.check_graphs(LAYER)["repeated targets and isolated nodes"]
    for size in (None, (40, 100)):
        out = export.on_graph(LAYER, values, folder, size)()
        np.testing.assert_allclose(out, values["out"], rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    few = [("handbuilt", "bag", OPENVINO), ("openvino", "index_add", OPENVINO)]
    few += [("onnx-legacy", "index_add", runtime) for runtime in (ONNXRUNTIME, OPENVINO)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "COMBINATIONS", few)
        return every_combination(LAYER, tmp_path_factory.mktemp("models"), blocks=[(3, 3), (1, 5)])


def test_every_combination_says_what_is_wrong_where_sums_are_and_what_cannot_be_converted(judged):
    wrong = judged[judged["status"] == "failed"]
    assert set(wrong["form"]) == {f"onnx-legacy, index_add: {runtime}" for runtime in (ONNXRUNTIME, OPENVINO)}
    assert set(wrong["stage"]) == {"3 REDUCE_SUM", "4 REDUCE_COUNT", "1-5"} and (wrong["parity_error"] > 0.1).all()
    assert (judged[judged["status"] == "ok"]["value"] <= 1e-5).all()
    unavailable = judged[judged["status"] == "unavailable"]
    assert set(unavailable["form"]) == {"openvino, index_add: OpenVINO"} and unavailable["value"].isna().all()
    assert unavailable["reason"].str.contains("aten.index_add").all()
    stages = judged.groupby("form")["stage"].agg(list)  # what an exporter does not offer has no row
    assert stages["handbuilt, bag: OpenVINO"] == ["3 REDUCE_SUM", "4 REDUCE_COUNT", "1-5"]


def test_the_conclusion_names_what_is_right_what_is_wrong_and_what_is_refused(judged):
    right, wrong, unavailable = export.in_words(judged)
    at = "with index_add (stages 3 REDUCE_SUM, 4 REDUCE_COUNT, 1-5)"
    assert right == "**Right at every stage, in every runtime that reads it:** handbuilt with bag."
    assert wrong.startswith(f"**Wrong, without an error:** onnx-legacy {at}, off by up to")
    assert unavailable == f"**Cannot be converted or loaded:** openvino {at}."
    assert export.in_words(judged[judged["status"] == "ok"])[1:] == []


# ---- what was exported, as rows --------------------------------------------------------------------------------------


def artefact(number, exporter="openvino", seconds=1.0, nodes=None, last=None, **changes):
    place = ("sage", 500, number, last or number, exporter, "plain", nodes, nodes)
    return replace(Artefact(*place, ("x",), ("out",), seconds=seconds), **changes)


DYNAMIC = [artefact(n, exporter) for n in range(1, 8) for exporter in ("onnx", "openvino")]
STATIC = [artefact(n, seconds=0.5, nodes=size) for size in range(1, 16) for n in range(1, 8)]
OTHERS = [artefact(n, "handbuilt", seconds=1e6) for n in (3, 4)] + [artefact(1, "onnx", seconds=1e6, last=5)]


def total(artefacts):
    (row,) = as_rows(export.inventory(artefacts)[2])
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
    ids=["fewer", "one there before", "one wrong", "another width", "more"],
)
def test_a_total_of_other_models_has_no_number_and_says_what_it_would_take(static, made):
    row = total([*DYNAMIC, *static])
    assert row.status == "unavailable" and row.value is None
    assert made in row.reason and "params/full makes" in row.reason


def test_the_time_of_a_model_has_a_sample_for_each_that_this_run_made_and_found_right():
    static = [*STATIC[:2], replace(STATIC[2], seconds=0.0), replace(STATIC[3], status="wrong")]
    times = export.inventory([*DYNAMIC, *static])[1].set_index("form")
    assert times.loc["onnx, dynamic", "samples"] == [1.0] * 7 and times.loc["openvino, static", "samples"] == [0.5] * 2
    assert "2 of 4" in times.loc["openvino, static", "notes"]
    (row,) = as_rows(export.inventory([replace(STATIC[0], seconds=0.0)])[1], "exporter", "shapes")
    assert row.status == "unavailable" and "anew: true" in row.reason


def test_models_on_disk_are_counted_exactly(tmp_path):
    written = [replace(model, path=tmp_path / "one", size_bytes=2**20) for model in STATIC[:3]]
    counted = as_rows(
        export.inventory([*DYNAMIC, *written, replace(STATIC[3], status="wrong")])[0], "exporter", "shapes"
    )
    numbers = {row.form: row.value for row in counted if row.keys == {"exporter": "openvino", "shapes": "static"}}
    assert numbers == {"models": 4, "ready": 3, "size on disk": 3}
    assert all((row.origin, row.interval, row.statistic) == ("counted", "exact", "count") for row in counted)
