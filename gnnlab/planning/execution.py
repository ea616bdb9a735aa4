"""A plan at work: its units at once on different graphs of a stream.

    with UnitProcesses(plan.units) as processes, Executor(plan, costs, graphs, processes, models=folder) as executor:
        executor.run(8)                   # 8 graphs in turn; the last result, equal to the plain layer's
        executor.stream([0, 1, 2])        # when each unit worked on which graph

Graphs, and what blocks write for a graph, are tensors in memory that all processes share; graph g of a stream writes
into slot g % `window`. A unit takes the graphs in their order: it waits for each unit of the block before, computes,
and tells each unit of the block behind. Units of the first block wait for those of the last, so that no more than
`window` graphs are in flight. This process only begins a stream and waits for its end.

Units that share a block each have a range of the target nodes and all edges into them. They read the whole x, so their
own rows are exact.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch

from gnnlab.campaign.cells import Cell, layer_of, load
from gnnlab.errors import GnnlabError
from gnnlab.measure.race import RTOL_FLOAT32, require_equal
from gnnlab.planning.costs import Costs, Span
from gnnlab.planning.planner import conditions
from gnnlab.planning.plans import Block, Plan
from gnnlab.planning.steps import SEGMENTS, block_of, spans_of, whole_until, window
from gnnlab.planning.unit_processes import UnitProcesses, tell, wait_for
from gnnlab.units import registry
from gnnlab.workloads.staged import NODES, StagedLayer
from gnnswap.errors import one_line

Tensors = dict[str, torch.Tensor]  # a graph: x (N, F) float32, edge_index (2, E) int64; or values of the layer on it
_keys = itertools.count()


def size_of(graph: Tensors) -> tuple[int, int]:
    """Its nodes and edges."""
    return len(graph["x"]), graph["edge_index"].shape[1]


def split(weights: np.ndarray, ratio: float) -> int:
    """How many of the first rows have as nearly as can be this part of the `weights` (N,); 1 to N - 1 of them.

    Raises:
        GnnlabError: there is one row alone.
    """
    if len(weights) < 2:
        raise GnnlabError("a graph of one node cannot be shared by two units; each needs a node of its own")
    reached = np.cumsum(weights)
    return int(np.clip(np.abs(reached - ratio * reached[-1]).argmin() + 1, 1, len(weights) - 1))


@dataclass(frozen=True)
class Task:
    """What a unit does in a plan. `blocks`: all of the plan; `place`: of its own; `spans`: its calls; `core`: a number,
    or the name of a device."""

    unit: str
    layer: str
    features: int
    blocks: tuple[Block, ...]
    place: int
    spans: tuple[Span, ...]
    models: str | None
    core: int | str

    @property
    def block(self) -> Block:
        return self.blocks[self.place]

    def others(self, step: int) -> list[str]:
        """The units of the block so many places on, without this one; the first comes after the last."""
        block = self.blocks[(self.place + step) % len(self.blocks)]
        return [unit for unit in block.units if unit != self.unit]


# ---- in the process of a unit ----------------------------------------------------------------------------------------

_CORES = psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else range(psutil.cpu_count() or 1)
_opened: dict[str, tuple[Task, list[_Part], list[dict[str, np.ndarray]]]] = {}


def _open(key: str, task: Task, graphs: Sequence[Tensors], slots: Sequence[Tensors]) -> None:
    """Load the unit's block for each graph: edges are sorted, models compiled, parts taken, once."""
    given, room = ([{name: tensor.numpy() for name, tensor in each.items()} for each in of] for of in (graphs, slots))
    _opened[key] = task, [_Part(task, **graph) for graph in given], room


def _close(key: str) -> None:
    for part in _opened.pop(key, (None, []))[1]:
        for call in part.calls:
            call.close()


def pin(core: int) -> None:
    """Keep every thread of the process on one core, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):  # threads that are there already have an affinity of their own
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {core})
    elif hasattr(psutil.Process, "cpu_affinity"):
        psutil.Process().cpu_affinity([core])


def _stream(key: str, numbers: Sequence[int]) -> list[tuple[float, float]]:
    """When this unit began and ended each graph of a stream, seconds of `time.perf_counter`, which processes share."""
    if key not in _opened:
        raise GnnlabError("its process was replaced since; open the plan again")
    task, parts, slots = _opened[key]
    first, last = task.place == 0, task.place == len(task.blocks) - 1
    times = []
    if isinstance(task.core, int):
        pin(_CORES[task.core % len(_CORES)])
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
        if not last or place + len(slots) < len(numbers):
            for unit in task.others(1):
                tell(unit)
    return times


class _Part:
    """One graph as one unit of a plan sees it: `run(slot)` does the unit's work, between the graph and a slot, in steps
    from values to values. `own`: the rows that it writes; those of other nodes are dropped behind the calls that
    compute all rows."""

    def __init__(self, task: Task, x: np.ndarray, edge_index: np.ndarray) -> None:
        self.layer = layer_of(task.layer, task.features)
        self.block = block_of(self.layer, task.block.first, task.block.last)
        self.own, whole = slice(None), 0
        if task.block.shared:
            until = whole_until(self.layer, task.block.first, task.block.last)
            whole = sum(span[0] <= until for span in task.spans)
            into = np.bincount(edge_index[1], minlength=len(x)) if until else np.ones(len(x))
            rows = split(into, task.block.ratios[0])
            self.own = slice(0, rows) if task.unit == task.block.units[0] else slice(rows, len(x))
            if until:
                edges = np.flatnonzero((self.own.start <= edge_index[1]) & (edge_index[1] < self.own.stop))
                # runtimes refuse graphs without edges: one of another part, whose row is dropped
                edge_index = np.ascontiguousarray(edge_index[:, edges if len(edges) else [0]])
        self.given = {"x": x, "edge_index": edge_index}  # some units look at x for the number of nodes
        unit, self.calls = registry.find(task.unit), []
        for place, span in enumerate(task.spans):
            nodes = len(x) if place < whole else len(x[self.own])
            cell = Cell(task.layer, task.features, nodes, edge_index.shape[1], *span, task.unit)
            self.calls.append(load(unit, cell, task.models, unit.computes_in("float32")))
        self.steps = [call.run for call in self.calls]
        if task.block.shared:
            self.steps.insert(whole, self._own_rows)

    def run(self, slot: dict[str, np.ndarray]) -> None:
        values = {name: slot[name] for name in self.block.reads if name in slot} | self.given
        for step in self.steps:
            values |= step(values)
        for name in self.block.writes:
            slot[name][self.own] = values[name]

    def _own_rows(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: values[name][self.own] for name in values if NODES in self.layer.values[name].dims}


# ---- in this process -------------------------------------------------------------------------------------------------


class Executor(AbstractContextManager):
    """A plan on its units, for streams of these graphs, which are of one size. `places`: the core of each unit.

    Raises:
        GnnlabError: the plan, a graph or a unit is not fit for it, or there is no memory to share.
    """

    def __init__(
        self,
        plan: Plan,
        costs: Costs,
        graphs: Sequence[Tensors],
        processes: UnitProcesses,
        *,
        models: Path | str | None = None,
        places: Mapping[str, int | str] | None = None,
    ) -> None:
        layer, size = costs.layer, size_of(graphs[0])
        if not min(size):
            raise GnnlabError(f"a graph of {size[0]} nodes and {size[1]} edges; at least 1 of each is needed")
        if layer.fingerprint() != layer_of(layer.name, layer.features).fingerprint():
            raise GnnlabError(
                f"this layer has weights of its own; units run the lab's {layer.name} of {layer.features} features "
                f'(layer_of("{layer.name}", {layer.features})), whose models are exported'
            )
        self.plan, self.layer, self.graphs, self.processes = plan, layer, list(graphs), processes
        self.key, self._last_slot = f"plan{next(_keys)}", 0
        self._slots = _slots(plan, layer, size)
        places = places or {unit: place for place, unit in enumerate(plan.units)}
        requests, shared = {}, [_shared(graph) for graph in graphs]
        for place, block in enumerate(plan.blocks):
            for unit in block.units:
                spans = spans_of(costs, unit, block.first, block.last, block.shared)
                folder = None if models is None else str(models)
                task = Task(unit, layer.name, layer.features, plan.blocks, place, spans, folder, places[unit])
                requests[unit] = (_open, self.key, task, shared, self._slots)
        processes.ask(requests)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self.processes.running:
            self.processes.ask(dict.fromkeys(self.plan.units, (_close, self.key)))
        self._slots = []

    def stream(self, numbers: Iterable[int]) -> pd.DataFrame:
        """The `steps.SEGMENTS` of graphs that are sent through, named by their places in `graphs`.

        Raises:
            GnnlabError: a unit failed, or its process died or hangs.
        """
        start, times = time.perf_counter(), self._send(list(numbers))
        segments = [
            (graph, place, unit, (begun - start) * 1e3, (ended - start) * 1e3)
            for place, block in enumerate(self.plan.blocks)
            for unit in block.units
            for graph, (begun, ended) in enumerate(times[unit])
        ]
        return pd.DataFrame(segments, columns=SEGMENTS).sort_values("start_ms", kind="stable", ignore_index=True)

    def run(self, count: int) -> np.ndarray:
        """Send `count` graphs through, in turn; the result of the last, (N, F'): a form that can be timed and
        compared. Raises as `stream`."""
        self._send([place % len(self.graphs) for place in range(count)])
        return self.last()

    def last(self) -> np.ndarray:
        """The result (N, F') of the last graph of the last stream."""
        return self._slots[self._last_slot][self.layer.result].numpy().copy()

    def check(self, number: int) -> float:
        """How far what the plan makes of a graph is from the plain layer's, relative. `ParityError`: too far."""
        self._send([number])
        return require_equal(plain(self.layer, self.graphs[number]), self.last(), RTOL_FLOAT32, self.plan.words())

    def _send(self, numbers: list[int]) -> dict[str, list[tuple[float, float]]]:
        """When each unit began and ended each graph."""
        self._last_slot = (len(numbers) - 1) % len(self._slots)
        return self.processes.ask(dict.fromkeys(self.plan.units, (_stream, self.key, numbers)))


def plain(layer: StagedLayer, graph: Tensors) -> np.ndarray:
    """What the plain layer makes of a graph, (N, F')."""
    with torch.no_grad():
        return layer.run(**graph).numpy()


def carry_out(
    plan: Plan, costs: Costs, graph: Tensors, processes: UnitProcesses, models: Path | None
) -> dict[str, Any]:
    """Run the layer on a graph by a plan, once after a first run: a row of the one table, with its `parity_error`.

    Raises:
        GnnlabError: a unit cannot run its block, or failed.
    """
    with Executor(plan, costs, [graph], processes, models=models) as executor:
        error, ms = executor.check(0), float(executor.stream([0])["end_ms"].max())
    key = {"size": "/".join(map(str, size_of(graph))), "form": "one graph alone, executed", "notes": [plan.words()]}
    single = {"value": ms, "n": 1, "unit": "ms", "better": "lower", "statistic": "single", "origin": "measured"}
    return {**key, **single, "parity_error": error, **conditions(plan.units)}


def _slots(plan: Plan, layer: StagedLayer, size: tuple[int, int]) -> list[Tensors]:
    """Room for what each block writes, for every graph in flight."""
    names = {name for block in plan.blocks for name in block_of(layer, block.first, block.last).writes}
    values = {name: layer.values[name] for name in names}
    room = {name: torch.zeros(value.shape(*size), dtype=value.dtype) for name, value in values.items()}
    return [_shared(room) for _ in range(window(len(plan.blocks)))]


def _shared(tensors: Tensors) -> Tensors:
    """Copies in memory that processes share. Raises `GnnlabError` where there is none left."""
    try:
        return {name: tensor.clone().share_memory_() for name, tensor in tensors.items()}
    except RuntimeError as error:
        raise GnnlabError(
            f"no shared memory for a graph ({one_line(error)}); use fewer or smaller graphs, or give the system more "
            "(/dev/shm; --shm-size of a container)"
        ) from None
