"""What was computed from tensors or a module, cached while nothing of it has changed."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class TensorCache:
    """Values computed from the tensors seen last; a tensor is known by its identity, its version and its memory.

    A change behind torch's back (`tensor.data.copy_`, a numpy view) does not bump the version and is not noticed. An
    entry goes when one of its tensors does. Nothing is cached of a tensor made in inference mode, which has no version.
    """

    def __init__(self, size: int = 16) -> None:
        self.size = size
        self._entries: OrderedDict[tuple, tuple[list[weakref.ref], list[tuple], Any]] = OrderedDict()

    def get(self, tensors: Sequence[Tensor], key: Hashable, compute: Callable[[], Any]) -> Any:
        """What `compute()` gave for these tensors and `key`; computed where it is not known."""
        whole, entries = (key, *[id(tensor) for tensor in tensors]), self._entries
        entry = entries.get(whole)
        if entry is not None and _same(entry[0], entry[1], tensors):
            entries.move_to_end(whole)
            return entry[2]
        fixed = not any(tensor.is_inference() for tensor in tensors)
        states = [state_of(tensor) for tensor in tensors] if fixed else []
        with torch.inference_mode(False):  # what is cached must serve training, too
            value = compute()
        if not fixed:
            return value
        references = [weakref.ref(tensor, lambda _: entries.pop(whole, None)) for tensor in tensors]
        entries[whole] = references, states, value
        while len(entries) > self.size:
            entries.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._entries)

    def __deepcopy__(self, memo: dict) -> TensorCache:
        return TensorCache(self.size)

    def __reduce__(self) -> tuple:
        return TensorCache, (self.size,)


def _same(references: list[weakref.ref], states: list[tuple], tensors: Sequence[Tensor]) -> bool:
    for reference, state, tensor in zip(references, states, tensors, strict=True):
        if reference() is not tensor or state != state_of(tensor):
            return False
    return True


def state_of(tensor: Tensor) -> tuple:
    """What changes when a tensor is written to or gets another storage or shape: compared without reading it."""
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()


class Watch:
    """Has a module changed since this was made?

    Seen for every parameter, buffer and submodule, at any depth: replaced, added or removed; given another storage, as
    `.to()` and `.data = ...` do; written to in place (`optimizer.step()`, `load_state_dict`, `copy_`); another mode.
    Not seen: writes that autograd does not count (`parameter.data.copy_()`, `.numpy()[...] =`), plain attributes of
    modules (a slope, a dropout rate), hooks.
    """

    def __init__(self, module: nn.Module):
        self._modules = list(module.modules())
        self._tables = [t for m in self._modules for t in (m._parameters, m._buffers, m._modules)]
        self._slots = [(table, name, value) for table in self._tables for name, value in table.items()]
        self._tensors = [value for _, _, value in self._slots if isinstance(value, Tensor)]
        # tensors of inference mode have no version, sparse ones no address
        self.reliable = not any(t.is_inference() or t.layout != torch.strided for t in self._tensors)
        if self.reliable:
            self._storages = [t.detach() for t in self._tensors]  # alive, so that no other storage gets its address
            self._before = self._state()

    def unchanged(self) -> bool:
        """False as soon as a change is seen; always False where none could be (tensors of inference mode, sparse)."""
        return (
            self.reliable
            and sum(map(len, self._tables)) == len(self._slots)
            and all(table.get(name) is value for table, name, value in self._slots)
            and self._state() == self._before
        )

    def _state(self) -> tuple:
        return (
            [tensor._version for tensor in self._tensors],
            [tensor.data_ptr() for tensor in self._tensors],
            [module.training for module in self._modules],
        )
