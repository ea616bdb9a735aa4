"""What computes the scores of a predictor: one model, by several runtimes and in several precisions.

    engine = make("onnx", load("hybrid"), store=ModelStore(folder))
    engine(networks)                   # (N,) float32 scores of the nodes of `NetworkArrays`

Each engine says what it cost to build and to load. Threads are torch's, but for ONNX Runtime, which sums rightly on one
alone; precision is set and not inherited.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnlab.kernels.errors import OptimizeError
from gnnlab.openvino_core import openvino_core
from gnnlab.optimize.inference import flat_allocator, quantization
from gnnlab.optimize.inference.flat_allocator import DenseAllocator, FlatAllocator
from gnnlab.optimize.inference.model_store import ModelStore
from gnnlab.optimize.inference.network_arrays import NetworkArrays
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import EdgeAllocator

Run = Callable[[NetworkArrays], np.ndarray]
PRECISIONS = ("float32", "bfloat16", "int8")
MOST_NODES = 2048  # in a pass: hidden values of 512 KiB, which stay in the cache and are not mapped in anew each time
# up to so many nodes the dense form; measured with one thread of an AVX-512 core, reading included: 49 against 137 µs
# at 10 nodes, 121 against about 200 at 64; from there on its products grow with the square
DENSE_NODES = 64
CPU_ONLY = ("onnx", "openvino", "package")
TORCH = f"torch {torch.__version__}"
ONE_THREAD = "ONNX Runtime has one thread"


@dataclass(frozen=True)
class Engine:
    """Scores of networks: `engine(networks)` -> (N,) float32. `build_s` is 0 where a stored model was used again.

    `runtime` is what computes, with its version, and `threads` how many it has; None: those of torch.
    """

    name: str
    precision: str
    run: Run
    build_s: float
    load_s: float
    stored_bytes: int = 0
    note: str = ""
    runtime: str = TORCH
    threads: int | None = None

    def __call__(self, networks: NetworkArrays) -> np.ndarray:
        pieces = networks.pieces(MOST_NODES)
        return self.run(networks) if len(pieces) == 1 else np.concatenate([self.run(piece) for piece in pieces])


def fingerprint(model: nn.Module) -> str:
    """SHA-256 in hex over the names, types, shapes and bytes of all weights and buffers."""
    digest = hashlib.sha256(type(model).__name__.encode())
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def make(
    name: str, model: EdgeAllocator, *, precision: str = "float32", device: Any = "cpu", store: ModelStore | None = None
) -> Engine:
    """The engine `name` for `model`, ready to run.

    name is one of eager, fast, torchscript, compiled, package, onnx, openvino; precision float32, or with eager and
    openvino bfloat16 or int8. onnx, openvino and package need a `store` for their files.

    Raises:
        OptimizeError: there is no such engine, not in this precision or not on this device, or it does not work here.
    """
    build = BUILDERS.get((name, precision))
    if build is None:
        known = ", ".join(f"{n} {p}" for n, p in BUILDERS)
        raise OptimizeError(f"engine {name!r} in {precision!r}: one of {known} is needed")
    device = torch.device(device)
    if device.type != "cpu" and (name in CPU_ONLY or precision == "int8"):
        raise OptimizeError(f"engine {name!r} in {precision} runs on the CPU alone, not on {device}; use cpu")
    if name in CPU_ONLY and store is None:
        raise OptimizeError(f"engine {name!r} keeps files: give a ModelStore")
    try:
        return build(model.eval(), device, store)
    except (ImportError, RuntimeError, NotImplementedError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OptimizeError(f"engine {name!r} in {precision} does not work here: {first[:160]}") from error


def _eager(model: EdgeAllocator, device: torch.device, store: ModelStore | None) -> Engine:
    start = time.perf_counter()
    model = model.to(device)
    return Engine("eager", "float32", partial(_run_layers, model, device), 0.0, time.perf_counter() - start)


def _run_layers(model: nn.Module, device: torch.device, networks: NetworkArrays) -> np.ndarray:
    x, source, target, _ = networks.tensors
    with torch.inference_mode():
        return model(x.to(device), torch.stack([source, target]).to(device)).float().cpu().numpy()


def _eager_bf16(model: EdgeAllocator, device: torch.device, store: ModelStore | None) -> Engine:
    start = time.perf_counter()
    model = model.to(device)

    def run(networks: NetworkArrays) -> np.ndarray:
        with torch.autocast(device.type, torch.bfloat16):
            return _run_layers(model, device, networks)

    return Engine("eager", "bfloat16", run, 0.0, time.perf_counter() - start, note="autocast")


def _eager_int8(model: EdgeAllocator, device: torch.device, store: ModelStore | None) -> Engine:
    start = time.perf_counter()
    quantized = quantization.dynamic(model)
    seconds = time.perf_counter() - start
    return Engine("eager", "int8", partial(_run_layers, quantized, device), seconds, 0.0, note=quantization.DYNAMIC)


def _fast(model: EdgeAllocator, device: torch.device, store: ModelStore | None) -> Engine:
    start = time.perf_counter()
    flat = FlatAllocator(model.to(device))
    run, runtime = partial(_run_flat, flat, device), TORCH
    if device.type == "cpu":
        run = partial(_run_fast, DenseAllocator(flat), run)
        runtime = f"numpy {np.__version__} up to {DENSE_NODES} nodes, {TORCH} beyond"
    return Engine("fast", "float32", run, 0.0, time.perf_counter() - start, runtime=runtime)


def _run_fast(dense: DenseAllocator, run: Run, networks: NetworkArrays) -> np.ndarray:
    if len(networks.x) > DENSE_NODES:
        return run(networks)
    return dense(networks.x, networks.topology.adjacency)


def _run_flat(flat: Callable[..., torch.Tensor], device: torch.device, networks: NetworkArrays) -> np.ndarray:
    with torch.inference_mode():
        if device.type == "cpu":
            return flat(*networks.tensors).numpy()
        return flat(*(tensor.to(device) for tensor in networks.tensors)).cpu().numpy()


def _torchscript(model: EdgeAllocator, device: torch.device, store: ModelStore | None) -> Engine:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit", category=DeprecationWarning)
        traced = torch.jit.freeze(torch.jit.trace(FlatAllocator(model.to(device)), _example(device)))
    run, seconds = partial(_run_flat, traced, device), time.perf_counter() - start
    return Engine("torchscript", "float32", run, seconds, 0.0, note="deprecated by PyTorch")


def _compiled(model: EdgeAllocator, device: torch.device, store: ModelStore | None) -> Engine:
    start = time.perf_counter()
    flat = FlatAllocator(model.to(device))
    function = torch.compile(flat, dynamic=True, fullgraph=True)
    with torch.inference_mode():
        function(*_example(device))
    run = partial(_run_dynamic, partial(_run_flat, function, device))
    return Engine("compiled", "float32", run, time.perf_counter() - start, 0.0)


def _package(model: EdgeAllocator, device: torch.device, store: ModelStore) -> Engine:
    flat = FlatAllocator(model)

    def build(folder: Path) -> None:
        torch._inductor.aoti_compile_and_package(_exported(flat), package_path=str(folder / "model.pt2"))

    made, seconds = stored(store, "package", model, build)
    start = time.perf_counter()
    run_boxed = torch._inductor.aoti_load_package(str(made.folder / "model.pt2")).loader.boxed_run

    def run(networks: NetworkArrays) -> np.ndarray:
        return run_boxed(list(networks.tensors))[0].numpy()

    return Engine(
        "package", "float32", partial(_run_dynamic, run), seconds, time.perf_counter() - start, made.size_bytes
    )


def _run_dynamic(run: Run, networks: NetworkArrays) -> np.ndarray:
    """Compilers take a size of 0 or 1 for a constant, so a program made for any size is given sizes from 2 on."""
    if min(len(networks.x), len(networks.topology.source)) > 1:
        return run(networks)
    return run(networks.with_ghost())[:-1]


def _onnx(model: EdgeAllocator, device: torch.device, store: ModelStore) -> Engine:
    flat = FlatAllocator(model, sums="index_add")
    made, seconds = stored(store, "onnx", model, lambda folder: _export_onnx(flat, folder / "model.onnx"))
    start = time.perf_counter()
    session, runtime = onnx_session(made.folder / "model.onnx")

    def run(networks: NetworkArrays) -> np.ndarray:
        topology = networks.topology
        return session.run(None, {"x": networks.x, "source": topology.source, "target": topology.target})[0]

    load_s = time.perf_counter() - start
    return Engine("onnx", "float32", run, seconds, load_s, made.size_bytes, ONE_THREAD, runtime, threads=1)


def onnx_session(path: Path) -> tuple[Any, str]:
    """(session of ONNX Runtime on the CPU with one thread, its name and version)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # one thread, whatever torch has: on two, ScatterND loses sums of edges with one target (1.31.1, errors of 1e-2)
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session, f"onnxruntime {onnxruntime.__version__}"


def _export_onnx(flat: FlatAllocator, path: Path) -> None:
    options = {"dynamo": True, "dynamic_shapes": _dynamic()[:3], "verbose": False}
    with quiet_export():
        torch.onnx.export(_WithoutStarts(flat), _example()[:3], **options).save(str(path))


@contextmanager
def quiet_export() -> Iterator[None]:
    """Without the warning that torchvision, which nothing here needs, is not installed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


class _WithoutStarts(nn.Module):
    """For ONNX, whose inputs are those that are used."""

    def __init__(self, flat: FlatAllocator) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.flat(x, source, target, source)


def _openvino(precision: str, model: EdgeAllocator, device: torch.device, store: ModelStore) -> Engine:
    import openvino

    flat = FlatAllocator(model)

    def build(folder: Path) -> None:
        program = openvino.convert_model(_exported(flat))
        if precision == "int8":
            program = quantization.static(program, model)
        openvino.save_model(program, folder / "model.xml", compress_to_fp16=False)

    made, seconds = stored(store, "openvino-int8" if precision == "int8" else "openvino", model, build)
    start = time.perf_counter()
    hints = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino_core().compile_model(made.folder / "model.xml", "CPU", hints).create_infer_request()

    def run(networks: NetworkArrays) -> np.ndarray:
        padded = networks.with_ghost()  # OpenVINO's bag refuses a last node without edges
        edges = padded.topology
        return request.infer([padded.x, edges.source, edges.target, edges.starts], share_outputs=True)[0][:-1].copy()

    note = quantization.STATIC if precision == "int8" else ""
    load_s, runtime = time.perf_counter() - start, f"openvino {openvino.__version__.split('-')[0]}"
    return Engine("openvino", precision, run, seconds, load_s, made.size_bytes, note, runtime)


def stored(store: ModelStore, kind: str, model: EdgeAllocator, build: Callable[[Path], None]) -> tuple[Any, float]:
    """(what `build` made of `model`, s that it took); 0 s where the store had it."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # exporters and compilers warn of what is deprecated inside themselves
        made = store.get(kind, {"weights": fingerprint(model), "made by": _made_by()}, build)
    return made, (time.perf_counter() - start) * made.made


@cache
def _made_by() -> dict[str, Any]:
    """What a stored model depends on beside its weights: this code, the libraries, the processor."""
    import onnxruntime
    import openvino

    files = (__file__, flat_allocator.__file__, quantization.__file__, Path(__file__).with_name("guide_exports.py"))
    code = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
    versions = [torch.__version__, onnxruntime.__version__, openvino.__version__]
    processor = [platform.system(), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    return {"code": code, "versions": versions, "processor": processor}


def _example(device: Any = "cpu") -> tuple[torch.Tensor, ...]:
    networks = NetworkArrays.of(edge_allocator.random_states(2, (20, 30), seed=0))
    return tuple(tensor.to(device) for tensor in networks.tensors)


def _dynamic() -> tuple[dict[int, Any], ...]:
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    return {0: nodes}, {0: edges}, {0: edges}, {0: nodes}


def _exported(flat: FlatAllocator) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(flat, _example(), dynamic_shapes=_dynamic())


BUILDERS: dict[tuple[str, str], Callable[..., Engine]] = {
    ("eager", "float32"): _eager,
    ("fast", "float32"): _fast,
    ("torchscript", "float32"): _torchscript,
    ("compiled", "float32"): _compiled,
    ("package", "float32"): _package,
    ("onnx", "float32"): _onnx,
    ("openvino", "float32"): partial(_openvino, "float32"),
    ("eager", "bfloat16"): _eager_bf16,
    ("openvino", "bfloat16"): partial(_openvino, "bfloat16"),
    ("eager", "int8"): _eager_int8,
    ("openvino", "int8"): partial(_openvino, "int8"),
}
