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
from itertools import chain
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import UninitializedTensorMixin

from gnnlab.errors import GnnlabError
from gnnlab.user_code import forked_random

from .conditions import under


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


_INSIDE = {  # what a variant of a kind calls, as far as it shows
    Mapping: lambda variants: variants.values(),
    (list, tuple): list,
    under: lambda variant: [variant.variant],
    partial: lambda variant: [variant.func, variant.args, variant.keywords],
    MethodType: lambda variant: [variant.__self__],
    FunctionType: lambda variant: inspect.getclosurevars(variant).nonlocals.values(),
}


def modules_in(work: Any) -> list[nn.Module]:
    """The modules that a variant, or a mapping or sequence of variants, calls as far as it shows: itself, what it is
    bound to and what it closes over."""
    found, waiting, seen = [], [work], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            found += [one] * isinstance(one, nn.Module)
            waiting += chain(*(inside(one) for kind, inside in _INSIDE.items() if isinstance(one, kind)))
    return found


@contextmanager
def unchanged(work: Any, optimizer: torch.optim.Optimizer | None = None, *, trains: bool = True) -> Iterator[None]:
    """Whatever happens inside, buffers, modes and gradients of the `modules_in` what is worked with, and the random
    states of all devices, are as before afterwards, also where it raises; where it `trains`, parameters and the
    optimizer's state, too. Lazy layers get their shape inside, and keep it."""
    modules = [part for module in modules_in(work) for part in module.modules()]
    parameters = {id(p): p for module in modules for p in module.parameters(recurse=False)}.values()
    buffers = {id(b): b for module in modules for b in module.buffers(recurse=False)}.values()
    with ExitStack() as after:
        _restore(after, modules, [*buffers, *(parameters if trains else ())])
        for parameter in parameters:
            if parameter.grad is not None:
                after.callback(_put_back, parameter.grad, parameter.grad.clone())
            after.callback(setattr, parameter, "grad", parameter.grad)
        if optimizer is not None:
            after.callback(optimizer.load_state_dict, copy.deepcopy(optimizer.state_dict()))
        yield


def _restore(after: ExitStack, modules: Iterable[nn.Module], tensors: Iterable[torch.Tensor]) -> None:
    """What is to be done `after`: random states, training flags and values are again what they are now."""
    after.callback(random.setstate, random.getstate())
    after.callback(np.random.set_state, np.random.get_state())
    after.enter_context(forked_random())
    for module in modules:
        if hasattr(module, "training"):  # a frozen TorchScript module has none
            after.callback(setattr, module, "training", module.training)
    for tensor in tensors:
        if not isinstance(tensor, UninitializedTensorMixin):
            after.callback(_put_back, tensor, tensor.detach().clone())


@torch.no_grad()
def _put_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Only where it changed: a write would spoil a backward pass of the caller's that still needs the tensor."""
    if not torch.equal(tensor, value):
        tensor.copy_(value)


class ProfilingContext:
    """Eval mode, no dropout, a fixed seed; after it, also after an exception, training flags, dropout rates, random
    states and the running statistics of normalization layers are as before. Weights and their gradients are the
    caller's business. It may be nested.

    Args:
        model: the module under study.
        disable_dropout: set every dropout rate to 0: that of dropout modules, and those that layers keep as numbers
            (`nn.MultiheadAttention.dropout`, PyG's `GATConv.dropout`).
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
        norms = [module for module in self.model.modules() if isinstance(module, _NormBase)]
        _restore(before, self.model.modules(), [b for norm in norms for b in norm.buffers(recurse=False)])
        if self.seed is not None:
            set_seed(self.seed)
        for module in self.model.modules() if self.disable_dropout else ():
            drops = isinstance(module, _DropoutNd) or "drop" in type(module).__name__.lower()
            for name, value in list(vars(module).items()):
                rate = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
                if rate and ((name == "p" and drops) or "drop" in name.lower()):
                    before.callback(setattr, module, name, value)
                    setattr(module, name, 0.0)
        if self.eval_mode:
            self.model.eval()
        self._before.append(before)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._before.pop().close()
