"""What is easily overlooked: outputs that do not depend on the input, arguments, buffers and parameters without effect,
forward passes that differ under one seed.

    for finding in inspect(model, batch):
        print(finding.sentence)

Each argument, buffer and parameter is varied alone, and the bits of the output are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError
from gnnlab.measure.race import Backward, directions
from gnnlab.measure.restore import ProfilingContext, set_seed, unchanged
from gnnswap.inputs import call, tensors_in

SEED = 42
RUNS = 10  # compared with a first one
_NO_INPUT = {"y", "train_mask", "val_mask", "test_mask", "num_nodes", "ptr"}  # fields that no model is meant to read
_NONE, _SHAPE_ONLY, _SOME = range(3)  # effects


@dataclass(frozen=True)
class Finding:
    """One thing found: its kind, where, and a sentence for the reader.

    Kinds: nondeterministic, constant_output, shape_only, unused_argument, unused_buffer, unused_parameter.
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
    with eager, unchanged(model), ProfilingContext(model, disable_dropout=False):
        output = _output(model, batch)
        if differ := sum(not same_bits(output, _output(model, batch)) for _ in range(RUNS)):
            name = type(model).__name__
            sentence = f"{name}: {differ} of {RUNS} forward passes with the same batch and seed differ from the first."
            return [Finding("nondeterministic", name, sentence)]  # no word on effects: everything would differ
        return list(_described(model, batch, output, list(_effects(model, batch, output))))


@torch.no_grad()
def _output(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    """The tensors of the output under one seed, as copies that nothing can change later."""
    set_seed(SEED)
    return [tensor.detach().clone() for tensor in tensors_in(call(model, batch))]


# ---- what varying one value does -------------------------------------------------------------------------------------


class _Effect(NamedTuple):
    """What varying an argument, a buffer or a parameter did: nothing, another number of rows, all alike as before, or
    more. `value` is the original one, `tried` how many others were."""

    kind: str
    name: str
    value: Any
    extent: int
    tried: int


def _effects(model: nn.Module, batch: Any, output: list[torch.Tensor]) -> Iterator[_Effect]:
    """Of each tensor and number of the batch, each buffer, and each parameter whose gradient is zero or none."""
    draw = torch.Generator().manual_seed(SEED)

    @torch.no_grad()
    def run_with(tensor: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        original = tensor.detach().clone()
        try:
            tensor.copy_(value)
            return _output(model, batch)
        finally:
            tensor.copy_(original)

    varied = [
        ("argument", name, value, lambda other, put=put: _output(model, put(other)))
        for name, value, put in _leaves(model, batch)
    ]
    counters = [buffer for buffer in model.buffers() if not buffer.dim() and not buffer.is_floating_point()]
    effective = {id(tensor) for tensor in [*counters, *_with_gradient(model, batch)]}
    for kind, named in (("buffer", model.named_buffers()), ("parameter", model.named_parameters())):
        varied += [(kind, name, value, partial(run_with, value)) for name, value in named if id(value) not in effective]
    for kind, name, value, output_with in varied:
        extents = []
        for other in _variations(value, draw):
            try:
                extents.append(_extent(output, output_with(other)))
            except Exception:  # the model refuses the value, so it looks at it: an effect like any other
                extents.append(_SOME)
        if extents:
            yield _Effect(kind, name, value, max(extents), len(extents))


@torch.enable_grad()
def _with_gradient(model: nn.Module, batch: Any) -> list[nn.Parameter]:
    """The parameters that surely have an effect, as they get a gradient that is not zero."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    set_seed(SEED)
    try:
        _, gradients = Backward(lambda: call(model, batch), wanted, directions)()
    except (RuntimeError, ValueError):  # nothing to differentiate, or CUDA's recurrent layers in eval mode: vary all
        return []
    return [p for p, gradient in zip(wanted, gradients, strict=True) if gradient is not None and gradient.any()]


def _leaves(model: Callable[..., Any], batch: Any) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """Every tensor and number of a batch: (name, by the model's argument that it is in; value; a function that gives
    the batch with another value in its place)."""
    names = [p.name for p in signature(model.forward).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    paths, structure = pytree.tree_flatten_with_path(batch)
    values = [value for _, value in paths]

    def replaced(place: int, key: str | None, value: Any) -> Any:
        if key is not None:
            data = copy.copy(values[place])
            data[key], value = value, data
        return pytree.tree_unflatten([*values[:place], value, *values[place + 1 :]], structure)

    for place, (path, value) in enumerate(paths):
        at = getattr(path[0], "idx", None) if path else 0  # None in a mapping
        name = path[0].key if at is None else names[at] if at < len(names) else f"argument {at + 1}"
        name, fields = f"{name}{pytree.keystr(path[1:])}", {None: value}
        if isinstance(value, Data):
            fields = {key: value[key] for key in value.keys() if key not in _NO_INPUT}  # noqa: SIM118 - no mapping
        for key, one in fields.items():
            if isinstance(one, (torch.Tensor, bool, int, float)):
                yield name if key is None else f"{name}.{key}", one, partial(replaced, place, key)


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
    elif value.numel() > 1:
        flat = value.flatten()
        for _ in range(2):
            mixed = flat[torch.randperm(len(flat), generator=draw).to(flat.device)]
            if not torch.equal(mixed, flat):
                yield mixed.view(value.shape)


# ---- what that means -------------------------------------------------------------------------------------------------


def _described(model: nn.Module, batch: Any, output: list[torch.Tensor], effects: list[_Effect]) -> Iterator[Finding]:
    name, arguments = type(model).__name__, [effect for effect in effects if effect.kind == "argument"]
    tensors = sum(isinstance(value, torch.Tensor) for _, value, _ in _leaves(model, batch))
    if output and len(arguments) >= tensors and all(effect.extent != _SOME for effect in arguments):
        why = f"none of its {tensors} input tensors has an effect" if tensors else "no tensor goes in"
        constant = "so in eval mode the output is a constant of the weights: computed once, it can be kept until"
        yield Finding("constant_output", name, f"{name}: {why}, {constant} they change.")
    rows, row_bytes = (output[0].shape[0], output[0][:1].nbytes) if output and output[0].dim() else (0, 0)
    alike = f"all {rows:,} output rows are identical, so computing one row of {row_bytes:,} B and broadcasting it"
    shape_only = [effect for effect in arguments if effect.extent == _SHAPE_ONLY]
    for effect in shape_only:
        value = tuple(effect.value.shape) if isinstance(effect.value, torch.Tensor) else repr(effect.value)
        decides = f"{effect.name}={value} sets how many rows come out, not what is in them"
        yield Finding("shape_only", effect.name, f"{decides}: {alike} is enough.")
    for effect in effects:
        if effect.extent == _NONE:
            value = effect.value
            size = f" ({value.nbytes:,} B)" if isinstance(value, torch.Tensor) else f"={value!r}"
            what = f"The {effect.kind} {effect.name}{size} has no effect"
            tried = f"in {effect.tried} other variants of it the output kept every bit."
            yield Finding(f"unused_{effect.kind}", effect.name, f"{what}: {tried}")


def _extent(before: list[torch.Tensor], after: list[torch.Tensor]) -> int:
    if same_bits(before, after):
        return _NONE
    one_row = len(before) == len(after) and all(map(_repeat_one_row, before, after))
    return _SHAPE_ONLY if one_row else _SOME


def _repeat_one_row(*tensors: torch.Tensor) -> bool:
    """Have both rows, all of them with the same bits?"""
    if len({(tensor.shape[1:], tensor.dtype) for tensor in tensors}) > 1 or not all(
        t.dim() and len(t) for t in tensors
    ):
        return False
    rows = torch.cat(tensors)
    return _same_bits(rows, rows[:1].expand_as(rows))


def same_bits(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Are the tensors equal bit by bit? (Two NaN are, 0.0 and -0.0 are not.)"""
    return len(first) == len(second) and all(map(_same_bits, first, second))


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    bits = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (first, second))
    return bool(torch.equal(*bits))
