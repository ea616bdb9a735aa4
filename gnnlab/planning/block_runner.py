"""A block of a plan on its unit: reads what it needs from shared memory, makes its calls, writes what the block writes.

`BlockTask` says what a unit has to do, in a form that goes through JSON; `BlockRunner` does it in a worker, whose
targets are `open_block`, `run_block` and `close_block`. Every graph of the stream is loaded once: edges are sorted,
models compiled, parts numbered. `SharedArrays` are named arrays in one piece of memory that processes share, so that a
value is handed on by its name:

    arrays = SharedArrays.create({"graph0/x": ((1000, 500), "float32")})
    SharedArrays.attach(arrays.layout)["graph0/x"]         # in another process: the same memory
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import prod
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from gnnlab.campaign.cell_inputs import Cell, layer_of, load
from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import halo_ends, looks_at_edges
from gnnlab.units import registry as units
from gnnlab.units.unit import Loaded
from gnnlab.workloads.staged import EDGES, NODES

Values = dict[str, np.ndarray]
Fields = Mapping[str, tuple[tuple[int, ...], str]]  # shape and dtype by name
_ALIGNED = 64  # bytes of a cache line


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


@dataclass(frozen=True)
class BlockTask:
    """What a unit does in a plan. `spans`: its calls, (first, last); `part`: the name of its part of a graph that
    units share, None for the whole graph; `sizes`: (nodes, edges) of each graph, `shares`: of its part of each."""

    unit: str
    layer: str
    features: int
    spans: tuple[tuple[int, int], ...]
    part: str | None
    sizes: tuple[tuple[int, int], ...]
    shares: tuple[tuple[int, int, int], ...]
    models: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BlockTask:
        lists = {name: tuple(map(tuple, data[name])) for name in ("spans", "sizes", "shares")}
        return cls(**{**data, **lists})


class BlockRunner:
    """`run(graph, slot)` does the unit's work on a graph, between the arrays of that graph and those of a slot."""

    def __init__(self, task: BlockTask, arrays: SharedArrays) -> None:
        self.task, self.arrays = task, arrays
        self.layer = layer_of(task.layer, task.features)
        first, last = task.spans[0][0], task.spans[-1][1]
        self.block = self.layer.block(first, last)
        self.with_halo = task.part is not None and looks_at_edges(self.layer, first, last)
        self.cut = halo_ends(self.layer) if self.with_halo else None
        self._stack = ExitStack()
        with self._stack:
            self.graphs = [_Graph(self, place) for place in range(len(task.sizes))]
            self._stack = self._stack.pop_all()

    def run(self, graph: int, slot: int) -> None:
        found = self.graphs[graph]
        found.write(found.compute(found.read(slot)), slot)

    def close(self) -> None:
        self.graphs.clear()
        self._stack.close()

    def load(self, span: tuple[int, int], nodes: int, edges: int) -> Loaded:
        """A call made ready for a size. Raises `GnnlabError` where the unit cannot run it."""
        unit = units.find(self.task.unit)
        cell = Cell(self.task.layer, self.task.features, nodes, edges, *span, self.task.unit)
        loaded = load(unit, cell, self.task.models, unit.computes_in("float32"))
        self._stack.callback(loaded.close)
        return loaded


class _Graph:
    """One graph of the stream, as one unit of a plan sees it."""

    def __init__(self, runner: BlockRunner, place: int) -> None:
        self.runner, self.place = runner, place
        self.layer, task, arrays = runner.layer, runner.task, runner.arrays
        self.nodes, self.edges = task.sizes[place]
        self.x, self.edge_index = arrays[f"graph{place}/x"], arrays[f"graph{place}/edge_index"]
        self.rows: slice | np.ndarray = slice(None)
        self.own: slice | np.ndarray = slice(None)
        self.edge_rows: slice | np.ndarray = slice(None)
        self.targets = self.nodes
        rows, edges = self.nodes, self.edges
        if task.part is not None:
            self.targets, halo, edges = task.shares[place]
            rows = self.targets + halo if runner.with_halo else self.targets
            name = f"graph{place}/{task.part}"
            nodes, self.edge_index = arrays[f"{name}/nodes"], arrays[f"{name}/edge_index"]
            self.own = _as_slice(nodes[: self.targets])
            self.rows = nodes if runner.with_halo else self.own
            self.edge_rows = _as_slice(arrays[f"{name}/edges"])
        self.size = rows, edges
        behind_cut = [runner.cut is not None and span[0] > runner.cut for span in task.spans]
        self.calls = [
            (runner.load(span, self.targets if behind else rows, edges), behind)
            for span, behind in zip(task.spans, behind_cut, strict=True)
        ]

    def read(self, slot: int) -> Values:
        """The values that the block reads, of this unit's part."""
        values = {"x": self.x, "edge_index": self.edge_index}
        shape_only = self.runner.block.shape_only
        for name in self.runner.block.reads:
            if name == "edge_index":
                continue
            whole = self.x if name == "x" else self._of_slot(name, slot)
            rows = self.edge_rows if EDGES in self.layer.values[name].dims else self.rows
            values[name] = whole[: self.size[0]] if name in shape_only else whole[rows]
        if "x" not in self.runner.block.reads:  # some units look at it for the number of nodes
            values["x"] = self.x[: self.size[0]]
        return values

    def compute(self, values: Values) -> Values:
        """All values once the calls were made; those behind the cut no longer get the rows of the halo."""
        cropped = False
        for loaded, behind in self.calls:
            if behind and not cropped:
                of_nodes = {name for name in values if NODES in self.layer.values[name].dims}
                values = {name: array[: self.targets] if name in of_nodes else array for name, array in values.items()}
                cropped = True
            values = values | loaded.run(values)
        return values

    def write(self, values: Values, slot: int) -> None:
        for name in self.runner.block.writes:
            whole = self._of_slot(name, slot)
            if NODES in self.layer.values[name].dims:
                whole[self.own] = values[name][: self.targets]
            else:
                whole[self.edge_rows] = values[name]

    def _of_slot(self, name: str, slot: int) -> np.ndarray:
        shape = self.layer.values[name].shape(self.nodes, self.edges)
        return self.runner.arrays.of_slot(slot, name, shape)


def _as_slice(numbers: np.ndarray) -> slice | np.ndarray:
    """Consecutive numbers as a slice, which copies nothing."""
    together = len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1 and (np.diff(numbers) == 1).all()
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if together else numbers


# ---- in a worker ----------------------------------------------------------------------------------------------------

_opened: dict[str, tuple[BlockRunner, SharedArrays]] = {}


def open_block(key: str, task: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
    arrays = SharedArrays.attach(layout)
    _opened[key] = BlockRunner(BlockTask.from_json(task), arrays), arrays


def run_block(key: str, graph: int, slot: int) -> None:
    if key not in _opened:
        raise GnnlabError("its process was replaced since; open the plan again")
    _opened[key][0].run(graph, slot)


def close_block(key: str) -> None:
    if key not in _opened:
        return
    runner, arrays = _opened.pop(key)
    runner.close()
    del runner
    with suppress(BufferError):  # a runtime still holds on to its last inputs; the memory goes with the process
        arrays.close()
