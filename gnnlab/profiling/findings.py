"""What a reader would not think to ask: outputs that do not depend on the input, arguments, buffers and parameters
without effect, copies for nothing, forward passes that differ.

    for finding in inspect(model, batch):
        print(finding.sentence)

Copies for nothing are operators that write what is there already, in one forward pass: rows repeated where an expanded
view would do, clones that nobody writes to, lookups of every row in its own order, `cat` of one tensor.
"""

from __future__ import annotations

import copy
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.module_tracker import ModuleTracker

from gnnlab.errors import GnnlabError, whole_numbers

from .context import ProfilingContext, call, set_seed, unchanged
from .dispatch import OperatorWatch, bind, name_of, span_bytes, tensors_in, written
from .effects import NONE, SEED, SHAPE_ONLY, Effect, Experiment, all_rows_alike, leaves, same_bits

LEAST_COPY = 1024  # bytes; smaller needless copies are not worth a sentence


@dataclass(frozen=True)
class Finding:
    """One thing found: its kind, where, the numbers behind it, and a sentence for the reader.

    Kinds: constant_output, shape_only, identical_rows, unused_argument, unused_buffer, unused_parameter,
    needless_copy, nondeterministic.
    """

    kind: str
    where: str
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)


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
        found = list(_nondeterminism(subject, batch))
        if not (found and found[0].evidence["seeded_share"] < 1):  # else every comparison would see a difference
            found += _effects(Experiment(subject, batch))
        return found + list(_copies(subject, batch))


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


def _nondeterminism(model: nn.Module, batch: Any) -> Iterator[Finding]:
    runs, name = 3, type(model).__name__
    share, seeded = (_equal_share(model, batch, runs, seed) for seed in (None, SEED))
    if min(share, seeded) < 1:
        how = "with the same seed they agree" if seeded == 1 else "the same seed does not change that"
        yield Finding(
            "nondeterministic",
            name,
            f"{name} in eval mode: {round((1 - min(share, seeded)) * runs)} of {runs} forward passes on the same batch "
            f"differ from the first; {how}.",
            {"runs": runs, "share": share, "seeded_share": seeded},
        )


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
        {"input_tensors": len(tensors), "output_bytes": sum(map(_bytes, experiment.output))},
    )


def _shape_only(experiment: Experiment, effect: Effect) -> Finding:
    rows, row_bytes = _rows(experiment.output)
    return Finding(
        "shape_only",
        effect.name,
        f"{effect.name}={_shown(effect.value)} sets how many rows come out, not what is in them: all {rows:,} output "
        f"rows are identical, so computing one row of {row_bytes:,} B and broadcasting it is enough.",
        {"rows": rows, "row_bytes": row_bytes, "shapes": effect.shapes, "tried": effect.tried},
    )


def _identical_rows(experiment: Experiment) -> Iterator[Finding]:
    if experiment.output and all(map(all_rows_alike, experiment.output)):
        rows, row_bytes = _rows(experiment.output)
        yield Finding(
            "identical_rows",
            "output",
            f"All {rows:,} output rows are identical: one row of {row_bytes:,} B, computed and broadcast, is enough.",
            {"rows": rows, "row_bytes": row_bytes},
        )


def _unused(kind: str, effect: Effect) -> Finding:
    tensor = isinstance(effect.value, torch.Tensor)
    size = f" ({_bytes(effect.value):,} B)" if tensor else f"={_shown(effect.value)}"
    return Finding(
        f"unused_{kind}",
        effect.name,
        f"The {kind} {effect.name}{size} has no effect: in {effect.tried} other forms of it the output kept every bit.",
        {"tried": effect.tried, "bytes": _bytes(effect.value) if tensor else 0},
    )


def _copies(model: nn.Module, batch: Any) -> Iterator[Finding]:
    for found in needless_copies(model, batch):
        if found.bytes >= LEAST_COPY:
            others = f" and {len(found.modules) - 1} more" if len(found.modules) > 1 else ""
            where = (found.modules[0] or type(model).__name__) + others + (f" ({found.line})" if found.line else "")
            calls = "once" if found.calls == 1 else f"in {found.calls} calls"
            yield Finding(
                "needless_copy",
                where,
                f"{found.operator} in {where} copies {found.bytes:,} B for nothing, {calls} a forward pass: on this "
                f"batch it {found.why}.",
                vars(found),
            )


def _rows(output: list[torch.Tensor]) -> tuple[int, int]:
    """(rows, bytes of one) of the first tensor."""
    rows = output[0].shape[0] if output and output[0].dim() else 0
    return rows, _bytes(output[0]) // max(rows, 1) if output else 0


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _shown(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, torch.Tensor) else repr(value)


_LIBRARIES = {Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib")}
_OWN = Path(__file__).parent


@dataclass(frozen=True)
class NeedlessCopy:
    """`calls` calls of an operator at one line, the bytes that they copied for nothing, and what would do instead."""

    operator: str
    modules: tuple[str, ...]  # paths, "" for the model itself
    line: str  # "model.py:42", the innermost line of the model outside installed libraries
    why: str
    calls: int
    bytes: int


@dataclass
class _Suspect:
    """A copy that is needless unless its result, or for a clone its source, is written to later."""

    operator: str
    module: str
    line: str
    why: str
    bytes: int
    storages: tuple[torch.UntypedStorage, ...]  # held, so that no other storage takes their place
    needless_in_output: bool
    cleared: bool = False


def needless_copies(model: nn.Module, batch: Any) -> list[NeedlessCopy]:
    """The needless copies of one forward pass without gradients, the most bytes first."""
    watch = _CopyWatch()
    with torch.no_grad(), watch.modules, watch:
        output = call(model, batch)
    returned = {tensor.untyped_storage()._cdata for tensor in tensors_in(output) if tensor.layout is torch.strided}
    found: dict[tuple[str, str, str], list[_Suspect]] = {}
    for suspect in watch.suspects:
        kept = not suspect.needless_in_output and suspect.storages[0]._cdata in returned
        if not suspect.cleared and not kept:
            found.setdefault((suspect.operator, suspect.line, suspect.why), []).append(suspect)
    copies = []
    for (operator, line, why), alike in found.items():
        modules = tuple(dict.fromkeys(suspect.module for suspect in alike))
        copies.append(NeedlessCopy(operator, modules, line, why, len(alike), sum(suspect.bytes for suspect in alike)))
    return sorted(copies, key=lambda each: -each.bytes)


class _CopyWatch(OperatorWatch):
    def __init__(self) -> None:
        super().__init__()
        self.modules = ModuleTracker()
        self.suspects: list[_Suspect] = []

    def seen(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict, output: Any) -> None:
        bound = bind(func, args, kwargs)
        targets = [tensor for name in written(func, bound) for tensor in tensors_in(bound[name])]
        changed = {tensor.untyped_storage()._cdata for tensor in targets if tensor.layout is torch.strided}
        for suspect in self.suspects if changed else ():
            suspect.cleared |= any(storage._cdata in changed for storage in suspect.storages)
        check = _CHECKS.get(name_of(func))
        if check is None or any(t.layout is not torch.strided for t in tensors_in((args, kwargs))):
            return
        if (found := check(bound, output)) is not None:
            why, size, source = found
            storages = (output.untyped_storage(), *([source.untyped_storage()] if source is not None else []))
            innermost = max(self.modules.parents - {"Global"}, key=len, default="")
            module = innermost.partition(".")[2]
            self.suspects.append(_Suspect(name_of(func), module, _line(), why, size, storages, source is None))


# Each check gives (why, bytes copied for nothing, source that must stay unwritten for that), or None.
_Found = tuple[str, int, torch.Tensor | None] | None


def _check_repeat(bound: dict[str, Any], output: torch.Tensor) -> _Found:
    source = bound["self"]
    if output.numel() > source.numel() > 0:
        return "repeats rows; expand() shows them without a copy", span_bytes(output) - span_bytes(source), None
    return None


def _check_clone(bound: dict[str, Any], output: torch.Tensor) -> _Found:
    source = bound["self"]
    if not source.numel() or (source.dtype, source.device) != (output.dtype, output.device):
        return None
    if span_bytes(source) < output.numel() * output.element_size():
        why = "writes out an expanded view; the view itself shows the same rows without a copy"
        return why, span_bytes(output) - span_bytes(source), None
    if source.stride() == output.stride():
        return "clones what neither side writes to", span_bytes(output), source
    return None


def _check_lookup(bound: dict[str, Any], output: torch.Tensor) -> _Found:
    table = bound["weight"] if "weight" in bound else bound["self"]
    index, dim = bound["indices"] if "weight" in bound else bound["index"], bound.get("dim", 0)
    if _counts_up(index, table.shape[dim] if table.dim() else 0):
        return "looks up every row in its order; the table itself is that", span_bytes(output), table
    return None


def _check_index(bound: dict[str, Any], output: torch.Tensor) -> _Found:
    table, indices = bound["self"], [index for index in bound["indices"] if index is not None]
    if len(indices) != 1 or output.numel() != table.numel() or not table.numel():
        return None
    if indices[0].dtype is torch.bool:
        return "selects by a mask that is true everywhere", span_bytes(output), table
    at = next(at for at, index in enumerate(bound["indices"]) if index is not None)
    if _counts_up(indices[0], table.shape[at]):
        return "looks up every row in its order; the table itself is that", span_bytes(output), table
    return None


def _check_cat(bound: dict[str, Any], output: torch.Tensor) -> _Found:
    parts = [part for part in bound["tensors"] if part.numel()]
    if len(parts) == 1 and parts[0].dtype == output.dtype:
        return "joins one tensor with nothing", span_bytes(output), parts[0]
    return None


_CHECKS = {
    "aten::repeat": _check_repeat,
    "aten::clone": _check_clone,
    "aten::_to_copy": _check_clone,
    "aten::index_select": _check_lookup,
    "aten::embedding": _check_lookup,
    "aten::index": _check_index,
    "aten::cat": _check_cat,
}


def _counts_up(index: torch.Tensor, length: int) -> bool:
    """Is the index 0, 1, ... length - 1?"""
    if index.dim() != 1 or len(index) != length or not length:
        return False
    return torch.equal(index, torch.arange(length, dtype=index.dtype, device=index.device))


def _line() -> str:
    """File and line of the innermost frame of the model outside installed libraries; "" if there is none."""
    inside_model = False
    for frame, number in traceback.walk_stack(None):
        path = Path(frame.f_code.co_filename)
        if path.parent == _OWN:
            if inside_model:  # out of the model again, at our own call of it
                return ""
            continue
        inside_model = True
        if not any(path.is_relative_to(folder) for folder in _LIBRARIES):
            return f"{path.name}:{number}"
    return ""
