"""Does an exported model compute what its stages compute? Asked on other graphs than the one it was traced on.

Exporters can go wrong where the traced graph does not show it: sizes that became constants, targets that occur twice,
nodes without edges, maxima that start at zero. So each model is run on a graph of another size with all of these, and
again with every number far below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from gnnlab.export.artefacts import FAILED, READY, WRONG, Artefact
from gnnlab.export.padding import Feed
from gnnlab.openvino_core import configuration, openvino_core
from gnnlab.workloads.graphsage import random_inputs
from gnnlab.workloads.staged import StagedLayer
from gnnswap import parity
from gnnswap.errors import one_line

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], list[np.ndarray]]
OPENVINO, ONNXRUNTIME = "OpenVINO", "ONNX Runtime"
CHECKED = (37, 90)  # nodes and edges; more edges than nodes, so targets repeat
GHOST_SHARE = 8  # one in so many nodes and edges of a static model is left to the ghost


def native(path: Path) -> str:
    """The runtime that the model's format belongs to."""
    return ONNXRUNTIME if path.suffix == ".onnx" else OPENVINO


def loaded(path: Path, runtime: str) -> Run:
    """The model in a runtime on the CPU, one thread, float32: from its inputs by name to its outputs in order."""
    return _RUNTIMES[runtime](path)


def check(artefact: Artefact, path: Path, layer: StagedLayer, runtime: str) -> Artefact:
    """The artefact with how its model at `path` fares against torch on each of `check_graphs`, in float32."""
    worst, size = 0.0, None if artefact.dynamic else (artefact.nodes, artefact.edges)
    try:
        run = loaded(path, runtime)
        for name, values in check_graphs(layer, size).items():
            error = _error(artefact, layer, run, values)
            worst = max(worst, error)
            if not error <= parity.RTOL_FLOAT32:
                finite = bool(np.isfinite(error))
                off = f"off by {error:.2g} of the largest magnitude" if finite else "not finite, or of another shape,"
                reason = f"{off} on a graph with {name}"
                return replace(artefact, status=WRONG, reason=reason, parity_error=error if finite else None)
    except Exception as error:  # whatever a runtime raises is recorded as the model's failure
        return failed(artefact, error)
    return replace(artefact, status=READY, parity_error=worst)


def failed(artefact: Artefact, error: BaseException) -> Artefact:
    """The artefact of a model that an exporter or a runtime refused."""
    return replace(artefact, status=FAILED, reason=reason_of(error), parity_error=None)


@lru_cache(maxsize=2)
def check_graphs(layer: StagedLayer, size: tuple[int, int] | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Every value of the layer on the graphs that a model has to get right, by what is special about them.

    For a model of static `size` they are smaller than it, so that it is checked with its padding.
    """
    nodes, edges = CHECKED if size is None else (_smaller(size[0]), _smaller(size[1]))
    if size is not None and nodes == size[0]:
        edges = size[1]  # no room for a ghost
    with torch.no_grad():
        traced = layer.trace(**random_inputs(nodes, edges, layer.features, seed=7))
    values = {name: tensor.numpy() for name, tensor in traced.items()}
    negative = {
        name: -100 * (np.abs(a) + 1) if a.dtype == np.float32 and name != "counts" else a for name, a in values.items()
    }
    return {"repeated targets and isolated nodes": values, "large negative numbers only": negative}


def reason_of(error: BaseException) -> str:
    """What a foreign exception says, on one line: that which names an operation where there is one, else its first."""
    lines = [line.strip(" -\t") for line in str(error).splitlines()]
    operation = next((line for line in lines if "failed for" in line or "rule found" in line), None)
    return one_line(error) if operation is None else f"{type(error).__name__}: {operation}"[:160]


def feed_for(artefact: Artefact, layer: StagedLayer, values: Arrays) -> Feed:
    """What puts the graph of `values` into the model and its results back."""
    return Feed(layer, artefact, values["x"].shape[0], values["edge_index"].shape[1])


def _error(artefact: Artefact, layer: StagedLayer, run: Run, values: Arrays) -> float:
    block = layer.block(artefact.first, artefact.last)
    with torch.no_grad():
        expected = [t.numpy() for t in block(*(torch.from_numpy(values[name]) for name in block.reads))]
    feed = feed_for(artefact, layer, values)
    outputs = feed.outputs(run(feed.inputs(values)))
    return float(parity.error([outputs[name] for name in block.writes], expected))


def _smaller(count: int) -> int:
    return max(1, count - 1 - count // GHOST_SHARE)


def _in_openvino(path: Path) -> Run:
    options = configuration("CPU", "float32", threads=1)
    files = [path.read_bytes(), *([path.with_suffix(".bin").read_bytes()] if path.suffix == ".xml" else [])]
    model = openvino_core().compile_model(openvino_core().read_model(*files), "CPU", options)
    names = [port.get_names() for port in model.inputs]

    def run(arrays: Arrays) -> list[np.ndarray]:
        results = model([next(arrays[name] for name in arrays if name in known) for known in names])
        return [results[place] for place in range(len(model.outputs))]

    return run


def _in_onnxruntime(path: Path) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    return lambda arrays: session.run(None, {name: arrays[name] for name in names})


_RUNTIMES: dict[str, Callable[[Path], Run]] = {OPENVINO: _in_openvino, ONNXRUNTIME: _in_onnxruntime}
