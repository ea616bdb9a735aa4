"""What is done around a forward and leaves the model's own code as it is: conditions, constants, guards.

model = inference(model, batch)          # in eval no graph for gradients is recorded
model = threads(model, batch, 1)         # one thread of torch in each call

Steps of `steps.py` take the model and the `batch` that it is called with, whether they look at it or not. Each changes
the model it is given, and gives it back. It stays a module of its class with its parameters, so that
checkpoints load as before; it gets a class of its own, made from its class, so that `torch.save` takes its state_dict
and not the model itself. Constants and inference mode hold in eval mode alone; in training the model runs as it was.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.kernels.hoisting import Watch
from gnnlab.profiling.conditions import Conditions
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


def inference(model: nn.Module, batch: Any) -> nn.Module:
    """`model` in eval mode, where it records nothing for gradients."""

    def run(model, forward, arguments, named):
        with torch.no_grad():
            return forward(*arguments, **named)

    return around(model.eval(), run)


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


def products(model: nn.Module, precision: str) -> nn.Module:
    """`model`, whose float32 products may be as inexact as torch's `precision` (highest|high|medium) allows."""

    def run(model, forward, arguments, named):
        with Conditions(torch.get_num_threads(), precision).applied():
            return forward(*arguments, **named)

    return around(model, run, training=True)


def bfloat16(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, whose products and sums run in bfloat16 where torch's autocast puts them."""

    def run(model, forward, arguments, named):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*arguments, **named)

    return around(model, run, training=True)


def compiled(model: nn.Module, backend: str | Callable[..., Any]) -> nn.Module:
    """`model`, whose forward goes through `torch.compile(backend=...)`, in training, too."""
    fast = torch.compile(type(model).forward, backend=backend)
    return around(model, lambda model, forward, arguments, named: fast(model, *arguments, **named), training=True)


def constant_output(model: nn.Module, batch: Any) -> nn.Module:
    """`model` in eval mode, which is called without tensors, so that its output follows from its weights: computed once
    for each argument, and again when `Watch` sees a change. The output must not be written to."""
    kept: WeakKeyDictionary[nn.Module, tuple[Watch, dict[Any, Any]]] = WeakKeyDictionary()  # a copy has its own

    def run(model, forward, arguments, named):
        watch, outputs = kept.get(model, (None, {}))
        if watch is None or not watch.unchanged():
            watch, outputs = kept[model] = Watch(model), {}
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
