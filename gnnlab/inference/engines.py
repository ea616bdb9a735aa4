"""What computes the scores of a predictor: one model, by several runtimes and in several precisions.

    engine = make("onnx", load("hybrid"), folder="models")
    engine(networks)                   # (N,) float32 scores of the nodes of `NetworkArrays`
    engine.layers(x, edge_index)       # the same in place of a model's forward pass

Each engine says what it cost to build and to load. Threads are torch's, but for ONNX Runtime, which sums rightly on one
alone; precision is set and not inherited.
"""

from __future__ import annotations

import logging
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnlab import machine
from gnnlab.errors import GnnlabError, Unavailable, one_line
from gnnlab.files import Made, Store, digest
from gnnlab.inference import compression, flat_allocator
from gnnlab.inference.flat_allocator import DenseAllocator, FlatAllocator
from gnnlab.inference.network_arrays import NetworkArrays, Topology
from gnnlab.kernels import linears
from gnnlab.openvino_core import compile_for
from gnnlab.profiling.timing import stopwatch
from gnnlab.workloads import edge_networks
from gnnlab.workloads.edge_allocator import EdgeAllocator
from gnnlab.workloads.staged import fingerprint

Run = Callable[[NetworkArrays], np.ndarray]
MOST_NODES = 2048  # in a pass: hidden values of 512 KiB, which stay in the cache and are not mapped in anew each time
# up to so many nodes the dense form; measured with one thread of an AVX-512 core, reading included: 49 against 137 µs
# at 10 nodes, 121 against about 200 at 64; from there on its products grow with the square
DENSE_NODES = 64
CPU_ONLY = ("onnx", "openvino", "package")  # and keep files
TORCH = f"torch {torch.__version__}"


@dataclass(frozen=True)
class InferenceEngine:
    """Scores of networks: `engine(networks)` -> (N,) float32. `build_s` is 0 where a stored model was used again.

    `runtime` is what computes, with its version, and `threads` how many it has; None: those of torch.
    """

    name: str
    precision: str
    run: Run
    build_s: float = 0.0
    load_s: float = 0.0
    first_call_ms: float = 0.0
    stored_bytes: int = 0
    note: str = ""
    runtime: str = TORCH
    threads: int | None = None
    device: str = ""  # its name, where it is not the CPU

    def __call__(self, networks: NetworkArrays) -> np.ndarray:
        pieces = networks.pieces(MOST_NODES)
        return self.run(networks) if len(pieces) == 1 else np.concatenate([self.run(piece) for piece in pieces])

    def layers(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(N,) scores from x (N, 7) float32 and edges (2, E) int64 in any order, as the model's own forward pass."""
        nodes = len(x)
        topology = Topology.of(edge_index.numpy(), nodes)
        return torch.from_numpy(self(NetworkArrays(x.numpy(), topology, np.array([0, nodes]), [])))

    @property
    def row(self) -> dict[str, Any]:
        """What computes, as fields of a row."""
        fields = {"runtime": self.runtime, "precision": self.precision, "notes": [self.note] if self.note else []}
        fields |= {"device": self.device, "threads": 0} if self.device else {}
        return fields if self.threads is None else {**fields, "threads": self.threads}

    @property
    def costs(self) -> list[dict[str, Any]]:
        """What it costs besides its predictions, as fields of a row each: cost, value, unit, ...

        Building (none where a stored model was used) and loading in s, the first call in ms, its files in KiB.
        """
        measured = {"origin": "measured", "statistic": "single", "interval": "none"}
        counted = {"origin": "counted", "statistic": "count", "interval": "exact"}
        found = (
            ("build", self.build_s, "s", measured),
            ("load", self.load_s, "s", measured),
            ("first call", self.first_call_ms, "ms", measured),
            ("stored", self.stored_bytes / 1024, "KiB", counted),
        )
        shared = {**self.row, "n": 1, "better": "lower"}
        return [shared | how | {"cost": c, "value": v, "unit": unit} for c, v, unit, how in found if v > 0]


def make(
    name: str,
    model: EdgeAllocator,
    *,
    precision: str = "float32",
    device: Any = "cpu",
    folder: str | Path | None = None,
) -> InferenceEngine:
    """The engine `name` for `model`, which has scored a network of ten nodes.

    name and precision are one of `BUILDERS`. onnx, openvino and package need a `folder` for their files, and use those
    that are there again.

    Raises `GnnlabError`: there is no such engine, not in this precision or not on this device; `Unavailable`: it does
    not work here.
    """
    build = BUILDERS.get((name, precision))
    if build is None:
        known = ", ".join(f"{n} {p}" for n, p in BUILDERS)
        raise GnnlabError(f"engine {name!r} in {precision!r}: one of {known} is needed")
    device = torch.device(device)
    if device.type != "cpu" and (name in CPU_ONLY or precision == "int8"):
        raise GnnlabError(f"engine {name!r} in {precision} runs on the CPU alone, not on {device}; use cpu")
    if name in CPU_ONLY and folder is None:
        raise GnnlabError(f"engine {name!r} keeps files: give a folder")
    try:
        with warnings.catch_warnings(), stopwatch() as all_of_it:
            warnings.simplefilter("ignore")  # exporters and compilers warn of what is deprecated inside themselves
            built = build(model.eval(), device, Store(folder or "."))
        with stopwatch() as first:
            built(_example(1, 10))
    except (ImportError, RuntimeError, NotImplementedError) as error:
        raise Unavailable(f"engine {name!r} in {precision} does not work here: {one_line(error)}") from error
    load_s = max(0.0, all_of_it.s - built.build_s)
    chip = f"CUDA {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type.upper()
    chip = "" if device.type == "cpu" else chip
    return replace(built, name=name, precision=precision, load_s=load_s, first_call_ms=first.ms, device=chip)


def missing(name: str, precision: str, reason: Unavailable) -> InferenceEngine:
    """In place of an engine that does not work here: raises `reason` when it is asked for scores."""

    def run(networks: NetworkArrays) -> np.ndarray:
        raise Unavailable(str(reason))

    return InferenceEngine(name, precision, run, runtime=name)


# ---- torch -----------------------------------------------------------------------------------------------------------


def _eager_int8(model: EdgeAllocator, device: torch.device, store: Store) -> InferenceEngine:
    with stopwatch() as took:
        quantized = linears.int8_weights(model)

    @torch.inference_mode()
    def run(networks: NetworkArrays) -> np.ndarray:
        x, source, target, _ = networks.tensors
        return quantized(x, torch.stack([source, target])).numpy()

    return InferenceEngine("eager", "int8", run, took.s, note="torch.ao, deprecated by PyTorch")


def _fast(model: EdgeAllocator, device: torch.device, store: Store) -> InferenceEngine:
    flat = FlatAllocator(model.to(device))
    beyond = partial(_run_flat, flat, device)
    if device.type != "cpu":
        return InferenceEngine("fast", "float32", beyond)
    dense = DenseAllocator(flat)

    def run(networks: NetworkArrays) -> np.ndarray:
        few = len(networks.x) <= DENSE_NODES
        return dense(networks.x, networks.topology.adjacency) if few else beyond(networks)

    runtime = f"numpy {np.__version__} up to {DENSE_NODES} nodes, {TORCH} beyond"
    return InferenceEngine("fast", "float32", run, runtime=runtime)


@torch.inference_mode()
def _run_flat(flat: Callable[..., Tensor], device: torch.device, networks: NetworkArrays) -> np.ndarray:
    return flat(*(tensor.to(device) for tensor in networks.tensors)).cpu().numpy()


def _compiled(model: EdgeAllocator, device: torch.device, store: Store) -> InferenceEngine:
    function = torch.compile(FlatAllocator(model.to(device)), dynamic=True, fullgraph=True)
    with stopwatch() as took, torch.inference_mode():
        function(*(tensor.to(device) for tensor in _example().tensors))
    return InferenceEngine("compiled", "float32", partial(_run_dynamic, partial(_run_flat, function, device)), took.s)


def _package(model: EdgeAllocator, device: torch.device, store: Store) -> InferenceEngine:
    def build(folder: Path) -> None:
        program = _exported(FlatAllocator(model))
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))

    made = _stored(store, "package", model, build)
    run_boxed = torch._inductor.aoti_load_package(str(made.folder / "model.pt2")).loader.boxed_run

    def run(networks: NetworkArrays) -> np.ndarray:
        return run_boxed(list(networks.tensors))[0].numpy()

    return InferenceEngine("package", "float32", partial(_run_dynamic, run), made.seconds, stored_bytes=made.size_bytes)


def _run_dynamic(run: Run, networks: NetworkArrays) -> np.ndarray:
    """Compilers take a size of 0 or 1 for a constant, so a program made for any size is given sizes from 2 on."""
    if min(len(networks.x), len(networks.topology.source)) > 1:
        return run(networks)
    return run(networks.with_ghost())[:-1]


# ---- other runtimes --------------------------------------------------------------------------------------------------


def _onnx(model: EdgeAllocator, device: torch.device, store: Store) -> InferenceEngine:
    import onnxruntime

    made = _stored(store, "onnx", model, lambda folder: _export_onnx(model, folder / "model.onnx"))
    options = onnxruntime.SessionOptions()
    # one thread, whatever torch has: on two, ScatterND loses sums of edges with one target (1.31.1, errors of 1e-2)
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    path = str(made.folder / "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(networks: NetworkArrays) -> np.ndarray:
        topology = networks.topology
        return session.run(None, {"x": networks.x, "source": topology.source, "target": topology.target})[0]

    runtime = f"onnxruntime {machine.version('onnxruntime')}"
    one = {"note": "ONNX Runtime has one thread", "threads": 1}
    return InferenceEngine("onnx", "float32", run, made.seconds, stored_bytes=made.size_bytes, runtime=runtime, **one)


def _export_onnx(model: EdgeAllocator, path: Path) -> None:
    options = {"dynamo": True, "dynamic_shapes": _dynamic()[:3], "verbose": False}
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns that torchvision, which nothing here needs, is not installed
    try:
        torch.onnx.export(_WithoutStarts(model), _example().tensors[:3], **options).save(str(path))
    finally:
        log.setLevel(level)


class _WithoutStarts(nn.Module):
    """For ONNX, whose inputs are those that are used."""

    def __init__(self, model: EdgeAllocator) -> None:
        super().__init__()
        self.flat = FlatAllocator(model, sums="index_add")

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return self.flat(x, source, target, source)


def _openvino(precision: str, model: EdgeAllocator, device: torch.device, store: Store) -> InferenceEngine:
    import openvino

    def build(folder: Path) -> None:
        program = openvino.convert_model(_exported(FlatAllocator(model)))
        if precision == "int8":
            program = compression.int8_program(program)
        openvino.save_model(program, folder / "model.xml", compress_to_fp16=False)

    made = _stored(store, "openvino-int8" if precision == "int8" else "openvino", model, build)
    computed = "bfloat16" if precision == "bfloat16" else "float32"  # int8 lies in the program itself
    compiled = compile_for(made.folder / "model.xml", "CPU", computed, torch.get_num_threads())
    request = compiled.create_infer_request()

    def run(networks: NetworkArrays) -> np.ndarray:
        padded = networks.with_ghost()  # OpenVINO's bag refuses a last node without edges
        edges = padded.topology
        return request.infer([padded.x, edges.source, edges.target, edges.starts], share_outputs=True)[0][:-1].copy()

    of = {"note": "NNCF, calibrated" * (precision == "int8"), "runtime": f"openvino {machine.version('openvino')}"}
    return InferenceEngine("openvino", precision, run, made.seconds, stored_bytes=made.size_bytes, **of)


# ---- files -----------------------------------------------------------------------------------------------------------


def weights_digest(model: nn.Module) -> str:
    """A digest of the names, types, shapes and bytes of all weights and buffers."""
    return fingerprint(dict(model.named_parameters()) | dict(model.named_buffers()))


def _stored(store: Store, kind: str, model: EdgeAllocator, build: Callable[[Path], None]) -> Made:
    return store.make({"kind": kind, "weights": weights_digest(model), **_made_by()}, build)


@cache
def _made_by() -> dict[str, Any]:
    """What a stored model depends on beside its weights: this code, the libraries, the processor."""
    code = digest(*(Path(file) for file in (__file__, flat_allocator.__file__, compression.__file__)))
    processor = [platform.system(), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    return {"code": code, "versions": machine.versions(), "processor": processor}


def _example(count: int = 2, nodes: int = 25) -> NetworkArrays:
    return NetworkArrays.of(edge_networks.random_states(count, (nodes, nodes), seed=0))


def _dynamic() -> tuple[dict[int, Any], ...]:
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    return {0: nodes}, {0: edges}, {0: edges}, {0: nodes}


def _exported(flat: FlatAllocator) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(flat, _example().tensors, dynamic_shapes=_dynamic())


BUILDERS: dict[tuple[str, str], Callable[..., InferenceEngine]] = {
    ("fast", "float32"): _fast,
    ("compiled", "float32"): _compiled,
    ("package", "float32"): _package,
    ("onnx", "float32"): _onnx,
    ("openvino", "float32"): partial(_openvino, "float32"),
    ("openvino", "bfloat16"): partial(_openvino, "bfloat16"),
    ("openvino", "int8"): partial(_openvino, "int8"),
    ("eager", "int8"): _eager_int8,
}
