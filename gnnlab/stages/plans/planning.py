"""Which plan: all that are legal, ranked with what is not known of their times; or the best one alone, by dynamic
programming.

    planner = Planner(Model(layer, costs), space, machine)
    ranking = planner.rank(nodes=4000, edges=9000)
    ranking.table()           # expected time, interval, probability of being best, regret; one-unit plans among them
    ranking.chosen            # the plan that is hardest to regret
    planner.best(4000, 9000)  # the same for expected times, without going through all of them

The time of a plan is that from one graph to the next in a stream ("throughput"), or that of one graph alone
("latency"). What the times of blocks leave open is drawn: in each draw every block has one time in all plans, and the
plan that wins most draws is the one that is most probably the best.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from gnnlab.stages.errors import StageError
from gnnlab.stages.plans.costs import Model, Shares, Step, Steps
from gnnlab.stages.plans.partition import expected_shares
from gnnlab.stages.plans.plans import Block, Plan, Space
from gnnlab.stages.plans.simulation import Machine, Trace, Work, simulate

OBJECTIVES = ("throughput", "latency")
DRAWS = 400
INTERVAL = (5, 95)  # percentiles of the draws: 90 %, as predictions of blocks have it
FAR = 95  # percentile of the regret that the choice keeps small


@dataclass(frozen=True, eq=False)
class Ranking:
    """Plans at one size. `ms` (plans): by the expected times of blocks; `draws` (plans, draws): by drawn ones."""

    nodes: int
    edges: int
    objective: str
    plans: tuple[Plan, ...]
    steps: tuple[Steps, ...]
    ms: np.ndarray
    draws: np.ndarray
    origins: tuple[str, ...]
    fused: tuple[bool, ...]

    @cached_property
    def regrets(self) -> np.ndarray:
        """How much longer than the best plan of a draw each takes, (plans, draws), 0 for no longer."""
        return self.draws / self.draws.min(axis=0) - 1

    @cached_property
    def far_regret(self) -> np.ndarray:
        """The regret that is exceeded in one of twenty draws alone, (plans)."""
        return np.percentile(self.regrets, FAR, axis=1)

    @property
    def chosen(self) -> Plan:
        """The plan whose regret is small even when its times turn out badly."""
        return self.plans[min(range(len(self.plans)), key=lambda i: (self.far_regret[i], self.ms[i]))]

    @property
    def fastest(self) -> Plan:
        """The plan of the least expected time."""
        return self.plans[int(np.argmin(self.ms))]

    @property
    def one_unit(self) -> Plan:
        """The best of the plans that leave everything to one unit. Raises `StageError` where no unit can run it all."""
        alone = [i for i, plan in enumerate(self.plans) if len(plan.units) == 1]
        if not alone:
            raise StageError("no unit has times for the whole layer, so there is no one-unit plan to compare with")
        return self.plans[min(alone, key=lambda i: self.ms[i])]

    def place(self, plan: Plan) -> int:
        return self.plans.index(plan)

    def top(self, count: int) -> list[Plan]:
        """The best by expected time, and the best one-unit plan and the chosen one wherever they stand."""
        first = [self.plans[i] for i in np.argsort(self.ms, kind="stable")[:count]]
        alone = [self.one_unit] if any(len(plan.units) == 1 for plan in self.plans) else []
        return list(dict.fromkeys([self.chosen, *first, *alone]))

    def table(self, plans: Sequence[Plan] | None = None) -> pd.DataFrame:
        """A row for each plan, best first.

        Columns: plan (its notation), words, units, blocks, ms, ci_low, ci_high (90 %, around ms), probability (of being
        the best), regret (expected, share), far_regret, origin, fused (every block in one call), chosen.
        """
        low, high = np.percentile(self.draws, INTERVAL, axis=1)
        wins = np.bincount(self.draws.argmin(axis=0), minlength=len(self.plans)) / self.draws.shape[1]
        rows = [
            {
                "plan": str(plan),
                "words": plan.words(),
                "units": len(plan.units),
                "blocks": len(plan.blocks),
                "ms": self.ms[i],
                "ci_low": min(low[i], self.ms[i]),
                "ci_high": max(high[i], self.ms[i]),
                "probability": wins[i],
                "regret": self.regrets[i].mean(),
                "far_regret": self.far_regret[i],
                "origin": self.origins[i],
                "fused": self.fused[i],
                "chosen": plan == self.chosen,
            }
            for i, plan in enumerate(self.plans)
            if plans is None or plan in plans
        ]
        return pd.DataFrame(rows).sort_values("ms", kind="stable", ignore_index=True)


@dataclass(eq=False)
class Planner:
    """Plans of a layer on a machine. `max_blocks`: of a plan; `draws` of the times, from `seed`."""

    model: Model
    space: Space
    machine: Machine
    objective: str = "throughput"
    max_blocks: int = 3
    draws: int = DRAWS
    seed: int = 0
    _drawn: dict = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise StageError(f"objective {self.objective!r}; {' or '.join(OBJECTIVES)} is understood")
        if self.space.stages != len(self.model.layer.stages):
            raise StageError(
                f"plans of {self.space.stages} stages for a layer of {len(self.model.layer.stages)}; both must agree"
            )
        if unknown := [unit for unit in self.space.units if unit not in self.model.costs.units]:
            raise StageError(
                f"no times of {', '.join(unknown)}; there are those of {', '.join(self.model.costs.units)}"
            )

    @cached_property
    def candidates(self) -> list[Plan]:
        """Every legal plan whose times are known, those of one unit included.

        Raises:
            StageError: there is none.
        """
        legal = self.space.candidates(max_blocks=self.max_blocks, one_unit=True)
        found = [plan for plan in legal if self.model.runs(plan)]
        if not found:
            raise StageError(
                f"no plan of {', '.join(self.space.units)} can be costed: cells are missing; measure them (notebook 05)"
            )
        return found

    def rank(
        self, nodes: int, edges: int, *, shares: Shares | None = None, plans: Sequence[Plan] | None = None
    ) -> Ranking:
        """All candidates, or `plans`, for a graph of this size. `shares`: how the graph at hand is cut."""
        plans = self.candidates if plans is None else [self.space.check(plan) for plan in plans]
        steps = [self.model.steps(plan, nodes, edges, shares) for plan in plans]
        ms = np.array([float(self._time(self._expected(s))) for s in steps])
        draws = np.array([np.broadcast_to(self._time(self._draw(s)), self.draws) for s in steps])
        origins = tuple(_worst(self.model.origins(s)) for s in steps)
        fused = tuple(self.model.fused(s) for s in steps)
        return Ranking(nodes, edges, self.objective, tuple(plans), tuple(steps), ms, draws, origins, fused)

    def simulate(self, steps: Steps, *, graphs: int = 16) -> Trace:
        """A stream of graphs through a plan, by the expected times of its steps."""
        works = [[Work(step.unit, step.ms(self.model.costs)) for step in group] for group in steps]
        return simulate(works, self.machine, graphs=graphs)

    def places(self, steps: Steps) -> dict[str, int | str]:
        """The core of each unit of a plan."""
        return self.machine.places({step.unit: step.ms(self.model.costs) for group in steps for step in group})

    def _expected(self, steps: Steps) -> list[dict[str, float]]:
        return [{step.unit: step.ms(self.model.costs) for step in group} for group in steps]

    def _draw(self, steps: Steps) -> list[dict[str, np.ndarray]]:
        return [{step.unit: self._draws_of(step) for step in group} for group in steps]

    def _draws_of(self, step: Step) -> np.ndarray:
        total = np.full(self.draws, step.copies_ms)
        for call in step.calls:
            key = (step.unit, call)
            if key not in self._drawn:
                text = f"{self.seed} {key}"  # a time of its own for each block, the same in every plan
                seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
                at = (call.first, call.last, call.nodes, call.edges)
                self._drawn[key] = self.model.costs.samples(step.unit, *at, self.draws, seed)
            total = total + self._drawn[key]
        return total

    def _time(self, works: list[dict]) -> np.ndarray | float:
        """The objective, by ms of each unit (numbers or draws) in each block."""
        if self.objective == "latency":
            return sum(self._together(block) for block in works)
        return self._together({unit: ms for block in works for unit, ms in block.items()})

    def _together(self, works: dict) -> np.ndarray | float:
        """ms for one graph of units that work at once, each on the core that suits the means best."""
        means = {unit: float(np.mean(ms)) for unit, ms in works.items()}
        return self.machine.period_ms(works, self.machine.places(means))

    def best(self, nodes: int, edges: int, *, shares: Shares | None = None) -> Plan:
        """The candidate of the least expected time, by dynamic programming from the last stage to the first.

        Raises:
            StageError: there is no plan whose times are known.
        """
        return _Search(self, nodes, edges, shares or (lambda ratios: expected_shares(nodes, edges, ratios))).best()


@dataclass(frozen=True)
class _Tail:
    """The last blocks of a plan: the objective's parts so far. In a stream these are the ms of each unit."""

    blocks: tuple[Block, ...]
    works: tuple[float, ...]  # of the units used, sorted by name; for "latency" their sum alone

    def beats(self, other: _Tail) -> bool:
        return all(mine <= theirs for mine, theirs in zip(self.works, other.works, strict=True))


_State = tuple[tuple[str, ...], frozenset[str], int]  # units of the first block, all units used, blocks
_Tails = dict[int, dict[_State, list[_Tail]]]  # by the stage that they begin with


class _Search:
    """Tails that no other one beats, by the stage and units that they begin with and the units that they use.

    The objective never falls when a unit's ms rise, so a tail that is beaten in all of them is in no best plan that its
    better is not in, too. A first pass keeps one tail for each state, that of the least busy bottleneck; the plan that
    it ends with bounds the second one, in which tails that are already worse are dropped.
    """

    def __init__(self, planner: Planner, nodes: int, edges: int, shares: Shares) -> None:
        self.planner, self.space, self.model = planner, planner.space, planner.model
        self.size, self.shares = (nodes, edges), shares
        self.groups = self.space.groups()
        self.works: dict[tuple, dict[str, float]] = {}
        self.bound = np.inf

    def best(self) -> Plan:
        rough = self._pass(_keep_one)
        if not rough:
            self.planner.candidates  # noqa: B018  raises with the reason
        found = min(rough, key=self._objective)
        if self.planner.objective == "latency":
            return Plan(found.blocks)
        self.bound = self._objective(found)
        return Plan(min([found, *self._pass(_keep)], key=self._objective).blocks)

    def _pass(self, keep: Callable[[list[_Tail], _Tail], None]) -> list[_Tail]:
        """Tails that are whole plans."""
        tails: _Tails = {}
        for first in range(self.space.stages, 0, -1):
            tails[first] = {}
            for group in self.groups:
                for state, tail in self._beginning(first, group, tails):
                    if self._least(tail) < self.bound:
                        keep(tails[first].setdefault(state, []), tail)
        return [tail for found in tails[1].values() for tail in found]

    def _least(self, tail: _Tail) -> float:
        """The objective cannot be less, whatever comes before the tail and wherever its units run."""
        devices = self.planner.machine.devices
        units = sorted(unit for block in tail.blocks for unit in block.units)
        if self.planner.objective == "latency":
            return tail.works[0]
        on_cpu = sum(ms for unit, ms in zip(units, tail.works, strict=True) if unit not in devices)
        return max(*tail.works, on_cpu / self.planner.machine.cores)

    def _beginning(self, first: int, group: tuple[str, ...], tails: _Tails) -> Iterator[tuple[_State, _Tail]]:
        """Every tail that begins with `group` at stage `first`."""
        for last in range(first, self.space.stages + 1):
            if not self._able(group, first, last):
                continue
            for ratios in self.space.splits(group):
                block = Block(group, first, last, ratios)
                if last == self.space.stages:
                    yield (group, frozenset(group), 1), self._longer(block, None)
                    continue
                for (after, used, count), found in tails[last + 1].items():
                    if count < self.planner.max_blocks and not used & set(group):
                        for tail in found:
                            yield (group, used | set(group), count + 1), self._longer(block, after, tail)

    def _able(self, group: tuple[str, ...], first: int, last: int) -> bool:
        known = all(self.model.pieces(unit, first, last, len(group) > 1) is not None for unit in group)
        return known and self.space.able(group, first, last)

    def _longer(self, block: Block, after: tuple[str, ...] | None, tail: _Tail | None = None) -> _Tail:
        works = self._works_of(block, after)
        blocks = (block, *(tail.blocks if tail else ()))
        if self.planner.objective == "latency":
            return _Tail(blocks, (float(self.planner._together(works)) + (tail.works[0] if tail else 0.0),))
        units = sorted(unit for b in blocks[1:] for unit in b.units)
        works = works | dict(zip(units, tail.works if tail else (), strict=True))
        return _Tail(blocks, tuple(works[unit] for unit in sorted(works)))

    def _works_of(self, block: Block, after: tuple[str, ...] | None) -> dict[str, float]:
        key = (block, after)
        if key not in self.works:
            place = 0 if block.first == 1 else 1
            steps = self.model.block_steps(block, place, after, *self.size, self.shares)
            self.works[key] = {step.unit: step.ms(self.model.costs) for step in steps}
        return self.works[key]

    def _objective(self, tail: _Tail) -> float:
        if self.planner.objective == "latency":
            return tail.works[0]
        units = sorted(unit for block in tail.blocks for unit in block.units)
        return float(self.planner._together(dict(zip(units, tail.works, strict=True))))


def _keep(found: list[_Tail], tail: _Tail) -> None:
    """Add a tail, unless one that is there beats it; drop those that it beats."""
    if not any(other.beats(tail) for other in found):
        found[:] = [other for other in found if not tail.beats(other)]
        found.append(tail)


def _keep_one(found: list[_Tail], tail: _Tail) -> None:
    """Keep the tail whose busiest unit is busy least."""
    if not found or max(tail.works) < max(found[0].works):
        found[:] = [tail]


def _worst(origins: set[str]) -> str:
    """Of several origins the one that says least about this machine."""
    order = ("simulated", "extrapolated", "interpolated", "measured")
    return next(origin for origin in order if origin in origins)
