"""A plan at work: its devices at once on different graphs of a stream.

    cases = [CheckedGraph.of(layer, random_inputs(1000, 5000, 500, seed)) for seed in range(3)]
    with DeviceProcesses(plan.devices) as processes, Executor(plan, costs, cases, processes, models) as executor:
        executor.run(8)                   # 8 graphs in turn; the last result, equal to the plain layer's

Graphs, and what blocks write for a graph, are tensors in memory that all processes share; graph g of a stream writes
into slot g % `window`. A device takes the graphs in their order: it waits for each device of the block before,
computes, and signals to each device of the block behind. Devices of the first block wait for those of the last, so that
no more than `window` graphs are in flight. This process only starts a stream and waits for its end.

Devices that share a block each have a range of the target nodes and all edges into them. They read the whole x, so
their own rows are exact.
"""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch

from gnnlab.errors import GnnlabError, ParityError
from gnnlab.plans.costs import Costs
from gnnlab.plans.plans import Block, Plan
from gnnlab.plans.processes import DeviceProcesses, signal_to, wait_for
from gnnlab.plans.rank import Cores, DeviceStep, block_of, cores_of, device_steps, window
from gnnlab.stages import devices
from gnnlab.stages.export import model_for
from gnnlab.stages.measure import Config
from gnnlab.stages.sizes import layer_of
from gnnlab.workloads.staged import NODES, StagedLayer
from gnnswap import parity
from gnnswap.errors import one_line

Tensors = dict[str, torch.Tensor]
_CORES = psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else range(psutil.cpu_count() or 1)
_keys = itertools.count()


class CheckedGraph(NamedTuple):
    """A graph in shared memory, x (N, F) float32 and edge_index (2, E) int64, and what the plain layer makes of it in
    float32 and in float64, (N, F')."""

    graph: Tensors
    expected: np.ndarray
    truth: np.ndarray

    @classmethod
    def of(cls, layer: StagedLayer, graph: Tensors) -> CheckedGraph:
        """Raises `GnnlabError`: there is no memory to share."""
        exact = copy.deepcopy(block_of(layer, 1, len(layer.stages))).double()
        with torch.no_grad():
            read = (graph[name] for name in exact.reads)
            (truth,) = exact(*(each.double() if each.is_floating_point() else each for each in read))
            return cls(_shared(graph), layer.run(**graph).numpy(), truth.numpy())

    @property
    def size(self) -> tuple[int, int]:
        """Nodes and edges."""
        return len(self.graph["x"]), self.graph["edge_index"].shape[1]

    def require_equal(self, got: np.ndarray, what: str) -> float:
        """How far a result (N, F') is off, relative. `ParityError`: too far."""
        error = parity.error(got, self.expected, self.truth)
        if not error <= parity.RTOL_FLOAT32:
            off = error.why or f"is off the layer in float64 by {error:.2e} relative; {parity.RTOL_FLOAT32} is allowed"
            raise ParityError(f"{what}: {off}")
        return float(error)


class Executor(AbstractContextManager):
    """A plan on its devices, for streams of graphs of one size. `cores`: of each device, as a ranking has them.

    Raises:
        GnnlabError: a time of the plan is not known, a device cannot run its block, or there is no memory to share.
    """

    def __init__(
        self,
        plan: Plan,
        costs: Costs,
        cases: Sequence[CheckedGraph],
        processes: DeviceProcesses,
        models: Path | str | None = None,
        cores: Cores | None = None,
    ) -> None:
        self.plan, self.layer, self.cases, self.processes = plan, costs.layer, list(cases), processes
        self.key = f"plan{next(_keys)}"
        steps = device_steps(plan, costs, *cases[0].size)
        cores = cores or cores_of(steps, len(_CORES), costs.accelerators)
        names = {name for block in plan.blocks for name in block_of(self.layer, block.first, block.last).writes}
        values = {name: self.layer.values[name] for name in names}
        room = {name: torch.zeros(value.shape(*cases[0].size), dtype=value.dtype) for name, value in values.items()}
        self._slots = [_shared(room) for _ in range(window(len(plan.blocks)))]
        requests, graphs, layer = {}, [case.graph for case in cases], (self.layer.name, self.layer.features)
        for step in steps:
            task = Task(step, *layer, plan.blocks, models, cores[step.device])
            requests[step.device] = (_open, self.key, task, graphs, self._slots)
        processes.ask(requests)

    def __exit__(self, *exception: object) -> None:
        if self.processes.running:
            self.processes.ask(dict.fromkeys(self.plan.devices, (_close, self.key)))

    def run(self, count: int) -> np.ndarray:
        """Send `count` graphs through, in turn; the result of the last, (N, F'). Raises `GnnlabError`: a device failed,
        or its process died or hangs."""
        numbers = [place % len(self.cases) for place in range(count)]
        self.processes.ask(dict.fromkeys(self.plan.devices, (_stream, self.key, numbers)))
        return self._slots[(count - 1) % len(self._slots)][self.layer.result].numpy().copy()

    def check(self) -> float:
        """The largest relative error over all graphs. `ParityError`: a result is off by too much."""
        return max(case.require_equal(self.run(place + 1), self.plan.words()) for place, case in enumerate(self.cases))


def execute_once(
    plan: Plan, costs: Costs, graph: Tensors, processes: DeviceProcesses, models: Path | str | None
) -> tuple[float, float]:
    """Run the layer on one graph by a plan, once after a first run: ms from start to end, and the relative error.

    Raises:
        GnnlabError: a device cannot run its block, or failed, or the result is wrong.
    """
    with Executor(plan, costs, [CheckedGraph.of(costs.layer, graph)], processes, models) as executor:
        error, start = executor.check(), time.perf_counter()
        executor.run(1)
        return (time.perf_counter() - start) * 1e3, error


def _shared(tensors: Tensors) -> Tensors:
    """Copies in memory that processes share. Raises `GnnlabError` where there is none left."""
    try:
        return {name: tensor.clone().share_memory_() for name, tensor in tensors.items()}
    except RuntimeError as error:
        raise GnnlabError(
            f"no shared memory for a graph ({one_line(error)}); use fewer or smaller graphs, or give the system more "
            "(/dev/shm; --shm-size of a container)"
        ) from None


# ---- in the process of a device --------------------------------------------------------------------------------------


class Task(NamedTuple):
    """What a device does in a plan. `core`: a number, or the name of a device that needs none."""

    step: DeviceStep
    layer: str
    features: int
    blocks: tuple[Block, ...]
    models: Path | str | None
    core: int | str

    @property
    def block(self) -> Block:
        return self.blocks[self.step.block]

    def others(self, step: int) -> list[str]:
        """The devices of the block so many places on, without this one; the first block comes after the last."""
        block = self.blocks[(self.step.block + step) % len(self.blocks)]
        return [device for device in block.devices if device != self.step.device]


_opened: dict[str, tuple[Task, list[_Part], list[dict[str, np.ndarray]]]] = {}


def _open(key: str, task: Task, graphs: Sequence[Tensors], slots: Sequence[Tensors]) -> None:
    """Load the device's block for each graph: edges are sorted, models compiled, parts taken, once."""
    given, room = ([{name: tensor.numpy() for name, tensor in each.items()} for each in of] for of in (graphs, slots))
    _opened[key] = task, [_Part(task, **graph) for graph in given], room


def _close(key: str) -> None:
    for part in _opened.pop(key)[1]:
        for call in part.calls:
            call.close()


def _stream(key: str, numbers: Sequence[int]) -> None:
    """This device's part of a stream of graphs, by their numbers."""
    task, parts, slots = _opened[key]
    first, last, before, after = task.blocks[0], task.blocks[-1], task.others(-1), task.others(1)
    if isinstance(task.core, int):
        pin(_CORES[task.core % len(_CORES)])
    for place, number in enumerate(numbers):
        if task.block != first or place >= len(slots):
            wait_for(before)
        try:
            parts[number].run(slots[place % len(slots)])
        except Exception as error:
            stages = f"{task.block.first}-{task.block.last}"
            raise GnnlabError(f"failed at graph {place} of the stream (stages {stages}): {one_line(error)}") from None
        if task.block != last or place + len(slots) < len(numbers):
            signal_to(after)


def pin(core: int) -> None:
    """Keep every thread of the process on one core, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):  # threads that are there already have an affinity of their own
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {core})
    elif hasattr(psutil.Process, "cpu_affinity"):
        psutil.Process().cpu_affinity([core])


def split(weights: np.ndarray, ratio: float) -> int:
    """How many of the first rows have as nearly as can be this part of the `weights` (N,); 1 to N - 1 of them. Raises
    `GnnlabError`: there is one row alone."""
    if len(weights) < 2:
        raise GnnlabError("a graph of one node cannot be shared by two devices; each needs a node of its own")
    reached = np.cumsum(weights)
    return int(np.clip(np.abs(reached - ratio * reached[-1]).argmin() + 1, 1, len(weights) - 1))


class _Part:
    """One graph as one device of a plan sees it: `run(slot)` does its work, between the graph and a slot. `own`: the
    rows that it writes; those of other nodes are dropped behind the calls that compute all rows."""

    def __init__(self, task: Task, x: np.ndarray, edge_index: np.ndarray) -> None:
        block, full, device = task.block, task.step.full, devices.find(task.step.device)
        self.layer, self.own, self.calls = layer_of(task.layer, task.features), slice(None), []
        self.block = block_of(self.layer, block.first, block.last)
        if block.shared:
            into = np.bincount(edge_index[1], minlength=len(x)) if full else np.ones(len(x))
            rows = split(into, block.ratios[0])
            self.own = slice(0, rows) if task.step.device == block.devices[0] else slice(rows, len(x))
            if full:
                edges = np.flatnonzero((self.own.start <= edge_index[1]) & (edge_index[1] < self.own.stop))
                # runtimes refuse graphs without edges: one of another part, whose row is dropped
                edge_index = np.ascontiguousarray(edge_index[:, edges if len(edges) else [0]])
        self.given = {"x": x, "edge_index": edge_index}  # some devices look at x for the number of nodes
        for place, (name, first, last, *_) in enumerate(task.step.calls):
            size = {"nodes": len(x if place < full else x[self.own]), "edges": edge_index.shape[1]}
            config = Config(task.layer, task.features, **size, first=first, last=last, device=name)
            options = {**size, "threads": 1, "precision": device.computes_in("float32")}
            self.calls.append(device.load(self.layer, first, last, model_for(device, config, task.models), **options))
        self.steps = [call.run for call in self.calls]
        if block.shared:
            self.steps.insert(full, self._own_rows)

    def run(self, slot: Mapping[str, np.ndarray]) -> None:
        values = {name: slot[name] for name in self.block.reads if name in slot} | self.given
        for step in self.steps:
            values |= step(values)
        for name in self.block.writes:
            slot[name][self.own] = values[name]

    def _own_rows(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: values[name][self.own] for name in values if NODES in self.layer.values[name].dims}
