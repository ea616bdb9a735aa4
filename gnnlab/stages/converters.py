"""From a block of stages to a model in memory: ONNX by two exporters, OpenVINO's IR from torch and by hand.

    with silence_logs():
        model = convert(layer, wanted, source)      # bytes of ONNX, or an `openvino.Model`

| exporter | gives | layouts of a sum over targets, the default first |
|---|---|---|
| `onnx` | ONNX by torch.onnx.export(dynamo=True) | scatter_add, index_add |
| `openvino` | IR by openvino.convert_model of the torch program | scatter_add, index_add (cannot be converted) |
| `handbuilt` | IR of a graph built by hand, see `segment_sums` | segment_sum |
| `onnx-legacy` | ONNX by the TorchScript exporter; to be shown, not used | scatter_add, index_add |

In ONNX index_add becomes ScatterND, whose updates ONNX Runtime adds from several threads without a lock: some sums are
wrong (onnxruntime #23396, #18048). scatter_add becomes ScatterElements, which one thread adds.

Numbers of nodes and edges stay open, and so does the width of what is read for its number of rows alone: one column of
it is enough. Inputs and outputs come in the order of the block's `reads` and `writes`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch

from gnnlab.openvino_core import openvino_core
from gnnlab.workloads.graphsage import random_inputs
from gnnlab.workloads.staged import REDUCTIONS, StageBlock, StagedLayer

if TYPE_CHECKING:
    import openvino

    from gnnlab.stages.export import Model

Example = tuple[torch.Tensor, ...]  # what a block reads, on a small graph
INDEX_ADD, SCATTER_ADD = REDUCTIONS
SEGMENT_SUM = "segment_sum"
OPENVINO, HANDBUILT = "openvino", "handbuilt"
TRACED = (11, 29)  # nodes and edges of the graph that exporters see


def convert(layer: StagedLayer, wanted: Model, source: Path | None) -> openvino.Model | bytes:
    """The model `wanted`; a static one is made from the dynamic one in the file `source`.

    Raises whatever a converter raises.
    """
    if wanted.exporter == HANDBUILT:
        from gnnlab.stages import segment_sums

        return segment_sums.build(layer, wanted.first, wanted.last)
    if not wanted.dynamic:
        return _static(layer, wanted, source)
    chosen = layer.reduced_by(wanted.layout) if wanted.layout in REDUCTIONS else layer
    with torch.no_grad():
        block, values = chosen.block(wanted.first, wanted.last), layer.trace(**random_inputs(*TRACED, layer.features))
        example = tuple(values[name] for name in block.reads)
        return EXPORTERS[wanted.exporter](block, example)


def _onnx(block: StageBlock, example: Example) -> bytes:
    program = torch.onnx.export(_program(block, example), dynamo=True, verbose=False, **_names(block))
    return program.model_proto.SerializeToString()


def _onnx_legacy(block: StageBlock, example: Example) -> bytes:
    file, axes = BytesIO(), {name: _open_axes(block, name) for name in (*block.reads, *block.writes)}
    torch.onnx.export(block, example, file, dynamo=False, dynamic_axes=axes, **_names(block))
    return file.getvalue()


def _ir(block: StageBlock, example: Example) -> openvino.Model:
    """OpenVINO's IR of the torch program, with the names and widths of the block.

    Tensors inside lose their names: where a device leaves an operation out, they would become those of an input.
    """
    import openvino

    converted, shapes = openvino.convert_model(_program(block, example)), {}
    for output in [output for node in converted.get_ops() for output in node.outputs()]:
        output.get_tensor().set_names(set())
    for port, name in zip(converted.inputs, block.reads, strict=True):
        port.get_tensor().set_names({name})
        free = _open_axes(block, name)
        shapes[name] = [-1 if i in free else dim for i, dim in enumerate(block.values[name].dims)]
    converted.reshape(shapes)
    return converted


EXPORTERS: dict[str, Callable[[StageBlock, Example], openvino.Model | bytes]] = {
    "onnx": _onnx,
    OPENVINO: _ir,
    "onnx-legacy": _onnx_legacy,
}
LAYOUTS = dict.fromkeys(EXPORTERS, (SCATTER_ADD, INDEX_ADD)) | {HANDBUILT: (SEGMENT_SUM,)}


def _static(layer: StagedLayer, wanted: Model, source: Path) -> openvino.Model:
    """The dynamic model with every dimension fixed. Inputs that gave their shape alone become constants.

    Folding all constants would do the same and write zeros of a whole result into the file.
    """
    from openvino import opset13

    fixed, names = openvino_core().read_model(source), layer.block(wanted.first, wanted.last).reads
    fixed.reshape({name: list(layer.values[name].shape(*wanted.size)) for name in names})
    for parameter in [fixed.get_parameters()[place] for place, name in enumerate(names) if name not in wanted.reads]:
        for reader in parameter.output(0).get_target_inputs():  # ShapeOf
            told = reader.get_node().output(0)
            told.replace(opset13.constant(list(parameter.shape), told.get_element_type()).output(0))
        fixed.remove_parameter(parameter)
    fixed.validate_nodes_and_infer_types()
    return fixed


def _program(block: StageBlock, example: Example) -> torch.export.ExportedProgram:
    shapes = tuple(dict.fromkeys(_open_axes(block, name), torch.export.Dim.DYNAMIC) for name in block.reads)
    return torch.export.export(block, example, dynamic_shapes=(shapes,), strict=False)


def _names(block: StageBlock) -> dict[str, list[str]]:
    return {"input_names": list(block.reads), "output_names": list(block.writes)}


def _open_axes(block: StageBlock, name: str) -> list[int]:
    """Nodes and edges; of what is read for its number of rows also the width, so that one column is enough."""
    dims = block.values[name].dims
    return [i for i, dim in enumerate(dims) if isinstance(dim, str) or name in block.shape_only]


@contextmanager
def silence_logs() -> Iterator[None]:
    """No warnings of exporters, whose models are checked, and no telemetry.

    `convert_model` reports each use over the network, unless it takes itself to be in continuous integration.
    """
    with patch.dict(os.environ, CI="true"), warnings.catch_warnings(action="ignore"):
        try:
            logging.disable(logging.WARNING)
            yield
        finally:
            logging.disable(logging.NOTSET)
