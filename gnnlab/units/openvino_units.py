"""OpenVINO as a runtime: one unit for each device that its plugins reach, with precision and threads set.

Inputs are bound without a copy: a request holds on to the arrays that it was given last, and each loaded block has a
request of its own. Results are views of the request's memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnlab import machine
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.export.padding import Feed
from gnnlab.openvino_core import compile_for, openvino_core
from gnnlab.units.unit import Availability, Loaded, Unit, Values, require_artefact
from gnnswap.errors import one_line

if TYPE_CHECKING:
    import openvino as ov


NPU_PLATFORM = "3720"  # Meteor and Arrow Lake; asked of the compiler alone
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
        version = f"OpenVINO {machine.version('openvino')}"
        try:
            if self.processor not in {name.split(".")[0] for name in openvino_core().available_devices}:
                return self._missing(version)
            _try(self.processor)
            return Availability(True, device=device_name(self.processor), version=version)
        except ModuleNotFoundError:
            return Availability(False, "openvino is not installed", "pip install 'gnnlab[export]'")
        except Exception as error:
            return Availability(False, one_line(error), self._remedy(), version=version)

    def load(self, layer, first, last, artefact, *, nodes, edges, threads, precision) -> Loaded:
        block = layer.block(first, last)
        if artefact is None and self.exporter == "handbuilt" and not block.reduces:
            raise Unavailable("without a sum over neighbours no graph is built by hand; use openvino:CPU")
        artefact = require_artefact(self, artefact, first, last)
        changed = artefact.path.stat().st_mtime_ns
        compiled = _compiled(artefact.path, changed, self.processor, precision, threads)
        feed = Feed(layer, artefact, nodes, edges)
        infer = in_place(compiled)

        def run(values: Values) -> dict[str, np.ndarray]:
            return feed.outputs(infer(feed.inputs(values)))

        return Loaded(run, device_name(self.processor), f"OpenVINO {machine.version('openvino')}", feed.notes)

    def _missing(self, version: str) -> Availability:
        """Why the device is missing: the driver, the plugin, or the hardware."""
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


def npu_compiler() -> str | None:
    """Why OpenVINO cannot compile for an NPU here; None where it can."""
    try:
        openvino_core().query_model(_tiny(), "NPU", {"NPU_PLATFORM": NPU_PLATFORM})
    except Exception as error:
        return f"OpenVINO cannot compile for the NPU {NPU_PLATFORM}: {_missing_library(error)}"
    return None


def device_name(device: str) -> str:
    return str(openvino_core().get_property(device, "FULL_DEVICE_NAME"))


def in_place(compiled: ov.CompiledModel) -> Callable[[Values], list[np.ndarray]]:
    """A new request of a compiled model that reads arrays, by the names of its inputs, where they lie.

    The results, in the order of its outputs, are views of the request's memory: valid until its next call.
    """
    import openvino as ov

    request = compiled.create_infer_request()
    inputs = [(port.get_any_name(), port) for port in compiled.inputs]
    held: dict[str, np.ndarray] = {}  # the request reads them where they lie

    def run(given: Values) -> list[np.ndarray]:
        for name, port in inputs:
            held[name] = np.ascontiguousarray(given[name])
            request.set_tensor(port, ov.Tensor(held[name], shared_memory=True))
        request.infer(share_outputs=True)  # else it copies every result, into a dictionary that nobody reads
        return [request.get_tensor(port).data for port in compiled.outputs]

    return run


@lru_cache(maxsize=32)
def _compiled(path: Path, changed: int, processor: str, precision: str, threads: int) -> ov.CompiledModel:
    """A model ready for a device; `changed` is the file's time, so that a new export is read anew."""
    return compile_for(path, processor, precision, threads)


def _try(device: str) -> None:
    """A tiny inference; raises what the plugin raises."""
    compiled = openvino_core().compile_model(_tiny(), device, {"PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    request.infer({0: np.full((4, 4), -1, np.float32)})
    if request.get_output_tensor().data.any():
        raise GnnlabError("a tiny model gave a wrong result")


def _tiny() -> ov.Model:
    import openvino as ov
    from openvino import opset13 as op

    x = op.parameter([4, 4], ov.Type.f32)
    return ov.Model([op.relu(x)], [x])


def _missing_library(error: BaseException) -> str:
    """The missing library of a loader's message, without folders: `libOpenCL.so.1: cannot open ...`."""
    cause = re.search(r'Cannot load library "[^"]*": (.*)', str(error))
    if not cause:
        return one_line(error)
    return re.sub(r"\S*[/\\]", "", cause[1])
