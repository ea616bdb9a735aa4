"""Plans tried out on this machine: calibrated at sizes of their own, ranked, streamed.

    with Bench(load_costs(tables), models=folder / "exported_models") as bench:
        bench.calibrate([GraphSize(1500, 3500), GraphSize(3000, 9000)])   # random plans against their expected times
        trial = bench.at(GraphSize(1000, 5000), by_hand=[plan])           # every plan ranked
        trial.candidates, trial.contenders        # what is worth executing, and what is raced
        trial.stream(trial.ranking.chosen)        # a form: `count` graphs in, the last result out
        trial.predicted([plan])                   # what the same stream is expected to take

All plans run on the same processes, one for each unit. A plan's time is that of a stream of `count` graphs from the
first that enters to the last that leaves, over `count`; its prediction is that of the same stream by the expected times
of its blocks, times what such streams took over their expected times at the sizes of the calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnnlab.campaign.cells import Cell, Settings, measure
from gnnlab.campaign.sizes import GraphSize
from gnnlab.planning.costs import Costs
from gnnlab.planning.execution import Executor, carry_out
from gnnlab.planning.pipeline import flow
from gnnlab.planning.planner import CALIBRATION, Planner, Ranking, conditions
from gnnlab.planning.plans import Plan
from gnnlab.planning.unit_processes import UnitProcesses
from gnnlab.prediction.predictor import EXTRAPOLATED, INTERPOLATED, MEASURED, Prediction
from gnnlab.profiling import timing
from gnnlab.workloads.graphsage import inputs_of, random_inputs

if TYPE_CHECKING:
    from torch_geometric.data import Data

GRAPHS = 3  # different random ones of a stream, in turn
NEAR, MOST = 1.2, 6  # plans within so many times the best expected time are worth executing, so many at most
ONE_UNIT_WITHIN = 1.5  # and one-unit plans within so many times that of the best one-unit plan
CALIBRATION_ROUNDS = 5  # streams of each plan of a calibration
CALL_BUDGET_S = 0.1  # for the time of a call by itself


class Bench(AbstractContextManager):
    """The units of `costs` at work. `costs` grows by what is measured on the way, `trials` by the sizes tried; `count`:
    graphs of a stream; `seed`: of orders and of plans drawn; `options`: fields of `Planner`."""

    def __init__(self, costs: Costs, models: Path | str, *, count: int = 8, seed: int = 0, **options: Any) -> None:
        self.costs = self.tables_alone = costs
        self.models, self.count, self.seed, self.options = str(models), count, seed, {"graphs": count, **options}
        self.calibration: pd.DataFrame | None = None
        self.processes = UnitProcesses(costs.units)
        self.processes.start()
        self.trials: dict[str, Trial] = {}

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.processes.close()

    def planner(self, costs: Costs | None = None) -> Planner:
        """With this bench's calibration; for other `costs`, which may be of another machine, without any."""
        return Planner(costs or self.costs, calibration=None if costs else self.calibration, **self.options)

    def calibrate(self, sizes: Sequence[GraphSize], drawn: int = 8) -> pd.DataFrame:
        """Learn how far streams are off what is expected, from plans drawn at random at each of these sizes, for all
        trials that follow. Gives rows: executed over expected, by whether calls were timed, for one unit and several.

        Raises:
            GnnlabError: times are missing, or a unit failed.
        """
        self.calibration = None  # expected times are those of the blocks alone
        streams = [stream for size in sizes for stream in Trial(self, size).drawn_streams(drawn)]
        self.calibration = pd.DataFrame(streams, columns=CALIBRATION)
        rows = []
        for (timed, several), part in self.calibration.groupby(["timed", "several"]):
            ratios = part["ratio"].to_numpy()
            ends = f"from {ratios.min():.3g} to {ratios.max():.3g}"
            ends += f" over {len(part)} plans at {part['size'].nunique()} sizes"
            key = {"calls": "timed" if timed else "by the tables", "form": "several units" if several else "one unit"}
            rows.append({**key, "samples": ratios, "notes": [ends]})
        return pd.DataFrame(rows).assign(unit="x", better="neither", origin="measured", statistic="median")

    def at(self, size: GraphSize, by_hand: Sequence[Plan] = (), **options: Any) -> Trial:
        """All plans ranked at this size, `by_hand` among them, once the calls of the contenders are measured.
        `options`: of `Trial.propose`.

        Raises:
            GnnlabError: times are missing, a plan breaks a rule, or a unit failed.
        """
        self.trials[str(size)] = trial = Trial(self, size, by_hand)
        trial.propose(**options)
        return trial

    def carry_out(self, plan: Plan, graph: Data) -> dict[str, Any]:
        """Run the layer on a graph by a plan: a row."""
        given = inputs_of(graph, self.costs.layer.features)
        return carry_out(plan, self.costs, given, self.processes, self.models)


class Trial:
    """Plans at one size, those `by_hand` among them. `by_tables`: ranked before anything was measured at this size,
    `ranking`: with what was since. `fitted`: do the tables have this size?"""

    def __init__(self, bench: Bench, size: GraphSize, by_hand: Sequence[Plan] = ()) -> None:
        self.bench, self.size, self._at, self.by_hand = bench, str(size), (size.nodes, size.edges), tuple(by_hand)
        self.graphs = [random_inputs(*self._at, bench.costs.layer.features, seed) for seed in range(GRAPHS)]
        self.fitted = self._at in bench.tables_alone.sizes
        self.candidates: list[Plan] = []  # what the ranking and the reader propose
        self.contenders: list[Plan] = []  # what is raced: these and others
        self._executors: dict[Plan, Executor] = {}
        tables = Planner(bench.tables_alone, calibration=bench.calibration, **bench.options)
        self.by_tables = self.ranking = tables.rank(*self._at, also=self.by_hand)

    def propose(self, near: float = NEAR, most: int = MOST, others: int = 1) -> None:
        """Set `candidates`: plans within `near` times the best expected time, `most` at most, the best of one unit, and
        those by hand. Set `contenders`, the best of one unit first: these, one-unit plans near it, and `others` drawn
        from the better half, so that the ranking is not judged by its winners alone. All their calls are timed."""
        for _ in range(2):  # with the calls of the first timed, others may be near the best
            ranking = self.ranking
            proposed = [*ranking.near(near, most), *ranking.one_unit_plans[:1], *self.by_hand]
            self.candidates = list(dict.fromkeys(proposed))
            self.time_calls(self.candidates)
        ranking, ms = self.ranking, self.ranking.table["ms"]
        alone = [p for p in ranking.one_unit_plans if ms[p] <= ONE_UNIT_WITHIN * ms[ranking.one_unit]]
        plans = list(dict.fromkeys([ranking.one_unit, *self.candidates, *alone]))
        half = [plan for plan in ms.index[: len(ms) // 2 + 1] if plan not in plans]
        self.contenders = plans + _drawn(half, others, np.random.default_rng(self.bench.seed))
        self.time_calls(self.contenders)

    def time_calls(self, plans: Sequence[Plan]) -> None:
        """Measure the calls of these plans by themselves in the processes that plans use, where the tables only predict
        them, and rank anew."""
        bench, costs = self.bench, self.bench.costs
        calls = sorted({(work.unit, *call) for p in plans for work in self.ranking.works[p] for call in work.calls})
        known = dict(costs.known)
        for call in calls:
            if costs.predict(*call).origin in (INTERPOLATED, EXTRAPOLATED):
                unit, first, last, nodes, edges = call
                cell = Cell(costs.layer.name, costs.layer.features, nodes, edges, first, last, unit)
                request = (measure, cell, Settings(bench.models, CALL_BUDGET_S))
                outcome = bench.processes.ask({unit: request})[unit]
                if outcome.status == "measured":  # after its parity; what failed stays as it was
                    known[call] = Prediction(outcome.median_ms, *outcome.ci_ms, MEASURED)
        if known != costs.known:
            bench.costs = replace(costs, known=known)
        if self.ranking.planner.costs is not bench.costs:
            self.ranking = bench.planner().rank(*self._at, also=self.by_hand)

    def executor(self, plan: Plan) -> Executor:
        """A plan ready for these graphs; what it makes of each has been held against the plain layer. The plans of
        other sizes are closed, and open again when asked for. `GnnlabError`: a result differs, or a unit fails."""
        for other in {*self.bench.trials.values()} - {self}:
            other.close()
        if plan not in self._executors:
            options = {"models": self.bench.models, "places": self.ranking.places(plan)}
            executor = Executor(plan, self.bench.costs, self.graphs, self.bench.processes, **options)
            for number in range(GRAPHS):
                executor.check(number)
            self._executors[plan] = executor
        return self._executors[plan]

    def close(self) -> None:
        while self._executors:
            self._executors.popitem()[1].close()

    def stream(self, plan: Plan) -> Callable[[], np.ndarray]:
        """A form that sends `count` graphs through and gives the last result. Raises as `executor`."""
        return partial(self.executor(plan).run, self.bench.count)

    def predicted(self, plans: Sequence[Plan]) -> pd.DataFrame:
        """ms a graph that were expected of the stream, as rows; in columns of their own what was expected before
        anything was measured at this size (table_low, table_high), and if the tables have it (fitted)."""
        rows = self.ranking.rows({plan.words(): plan for plan in plans})
        before = self.by_tables.table.loc[list(plans), ["low", "high"]].add_prefix("table_").reset_index(drop=True)
        return pd.concat([rows, before], axis=1).assign(size=self.size, fitted="yes" if self.fitted else "no")

    def drawn_streams(self, count: int) -> list[tuple[str, bool, bool, float]]:
        """Plans drawn at random, executed in turns (`CALIBRATION`): what they took over what the tables expect of them,
        and over what is expected once their calls were timed."""
        random = np.random.default_rng([self.bench.seed, *self._at])  # other plans at each size
        half = self.ranking.table.index[: len(self.ranking.table) // 2 + 1]
        plans = _drawn(self.ranking.one_unit_plans, count // 2, random)
        plans += _drawn([plan for plan in half if len(plan.units) > 1], count - len(plans), random)
        self.time_calls(plans)
        streams = {plan: self.stream(plan) for plan in plans}
        options = {"least": CALIBRATION_ROUNDS, "seed": self.bench.seed, "control": len(streams) < 2}
        raced = timing.race(streams, budget_s=0.0, **options)
        self.close()
        ranked: list[tuple[Ranking, Plan]] = [(r, plan) for r in (self.by_tables, self.ranking) for plan in plans]
        return [
            (
                self.size,
                len(plan.units) > 1,
                ranking.table.loc[plan, "origin"] == MEASURED,
                raced[plan].median_ms / self.bench.count / ranking.table.loc[plan, "ms"],
            )
            for ranking, plan in ranked
        ]

    def chart(self, plan: Plan) -> pd.DataFrame:
        """The same stream predicted and executed, for a Gantt chart: panel, unit, graph, start_ms, end_ms, origin."""
        count = self.bench.count
        executed = self.executor(plan).stream([place % GRAPHS for place in range(count)])
        both = {"predicted": ("simulated", self.ranking.stream(plan)), "executed": ("measured", executed)}
        parts = [segments.assign(panel=panel, origin=origin) for panel, (origin, segments) in both.items()]
        return pd.concat(parts, ignore_index=True)


def flow_rows(chart: pd.DataFrame) -> pd.DataFrame:
    """Each panel of a `Trial.chart` as rows: latency of a graph in the stream, ms from graph to graph, idle units."""
    rows = []
    for panel, segments in chart.groupby("panel", sort=False):
        fixed = {"form": panel, "origin": segments["origin"].iloc[0]}
        for what, value in flow(segments).items():
            number = {"value": 100 * value, "unit": "%"} if what.startswith("idle") else {"value": value, "unit": "ms"}
            rows.append({**fixed, "what": what, **number})
    fixed = {"better": "lower", "statistic": "single", "n": 1, **conditions(chart["unit"].unique())}
    return pd.DataFrame(rows).assign(**fixed)


def _drawn(plans: Sequence[Plan], count: int, random: np.random.Generator) -> list[Plan]:
    return [plans[i] for i in random.permutation(len(plans))[:count]]
