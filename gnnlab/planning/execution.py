"""A plan carried out: its blocks on their units, all units at work at once on different graphs of a stream.

    with Lanes() as lanes, Executor(plan, model, graphs, lanes, models=folder) as executor:
        for result in executor.run(range(100)):        # in the order of the stream
            result.out                                 # equals the plain layer's to float32 accuracy
        executor.burst(16).period_ms                   # what a stream takes
    carry_out(plan, model, graph, lanes, models=folder, parts=8).out     # a large graph, cut, its parts streamed

Graphs and values lie in memory that all units share. A graph in flight holds a slot of it, and there are few slots, so
that fast units wait for slow ones. Units that share a block get parts of the graph; a block is done when all of its
parts are. Where a unit fails, all graphs before that one come out, in order, and then the error.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import Model
from gnnlab.planning.lanes import Lanes, Report, Task
from gnnlab.planning.partition import Part, by_metis, by_ranges
from gnnlab.planning.planning import conditions
from gnnlab.planning.plans import Block, Plan
from gnnlab.planning.shared_arrays import Fields, LocalArrays, SharedArrays
from gnnlab.planning.simulation import Segment, Trace
from gnnlab.planning.station import Order
from gnnlab.profiling.parity import relative_error
from gnnlab.profiling.timing import stopwatch

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from gnnlab.workloads.staged import StagedLayer

TIMEOUT_S = 120.0
_keys = itertools.count()


@dataclass(frozen=True, eq=False)
class Graph:
    """`x` (N, F) float32 and `edge_index` (2, E) int64."""

    x: np.ndarray
    edge_index: np.ndarray

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.x.dtype != np.float32 or not len(self.x):
            raise GnnlabError(f"x is {self.x.dtype} of shape {self.x.shape}; (nodes, features) of float32 is needed")
        edges = self.edge_index
        if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype != np.int64 or not edges.shape[1]:
            raise GnnlabError(f"edge_index is {edges.dtype} of shape {edges.shape}; (2, edges) of int64 is needed")
        if edges.min() < 0 or edges.max() >= len(self.x):
            raise GnnlabError(f"edges name nodes {edges.min()} to {edges.max()}, the graph has 0 to {len(self.x) - 1}")

    @classmethod
    def of(cls, data: Data, features: int) -> Graph:
        """A graph of the lab, with its own features where they have that width, else with drawn ones."""
        from gnnlab.workloads.graphsage import inputs_of

        return cls(**{name: tensor.numpy() for name, tensor in inputs_of(data, features).items()})

    @property
    def size(self) -> tuple[int, int]:
        return len(self.x), self.edge_index.shape[1]

    def through(self, layer: StagedLayer) -> np.ndarray:
        """What the plain layer makes of it, (N, F')."""
        import torch

        with torch.no_grad():
            return layer.run(torch.from_numpy(self.x), torch.from_numpy(self.edge_index)).numpy()


@dataclass(frozen=True)
class Result:
    """`out` (N, F') of the graph at place `item` of the stream; seconds of `time.perf_counter`."""

    item: int
    graph: int
    out: np.ndarray
    entered_s: float
    left_s: float


class Executor:
    """A plan on its units, for a stream of these graphs. `depth`: graphs in flight, one more than there are blocks
    unless told; `timeout_s`: for a unit to give any answer.

    Raises:
        GnnlabError: the plan, a graph or a unit is not fit for it.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        graphs: Sequence[Graph],
        lanes: Lanes,
        *,
        models: Path | str | None = None,
        places: Mapping[str, Any] | None = None,
        depth: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        layer = model.layer
        if not graphs or any(graph.x.shape[1] != layer.features for graph in graphs):
            raise GnnlabError(
                f"{len(graphs)} graphs for a layer of {layer.features} features; 1 at least, all of that width"
            )
        if layer_of(layer.name, layer.features).fingerprint() != layer.fingerprint():
            raise GnnlabError(
                f"units load the lab's own {layer.name} of {layer.features} features, this one has other weights"
            )
        self.plan, self.layer, self.graphs, self.lanes = plan, layer, list(graphs), lanes
        self.timeout_s, self.key = timeout_s, f"plan{next(_keys)}"
        self.cores = _cores(plan, places or {})
        self.depth = depth or len(plan.blocks) + 1
        self._told: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._arrays: SharedArrays | LocalArrays | None = None
        self._flight: _Flight | None = None
        self.reports: list[Report] = []
        try:
            self._open(model, None if models is None else str(models))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._flight is not None:  # its results were not all taken: what is at work comes to its end first
            self._flight.drain()
        for unit in self.plan.units:
            self.lanes[unit].forget(self.key)
        if self._arrays is not None:
            self._arrays.close()
            self._arrays = None

    def run(self, stream: Iterable[int]) -> Iterator[Result]:
        """Send graphs through, named by their places in `graphs`; results in the order of the stream.

        Raises:
            GnnlabError: a unit failed; the results before that graph have come out.
        """
        for item, graph, slot, entered in self._stream(stream):
            yield Result(item, graph, self._out(graph, slot).copy(), entered, time.perf_counter())

    def burst(self, count: int) -> Trace:
        """Send `count` graphs through, in turn, and say when each unit did what, ms from the start."""
        self.reports.clear()
        start, entered, left = time.perf_counter(), [], []
        for *_, at in self._stream(i % len(self.graphs) for i in range(count)):
            entered.append(at)
            left.append(time.perf_counter())
        return self._trace(start, entered, left)

    def last(self, count: int) -> np.ndarray:
        """Send `count` graphs through and give the result of the last: a form that can be timed and compared."""
        out = None
        for item, graph, slot, _ in self._stream(i % len(self.graphs) for i in range(count)):
            if item == count - 1:
                out = self._out(graph, slot).copy()
        return out

    def _trace(self, start: float, entered: Sequence[float], left: Sequence[float]) -> Trace:
        ms = [
            Segment(r.task.item, r.block, r.unit, (r.start_s - start) * 1e3, (r.end_s - start) * 1e3)
            for r in self.reports
        ]
        ends = (tuple((at - start) * 1e3 for at in times) for times in (entered, left))
        return Trace(tuple(sorted(ms, key=lambda s: s.start_ms)), *ends)

    def _stream(self, stream: Iterable[int]) -> Iterator[tuple[int, int, int, float]]:
        """(item, graph, slot, entered) of each graph that is done; its slot is free when the next is asked for."""
        if self._arrays is None:
            raise GnnlabError("this execution is closed; make another one")
        for unit, core in self.cores.items():
            self.lanes[unit].pin(core)
        if self._flight is not None:
            raise GnnlabError("one stream at a time: take all results of the one before, or close it")
        self._flight = flight = _Flight(self, enumerate(stream))
        try:
            yield from flight.results()
        finally:
            flight.drain()
            self._flight = None

    def send(self, block: int, task: Task) -> None:
        for unit in self.plan.blocks[block].units:
            self.lanes[unit].submit(self.key, task, self._told.put)

    def next_report(self) -> Report | None:
        """What a unit tells next; None where none tells anything in time."""
        try:
            report = self._told.get(timeout=self.timeout_s)
        except queue.Empty:
            return None
        self.reports.append(report)
        return report

    def _out(self, graph: int, slot: int) -> np.ndarray:
        shape = self.layer.values[self.layer.result].shape(*self.graphs[graph].size)
        return self._arrays[f"slot{slot}/{self.layer.result}"][: prod(shape)].reshape(shape)

    def _open(self, model: Model, models: str | None) -> None:
        parts = [self._parts(block) for block in self.plan.blocks]
        self._arrays = self.lanes.arrays(self._fields(parts))
        for place, graph in enumerate(self.graphs):
            self._arrays[f"graph{place}/x"][:] = graph.x
            self._arrays[f"graph{place}/edge_index"][:] = graph.edge_index
        for name, array in _part_arrays(parts):
            self._arrays[name][:] = array
        self.lanes.start(list(self.plan.units))
        for place, block in enumerate(self.plan.blocks):
            for part, unit in enumerate(block.units):
                order = self._order(model, place, part, parts[place], models)
                self.lanes[unit].open(self.key, place, order, self._arrays)

    def _parts(self, block: Block) -> list[list[Part]]:
        """By graph: the parts for the units that share it; none where nobody shares."""
        if not block.shared:
            return []
        return [by_ranges(graph.edge_index, graph.size[0], block.ratios) for graph in self.graphs]

    def _order(self, model: Model, place: int, part: int, parts: list[list[Part]], models: str | None) -> Order:
        block = self.plan.blocks[place]
        unit = block.units[part]
        spans = model.pieces(unit, block.first, block.last, block.shared)
        if spans is None:
            raise GnnlabError(f"{unit} has no way to run stages {block.first}-{block.last}; measure the missing cells")
        name = _part_name(place, part) if block.shared else None
        sizes = tuple(graph.size for graph in self.graphs)
        shares = tuple(tuple(found[part].share) for found in parts)
        return Order(unit, self.layer.name, self.layer.features, spans, name, sizes, shares, models)

    def _fields(self, parts: list[list[list[Part]]]) -> Fields:
        fields: dict[str, tuple[tuple[int, ...], str]] = {}
        for place, graph in enumerate(self.graphs):
            fields[f"graph{place}/x"] = graph.x.shape, "float32"
            fields[f"graph{place}/edge_index"] = graph.edge_index.shape, "int64"
        fields |= {name: (array.shape, str(array.dtype)) for name, array in _part_arrays(parts)}
        written = [name for b in self.plan.blocks for name in self.layer.block(b.first, b.last).writes]
        for slot in range(self.depth):
            for name in dict.fromkeys(written):
                value = self.layer.values[name]
                most = max(prod(value.shape(*graph.size)) for graph in self.graphs)
                fields[f"slot{slot}/{name}"] = (most,), str(value.dtype).removeprefix("torch.")
        return fields


class _Flight:
    """The graphs of a stream between entering and leaving."""

    def __init__(self, executor: Executor, stream: Iterator[tuple[int, int]]) -> None:
        self.executor, self.stream = executor, stream
        self.free = list(range(executor.depth))
        self.open: dict[tuple[int, int], int] = {}  # parts that are not done, by item and block
        self.tasks: dict[int, tuple[Task, float]] = {}
        self.done: set[int] = set()
        self.failed: Report | None = None
        self.owing = 0  # reports that have yet to come
        self.next = 0

    def results(self) -> Iterator[tuple[int, int, int, float]]:
        self._enter()
        while self.tasks:
            while self.next in self.done:
                task, entered = self.tasks.pop(self.next)
                yield task.item, task.graph, task.slot, entered
                self.free.append(task.slot)
                self.next += 1
                self._enter()
            if self._is_over():
                raise GnnlabError(self._why())
            if self.tasks:
                self._take(self.executor.next_report())

    def drain(self) -> None:
        """Wait for what is still at work, so that the next stream begins on idle units."""
        while self.owing:
            if self.executor.next_report() is None:
                break
            self.owing -= 1

    def _is_over(self) -> bool:
        return self.failed is not None and self.next >= self.failed.task.item

    def _enter(self) -> None:
        """Let graphs in while there are slots."""
        while self.free and self.failed is None:
            following = next(self.stream, None)
            if following is None:
                return
            task = Task(*following, self.free.pop())
            self.tasks[task.item] = task, time.perf_counter()
            self._send(0, task)

    def _send(self, block: int, task: Task) -> None:
        units = len(self.executor.plan.blocks[block].units)
        self.open[task.item, block] = units
        self.owing += units
        self.executor.send(block, task)

    def _take(self, report: Report | None) -> None:
        if report is None:
            self._lost()
        self.owing -= 1
        task, block = report.task, report.block
        if report.error is not None:
            if self.failed is None or task.item < self.failed.task.item:
                self.failed = report
            return
        self.open[task.item, block] -= 1
        if self.open[task.item, block]:
            return
        if block + 1 == len(self.executor.plan.blocks):
            self.done.add(task.item)
        elif self.failed is None or task.item < self.failed.task.item:
            self._send(block + 1, task)

    def _lost(self) -> None:
        """Nothing came in time: end the processes that owe an answer."""
        self.owing = 0
        waiting = sorted({b for (item, b), parts in self.open.items() if parts and item in self.tasks})
        units = [unit for b in waiting for unit in self.executor.plan.blocks[b].units]
        for unit in units:
            self.executor.lanes[unit].kill()
        raise GnnlabError(
            f"{' or '.join(units)} gave no answer within {self.executor.timeout_s:g} s; {self.next} graphs came out"
        )

    def _why(self) -> str:
        report = self.failed
        block = self.executor.plan.blocks[report.block]
        return (
            f"{report.unit} failed at graph {report.task.item} of the stream (stages {block.first}-{block.last}): "
            f"{report.error}; the {self.next} before it came out"
        )


def _part_name(block: int, part: int) -> str:
    return f"block{block}/part{part}"


def _part_arrays(parts: list[list[list[Part]]]) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of every part, with its name: by block, graph and place among those that share."""
    for block, of_block in enumerate(parts):
        for graph, found in enumerate(of_block):
            for place, part in enumerate(found):
                for name in ("nodes", "edges", "edge_index"):
                    yield f"graph{graph}/{_part_name(block, place)}/{name}", getattr(part, name)


def _cores(plan: Plan, places: Mapping[str, Any]) -> dict[str, int | None]:
    """The cores of this machine for the units of a plan; None for a device."""
    process = psutil.Process()
    allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else list(range(psutil.cpu_count() or 1))
    given = {unit: places.get(unit, place) for place, unit in enumerate(plan.units)}
    return {u: allowed[core % len(allowed)] if isinstance(core, int) else None for u, core in given.items()}


@dataclass(frozen=True, eq=False)
class Executed:
    """`out` (N, F') and how far it is from the plain layer's, relative. `ms`: of one run, loading left out unless the
    graph was cut into `parts`."""

    plan: Plan
    size: tuple[int, int]
    parts: int
    out: np.ndarray
    parity_error: float
    ms: float

    def row(self) -> dict[str, Any]:
        """One run, as a row for the one table."""
        form = "one graph alone" if self.parts == 1 else f"{self.parts} parts, cut and loaded"
        single = {
            "unit": "ms",
            "better": "lower",
            "origin": "measured",
            "statistic": "single",
            "value": self.ms,
            "n": 1,
        }
        key = {"size": "/".join(map(str, self.size)), "form": form, "notes": [self.plan.words()]}
        return {**key, **single, "parity_error": self.parity_error, **conditions(self.plan.units)}


def carry_out(
    plan: Plan, model: Model, graph: Graph, lanes: Lanes, *, models: Path | str | None, parts: int = 1
) -> Executed:
    """Run the layer on a graph by a plan; in `parts` it is cut by METIS, and units work at once on different parts.

    Raises:
        GnnlabError: a unit cannot run its block, or failed; METIS is not there; fewer nodes than parts.
    """
    if parts == 1:
        with Executor(plan, model, [graph], lanes, models=models) as executor:
            executor.burst(1)
            result = next(executor.run([0]))
        out, ms = result.out, (result.left_s - result.entered_s) * 1e3
    else:
        with stopwatch() as took:
            cut = by_metis(graph.edge_index, graph.size[0], parts)
            pieces = [Graph(graph.x[part.nodes], part.edge_index) for part in cut]
            out = np.empty(model.layer.values[model.layer.result].shape(*graph.size), np.float32)
            with Executor(plan, model, pieces, lanes, models=models) as executor:
                for result in executor.run(range(len(cut))):
                    part = cut[result.item]
                    out[part.own] = result.out[: part.targets]
        ms = took.ms
    error = relative_error(graph.through(model.layer), out, str(plan))
    return Executed(plan, graph.size, parts, out, error, ms)
