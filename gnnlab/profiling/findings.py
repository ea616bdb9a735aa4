"""What a reader would not think to ask: outputs that do not depend on the input, arguments, buffers and parameters
without effect, forward passes that differ.

    for finding in inspect(model, batch):
        print(finding.sentence)

Each argument, buffer and parameter is varied alone, and the bits of the output are compared.
"""

from __future__ import annotations

import copy
import inspect as python_inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, whole_numbers

from .context import ProfilingContext, call, set_seed, unchanged
from .dispatch import tensors_in

NONE, SHAPE_ONLY, SOME = "none", "shape only", "some"
SEED = 42
RUNS = 3  # compared with a first one, for nondeterminism
_NO_INPUT = {"y", "train_mask", "val_mask", "test_mask", "num_nodes", "ptr"}  # fields that no model is meant to read


@dataclass(frozen=True)
class Finding:
    """One thing found: its kind, where, and a sentence for the reader.

    Kinds: constant_output, shape_only, identical_rows, unused_argument, unused_buffer, unused_parameter,
    nondeterministic.
    """

    kind: str
    where: str
    sentence: str


def inspect(model: nn.Module, batch: Any) -> list[Finding]:
    """Everything found about `model`, called with `batch` in eval mode. The model is left bit-identical.

    A compiled model is looked at in its eager form: what is found is in the model, not in the compiler.
    "No effect" means that the output kept every bit when the value was changed, twice and much; buffers used in
    training alone have none by that. Fields of a graph that are targets (`y`, masks) are not looked at.

    Raises:
        GnnlabError: `model` is no `nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise GnnlabError(f"findings are about a torch.nn.Module, not about {type(model).__name__}")
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    eager = torch.compiler.set_stance("force_eager")
    with eager, _stand_in(model) as subject, ProfilingContext(subject, disable_dropout=False):
        unseeded, seeded = (_equal_share(subject, batch, RUNS, seed) for seed in (None, SEED))
        findings = list(_nondeterminism(type(subject).__name__, unseeded, seeded))
        if seeded == 1:  # else every comparison would see a difference
            findings += _effects(Experiment(subject, batch))
        return findings


def deterministic_share(model: nn.Module, batch: Any, runs: int = 10) -> float:
    """Share of `runs` forward passes that equal one before them bit by bit: eval mode, no dropout, the same seed."""
    whole_numbers(1, runs=runs)
    with ProfilingContext(model, seed=SEED):
        return _equal_share(model, batch, runs, SEED)


def _equal_share(model: nn.Module, batch: Any, runs: int, seed: int | None) -> float:
    first, equal = None, 0
    for _ in range(runs + 1):
        if seed is not None:
            set_seed(seed)
        with torch.no_grad():
            output = [tensor.detach().clone() for tensor in tensors_in(call(model, batch))]
        equal += first is not None and same_bits(first, output)
        first = output if first is None else first
    return equal / runs


@contextmanager
def _stand_in(model: nn.Module) -> Iterator[nn.Module]:
    """A copy to experiment on; where a model cannot be copied, itself, put back afterwards."""
    try:
        subject = copy.deepcopy(model)
    except Exception:  # modules may refuse in any way; then experiments run on the model itself
        with unchanged(model):
            yield model
        return
    yield subject


def _nondeterminism(name: str, unseeded: float, seeded: float) -> Iterator[Finding]:
    """From the shares of forward passes that equal the first, without a seed and with one."""
    if (share := min(unseeded, seeded)) < 1:
        how = "with the same seed they agree" if seeded == 1 else "the same seed does not change that"
        differ = f"{round((1 - share) * RUNS)} of {RUNS} forward passes on the same batch differ from the first"
        yield Finding("nondeterministic", name, f"{name} in eval mode: {differ}; {how}.")


def _effects(experiment: Experiment) -> Iterator[Finding]:
    arguments = list(experiment.arguments())
    yield from _constant_output(experiment, arguments)
    shape_only = [effect for effect in arguments if effect.extent == SHAPE_ONLY]
    yield from (_shape_only(experiment, effect) for effect in shape_only)
    if not shape_only:
        yield from _identical_rows(experiment)
    for effects, kind in (
        (arguments, "argument"),
        (experiment.buffers(), "buffer"),
        (experiment.parameters(), "parameter"),
    ):
        yield from (_unused(kind, effect) for effect in effects if effect.extent == NONE)


def _constant_output(experiment: Experiment, arguments: list[Effect]) -> Iterator[Finding]:
    """Nothing that goes in changes the numbers that come out."""
    name = type(experiment.model).__name__
    tensors = [leaf for leaf in leaves(experiment.model, experiment.batch) if isinstance(leaf.value, torch.Tensor)]
    if any(effect.extent not in (NONE, SHAPE_ONLY) for effect in arguments):
        return
    if len(arguments) < len(tensors) or not experiment.output:  # some could not be varied
        return
    why = f"none of its {len(tensors)} input tensors has an effect" if tensors else "no tensor goes in"
    yield Finding(
        "constant_output",
        name,
        f"{name}: {why}, so in eval mode the output is a constant of the weights: computed once, it can be kept until "
        "they change.",
    )


def _shape_only(experiment: Experiment, effect: Effect) -> Finding:
    rows, row_bytes = _rows(experiment.output)
    shown = tuple(effect.value.shape) if isinstance(effect.value, torch.Tensor) else repr(effect.value)
    return Finding(
        "shape_only",
        effect.name,
        f"{effect.name}={shown} sets how many rows come out, not what is in them: all {rows:,} output "
        f"rows are identical, so computing one row of {row_bytes:,} B and broadcasting it is enough.",
    )


def _identical_rows(experiment: Experiment) -> Iterator[Finding]:
    if experiment.output and all(map(all_rows_alike, experiment.output)):
        rows, row_bytes = _rows(experiment.output)
        yield Finding(
            "identical_rows",
            "output",
            f"All {rows:,} output rows are identical: one row of {row_bytes:,} B, computed and broadcast, is enough.",
        )


def _unused(kind: str, effect: Effect) -> Finding:
    value = effect.value
    size = f" ({value.nbytes:,} B)" if isinstance(value, torch.Tensor) else f"={value!r}"
    return Finding(
        f"unused_{kind}",
        effect.name,
        f"The {kind} {effect.name}{size} has no effect: in {effect.tried} other forms of it the output kept every bit.",
    )


def _rows(output: list[torch.Tensor]) -> tuple[int, int]:
    """(rows, bytes of one) of the first tensor."""
    rows = output[0].shape[0] if output and output[0].dim() else 0
    return rows, output[0].nbytes // max(rows, 1) if output else 0


# ---- what varying one value does -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """A tensor or number somewhere in a batch: its name, and how to build the batch with another value there."""

    name: str
    value: Any
    rebuilt: Callable[[Any], Any] = field(repr=False)


@dataclass(frozen=True)
class Effect:
    """What varying something did: `none`, `shape only` (another number of rows, all alike as before) or `some`.

    `value` is the original one, `tried` how many others were.
    """

    name: str
    extent: str
    value: Any
    tried: int


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
        tried, extents = 0, {NONE}
        for other in _variations(value, self._draw):
            try:
                output = run(other)
            except Exception:  # the model refuses the value, so it looks at it: an effect like any other
                yield Effect(name, SOME, value, tried + 1)
                return
            tried += 1
            extents.add(_extent(self.output, output))
        if tried:
            extent = next(extent for extent in (SOME, SHAPE_ONLY, NONE) if extent in extents)
            yield Effect(name, extent, value, tried)

    @torch.no_grad()
    def _run_with(self, held: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        """The output while a buffer or parameter holds another value; it has its own bits again afterwards."""
        original = held.detach().clone()
        try:
            held.copy_(value)
            return self.run(self.batch)
        finally:
            held.copy_(original)

    def _with_gradient(self) -> set[str]:
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        set_seed(SEED)
        with torch.enable_grad():
            ends = [tensor for tensor in tensors_in(call(self.model, self.batch)) if tensor.requires_grad]
            if not ends or not named:
                return set()
            directions = [torch.randn(end.shape, generator=self._draw).to(end) for end in ends]
            try:
                gradients = torch.autograd.grad(ends, list(named.values()), directions, allow_unused=True)
            except RuntimeError:  # CUDA's recurrent layers have no backward pass in eval mode: vary all parameters
                return set()
        return {name for name, grad in zip(named, gradients, strict=True) if grad is not None and grad.any()}


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
    names = [p.name for p in python_inspect.signature(forward).parameters.values() if p.kind is not p.VAR_POSITIONAL]
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
    return all(_same_bits(rows, before[:1].expand_as(rows)) for rows in (before, after))


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    bits = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (first, second))
    return bool(torch.equal(*bits))
