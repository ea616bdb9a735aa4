"""What was made from a tensor, kept while that tensor lives and nobody writes to it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor


class Kept:
    """What was made from the few tensors seen last. A tensor is known by its identity, its version and its memory.

    A change behind torch's back (`tensor.data.copy_`, a numpy view) does not bump the version and is not noticed.
    Nothing is kept of a tensor made in inference mode, which has no version, nor in a trace.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._made: OrderedDict[tuple, tuple[weakref.ref, tuple, Any]] = OrderedDict()

    def get(self, tensor: Tensor, make: Callable[[], Any], *also: Hashable) -> Any:
        """What `make()` gave for this tensor, and for what else it depends on; made where it is not known."""
        if torch.compiler.is_compiling() or tensor.is_inference():
            return make()
        key, state = (id(tensor), *also), _state(tensor)
        found = self._made.get(key)
        if found is not None and found[0]() is tensor and found[1] == state:
            self._made.move_to_end(key)
            return found[2]
        with torch.inference_mode(False):  # what is kept must serve training, too
            made = make()
        self._forget_the_dead()
        self._made[key] = (weakref.ref(tensor), state, made)
        while len(self._made) > self.size:
            self._made.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._made)

    def __deepcopy__(self, memo: dict) -> Kept:
        return Kept(self.size)

    def __reduce__(self) -> tuple:
        return Kept, (self.size,)

    def _forget_the_dead(self) -> None:
        for key in [key for key, (seen, _, _) in self._made.items() if seen() is None]:
            del self._made[key]


def _state(tensor: Tensor) -> tuple:
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()
