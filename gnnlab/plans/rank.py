"""Which plan: all that are legal, ranked by the time that a stream of graphs is expected to take.

    ranking = Planner(costs, graphs=16, max_blocks=2).rank(nodes=4000, edges=9000)
    ranking.table                 # ms a graph by plan, low, high, origin; best first, plans of one device among them
    ranking.chosen; ranking.near(within=1.2, most=6)
    device_steps(ranking.chosen, costs, 4000, 9000)      # what each device does for a graph: its calls, ms

A device runs a block as one call where that was measured, else as the fewest measured calls that make it up. Devices
that share a graph read the whole x; each has a range of the target nodes and the edges into them, in their ratios. Rows
of other nodes are dropped before the layer's products. What a block writes is copied once, by the
device that writes it, into memory that the next one reads.

In a stream each device takes the graphs in their order, and `window` of them are in flight: a device of block b starts
graph g when it has finished g - 1, when all devices of block b - 1 have finished g, and, in the first block, when graph
g - `window` has left. Devices on one core take turns. The time is that of the whole stream over its graphs; of a stream
of one graph it is the latency. Its ends have all times of blocks at their low ends, and at their high ends.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from gnnlab import machine
from gnnlab.errors import GnnlabError
from gnnlab.plans.costs import HOST, LEAST_FIRST, Call, Costs, Span
from gnnlab.plans.plans import RATIOS, Block, Plan, Space
from gnnlab.workloads.staged import EDGES, StagedLayer

Cores = Mapping[str, int | str]  # of each device; a GPU or an NPU is its own
block_of = lru_cache(maxsize=256)(StagedLayer.block)  # a block is a module: made once


class DeviceStep(NamedTuple):
    """What a device does for one graph: ms while nothing else runs, and its ends; `calls` as `Costs.predict` takes
    them, of which the first `full` compute the rows of all nodes; of their times' origins the one that says least."""

    block: int
    device: str
    ms: float
    low_ms: float = 0.0
    high_ms: float = 0.0
    calls: tuple[Call, ...] = ()
    full: int = 0
    origin: str = ""


@lru_cache(maxsize=256)
def last_full_stage(layer: StagedLayer, first: int, last: int) -> int:
    """The stage of a shared block up to which each part computes all rows: the last before the sums over edges are
    multiplied by weights, or `last` where no such product follows. 0 where no stage of the block looks at edges.

    Raises:
        GnnlabError: the block reads or writes values of edges, which are no rows of nodes.
    """
    block = block_of(layer, first, last)
    if any(EDGES in layer.values[name].dims for name in {*block.reads, *block.writes} - {"edge_index"}):
        raise GnnlabError(
            f"stages {first}-{last} hand on values of edges, so devices cannot share them; share a block that reads "
            "and writes values of nodes"
        )
    if "edge_index" not in block.reads:
        return 0
    sums = max(stage.number for stage in layer.stages if "edge_index" in stage.reads)
    products = (s.number for s in layer.stages[sums:] if any(weight.dim() > 1 for weight in s.module.parameters()))
    return min(last, next((number - 1 for number in products), len(layer.stages)))


def greedy_cover(blocks: Collection[Span], first: int, last: int) -> list[Span]:
    """Those of `blocks` that make up first..last, the longest at each place; none where they do not."""
    spans = []
    while first <= last:
        end = max((b for a, b in blocks if a == first and b <= last), default=0)
        if not end:
            return []
        spans.append((first, end))
        first = end + 1
    return spans


@lru_cache(maxsize=1024)
def calls_of(costs: Costs, device: str, first: int, last: int, shared: bool) -> tuple[list[Span], list[Span]]:
    """The stages of each call by which a device runs a block: of those that compute the rows of all nodes, and of those
    that compute its own rows. Raises `GnnlabError`: a time is missing, or the block cannot be shared.
    """
    full, blocks = last_full_stage(costs.layer, first, last) if shared else 0, costs.blocks(device)
    spans = [], []
    for place, (a, b) in enumerate([(first, full), (max(first, full + 1), last)]):
        spans[place].extend(greedy_cover(blocks, a, b))
        if a <= b and not spans[place]:
            of = f", which it runs by itself where it shares {first}-{last}" if (a, b) != (first, last) else ""
            have = ", ".join(costs.layer.label(*block) for block in sorted(blocks)) or "none"
            raise GnnlabError(f"no time of stages {a}-{b} on {device}{of}; it has times of {have}")
    return spans


def device_steps(plan: Plan, costs: Costs, nodes: int, edges: int) -> tuple[DeviceStep, ...]:
    """What each device does for one graph of this size, in the order of the plan. Raises `GnnlabError`: a time or a
    bandwidth is not known, or a block cannot be shared.
    """
    readers, steps = [block.devices for block in plan.blocks[1:]] + [(HOST,)], []
    for place, (block, targets) in enumerate(zip(plan.blocks, readers, strict=True)):
        for device, ratio in zip(block.devices, block.ratios, strict=True):
            full, rest = calls_of(costs, device, block.first, block.last, block.shared)
            own, into = max(1, round(ratio * nodes)), max(1, round(ratio * edges))
            calls = [(device, *span, size, into) for spans, size in ((full, nodes), (rest, own)) for span in spans]
            times = [costs.predict(*call) for call in calls]
            handed = [(target, moved_bytes(costs, block, device, target, nodes, edges)) for target in targets]
            copies_ms = ratio * max(costs.transfer_ms(device, *each) for each in handed)  # to the slowest reader
            if device in costs.separate and place == 0:  # the graph itself
                copies_ms += costs.transfer_ms(HOST, device, costs.layer.cut_bytes(0, nodes, edges))
            ends = (copies_ms + sum(getattr(t, end) for t in times) for end in ("time_ms", "low_ms", "high_ms"))
            origin = min((time.origin for time in times), key=LEAST_FIRST.index)
            steps.append(DeviceStep(place, device, *ends, tuple(calls), len(full), origin))
    return tuple(steps)


def moved_bytes(costs: Costs, block: Block, source: str, target: str, nodes: int, edges: int) -> int:
    """Between devices that read this machine's memory: what the block writes. To or from another memory: all that later
    stages still read, the graph included."""
    if {source, target} & costs.separate:
        return costs.layer.cut_bytes(block.last, nodes, edges)
    names = block_of(costs.layer, block.first, block.last).writes
    return sum(costs.layer.values[name].bytes(nodes, edges) for name in names)


def window(blocks: int) -> int:
    """How many graphs are in flight at once: one for each block, and one that waits."""
    return blocks + 1


def cores_of(steps: Sequence[DeviceStep], cores: int, own: Collection[str] = ()) -> dict[str, int | str]:
    """A core for each device, the longest step first, each on the core that has least to do (Graham 1969); those of
    `own` are hardware of their own."""
    places: dict[str, int | str] = {step.device: step.device for step in steps if step.device in own}
    busy = [0.0] * cores
    for step in sorted(steps, key=lambda step: (-step.ms, step.device)):
        if step.device not in places:
            places[step.device] = core = busy.index(min(busy))
            busy[core] += step.ms
    return places


def stream_ms(steps: Sequence[DeviceStep], cores: Cores, graphs: int, end: str = "ms") -> float:
    """ms from the first of so many graphs that enters to the last that leaves; `end`: of times, ms|low_ms|high_ms."""
    last, devices = steps[-1].block, Counter(step.block for step in steps)
    free = dict.fromkeys(cores.values(), 0.0)  # ms from which on each core is free
    finished: dict[tuple[int, int], list[float]] = defaultdict(list)  # ms, by graph and block
    waiting = dict.fromkeys(range(len(steps)), 0)  # the graph that each device takes next

    def start(place: int) -> tuple[float, int, int]:
        """ms at which a device can start its next graph, infinite where that is not known yet; of several that can, the
        one with the earlier graph does."""
        graph, block = waiting[place], steps[place].block
        before = (graph, block - 1) if block else (graph - window(last + 1), last)
        known = before[0] < 0 or len(finished[before]) == devices[before[1]]
        ready = max(finished[before], default=0.0) if known else math.inf
        return max(ready, free[cores[steps[place].device]]), graph, -block

    while waiting:
        place = min(waiting, key=start)
        start_ms, graph, _ = start(place)
        free[cores[steps[place].device]] = end_ms = start_ms + getattr(steps[place], end)
        finished[graph, steps[place].block].append(end_ms)
        waiting[place] = graph + 1
        if graph + 1 == graphs:
            del waiting[place]
    return max(free.values())


@dataclass(frozen=True, eq=False)
class Ranking:
    """Plans at one size, best first. `table`, by plan: ms a graph, low, high, origin. `cores`: of each plan."""

    table: pd.DataFrame
    cores: Mapping[Plan, Cores]

    @property
    def chosen(self) -> Plan:
        return self.table.index[0]

    @property
    def one_device_plans(self) -> list[Plan]:
        """Those that leave everything to one device, best first."""
        return [plan for plan in self.table.index if len(plan.devices) == 1]

    def near(self, within: float, most: int) -> list[Plan]:
        """The plans of one device within so many times the best of these, then all within so many times the best plan;
        `most` of each at most."""
        near = []
        for plans in (self.one_device_plans, self.table.index):
            ms = self.table.loc[plans, "ms"]
            near += [*ms.index[ms <= within * ms.min()][:most]]
        return list(dict.fromkeys(near))


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans of at most `max_blocks` blocks for a stream of `graphs`, on the devices of `costs` and so many `cores`
    (this machine's). Any two devices that are no NPU may share a graph in the `ratios`."""

    costs: Costs
    graphs: int = 16
    ratios: Sequence[float] = RATIOS
    max_blocks: int = 2
    cores: int = field(default_factory=machine.cores)

    @cached_property
    def space(self) -> Space:
        """The plans that these devices allow."""
        costs = self.costs
        timed = {device: {n for a, b in costs.blocks(device) for n in range(a, b + 1)} for device in costs.devices}
        unable = {device: {*costs.layer.numbers} - stages for device, stages in timed.items()}
        pairs = combinations([device for device in costs.devices if costs.processors[device] != "NPU"], 2)
        return Space(costs.devices, len(costs.layer.stages), unable, tuple(map(frozenset, pairs)), tuple(self.ratios))

    def rank(self, nodes: int, edges: int, also: Sequence[Plan] = ()) -> Ranking:
        """Every legal plan whose times are known, and those that a reader adds, for a graph of this size. Raises
        `GnnlabError`: there is no such plan; one of `also` breaks a rule, or a time of it is not known.
        """
        steps = {}
        for plan in self.space.candidates(max_blocks=self.max_blocks, one_device=True):
            with suppress(GnnlabError):  # `Costs.lacking` says what is not known
                steps[plan] = device_steps(plan, self.costs, nodes, edges)
        steps |= {self.space.check(plan): device_steps(plan, self.costs, nodes, edges) for plan in also}
        if not steps:
            lacking = "; ".join(": ".join(each) for each in self.costs.lacking(nodes, edges).items())
            raise GnnlabError(f"no plan of {', '.join(self.costs.devices)} can be costed: {lacking}")
        cores = {plan: cores_of(each, self.cores, self.costs.accelerators) for plan, each in steps.items()}
        rows = [self._expected(each, cores[plan]) for plan, each in steps.items()]
        table = pd.DataFrame(rows, pd.Index(steps, dtype=object)).sort_values("ms", kind="stable")
        return Ranking(table, cores)

    def _expected(self, steps: Sequence[DeviceStep], cores: Cores) -> dict[str, float | str]:
        """A row of `Ranking.table`."""
        ends = ("ms", "low_ms", "high_ms")
        ms, low, high = (stream_ms(steps, cores, self.graphs, end) / self.graphs for end in ends)
        origin = min((step.origin for step in steps), key=LEAST_FIRST.index)
        return {"ms": ms, "low": np.nanmin([low, ms]), "high": np.nanmax([high, ms]), "origin": origin}
