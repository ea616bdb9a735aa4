"""Does an exported model compute what its stages compute? Asked on other graphs than the one it was traced on.

Exporters can go wrong where the traced graph does not show it: sizes that became constants, targets that occur twice,
nodes without edges, maxima that start at zero. So each model is run on a graph of another size with all of these, and
again with every number far below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime
import torch

from gnnlab.openvino_core import openvino_core
from gnnlab.profiling.parity import RTOL_FLOAT32, ParityError, relative_error
from gnnlab.stages.export import padding
from gnnlab.stages.export.artefacts import FAILED, READY, WRONG, Artefact
from gnnlab.stages.export.graph_inputs import prepared
from gnnlab.workloads.graphsage import random_inputs
from gnnlab.workloads.staged import StagedLayer

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], list[np.ndarray]]
Files = Mapping[str, bytes]  # ending -> content, the weights behind the graph
OPENVINO, ONNXRUNTIME = "OpenVINO CPU", "ONNX Runtime CPU"
CHECKED = (37, 90)  # nodes and edges; more edges than nodes, so targets repeat
GHOST_SHARE = 8  # one in so many nodes and edges of a static model is left to the ghost


@dataclass(frozen=True)
class Verdict:
    """`status` is ready (right), wrong or failed; `error` the largest relative error, None where there is none."""

    status: str
    reason: str | None = None
    error: float | None = None


def native(files: Files) -> str:
    """The runtime that the model's format belongs to."""
    return ONNXRUNTIME if ".onnx" in files else OPENVINO


def loaded(files: Files, runtime: str) -> Run:
    """The model in a runtime, with one thread in float32: from its inputs by name to its outputs in order."""
    return RUNTIMES[runtime](files)


def verdict(
    artefact: Artefact, files: Files, layer: StagedLayer, runtime: str, graphs: Mapping[str, Arrays]
) -> Verdict:
    """How the model fares against torch on each of `graphs` (every value of the layer, by name), in float32."""
    worst = 0.0
    try:
        run = loaded(files, runtime)
        for name, values in graphs.items():
            error = _error(artefact, layer, run, values)
            worst = max(worst, error)
            if not error <= RTOL_FLOAT32:
                known = bool(np.isfinite(error))
                off = f"off by {error:.2g} of the largest magnitude" if known else "not finite, or of another shape,"
                return Verdict(WRONG, f"{off} on a graph with {name}", error if known else None)
    except Exception as error:  # whatever a runtime raises is the model's fate, not ours
        return Verdict(FAILED, reason_of(error))
    return Verdict(READY, None, worst)


def check_graphs(layer: StagedLayer, size: tuple[int, int] | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Values of the layer on the graphs that a model has to get right, by what is special about them.

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
    """What a foreign exception says, on one line: its telling line where it has one, else its first."""
    lines = [line.strip(" -\t") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "failed for" in line or "rule found" in line]
    text = next(iter(telling + lines), "")
    return f"{type(error).__name__}: {text}"[:160]


def feeds(artefact: Artefact, layer: StagedLayer, values: Arrays) -> dict[str, np.ndarray]:
    """The inputs of the model for one graph: padded to its size, sorted edges where it wants them, one column where
    only the number of rows counts."""
    given = dict(values) if artefact.nodes is None else padding.pad(layer, values, artefact.nodes, artefact.edges)
    given |= prepared(artefact.reads, given)
    rows = {name: given[name][:, :1] for name in artefact.sized_by}
    return {name: np.ascontiguousarray(rows.get(name, given[name])) for name in artefact.reads}


def _error(artefact: Artefact, layer: StagedLayer, run: Run, values: Arrays) -> float:
    block = layer.block(artefact.first, artefact.last)
    with torch.no_grad():
        expected = [t.numpy() for t in block(*(torch.from_numpy(values[name]) for name in block.reads))]
    got = dict(zip(artefact.writes, run(feeds(artefact, layer, values)), strict=True))
    got = padding.crop(layer, got, values["x"].shape[0], values["edge_index"].shape[1])
    try:
        return relative_error(expected, [got[name] for name in block.writes])
    except ParityError:  # another shape
        return float("inf")


def _smaller(count: int) -> int:
    return max(1, count - 1 - count // GHOST_SHARE)


def _in_openvino(files: Files) -> Run:
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    core = openvino_core()
    model = core.compile_model(core.read_model(*files.values()), "CPU", options)
    names = [port.get_names() for port in model.inputs]

    def run(arrays: Arrays) -> list[np.ndarray]:
        found = model([next(arrays[name] for name in arrays if name in known) for known in names])
        return [found[place] for place in range(len(model.outputs))]

    return run


def _in_onnxruntime(files: Files) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(files[".onnx"], options, providers=["CPUExecutionProvider"])
    names: Sequence[str] = [port.name for port in session.get_inputs()]
    return lambda arrays: session.run(None, {name: arrays[name] for name in names})


RUNTIMES: dict[str, Callable[[Files], Run]] = {OPENVINO: _in_openvino, ONNXRUNTIME: _in_onnxruntime}
