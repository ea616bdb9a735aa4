"""How much longer a block takes while another core works, by what works there: measured, for two units of the CPU.

    ratios = measure((u, v), make, model)         # {"products beside sums": [1.02, 1.05, ...], ...}

Two plans are opened: the blocks before the products on one unit and the products on the other, and the other way round.
So each kind of block runs on each unit, by itself and beside each kind on the other's core, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from math import ceil

import numpy as np

from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import Model, halo_ends, kind_of
from gnnlab.planning.execution import Executor
from gnnlab.planning.plans import Block, Plan
from gnnlab.planning.simulation import beside

ROUNDS = 4
_LEAST_MS = 10.0  # of work between two looks at the clock: a switch of tasks is short beside it


def pair(units: Sequence[str], model: Model) -> tuple[str, ...]:
    """The first two of these units that run both kinds of block; empty where there are no two, or the layer has one."""
    cut, last = halo_ends(model.layer), len(model.layer.stages)
    if cut is None:
        return ()
    spans = ((1, cut), (cut + 1, last))
    able = [unit for unit in units if all(model.pieces(unit, *span, shared=False) for span in spans)]
    return tuple(able[:2]) if len(able) > 1 else ()


def measure(
    units: tuple[str, str], make: Callable[[Plan, dict[str, int]], Executor], model: Model
) -> dict[str, list[float]]:
    """By the names of `beside`: how many times as long a block took, one of each unit and round.

    `make` opens a plan with its units on the cores given.

    Raises:
        GnnlabError: a unit failed.
    """
    cut, last = halo_ends(model.layer), len(model.layer.stages)
    cores = {unit: core for core, unit in enumerate(units)}
    blocks: dict[str, list[_Busy]] = {unit: [] for unit in units}
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        for first, second in (units, units[::-1]):
            executor = stack.enter_context(
                make(Plan((Block((first,), 1, cut), Block((second,), cut + 1, last))), cores)
            )
            executor.burst(len(executor.graphs))  # what a block reads is there from now on
            blocks[first].append(_Busy(executor, 0, kind_of(model.layer, 1, cut)))
            blocks[second].append(_Busy(executor, 1, kind_of(model.layer, cut + 1, last)))
        for _ in range(ROUNDS):
            alone = {block: _ms({block: ceil(_LEAST_MS / block.call_ms)})[block] for block in chain(*blocks.values())}
            for both in product(*blocks.values()):
                longest = max(_LEAST_MS, *(2 * alone[block] for block in both))
                took = _ms({block: ceil(longest / alone[block]) for block in both})
                for block, other in (both, both[::-1]):
                    found.setdefault(beside(block.kind, other.kind), []).append(took[block] / alone[block])
    return found


@dataclass(frozen=True, eq=False)
class _Busy:
    """A block that its unit may be kept busy with. `call_ms`: about what a call takes."""

    executor: Executor
    place: int
    kind: str

    @cached_property
    def call_ms(self) -> float:
        return _ms({self: 2})[self]


def _ms(counts: Mapping[_Busy, int]) -> dict[_Busy, float]:
    """ms of a call, median, where all of these blocks are at work so often at once."""
    for executor in {block.executor for block in counts}:
        executor.workers.pin(executor.cores)
    for block, count in counts.items():
        for turn in range(count):
            block.executor.send(block.place, turn, turn % len(block.executor.graphs), slot=0)
    took: dict[_Busy, list[float]] = {block: [] for block in counts}
    for block, count in counts.items():
        for _ in range(count):
            report = block.executor.next_report()
            if report is None:
                raise GnnlabError(f"{block.executor.plan.words()}: a unit gave no answer in time")
            report.answer.get(report.unit)
            owner = next(b for b in counts if (b.executor, b.place) == (block.executor, report.block))
            took[owner].append((report.answer.end_s - report.answer.start_s) * 1e3)
    return {block: float(np.median(ms)) for block, ms in took.items()}
