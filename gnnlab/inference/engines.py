"""What computes the scores of a predictor: one model, by several runtimes.

    engine = make("onnx", load("hybrid"))
    engine(networks)                   # (N,) float32 scores of the nodes of `NetworkArrays`
    engine.layers(x, edge_index)       # the same in place of a model's forward pass

Threads are torch's, but for ONNX Runtime, which sums correctly on one alone; precision is set and not inherited.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from gnnlab import machine
from gnnlab.errors import GnnlabError, Unavailable, one_line
from gnnlab.inference.flat_allocator import DenseAllocator, FlatAllocator
from gnnlab.inference.network_arrays import NetworkArrays
from gnnlab.inference.topology import Topology
from gnnlab.openvino_core import compile_for
from gnnlab.workloads import edge_networks
from gnnlab.workloads.edge_allocator import EdgeAllocator

Run = Callable[[NetworkArrays], np.ndarray]
# up to so many nodes the dense form; measured with one thread of an AVX-512 core, reading included: 49 against 137 µs
# at 10 nodes, 121 against about 200 at 64; from there on its products grow with the square
DENSE_NODES = 64
TORCH = f"torch {torch.__version__}"


@dataclass(frozen=True)
class InferenceEngine:
    """Scores of networks: `engine(networks)` -> (N,) float32.

    `runtime` is what computes, with its version, and `threads` how many it has; None: those of torch.
    """

    name: str
    precision: str
    run: Run
    note: str = ""
    runtime: str = TORCH
    threads: int | None = None
    device: str = ""  # its name, where it is not the CPU

    def __call__(self, networks: NetworkArrays) -> np.ndarray:
        return self.run(networks)

    def layers(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(N,) scores from x (N, 7) float32 and edges (2, E) int64 in any order, as the model's own forward pass."""
        topology = Topology(edge_index.numpy(), len(x))
        return torch.from_numpy(self(NetworkArrays(x.numpy(), topology, [0, len(x)], [])))

    @property
    def row(self) -> dict[str, Any]:
        """What computes, as fields of a row."""
        fields = {"runtime": self.runtime, "precision": self.precision, "notes": [self.note] if self.note else []}
        fields |= {"device": self.device, "threads": 0} if self.device else {}
        return fields if self.threads is None else {**fields, "threads": self.threads}


def make(name: str, model: EdgeAllocator, *, precision: str = "float32", device: Any = "cpu") -> InferenceEngine:
    """The engine `name` for `model`, which has scored a network of ten nodes; name and precision as in `BUILDERS`.

    Raises `GnnlabError`: there is no such engine, not in this precision or not on this device; `Unavailable`: it does
    not work here.
    """
    build = BUILDERS.get((name, precision))
    if build is None:
        known = ", ".join(f"{n} {p}" for n, p in BUILDERS)
        raise GnnlabError(f"engine {name!r} in {precision!r}: one of {known} is needed")
    device = torch.device(device)
    if device.type != "cpu" and name != "fast":
        raise GnnlabError(f"engine {name!r} in {precision} runs on the CPU alone, not on {device}; use cpu")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exporters and compilers warn of what is deprecated inside themselves
            built = build(model.eval(), device)
        built(_example(1, 10))
    except (ImportError, RuntimeError, NotImplementedError) as error:
        raise Unavailable(f"engine {name!r} in {precision} does not work here: {one_line(error)}") from error
    chip = f"CUDA {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type.upper()
    return replace(built, device="" if device.type == "cpu" else chip)


# ---- torch -----------------------------------------------------------------------------------------------------------


def _eager_int8(model: EdgeAllocator, device: torch.device) -> InferenceEngine:
    quantized = int8_weights(model)

    @torch.inference_mode()
    def run(networks: NetworkArrays) -> np.ndarray:
        x, source, target, _ = networks.tensors
        return quantized(x, torch.stack([source, target])).numpy()

    return InferenceEngine("eager", "int8", run, note="torch.ao, deprecated by PyTorch")


def _fast(model: EdgeAllocator, device: torch.device) -> InferenceEngine:
    flat = FlatAllocator(model.to(device))

    @torch.inference_mode()
    def beyond(networks: NetworkArrays) -> np.ndarray:
        return flat(*(tensor.to(device) for tensor in networks.tensors)).cpu().numpy()

    if device.type != "cpu":
        return InferenceEngine("fast", "float32", beyond)
    dense = DenseAllocator(flat)

    def run(networks: NetworkArrays) -> np.ndarray:
        few = len(networks.x) <= DENSE_NODES
        return dense(networks.x, networks.topology.adjacency) if few else beyond(networks)

    runtime = f"numpy {np.__version__} up to {DENSE_NODES} nodes, {TORCH} beyond"
    return InferenceEngine("fast", "float32", run, runtime=runtime)


# ---- other runtimes --------------------------------------------------------------------------------------------------


def _onnx(model: EdgeAllocator, device: torch.device) -> InferenceEngine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # one thread, whatever torch has: on two, ScatterND loses sums of edges with one target (1.31.1, errors of 1e-2)
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    session = onnxruntime.InferenceSession(_onnx_bytes(model), options, providers=["CPUExecutionProvider"])

    def run(networks: NetworkArrays) -> np.ndarray:
        source, target, _ = networks.topology.by_target
        return session.run(None, {"x": networks.x, "source": source, "target": target})[0]

    runtime = f"onnxruntime {machine.version('onnxruntime')}"
    return InferenceEngine("onnx", "float32", run, "ONNX Runtime has one thread", runtime, threads=1)


def _onnx_bytes(model: EdgeAllocator) -> bytes:
    options = {"dynamo": True, "dynamic_shapes": _dynamic()[:3], "verbose": False}
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns that torchvision, which nothing here needs, is not installed
    try:
        program = torch.onnx.export(_WithoutStarts(model), _example().tensors[:3], **options)
        return program.model_proto.SerializeToString()
    finally:
        log.setLevel(level)


class _WithoutStarts(nn.Module):
    """For ONNX, whose inputs are those that are used."""

    def __init__(self, model: EdgeAllocator) -> None:
        super().__init__()
        self.flat = FlatAllocator(model, sums="index_add")

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return self.flat(x, source, target, source)


def _openvino(model: EdgeAllocator, device: torch.device) -> InferenceEngine:
    import openvino

    with torch.no_grad():
        exported = torch.export.export(FlatAllocator(model), _example().tensors, dynamic_shapes=_dynamic())
    compiled = compile_for(openvino.convert_model(exported), "CPU", "float32", torch.get_num_threads())
    request = compiled.create_infer_request()

    def run(networks: NetworkArrays) -> np.ndarray:
        x = np.concatenate([networks.x, np.zeros_like(networks.x[:1])])
        edges = networks.topology.with_ghost()  # OpenVINO's bag refuses a last node without edges
        return request.infer([x, *edges], share_outputs=True)[0][:-1].copy()

    return InferenceEngine("openvino", "float32", run, runtime=f"openvino {machine.version('openvino')}")


def _example(count: int = 2, nodes: int = 25) -> NetworkArrays:
    return NetworkArrays.of(edge_networks.random_states(count, (nodes, nodes), seed=0))


def _dynamic() -> tuple[dict[int, Any], ...]:
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    return {0: nodes}, {0: edges}, {0: edges}, {0: nodes}


BUILDERS: dict[tuple[str, str], Callable[..., InferenceEngine]] = {
    ("fast", "float32"): _fast,
    ("onnx", "float32"): _onnx,
    ("openvino", "float32"): _openvino,
    ("eager", "int8"): _eager_int8,
}


def with_torch_linears(model: nn.Module) -> nn.Module:
    """A copy on the CPU in which every linear layer is torch's: PyG's layers hold a Linear of PyG's own, which
    `isinstance(layer, nn.Linear)` and `quantize_dynamic` pass by."""
    made = copy.deepcopy(model).cpu().eval()
    for parent in list(made.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, pyg.Linear):
                linear = nn.Linear(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
                linear.load_state_dict(layer.state_dict())
                setattr(parent, name, linear)
    return made


def int8_weights(model: nn.Module) -> nn.Module:
    """A copy of `model` with every linear layer in int8, activations quantized at each call.

    Raises:
        ImportError: this torch no longer has `torch.ao.quantization`, which is deprecated.
    """
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)
        return quantize_dynamic(with_torch_linears(model), {nn.Linear}, dtype=torch.qint8)
