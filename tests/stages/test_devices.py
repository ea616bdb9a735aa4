"""Every device computes what torch's block computes, refuses what it gets wrong, and costs only itself."""

import re
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.errors import Unavailable
from gnnlab.measure.conditions import Conditions
from gnnlab.stages import devices, runtimes, torch_devices
from gnnlab.stages.devices import Availability
from gnnlab.stages.export import export, model_for
from gnnlab.stages.measure import Config
from gnnlab.stages.runtimes import OpenVINODevice
from gnnlab.stages.torch_devices import CudaDevice, TorchDevice, fast_block
from gnnlab.workloads.graphsage import random_inputs, sage

FEATURES = 6
LAYER = sage(FEATURES)
STATIC = OpenVINODevice("static:CPU", "CPU", "openvino", "openvino", static_shapes=True)  # stands for an NPU
HERE = ("openvino:CPU", "openvino-handbuilt:CPU", "onnxruntime:CPU", "torch:CPU", "fast:CPU")


@pytest.fixture(scope="module")
def models(tmp_path_factory, one_registry):
    """Stage 3 and the block 1-5 by all exporters, and stage 3 of static sizes."""
    folder = tmp_path_factory.mktemp("models")
    for block in ((3, 3), (1, 5)):
        for exporter in ("onnx", "openvino", "handbuilt"):
            export(LAYER, *block, exporter=exporter, folder=folder)
    for size in ((20, 64), (12, 30)):
        export(LAYER, 3, 3, exporter="openvino", folder=folder, size=size)
    return folder


def values_of(nodes, edges):
    with torch.no_grad():
        return {name: tensor.numpy() for name, tensor in LAYER.trace(**random_inputs(nodes, edges, FEATURES)).items()}


def load(device, models, first, last, nodes=11, edges=30, *, threads=1, model=None):
    device = devices.find(device) if isinstance(device, str) else device
    model = model or model_for(device, Config("sage", FEATURES, nodes, edges, first, last, device.name), models)
    how = {"nodes": nodes, "edges": edges, "threads": threads, "precision": "float32"}
    return device.load(LAYER, first, last, model, **how)


def assert_right(results, values):
    for name, array in results.items():
        np.testing.assert_allclose(array, values[name], rtol=1e-5, atol=1e-5, err_msg=name)


@contextmanager
def unavailable(why):
    with refused(re.escape(why)) as caught:
        yield
    assert caught.type is Unavailable


# ---- what they compute


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("block", [(3, 3), (1, 5)])
def test_a_device_computes_the_block_on_graph_after_graph_bound_or_not(models, name, block):
    for nodes, edges in ((11, 30), (300, 5000)):
        loaded, values = load(name, models, *block, nodes, edges), values_of(nodes, edges)
        values["x"].flags.writeable = values["messages"].flags.writeable = False  # OpenVINO copies these
        call, outputs = loaded.bound(values)
        for _ in range(3):
            assert_right(outputs(call()), values)
        turned = values["x"] * 2, values["edge_index"][::-1].copy()
        turned = {key: tensor.numpy() for key, tensor in LAYER.trace(*map(torch.from_numpy, turned)).items()}
        for other in (turned, values):
            results = loaded.run(other)
            assert tuple(results) == LAYER.block(*block).writes
            assert_right(results, other)
        loaded.close()


@pytest.mark.parametrize(("size", "taken"), [((12, 30), (12, 30)), ((11, 29), (12, 30)), ((12, 29), (20, 64))])
def test_a_device_of_static_shapes_takes_the_smallest_model_that_holds_a_graph_and_pads_in_its_call(
    models, size, taken
):
    assert model_for(STATIC, Config("sage", FEATURES, *size, 3, 3, STATIC.name), models).size == taken
    loaded, values = load(STATIC, models, 3, 3, *size), values_of(*size)
    assert (loaded.bind is None) == (taken != size)
    call, outputs = loaded.bound(values)
    assert_right(outputs(call()), values)


@st.composite
def blocks_and_graphs(draw):
    nodes = draw(st.integers(1, 9))
    pairs = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), min_size=1, max_size=25))
    return draw(st.integers(1, 3)), draw(st.integers(3, 7)), nodes, torch.tensor(pairs).t().contiguous()


@settings(max_examples=60)
@given(blocks_and_graphs())
def test_fast_blocks_give_what_the_stages_give(case):
    first, last, nodes, edge_index = case
    values, block = LAYER.trace(torch.randn(nodes, FEATURES), edge_index), LAYER.block(first, last)
    results = fast_block(block, edge_index, nodes)(*(values[name] for name in block.reads))
    for name, result in zip(block.writes, results, strict=True):
        torch.testing.assert_close(result, values[name])


# ---- what is timed


def test_torch_is_timed_by_the_module_alone():
    """Fault 10: a dictionary, numpy and copies were most of the time of a short stage."""
    values, seen = values_of(11, 30), []
    for number in LAYER.numbers:
        stage = LAYER.stages[number - 1]
        call, outputs = load("torch:CPU", None, number, number).bound(values)
        with stage.module.register_forward_hook(
            lambda _, given, result: seen.append((given, result, torch.is_inference_mode_enabled()))
        ):
            result = call()
        ((tensors, given_back, inference),) = seen
        seen.clear()
        assert given_back is result and inference
        for tensor, name in zip(tensors, stage.takes, strict=True):
            assert np.shares_memory(tensor.numpy(), values[name])
        named = outputs(result)
        assert list(named) == [stage.writes] and not np.shares_memory(named[stage.writes], values[stage.takes[0]])


def test_a_graph_is_sorted_once_before_the_calls(monkeypatch):
    sorts, real = [], torch_devices.fast_block
    monkeypatch.setattr(torch_devices, "fast_block", lambda *given: sorts.append(1) or real(*given))
    loaded, values = load("fast:CPU", None, 1, 5), values_of(11, 30)
    call, _ = loaded.bound(values)
    assert sorts == [1] and loaded.notes[0].startswith("the graph was sorted once")
    for _ in range(3):
        call()
        loaded.run(values)
    assert sorts == [1]


class OnTheCpu(CudaDevice):
    where, _chip = "cpu", TorchDevice._chip  # its copies go nowhere


def test_a_device_with_its_own_memory_has_its_own_weights_and_its_copies_are_in_the_call():
    values, device = values_of(11, 30), OnTheCpu("torch:CUDA", "GPU", "torch")
    loaded = load(device, None, 6, 6)
    call, outputs = replace(loaded, bind=None).bound(values)
    assert isinstance(call(), dict)
    assert_right(outputs(call()), values)


def test_threads_and_products_are_set_until_a_block_is_closed():
    with Conditions(2, "medium").applied():
        loaded = load("torch:CPU", None, 1, 5, threads=3)
        assert Conditions.now() == Conditions(3, "highest")
        loaded.close()
        assert Conditions.now() == Conditions(2, "medium")


# ---- what they refuse


def test_onnx_runtime_refuses_sums_that_several_threads_get_wrong(models):
    """Fault 1: ScatterND adds without a lock; the same model on one thread, and ScatterElements, are right."""
    index_add = export(LAYER, 3, 3, exporter="onnx", layout="index_add", folder=models)
    with unavailable("sums are wrong; export it with layout scatter_add, or use one thread"):
        load("onnxruntime:CPU", models, 3, 3, threads=2, model=index_add)
    assert_right(load("onnxruntime:CPU", models, 3, 3, model=index_add).run(values_of(11, 30)), values_of(11, 30))
    values = values_of(1000, 2000)
    call, outputs = load("onnxruntime:CPU", models, 3, 3, 1000, 2000, threads=2).bound(values)
    for _ in range(40):
        assert_right(outputs(call()), values)


@pytest.mark.parametrize("name", ["onnxruntime:CPU", "openvino:CPU"])
def test_a_model_that_is_missing_or_damaged_is_asked_for_in_one_line(models, tmp_path, name):
    device = devices.find(name)
    good = model_for(device, Config("sage", FEATURES, 11, 30, 3, 3, name), models).path
    file = shutil.copytree(good.parent, tmp_path / good.parent.relative_to(models)) / good.name
    load(device, tmp_path, 3, 3)
    for damage in (lambda: file.write_bytes(file.read_bytes()[:-7]), file.unlink, lambda: shutil.rmtree(file.parent)):
        damage()
        with unavailable(f"no whole model of stage 3 by {device.exporter}; export it: gnnlab stages --export"):
            load(device, tmp_path, 3, 3)
    with unavailable("no whole model of stages 1-5 by openvino for 41x99; export it"):
        load(STATIC, models, 1, 5, 41, 99)


def test_blocks_and_precisions_that_a_device_lacks_are_refused(models):
    with unavailable("without a sum over neighbours no graph is built by hand; use openvino:CPU"):
        load("openvino-handbuilt:CPU", models, 6, 6)
    with unavailable("without a sum over neighbours there is no faster kernel; use torch:CPU"):
        load("fast:CPU", models, 6, 7)
    with unavailable("onnxruntime:CPU computes in float32, not in float16"):
        devices.find("onnxruntime:CPU").computes_in("float16")
    assert devices.find("openvino:NPU").computes_in("float32") == "float16"
    assert devices.find("torch:CPU").computes_in("bfloat16") == "bfloat16"


# ---- which there are, and which can be used


def test_devices_are_found_by_runtime_and_processor_and_ones_own_by_module_and_factory():
    assert devices.find("fake_devices:behaves").name == "fake"
    for name in ("fake_devices:no", "no_such_module:x", "os:getcwd", ":", "", "fake_devices"):
        with refused("is not known; one of openvino:CPU"):
            devices.find(name)
    with refused(r"device 'openvino:CPUU' is not known \(did you mean openvino:CPU\?\); one of openvino:CPU, "):
        devices.find("openvino:CPUU")
    for name, device in devices.all_devices().items():
        assert (name == device.name and name.startswith(f"{device.runtime}")) or device.runtime == "torch"
        assert (device.processor == "NPU") == device.static_shapes


def test_probing_tries_every_device_and_says_why_not_and_what_to_install():
    whys = {
        "crashes": "the process died of SIGSEGV",
        "exits_at_once": "the process exited with code 3",
        "raises": "RuntimeError: the plugin says no",
        "probes_to_nothing": "fake_devices:probes_to_nothing: probe() gives a NoneType",
        "is_not_there": "device 'fake_devices:is_not_there' is not known",
    }
    fakes = {f"fake_devices:{name}": why for name, why in whys.items()}
    here, elsewhere = ("openvino:CPU", "onnxruntime:CPU", "torch:CPU"), ("openvino:GPU", "torch:CUDA")
    found = devices.probe([*fakes, *here, *elsewhere, "fake_devices:behaves"])
    assert list(found) == [*fakes, *here, *elsewhere, "fake_devices:behaves"]
    for name, why in fakes.items():
        assert not found[name].usable and found[name].why.startswith(why)
    assert found["fake_devices:behaves"] == Availability(True, chip="fake", version="1")
    assert all(found[name].usable and found[name].chip and found[name].version for name in here)
    for tried in (found[name] for name in elsewhere):
        assert tried.usable or (tried.why and tried.remedy and tried.remedy in tried.reason)


def test_a_probe_that_hangs_ends_and_says_so(monkeypatch):
    monkeypatch.setattr(devices, "PROBE_S", 0.5)
    assert devices.probe(["fake_devices:hangs"])["fake_devices:hangs"].why == "no answer within 0.5 s"


def test_a_library_that_is_missing_is_named_without_its_folders(monkeypatch):
    text = 'Exception from core.cpp:268:\nCannot load library "/a b/plugin.so": /x/y/libOpenCL.so.1: cannot open it\n'

    def core():
        raise RuntimeError(text)

    monkeypatch.setattr(runtimes, "openvino_core", core)
    assert runtimes.openvino_refuses("GPU") == "OpenVINO cannot use the GPU: libOpenCL.so.1: cannot open it"
    monkeypatch.setattr(runtimes, "find_spec", lambda name: None)
    for name, package in (("openvino:CPU", "openvino"), ("onnxruntime:CPU", "onnxruntime")):
        lacking = Availability(False, f"{package} is not installed", "pip install 'gnnlab[export]'")
        assert devices.find(name).probe() == lacking
