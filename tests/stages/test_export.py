"""Exported models are right or say that they are not; what is on disk is whole, or it is exported again."""

import os
import resource
import shutil
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refusals import refused

from gnnlab.errors import Unavailable
from gnnlab.openvino_core import openvino_core
from gnnlab.stages import converters
from gnnlab.stages import export as exporting
from gnnlab.stages.export import FAILED, WRONG, check_graphs, correctness_map, export, export_all, find, model_for
from gnnlab.stages.padding import InputAdapter
from gnnlab.workloads.graphsage import sage
from gnnlab.workloads.staged import Step

pytestmark = pytest.mark.usefixtures("one_registry")
LAYER = sage(6)
SIZES = [(20, 40), (20, 60)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """What a sweep measures, exported once for all tests: the folder and the models."""
    folder = tmp_path_factory.mktemp("exported_models")
    return folder, export_all(LAYER, SIZES, folder, static_sums=True)


@pytest.fixture
def folder(exported, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(exported[0], tmp_path / "models")


def test_a_sweep_gets_fourteen_dynamic_models_and_seven_static_ones_a_size_all_right(exported):
    models = exported[1]
    assert all(model.ready and model.parity_error <= 1e-5 for model in models), [model.reason for model in models]
    assert sum(model.dynamic and model.exporter in ("onnx", "openvino") for model in models) == 14
    assert sum(not model.dynamic for model in models) == 7 * len(SIZES)
    assert [model.first for model in models if model.exporter == "handbuilt"] == [3, 4]


def test_onnx_sums_by_scatter_add_which_onnx_runtime_does_not_add_from_several_threads(exported):
    """index_add becomes ScatterND: onnxruntime #23396, #18048."""
    import onnx

    for model in [model for model in exported[1] if model.exporter == "onnx" and model.first in (3, 4)]:
        operators = {node.op_type for node in onnx.load(model.path).graph.node}
        assert model.layout == "scatter_add" and "ScatterElements" in operators and "ScatterND" not in operators


def test_static_models_have_every_dimension_fixed_and_read_nothing_for_its_shape(exported):
    for made in [model for model in exported[1] if not model.dynamic]:
        model = openvino_core().read_model(made.path)
        assert not model.is_dynamic() and len(model.inputs) == len(made.reads) and not made.sized_by


def test_dynamic_models_take_one_column_of_what_is_read_for_its_rows_alone(exported):
    (made,) = find(exported[0], "sage", 6, 3, 3, "onnx")
    given = InputAdapter(LAYER, made, 37, 90).inputs(check_graphs(LAYER)["large negative numbers only"])
    assert made.sized_by == ("x",) and list(given) == ["messages", "edge_index", "x"] and given["x"].shape == (37, 1)


def test_an_unchanged_model_is_not_exported_again_unless_forced(folder, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "convert", lambda *_: pytest.fail("exported again"))
        assert not any(model.seconds for model in export_all(LAYER, SIZES, folder, static_sums=True))
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert export(LAYER, 4, 4, exporter="handbuilt", folder=folder, force=True).seconds > 0


@pytest.mark.parametrize("change", ["weights", "versions"])
def test_a_model_made_from_something_else_is_exported_again(folder, monkeypatch, change):
    layer = sage(6, seed=1) if change == "weights" else LAYER
    if change == "versions":
        monkeypatch.setattr(exporting.machine, "versions", lambda *_: {"torch": "another"})
    made = [export(layer, 6, 6, exporter="openvino", folder=folder) for _ in range(2)]
    assert made[0].ready and made[0].seconds > 0 == made[1].seconds
    assert len(find(folder, "sage", 6, 6, 6, "openvino")) == 1 + len(SIZES)


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "deleted": lambda path: path.unlink(),
    "another": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", ["model.xml", "model.bin", "check.json"])
def test_a_damaged_model_is_not_found_and_exported_again_alone(folder, name, damage):
    place = export(LAYER, 6, 6, exporter="openvino", folder=folder, size=SIZES[0]).path.parent
    damage(place / name)
    assert SIZES[0] not in [model.size for model in find(folder, "sage", 6, 6, 6, "openvino")]
    again = export_all(LAYER, SIZES, folder, static_sums=True)
    assert [model.name for model in again if model.seconds] == [place.relative_to(folder).as_posix()]
    assert all(model.ready for model in again)


@pytest.mark.parametrize(("exporter", "file"), [("onnx", "model.onnx"), ("handbuilt", "model.xml")])
def test_a_full_disk_is_no_failure_of_the_model_and_nothing_is_kept(exporter, file, tmp_path):
    """OpenVINO says RuntimeError: basic_ios::clear."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))  # bytes of a file
    try:
        with refused(rf"could not write .*{file}.*nothing was kept"):
            export(LAYER, 3, 3, exporter=exporter, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert export(LAYER, 3, 3, exporter=exporter, folder=tmp_path).ready


def test_no_memory_is_no_failure_of_the_model(tmp_path, monkeypatch):
    monkeypatch.setitem(converters.EXPORTERS, "onnx", lambda *_: [0] * 2**62)
    with pytest.raises(MemoryError):
        export(LAYER, 2, 2, exporter="onnx", folder=tmp_path)


def test_what_cannot_be_converted_says_why_and_is_tried_again(tmp_path):
    asked = {"exporter": "openvino", "layout": "index_add", "folder": tmp_path}
    for made in (export(LAYER, 4, 4, **asked), export(LAYER, 4, 4, **asked, size=(5, 9))):
        assert made.status == FAILED and "aten.index_add" in made.reason and "\n" not in made.reason
        assert made.path is None and not made.size_bytes
    assert not list(tmp_path.rglob("check.json"))


def test_a_failure_takes_the_place_of_what_was_made_from_something_else(folder, monkeypatch):
    monkeypatch.setitem(converters.EXPORTERS, "onnx", lambda *_: 1 / 0)
    assert export(sage(6, seed=1), 6, 6, exporter="onnx", folder=folder).status == FAILED
    assert not find(folder, "sage", 6, 6, 6, "onnx")


def test_the_legacy_exporter_is_caught_being_wrong_in_silence(tmp_path):
    made = export(LAYER, 3, 3, exporter="onnx-legacy", layout="index_add", folder=tmp_path)
    assert made.status == WRONG and made.parity_error > 0.1 and "repeated targets" in made.reason
    assert made.path.exists() and not find(tmp_path, "sage", 6, 3, 3, "onnx-legacy")


def test_a_wrong_converter_is_caught_on_the_graph_that_shows_it(tmp_path, monkeypatch):
    """A message that is right on positive numbers, wrong on negative ones."""
    gather, message, *others = LAYER.stages
    wrong = replace(LAYER, stages=(gather, replace(message, module=Step(torch.abs)), *others))
    usual, negative = check_graphs(LAYER).values()
    graphs = {"positive": {name: np.abs(value) for name, value in usual.items()}, "negative": negative}
    monkeypatch.setattr(exporting, "check_graphs", lambda *_: graphs)
    monkeypatch.setattr(exporting, "convert", lambda _, *given: converters.convert(wrong, *given))
    made = export(LAYER, 2, 2, exporter="onnx", folder=tmp_path)
    assert made.status == WRONG and made.reason.endswith("on a graph with negative")


def test_a_model_nearer_to_the_exact_sum_than_torch_is_right(exported, monkeypatch):
    (made,) = find(exported[0], "sage", 6, 3, 3, "onnx")
    star = torch.ones(2, 300_000, dtype=torch.int64)
    values = {name: value.numpy() for name, value in LAYER.trace(torch.full((2, 6), 0.1), star).items()}
    exact = np.zeros_like(values["sums"], dtype=np.float64)
    np.add.at(exact, star[1].numpy(), values["messages"].astype(np.float64))
    assert np.abs(values["sums"] - exact).max() > 1e-5 * exact.max()  # torch's own rounding
    monkeypatch.setattr(exporting, "check_graphs", lambda *_: {"a star": values})
    right = SimpleNamespace(run=lambda values: {"sums": exact.astype(np.float32)})
    monkeypatch.setattr(exporting.runtimes.OnnxRuntimeDevice, "load", lambda *_, **__: right)
    assert exporting.check(made, made.path, LAYER).ready


def test_checks_use_another_graph_than_the_traced_one_with_all_that_is_awkward():
    usual, negative = check_graphs(LAYER).values()
    nodes, edges = usual["x"].shape[0], usual["edge_index"].shape[1]
    degree = np.bincount(usual["edge_index"][1], minlength=nodes)
    assert (nodes, edges) != converters.TRACED and degree.max() > 1 and degree.min() == 0 == degree[-1]
    assert all((negative[name] < 0).all() for name in ("x", "x_j", "messages", "sums", "means", "hidden"))
    padded, _ = check_graphs(LAYER, (20, 60)).values()
    assert padded["x"].shape[0] < 20 and padded["edge_index"].shape[1] < 60


def test_converting_reports_nothing_over_the_network_and_leaves_the_environment_alone(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with converters.silence_logs():
        assert os.environ["CI"] == "true"
        warnings.warn("not shown", stacklevel=1)
    assert "CI" not in os.environ


@pytest.mark.parametrize(
    ("message", "options"),
    {
        "exporter 'tflite' is not known; one of onnx, openvino": {"exporter": "tflite"},
        "no layout 'segment_sum'; one of scatter_add, index_add": {"exporter": "onnx", "layout": "segment_sum"},
        "alone can be static": {"exporter": "onnx", "size": (5, 5)},
        "from 1 node, 1 edge": {"exporter": "openvino", "size": (0, 5)},
        "no block of stages 3..9": {"exporter": "onnx", "last": 9},
    }.items(),
)
def test_what_there_is_not_is_refused_in_one_line_before_anything_is_made(message, options, tmp_path):
    with refused(message):
        export(LAYER, 3, **{"last": 3, "folder": tmp_path, **options})
    assert not list(tmp_path.iterdir())


def test_a_device_gets_the_model_of_its_exporter_layout_and_shapes_that_holds_the_graph(exported, folder):
    def given(exporter, size=(20, 40), layout=None, static_shapes=False, stage=3, models=folder):
        device = SimpleNamespace(name="a:b", exporter=exporter, layout=layout, static_shapes=static_shapes)
        config = {"layer": "sage", "features": 6, "first": stage, "last": stage, "nodes": size[0], "edges": size[1]}
        return model_for(device, SimpleNamespace(**config), models)

    export(LAYER, 3, 3, exporter="onnx", layout="index_add", folder=folder)
    assert given("openvino").dynamic and given(None, models=None) is None is given("handbuilt", stage=6)
    assert given("onnx").layout == "scatter_add" and given("onnx", layout="index_add").layout == "index_add"
    held = {(20, 40): (20, 40), (20, 60): (20, 60), (19, 39): (20, 40), (20, 50): None, (21, 40): None}
    for size, expected in held.items():
        model = given("openvino", size, static_shapes=True)
        assert (model and model.size) == expected
    with pytest.raises(Unavailable, match="a:b runs exported models"):
        given("openvino", models=None)


def test_the_correctness_map_says_what_is_wrong_where_sums_are_and_what_cannot_be_converted(folder, monkeypatch):
    monkeypatch.setitem(exporting.LAYOUTS, "onnx", ("scatter_add",))  # which is there already
    found = correctness_map(LAYER, folder)
    sums = found["stage"].isin(["3 REDUCE_SUM", "4 REDUCE_COUNT"])
    assert (found[~sums]["status"] == "ok").all() and not found[~sums]["variant"].str.contains("handbuilt").any()
    worst = found[sums].groupby("variant")["status"].unique().str.join("")
    assert dict(worst[worst != "ok"]) == {
        "onnx-legacy, index_add: ONNX Runtime": "failed",
        "onnx-legacy, index_add: OpenVINO": "failed",
        "openvino, index_add: OpenVINO": "unavailable",
    }
    assert worst["handbuilt, segment_sum: OpenVINO"] == "ok" == worst["onnx, scatter_add: ONNX Runtime"]
