"""Plans tried out on this machine: calibrated at sizes of their own, ranked, streamed.

    with Bench(load_costs(tables), models=folder / "exported_models") as bench:
        bench.calibrate([GraphSize(1500, 3500), GraphSize(3000, 9000)])   # random plans against their expected times
        trial = bench.at(GraphSize(1000, 5000), by_hand=[plan])           # every plan ranked
        trial.contenders(others=3)                # what is worth executing, and some that may be
        trial.stream(trial.ranking.chosen)        # a form: `count` graphs in, the last result out
        trial.predicted([plan])                   # what the same stream is expected to take

All plans run on the same processes, one for each unit. A plan's time is that of a stream of `count` graphs from the
first that enters to the last that leaves, over `count`; its prediction is that of the same stream by the expected times
of its blocks, times what such streams took over their expected times at the sizes of the calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnnlab.campaign.sizes import GraphSize
from gnnlab.planning.costs import Costs
from gnnlab.planning.execution import Executed, Executor, carry_out
from gnnlab.planning.partition import Graph
from gnnlab.planning.pipeline import Trace
from gnnlab.planning.planner import CALIBRATION, PREDICTED, Planner, Ranking, conditions
from gnnlab.planning.plans import Plan
from gnnlab.planning.unit_processes import UnitProcesses
from gnnlab.prediction.predictor import EXTRAPOLATED, INTERPOLATED, MEASURED
from gnnlab.profiling.races import RTOL_FLOAT32, require_equal
from gnnlab.profiling.timing import stopwatch

if TYPE_CHECKING:
    from torch_geometric.data import Data

GRAPHS = 3  # different random ones of a stream, in turn
NEAR, MOST = 1.2, 6  # plans within so many times the best expected time are worth executing, so many at most
ONE_UNIT_WITHIN = 1.5  # and one-unit plans within so many times that of the best one-unit plan
CALIBRATION_ROUNDS = 5  # streams of each plan of a calibration


class Bench(AbstractContextManager):
    """The units of `costs` at work. `costs` grows by what is measured on the way, `trials` by the sizes tried; `count`:
    graphs of a stream; `seed`: of orders and of plans drawn; `options`: fields of `Planner`."""

    def __init__(self, costs: Costs, models: Path | str, *, count: int = 8, seed: int = 0, **options: Any) -> None:
        self.costs = self.tables_alone = costs
        self.models, self.count, self.seed, self.options = str(models), count, seed, options
        self.calibration: pd.DataFrame | None = None
        self.processes = UnitProcesses(costs.units)
        self.processes.start()
        self.trials: dict[str, Trial] = {}
        self._open, self._streams = {}, ExitStack()  # executors by plan, of one size at a time

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.close_streams()
        self.processes.close()

    def close_streams(self) -> None:
        """Streams open again when asked for."""
        self._streams.close()
        self._open.clear()

    def executor(self, trial: Trial, plan: Plan) -> Executor:
        """A plan ready for the graphs of a trial. The streams of other sizes are closed."""
        if any(size != trial.size for size, _ in self._open):
            self.close_streams()
        key = trial.size, plan
        if key not in self._open:
            places = trial.planner.places(trial.ranking.steps[plan])
            options = {"models": self.models, "places": places}
            executor = Executor(plan, self.costs, trial.graphs, self.processes, **options)
            self._open[key] = self._streams.enter_context(executor)
            executor.burst(len(trial.graphs))  # what a runtime does at its first call is no stream
        return self._open[key]

    def planner(self, costs: Costs | None = None, calibration: pd.DataFrame | None = None) -> Planner:
        """`calibration`: by default this bench's; for other `costs`, which may be of another machine, none."""
        learnt = self.calibration if calibration is None and costs is None else calibration
        return Planner(costs or self.costs, calibration=learnt, **self.options)

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

    def at(self, size: GraphSize, by_hand: Sequence[Plan] = ()) -> Trial:
        """All plans ranked at this size, `by_hand` among them, once the calls of the best are measured.

        Raises:
            GnnlabError: times are missing, a plan breaks a rule, or a unit failed.
        """
        self.trials[str(size)] = trial = Trial(self, size, by_hand)
        trial.time_calls(trial.proposed())
        return trial

    def carry_out(self, plan: Plan, graph: Data) -> Executed:
        """Run the layer on a graph by a plan."""
        return carry_out(plan, self.costs, Graph.of(graph, self.costs.layer.features), self.processes, self.models)


class Trial:
    """Plans at one size, those `by_hand` among them."""

    def __init__(self, bench: Bench, size: GraphSize, by_hand: Sequence[Plan] = ()) -> None:
        self.bench, self.size, self._at = bench, str(size), (size.nodes, size.edges)
        self.graphs = [Graph.drawn(*self._at, bench.costs.layer.features, seed) for seed in range(GRAPHS)]
        self.by_hand = tuple(by_hand)
        self.fitted = self._at in bench.tables_alone.sizes
        self.candidates: list[Plan] = []  # of the race: what the ranking and the reader propose
        self._traces: dict[Plan, dict[str, tuple[str, Trace]]] = {}
        bench.close_streams()
        self._rank()

    def proposed(self, factor: float = NEAR, most: int = MOST) -> list[Plan]:
        """Plans worth executing: those near the best by expected time, the best of one unit, and those by hand."""
        ranking = self.ranking
        return list(dict.fromkeys([*ranking.near(factor, most), *ranking.one_unit_plans[:1], *self.by_hand]))

    def contenders(self, *, factor: float = NEAR, most: int = MOST, others: int = 1) -> list[Plan]:
        """Plans for the race, the best of one unit first: those `proposed`, one-unit plans near it, and `others` drawn
        from the better half, so that the ranking is not judged by its winners alone. All their calls are timed."""
        self.time_calls(self.proposed(factor, most))
        ranking, random = self.ranking, np.random.default_rng(self.bench.seed)
        self.candidates = self.proposed(factor, most)
        least = ranking.row(ranking.one_unit)["ms"]
        alone = [plan for plan in ranking.one_unit_plans if ranking.row(plan)["ms"] <= ONE_UNIT_WITHIN * least]
        first = list(dict.fromkeys([ranking.one_unit, *self.candidates, *alone]))
        half = [plan for plan in ranking.table["plan"][: len(ranking.table) // 2 + 1] if plan not in first]
        plans = first + _drawn(half, others, random)
        self.time_calls(plans)
        return plans

    def time_calls(self, plans: Sequence[Plan]) -> None:
        """Measure the calls of these plans by themselves in the processes that plans use, where the tables only predict
        them, and rank anew."""
        bench, costs = self.bench, self.bench.costs
        steps = [step for plan in plans for group in self.ranking.steps[plan] for step in group]
        calls = sorted({(step.unit, *call) for step in steps for call in step.calls})
        todo = [call for call in calls if costs.predict(*call).origin in (INTERPOLATED, EXTRAPOLATED)]
        if todo:
            bench.costs = costs.with_measured(todo, bench.processes.measure, bench.models)
            self._rank()

    def stream(self, plan: Plan) -> Callable[[], np.ndarray]:
        """A form that sends `count` graphs through and gives the last result. What the plan makes of every graph has
        been held against the plain layer. Raises `GnnlabError` where it differs, or a unit fails."""
        executor = self.bench.executor(self, plan)
        for number, graph in enumerate(self.graphs):
            executor.stream([number])
            require_equal(graph.through(executor.layer), executor.last(), RTOL_FLOAT32, plan.words())
        return partial(executor.run, self.bench.count)

    def predicted(self, plans: Sequence[Plan]) -> pd.DataFrame:
        """ms a graph that were expected of the stream, as rows; in columns of their own what was expected before
        anything was measured at this size (table_low, table_high), and if the tables have it (fitted)."""
        before = self.bench.planner(self.bench.tables_alone, self.bench.calibration)
        first = before.rank(*self._at, plans=plans)
        rows = []
        for plan in plans:
            value, low, high = self._streamed(self.planner, self.ranking, plan)
            _, table_low, table_high = self._streamed(before, first, plan)
            row = self.ranking.row(plan)
            notes = [f"times of blocks {row['origin']}", "a simulated stream"]
            key = {"size": self.size, "form": plan.words(), "notes": notes, "fitted": "yes" if self.fitted else "no"}
            times = {"value": value, "low": low, "high": high, "n": int(row["n"])}
            times |= {"table_low": table_low, "table_high": table_high}
            rows.append({**key, **times, **PREDICTED, **conditions(plan.units)})
        return pd.DataFrame(rows)

    def drawn_streams(self, count: int) -> list[tuple[str, bool, bool, float]]:
        """Plans drawn at random, executed in turns (`CALIBRATION`): what they took over what the tables expect of them,
        and over what is expected once their calls were timed."""
        random = np.random.default_rng([self.bench.seed, *self._at])  # other plans at each size
        half = self.ranking.table["plan"][: len(self.ranking.table) // 2 + 1]
        plans = _drawn(self.ranking.one_unit_plans, count // 2, random)
        plans += _drawn([plan for plan in half if len(plan.units) > 1], count - len(plans), random)
        by_tables = self._expected(plans)
        self.time_calls(plans)
        timed = self._expected(plans)
        took = _in_turns({plan: self.stream(plan) for plan in plans}, CALIBRATION_ROUNDS, random)
        return [
            (self.size, len(plan.units) > 1, origin == MEASURED, took[plan] / self.bench.count / ms)
            for expected in (by_tables, timed)
            for plan, (ms, origin) in expected.items()
        ]

    def _expected(self, plans: Sequence[Plan]) -> dict[Plan, tuple[float, str]]:
        """ms a graph of a stream, and where the times of its blocks come from."""
        ranking = self.ranking
        return {p: (self._streamed(self.planner, ranking, p)[0], ranking.row(p)["origin"]) for p in plans}

    def _streamed(self, planner: Planner, ranking: Ranking, plan: Plan) -> np.ndarray:
        """ms a graph of a stream with the ends of its interval."""
        steps = ranking.steps[plan]
        ms = planner.simulate(steps, graphs=self.bench.count).total_ms / self.bench.count
        times = ranking.row(plan)[["ms", "low", "high"]].to_numpy(dtype=float)
        return times * ms / planner.expected_ms(steps)

    def chart(self, plan: Plan) -> pd.DataFrame:
        """The same stream predicted and executed, for a Gantt chart: panel, unit, graph, start_ms, end_ms, origin."""
        rows = []
        for panel, (origin, trace) in self._both(plan).items():
            rows += [{"panel": panel, "origin": origin, **segment._asdict()} for segment in trace.segments]
        return pd.DataFrame(rows)

    def flow(self, plan: Plan) -> pd.DataFrame:
        """That stream as rows, predicted and executed: latency of a graph in it, graph to graph, idle units."""
        rows = []
        for form, (origin, trace) in self._both(plan).items():
            of = {"form": form, "origin": origin, "statistic": "single", "n": 1, **conditions(plan.units)}
            latency = {"what": "latency of a graph, with its wait", "value": trace.latency_ms, "unit": "ms"}
            period = {"what": "from graph to graph", "value": trace.period_ms, "unit": "ms"}
            idle = [{"what": f"idle: {u}", "value": 100 * i, "unit": "%"} for u, i in trace.idle.items()]
            rows += [{**of, "better": "lower", **row} for row in (latency, period, *idle)]
        return pd.DataFrame(rows)

    def _both(self, plan: Plan) -> dict[str, tuple[str, Trace]]:
        """One stream through a plan, each with its origin."""
        if plan not in self._traces:
            steps = self.ranking.steps[plan]
            learnt = self.ranking.row(plan)["ms"] / self.planner.expected_ms(steps)  # as the predicted time has it
            simulated = self.planner.simulate(steps, graphs=self.bench.count).times(learnt)
            executed = self.bench.executor(self, plan).burst(self.bench.count)
            self._traces[plan] = {"predicted": ("simulated", simulated), "executed": ("measured", executed)}
        return self._traces[plan]

    def _rank(self) -> None:
        self.planner = self.bench.planner()
        self.ranking = self.planner.rank(*self._at, also=self.by_hand)


def _drawn(plans: Sequence[Plan], count: int, random: np.random.Generator) -> list[Plan]:
    return [plans[i] for i in random.permutation(len(plans))[:count]]


def _in_turns(forms: dict[Plan, Callable[[], Any]], rounds: int, random: np.random.Generator) -> dict[Plan, float]:
    """Median ms of `rounds` calls of each form: all in each round, in random order."""
    plans = list(forms)
    took = {plan: [] for plan in plans}
    for _ in range(rounds):
        for plan in _drawn(plans, len(plans), random):
            with stopwatch() as clock:
                forms[plan]()
            took[plan].append(clock.ms)
    return {plan: float(np.median(ms)) for plan, ms in took.items()}
