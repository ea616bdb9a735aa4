"""Which plan: all that are legal, ranked by their expected times.

    planner = planner_of(costs, calibration=learnt)       # of the units that costs are known of, on this machine
    ranking = planner.rank(nodes=4000, edges=9000)
    ranking.table()           # expected time with its interval, best first; one-unit plans among them
    ranking.chosen            # the plan with the smallest expected time

The time of a plan is that from one graph to the next in a stream ("throughput"), or that of one graph alone
("latency"). Where plans were executed, it is corrected by what these took over what was expected, and their 5 % and
95 % are its interval (`calibration`). Where none were, as on machines that are not here, the interval has all times of
blocks at their lower ends, and at their upper ends.
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
from gnnlab.planning.calibration import Calibration, Group
from gnnlab.planning.costs import Model, Shares, Steps
from gnnlab.planning.plans import RATIOS, Plan, Space
from gnnlab.planning.read_costs import FITTED, READ
from gnnlab.planning.simulation import Machine, Trace, Work, simulate
from gnnlab.profiling.estimates import PREDICTION
from gnnlab.units import registry as units

if TYPE_CHECKING:
    from gnnlab.planning.table_costs import TableCosts

OBJECTIVES = ("throughput", "latency")
PREDICTED = {"unit": "ms", "better": "lower", "origin": "predicted", "statistic": "estimate", "interval": PREDICTION}
ONE_UNIT_WITHIN = 1.5  # one-unit plans up to so many times the best one's expected time are worth executing


@dataclass(frozen=True, eq=False)
class Ranking:
    """Plans at one size, by place: expected `ms` with the ends of their intervals, how many executed streams correct
    them (`counts`, 1 where none do), and the origins of the times of their blocks."""

    nodes: int
    edges: int
    plans: tuple[Plan, ...]
    steps: tuple[Steps, ...]
    ms: np.ndarray
    low: np.ndarray
    high: np.ndarray
    counts: np.ndarray
    origins: tuple[str, ...]

    @property
    def chosen(self) -> Plan:
        return self.plans[int(self.ms.argmin())]

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
        """The best by expected time, and the best one-unit plan wherever it stands."""
        first = [self.plans[i] for i in np.argsort(self.ms, kind="stable")[:count]]
        alone = [self.one_unit] if any(len(plan.units) == 1 for plan in self.plans) else []
        return list(dict.fromkeys([*first, *alone]))

    def table(self, plans: Sequence[Plan] | None = None) -> pd.DataFrame:
        """A row for each plan, best first.

        Columns: plan (its notation), words, ms, ci_low, ci_high (90 %, around ms), n, origin, chosen.
        """
        table = pd.DataFrame({"plan": [str(plan) for plan in self.plans], "words": [p.words() for p in self.plans]})
        times = {"ms": self.ms, "ci_low": np.minimum(self.low, self.ms), "ci_high": np.maximum(self.high, self.ms)}
        table = table.assign(**times, n=self.counts, origin=self.origins)
        table["chosen"] = [plan == self.chosen for plan in self.plans]
        kept = table if plans is None else table[[plan in plans for plan in self.plans]]
        return kept.sort_values("ms", kind="stable", ignore_index=True)

    def rows(self, named: Mapping[str, Plan]) -> pd.DataFrame:
        """The expected time of some plans as rows for the one table, by the names of their forms."""
        table, rows = self.table(list(named.values())).set_index("plan"), []
        for form, plan in named.items():
            found = table.loc[str(plan)]
            value = {"value": found["ms"], "low": found["ci_low"], "high": found["ci_high"], "n": int(found["n"])}
            notes = [plan.words()] * (form != plan.words()) + [f"times of blocks {found['origin']}"]
            rows.append({"form": form, **value, **PREDICTED, **conditions(plan.units), "notes": notes})
        return pd.DataFrame(rows)

    def contenders(self, *, top: int = 2, others: int = 1, seed: int = 0) -> list[Plan]:
        """Plans worth executing: the best one-unit plan, the `top` by expected time, near one-unit plans, and `others`
        drawn from the better half, so that predictions are not judged by winners alone."""
        order = np.argsort(self.ms, kind="stable")
        least = self.ms[self.place(self.one_unit)]
        near = [self.plans[i] for i in order if len(self.plans[i].units) == 1 and self.ms[i] <= ONE_UNIT_WITHIN * least]
        first = [self.one_unit, *(self.plans[i] for i in order[:top]), *near]
        half = [self.plans[i] for i in order[: len(order) // 2 + 1] if self.plans[i] not in first]
        drawn = np.random.default_rng(seed).permutation(len(half))[:others]
        return list(dict.fromkeys([*first, *(half[i] for i in drawn)]))


@dataclass(eq=False)
class Planner:
    """Plans of a layer on a machine. `objective`: throughput or latency; `max_blocks` of a plan; `calibration`: what
    executed plans taught, where some were."""

    model: Model
    space: Space
    machine: Machine
    objective: str = "throughput"
    max_blocks: int = 2
    calibration: Calibration = field(default_factory=Calibration)

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
        times = np.array([self._times(each) for each in steps])
        counts, origins = np.ones(len(plans), dtype=int), tuple(_worst(self.model.origins(each)) for each in steps)
        groups = [Group(len(plan.units) > 1, origin == "measured") for plan, origin in zip(plans, origins, strict=True)]
        if self.objective == "throughput" and self.calibration.knows(groups):  # streams were executed, no lone graphs
            times = times[:, :1] * np.array([self.calibration.factors(group) for group in groups])
            counts = np.array([self.calibration.count(group) for group in groups])
        return Ranking(nodes, edges, tuple(plans), tuple(steps), *times.T, counts, origins)

    def expected_ms(self, steps: Steps) -> float:
        """The objective by the expected times of its steps alone."""
        return self._times(steps)[0]

    def simulate(self, steps: Steps, *, graphs: int = 16) -> Trace:
        """A stream of graphs through a plan, by the expected times of its steps."""
        return simulate(self._works(steps)[0], self.machine, graphs=graphs)

    def places(self, steps: Steps) -> dict[str, int | str]:
        """The core of each unit of a plan."""
        return self.machine.places([work for block in self._works(steps)[0] for work in block])

    def _works(self, steps: Steps) -> list[list[list[Work]]]:
        """By block, by unit: with the expected ms, with those of the lower ends, with those of the upper ends."""
        times = [[(step.unit, step.times(self.model.costs)) for step in group] for group in steps]
        return [[[Work(unit, ms[end]) for unit, ms in group] for group in times] for end in range(3)]

    def _times(self, steps: Steps) -> tuple[float, ...]:
        """The objective by the expected times, by the lower ends, by the upper ends."""
        works = self._works(steps)
        if self.objective == "latency":
            return tuple(sum(self._together(block) for block in each) for each in works)
        return tuple(self._together([work for block in each for work in block]) for each in works)

    def _together(self, works: Sequence[Work]) -> float:
        """Units that work at once are each on the core that suits their times best."""
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
    machine = Machine(cores or this_machine.cores(), costs.devices)
    model = Model(costs.layer, costs, costs.separate)
    return Planner(model, space, machine, calibration=calibration or Calibration(), **options)
