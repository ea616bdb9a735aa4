"""Named arrays in one piece of memory that processes share, so that a value is handed on by its name.

arrays = SharedArrays.create({"graph0/x": ((1000, 500), "float32")})
SharedArrays.attach(arrays.layout)["graph0/x"]         # in another process: the same memory
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from gnnlab.errors import GnnlabError

_ALIGNED = 64  # bytes of a cache line
Fields = Mapping[str, tuple[tuple[int, ...], str]]  # shape and dtype by name


class SharedArrays:
    """Whoever created it closes it last; views of its arrays must be gone by then."""

    def __init__(self, memory: SharedMemory, fields: Fields, owner: bool) -> None:
        self._memory, self._fields, self._owner = memory, dict(fields), owner
        self._arrays: dict[str, np.ndarray] = {}
        start = 0
        for name, (shape, dtype) in self._fields.items():
            self._arrays[name] = np.ndarray(shape, dtype, memory.buf, start)
            start += _room(shape, dtype)

    @classmethod
    def create(cls, fields: Fields, given: Mapping[str, np.ndarray] | None = None) -> SharedArrays:
        """Arrays of zeros, and copies of those `given`. Raises `GnnlabError` where there is no memory for them."""
        given = given or {}
        fields = {**fields, **{name: (array.shape, str(array.dtype)) for name, array in given.items()}}
        size = max(1, sum(_room(*field) for field in fields.values()))
        memory = None
        try:
            memory = SharedMemory(create=True, size=size)
            if hasattr(os, "posix_fallocate"):  # else the first write beyond what there is ends the process
                os.posix_fallocate(memory._fd, 0, size)
        except OSError as error:
            if memory is not None:
                memory.close()
                memory.unlink()
            raise GnnlabError(
                f"no shared memory of {size / 1e6:,.2f} MB: {error.strerror or error}; use fewer or smaller graphs, or "
                "give the system more (/dev/shm; --shm-size of a container)"
            ) from None
        made = cls(memory, fields, owner=True)
        for name, array in given.items():
            made[name][:] = array
        return made

    @classmethod
    def attach(cls, layout: Mapping[str, Any]) -> SharedArrays:
        memory = SharedMemory(layout["memory"])
        if os.name == "posix":  # or this process's tracker would remove what belongs to another one
            resource_tracker.unregister(memory._name, "shared_memory")
        return cls(memory, {name: (tuple(shape), dtype) for name, shape, dtype in layout["fields"]}, owner=False)

    @property
    def layout(self) -> dict[str, Any]:
        """What `attach` needs; goes through JSON."""
        fields = [[name, list(shape), dtype] for name, (shape, dtype) in self._fields.items()]
        return {"memory": self._memory.name, "fields": fields}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def of_slot(self, slot: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The value `name` of the graph in a slot, which has room for that of the largest graph."""
        return self[f"slot{slot}/{name}"][: prod(shape)].reshape(shape)

    def close(self) -> None:
        self._arrays.clear()
        self._memory.close()
        if self._owner:
            self._memory.unlink()


def _room(shape: tuple[int, ...], dtype: str) -> int:
    size = prod(shape) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNED) * _ALIGNED
