"""The guide's model by the runtimes that the guide names, as it is: no layer of it is rewritten.

    traced(model).layers(x, edge_index)      # (N,) scores, as the model itself gives them

Of each the guide's own call, and where that fails or computes something else on this model, the form that works.
Whether the scores agree is for the caller to check: `onnx_opset_11` is exported without an error, and is wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gnnlab.optimize.inference import engines
from gnnlab.optimize.inference.model_store import ModelStore
from gnnlab.optimize.inference.network_arrays import NetworkArrays
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import EdgeAllocator

DEPRECATED = "deprecated by PyTorch"
NAMES = ["x", "edge_index"]


@dataclass(frozen=True)
class Exported:
    """`layers(x, edge_index)` -> (N,) scores, x (N, 7), edge_index (2, E) tensors; `threads` None: those of torch."""

    layers: Callable[[Tensor, Tensor], Tensor]
    runtime: str
    note: str
    threads: int | None = None


def scripted(model: EdgeAllocator) -> Exported:
    """`torch.jit.script(model)`, as the guide writes it. Raises what TorchScript does where it cannot read a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, which its note says
        return Exported(torch.jit.script(model), engines.TORCH, DEPRECATED)


def traced(model: EdgeAllocator) -> Exported:
    """`torch.jit.trace` of the same model, which records the operators of one call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Exported(torch.jit.trace(model, _example()), engines.TORCH, DEPRECATED)


def onnx(model: EdgeAllocator, store: ModelStore) -> Exported:
    """Exported with numbers of nodes and edges left open, run by ONNX Runtime."""
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    options = {"dynamo": True, "dynamic_shapes": {"x": {0: nodes}, "edge_index": {1: edges}}, "verbose": False}
    return _by_onnx_runtime(model, store, "onnx-guide", options, f"{engines.TORCH}, dynamo=True, sizes left open")


def onnx_opset_11(model: EdgeAllocator, store: ModelStore) -> Exported:
    """Exported by the exporter of the guide's time at its `opset_version=11`, with sizes left open.

    That opset has no scatter that adds, so edges with one target overwrite each other.
    """
    sizes = {"x": {0: "nodes"}, "edge_index": {1: "edges"}}
    options = {"dynamo": False, "opset_version": 11, "input_names": NAMES, "dynamic_axes": sizes}
    return _by_onnx_runtime(model, store, "onnx-opset-11", options, "sizes left open")


def _by_onnx_runtime(model: EdgeAllocator, store: ModelStore, kind: str, options: dict, note: str) -> Exported:
    def build(folder: Path) -> None:
        with engines.quiet_export():
            torch.onnx.export(model, _example(), str(folder / "model.onnx"), **options)

    stored, _ = engines.stored(store, kind, model, build)
    session, runtime = engines.onnx_session(stored.folder / "model.onnx")
    used = [given.name for given in session.get_inputs()]  # a model without a graph does not read its edges

    def layers(x: Tensor, edge_index: Tensor) -> Tensor:
        given = dict(zip(NAMES, (x.numpy(), edge_index.numpy()), strict=True))
        return torch.from_numpy(session.run(None, {name: given[name] for name in used})[0])

    return Exported(layers, runtime, f"{note}; {engines.ONE_THREAD}", threads=1)


def _example() -> tuple[Tensor, Tensor]:
    networks = NetworkArrays.of(edge_allocator.random_states(2, (20, 30), seed=0))
    return torch.from_numpy(networks.x), torch.from_numpy(networks.edge_index)
