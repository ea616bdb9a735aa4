"""Runtimes of exported models: a device for each plugin of OpenVINO (CPU, GPU, NPU), and ONNX Runtime on the CPU.
Precision and threads are set on each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnlab import machine
from gnnlab.errors import Unavailable
from gnnlab.openvino_core import compile_for, openvino_core
from gnnlab.stages.devices import Availability, Bound, Device, Loaded, Values, run_by
from gnnswap.errors import one_line

if TYPE_CHECKING:
    from gnnlab.stages.export import Model

TINY = '<ir_version: 8, opset_import: ["": 17]> tiny (float[4] x) => (float[4] y) { y = Relu(x) }'
INSTALL = "pip install 'gnnlab[export]'"
REMEDIES = {
    "GPU": "an Intel GPU with its driver (Linux: intel-opencl-icd and ocl-icd-libopencl1, /dev/dri readable)",
    "NPU": "an Intel Core Ultra processor with its NPU driver (Linux: github.com/intel/linux-npu-driver)",
}


def model_path(device: Device, model: Model | None, first: int, last: int, nodes: int, edges: int) -> Path:
    """The file of the model that a device runs. Raises `Unavailable` where no whole one was found."""
    if model is not None:
        return model.path
    what = f"stages {first}-{last}" if first != last else f"stage {first}"
    size = f" for {nodes}x{edges}" if device.static_shapes else ""
    raise Unavailable(f"no whole model of {what} by {device.exporter}{size}; export it: gnnlab stages --export")


@dataclass(frozen=True)
class OpenVINODevice(Device):
    """A plugin of OpenVINO. It reads inputs where they lie; results are views of the memory of its request."""

    def probe(self) -> Availability:
        if find_spec("openvino") is None:
            return Availability(False, "openvino is not installed", INSTALL)
        if why := openvino_refuses(self.processor):
            return Availability(False, why, REMEDIES.get(self.processor), version=version("OpenVINO"))
        return Availability(True, chip=_full_name(self.processor), version=version("OpenVINO"))

    def load(self, layer, first, last, model, *, nodes, edges, threads, precision) -> Loaded:
        import openvino

        from gnnlab.stages.padding import InputAdapter

        if self.exporter == "handbuilt" and not layer.block(first, last).reduces:
            raise Unavailable("without a sum over neighbours no graph is built by hand; use openvino:CPU")
        path = model_path(self, model, first, last, nodes, edges)
        compiled = read_once(path.stat().st_mtime_ns, compile_for, path, self.processor, precision, threads)
        adapter, request = InputAdapter(layer, model, nodes, edges), compiled.create_infer_request()
        given: dict[str, np.ndarray] = {}  # the request reads them where they lie

        def bind(values: Values) -> Bound:
            given.update(adapter.inputs(values))
            for name, array in given.items():  # OpenVINO copies what is read-only
                request.set_tensor(name, openvino.Tensor(array, shared_memory=array.flags.writeable))
            # without share_outputs it would copy every result into a dictionary that nobody reads
            return partial(request.infer, share_outputs=True), outputs

        def outputs(_: Any) -> dict[str, np.ndarray]:
            return adapter.outputs([tensor.data for tensor in request.output_tensors])

        about = _full_name(self.processor), version("OpenVINO"), adapter.notes
        return Loaded(run_by(bind), *about, bind=None if adapter.pads else bind)


@dataclass(frozen=True)
class OnnxRuntimeDevice(Device):
    """ONNX Runtime on the CPU. It computes in the precision of the exported model, float32."""

    def probe(self) -> Availability:
        if find_spec("onnxruntime") is None:
            return Availability(False, "onnxruntime is not installed", INSTALL)
        from onnx import parser

        tiny = parser.parse_model(TINY).SerializeToString()
        result = _session(tiny, 1).run(None, {"x": np.full(4, -1, np.float32)})[0]
        why = "a tiny model gave a wrong result" if result.any() else None
        return Availability(why is None, why, chip=machine.processor(), version=version("ONNX Runtime"))

    def load(self, layer, first, last, model, *, nodes, edges, threads, precision) -> Loaded:
        """As `Device.load`. Raises `Unavailable` for a model whose sums several threads get wrong, too: index_add is
        ScatterND there (onnxruntime #23396); scatter_add is ScatterElements, which one thread adds."""
        from gnnlab.stages.padding import InputAdapter

        path = model_path(self, model, first, last, nodes, edges)
        if threads != 1 and model.layout == "index_add":
            wrong = f"{threads} threads of ONNX Runtime add the updates of ScatterND without a lock: sums are wrong"
            raise Unavailable(f"{wrong}; export it with layout scatter_add, or use one thread")
        session = read_once(path.stat().st_mtime_ns, _session, path, threads)
        adapter = InputAdapter(layer, model, nodes, edges)
        given: dict[str, np.ndarray] = {}  # the binding reads them where they lie

        def bind(values: Values) -> Bound:
            given.update(adapter.inputs(values))
            binding = session.io_binding()  # 2 us a call faster than session.run, and results keep their memory
            for name, array in given.items():
                binding.bind_cpu_input(name, array)
            for port in session.get_outputs():
                binding.bind_output(port.name)
            call = partial(session.run_with_iobinding, binding)
            return call, lambda _: adapter.outputs([value.numpy() for value in binding.get_outputs()])

        return Loaded(run_by(bind), machine.processor(), version("ONNX Runtime"), adapter.notes, bind=bind)


LOW, HALF = ("float32", "bfloat16"), ("float32", "float16")
OPENVINO_DEVICES = (
    OpenVINODevice("openvino:CPU", "CPU", "openvino", "openvino", precisions=LOW),
    OpenVINODevice("openvino-handbuilt:CPU", "CPU", "openvino", "handbuilt", "segment_sum", precisions=LOW),
    OpenVINODevice("openvino:GPU", "GPU", "openvino", "openvino", precisions=HALF),
    # an NPU computes in float16 whatever is asked
    OpenVINODevice("openvino:NPU", "NPU", "openvino", "openvino", static_shapes=True, precisions=HALF[1:]),
)


ONNX_RUNTIME = OnnxRuntimeDevice("onnxruntime:CPU", "CPU", "onnxruntime", "onnx")


def openvino_refuses(processor: str) -> str | None:
    """Why OpenVINO computes nothing on a processor: a missing library, or what its plugin says. None where it does."""
    try:
        import openvino
        from openvino import opset13

        x = opset13.parameter([4, 4], openvino.Type.f32)
        model, latency = openvino.Model([opset13.relu(x)], [x]), {"PERFORMANCE_HINT": "LATENCY"}
        request = openvino_core().compile_model(model, processor, latency).create_infer_request()
        request.infer({0: np.full((4, 4), -1, np.float32)})
        return "a tiny model gave a wrong result" if request.get_output_tensor().data.any() else None
    except Exception as error:
        library = re.search(r'Cannot load library "[^"]*": (.*)', str(error))
        cause = re.sub(r"\S*[/\\]", "", library[1]) if library else one_line(error)
        return f"OpenVINO cannot use the {processor}: {cause}"


@lru_cache(maxsize=32)
def read_once(changed: int, make: Callable[..., Any], *arguments: Any) -> Any:
    """`make(*arguments)`, once for a model. `changed`: the time of its file; a new export is read again."""
    return make(*arguments)


def _session(model: bytes | Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads  # operators run one after the other, as is the default
    options.log_severity_level = 4  # nothing; what is worth knowing is raised
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _full_name(processor: str) -> str:
    return str(openvino_core().get_property(processor, "FULL_DEVICE_NAME"))


def version(runtime: str) -> str:
    """The name of a runtime with its installed version: "ONNX Runtime 1.31.0"."""
    return f"{runtime} {machine.version(runtime.replace(' ', '').lower())}"
