"""One unit at its place in a plan: reads what it needs from memory, makes its calls, and writes what the block writes.

`Order` says what a unit has to do, in a form that goes through JSON; `Station` does it, in a thread of this process or
in a worker, whose targets are `open_station`, `run_station` and `close_station`. Every graph of the stream is loaded
once: edges are sorted, models compiled, parts numbered.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnnlab.campaign.cell_inputs import layer_of, model_for
from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import halo_ends, looks_at_edges
from gnnlab.planning.shared_arrays import LocalArrays, SharedArrays
from gnnlab.units import registry as units
from gnnlab.units.unit import Loaded
from gnnlab.workloads.staged import EDGES, NODES

Values = dict[str, np.ndarray]
Arrays = SharedArrays | LocalArrays


@dataclass(frozen=True)
class Order:
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

    @property
    def first(self) -> int:
        return self.spans[0][0]

    @property
    def last(self) -> int:
        return self.spans[-1][1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Order:
        lists = {name: tuple(map(tuple, data[name])) for name in ("spans", "sizes", "shares")}
        return cls(**{**data, **lists})


class Station:
    """`run(graph, slot)` does the unit's work on a graph, between the arrays of that graph and those of a slot."""

    def __init__(self, order: Order, arrays: Arrays) -> None:
        self.order, self.arrays = order, arrays
        self.layer = layer_of(order.layer, order.features)
        self.block = self.layer.block(order.first, order.last)
        self.with_halo = order.part is not None and looks_at_edges(self.layer, order.first, order.last)
        self.cut = halo_ends(self.layer) if self.with_halo else None
        self._stack = ExitStack()
        with self._stack:
            self.graphs = [_Graph(self, place) for place in range(len(order.sizes))]
            self._stack = self._stack.pop_all()

    def run(self, graph: int, slot: int) -> None:
        found = self.graphs[graph]
        found.write(found.compute(found.read(slot)), slot)

    def close(self) -> None:
        self.graphs.clear()
        self._stack.close()

    def load(self, span: tuple[int, int], nodes: int, edges: int) -> Loaded:
        """A call made ready for a size. Raises `GnnlabError` where the unit cannot run it."""
        order = self.order
        unit = units.find(order.unit)
        precision = unit.computes_in("float32")
        at = {"nodes": nodes, "edges": edges}
        cell = SimpleNamespace(layer=order.layer, features=order.features, first=span[0], last=span[1], **at)
        model = model_for(unit, cell, order.models)  # which asks a cell for these alone; importing cells takes a second
        loaded = unit.load(self.layer, *span, model, **at, threads=1, precision=precision)
        self._stack.callback(loaded.close)
        return loaded


class _Graph:
    """One graph of the stream, as one station sees it."""

    def __init__(self, station: Station, place: int) -> None:
        self.station, self.place = station, place
        self.layer, order, arrays = station.layer, station.order, station.arrays
        self.nodes, self.edges = order.sizes[place]
        self.x, self.edge_index = arrays[f"graph{place}/x"], arrays[f"graph{place}/edge_index"]
        self.rows: slice | np.ndarray = slice(None)
        self.own: slice | np.ndarray = slice(None)
        self.edge_rows: slice | np.ndarray = slice(None)
        self.targets = self.nodes
        rows, edges = self.nodes, self.edges
        if order.part is not None:
            self.targets, halo, edges = order.shares[place]
            rows = self.targets + halo if station.with_halo else self.targets
            self._take_part(f"graph{place}/{order.part}", arrays)
        self.calls = [(span, station.load(span, self._rows_of(span, rows), edges)) for span in order.spans]
        self.size = rows, edges

    def _rows_of(self, span: tuple[int, int], rows: int) -> int:
        return self.targets if self._is_behind_cut(span) else rows

    def _is_behind_cut(self, span: tuple[int, int]) -> bool:
        return self.station.cut is not None and span[0] > self.station.cut

    def _take_part(self, name: str, arrays: Arrays) -> None:
        nodes = arrays[f"{name}/nodes"]
        self.own = _as_slice(nodes[: self.targets])
        self.rows = nodes if self.station.with_halo else self.own
        self.edge_rows = _as_slice(arrays[f"{name}/edges"])
        self.edge_index = arrays[f"{name}/edge_index"]

    def read(self, slot: int) -> Values:
        """The values that the block reads, of this unit's part."""
        values = {"x": self.x, "edge_index": self.edge_index}
        shape_only = self.station.block.shape_only
        for name in self.station.block.reads:
            if name == "edge_index":
                continue
            whole = self.x if name == "x" else self._of_slot(name, slot)
            values[name] = whole[: self.size[0]] if name in shape_only else whole[self._rows(name)]
        if "x" not in self.station.block.reads:  # some units look at it for the number of nodes
            values["x"] = self.x[: self.size[0]]
        return values

    def compute(self, values: Values) -> Values:
        cropped = False
        for span, loaded in self.calls:
            if self._is_behind_cut(span) and not cropped:
                values = {name: self._crop(name, array) for name, array in values.items()}
                cropped = True
            values = values | loaded.run(values)
        return values

    def write(self, values: Values, slot: int) -> None:
        for name in self.station.block.writes:
            whole = self._of_slot(name, slot)
            if NODES in self.layer.values[name].dims:
                whole[self.own] = values[name][: self.targets]
            else:
                whole[self.edge_rows] = values[name]

    def _rows(self, name: str) -> slice | np.ndarray:
        return self.edge_rows if EDGES in self.layer.values[name].dims else self.rows

    def _crop(self, name: str, array: np.ndarray) -> np.ndarray:
        return array[: self.targets] if NODES in self.layer.values[name].dims else array

    def _of_slot(self, name: str, slot: int) -> np.ndarray:
        shape = self.layer.values[name].shape(self.nodes, self.edges)
        return self.station.arrays[f"slot{slot}/{name}"][: int(np.prod(shape))].reshape(shape)


def _as_slice(numbers: np.ndarray) -> slice | np.ndarray:
    """Consecutive numbers as a slice, which copies nothing."""
    together = len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1 and (np.diff(numbers) == 1).all()
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if together else numbers


# ---- in a worker ----------------------------------------------------------------------------------------------------

_opened: dict[str, tuple[Station, SharedArrays]] = {}


def open_station(key: str, order: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
    arrays = SharedArrays.attach(layout)
    _opened[key] = Station(Order.from_json(order), arrays), arrays


def run_station(key: str, graph: int, slot: int) -> None:
    if key not in _opened:
        raise GnnlabError("its process was replaced since; open the plan again")
    _opened[key][0].run(graph, slot)


def close_station(key: str) -> None:
    if key not in _opened:
        return
    station, arrays = _opened.pop(key)
    station.close()
    del station
    with suppress(BufferError):  # a runtime still holds on to its last inputs; the memory goes with the process
        arrays.close()
