"""ONNX Runtime as a runtime: its CPU, and each execution provider that is installed, without a way back to the CPU."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gnnlab import machine
from gnnlab.errors import Unavailable, one_line
from gnnlab.export.padding import Feed
from gnnlab.units.unit import (
    Availability,
    Batch,
    Loaded,
    Operator,
    Profile,
    Unit,
    Values,
    clocked,
    require_artefact,
)

NAME, CPU = "onnxruntime", "CPUExecutionProvider"
ELSEWHERE = ("AzureExecutionProvider",)  # asks a service on the network
WARM = 2  # calls of a session before its memory has its size
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
            return Availability(False, "onnxruntime is not installed", "install the package onnxruntime")
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
        return Loaded(_runner(session, feed), self._device(), f"ONNX Runtime {machine.version(NAME)}", feed.notes)

    def profile(self, layer, first, last, artefact, *, nodes, edges, threads, precision) -> Profile:
        if self.provider != CPU:
            raise Unavailable(
                f"ONNX Runtime's profile tells when {self.name} was given its work, not how long that ran"
            )
        artefact = require_artefact(self, artefact, first, last)
        feed = Feed(layer, artefact, nodes, edges)

        def batch(values: Values, calls: int) -> Batch:
            with tempfile.TemporaryDirectory() as folder:  # a session writes its profile once, at its end
                session = _session(str(artefact.path), self.provider, threads, profile=f"{folder}/profile")
                run = _runner(session, feed)
                clocked(run, values, WARM)
                ms, outputs = clocked(run, values, calls)
                events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
            return Batch(ms, {name: ms / calls for name, ms in operator_ms(events, calls).items()}, outputs)

        return batch

    def _device(self) -> str:
        return machine.processor() if self.provider == CPU else self.provider.removesuffix("ExecutionProvider")


def installed() -> list[OnnxRuntimeUnit]:
    """The CPU, and a unit for each other provider that this ONNX Runtime brings."""
    found = [CPU]
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        found += [p for p in onnxruntime.get_available_providers() if p not in (CPU, *ELSEWHERE)]
    return [_unit(provider) for provider in found]


def _unit(provider: str) -> OnnxRuntimeUnit:
    short = provider.removesuffix("ExecutionProvider")
    processor = _PROCESSORS.get(short, "CPU")
    return OnnxRuntimeUnit(f"onnxruntime:{short}", processor, "onnxruntime", "onnx", provider=provider)


def operator_ms(events: Sequence[Mapping[str, Any]], calls: int) -> dict[Operator, float]:
    """What each operator took in the last `calls` calls of a session, in ms, from the events of its profile.

    The time of an operator that has a graph of its own (If, Loop) holds what ran in there.
    """
    begins = sorted(event["ts"] for event in events if event["name"] == "model_run")[-calls]
    ran = [event for event in events if event["cat"] == "Node" and event["ts"] >= begins]
    found, end = Counter[Operator](), 0
    for event in sorted(ran, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] >= end and "op_name" in event["args"]:
            told, end = event["args"], event["ts"] + event["dur"]
            name = Operator(told["op_name"], event["name"].removesuffix("_kernel_time"), told["provider"])
            found[name] += event["dur"] / 1e3
    return dict(found)


def _runner(session: Any, feed: Feed) -> Callable[[Values], dict[str, np.ndarray]]:
    names = {given.name for given in session.get_inputs()}

    def run(values: Values) -> dict[str, np.ndarray]:
        inputs = feed.inputs(values)
        return feed.outputs(session.run(None, {name: inputs[name] for name in names}))

    return run


def _session(model: bytes | str, provider: str, threads: int, profile: str | None = None) -> Any:
    """`profile`: the beginning of the file's name that the session's profile goes to."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors; what is worth knowing is raised
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
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
