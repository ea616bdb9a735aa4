"""Plans tried out on this machine: calibrated at sizes of their own, ranked, chosen by executing them, streamed.

    with Bench(load_costs(tables), models=folder / "exported_models") as bench:
        bench.calibrate([GraphSize(1500, 3500), GraphSize(3000, 9000)])   # random plans against their expected times
        trial = bench.at(GraphSize(1000, 5000), by_hand=[plan])           # every plan ranked
        trial.choose()                            # the best of them, executed in turns for a moment
        trial.stream(trial.chosen)                # a form: `count` graphs in, the last result out
        trial.predicted([plan])                   # what the same stream is expected to take

All plans run on the same workers, one for each unit. A plan's time is that of a stream of `count` graphs from the
first that enters to the last that leaves, over `count`; its prediction is that of the same stream, simulated, times
what such streams took over their expected times at the sizes of the calibration.
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
from gnnlab.planning.calibration import Calibration, Group, Stream
from gnnlab.planning.comparison import in_turns
from gnnlab.planning.execution import Executed, Executor, carry_out
from gnnlab.planning.partition import Graph
from gnnlab.planning.planning import PREDICTED, Planner, Ranking, conditions, planner_of
from gnnlab.planning.plans import Plan
from gnnlab.planning.simulation import Trace
from gnnlab.planning.table_costs import TableCosts
from gnnlab.planning.unit_workers import UnitWorkers
from gnnlab.profiling.races import RTOL_FLOAT32, require_equal

if TYPE_CHECKING:
    from torch_geometric.data import Data

GRAPHS = 3  # different random ones of a stream, in turn
TRIED = 8  # best plans that are executed to choose one; the best of one unit and those by hand are, too
GUESSED = ("interpolated", "extrapolated")
CALIBRATION_ROUNDS = 5  # streams of each plan of a calibration


class Bench(AbstractContextManager):
    """The units of `costs` at work. `costs` grows by what is measured on the way, `trials` by the sizes tried; `count`:
    graphs of a stream; `seed`: of orders and of plans drawn; `options`: those of `planner_of`."""

    def __init__(self, costs: TableCosts, models: Path | str, *, count: int = 8, seed: int = 0, **options: Any) -> None:
        self.costs = self.tables_alone = costs
        self.models, self.count, self.seed, self.options = str(models), count, seed, options
        self.calibration = Calibration()
        self.workers = UnitWorkers()
        self.workers.start(costs.units)
        self.trials: dict[str, Trial] = {}
        self._open, self._streams = {}, ExitStack()  # executors by size and plan, of one size at a time

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.close_streams()
        self.workers.close()

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
            model, steps = trial.planner.model, trial.ranking.steps[trial.ranking.place(plan)]
            options = {"models": self.models, "places": trial.planner.places(steps)}
            self._open[key] = self._streams.enter_context(Executor(plan, model, trial.graphs, self.workers, **options))
            self._open[key].burst(len(trial.graphs))  # what a runtime does at its first call is no stream
        return self._open[key]

    def planner(self, costs: TableCosts | None = None, calibration: Calibration | None = None) -> Planner:
        """`calibration`: by default this bench's; for other `costs`, which may be of another machine, none."""
        learnt = self.calibration if calibration is None and costs is None else calibration
        return planner_of(costs or self.costs, calibration=learnt, **self.options)

    def calibrate(self, sizes: Sequence[GraphSize], drawn: int = 8) -> pd.DataFrame:
        """Learn how far streams are off what is expected, from plans drawn at random at each of these sizes, for all
        trials that follow. Gives the rows of `Calibration`.

        Raises:
            GnnlabError: times are missing, or a unit failed.
        """
        self.calibration = Calibration()  # expected times are those of the blocks alone
        streams = [stream for size in sizes for stream in Trial(self, size).drawn_streams(drawn)]
        self.calibration = Calibration(tuple(streams))
        return self.calibration.rows()

    def at(self, size: GraphSize, by_hand: Sequence[Plan] = ()) -> Trial:
        """All plans ranked at this size, `by_hand` among them, once the calls of the best are measured.

        Raises:
            GnnlabError: times are missing, a plan breaks a rule, or a unit failed.
        """
        self.trials[str(size)] = trial = Trial(self, size, by_hand)
        trial.time_calls(trial.tried())
        return trial

    def carry_out(self, plan: Plan, graph: Data, parts: int = 1) -> Executed:
        """Run the layer on a graph by a plan, cut into `parts` where it is large; see `execution.carry_out`."""
        found = Graph.of(graph, self.costs.layer.features)
        return carry_out(plan, self.planner().model, found, self.workers, models=self.models, parts=parts)


class Trial:
    """Plans at one size, those `by_hand` among them."""

    def __init__(self, bench: Bench, size: GraphSize, by_hand: Sequence[Plan] = ()) -> None:
        self.bench, self.size, self._at = bench, str(size), (size.nodes, size.edges)
        self.graphs = [Graph.drawn(*self._at, bench.costs.layer.features, seed) for seed in range(GRAPHS)]
        self.by_hand = tuple(by_hand)
        self.fitted = self._at in set(bench.tables_alone.sizes)
        self._seen: dict[Plan, dict[str, tuple[str, Trace]]] = {}
        self._chosen: Plan | None = None
        bench.close_streams()
        self._rank()

    @property
    def chosen(self) -> Plan:
        """The plan that was the fastest when they were executed; before that, by its expected time."""
        return self._chosen or self.ranking.chosen

    def tried(self) -> list[Plan]:
        """The best by expected time, the best of one unit, and those by hand."""
        return list(dict.fromkeys([*self.ranking.top(TRIED), *self.by_hand]))

    def time_calls(self, plans: Sequence[Plan]) -> None:
        """Measure the calls of these plans, at the sizes that they make of the graph, by themselves in the processes
        that plans use, and rank anew. Parts of a graph often lie outside the sizes of the tables."""
        bench, costs = self.bench, self.bench.costs
        steps = [s for plan in plans for group in self.ranking.steps[self.ranking.place(plan)] for s in group]
        calls = {(s.unit, c.first, c.last, c.nodes, c.edges) for s in steps for c in s.calls}
        todo = [call for call in sorted(calls) if call not in costs.measured and costs.predict(*call).origin in GUESSED]
        if todo:
            bench.costs = costs.with_measured(todo, bench.workers.measure, bench.models)
            self._rank()

    def choose(self, rounds: int = 6) -> pd.DataFrame:
        """Execute the plans that are `tried`, in turns, so many `rounds`; the fastest is `chosen`. A row for each."""
        forms = {plan: self.stream(plan) for plan in self.tried()}
        took = in_turns(forms, rounds, np.random.default_rng(self.bench.seed))
        self._chosen = min(took, key=lambda plan: float(np.median(took[plan])))
        fields = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median"}
        rows = []
        for plan, ms in took.items():
            about = {"size": self.size, "form": plan.words(), "samples": np.array(ms) / self.bench.count}
            rows.append({**about, **fields, **self.about(plan)})
        return pd.DataFrame(rows)

    def contenders(self, *, top: int, others: int, seed: int = 0) -> list[Plan]:
        """Plans for the race: as the ranking has them, the chosen one and those by hand; all their calls are timed."""
        found = self.ranking.contenders(top=top, others=others, seed=seed)
        plans = list(dict.fromkeys([found[0], self.chosen, *self.by_hand, *found]))
        self.time_calls(plans)
        return plans

    def stream(self, plan: Plan) -> Callable[[], np.ndarray]:
        """A form that sends `count` graphs through and gives the last result. What the plan makes of every graph has
        been held against the plain layer. Raises `GnnlabError` where it differs, or a unit fails."""
        executor = self.bench.executor(self, plan)
        for result in executor.run(range(len(self.graphs))):
            require_equal(self.graphs[result.graph].through(executor.layer), result.out, RTOL_FLOAT32, plan.words())
        return partial(executor.last, self.bench.count)

    def about(self, plan: Plan) -> dict[str, Any]:
        """Conditions and notes of its row."""
        return {**conditions(plan.units), "notes": ["the chosen plan"] * (plan == self.chosen)}

    def predicted(self, plans: Sequence[Plan]) -> pd.DataFrame:
        """ms a graph that were expected of the stream, as rows; in columns of their own what was expected before
        anything was measured at this size (table_ms, table_low, table_high), and if the tables have it (fitted)."""
        before = self.bench.planner(self.bench.tables_alone, self.bench.calibration)
        first = before.rank(*self._at, plans=plans)
        rows = []
        for plan in plans:
            (value, low, high), origin = self._streamed(self.planner, self.ranking, plan)
            (table_ms, table_low, table_high), _ = self._streamed(before, first, plan)
            n = int(self.ranking.counts[self.ranking.place(plan)])
            found = {"value": value, "low": low, "high": high, "n": n}
            tables = {"table_ms": table_ms, "table_low": table_low, "table_high": table_high}
            notes = [f"times of blocks {origin}", "a simulated stream"]
            key = {"size": self.size, "form": plan.words(), "notes": notes, "fitted": "yes" if self.fitted else "no"}
            rows.append({**key, **found, **tables, **PREDICTED, **conditions(plan.units)})
        return pd.DataFrame(rows)

    def drawn_streams(self, count: int) -> list[Stream]:
        """Plans drawn at random, executed in turns: what they took over what the tables expect of them, and over what
        is expected once their calls were timed."""
        random = np.random.default_rng([self.bench.seed, *self._at])  # other plans at each size
        order = [self.ranking.plans[i] for i in np.argsort(self.ranking.ms, kind="stable")]
        one = [plan for plan in order if len(plan.units) == 1]
        several = [plan for plan in order[: len(order) // 2 + 1] if len(plan.units) > 1]
        plans = _drawn(one, count // 2, random)
        plans += _drawn(several, count - len(plans), random)
        by_tables = {plan: self._streamed(self.planner, self.ranking, plan) for plan in plans}
        self.time_calls(plans)
        timed = {plan: self._streamed(self.planner, self.ranking, plan) for plan in plans}
        forms = {plan: self.stream(plan) for plan in plans}
        took = in_turns(forms, CALIBRATION_ROUNDS, random)
        streams = []
        for expected in (by_tables, timed):
            for plan, ((ms, _, _), origin) in expected.items():
                group = Group(len(plan.units) > 1, origin == "measured")
                streams.append(Stream(self.size, group, float(np.median(took[plan])) / self.bench.count / ms))
        return streams

    def _streamed(self, planner: Planner, ranking: Ranking, plan: Plan) -> tuple[np.ndarray, str]:
        """ms a graph of a stream with the ends of its interval, and where the times of its blocks come from."""
        place = ranking.place(plan)
        found = ranking.table([plan]).iloc[0]
        long_stream = planner.expected_ms(ranking.steps[place])
        ms = planner.simulate(ranking.steps[place], graphs=self.bench.count).total_ms / self.bench.count
        return found[["ms", "ci_low", "ci_high"]].to_numpy(dtype=float) * ms / long_stream, found["origin"]

    def chart(self, plan: Plan) -> pd.DataFrame:
        """The same stream predicted and executed, for a Gantt chart: panel, unit, graph, start_ms, end_ms, origin."""
        rows = []
        for panel, (origin, trace) in self._traces(plan).items():
            rows += [{"panel": panel, "origin": origin, **segment._asdict()} for segment in trace.segments]
        return pd.DataFrame(rows)

    def flow(self, plan: Plan) -> pd.DataFrame:
        """That stream as rows, predicted and executed: latency of a graph in it, graph to graph, idle units."""
        rows = []
        for form, (origin, trace) in self._traces(plan).items():
            of = {"form": form, "origin": origin, "statistic": "single", "n": 1, **conditions(plan.units)}
            latency = {"what": "latency of a graph, with its wait", "value": trace.latency_ms, "unit": "ms"}
            period = {"what": "from graph to graph", "value": trace.period_ms, "unit": "ms"}
            idle = [{"what": f"idle: {u}", "value": 100 * i, "unit": "%"} for u, i in trace.idle.items()]
            rows += [{**of, "better": "lower", **row} for row in (latency, period, *idle)]
        return pd.DataFrame(rows)

    def _traces(self, plan: Plan) -> dict[str, tuple[str, Trace]]:
        """One stream through a plan, each with its origin."""
        if plan not in self._seen:
            place = self.ranking.place(plan)
            steps = self.ranking.steps[place]
            learnt = self.ranking.ms[place] / self.planner.expected_ms(steps)  # as the predicted time has it
            simulated = self.planner.simulate(steps, graphs=self.bench.count).times(learnt)
            executed = self.bench.executor(self, plan).burst(self.bench.count)
            self._seen[plan] = {"predicted": ("simulated", simulated), "executed": ("measured", executed)}
        return self._seen[plan]

    def _rank(self) -> None:
        self.planner = self.bench.planner()
        self.ranking = self.planner.rank(*self._at, also=self.by_hand)


def _drawn(plans: Sequence[Plan], count: int, random: np.random.Generator) -> list[Plan]:
    return [plans[i] for i in random.permutation(len(plans))[:count]]
