"""Which plan: all that are legal, ranked with what is not known of their times.

    planner = planner_of(costs, calibration=learnt)       # of the units that costs are known of, on this machine
    ranking = planner.rank(nodes=4000, edges=9000)
    ranking.table()           # expected time, interval, probability of being best, regret; one-unit plans among them
    ranking.chosen            # the plan that is hardest to regret

The time of a plan is that from one graph to the next in a stream ("throughput"), or that of one graph alone
("latency"). What is not known of it is drawn, and the plan that wins most draws is the one that is most probably the
best. Where plans were executed, what they took over what was expected is drawn (`calibration`); where none were, as on
machines that are not here, the errors of the tables are: in each draw every block has one time in all plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnnlab import machine as this_machine
from gnnlab.errors import GnnlabError
from gnnlab.files import digest
from gnnlab.planning.calibration import Calibration, Traits
from gnnlab.planning.costs import Model, Shares, Step, Steps
from gnnlab.planning.plans import RATIOS, Plan, Space
from gnnlab.planning.read_costs import FITTED, READ
from gnnlab.planning.simulation import Machine, Trace, Work, simulate
from gnnlab.profiling.estimates import PREDICTION
from gnnlab.units import registry as units

if TYPE_CHECKING:
    from gnnlab.planning.table_costs import TableCosts

OBJECTIVES = ("throughput", "latency")
DRAWS = 1000
ALWAYS = 0.995  # a share of the draws that is told as "over 99 %": once in 200 would not show among them
INTERVAL = (5, 95)  # percentiles of the draws: 90 %, as predictions of blocks have it
REGRET_PERCENTILE = 95  # of the regret over the draws: the choice keeps this one small
PREDICTED = {"unit": "ms", "better": "lower", "origin": "predicted", "statistic": "estimate", "interval": PREDICTION}
ONE_UNIT_WITHIN = 1.5  # one-unit plans up to so many times the best one's expected time are worth executing


@dataclass(frozen=True, eq=False)
class Ranking:
    """Plans at one size. `ms` (plans): by the expected times of blocks; `draws` (plans, draws): by drawn ones."""

    nodes: int
    edges: int
    plans: tuple[Plan, ...]
    steps: tuple[Steps, ...]
    ms: np.ndarray
    draws: np.ndarray
    origins: tuple[str, ...]

    @cached_property
    def regrets(self) -> np.ndarray:
        """How much longer than the best plan of a draw each takes, (plans, draws), 0 for no longer."""
        return self.draws / self.draws.min(axis=0) - 1

    @cached_property
    def wins(self) -> np.ndarray:
        """In what share of the draws each is the fastest, (plans)."""
        return np.bincount(self.draws.argmin(axis=0), minlength=len(self.plans)) / self.draws.shape[1]

    @cached_property
    def regret_p95(self) -> np.ndarray:
        """The regret that is exceeded in one of twenty draws alone, (plans)."""
        return np.percentile(self.regrets, REGRET_PERCENTILE, axis=1)

    @cached_property
    def chosen(self) -> Plan:
        """The plan whose regret is small even when its times turn out badly."""
        return self.plans[min(range(len(self.plans)), key=lambda i: (self.regret_p95[i], self.ms[i]))]

    @property
    def one_unit(self) -> Plan:
        """The best of the plans that leave everything to one unit. `GnnlabError` where no unit can run it all."""
        alone = [i for i, plan in enumerate(self.plans) if len(plan.units) == 1]
        if not alone:
            raise GnnlabError("no unit has times for the whole layer, so there is no one-unit plan to compare with")
        return self.plans[min(alone, key=lambda i: self.ms[i])]

    def place(self, plan: Plan) -> int:
        return self.plans.index(plan)

    def top(self, count: int) -> list[Plan]:
        """The best by expected time, and the best one-unit plan and the chosen one wherever they stand."""
        first = [self.plans[i] for i in np.argsort(self.ms, kind="stable")[:count]]
        alone = [self.one_unit] if any(len(plan.units) == 1 for plan in self.plans) else []
        return list(dict.fromkeys([self.chosen, *first, *alone]))

    def table(self, plans: Sequence[Plan] | None = None, marks: Mapping[str, Plan] | None = None) -> pd.DataFrame:
        """A row for each plan, best first; `marks` are labels of some.

        Columns: plan (its notation), words, blocks (units, first and last stage of each), ms, ci_low, ci_high (90 %,
        around ms), probability (share of the draws in which it is the best), regret (expected, share), regret_p95,
        origin, chosen, label.
        """
        low, high = np.percentile(self.draws, INTERVAL, axis=1)
        table = pd.DataFrame({"plan": [str(plan) for plan in self.plans], "words": [p.words() for p in self.plans]})
        table["blocks"] = [[(block.units, block.first, block.last) for block in p.blocks] for p in self.plans]
        times = {"ms": self.ms, "ci_low": np.minimum(low, self.ms), "ci_high": np.maximum(high, self.ms)}
        regrets = {"regret": self.regrets.mean(axis=1), "regret_p95": self.regret_p95}
        table = table.assign(**times, probability=self.wins, **regrets, origin=self.origins)
        table["chosen"] = [plan == self.chosen for plan in self.plans]
        table["label"] = [", ".join(n for n, marked in (marks or {}).items() if marked == p) for p in self.plans]
        kept = table if plans is None else table[[plan in plans for plan in self.plans]]
        return kept.sort_values("ms", kind="stable", ignore_index=True)

    def rows(self, named: Mapping[str, Plan]) -> pd.DataFrame:
        """The expected time of some plans as rows for the one table, by the names of their forms."""
        table, rows = self.table(list(named.values())).set_index("plan"), []
        for form, plan in named.items():
            found = table.loc[str(plan)]
            value = {"value": found["ms"], "low": found["ci_low"], "high": found["ci_high"], "n": self.draws.shape[1]}
            often, regret = found["probability"], found["regret_p95"]
            share = "over 99 %" if often > ALWAYS else f"{100 * often:.0f} %"
            why = f"fastest in {share} of the draws, regret below {100 * regret:.0f} % in 19 of 20"
            notes = [plan.words()] * (form != plan.words()) + [f"times of blocks {found['origin']}", why]
            rows.append({"form": form, **value, **PREDICTED, **conditions(plan.units), "notes": notes})
        return pd.DataFrame(rows)

    def contenders(self, *, top: int = 2, others: int = 1, seed: int = 0) -> list[Plan]:
        """Plans worth executing: the best one-unit plan, the chosen one, the `top` by expected time, near one-unit
        plans, and `others` drawn from the better half, so that predictions are not judged by winners alone."""
        order = np.argsort(self.ms, kind="stable")
        least = self.ms[self.place(self.one_unit)]
        near = [self.plans[i] for i in order if len(self.plans[i].units) == 1 and self.ms[i] <= ONE_UNIT_WITHIN * least]
        first = [self.one_unit, self.chosen, *(self.plans[i] for i in order[:top]), *near]
        half = [self.plans[i] for i in order[: len(order) // 2 + 1] if self.plans[i] not in first]
        drawn = np.random.default_rng(seed).permutation(len(half))[:others]
        return list(dict.fromkeys([*first, *(half[i] for i in drawn)]))


@dataclass(eq=False)
class Planner:
    """Plans of a layer on a machine. `objective`: throughput or latency; `max_blocks` of a plan; `draws` of the times,
    from `seed`; `calibration`: what executed plans taught, where some were."""

    model: Model
    space: Space
    machine: Machine
    objective: str = "throughput"
    max_blocks: int = 2
    draws: int = DRAWS
    seed: int = 0
    calibration: Calibration = field(default_factory=Calibration)
    _drawn: dict = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise GnnlabError(f"objective {self.objective!r}; {' or '.join(OBJECTIVES)} is understood")
        if self.space.stages != len(self.model.layer.stages):
            raise GnnlabError(
                f"plans of {self.space.stages} stages for a layer of {len(self.model.layer.stages)}; both must agree"
            )
        if unknown := [unit for unit in self.space.units if unit not in self.model.costs.units]:
            raise GnnlabError(
                f"no times of {', '.join(unknown)}; there are those of {', '.join(self.model.costs.units)}"
            )

    @cached_property
    def candidates(self) -> list[Plan]:
        """Every legal plan whose times are known, those of one unit included.

        Raises:
            GnnlabError: there is none.
        """
        legal = self.space.candidates(max_blocks=self.max_blocks, one_unit=True)
        found = [plan for plan in legal if self.model.runs(plan)]
        if not found:
            raise GnnlabError(
                f"no plan of {', '.join(self.space.units)} can be costed: cells are missing; measure them (notebook 05)"
            )
        return found

    def rank(
        self,
        nodes: int,
        edges: int,
        *,
        plans: Sequence[Plan] | None = None,
        also: Sequence[Plan] = (),
        shares: Shares | None = None,
    ) -> Ranking:
        """All candidates, or `plans`, and `also`, for a graph of this size. `shares`: how the graph at hand is cut."""
        given = [self.space.check(plan) for plan in (*(plans or ()), *also)]
        plans = list(dict.fromkeys([*(self.candidates if plans is None else ()), *given]))
        steps = [self.model.steps(plan, nodes, edges, shares) for plan in plans]
        ms = np.array([self.expected_ms(s) for s in steps])
        origins = tuple(_worst(self.model.origins(s)) for s in steps)
        traits = [self._traits(s, origin) for s, origin in zip(steps, origins, strict=True)]
        if self.objective == "throughput" and self.calibration.knows(traits):  # streams were executed, no lone graphs
            middle, factors = self.calibration.factors(traits, self.draws, self.seed)
            ms, draws = ms * middle, ms[:, None] * factors
        else:
            every = [self._time(self._works(s, drawn=True)) for s in steps]
            draws = np.array([np.broadcast_to(each, self.draws) for each in every])
        return Ranking(nodes, edges, tuple(plans), tuple(steps), ms, draws, origins)

    def expected_ms(self, steps: Steps) -> float:
        """By the expected times of its steps alone: the objective."""
        return float(self._time(self._works(steps)))

    def simulate(self, steps: Steps, *, graphs: int = 16) -> Trace:
        """A stream of graphs through a plan, by the expected times of its steps."""
        return simulate(self._works(steps), self.machine, graphs=graphs)

    def places(self, steps: Steps) -> dict[str, int | str]:
        """The core of each unit of a plan."""
        return self.machine.places([work for block in self._works(steps) for work in block])

    def traits(self, plan: Plan, nodes: int, edges: int) -> Traits:
        """What the error of a plan's expected time depends on."""
        steps = self.model.steps(plan, nodes, edges)
        return self._traits(steps, _worst(self.model.origins(steps)))

    def _traits(self, steps: Steps, origin: str) -> Traits:
        works = [work for block in self._works(steps) for work in block]
        overlap = self.machine.overlap(works, self.machine.places(works))
        return Traits(len({work.unit for work in works}) > 1, overlap, origin == "measured")

    def _works(self, steps: Steps, drawn: bool = False) -> list[list[Work]]:
        """By block, by unit: the expected ms, or draws of it."""
        ms_of = self._draws_of if drawn else lambda step: step.ms(self.model.costs)
        return [[Work(step.unit, ms_of(step), step.kind) for step in group] for group in steps]

    def _draws_of(self, step: Step) -> np.ndarray:
        total = np.full(self.draws, step.copies_ms)
        for call in step.calls:
            key = (step.unit, call)
            if key not in self._drawn:
                seed = int(digest([self.seed, str(key)])[:8], 16)  # its own for each block, the same in every plan
                at = (call.first, call.last, call.nodes, call.edges)
                self._drawn[key] = self.model.costs.samples(step.unit, *at, self.draws, seed)
            total = total + self._drawn[key]
        return total

    def _time(self, works: Sequence[Sequence[Work]]) -> np.ndarray | float:
        """The objective: a number, or draws. Units that work at once are each on the core that suits the means best."""
        if self.objective == "latency":
            return sum(self._together(block) for block in works)
        return self._together([work for block in works for work in block])

    def _together(self, works: Sequence[Work]) -> np.ndarray | float:
        return self.machine.period_ms(works, self.machine.places(works))


def _worst(origins: set[str]) -> str:
    """Of several origins the one that says least about this machine."""
    order = ("simulated", "extrapolated", FITTED, READ, "interpolated", "measured")
    return next(origin for origin in order if origin in origins)


def conditions(names: Sequence[str]) -> dict[str, Any]:
    """What units compute under that are at work at once, one thread each, as fields of a row. The device is left out
    where it is this machine's CPU alone."""
    found = [units.find(name) for name in names]
    runtimes = sorted({f"{u.runtime} {this_machine.version(u.runtime) or ''}".strip() for u in found})
    threads = sum(unit.processor == "CPU" for unit in found)
    fields = {"runtime": ", ".join(runtimes), "precision": "float32", "threads": threads}
    if threads == len(found):
        return fields
    chips = dict.fromkeys("CPU" if unit.processor == "CPU" else f"{unit.processor} ({unit.name})" for unit in found)
    return {**fields, "device": " and ".join(chips)}


def planner_of(
    costs: TableCosts,
    *,
    calibration: Calibration | None = None,
    ratios: Sequence[float] = RATIOS,
    cores: int | None = None,
    **options: Any,
) -> Planner:
    """Plans of the units of `costs` on this machine, where any two that are no NPU may share a graph in these `ratios`;
    `calibration`: what executed plans taught; `options`: fields of `Planner`."""
    may = [unit for unit in costs.units if costs.processor(unit) != "NPU"]
    stages = len(costs.layer.stages)
    able = {unit: {stage for a, b in costs.blocks(unit) for stage in range(a, b + 1)} for unit in costs.units}
    unable = {unit: set(range(1, stages + 1)) - able[unit] for unit in costs.units}
    space = Space(costs.units, stages, unable, tuple(map(frozenset, itertools.combinations(may, 2))), tuple(ratios))
    calibration = calibration or Calibration()
    machine = Machine(cores or this_machine.cores(), costs.devices, calibration.contention)
    model = Model(costs.layer, costs, costs.separate)
    return Planner(model, space, machine, calibration=calibration, **options)
