"""What computes the scores of a predictor: one model, by several runtimes.

    engine = make("onnx", weights("hybrid"))
    engine(networks)                   # (N,) float32 scores of the nodes of `NetworkArrays`
    engine.layers(x, edge_index)       # the same in place of a model's forward pass

Threads are torch's, but for ONNX Runtime, which sums correctly on one alone; precision is set and not inherited.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnlab import machine
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.inference.flat_allocator import DenseAllocator, FlatAllocator
from gnnlab.inference.states import DENSE_NODES, NetworkArrays, Topology
from gnnlab.openvino_core import compile_for
from gnnlab.workloads import edge_networks
from gnnlab.workloads.edge_allocator import model_of
from gnnswap.errors import one_line

TORCH = f"torch {torch.__version__}"
logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision, needed by nothing, is missing


@dataclass
class InferenceEngine:
    """Scores of networks: `engine(networks)` -> (N,) float32; `row`: what computes them, as fields of a row (runtime,
    precision, threads, device, notes; what it lacks is torch's)."""

    run: Callable[[NetworkArrays], np.ndarray]
    row: dict[str, Any]

    def __call__(self, networks: NetworkArrays) -> np.ndarray:
        return self.run(networks)

    def layers(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(N,) scores from x (N, 7) float32 and edges (2, E) int64 in any order, as the model's own forward pass."""
        topology = Topology(edge_index.numpy(), len(x))
        return torch.from_numpy(self(NetworkArrays(x.numpy(), topology, [0, len(x)], [])))


def make(name: str, weights: Mapping[str, Tensor], device: Any = "cpu") -> InferenceEngine:
    """The engine `name`, one of `BUILDERS`, for the `weights` of an `EdgeAllocator`; it has scored a network.

    Raises `GnnlabError`: there is no such engine, or not on this device; `Unavailable`: it does not work here.
    """
    if name not in BUILDERS:
        raise GnnlabError(f"engine {name!r}: one of {', '.join(BUILDERS)} is needed")
    device = torch.device(device)
    if device.type != "cpu" and name != "fast":
        raise GnnlabError(f"engine {name!r} runs on the CPU alone, not on {device}; use cpu")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exporters and compilers warn of what is deprecated inside themselves
            run, row = BUILDERS[name](weights, device)
        run(_example(1, 10))
    except (ImportError, RuntimeError, NotImplementedError) as error:
        raise Unavailable(f"engine {name!r} does not work here: {one_line(error)}") from error
    if device.type != "cpu":
        chip = f"CUDA {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type.upper()
        row |= {"device": chip, "threads": 0}
    return InferenceEngine(run, {"precision": "float32", "notes": [], **row})


Weights = Mapping[str, Tensor]
Built = tuple[Callable[[NetworkArrays], np.ndarray], dict[str, Any]]


def _int8(weights: Weights, device: torch.device) -> Built:
    """Weights in int8, activations quantized at each call."""
    from torch.ao.quantization import quantize_dynamic

    quantized = quantize_dynamic(with_torch_linears(model_of(weights)), {nn.Linear}, dtype=torch.qint8)

    @torch.inference_mode()
    def run(networks: NetworkArrays) -> np.ndarray:
        x, source, target, _ = networks.tensors
        return quantized(x, torch.stack([source, target])).numpy()

    return run, {"runtime": TORCH, "precision": "int8", "notes": ["torch.ao, deprecated by PyTorch"]}


def _fast(weights: Weights, device: torch.device) -> Built:
    flat = FlatAllocator(weights, device)

    @torch.inference_mode()
    def beyond(networks: NetworkArrays) -> np.ndarray:
        return flat(*(tensor.to(device) for tensor in networks.tensors)).cpu().numpy()

    if device.type != "cpu":
        return beyond, {"runtime": TORCH}
    dense = DenseAllocator(flat)

    def run(networks: NetworkArrays) -> np.ndarray:
        few = len(networks.x) <= DENSE_NODES
        return dense(networks.x, networks.topology.adjacency) if few else beyond(networks)

    return run, {"runtime": f"numpy {np.__version__} up to {DENSE_NODES} nodes, {TORCH} beyond"}


def _onnx(weights: Weights, device: torch.device) -> Built:
    import onnxruntime

    how = {"dynamo": True, "dynamic_shapes": _dynamic()[:3], "verbose": False}
    program = torch.onnx.export(FlatAllocator(weights), _example().tensors[:3], **how)
    options = onnxruntime.SessionOptions()
    # one thread, whatever torch has: on two, ScatterND loses sums of edges with one target (1.31.1, errors of 1e-2)
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    model_bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model_bytes, options, providers=["CPUExecutionProvider"])

    def run(networks: NetworkArrays) -> np.ndarray:
        source, target, _ = networks.topology.by_target
        return session.run(None, {"x": networks.x, "source": source, "target": target})[0]

    runtime = f"onnxruntime {machine.version('onnxruntime')}"
    return run, {"runtime": runtime, "threads": 1, "notes": ["ONNX Runtime has one thread"]}


def _openvino(weights: Weights, device: torch.device) -> Built:
    import openvino

    with torch.no_grad():
        exported = torch.export.export(FlatAllocator(weights), _example().tensors, dynamic_shapes=_dynamic())
    compiled = compile_for(openvino.convert_model(exported), "CPU", "float32", torch.get_num_threads())
    request = compiled.create_infer_request()

    def run(networks: NetworkArrays) -> np.ndarray:
        # OpenVINO's segment sum refuses a last node without edges, so a node with two edges to itself comes last
        nodes, (source, target, starts) = len(networks.x), networks.topology.by_target
        x = np.concatenate([networks.x, np.zeros_like(networks.x[:1])])
        source, target = (np.append(ends, [nodes, nodes]) for ends in (source, target))
        inputs = [x, source, target, np.append(starts, len(source) - 2)]
        return request.infer(inputs, share_outputs=True)[0][:-1].copy()

    return run, {"runtime": f"openvino {machine.version('openvino')}"}


def _example(count: int = 2, nodes: int = 25) -> NetworkArrays:
    return NetworkArrays.of(edge_networks.random_states(count, (nodes, nodes), seed=0))


def _dynamic() -> tuple[dict[int, Any], ...]:
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    return {0: nodes}, {0: edges}, {0: edges}, {0: nodes}


BUILDERS: dict[str, Callable[..., Built]] = {"fast": _fast, "onnx": _onnx, "openvino": _openvino, "int8": _int8}


def with_torch_linears(model: nn.Module) -> nn.Module:
    """A copy on the CPU in which every linear layer is torch's: PyG's layers hold a Linear of PyG's own, which
    `isinstance(layer, nn.Linear)` and `quantize_dynamic` pass by."""
    from torch_geometric import nn as pyg

    model = copy.deepcopy(model).cpu().eval()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, pyg.Linear):
                linear = nn.Linear(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
                linear.load_state_dict(layer.state_dict())
                setattr(parent, name, linear)
    return model
