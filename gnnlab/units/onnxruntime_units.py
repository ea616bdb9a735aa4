"""ONNX Runtime as a runtime: its CPU, and each execution provider that is installed, without a way back to the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gnnlab import machine
from gnnlab.export.padding import Feed
from gnnlab.units.unit import Availability, Loaded, Unit, Values, require_artefact
from gnnswap.errors import one_line

NAME, CPU = "onnxruntime", "CPUExecutionProvider"
ELSEWHERE = ("AzureExecutionProvider",)  # asks a service on the network
_PROCESSORS = {
    "CUDA": "GPU", "Tensorrt": "GPU", "NvTensorRTRTX": "GPU", "ROCM": "GPU", "MIGraphX": "GPU", "Dml": "GPU",
    "WebGPU": "GPU", "QNN": "NPU", "VitisAI": "NPU", "RKNPU": "NPU", "CANN": "NPU", "CoreML": "NPU",
}  # fmt: skip


@dataclass(frozen=True)
class OnnxRuntimeUnit(Unit):
    """An execution provider of ONNX Runtime. It computes in the precision of the exported model, float32."""

    provider: str = CPU

    def probe(self) -> Availability:
        if find_spec("onnxruntime") is None:
            return Availability(False, "onnxruntime is not installed", "pip install 'gnnlab[export]'")
        version = f"ONNX Runtime {machine.version(NAME)}"
        try:
            session = _session(_tiny(), self.provider, 1)
            if session.run(None, {"x": np.full(4, -1, np.float32)})[0].any():
                return Availability(False, "a tiny model gave a wrong result", version=version)
        except Exception as error:
            return Availability(False, one_line(error), "see the provider's own requirements", version=version)
        return Availability(True, device=self._device(), version=version)

    def load(self, layer, first, last, artefact, *, nodes, edges, threads, precision) -> Loaded:
        artefact = require_artefact(self, artefact, first, last)
        session = _cached(artefact.path, artefact.path.stat().st_mtime_ns, self.provider, threads)
        feed = Feed(layer, artefact, nodes, edges)
        names = {given.name for given in session.get_inputs()}

        def run(values: Values) -> dict[str, np.ndarray]:
            inputs = feed.inputs(values)
            return feed.outputs(session.run(None, {name: inputs[name] for name in names}))

        return Loaded(run, self._device(), f"ONNX Runtime {machine.version(NAME)}", feed.notes)

    def _device(self) -> str:
        return machine.processor() if self.provider == CPU else self.provider.removesuffix("ExecutionProvider")


def installed() -> list[OnnxRuntimeUnit]:
    """The CPU, and a unit for each other provider that this ONNX Runtime brings."""
    providers = [CPU]
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        providers += [p for p in onnxruntime.get_available_providers() if p not in (CPU, *ELSEWHERE)]
    return [_unit(provider) for provider in providers]


def _unit(provider: str) -> OnnxRuntimeUnit:
    short = provider.removesuffix("ExecutionProvider")
    processor = _PROCESSORS.get(short, "CPU")
    return OnnxRuntimeUnit(f"onnxruntime:{short}", processor, "onnxruntime", "onnx", provider=provider)


def _session(model: bytes | str, provider: str, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors; what is worth knowing is raised
    if provider != CPU:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    session.disable_fallback()
    return session


@lru_cache(maxsize=32)
def _cached(path: Path, changed: int, provider: str, threads: int) -> Any:
    """A session of a file; `changed` is the file's time, so that a new export is read anew."""
    return _session(str(path), provider, threads)


def _tiny() -> bytes:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
