"""A plan at work: its blocks on their units, all units at once on different graphs of a stream.

    with UnitWorkers() as workers, Executor(plan, model, graphs, workers, models=folder) as executor:
        for result in executor.run(range(100)):        # in the order of the stream
            result.out                                 # equals the plain layer's to float32 accuracy
        executor.burst(16).period_ms                   # what a stream takes
    carry_out(plan, model, graph, workers, models=folder, parts=8).out     # a large graph, cut, its parts streamed

Graphs and values lie in memory that all units share. A graph in flight holds a slot of it, and there are few slots, so
that fast units wait for slow ones. Units that share a block get parts of the graph; a block is done when all of its
parts are. Where a unit fails, all graphs before that one come out, in order, and then the error.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.planning.block_runner import BlockTask, Fields, SharedArrays
from gnnlab.planning.costs import Model
from gnnlab.planning.partition import Graph, Part, by_metis, by_ranges
from gnnlab.planning.planning import conditions
from gnnlab.planning.plans import Block, Plan
from gnnlab.planning.simulation import Segment, Trace, window
from gnnlab.planning.unit_workers import Flying, Report, UnitWorkers, Window
from gnnlab.profiling.races import relative_error
from gnnlab.profiling.timing import stopwatch

TIMEOUT_S = 120.0
_keys = itertools.count()


@dataclass(frozen=True)
class Result:
    """`out` (N, F') of the graph at place `item` of the stream; seconds of `time.perf_counter`."""

    item: int
    graph: int
    out: np.ndarray
    entered_s: float
    left_s: float


class Executor(AbstractContextManager):
    """A plan on its units, for a stream of these graphs. `places`: the core of each unit; `timeout_s`: for a unit to
    give any answer.

    Raises:
        GnnlabError: the plan, a graph or a unit is not fit for it.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        graphs: Sequence[Graph],
        workers: UnitWorkers,
        *,
        models: Path | str | None = None,
        places: Mapping[str, Any] | None = None,
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
        self.plan, self.layer, self.graphs, self.workers = plan, layer, list(graphs), workers
        self.timeout_s, self.key = timeout_s, f"plan{next(_keys)}"
        self.cores = _cores(plan, places or {})
        self.reports: list[Report] = []
        self._answered: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._arrays: SharedArrays | None = None
        self._window: Window | None = None
        try:
            self._open(model, None if models is None else str(models))
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._window is not None:  # its results were not all taken: what is at work comes to its end first
            self._window.drain()
        for unit in self.plan.units:
            self.workers.forget(unit, self.key)
        if self._arrays is not None:
            self._arrays.close()
            self._arrays = None

    def run(self, stream: Iterable[int]) -> Iterator[Result]:
        """Send graphs through, named by their places in `graphs`; results in the order of the stream.

        Raises:
            GnnlabError: a unit failed; the results before that graph have come out.
        """
        for item, flying in self._stream(stream):
            out = self._out(flying).copy()
            yield Result(item, flying.graph, out, flying.entered_s, time.perf_counter())

    def burst(self, count: int) -> Trace:
        """Send `count` graphs through, in turn, and say when each unit did what, ms from the start."""
        start, entered, left = time.perf_counter(), [], []
        for _, flying in self._stream(i % len(self.graphs) for i in range(count)):
            entered.append((flying.entered_s - start) * 1e3)
            left.append((time.perf_counter() - start) * 1e3)
        segments = [
            Segment(r.item, r.block, r.unit, (r.answer.start_s - start) * 1e3, (r.answer.end_s - start) * 1e3)
            for r in self.reports
        ]
        return Trace(tuple(sorted(segments, key=lambda s: s.start_ms)), tuple(entered), tuple(left))

    def last(self, count: int) -> np.ndarray:
        """Send `count` graphs through and give the result of the last: a form that can be timed and compared."""
        out = None
        for item, flying in self._stream(i % len(self.graphs) for i in range(count)):
            if item == count - 1:
                out = self._out(flying).copy()
        return out

    def send(self, block: int, item: int, graph: int, slot: int) -> None:
        """Hand a graph to the units of a block; each leaves a report."""
        for unit in self.plan.blocks[block].units:
            tell = partial(Report, item, block, unit)
            self.workers.submit(unit, self.key, graph, slot, lambda answer, tell=tell: self._answered.put(tell(answer)))

    def next_report(self) -> Report | None:
        """What a unit tells next; None where none tells anything in time."""
        try:
            report = self._answered.get(timeout=self.timeout_s)
        except queue.Empty:
            return None
        self.reports.append(report)
        return report

    def _stream(self, stream: Iterable[int]) -> Iterator[tuple[int, Flying]]:
        """Each graph that is done, by its place in the stream; its slot is free when the next is asked for."""
        if self._arrays is None:
            raise GnnlabError("this execution is closed; make another one")
        if self._window is not None:
            raise GnnlabError("one stream at a time: take all results of the one before, or close it")
        self.reports.clear()
        self.workers.pin(self.cores)
        self._window = window = Window(self, enumerate(stream))
        try:
            yield from window.results()
        finally:
            window.drain()
            self._window = None

    def _out(self, flying: Flying) -> np.ndarray:
        result = self.layer.result
        return self._arrays.of_slot(
            flying.slot, result, self.layer.values[result].shape(*self.graphs[flying.graph].size)
        )

    def _open(self, model: Model, models: str | None) -> None:
        given, tasks = {}, []
        for place, graph in enumerate(self.graphs):
            given |= {f"graph{place}/x": graph.x, f"graph{place}/edge_index": graph.edge_index}
        for block in self.plan.blocks:
            shared = self.graphs if block.shared else []
            parts = [by_ranges(graph.edge_index, graph.size[0], block.ratios) for graph in shared]
            for place, of_graph in enumerate(parts):
                for part, unit in zip(of_graph, block.units, strict=True):
                    name = f"graph{place}/{unit}"
                    given |= {f"{name}/{field}": getattr(part, field) for field in ("nodes", "edges", "edge_index")}
            tasks += [self._task(model, block, number, parts, models) for number in range(len(block.units))]
        self._arrays = SharedArrays.create(self._slots(), given)
        self.workers.start(self.plan.units)
        for task in tasks:
            self.workers.open(task.unit, self.key, task, self._arrays)

    def _task(self, model: Model, block: Block, part: int, parts: list[list[Part]], models: str | None) -> BlockTask:
        unit = block.units[part]
        spans = model.pieces(unit, block.first, block.last, block.shared)
        if spans is None:
            raise GnnlabError(f"{unit} has no way to run stages {block.first}-{block.last}; measure the missing cells")
        name = unit if block.shared else None
        sizes = tuple(graph.size for graph in self.graphs)
        shares = tuple(tuple(found[part].share) for found in parts)
        return BlockTask(unit, self.layer.name, self.layer.features, spans, name, sizes, shares, models)

    def _slots(self) -> Fields:
        """Room for what each block writes, for every graph in flight."""
        fields: dict[str, tuple[tuple[int, ...], str]] = {}
        written = [name for b in self.plan.blocks for name in self.layer.block(b.first, b.last).writes]
        for slot in range(window(len(self.plan.blocks))):
            for name in dict.fromkeys(written):
                value = self.layer.values[name]
                most = max(prod(value.shape(*graph.size)) for graph in self.graphs)
                fields[f"slot{slot}/{name}"] = (most,), str(value.dtype).removeprefix("torch.")
        return fields


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
        key = {"size": "/".join(map(str, self.size)), "form": form, "notes": [self.plan.words()]}
        single = {"value": self.ms, "n": 1, "unit": "ms", "better": "lower", "statistic": "single"}
        return {**key, **single, "origin": "measured", "parity_error": self.parity_error, **conditions(self.plan.units)}


def carry_out(
    plan: Plan, model: Model, graph: Graph, workers: UnitWorkers, *, models: Path | str | None, parts: int = 1
) -> Executed:
    """Run the layer on a graph by a plan; in `parts` it is cut by METIS, and units work at once on different parts.

    Raises:
        GnnlabError: a unit cannot run its block, or failed; METIS is not there; fewer nodes than parts.
    """
    if parts == 1:
        with Executor(plan, model, [graph], workers, models=models) as executor:
            executor.burst(1)
            result = next(executor.run([0]))
        out, ms = result.out, (result.left_s - result.entered_s) * 1e3
    else:
        with stopwatch() as took:
            cut = by_metis(graph.edge_index, graph.size[0], parts)
            pieces = [Graph(graph.x[part.nodes], part.edge_index) for part in cut]
            out = np.empty(model.layer.values[model.layer.result].shape(*graph.size), np.float32)
            with Executor(plan, model, pieces, workers, models=models) as executor:
                for result in executor.run(range(len(cut))):
                    part = cut[result.item]
                    out[part.own] = result.out[: part.targets]
        ms = took.ms
    error = relative_error(graph.through(model.layer), out, str(plan))
    return Executed(plan, graph.size, parts, out, error, ms)
