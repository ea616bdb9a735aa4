"""Calling a model, fixing the seed, and a context that leaves everything as it was.

with ProfilingContext(model, disable_dropout=True, eval_mode=True, seed=42):
    output = call(model, batch)
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd


class ContextError(ValueError):
    """A seed or a model that cannot be used. The message is one line for the reader."""


def call(model: Callable[..., Any], batch: Any) -> Any:
    """Call `model` with `batch`: a tuple or list is spread, a mapping gives keywords, anything else is one argument.

    A PyG `Data` or `Batch` is one argument: it is no mapping.
    """
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch)


def set_seed(seed: int) -> None:
    """Seed `random`, numpy's legacy generator and torch on every device.

    Raises:
        ContextError: the seed is no whole number in 0 .. 2**32 - 1 (numpy takes no other).
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise ContextError(f"seed must be a whole number from 0 to {2**32 - 1}, not {seed!r}")
    random.seed(int(seed))
    np.random.seed(int(seed))
    torch.manual_seed(int(seed))


@contextmanager
def unchanged(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Whatever happens inside, parameters, buffers, gradients and the optimizer's state are as before afterwards."""
    tensors = [*model.parameters(), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    kept = [None if gradient is None else gradient.clone() for _, gradient in gradients]
    state = None if optimizer is None else copy.deepcopy(optimizer.state_dict())
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
            for (parameter, gradient), value in zip(gradients, kept, strict=True):
                parameter.grad = gradient if value is None else gradient.copy_(value)
        if optimizer is not None:
            optimizer.load_state_dict(state)


def set_threads(threads: int) -> None:
    """Let torch compute with so many threads on the CPU; 0 leaves its own choice."""
    if threads:
        torch.set_num_threads(threads)


class ProfilingContext:
    """Eval mode, no dropout, a fixed seed; after it, also after an exception, everything is as it was before.

    Restored are: the training flag of each module by itself, dropout rates, the random states of `random`, numpy and
    torch (CPU and CUDA), the determinism flags of torch, and the running statistics of normalization layers (which a
    forward in training mode moves). Weights and their gradients are the caller's business.

    Args:
        model: the module under study.
        disable_dropout: set every dropout rate to 0: that of dropout modules, and those that layers keep as numbers
            (`nn.MultiheadAttention.dropout`, PyG's `GATConv.dropout`). Needed for `eval_mode=False`, and for layers
            that drop in eval mode too.
        eval_mode: switch to eval mode; `False` leaves the training flags alone.
        seed: as for `set_seed`; `None` leaves the random state alone (it is restored all the same).
        deterministic: ask torch for its deterministic kernels inside the context. They can be slower, so it is off.

    Raises:
        ContextError: `model` is no `nn.Module`, or the seed is no seed.
    """

    def __init__(
        self,
        model: nn.Module,
        disable_dropout: bool = True,
        eval_mode: bool = True,
        seed: int | None = 42,
        deterministic: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ContextError(f"ProfilingContext needs a torch.nn.Module, not {type(model).__name__}")
        self.model = model
        self.disable_dropout = disable_dropout
        self.eval_mode = eval_mode
        self.seed = seed
        self.deterministic = deterministic
        self._undo: list[list[Callable[[], None]]] = []  # one list of steps per level: the context may be nested

    def __enter__(self) -> ProfilingContext:
        undo = [
            _remember_random(),
            _remember_determinism(),
            _remember_training(self.model),
            _remember_norms(self.model),
        ]
        self._undo.append(undo)
        try:
            if self.seed is not None:
                set_seed(self.seed)
            if self.deterministic:
                torch.use_deterministic_algorithms(True, warn_only=True)
                torch.backends.cudnn.deterministic = True
                torch.backends.cudnn.benchmark = False
            if self.disable_dropout:
                undo.append(_remember_rates(self.model))
                for module, name, value in _dropout_rates(self.model):
                    setattr(module, name, _zeroed(value))
            if self.eval_mode:
                self.model.eval()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for step in reversed(self._undo.pop()):
            step()


def _remember_random() -> Callable[[], None]:
    python, legacy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    return restore


def _remember_determinism() -> Callable[[], None]:
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark

    def restore() -> None:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn

    return restore


def _remember_training(model: nn.Module) -> Callable[[], None]:
    flags = [(module, module.training) for module in model.modules()]

    def restore() -> None:
        for module, training in flags:
            module.training = training

    return restore


def _remember_norms(model: nn.Module) -> Callable[[], None]:
    kept = [
        (buffer, buffer.detach().clone())
        for module in model.modules()
        if isinstance(module, _NormBase)
        for buffer in module.buffers(recurse=False)
        if not isinstance(buffer, nn.parameter.UninitializedTensorMixin)
    ]

    @torch.no_grad()
    def restore() -> None:
        for buffer, value in kept:
            buffer.copy_(value)

    return restore


def _remember_rates(model: nn.Module) -> Callable[[], None]:
    rates = list(_dropout_rates(model))

    def restore() -> None:
        for module, name, value in rates:
            setattr(module, name, value)

    return restore


def _dropout_rates(model: nn.Module) -> Iterable[tuple[nn.Module, str, Any]]:
    """Every (module, attribute, value) that holds a dropout rate: `p` of dropout modules, numbers named `*drop*`."""
    for module in model.modules():
        drops = isinstance(module, _DropoutNd) or "drop" in type(module).__name__.lower()
        for name, value in list(vars(module).items()):
            if (name == "p" and drops) or "drop" in name.lower():
                many = isinstance(value, (list, tuple)) and bool(value)
                if all(map(_is_rate, value)) if many else _is_rate(value):
                    yield module, name, value


def _is_rate(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _zeroed(value: Any) -> Any:
    return type(value)(0.0 for _ in value) if isinstance(value, (list, tuple)) else 0.0
