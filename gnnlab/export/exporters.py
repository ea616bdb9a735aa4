"""From a block of stages to an exchange format: ONNX by two exporters, OpenVINO's IR from torch and from ONNX.

Each function writes its file (`model.onnx`, or `model.xml` with `model.bin`) into a folder. Node and edge counts stay
open. Of inputs that are read for their number of rows alone the width stays open as well, so that one column is enough.
Inputs and outputs come in the order of the block's `reads` and `writes`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import openvino
import torch
from openvino import opset13
from torch import Tensor

from gnnlab.errors import GnnlabError
from gnnlab.workloads.staged import StageBlock

# they say that torchvision is not there, and that an empty list of axes might be of any type
_NOISY = ("torch.onnx._internal.exporter._registration", "onnx_ir._convenience")


def onnx_dynamo(block: StageBlock, example: Sequence[Tensor], folder: Path) -> None:
    """ONNX by `torch.onnx.export(dynamo=True)`, through `torch.export`."""
    names = {"input_names": list(block.reads), "output_names": [f"{name}_out" for name in block.writes]}
    with quiet():
        program = torch.onnx.export(_exported(block, example), dynamo=True, verbose=False, **names)
        (folder / "model.onnx").write_bytes(program.model_proto.SerializeToString())


def onnx_legacy(block: StageBlock, example: Sequence[Tensor], folder: Path) -> None:
    """ONNX by the exporter of before, which traces to TorchScript. Only for the correctness matrix."""
    outputs = {f"{name}_out": name for name in block.writes}
    axes = {
        given: _open_axes(block, name)
        for given, name in [*zip(block.reads, block.reads, strict=True), *outputs.items()]
    }
    axes = {name: {i: f"{name}_{i}" for i in dims} for name, dims in axes.items()}
    names = {"input_names": list(block.reads), "output_names": list(outputs), "dynamic_axes": axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated is why it is only checked
        torch.onnx.export(block, tuple(example), folder / "model.onnx", dynamo=False, **names)


def ir_from_torch(block: StageBlock, example: Sequence[Tensor], folder: Path) -> None:
    """OpenVINO's IR by `openvino.convert_model` of the exported program."""
    with quiet():
        model = openvino.convert_model(_exported(block, example))
    save(named(model, block), folder)


def ir_from_onnx(block: StageBlock, onnx: Path, folder: Path) -> None:
    """OpenVINO's IR by `openvino.convert_model` of the ONNX that `onnx_dynamo` wrote for this block."""
    with quiet():
        model = openvino.convert_model(onnx)
    save(named(model, block), folder)


TRACING = {"onnx": onnx_dynamo, "openvino": ir_from_torch, "onnx-legacy": onnx_legacy}


def save(model: openvino.Model, folder: Path) -> None:
    """The IR as files; weights stay float32."""
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


def named(model: openvino.Model, block: StageBlock) -> openvino.Model:
    """The model with the block's names and its known widths, which converting loses.

    Tensors between them lose their names: where a device leaves an operation out, they would become those of an input.
    """
    for output in [output for node in model.get_ops() for output in node.outputs()]:
        output.get_tensor().set_names(set())
    for place, name in enumerate(block.reads):
        model.input(place).get_tensor().set_names({name})
    model.reshape({place: openvino.PartialShape(_open_shape(block, name)) for place, name in enumerate(block.reads)})
    return model


def without_inputs(model: openvino.Model, names: Sequence[str]) -> openvino.Model:
    """The static model without inputs that it only asked for their shapes, which are constants now.

    Folding all constants would do the same and write zeros of a whole result into the file.
    """
    for parameter in [p for p in model.get_parameters() if p.output(0).get_any_name() in names]:
        shape = list(parameter.output(0).get_shape())
        for consumer in [target.get_node() for target in parameter.output(0).get_target_inputs()]:
            if consumer.get_type_name() != "ShapeOf":
                raise GnnlabError(
                    f"{consumer.get_type_name()} looks at the numbers of an input that gives its shape alone"
                )
            kind = consumer.output(0).get_element_type().to_dtype()
            consumer.output(0).replace(opset13.constant(np.array(shape, kind)).output(0))
        model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Exporting without what torch logs about packages that no stage needs, and without OpenVINO's telemetry.

    `convert_model` reports each use over the network, except from where it takes itself to be in continuous
    integration.
    """
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels, before = [logger.level for logger in loggers], os.environ.get("CI")
    try:
        os.environ["CI"] = "true"
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, message=r".*isinstance\(treespec")
            warnings.filterwarnings("ignore", category=DeprecationWarning, message="You are using the legacy")
            # what it exports then is wrong, which is found out by checking it
            warnings.filterwarnings("ignore", category=UserWarning, message=".*duplicated values in 'index' field")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        os.environ.pop("CI")
        if before is not None:
            os.environ["CI"] = before


def _exported(block: StageBlock, example: Sequence[Tensor]) -> torch.export.ExportedProgram:
    shapes = tuple(dict.fromkeys(_open_axes(block, name), torch.export.Dim.DYNAMIC) for name in block.reads)
    with torch.no_grad():
        return torch.export.export(block, tuple(example), dynamic_shapes=(shapes,), strict=False)


def _open_shape(block: StageBlock, name: str) -> list[int]:
    open_axes = _open_axes(block, name)
    return [-1 if i in open_axes else int(dim) for i, dim in enumerate(block.values[name].dims)]


def _open_axes(block: StageBlock, name: str) -> list[int]:
    dims = block.values[name].dims
    return [i for i, dim in enumerate(dims) if isinstance(dim, str) or name in block.shape_only]
