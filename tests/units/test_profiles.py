"""What a runtime says of its operators is told as it says it, of the calls that count, and of nothing else."""

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest
import torch
from onnx import TensorProto, helper
from openvino import opset13

from gnnlab.errors import Unavailable
from gnnlab.openvino_core import compile_for
from gnnlab.profiling.operators import operator_times
from gnnlab.units import onnxruntime_units
from gnnlab.units import registry as units
from gnnlab.units.onnxruntime_units import OnnxRuntimeUnit, operator_ms
from gnnlab.units.openvino_units import OperatorTimes
from gnnlab.units.unit import Operator, clocked
from gnnlab.workloads.graphsage import sage

WIDTH = 96
SIZE = {"nodes": 11, "edges": 30, "threads": 1, "precision": "float32"}


def event(name, ts, dur, **args):
    return {"cat": "Node" if args else "Session", "name": name, "ts": ts, "dur": dur, "args": args}


def test_onnx_runtimes_operators_are_those_of_the_last_calls_and_a_graph_within_one_counts_once():
    matmul, loop = {"op_name": "MatMul", "provider": "CPU"}, {"op_name": "Loop", "provider": "CPU"}
    events = [event("model_run", 100, 900), event("mm_kernel_time", 150, 700, **matmul)]  # warm-up
    for start in (2000, 3000):
        events += [
            event("inner_kernel_time", start + 110, 40, op_name="Add", provider="CPU"),  # within the loop
            event("mm_kernel_time", start + 10, 30, **matmul),
            event("loop_kernel_time", start + 100, 200, **loop),
            event("SequentialExecutor::Execute", start + 5, 300),
            event("model_run", start, 310),
        ]
    found = operator_ms(events, 2)
    assert found == {Operator("MatMul", "mm", "CPU"): 0.06, Operator("Loop", "loop", "CPU"): 0.4}
    assert operator_ms(events, 1)[Operator("MatMul", "mm", "CPU")] == 0.03
    assert operator_ms(events, 3)[Operator("MatMul", "mm", "CPU")] == pytest.approx(0.76)


def test_onnx_runtime_names_the_two_operators_of_a_model_of_two(tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH, WIDTH]) for name in ("x", "y"))
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["h"], name="product"),
        helper.make_node("Softmax", ["h"], ["y"], name="normalized"),
    ]
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "two", [x], [y]), opset_imports=opset, ir_version=8)
    session = onnxruntime_units._session(
        model.SerializeToString(), onnxruntime_units.CPU, 1, profile=str(tmp_path / "profile")
    )
    values = {"x": np.ones((WIDTH, WIDTH), np.float32)}
    ms, _ = clocked(lambda given: session.run(None, given), values, 4)
    found = operator_ms(json.loads(Path(session.end_profiling()).read_text()), 4)
    assert {(one.type, one.name) for one in found} == {("MatMul", "product"), ("Softmax", "normalized")}
    assert 0 < sum(found.values()) / 4 <= ms


def test_openvino_names_the_two_operators_of_a_model_of_two():
    x = opset13.parameter([WIDTH, WIDTH], ov.Type.f32)
    product = opset13.matmul(x, x, False, False)
    product.set_friendly_name("product")
    normalized = opset13.softmax(product, 1)
    normalized.set_friendly_name("normalized")
    compiled = compile_for(ov.Model([normalized], [x]), "CPU", "float32", 1, profiled=True)
    request = compiled.create_infer_request()
    told = OperatorTimes(request, compiled.get_runtime_model)
    values = {0: np.ones((WIDTH, WIDTH), np.float32)}
    total = 0.0
    for _ in range(4):
        ms, _ = clocked(request.infer, values, 1)
        told.called()
        total += ms
    found = {one.name: (one.type, ms) for one, ms in told.ms().items()}
    assert {"product", "normalized"} <= found.keys()
    assert found["product"][0] == "MatMul" and found["normalized"][0] == "Softmax"
    assert 0 < sum(ms for _, ms in found.values()) <= total
    assert all(one.kernel for one in told.ms())


def node(name, us, kind="Relu"):
    return SimpleNamespace(
        node_type=kind, node_name=name, exec_type=f"jit_{name}", real_time=timedelta(microseconds=us)
    )


def in_graph(name, us, kind="Relu", reads=()):
    told = {"execTimeMcs": us, "layerType": kind, "primitiveType": "jit", "outputLayouts": "ab"}
    return SimpleNamespace(
        get_friendly_name=lambda: name,
        get_rt_info=lambda: {key: ov.OVAny(text) for key, text in told.items()},
        inputs=lambda: [
            SimpleNamespace(get_source_output=lambda one=one: SimpleNamespace(get_node=lambda: one)) for one in reads
        ],
    )


def test_what_a_cpu_tells_is_the_mean_of_all_calls_so_what_it_took_in_all_is_that_times_their_number():
    constant = in_graph("weights", "not_executed", "Const")
    once = in_graph("once", "37", "Reorder", [constant])

    def graph(a, reorder):
        x = in_graph("x", "not_executed", "Input")
        ops = [x, constant, once, in_graph("a", a, reads=[x, constant]), in_graph("r", reorder, "Reorder", [x])]
        return SimpleNamespace(get_ops=lambda: ops)

    means = iter([("10", "not_executed"), ("6", "3")])
    request = SimpleNamespace(get_profiling_info=lambda: [node("a", 0, "Clamp")])
    found = OperatorTimes(request, lambda: graph(*next(means)))
    assert found.ms() == {}  # nothing ran
    found.called()
    assert found.ms() == {Operator("Clamp", "a", "jit, ab"): 0.010}
    found.called()
    later = {one: round(ms, 6) for one, ms in found.ms().items()}
    assert later == {Operator("Clamp", "a", "jit, ab"): 0.012, Operator("Reorder", "r", "jit, ab"): 0.006}


def test_what_a_gpu_or_an_npu_tells_is_of_the_last_call_and_summed():
    calls = iter([[node("a", 10), node("b", 0)], [node("a", 7), node("b", 5)]])
    found = OperatorTimes(SimpleNamespace(get_profiling_info=lambda: next(calls)), None)
    found.called()
    found.called()
    assert {one.name: round(ms, 6) for one, ms in found.ms().items()} == {"a": 0.017, "b": 0.005}


def test_torchs_operators_are_those_of_one_run_by_themselves():
    x = torch.ones(WIDTH, WIDTH)
    ms, found = operator_times(lambda: torch.softmax(x @ x, 1), 5)
    assert {"aten::mm", "aten::_softmax"} <= found.keys()
    assert 0 < sum(found.values()) <= ms


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        ("simulated:GPU", "simulated:GPU is computed from constants, a block at a time: nothing runs inside"),
        ("torch-compiled:CPU", "torch's profiler does not see into what torch.compile made"),
        ("examples.my_unit:make", "stage-by-stage has no method `profile`"),
    ],
)
def test_a_unit_whose_runtime_does_not_tell_says_so(unit, why):
    with pytest.raises(Unavailable, match=why):
        units.find(unit).profile(sage(4), 3, 3, None, **SIZE)


def test_a_provider_that_only_tells_when_it_was_given_its_work_is_refused():
    unit = OnnxRuntimeUnit("onnxruntime:CUDA", "GPU", "onnxruntime", "onnx", provider="CUDAExecutionProvider")
    with pytest.raises(Unavailable, match="not how long that ran"):
        unit.profile(sage(4), 3, 3, None, **SIZE)
