"""Wrap a model's `forward`: no gradients, a number of threads, torch.compile, bfloat16, a cached constant output.

model = inference(model, batch)          # in eval no graph for gradients is recorded
model = threads(model, batch, 1)         # one thread of torch in each call

These are steps of `steps.py`: each takes the model and the `batch` that it is called with, changes the model and
returns it. Its class becomes a subclass of its own, so that parameters keep their names and checkpoints load as
before; `torch.save` takes its state_dict, not the model itself. Constant output and inference hold in eval mode alone;
in training such a model runs as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gnnlab.kernels.cache import Watch
from gnnlab.profiling.context import Conditions
from gnnlab.profiling.tensors import tensors_in

Run = Callable[[nn.Module, Callable[..., Any], tuple, dict], Any]  # of the model, its forward, and the arguments


def around(model: nn.Module, run: Run, *, training: bool = False) -> nn.Module:
    """`model`, whose forward is `run(model, forward before, arguments, keywords)` in eval; with `training` always."""
    kind = type(model)
    before = kind.forward

    @functools.wraps(before)
    def forward(self, *arguments, **named):
        inner = functools.partial(before, self)
        if self.training and not training:
            return inner(*arguments, **named)
        return run(self, inner, arguments, named)

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


def bfloat16(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, whose products and sums run in bfloat16 where torch's autocast puts them."""

    def run(model, forward, arguments, named):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*arguments, **named)

    return around(model, run, training=True)


def compiled(model: nn.Module, batch: Any, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """`model`, whose forward goes through `torch.compile(backend=...)`, in training, too."""
    fast = torch.compile(type(model).forward, backend=backend)
    return around(model, lambda model, forward, arguments, named: fast(model, *arguments, **named), training=True)


def constant_output(model: nn.Module, batch: Any) -> nn.Module:
    """`model` in eval mode, which is called without tensors, so that its output follows from its weights: computed once
    for each argument, and again when `Watch` sees a change. The output must not be written to."""
    cached: WeakKeyDictionary[nn.Module, tuple[Watch, dict[Any, Any]]] = WeakKeyDictionary()  # a copy has its own

    def run(model, forward, arguments, named):
        watch, outputs = cached.get(model, (None, None))
        if watch is None or not watch.unchanged():
            watch, outputs = cached[model] = Watch(model), {}
        key = arguments, *named.items()
        if key not in outputs:
            if not watch.reliable or any(True for _ in tensors_in(key)):
                return forward(*arguments, **named)
            with torch.inference_mode(False), torch.no_grad():
                outputs[key] = forward(*arguments, **named)
        return outputs[key]

    return around(model.eval(), run)
