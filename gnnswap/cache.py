"""Caches of what was computed from tensors, bounded by bytes.

cache = TensorCache(max_bytes=1 << 26)
cache.get((weight,), "sorted", lambda: weight[order])    # computed once, and again when `weight` changes
"""

from __future__ import annotations

import ctypes
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnswap import backends

MIB = 1 << 20
SAMPLED = 64  # numbers of a tensor that are compared at each use
OBJECT_BYTES = 512  # of an object beside its numbers, so that a million tiny graphs are bounded, too
ENTRY_BYTES = 2048  # of an entry beside its value

_RANDOM = np.random.default_rng()  # of our own: the user's generators stay as they are
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class TensorCache:
    """Values computed from tensors, each recognized by its identity, version, memory, shape and a sample of contents.

    The sample notices writes that do not raise a tensor's version (`dist.broadcast`, `tensor.data.copy_`, a numpy view,
    fused optimizers): each use compares the bits at 64 positions, drawn at random for each entry. A write that changes
    a share f of the numbers is missed with probability (1 - f) ** 64: 1 in 10**19 for half of them, 0.1 % for a tenth,
    53 % for a hundredth. Tensors of up to 64 numbers are compared whole. The positions stay, so a write that was missed
    once is missed again. Only tensors of CPUs are sampled: reading others would wait for the device.

    An entry is dropped when one of its tensors dies. The least recently used are dropped where all take more than
    `max_bytes`; the last one used stays, however large. Entries may grow, so they are measured again.

    No entry keeps its own tensors alive. Where the value is one of them, or has one in tuples and lists, the entry
    stores its number. A value that refers to them otherwise, as a view, in an object or in a gradient's history, is not
    cached; nor is what was computed from tensors of inference mode, which have no version.

    Threads may share a cache: two may compute the same value, each gets a right one.
    """

    def __init__(self, max_bytes: int = 64 * MIB, apart: tuple[type, ...] = ()) -> None:
        """The bytes of objects of the types `apart` are not counted."""
        self.max_bytes, self.apart = max_bytes, apart
        self._entries = BoundedDict(max_bytes, lambda entry: ENTRY_BYTES + nbytes_of(entry.value, apart))

    def get(self, tensors: Sequence[Tensor], key: Hashable, compute: Callable[[], Any]) -> Any:
        """The result of `compute()` for these tensors and `key`, cached."""
        whole = (key, *[id(tensor) for tensor in tensors])
        entry = self._entries.get(whole)
        if entry is not None and entry.is_of(tensors):
            return _exchanged(entry.value, _Number, tensors.__getitem__) if entry.numbered else entry.value
        known = all(map(_is_recognizable, tensors)) and not backends.capturing()
        died = partial(_discard, weakref.ref(self._entries), whole)
        seen = [Snapshot(tensor, died) for tensor in tensors] if known else []  # before computing: it may be written to
        with torch.inference_mode(False):  # cached values must serve training, too
            value = compute()
        if known:
            kept, numbered = _numbered(value, tensors)
            if not _holds_memory_of(tensors, kept, self.apart):
                self._entries.put(whole, _Entry(seen, kept, numbered))
        return value

    def forget(self) -> None:
        self._entries.forget()

    def __len__(self) -> int:
        return len(self._entries)

    def __deepcopy__(self, memo: dict) -> TensorCache:
        return TensorCache(self.max_bytes, self.apart)

    def __reduce__(self) -> tuple:
        return TensorCache, (self.max_bytes, self.apart)


class _Entry:
    def __init__(self, snapshots: list[Snapshot], value: Any, numbered: bool) -> None:
        self.snapshots, self.value, self.numbered = snapshots, value, numbered

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        for seen, tensor in zip(self.snapshots, tensors, strict=True):  # noqa: SIM110  half the time of all(...)
            if not seen.is_of(tensor):
                return False
        return True


class _Number(int):
    """Stands in a cached value for the tensor of this number among those that it was computed from."""


def _numbered(value: Any, tensors: Sequence[Tensor]) -> tuple[Any, bool]:
    """(the value with numbers in place of its own tensors, are there any?)"""
    places = []

    def number(one: Tensor) -> Any:
        place = next((place for place, tensor in enumerate(tensors) if tensor is one), None)
        if place is None:
            return one
        places.append(place)
        return _Number(place)

    kept = _exchanged(value, Tensor, number)
    return (kept, True) if places else (value, False)


def _exchanged(value: Any, kind: type, other: Callable[[Any], Any]) -> Any:
    """The value with `other(one)` in place of each `one` of this kind, by itself or in tuples and lists."""
    if type(value) in (tuple, list):
        return type(value)(_exchanged(one, kind, other) for one in value)
    return other(value) if isinstance(value, kind) else value


class Snapshot:
    """The state of a tensor: `is_of(tensor)` tells whether this is the same one with the same contents, as far as its
    version and a sample tell. `died()` is called when it is gone."""

    def __init__(self, tensor: Tensor, died: Callable[[], None] | None = None) -> None:
        self._reference = weakref.ref(tensor, None if died is None else lambda _: died())
        self._state = state_of(tensor)
        self._numbers, self._places = _sampled(tensor)
        self._bits = b"" if self._places is None else self._numbers[self._places].tobytes()

    def is_of(self, tensor: Tensor) -> bool:
        if self._reference() is not tensor or self._state != state_of(tensor):
            return False
        return self._places is None or self._numbers[self._places].tobytes() == self._bits


def state_of(tensor: Tensor) -> tuple:
    """Changes when a tensor is written to or gets another storage or shape; does not read it."""
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()


def _is_recognizable(tensor: Tensor) -> bool:
    """Has it a version and memory of its own?"""
    if tensor.is_inference() or tensor.layout is not torch.strided:
        return False
    return tensor.numel() == 0 or tensor.data_ptr() != 0  # 0: a subclass that wraps other tensors


def _sampled(tensor: Tensor) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(the numbers of a tensor as unsigned integers, the positions of SAMPLED of its elements in them).

    The array does not own its memory, unlike `tensor.numpy()`, which would keep it alive and forbid to resize it. It
    may only be read while `state_of` the tensor is unchanged.
    """
    kind, count = _UNSIGNED.get(tensor.element_size()), tensor.numel()
    if tensor.device.type != "cpu" or count == 0 or kind is None:
        return None, None
    places = np.arange(count) if count <= SAMPLED else (_RANDOM.random(SAMPLED) * count).astype(np.int64)
    span = count
    if not tensor.is_contiguous():
        shape, steps = tuple(tensor.shape), tensor.stride()
        along = np.unravel_index(places, shape)
        places = sum(number * step for number, step in zip(along, steps, strict=True))
        span = 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
    memory = (ctypes.c_char * (span * tensor.element_size())).from_address(tensor.data_ptr())
    return np.frombuffer(memory, kind), places


def _discard(entries: weakref.ref[BoundedDict], key: Hashable) -> None:
    there = entries()
    if there is not None:
        there.discard(key)


class BoundedDict:
    """Values by key; the least recently used are dropped where all take more than `max_bytes`.

    The last one used stays, however large. `size(value)` measures a value when it is put in and, as it may grow, again
    after use at each further `put` and at the 1st, 2nd, 4th, 8th, ... `get`. `dropped(value)` is called for each that
    is dropped for its size. Threads may share it.
    """

    def __init__(
        self, max_bytes: int, size: Callable[[Any], int], dropped: Callable[[Any], None] = lambda value: None
    ) -> None:
        self.max_bytes, self._size, self._dropped = max_bytes, size, dropped
        self._lock = Lock()
        self._slots: OrderedDict[Hashable, list] = OrderedDict()  # key: [value, its bytes, used since it was measured]
        self._bytes = self._gets = 0
        self._late: deque[Hashable] = deque()  # keys of what died while the lock was taken

    def get(self, key: Hashable) -> Any:
        """The value of `key`, None where there is none."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                return None
            self._slots.move_to_end(key)
            slot[2] = True
            self._gets += 1
            gone = [] if self._gets & (self._gets - 1) else self._make_room()
        for value in gone:  # freed outside of the lock, as that may run any code
            self._dropped(value)
        return slot[0]

    def put(self, key: Hashable, value: Any) -> None:
        size = self._size(value)
        with self._lock:
            before = self._remove_late() + self._remove(key)
            slot = self._slots[key] = [value, size, False]
            self._bytes += size
            self._gets = 0
            gone = self._make_room()
            slot[2] = True  # its owner is about to use it
        for value in before + gone:
            self._dropped(value)

    def discard(self, key: Hashable) -> None:
        """Remove this key if it is there. Never waits: a tensor may die at any moment, in any thread."""
        self._late.append(key)
        if self._lock.acquire(blocking=False):
            try:
                gone = self._remove_late()  # noqa: F841  freed after the lock is
            finally:
                self._lock.release()

    def forget(self) -> None:
        with self._lock:
            slots, self._slots, self._bytes = self._slots, OrderedDict(), 0
            self._late.clear()
        for value, *_ in slots.values():
            self._dropped(value)

    def values(self) -> list:
        return [slot[0] for slot in list(self._slots.values())]

    def __len__(self) -> int:
        return len(self._slots)

    def _make_room(self) -> list:
        gone, newest = self._remove_late(), next(reversed(self._slots.values()), None)
        for slot in reversed(self._slots.values()):
            if slot[2]:
                size = self._size(slot[0])
                self._bytes += size - slot[1]
                slot[1:] = size, False
            elif slot is not newest:  # those used since they were measured stand at the end
                break
        while self._bytes > self.max_bytes and len(self._slots) > 1:
            gone += self._remove(next(iter(self._slots)))
        return gone

    def _remove_late(self) -> list:
        gone = []
        while self._late:
            gone += self._remove(self._late.popleft())
        return gone

    def _remove(self, key: Hashable) -> list:
        value, size, _ = self._slots.pop(key, (None, None, None))
        if size is None:
            return []
        self._bytes -= size
        return [value]


def nbytes_of(value: Any, apart: tuple[type, ...] = ()) -> int:
    """Bytes of `value`: each storage of the tensors in it once, and OBJECT_BYTES for each object.

    Containers, attributes and closures are searched; modules and objects of types `apart` are not.
    """
    storages, objects = {}, 0
    for one in _reachable(value, apart):
        objects += 1
        if isinstance(one, Tensor) and one.layout is torch.strided:
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, np.ndarray) and one.flags.owndata:
            storages[one.ctypes.data] = one.nbytes
    return sum(storages.values()) + OBJECT_BYTES * objects


def cuda_tensors(value: Any) -> list[Tensor]:
    """All CUDA tensors in `value`. A captured CUDA graph reads them at each replay, so they must live as long."""
    return [one for one in _reachable(value, ()) if isinstance(one, Tensor) and one.is_cuda]


def _holds_memory_of(tensors: Sequence[Tensor], value: Any, apart: tuple[type, ...]) -> bool:
    """Would `value` keep one of the tensors alive: as itself, as a view of it, or in the history of a gradient?"""
    theirs = {tensor.untyped_storage().data_ptr() for tensor in tensors} - {0}
    for one in _reachable(value, apart):
        if isinstance(one, Tensor) and one.layout is torch.strided:
            if one.grad_fn is not None or one.untyped_storage().data_ptr() in theirs:
                return True
            if any(one is tensor or one._base is tensor for tensor in tensors):  # empty ones have no memory
                return True
    return False


_PLAIN = {type(None), bool, int, float, str, bytes, torch.dtype, torch.device, weakref.ref}  # no parts, no size


def _reachable(value: Any, apart: tuple[type, ...]) -> Iterator[Any]:
    """The objects in `value`, each once, itself among them."""
    passed, waiting, seen = (type, types.ModuleType, nn.Module, *apart), [value], set()
    while waiting:
        one = waiting.pop()
        if type(one) in _PLAIN or id(one) in seen or isinstance(one, passed):
            continue
        seen.add(id(one))
        yield one
        waiting += _parts(one)


def _parts(one: Any) -> list:
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, (list, tuple, set, frozenset)):
        return list(one)
    if isinstance(one, BoundedDict):
        return one.values()
    if isinstance(one, (types.MethodType, types.BuiltinMethodType)):
        return [one.__self__]
    if isinstance(one, types.FunctionType):
        return _closed_over(one)
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values()]
    if hasattr(one, "__dict__"):
        return list(vars(one).values())
    return [getattr(one, name, None) for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]


def _closed_over(function: types.FunctionType) -> list:
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty so far
            found.append(cell.cell_contents)
    return found
