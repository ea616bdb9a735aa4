"""What a reader would not think to ask: outputs that do not depend on the input, arguments, buffers and parameters
without effect, forward passes that differ.

    for finding in inspect(model, batch):
        print(finding.sentence)

Each argument, buffer and parameter is varied alone, and the bits of the output are compared.
"""

from __future__ import annotations

import copy
import inspect as python_inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
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
    first = _output(model, batch, seed)
    return sum(same_bits(first, _output(model, batch, seed)) for _ in range(runs)) / runs


@torch.no_grad()
def _output(model: nn.Module, batch: Any, seed: int | None = SEED) -> list[torch.Tensor]:
    """The tensors of the output, as copies that nothing can change later."""
    if seed is not None:
        set_seed(seed)
    return [tensor.detach().clone() for tensor in tensors_in(call(model, batch))]


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
    output = experiment.output
    rows, row_bytes = (output[0].shape[0], output[0][:1].nbytes) if output and output[0].dim() else (0, 0)
    one_row = f"one row of {row_bytes:,} B"
    shape_only = [effect for effect in arguments if effect.extent == SHAPE_ONLY]
    for effect in shape_only:
        value = tuple(effect.value.shape) if isinstance(effect.value, torch.Tensor) else repr(effect.value)
        decides = f"{effect.name}={value} sets how many rows come out, not what is in them"
        alike = f"all {rows:,} output rows are identical, so computing {one_row} and broadcasting it is enough."
        yield Finding("shape_only", effect.name, f"{decides}: {alike}")
    if not shape_only and output and all(map(all_rows_alike, output)):
        alike = f"All {rows:,} output rows are identical: {one_row}, computed and broadcast, is enough."
        yield Finding("identical_rows", "output", alike)
    for effect in (*arguments, *experiment.buffers(), *experiment.parameters()):
        if effect.extent == NONE:
            value = effect.value
            size = f" ({value.nbytes:,} B)" if isinstance(value, torch.Tensor) else f"={value!r}"
            what = f"The {effect.kind} {effect.name}{size} has no effect"
            tried = f"in {effect.tried} other forms of it the output kept every bit."
            yield Finding(f"unused_{effect.kind}", effect.name, f"{what}: {tried}")


def _constant_output(experiment: Experiment, arguments: list[Effect]) -> Iterator[Finding]:
    """Nothing that goes in changes the numbers that come out."""
    name = type(experiment.model).__name__
    tensors = sum(isinstance(leaf.value, torch.Tensor) for leaf in leaves(experiment.model, experiment.batch))
    varied = len(arguments) >= tensors and experiment.output
    if varied and all(effect.extent in (NONE, SHAPE_ONLY) for effect in arguments):
        why = f"none of its {tensors} input tensors has an effect" if tensors else "no tensor goes in"
        constant = "so in eval mode the output is a constant of the weights: computed once, it can be kept until"
        yield Finding("constant_output", name, f"{name}: {why}, {constant} they change.")


# ---- what varying one value does -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """A tensor or number somewhere in a batch: its name, and how to build the batch with another value there."""

    name: str
    value: Any
    rebuilt: Callable[[Any], Any] = field(repr=False)


@dataclass(frozen=True)
class Effect:
    """What varying an argument, a buffer or a parameter did: `none`, `shape only` (another number of rows, all alike as
    before) or `some`. `value` is the original one, `tried` how many others were."""

    kind: str
    name: str
    value: Any
    extent: str
    tried: int


class Experiment:
    """A model in eval mode and a batch: outputs, without gradients, always from the same seed."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.model, self.batch = model, batch
        self._draw = torch.Generator().manual_seed(SEED)
        self.output = _output(model, batch)

    def arguments(self) -> Iterator[Effect]:
        """The effect of each tensor and number of the batch that can be varied."""
        for leaf in leaves(self.model, self.batch):
            run = lambda value, leaf=leaf: _output(self.model, leaf.rebuilt(value))  # noqa: E731
            yield from self._effect("argument", leaf.name, leaf.value, run)

    def buffers(self) -> Iterator[Effect]:
        """The effect of each buffer; counters (whole numbers without a dimension) are left out."""
        for name, buffer in self.model.named_buffers():
            if buffer.dim() or buffer.is_floating_point():
                yield from self._effect("buffer", name, buffer, partial(self._run_with, buffer))

    def parameters(self) -> Iterator[Effect]:
        """The effect of each parameter that gets no gradient, or one of zeros: the others have one."""
        with_gradient = self._with_gradient()
        for name, parameter in self.model.named_parameters():
            if name not in with_gradient:
                yield from self._effect("parameter", name, parameter, partial(self._run_with, parameter))

    def _effect(self, kind: str, name: str, value: Any, run: Callable[[Any], list[torch.Tensor]]) -> Iterator[Effect]:
        extents = []
        for other in _variations(value, self._draw):
            try:
                extents.append(_extent(self.output, run(other)))
            except Exception:  # the model refuses the value, so it looks at it: an effect like any other
                extents.append(SOME)
        if extents:
            extent = next(extent for extent in (SOME, SHAPE_ONLY, NONE) if extent in extents)
            yield Effect(kind, name, value, extent, len(extents))

    @torch.no_grad()
    def _run_with(self, held: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        """The output while a buffer or parameter holds another value; it has its own bits again afterwards."""
        original = held.detach().clone()
        try:
            held.copy_(value)
            return _output(self.model, self.batch)
        finally:
            held.copy_(original)

    @torch.enable_grad()
    def _with_gradient(self) -> set[str]:
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        set_seed(SEED)
        ends = [tensor for tensor in tensors_in(call(self.model, self.batch)) if tensor.requires_grad]
        if not ends or not named:
            return set()
        directions = [torch.randn(end.shape, generator=self._draw).to(end) for end in ends]
        try:
            gradients = torch.autograd.grad(ends, list(named.values()), directions, allow_unused=True)
        except RuntimeError:  # CUDA's recurrent layers have no backward pass in eval mode: vary all parameters
            return set()
        return {name for name, grad in zip(named, gradients, strict=True) if grad is not None and grad.any()}


def leaves(model: Callable[..., Any], batch: Any) -> Iterator[Leaf]:
    """Every tensor and number of a batch, by the name of the model's argument that it is in."""
    forward = model.forward if isinstance(model, nn.Module) else model
    names = [p.name for p in python_inspect.signature(forward).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    paths, structure = pytree.tree_flatten_with_path(batch)
    values = [value for _, value in paths]

    def rebuilt(place: int, value: Any) -> Any:
        return pytree.tree_unflatten([*values[:place], value, *values[place + 1 :]], structure)

    for place, (path, value) in enumerate(paths):
        at = getattr(path[0], "idx", None) if path else 0  # None in a mapping
        name = path[0].key if at is None else names[at] if at < len(names) else f"argument {at + 1}"
        name = f"{name}{pytree.keystr(path[1:])}"
        if isinstance(value, (torch.Tensor, bool, int, float)):
            yield Leaf(name, value, partial(rebuilt, place))
        elif isinstance(value, Data):
            for key in value.keys():  # noqa: SIM118 - a Data object is no mapping
                if key not in _NO_INPUT and isinstance(value[key], (torch.Tensor, bool, int, float)):
                    change = lambda new, at=place, data=value, key=key: rebuilt(at, _with(data, key, new))  # noqa: E731
                    yield Leaf(f"{name}.{key}", value[key], change)


def _with(data: Data, key: str, value: Any) -> Data:
    changed = copy.copy(data)
    changed[key] = value
    return changed


def _variations(value: Any, draw: torch.Generator) -> Iterator[Any]:
    """Other values of the same kind: noise for floating-point tensors; whole numbers change places, so that indices
    stay indices."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (value + 1, 2 * value + 1)
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


def all_rows_alike(tensor: torch.Tensor) -> bool:
    """Two or more rows, all with the same bits."""
    return tensor.dim() > 0 and len(tensor) > 1 and _same_bits(tensor, tensor[:1].expand_as(tensor))


def same_bits(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Are the tensors equal bit by bit? (Two NaN are, 0.0 and -0.0 are not.)"""
    return len(first) == len(second) and all(map(_same_bits, first, second))


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    bits = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (first, second))
    return bool(torch.equal(*bits))
