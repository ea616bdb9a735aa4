"""What has an effect on a model's output? Each argument, buffer and parameter is varied alone, and bits compared."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from .context import call, set_seed
from .dispatch import tensors_in

NONE, SHAPE_ONLY, SOME = "none", "shape only", "some"
SEED = 42
_NO_INPUT = {"y", "train_mask", "val_mask", "test_mask", "num_nodes", "ptr"}  # fields that no model is meant to read


@dataclass(frozen=True)
class Leaf:
    """A tensor or number somewhere in a batch: its name, and how to build the batch with another value there."""

    name: str
    value: Any
    rebuilt: Callable[[Any], Any] = field(repr=False)


@dataclass(frozen=True)
class Effect:
    """What varying something did: `none`, `shape only` (another number of rows, all alike as before) or `some`.

    `value` is the original one, `tried` how many others were; `shapes` those of the first output, before and after.
    """

    name: str
    extent: str
    value: Any
    tried: int
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


class Experiment:
    """A model in eval mode and a batch: outputs, without gradients, always from the same seed."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.model, self.batch = model, batch
        self._draw = torch.Generator().manual_seed(SEED)
        self.output = self.run(batch)

    def run(self, batch: Any) -> list[torch.Tensor]:
        """The tensors of the output, of copies that nothing can change later."""
        set_seed(SEED)
        with torch.no_grad():
            return [tensor.detach().clone() for tensor in tensors_in(call(self.model, batch))]

    def arguments(self) -> Iterator[Effect]:
        """The effect of each tensor and number of the batch that can be varied."""
        for leaf in leaves(self.model, self.batch):
            yield from self._effect(leaf.name, leaf.value, lambda value, leaf=leaf: self.run(leaf.rebuilt(value)))

    def buffers(self) -> Iterator[Effect]:
        """The effect of each buffer; counters (whole numbers without a dimension) are left out."""
        for name, buffer in self.model.named_buffers():
            if buffer.dim() or buffer.is_floating_point():
                yield from self._effect(name, buffer, lambda value, held=buffer: self._run_with(held, value))

    def parameters(self) -> Iterator[Effect]:
        """The effect of each parameter that gets no gradient, or one of zeros: the others have one."""
        with_gradient = self._with_gradient()
        for name, parameter in self.model.named_parameters():
            if name not in with_gradient:
                yield from self._effect(name, parameter, lambda value, held=parameter: self._run_with(held, value))

    def _effect(self, name: str, value: Any, run: Callable[[Any], list[torch.Tensor]]) -> Iterator[Effect]:
        tried, extents, shapes = 0, {NONE}, ((), ())
        for other in _variations(value, self._draw):
            try:
                output = run(other)
            except Exception:  # the model refuses the value, so it looks at it: an effect like any other
                yield Effect(name, SOME, value, tried + 1)
                return
            tried += 1
            extents.add(_extent(self.output, output))
            shapes = tuple(tuple(tensors[0].shape) if tensors else () for tensors in (self.output, output))
        if tried:
            extent = next(extent for extent in (SOME, SHAPE_ONLY, NONE) if extent in extents)
            yield Effect(name, extent, value, tried, shapes)

    def _run_with(self, held: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        with _holding(held, value):
            return self.run(self.batch)

    def _with_gradient(self) -> set[str]:
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        set_seed(SEED)
        with torch.enable_grad():
            ends = [tensor for tensor in tensors_in(call(self.model, self.batch)) if tensor.requires_grad]
            if not ends or not named:
                return set()
            directions = [torch.randn(end.shape, generator=self._draw).to(end) for end in ends]
            try:
                found = torch.autograd.grad(ends, list(named.values()), directions, allow_unused=True)
            except RuntimeError:  # CUDA's recurrent layers have no backward pass in eval mode: vary all parameters
                return set()
        return {name for name, gradient in zip(named, found, strict=True) if gradient is not None and gradient.any()}


def same_bits(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Are the tensors equal bit by bit? (Two NaN are, 0.0 and -0.0 are not.)"""
    return len(first) == len(second) and all(map(_same_bits, first, second))


def all_rows_alike(tensor: torch.Tensor) -> bool:
    """Two or more rows, all with the same bits."""
    return tensor.dim() > 0 and len(tensor) > 1 and _same_bits(tensor, tensor[:1].expand_as(tensor))


def leaves(model: Callable[..., Any], batch: Any) -> Iterator[Leaf]:
    """Every tensor and number of a batch, by the name of the model's argument that it is in."""
    if isinstance(batch, Mapping):
        yield from _leaves("", batch, lambda value: value)
        return
    several = isinstance(batch, (tuple, list))
    arguments = list(batch) if several else [batch]
    forward = model.forward if isinstance(model, nn.Module) else model
    names = [p.name for p in inspect.signature(forward).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    names += [f"argument {at + 1}" for at in range(len(names), len(arguments))]
    for at, (name, value) in enumerate(zip(names, arguments, strict=False)):
        yield from _leaves(name, value, lambda new, at=at: (*arguments[:at], new, *arguments[at + 1 :]))


def _leaves(name: str, value: Any, rebuilt: Callable[[Any], Any]) -> Iterator[Leaf]:
    if isinstance(value, (torch.Tensor, bool, int, float)):
        yield Leaf(name, value, rebuilt)
    elif isinstance(value, Data):
        for key in value.keys():  # noqa: SIM118 - a Data object is no mapping
            if key not in _NO_INPUT:
                yield from _leaves(f"{name}.{key}", value[key], lambda new, key=key: rebuilt(_with(value, key, new)))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            label = f"{name}[{key!r}]" if name else str(key)
            yield from _leaves(label, inner, lambda new, key=key: rebuilt({**value, key: new}))
    elif type(value) in (list, tuple):
        for at, inner in enumerate(value):
            change = lambda new, at=at: rebuilt(type(value)((*value[:at], new, *value[at + 1 :])))  # noqa: E731
            yield from _leaves(f"{name}[{at}]", inner, change)


def _with(data: Data, key: str, value: Any) -> Data:
    changed = copy.copy(data)
    changed[key] = value
    return changed


def _variations(value: Any, draw: torch.Generator) -> Iterator[Any]:
    """Other values of the same kind: noise for floating-point tensors; whole numbers change places, so that indices
    stay indices."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, 2 * value + 1)
    elif isinstance(value, float):
        yield from (value + 1.0, 0.5 * value)
    elif value.numel() and value.dtype is torch.bool:
        yield ~value
    elif value.numel() and (value.is_floating_point() or value.is_complex()):
        spread = float(value.detach().abs().nan_to_num(0, 0, 0).mean()) or 1.0
        for scale in (0.5 * spread, 10 * spread):
            yield value.detach() + scale * torch.randn(value.shape, generator=draw).to(value)
    elif value.numel() > 1 and not value.is_floating_point():
        flat = value.flatten()
        for _ in range(2):
            mixed = flat[torch.randperm(len(flat), generator=draw).to(flat.device)]
            if not torch.equal(mixed, flat):
                yield mixed.view(value.shape)


def _extent(before: list[torch.Tensor], after: list[torch.Tensor]) -> str:
    if same_bits(before, after):
        return NONE
    one_row = len(before) == len(after) and all(map(_repeats_the_row_of, after, before))
    return SHAPE_ONLY if one_row else SOME


def _repeats_the_row_of(after: torch.Tensor, before: torch.Tensor) -> bool:
    if not (before.dim() and after.dim() and len(before) and len(after)) or before.shape[1:] != after.shape[1:]:
        return False
    row = before[:1]
    return _same_bits(before, row.expand_as(before)) and _same_bits(after, row.expand_as(after))


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    bits = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (first, second))
    return bool(torch.equal(*bits))


@contextmanager
def _holding(held: torch.Tensor, value: torch.Tensor) -> Iterator[None]:
    """`held` has another value inside, and its own bits again afterwards."""
    kept = held.detach().clone()
    with torch.no_grad():
        try:
            held.copy_(value)
            yield
        finally:
            held.copy_(kept)
