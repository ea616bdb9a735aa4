"""How many bytes of tensors a call holds at once: on CUDA the allocator's word, on a CPU accounted here.

On a CPU each storage that an operator makes is counted from its birth to its death, views and in-place work not at
all. What kernels take and give back inside themselves (fused attention: all its scores) no tensor shows; torch's
profiler records it, and the larger of the two peaks counts.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import profile
from torch.nn.parameter import UninitializedTensorMixin

from .dispatch import Watch, name_of, tensors_in

_MAKES_NO_ALIAS = {"aten::lift_fresh"}  # hands on a tensor that Python has just made from numbers


@dataclass(frozen=True)
class Held:
    """Bytes above what was alive before the call: at the peak, and at its end, its result still alive."""

    peak: int
    at_end: int
    result: Any


def hold(fn: Callable[[], Any], device: torch.device) -> Held:
    """Call `fn` and say what it held at once on `device`; for a call on a CPU its tensors must be on that CPU."""
    return _hold_on_cuda(fn, device) if device.type == "cuda" else _hold_on_cpu(fn)


def storages(*things: Any) -> dict[int, int]:
    """Bytes of each storage behind the tensors of models and batches, every storage once, by its identity."""
    sizes = {}
    for thing in things:
        tensors = (*thing.parameters(), *thing.buffers()) if isinstance(thing, nn.Module) else tensors_in(thing)
        for storage in strided_storages(tensors):
            sizes[storage._cdata] = storage.nbytes()
    return sizes


def quiet_profiler() -> None:
    """Keep torch's profiler from writing to the terminal at each start. It reads this once, at its first."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


class LiveTensors(Watch):
    """Inside it, the bytes of CPU storages that operators made and that are still alive: now, and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, int] = {}

    def seen(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict, output: Any) -> None:
        alias = name_of(func) not in _MAKES_NO_ALIAS
        given = {storage._cdata for storage in strided_storages(tensors_in((args, kwargs)))} if alias else set()
        for storage in strided_storages(tensors_in(output)):
            if storage.device.type == "cpu" and (storage._cdata in self._alive or storage._cdata not in given):
                self._count(storage)

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._alive:  # torch keeps the Python object of a storage as long as the storage itself
            weakref.finalize(storage, self._gone, key).atexit = False
        self.now += storage.nbytes() - self._alive.get(key, 0)  # `out=` may have made it larger
        self._alive[key] = storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int) -> None:
        self.now -= self._alive.pop(key)


def strided_storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    """The storages behind tensors, those of indices and values for sparse ones."""
    for tensor in tensors:
        if isinstance(tensor, UninitializedTensorMixin):
            continue
        if tensor.layout is torch.strided:
            yield tensor.untyped_storage()
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from strided_storages((tensor.crow_indices(), tensor.col_indices(), tensor.values()))
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from strided_storages((tensor.ccol_indices(), tensor.row_indices(), tensor.values()))
        elif tensor.layout is torch.sparse_coo:
            yield from strided_storages((tensor._indices(), tensor._values()))


def _hold_on_cuda(fn: Callable[[], Any], device: torch.device) -> Held:
    gc.collect()  # garbage of earlier work must not die in the middle
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = fn()
    torch.cuda.synchronize(device)
    peak, end = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    return Held(peak - before, end - before, result)


def _hold_on_cpu(fn: Callable[[], Any]) -> Held:
    live = LiveTensors()
    with _allocator_record() as record, live:
        result = fn()
        at_end = live.now
    return Held(max(live.peak, _peak(record)), at_end, result)


@contextmanager
def _allocator_record() -> Iterator[profile | None]:
    """A profiler that records each allocation; None where one is running already, or this torch has none."""
    if torch.autograd.profiler._is_profiler_enabled or not torch.profiler.kineto_available():
        yield None
        return
    quiet_profiler()
    with profile(profile_memory=True) as record:
        yield record


def _peak(record: profile | None) -> int:
    if record is None:
        return 0
    events = [event for event in record.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == torch.profiler.DeviceType.CPU:
            now += event.nbytes()
            peak = max(peak, now)
    return peak
