"""A plan at work: its units at once on different graphs of a stream.

    with UnitProcesses(plan.units) as processes, Executor(plan, costs, graphs, processes, models=folder) as executor:
        executor.run(8)                        # 8 graphs in turn; the last result, equal to the plain layer's
        executor.stream([0, 1, 2]).period_ms   # when each unit worked on which graph

Graphs, and what blocks write for a graph, are tensors in memory that all processes share; graph g of a stream writes
into slot g % `window`. A unit takes the graphs in their order: it waits for each unit of the block before, computes,
and tells each unit of the block behind. Units of the first block wait for those of the last, so that no more than
`window` graphs are in flight. This process only begins a stream and waits for its end.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from gnnlab.campaign.cell_inputs import Cell, layer_of, load
from gnnlab.errors import GnnlabError, one_line
from gnnlab.planning.costs import Costs, Span
from gnnlab.planning.partition import Graph, ranges, shared
from gnnlab.planning.pipeline import Segment, Trace, window
from gnnlab.planning.planner import conditions
from gnnlab.planning.plans import Block, Plan
from gnnlab.planning.steps import looks_at_edges, pieces, whole_until
from gnnlab.planning.unit_processes import UnitProcesses, count_progress, tell, wait_for
from gnnlab.profiling.races import relative_error
from gnnlab.units import registry
from gnnlab.units.unit import Loaded
from gnnlab.worker_process import pin
from gnnlab.workloads.staged import EDGES, NODES, StagedLayer, Value

Values = dict[str, np.ndarray]
Shared = dict[str, torch.Tensor]
_keys = itertools.count()


@dataclass(frozen=True)
class BlockTask:
    """What a unit does in a plan. `blocks`: all of the plan; `place`: of its own among them; `spans`: its calls."""

    unit: str
    layer: str
    features: int
    blocks: tuple[Block, ...]
    place: int
    spans: tuple[Span, ...]
    models: str | None
    core: int | None

    @property
    def block(self) -> Block:
        return self.blocks[self.place]

    def others(self, step: int) -> list[str]:
        """The units of the block so many places on, without this one; the first comes after the last."""
        block = self.blocks[(self.place + step) % len(self.blocks)]
        return [unit for unit in block.units if unit != self.unit]

    def load(self, span: Span, nodes: int, edges: int) -> Loaded:
        """A call made ready for a size. Raises `GnnlabError` where the unit cannot run it."""
        unit = registry.find(self.unit)
        cell = Cell(self.layer, self.features, nodes, edges, *span, self.unit)
        return load(unit, cell, self.models, unit.computes_in("float32"))


# ---- in the process of a unit ----------------------------------------------------------------------------------------

_opened: dict[str, tuple[BlockTask, list[_Part], list[Values], ExitStack]] = {}


def _open(key: str, task: BlockTask, graphs: Sequence[Shared], slots: Sequence[Shared]) -> None:
    """Load the unit's block for each graph: edges are sorted, models compiled, parts taken, once."""
    with ExitStack() as stack:
        parts = [_Part(task, _arrays(graph), stack) for graph in graphs]
        _opened[key] = task, parts, list(map(_arrays, slots)), stack.pop_all()


def _close(key: str) -> None:
    if key in _opened:
        _opened.pop(key)[-1].close()


def _stream(key: str, numbers: Sequence[int]) -> list[tuple[float, float]]:
    """When this unit began and ended each graph of a stream, seconds of `time.perf_counter`, which processes share."""
    if key not in _opened:
        raise GnnlabError("its process was replaced since; open the plan again")
    task, parts, slots, _ = _opened[key]
    first, last = task.place == 0, task.place == len(task.blocks) - 1
    times = []
    if task.core is not None:
        pin(task.core)
    for place, number in enumerate(numbers):
        if not first or place >= len(slots):
            for unit in task.others(-1):
                wait_for(unit)
        start = time.perf_counter()
        try:
            parts[number].run(slots[place % len(slots)])
        except Exception as error:
            stages = f"{task.block.first}-{task.block.last}"
            raise GnnlabError(f"failed at graph {place} of the stream (stages {stages}): {one_line(error)}") from None
        times.append((start, time.perf_counter()))
        count_progress()
        if not last or place + len(slots) < len(numbers):
            for unit in task.others(1):
                tell(unit)
    return times


def _arrays(tensors: Shared) -> Values:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


class _Part:
    """One graph as one unit of a plan sees it: `run(slot)` does the unit's work, between the graph and a slot.

    `rows` and `edges`: those that its first calls read; `own`: the rows that it writes. `whole`: how many calls compute
    all rows, so that those of other nodes are dropped behind them.
    """

    def __init__(self, task: BlockTask, graph: Values, stack: ExitStack) -> None:
        self.layer = layer_of(task.layer, task.features)
        self.block = self.layer.block(task.block.first, task.block.last)
        self.x, self.edge_index = graph["x"], graph["edge_index"]
        self.size = len(self.x), self.edge_index.shape[1]
        self.own = self.rows = self.edges = slice(None)
        until = 0
        if task.block.shared and looks_at_edges(self.layer, task.block.first, task.block.last):
            until = whole_until(self.layer)
            self._take_edges(task)
        elif task.block.shared:
            self.own = self.rows = ranges(np.ones(len(self.x)), task.block.ratios)[task.block.units.index(task.unit)]
        self.whole = sum(span[0] <= until for span in task.spans)
        self.calls = []
        for place, span in enumerate(task.spans):
            nodes = len(self.x if place < self.whole else self.x[self.own])
            self.calls.append(task.load(span, nodes, self.edge_index.shape[1]))
            stack.callback(self.calls[-1].close)

    def run(self, slot: Values) -> None:
        values = self._read(slot)
        for place, loaded in enumerate(self.calls):
            if place == self.whole > 0:
                values = self._cropped(values)
            values = values | loaded.run(values)
        if self.whole == len(self.calls):
            values = self._cropped(values)
        for name in self.block.writes:
            self._in_slot(name, slot)[self._places(name, self.own)] = values[name]

    def _take_edges(self, task: BlockTask) -> None:
        """Rows in the unit's ratio of the edges into them, and these edges."""
        target = self.edge_index[1]
        rows = ranges(np.bincount(target, minlength=len(self.x)), task.block.ratios)
        self.own = rows[task.block.units.index(task.unit)]
        edges = np.flatnonzero((self.own.start <= target) & (target < self.own.stop))
        self.edges = edges if len(edges) else np.zeros(1, np.int64)  # runtimes refuse graphs without edges
        self.edge_index = np.ascontiguousarray(self.edge_index[:, self.edges])

    def _read(self, slot: Values) -> Values:
        """The values that the block reads, of this unit's part."""
        values = {"x": self.x[self.rows], "edge_index": self.edge_index}  # some units look at x for the number of nodes
        given = {name: self._in_slot(name, slot) for name in self.block.reads if name not in values}
        return values | {name: array[self._places(name, self.rows)] for name, array in given.items()}

    def _cropped(self, values: Values) -> Values:
        """The unit's own rows alone."""
        of_nodes = {name for name in values if NODES in self.layer.values[name].dims}
        return {name: array[self.own] if name in of_nodes else array for name, array in values.items()}

    def _places(self, name: str, rows: slice) -> tuple:
        """Where this part of a value lies in the whole."""
        dims = self.layer.values[name].dims
        return tuple({NODES: rows, EDGES: self.edges}.get(dim, slice(None)) for dim in dims)

    def _in_slot(self, name: str, slot: Values) -> np.ndarray:
        return _shaped(slot[name], self.layer.values[name], self.size)


def _shaped(flat: Any, value: Value, size: tuple[int, int]) -> Any:
    """The value of a graph of that size in its slot, which has room for that of the largest."""
    shape = value.shape(*size)
    return flat[: prod(shape)].reshape(shape)


# ---- in this process -------------------------------------------------------------------------------------------------


class Executor(AbstractContextManager):
    """A plan on its units, for streams of these graphs. `places`: the core of each unit.

    Raises:
        GnnlabError: the plan, a graph or a unit is not fit for it, or there is no memory to share.
    """

    def __init__(
        self,
        plan: Plan,
        costs: Costs,
        graphs: Sequence[Graph],
        processes: UnitProcesses,
        *,
        models: Path | str | None = None,
        places: Mapping[str, Any] | None = None,
    ) -> None:
        layer = costs.layer
        if not graphs or any(graph.x.shape[1] != layer.features for graph in graphs):
            raise GnnlabError(
                f"{len(graphs)} graphs for a layer of {layer.features} features; 1 at least, all of that width"
            )
        if layer_of(layer.name, layer.features).fingerprint() != layer.fingerprint():
            raise GnnlabError(
                f"units load the lab's own {layer.name} of {layer.features} features, this one has other weights"
            )
        self.plan, self.layer, self.graphs, self.processes = plan, layer, list(graphs), processes
        self.key, self._last = f"plan{next(_keys)}", (0, 0)  # graph and slot of the last result
        self._slots = _slots(plan, layer, graphs)
        cores, tasks = _cores(plan, places or {}), {}
        for place, block in enumerate(plan.blocks):
            for unit in block.units:
                registry.find(unit)
                spans = pieces(costs, unit, block.first, block.last, block.shared)
                if spans is None:
                    stages = f"stages {block.first}-{block.last}"
                    raise GnnlabError(f"{unit} has no way to run {stages}; measure the missing cells")
                named = (unit, layer.name, layer.features, plan.blocks, place, spans)
                tasks[unit] = BlockTask(*named, None if models is None else str(models), cores[unit])
        given = [graph.shared for graph in graphs]
        processes.ask({unit: (_open, self.key, task, given, self._slots) for unit, task in tasks.items()})

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self.processes.running:
            self.processes.ask(dict.fromkeys(self.plan.units, (_close, self.key)))
        self._slots = []

    def stream(self, numbers: Iterable[int]) -> Trace:
        """Send graphs through, named by their places in `graphs`.

        Raises:
            GnnlabError: a unit failed, or its process died or hangs.
        """
        numbers = list(numbers)
        start = time.perf_counter()
        times = self.processes.ask(dict.fromkeys(self.plan.units, (_stream, self.key, numbers)))
        self._last = numbers[-1], (len(numbers) - 1) % len(self._slots)
        segments = [
            Segment(graph, place, unit, (begun - start) * 1e3, (ended - start) * 1e3)
            for place, block in enumerate(self.plan.blocks)
            for unit in block.units
            for graph, (begun, ended) in enumerate(times[unit])
        ]
        return Trace(tuple(sorted(segments, key=lambda segment: segment.start_ms)))

    def burst(self, count: int) -> Trace:
        """Send `count` graphs through, in turn."""
        return self.stream(place % len(self.graphs) for place in range(count))

    def run(self, count: int) -> np.ndarray:
        """Send `count` graphs through, in turn; the result of the last: a form that can be timed and compared."""
        self.burst(count)
        return self.last()

    def last(self) -> np.ndarray:
        """The result (N, F') of the last graph of the last stream."""
        (number, slot), result = self._last, self.layer.result
        return _shaped(self._slots[slot][result].numpy(), self.layer.values[result], self.graphs[number].size).copy()

    def differs(self, number: int) -> float:
        """How far what the plan makes of a graph is from the plain layer's, relative."""
        self.stream([number])
        return relative_error(self.graphs[number].through(self.layer), self.last(), self.plan.words())


def _slots(plan: Plan, layer: StagedLayer, graphs: Sequence[Graph]) -> list[Shared]:
    """Room for what each block writes, for every graph in flight, of the size of the largest."""
    values = {name: layer.values[name] for b in plan.blocks for name in layer.block(b.first, b.last).writes}

    def room(value: Value) -> torch.Tensor:
        most = max(prod(value.shape(*graph.size)) for graph in graphs)
        return shared(np.zeros(most, str(value.dtype).removeprefix("torch.")))

    return [{name: room(value) for name, value in values.items()} for _ in range(window(len(plan.blocks)))]


def _cores(plan: Plan, places: Mapping[str, Any]) -> dict[str, int | None]:
    """The cores of this machine for the units of a plan; None for a device."""
    process = psutil.Process()
    allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else list(range(psutil.cpu_count() or 1))
    given = {unit: places.get(unit, place) for place, unit in enumerate(plan.units)}
    return {u: allowed[core % len(allowed)] if isinstance(core, int) else None for u, core in given.items()}


@dataclass(frozen=True, eq=False)
class Executed:
    """A plan on one graph: `out` (N, F'), how far it is from the plain layer's, relative, and the `ms` of one run."""

    plan: Plan
    size: tuple[int, int]
    out: np.ndarray
    parity_error: float
    ms: float

    def row(self) -> dict[str, Any]:
        """One run, as a row for the one table."""
        key = {"size": "/".join(map(str, self.size)), "form": "one graph alone", "notes": [self.plan.words()]}
        single = {"value": self.ms, "n": 1, "unit": "ms", "better": "lower", "statistic": "single"}
        return {**key, **single, "origin": "measured", "parity_error": self.parity_error, **conditions(self.plan.units)}


def carry_out(plan: Plan, costs: Costs, graph: Graph, processes: UnitProcesses, models: Path | str | None) -> Executed:
    """Run the layer on a graph by a plan, once after a first run.

    Raises:
        GnnlabError: a unit cannot run its block, or failed.
    """
    with Executor(plan, costs, [graph], processes, models=models) as executor:
        error = executor.differs(0)
        ms = executor.stream([0]).total_ms
        return Executed(plan, graph.size, executor.last(), error, ms)
