from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.campaign.cells import Cell, Settings, measure, model_for, values_of
from gnnlab.child import Worker
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.export.export import export
from gnnlab.units import onnxruntime_units, openvino_units, torch_units
from gnnlab.units import registry as units
from gnnlab.units.openvino_units import OpenVINOUnit
from gnnlab.units.torch_units import fast_block, prepare
from gnnlab.units.unit import Availability, require_artefact
from gnnlab.workloads.graphsage import sage

FEATURES = 6
STATIC = OpenVINOUnit("static:CPU", "CPU", "openvino", "openvino", static_shapes=True)  # stands for an NPU
QUICK = Settings(budget_s=0.01)
RUNS = {"threads": 1, "precision": "float32"}


@pytest.fixture(scope="module")
def models(tmp_path_factory, one_registry):
    """Stage 3 and the blocks 1-5 and 1-7 by all exporters, and stages 1, 3 and 6 of static sizes."""
    folder, layer = tmp_path_factory.mktemp("models"), sage(FEATURES)
    for block in ((3, 3), (1, 5), (1, 7)):
        for exporter in ("onnx", "openvino", "handbuilt"):
            export(layer, *block, exporter=exporter, folder=folder)
    for size in ((20, 64), (40, 64), (12, 30)):
        for block in ((1, 1), (6, 6), (3, 3)):
            export(layer, *block, exporter="openvino", folder=folder, size=size)
    return str(folder)


def cell(unit, first, last, nodes=11, edges=30):
    return Cell("sage", FEATURES, nodes, edges, first, last, unit)


@pytest.mark.parametrize("unit", ["openvino:CPU", "openvino-handbuilt:CPU", "onnxruntime:CPU", "torch:CPU", "fast:CPU"])
@pytest.mark.parametrize("block", [(3, 3), (1, 5), (1, 7)])
def test_every_unit_of_a_cpu_measures_a_block_that_computes_the_same(models, unit, block):
    outcome = measure(cell(unit, *block), replace(QUICK, models=models))
    assert outcome.status == "measured", outcome.reason
    assert outcome.parity_error <= 1e-5 and outcome.precision == "float32"


def test_without_a_library_or_sums_a_unit_says_so(models, monkeypatch):
    outcome = measure(cell("openvino-handbuilt:CPU", 6, 6), replace(QUICK, models=models))
    assert outcome.status == "unavailable" and outcome.reason.startswith("without a sum over neighbours")
    text = 'Exception from core.cpp:268:\nCannot load library "/a b/plugin.so": /x/y/libOpenCL.so.1: cannot open it\n'
    assert openvino_units._missing_library(RuntimeError(text)) == "libOpenCL.so.1: cannot open it"
    monkeypatch.setattr(onnxruntime_units, "find_spec", lambda name: None)
    (unit,) = onnxruntime_units.installed()
    assert unit.probe() == Availability(False, "onnxruntime is not installed", "pip install 'gnnlab[export]'")


def test_a_loaded_block_runs_on_graph_after_graph(models):
    """Inputs are bound where they lie: another graph of another content, and then of another size, must be seen."""
    for name in ("openvino:CPU", "openvino-handbuilt:CPU", "onnxruntime:CPU", "fast:CPU", "torch:CPU"):
        unit, layer = units.find(name), sage(FEATURES)
        for nodes, edges in ((11, 30), (300, 5000), (11, 30)):
            wanted = cell(name, 1, 5, nodes, edges)
            artefact = model_for(unit, wanted, models)
            loaded = unit.load(layer, 1, 5, artefact, nodes=nodes, edges=edges, **RUNS)
            values = {k: v.copy() for k, v in values_of(wanted).items()}
            for _ in range(3):
                means = loaded.run(values)["means"]
                np.testing.assert_allclose(means, values["means"], atol=1e-5)
                values["x"], values["means"] = values["x"] * 2, values["means"] * 2
            turned = {"x": values["x"], "edge_index": values["edge_index"][::-1].copy()}
            means = layer.trace(**{k: torch.from_numpy(v) for k, v in turned.items()})["means"]
            np.testing.assert_allclose(loaded.run(turned)["means"], means, atol=1e-4)
            loaded.close()


SIZES = [(12, 30, (12, 30)), (11, 31, (20, 64)), (11, 29, (12, 30)), (33, 64, (40, 64)), (12, 29, (20, 64))]


@pytest.mark.parametrize(("nodes", "edges", "taken"), SIZES)
@pytest.mark.parametrize("block", [(1, 1), (3, 3), (6, 6)])
def test_static_models_serve_smaller_graphs_padded_and_cropped(models, block, nodes, edges, taken):
    wanted = cell("static:CPU", *block, nodes, edges)
    artefact = model_for(STATIC, wanted, models)
    assert (artefact.nodes, artefact.edges) == taken
    loaded = STATIC.load(sage(FEATURES), *block, artefact, nodes=nodes, edges=edges, **RUNS)
    values = values_of(wanted)
    for name, array in loaded.run(values).items():
        np.testing.assert_allclose(array, values[name], atol=1e-5)


def test_models_of_too_small_a_size_another_width_or_wrong_ones_are_not_run(models):
    for nodes, edges in ((41, 64), (11, 65), (40, 63)):
        assert model_for(STATIC, cell("static:CPU", 1, 1, nodes, edges), models) is None
    with pytest.raises(Unavailable, match="no model of stage 1 by the exporter openvino; export it first"):
        require_artefact(STATIC, None, 1, 1)
    unit = units.find("onnxruntime:CPU")
    good = model_for(unit, cell(unit.name, 3, 3), models)
    assert good.ready and model_for(unit, replace(cell(unit.name, 3, 3), features=7), models) is None
    assert model_for(unit, cell(unit.name, 3, 3), f"{models}/elsewhere") is None
    with pytest.raises(Unavailable, match="exported model of stage 3 is wrong: far off"):
        require_artefact(unit, replace(good, status="wrong", reason="far off"), 3, 3)


@st.composite
def blocks_and_graphs(draw):
    first = draw(st.integers(1, 3))
    last = draw(st.integers(3, 7))
    nodes = draw(st.integers(1, 9))
    pairs = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), min_size=1, max_size=25))
    return first, last, nodes, torch.tensor(pairs).t().contiguous()


@settings(max_examples=80)
@given(blocks_and_graphs())
def test_fast_blocks_give_what_the_stages_give(case):
    first, last, nodes, edge_index = case
    layer = sage(3)
    values = layer.trace(torch.randn(nodes, 3), edge_index)
    block = layer.block(first, last)
    given = {name: values[name] for name in block.reads if name != "edge_index"}
    results = fast_block(layer, block)(given, prepare(edge_index, nodes))
    assert set(results) == set(block.writes)
    for name in block.writes:
        torch.testing.assert_close(results[name], values[name])


def test_every_block_is_compiled_once_for_all_sizes_however_many_there_are(monkeypatch):
    forms, compile_ = [], torch.compile

    def backend(graph, example):
        forms.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda block, **how: compile_(block, backend=backend, **how))
    monkeypatch.setattr(torch_units, "_COMPILED", {})
    torch._dynamo.reset()
    blocks = [(first, last) for first in range(1, 5) for last in range(first, 6)]  # 14: torch keeps 8 of one code
    for size in ((11, 30), (9, 50)):  # compiled once for all sizes
        for block in blocks:
            assert measure(cell("torch-compiled:CPU", *block, *size), QUICK).status == "measured"
        assert len(forms) == len(blocks)


def test_npus_compute_in_float16_whatever_is_asked_and_others_only_in_what_they_have():
    assert units.find("openvino:NPU").computes_in("float32") == "float16"
    assert units.find("torch:CPU").computes_in("bfloat16") == "bfloat16"
    with pytest.raises(Unavailable, match="onnxruntime:CPU computes in float32, not in float16"):
        units.find("onnxruntime:CPU").computes_in("float16")


def test_units_are_found_by_name_that_says_runtime_and_processor_and_ones_own_by_module_and_factory():
    assert units.find("openvino:NPU").static_shapes and units.find("fake_units:behaves").name == "fake"
    for name in ("openvino:TPU", "fake_units:no", "no_such_module:x", "os:getcwd", ":", "", "fake_units"):
        with pytest.raises(GnnlabError, match="is not known; one of openvino:CPU"):
            units.find(name)
    for name, unit in units.all_units().items():
        assert name == unit.name and unit.processor in ("CPU", "GPU", "NPU")
        assert unit.origin == ("simulated" if name.startswith("simulated:") else "measured")
        assert (unit.processor == "NPU") == unit.static_shapes


def test_probing_tries_the_cpu_and_says_of_missing_devices_why_and_what_to_install():
    here = ["openvino:CPU", "onnxruntime:CPU", "torch:CPU"]
    for name, tried in units.probe([*here, "openvino:GPU", "openvino:NPU", "torch:CUDA"]).items():
        assert (tried.usable and tried.device and tried.version) or (name not in here and tried.why and tried.remedy)


def test_providers_become_units_of_their_processor_and_a_service_on_the_network_does_not(monkeypatch):
    names = ["AzureExecutionProvider", "CUDAExecutionProvider", "QNNExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: names)
    processors = {unit.name: unit.processor for unit in onnxruntime_units.installed()}
    assert processors == {"onnxruntime:CPU": "CPU", "onnxruntime:CUDA": "GPU", "onnxruntime:QNN": "NPU"}


def test_a_unit_that_cannot_even_be_tried_is_not_usable_and_says_why():
    with Worker() as worker:
        for unit, limit_s, why in (
            ("raises", 60, "RuntimeError: the plugin says no"),
            ("is_not_there", 60, "unit 'fake_units:is_not_there' is not known"),
            ("hangs", 0.5, "no answer within 0.5 s"),
        ):
            tried = units.probe_by(worker, f"fake_units:{unit}", limit_s)
            assert not tried.usable and tried.why.startswith(why)
        assert units.probe_by(worker, "fake_units:behaves").usable
