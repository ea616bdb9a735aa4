"""A whole model as another runtime computes it on the CPU, in eval mode: OpenVINO, ONNX Runtime.

fast = openvino(model)        # converted at the first call, and again when the weights have changed

Both are converted with sizes left open where the converter can, and run in float32 on as many threads as torch has at
the first call. In training mode the model runs as it was. The output carries no gradient.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from gnnlab.errors import Unavailable, one_line
from gnnlab.kernels.hoisting import Watch
from gnnlab.openvino_core import compile_for
from gnnlab.rewrite.around import around

Compute = Callable[[list[Tensor]], list[Tensor]]
Converter = Callable[[nn.Module, tuple[Tensor, ...]], Compute]  # of a module that takes and gives a tuple of tensors


def openvino(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, whose forward is OpenVINO's in eval."""
    return _converted(model, _openvino)


def onnxruntime(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, whose forward is ONNX Runtime's in eval."""
    return _converted(model, _onnxruntime)


def _converted(model: nn.Module, convert: Converter) -> nn.Module:
    before = type(model).forward
    kept: WeakKeyDictionary[nn.Module, tuple[Watch, dict[str, _Program]]] = WeakKeyDictionary()

    def run(model, forward, arguments, named):
        watch, programs = kept.get(model, (None, {}))
        if watch is None or not watch.unchanged():
            watch, programs = kept[model] = Watch(model), {}
        given = inspect.signature(forward).bind(*arguments, **named).arguments
        tensors, rest = _split(given)
        if rest not in programs:
            programs[rest] = _Program(_Plain(model, before, given), tensors, convert)
        return programs[rest](tensors)

    return around(model.eval(), run)


def _split(given: dict[str, Any]) -> tuple[dict[str, Tensor], str]:
    """The tensors in the arguments of a forward, by name, and what else there is, as text."""
    tensors, rest = {}, []
    for name, value in given.items():
        parts = value.to_dict() if isinstance(value, Data) else {"": value}
        for key, part in parts.items():
            if isinstance(part, Tensor):
                tensors[f"{name}.{key}" if key else name] = part
            else:
                rest.append(f"{name}.{key}={part!r}")
    return tensors, ";".join(rest)


class _Plain(nn.Module):
    """A model as converters want it: tensors in, in order, a tuple of tensors out."""

    def __init__(self, model: nn.Module, forward: Callable[..., Any], given: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.run, self.given = model, forward, given
        self.names = list(_split(given)[0])
        self.structure: Any = None

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(self.given)
        for name, tensor in zip(self.names, tensors, strict=True):
            argument, _, key = name.partition(".")
            if key:
                given[argument] = (
                    given[argument].clone() if given[argument] is self.given[argument] else given[argument]
                )
                given[argument][key] = tensor
            else:
                given[argument] = tensor
        outputs, self.structure = pytree.tree_flatten(self.run(self.model, **given))
        return tuple(outputs)


class _Program:
    """A converted model: the tensors of its arguments by name in, its output as the model gives it out."""

    def __init__(self, plain: _Plain, tensors: dict[str, Tensor], convert: Converter) -> None:
        with torch.inference_mode(False), torch.no_grad(), _quiet():
            plain(*tensors.values())
            self.structure = plain.structure
            self.compute = convert(plain.eval(), tuple(tensors.values()))

    def __call__(self, tensors: dict[str, Tensor]) -> Any:
        return pytree.tree_unflatten(self.compute(list(tensors.values())), self.structure)


def _openvino(plain: nn.Module, tensors: tuple[Tensor, ...]) -> Compute:
    import openvino

    traced = torch.jit.trace(plain, tensors, check_trace=False)  # proven by its results, not by a second trace
    program = compile_for(
        openvino.convert_model(traced, example_input=tensors), "CPU", "float32", torch.get_num_threads()
    )
    _all_there("OpenVINO", len(program.inputs), tensors)

    def compute(given: list[Tensor]) -> list[Tensor]:
        found = program([tensor.numpy() for tensor in given])
        return [torch.from_numpy(found[place]) for place in range(len(program.outputs))]

    return compute


def _onnxruntime(plain: nn.Module, tensors: tuple[Tensor, ...]) -> Compute:
    import onnxruntime

    sizes = tuple(dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO) for tensor in tensors)
    try:
        made = torch.onnx.export(plain, tensors, dynamo=True, dynamic_shapes=(sizes,), verbose=False)
    except Exception as error:  # the exporter wraps what torch.export says into pages of advice
        raise Unavailable(f"torch cannot export it: {one_line(error.__cause__ or error)}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
    content = made.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    _all_there("ONNX Runtime", len(names), tensors)

    def compute(given: list[Tensor]) -> list[Tensor]:
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)})
        return [torch.from_numpy(array) for array in found]

    return compute


def _all_there(runtime: str, taken: int, tensors: tuple[Tensor, ...]) -> None:
    if taken != len(tensors):
        raise Unavailable(f"{runtime} keeps {taken} of the {len(tensors)} inputs, which of them it does not say")


@contextmanager
def _quiet() -> Iterator[None]:
    """Converters warn at length of what the check of the result will find."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
