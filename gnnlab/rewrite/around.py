"""What is done around a forward and leaves the code of the model as it is: conditions, constants, guards, runtimes.

model = inference(model, batch)          # in eval no graph for gradients is recorded
model = threads(model, batch, 1)         # one thread of torch in each call

Steps of `steps.py` take the model and the `batch` that it is called with, whether they look at it or not. Each changes
the model it is given, and gives it back. It stays a module of its class with its parameters, so that
checkpoints load as before; it gets a class of its own, made from its class, so that `torch.save` takes its state_dict
and not the model itself. Constants, inference mode and other runtimes hold in eval mode alone; in training the model
runs as it was.

OpenVINO and ONNX Runtime get the whole model at the first call, and again when the weights have changed, with sizes
left open where the converter can, and run it in float32 on as many threads as torch has then. No gradient comes out.
"""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, Unavailable, one_line
from gnnlab.kernels.kept import Watch
from gnnlab.openvino_core import compile_for
from gnnlab.profiling.context import Conditions
from gnnlab.profiling.dispatch import tensors_in

Run = Callable[[nn.Module, Callable[..., Any], tuple, dict], Any]  # of the model, its forward, and the arguments


def around(model: nn.Module, run: Run, *, training: bool = False) -> nn.Module:
    """`model`, whose forward is `run(model, forward before, arguments, keywords)` in eval; with `training` always."""
    before = type(model).forward

    @functools.wraps(before)
    def forward(self, *arguments, **named):
        inner = functools.partial(before, self)
        if self.training and not training:
            return inner(*arguments, **named)
        return run(self, inner, arguments, named)

    kind = type(model)
    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return model


def _within(model: nn.Module, context: Callable[[], AbstractContextManager], *, training: bool = True) -> nn.Module:
    """`model`, whose forward runs in a context, made at each call."""

    def run(model, forward, arguments, named):
        with context():
            return forward(*arguments, **named)

    return around(model, run, training=training)


def inference(model: nn.Module, batch: Any) -> nn.Module:
    """`model` in eval mode, where it records nothing for gradients."""
    return _within(model.eval(), torch.no_grad, training=False)


def threads(model: nn.Module, batch: Any, count: int) -> nn.Module:
    """`model`, which runs on `count` threads of torch in each call; those around it are as before. In training torch
    keeps them after a call, for the backward pass that follows."""

    def run(model, forward, arguments, named):
        if model.training:
            torch.set_num_threads(count)
            return forward(*arguments, **named)
        with Conditions(count, torch.get_float32_matmul_precision()).applied():
            return forward(*arguments, **named)

    return around(model, run, training=True)


def products(model: nn.Module, batch: Any, precision: str) -> nn.Module:
    """`model`, whose float32 products may be as inexact as torch's `precision` (highest|high|medium) allows."""
    return _within(model, lambda: Conditions(torch.get_num_threads(), precision).applied())


def bfloat16(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, whose products and sums run in bfloat16 where torch's autocast puts them."""
    return _within(model, lambda: torch.autocast("cpu", torch.bfloat16))


def compiled(model: nn.Module, batch: Any, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """`model`, whose forward goes through `torch.compile(backend=...)`, in training, too."""
    fast = torch.compile(type(model).forward, backend=backend)
    return around(model, lambda model, forward, arguments, named: fast(model, *arguments, **named), training=True)


class _KeptWithWeights:
    """What was made of a model, until `Watch` sees a change in it; a copy of the model has its own."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[nn.Module, tuple[Watch, dict[Any, Any]]] = WeakKeyDictionary()

    def of(self, model: nn.Module) -> tuple[Watch, dict[Any, Any]]:
        found = self._of.get(model)
        if found is None or not found[0].unchanged():
            found = self._of[model] = Watch(model), {}
        return found


def constant_output(model: nn.Module, batch: Any) -> nn.Module:
    """`model` in eval mode, which is called without tensors, so that its output follows from its weights: computed once
    for each argument, and again when `Watch` sees a change. The output must not be written to."""
    kept = _KeptWithWeights()

    def run(model, forward, arguments, named):
        watch, outputs = kept.of(model)
        key = arguments, tuple(sorted(named.items()))
        if not watch.reliable or any(True for _ in tensors_in(key)):
            return forward(*arguments, **named)
        if key not in outputs:
            with torch.inference_mode(False), torch.no_grad():
                outputs[key] = forward(*arguments, **named)
        return outputs[key]

    return around(model.eval(), run)


def this_size_only(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, which takes tensors of the shapes in `batch` and refuses others: for a form that is not right on them.

    Raises:
        GnnlabError: at a call with other shapes.
    """
    signature = inspect.signature(model.forward)
    expected = _shapes(bound(signature, batch))

    def run(model, forward, arguments, named):
        found = _shapes(signature.bind(*arguments, **named).arguments)
        if found != expected:
            raise GnnlabError(
                f"this form was shown to be right for tensors of {expected} alone and got {found}; "
                "gnnlab optimize makes one for the graph at hand"
            )
        return forward(*arguments, **named)

    return around(model, run)


def bound(signature: inspect.Signature, batch: Any) -> dict[str, Any]:
    """The arguments of a forward by their names, of what the lab calls it with (`profiling.context.call`)."""
    if isinstance(batch, dict):
        return signature.bind(**batch).arguments
    return signature.bind(*(batch if isinstance(batch, tuple | list) else (batch,))).arguments


def _shapes(arguments: dict[str, Any]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for value in arguments.values() for tensor in tensors_in(value)]


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
    kept = _KeptWithWeights()

    def run(model, forward, arguments, named):
        _, programs = kept.of(model)
        given = inspect.signature(forward).bind(*arguments, **named).arguments
        named_tensors, rest = _split(given)
        tensors = list(named_tensors.values())
        if rest not in programs:
            plain = _Plain(model, before, given)
            with torch.inference_mode(False), torch.no_grad(), _quiet():
                plain(*tensors)
                programs[rest] = convert(plain.eval(), tuple(tensors)), plain.structure
        compute, structure = programs[rest]
        return pytree.tree_unflatten(compute(tensors), structure)

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
            if not key:
                given[argument] = tensor
                continue
            if given[argument] is self.given[argument]:
                given[argument] = given[argument].clone()
            given[argument][key] = tensor
        outputs, self.structure = pytree.tree_flatten(self.run(self.model, **given))
        return tuple(outputs)


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
