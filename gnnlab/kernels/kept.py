"""What was made from a tensor or a module, kept while nothing of it has changed.

The symptom encoder has no input, so in eval its output is a constant of its weights. `HoistedSymptomEncoder` computes
it once and serves it until a change is seen. Looking for changes costs a few microseconds, thousands of times less
than reading the weights would; what is seen and what is not is said in `Watch`, of a tensor in `Kept`.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn


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
        key, state = (id(tensor), *also), state_of(tensor)
        found = self._made.get(key)
        if found is not None and found[0]() is tensor and found[1] == state:
            self._made.move_to_end(key)
            return found[2]
        with torch.inference_mode(False):  # what is kept must serve training, too
            made = make()
        for gone in [key for key, (seen, _, _) in self._made.items() if seen() is None]:
            del self._made[gone]
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


def state_of(tensor: Tensor) -> tuple:
    """What changes when a tensor is written to or gets another storage or shape: compared without reading it."""
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()


_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ADDRESS = Tensor.data_ptr
_TRAINING = itemgetter("training")


class Watch:
    """Has a module changed since this was made?

    Seen for every parameter and buffer, at any depth: replaced by another object, added, removed; given another
    storage, as any change of device, precision or size does (`.to()`, `.data = ...`); written in place
    (`optimizer.step()`, `load_state_dict`, `copy_`: the version counter of autograd); and a submodule that was replaced
    or went into training mode. Writes past the version counter (`parameter.data.copy_()`, `.numpy()[...] =`) are seen
    on a CPU when they change the middle element of any tensor, as loading other weights does.

    Not seen: such a write to other elements only (on other devices: any such write), `.data` set to another view of
    the same storage (a transpose), plain attributes of modules (a slope, a dropout rate), hooks. Call
    `HoistedSymptomEncoder.refresh()` after those.
    """

    def __init__(self, module: nn.Module):
        modules = list(module.modules())
        self._attributes = [m.__dict__ for m in modules]
        self._tables = [t for m in modules for t in (m._parameters, m._buffers, m._modules)]
        self._copies = [dict(table) for table in self._tables]
        slots = [(table, name, value) for table in self._tables for name, value in table.items()]
        self.tensors = [value for _, _, value in slots if isinstance(value, Tensor)]
        self._scalars = [slot for slot in slots if isinstance(slot[2], Tensor) and slot[2].numel() <= 1]
        self.reliable = not any(t.is_inference() or t.layout != torch.strided for t in self.tensors)
        if self.reliable:
            # the alias keeps the storage alive, so that no other storage can come to lie at its address
            self._aliases = [t.detach() for t in self.tensors]
            self._addresses = list(map(_ADDRESS, self.tensors))
            self._versions = [t._version for t in self.tensors]
            self._witnesses = [w for alias in self._aliases if (w := _middle(alias)) is not None]
            self._values = [w[0] for w in self._witnesses]

    def in_training(self) -> bool:
        """Is the module, or any in it, in training mode?"""
        return any(map(_TRAINING, self._attributes))

    def needs_grad(self) -> bool:
        """Does any tensor of the module want a gradient?"""
        return any(t.requires_grad for t in self.tensors)

    def unchanged(self) -> bool:
        """False as soon as a change is seen; always False for tensors that cannot be watched (inference, sparse)."""
        return (  # each list in one go: a loop with all conditions takes three times as long
            self.reliable
            and self._same_objects()
            and [t._version for t in self.tensors] == self._versions
            and list(map(_ADDRESS, self.tensors)) == self._addresses
            and [w[0] for w in self._witnesses] == self._values
        )

    def _same_objects(self) -> bool:
        # == of dicts asks `is` first, and two tensors of several elements that are not the same object raise
        try:
            if self._tables != self._copies:
                return False
        except (RuntimeError, TypeError):
            return False
        return not self._scalars or all(table[name] is value for table, name, value in self._scalars)


class HoistedSymptomEncoder(nn.Module):
    """`encoder(batch_size)` -> (batch_size, 256) from a constant that is computed again after every change.

    Takes a `FastSymptomEncoder` or the `SymptomGAT` itself. Serves the constant in eval only, and never where a
    gradient is wanted (grad mode on and any parameter that requires one), under autocast, or for weights that are
    inference tensors, whose writes nobody counts: there it computes. The result is a view of the constant, one row
    expanded, and must not be written to (if it is, that is seen and the constant computed again). Hooks on this module
    are not run. `Watch` says which changes are seen.
    """

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder
        self.computed = 0  # how often, for whoever wants to know whether the constant is in use
        self._kept: _Constant | None = None
        self.train(encoder.training)

    def forward(self, batch_size: int = 1) -> Tensor:
        kept = self._kept
        if type(batch_size) is not int or batch_size < 1 or torch.is_autocast_enabled("cpu"):
            return self.encoder(batch_size)
        if kept is None or not kept.valid():
            kept = self._compute()
            if kept is None:
                return self.encoder(batch_size)
        if torch.is_grad_enabled() and kept.watch.needs_grad():
            return self.encoder(batch_size)
        return kept.rows(batch_size)

    def __call__(self, batch_size: int = 1) -> Tensor:
        return self.forward(batch_size)  # nn.Module's own, which looks for hooks, takes a tenth of the whole call

    def refresh(self) -> None:
        """Forget the constant: the next call computes it."""
        self._kept = None

    def _compute(self) -> _Constant | None:
        self._kept = None
        watch = Watch(self.encoder)
        if watch.reliable and not watch.in_training():
            with torch.inference_mode(False), torch.no_grad():  # a normal tensor: its version is counted
                self._kept = _Constant(watch, self.encoder(1).clone())
            self.computed += 1
        return self._kept

    def __getstate__(self) -> dict:
        return super().__getstate__() | {"_kept": None}  # a copy watches its own weights


class _Constant:
    """A row, and what it was computed from."""

    def __init__(self, watch: Watch, row: Tensor):
        self.watch, self.row, self._version = watch, row, row._version
        self._view = row.numpy() if row.device.type == "cpu" and row.dtype != torch.bfloat16 else None
        self._bytes = self._view.tobytes() if self._view is not None else b""
        self._rows: tuple[int, Tensor] = (1, row)

    def rows(self, batch_size: int) -> Tensor:
        """The row expanded; a new tensor object at each call (an alias of the last one costs half of an expand)."""
        known, rows = self._rows
        if known != batch_size:
            rows = self.row.expand(batch_size, -1)
            self._rows = batch_size, rows
        return rows.detach()

    def valid(self) -> bool:
        if self.watch.in_training() or not self.watch.unchanged() or self.row._version != self._version:
            return False
        return self._view is None or self._view.tobytes() == self._bytes


def _middle(tensor: Tensor) -> memoryview | None:
    """The middle element of a CPU tensor, read as an integer at each look; None where there is no such view."""
    kind = _INTEGER_OF_SIZE.get(tensor.element_size())
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or kind is None or not tensor.numel():
        return None
    flat = tensor.view(-1).view(kind).numpy()
    return memoryview(flat[flat.size // 2 :][:1])
