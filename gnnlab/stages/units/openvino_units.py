"""OpenVINO as a runtime: one unit for each device that its plugins reach, with precision and threads set.

Inputs are bound without a copy: a request holds on to the arrays that it was given last, and each loaded block has a
request of its own. Results are views of the request's memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gnnlab.openvino_core import openvino_core
from gnnlab.stages.errors import StageError
from gnnlab.stages.units.feeding import Feed
from gnnlab.stages.units.unit import Availability, Loaded, Unavailable, Unit, Values, first_line, require_artefact

if TYPE_CHECKING:
    import openvino as ov

    from gnnlab.stages.export.artefacts import Artefact

HINTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
NPU_PLATFORMS = ("3720", "4000", "5010")  # Meteor and Arrow Lake, Lunar Lake, Panther Lake
_GPU_REMEDY = {
    "linux": "an Intel GPU with its OpenCL runtime (packages intel-opencl-icd, ocl-icd-libopencl1), /dev/dri readable",
    "win32": "an Intel GPU with its graphics driver",
}
_NPU_REMEDY = {
    "linux": "an Intel Core Ultra processor with its NPU driver and compiler (github.com/intel/linux-npu-driver)",
    "win32": "an Intel Core Ultra processor with the Intel NPU driver (Windows Update)",
}


@dataclass(frozen=True)
class OpenVINOUnit(Unit):
    """A device of OpenVINO: CPU, GPU or NPU."""

    def probe(self) -> Availability:
        version = f"OpenVINO {_version()}"
        try:
            if self.processor not in {name.split(".")[0] for name in openvino_core().available_devices}:
                return self._missing(version)
            _try(self.processor)
            return Availability(True, device=device_name(self.processor), version=version)
        except Exception as error:
            return Availability(False, first_line(error), self._remedy(), version=version)

    def load(self, layer, first, last, artefact, *, nodes, edges, threads, precision) -> Loaded:
        block = layer.block(first, last)
        if artefact is None and self.exporter == "handbuilt" and not block.reduces:
            raise Unavailable(
                f"{block.name} sums over no neighbours, which hand-built graphs are for; use openvino:CPU"
            )
        artefact = require_artefact(self, artefact, first, last)
        changed = artefact.path.stat().st_mtime_ns
        compiled = _compiled(artefact.path, changed, self.processor, precision, threads)
        feed = Feed(layer, artefact, nodes, edges)
        return Loaded(_runner(compiled, feed), device_name(self.processor), f"OpenVINO {_version()}", feed.notes)

    def _missing(self, version: str) -> Availability:
        """No such device: is it the driver, the plugin, or the hardware?"""
        why = f"OpenVINO sees no {self.processor}"
        try:
            openvino_core().get_property(self.processor, "FULL_DEVICE_NAME")
        except Exception as error:
            if "Cannot load library" in str(error):
                why += f": {_missing_library(error)}"
        if self.processor == "NPU":
            compiler = npu_compiler()
            why += f"; {compiler or 'its compiler is here, so that stages can be compiled for it but not run'}"
        return Availability(False, why, self._remedy(), version=version)

    def _remedy(self) -> str | None:
        table = {"GPU": _GPU_REMEDY, "NPU": _NPU_REMEDY}.get(self.processor)
        return table and table.get(sys.platform, table["linux"])


@dataclass(frozen=True)
class OpenVINONPU(OpenVINOUnit):
    """An NPU computes in float16 whatever the model's type; OpenVINO documents no other floating-point mode for it."""

    instead: ClassVar[Mapping[str, str]] = {"float32": "float16"}


def stages_that_compile(
    artefacts: Iterable[Artefact], platform: str = NPU_PLATFORMS[0]
) -> dict[tuple[int, int], str | None]:
    """By (first, last), for the exported models with static shapes: None where an NPU's compiler takes all of each.

    Else it says of the first that it refuses why. Needs the compiler, not the silicon.

    Raises:
        StageError: the compiler is not here.
    """
    if missing := npu_compiler(platform):
        raise StageError(f"{missing}; {_NPU_REMEDY.get(sys.platform, _NPU_REMEDY['linux'])}")
    found: dict[tuple[int, int], str | None] = {}
    for model in artefacts:
        if model.nodes is not None and model.ready and not found.get((model.first, model.last)):
            found[model.first, model.last] = _query(openvino_core().read_model(model.path), platform)
    return found


def npu_compiler(platform: str = NPU_PLATFORMS[0]) -> str | None:
    """None where OpenVINO can compile for an NPU of that platform here, else what it says."""
    try:
        openvino_core().query_model(_tiny(), "NPU", {"NPU_PLATFORM": platform})
    except Exception as error:
        return f"OpenVINO cannot compile for the NPU {platform}: {_missing_library(error)}"
    return None


def device_name(device: str) -> str:
    return str(openvino_core().get_property(device, "FULL_DEVICE_NAME"))


def configuration(processor: str, precision: str, threads: int) -> dict[str, Any]:
    """What is set on a device: the plugin picks none of it by itself (its CPU default is bf16 on some processors)."""
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": HINTS[precision], "PERFORMANCE_HINT": "LATENCY"}
    if processor == "CPU":
        options |= {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
    return options


def _runner(compiled: ov.CompiledModel, feed: Feed) -> Callable[[Values], dict[str, np.ndarray]]:
    import openvino as ov

    request = compiled.create_infer_request()
    inputs = [(port.get_any_name(), port) for port in compiled.inputs]
    held: dict[str, np.ndarray] = {}  # the request reads them where they lie

    def run(values: Values) -> dict[str, np.ndarray]:
        given = feed.inputs(values)
        for name, port in inputs:
            held[name] = np.ascontiguousarray(given[name])
            request.set_tensor(port, ov.Tensor(held[name], shared_memory=True))
        request.infer(share_outputs=True)  # else it copies every result, into a dictionary that nobody reads
        return feed.outputs([request.get_tensor(port).data for port in compiled.outputs])

    return run


@lru_cache(maxsize=32)
def _compiled(path: Path, changed: int, processor: str, precision: str, threads: int) -> ov.CompiledModel:
    """A model ready for a device; `changed` is the file's time, so that a new export is read anew."""
    core = openvino_core()
    return core.compile_model(core.read_model(path), processor, configuration(processor, precision, threads))


def _version() -> str:
    from importlib.metadata import version

    return version("openvino")


def _try(device: str) -> None:
    """A tiny inference; raises what the plugin raises."""
    compiled = openvino_core().compile_model(_tiny(), device, {"PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    request.infer({0: np.full((4, 4), -1, np.float32)})
    if request.get_output_tensor().data.any():
        raise StageError("a tiny model gave a wrong result")


def _tiny() -> ov.Model:
    import openvino as ov
    from openvino import opset13 as op

    x = op.parameter([4, 4], ov.Type.f32)
    return ov.Model([op.relu(x)], [x])


def _query(model: ov.Model, platform: str) -> str | None:
    try:
        taken = openvino_core().query_model(model, "NPU", {"NPU_PLATFORM": platform})
    except Exception as error:
        return first_line(error)
    left = {op.get_type_name() for op in model.get_ops() if op.get_friendly_name() not in taken}
    left = sorted(left - {"Parameter", "Constant", "Result"})
    return f"its compiler leaves out {', '.join(left)}" if left else None


def _missing_library(error: BaseException) -> str:
    """What a loader's message says is not there, without the folders: `libOpenCL.so.1: cannot open ...`."""
    found = re.search(r'Cannot load library "[^"]*": (.*)', str(error))
    if not found:
        return first_line(error)
    return re.sub(r"\S*[/\\]", "", found[1])
