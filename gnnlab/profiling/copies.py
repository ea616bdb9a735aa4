"""Copies for nothing: operators that write what is there already.

Found in one forward pass: rows repeated where an expanded view would do, clones that nobody writes to, lookups of
every row in its own order, a mask that is true everywhere, `cat` of one tensor.
"""

from __future__ import annotations

import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.module_tracker import ModuleTracker

from .context import call
from .dispatch import OperatorWatch, bind, name_of, span_bytes, tensors_in, written

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
    return sorted((_together(suspects) for suspects in found.values()), key=lambda each: -each.bytes)


def _together(suspects: list[_Suspect]) -> NeedlessCopy:
    first = suspects[0]
    modules = tuple(dict.fromkeys(suspect.module for suspect in suspects))
    size = sum(suspect.bytes for suspect in suspects)
    return NeedlessCopy(first.operator, modules, first.line, first.why, len(suspects), size)


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
