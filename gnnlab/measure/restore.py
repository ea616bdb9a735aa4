"""Looking at a model without changing it: seeds, and contexts that leave everything as it was.

with unchanged(model): ...                          # buffers, modes, gradients and random states are as before after it
with ProfilingContext(model, disable_dropout=True, eval_mode=True, seed=42):
    output = call(model, batch)
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import UninitializedTensorMixin

from gnnlab.errors import GnnlabError
from gnnlab.user_code import forked_random

from .conditions import Under


def set_seed(seed: int) -> None:
    """Seed `random`, numpy's legacy generator and torch on every device.

    Raises:
        GnnlabError: the seed is no whole number in 0 .. 2**32 - 1 (numpy takes no other).
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise GnnlabError(f"seed must be a whole number from 0 to {2**32 - 1}, not {seed!r}")
    random.seed(int(seed))
    np.random.seed(int(seed))
    torch.manual_seed(int(seed))


def modules_in(work: Any) -> list[nn.Module]:
    """The modules that a form, or a mapping or sequence of forms, calls as far as it shows: itself, what it is bound to
    and what it closes over."""
    found, waiting, seen = [], [work], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module):
            found.append(one)
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif isinstance(one, Under):
            waiting.append(one.form)
        elif isinstance(one, partial):
            waiting += [one.func, one.args, one.keywords]
        elif inspect.ismethod(one):
            waiting.append(one.__self__)
        elif inspect.isfunction(one):
            waiting += inspect.getclosurevars(one).nonlocals.values()
    return found


@contextmanager
def unchanged(work: Any, optimizer: torch.optim.Optimizer | None = None, *, trains: bool = True) -> Iterator[None]:
    """Whatever happens inside, buffers, modes and gradients of the `modules_in` what is worked with, and the random
    states of all devices, are as before afterwards, also where it raises; where it `trains`, parameters and the
    optimizer's state, too. Lazy layers get their shape inside, and keep it."""
    modules = [part for module in modules_in(work) for part in module.modules()]
    parameters = {id(p): p for module in modules for p in module.parameters(recurse=False)}.values()
    buffers = {id(b): b for module in modules for b in module.buffers(recurse=False)}.values()
    tensors = [*buffers, *(parameters if trains else ())]
    tensors = [tensor for tensor in tensors if not isinstance(tensor, UninitializedTensorMixin)]
    values = [tensor.detach().clone() for tensor in tensors]
    modes = [(module, module.training) for module in modules]
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    gradient_values = [None if gradient is None else gradient.clone() for _, gradient in gradients]
    state = None if optimizer is None else copy.deepcopy(optimizer.state_dict())
    before = random.getstate(), np.random.get_state()
    try:
        with forked_random():
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                _put_back(tensor, value)
            for (parameter, gradient), value in zip(gradients, gradient_values, strict=True):
                parameter.grad = gradient
                if value is not None:
                    _put_back(gradient, value)
        if optimizer is not None:
            optimizer.load_state_dict(state)


def _put_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Only where it changed: a write would spoil a backward pass of the caller's that still needs the tensor."""
    if not torch.equal(tensor, value):
        tensor.copy_(value)


class ProfilingContext:
    """Eval mode, no dropout, a fixed seed; after it, also after an exception, everything is as it was before.

    Restored are: the training flag of each module by itself, dropout rates, the random states of `random`, numpy and
    torch (CPU and CUDA), and the running statistics of normalization layers (which a forward in training mode moves).
    Weights and their gradients are the caller's business. It may be nested.

    Args:
        model: the module under study.
        disable_dropout: set every dropout rate to 0: that of dropout modules, and those that layers keep as numbers
            (`nn.MultiheadAttention.dropout`, PyG's `GATConv.dropout`). Needed for `eval_mode=False`, and for layers
            that drop in eval mode too.
        eval_mode: switch to eval mode; `False` leaves the training flags alone.
        seed: as for `set_seed`; `None` leaves the random state alone (it is restored all the same).

    Raises:
        GnnlabError: `model` is no `nn.Module`, or the seed is no seed.
    """

    def __init__(
        self, model: nn.Module, disable_dropout: bool = True, eval_mode: bool = True, seed: int | None = 42
    ) -> None:
        if not isinstance(model, nn.Module):
            raise GnnlabError(f"ProfilingContext needs a torch.nn.Module, not {type(model).__name__}")
        self.model, self.disable_dropout, self.eval_mode, self.seed = model, disable_dropout, eval_mode, seed
        self._before: list[ExitStack] = []  # a stack for each time that it was entered

    def __enter__(self) -> ProfilingContext:
        before = ExitStack()
        before.callback(random.setstate, random.getstate())
        before.callback(np.random.set_state, np.random.get_state())
        before.enter_context(forked_random())
        if self.seed is not None:
            set_seed(self.seed)
        for module in self.model.modules():
            before.callback(setattr, module, "training", module.training)
            for buffer in module.buffers(recurse=False) if isinstance(module, _NormBase) else ():
                if not isinstance(buffer, UninitializedTensorMixin):
                    before.callback(torch.no_grad()(buffer.copy_), buffer.detach().clone())
        for module, name, rate in _dropout_rates(self.model) if self.disable_dropout else ():
            before.callback(setattr, module, name, rate)
            setattr(module, name, 0.0)
        if self.eval_mode:
            self.model.eval()
        self._before.append(before)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._before.pop().close()


def _dropout_rates(model: nn.Module) -> Iterable[tuple[nn.Module, str, float]]:
    """Every (module, attribute, value) that holds a dropout rate: `p` of dropout modules, numbers named `*drop*`."""
    for module in model.modules():
        drops = isinstance(module, _DropoutNd) or "drop" in type(module).__name__.lower()
        for name, value in list(vars(module).items()):
            rate = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
            if rate and ((name == "p" and drops) or "drop" in name.lower()):
                yield module, name, value
