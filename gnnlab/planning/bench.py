"""Plans tried out on this machine: calibrated at sizes of their own, ranked, chosen by executing them, streamed.

    with Bench(load_costs(tables), models=folder / "exported_models") as bench:
        bench.calibrate([GraphSize(1500, 3500), GraphSize(3000, 9000)])   # random plans, beside what was expected
        trial = bench.at(GraphSize(1000, 5000), by_hand=[plan])           # every plan ranked
        trial.choose(peers)                       # those that could be the best, executed for a moment
        trial.stream(trial.chosen)                # a form: `count` graphs in, the last result out
        trial.predicted([plan])                   # what the same stream was expected to take

All plans run on the same workers, one for each unit. A plan's time is that of a stream of `count` graphs from the
first that enters to the last that leaves, over `count`; its prediction is that of the same stream, simulated, times
what such streams took over their predictions at the sizes of the calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnnlab.campaign.sizes import GraphSize
from gnnlab.planning import calibration as learning
from gnnlab.planning.calibration import Calibration, Stream
from gnnlab.planning.comparison import Heats, in_turns, run_heats
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
ENTRANTS = 8  # plans of the first heat, at most
LOOKS = 3  # how often the ranking is made anew with measured calls
LIKELY = 0.99  # of the draws have their best plan among the entrants, where so few are enough
GUESSED = ("interpolated", "extrapolated")
DRAWN_ROUNDS = 5  # streams of each plan of a calibration


class Bench(AbstractContextManager):
    """The units of `costs` at work. `costs` grows by what is measured on the way, `trials` by the sizes tried; `count`:
    graphs of a stream; `options`: those of `planner_of`."""

    def __init__(self, costs: TableCosts, models: Path | str, *, count: int = 8, **options: Any) -> None:
        self.costs = self.tables_alone = costs
        self.models, self.count, self.options = str(models), count, options
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
            places = trial.planner.places(trial.ranking.steps[trial.ranking.place(plan)])
            self._open[key] = self._streams.enter_context(trial.make(plan, places))
            self._open[key].burst(len(trial.graphs))  # what a runtime does at its first call is no stream
        return self._open[key]

    def planner(self, costs: TableCosts | None = None, calibration: Calibration | None = None) -> Planner:
        """`calibration`: this bench's own; with other `costs` none unless told, for those may be of another machine."""
        learnt = self.calibration if calibration is None and costs is None else calibration
        return planner_of(costs or self.costs, calibration=learnt, **self.options)

    def calibrate(self, sizes: Sequence[GraphSize], drawn: int = 8) -> pd.DataFrame:
        """Learn how far streams are off what is expected, from plans drawn at random at each of these sizes, for all
        trials that follow. The rows tell contention: how many times as long a block takes beside another core's.

        Raises:
            GnnlabError: times are missing, or a unit failed.
        """
        trials = [Trial(self, size, look=False) for size in sizes]
        rows = [row for trial in trials for row in trial.contention()]
        pairs = pd.DataFrame(rows)
        if rows:
            pooled = pairs.groupby("form")["samples"].agg(lambda each: float(np.median(np.concatenate(list(each)))))
            self.calibration = Calibration({pair: max(1.0, factor) for pair, factor in pooled.items()})
        streams = [stream for trial in trials for stream in trial.drawn_streams(drawn)]
        self.calibration = Calibration(self.calibration.contention, tuple(streams))
        return pairs

    def at(self, size: GraphSize, by_hand: Sequence[Plan] = ()) -> Trial:
        """All plans ranked at this size, `by_hand` among them.

        Raises:
            GnnlabError: times are missing, a plan breaks a rule, or a unit failed.
        """
        self.trials[str(size)] = found = Trial(self, size, by_hand)
        return found

    def carry_out(self, plan: Plan, graph: Data, parts: int = 1) -> Executed:
        """Run the layer on a graph by a plan, cut into `parts` where it is large; see `execution.carry_out`."""
        found = Graph.of(graph, self.costs.layer.features)
        return carry_out(plan, self.planner().model, found, self.workers, models=self.models, parts=parts)


class Trial:
    """One size. `entrants`: plans that could be the best by the tables; their calls, and those of plans `by_hand`, are
    measured at this size, unless not to `look`, and all plans ranked again."""

    def __init__(self, bench: Bench, size: GraphSize, by_hand: Sequence[Plan] = (), look: bool = True) -> None:
        self.bench, self.size, self._at = bench, str(size), (size.nodes, size.edges)
        self.graphs = [Graph.drawn(*self._at, bench.costs.layer.features, seed) for seed in range(GRAPHS)]
        self.by_hand = tuple(by_hand)
        self._seen: dict[Plan, dict[str, tuple[str, Trace]]] = {}
        self.heats: Heats | None = None
        self.fitted = self._at in set(bench.tables_alone.sizes)
        bench.close_streams()
        self._rank()
        self.entrants = self._entrants()
        for _ in range(LOOKS if look else 0):
            if not self.time_calls([*self.entrants, *self.ranking.contenders(), *by_hand]):
                break
            self.entrants = self._entrants()  # what that brings to the top is looked at, too

    @property
    def chosen(self) -> Plan:
        """The plan that ran longest in the heats; without any, the one that is hardest to regret."""
        if self.heats is None:
            return self.ranking.chosen
        words = {plan.words(): plan for plan in self.ranking.plans}
        return next(words[form] for form in self.heats.ranked() if form in words)

    def time_calls(self, plans: Sequence[Plan]) -> bool:
        """Measure the calls of these plans, at the sizes that they make of the graph, by themselves in the processes
        that plans use, and rank anew; False where nothing was left to measure. Parts of a graph often lie outside the
        sizes of the tables."""
        bench, costs = self.bench, self.bench.costs
        steps = [s for plan in plans for group in self.ranking.steps[self.ranking.place(plan)] for s in group]
        calls = {(s.unit, c.first, c.last, c.nodes, c.edges) for s in steps for c in s.calls}
        todo = [call for call in sorted(calls) if call not in costs.measured and costs.origin(*call) in GUESSED]
        if todo:
            bench.costs = costs.with_measured(todo, bench.workers.measure, bench.models)
            self._rank()
        return bool(todo)

    @property
    def seed(self) -> int:
        return self.bench.options.get("seed", 0)

    def choose(self, peers: Mapping[str, Callable[[], Any]] | None = None, rounds: int = 2) -> pd.DataFrame:
        """Execute the entrants, the best plan of one unit and those by hand for a moment, the faster half for longer,
        until one is left: `chosen`. `rounds` of the first heat; `peers`: forms that do the same work, which run along.
        A row for each."""
        plans = dict.fromkeys([self.ranking.one_unit, *self.entrants, *self.by_hand])
        forms = {plan.words(): self.stream(plan) for plan in plans} | dict(peers or {})
        self.heats = run_heats(forms, rounds=rounds, seed=self.seed)
        ranked, rows = self.heats.ranked(), []
        faster = ranked[: ranked.index(self.chosen.words())]  # peers alone
        for form, ms in self.heats.samples.items():
            fields = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median"}
            notes = [f"left after heat {self.heats.left_after[form]}"] + ["chosen"] * (form == self.chosen.words())
            notes += ["ahead of the chosen plan"] * (form in faster)
            about = {} if form in (peers or {}) else conditions(next(p for p in plans if p.words() == form).units)
            samples = np.array(ms) / self.bench.count
            rows.append({"size": self.size, "form": form, "samples": samples, **fields, **about, "notes": notes})
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
            found = {"value": value, "low": low, "high": high, "n": self.ranking.draws.shape[1]}
            tables = {"table_ms": table_ms, "table_low": table_low, "table_high": table_high}
            notes = [f"times of blocks {origin}", "a simulated stream"]
            key = {"size": self.size, "form": plan.words(), "notes": notes, "fitted": "yes" if self.fitted else "no"}
            rows.append({**key, **found, **tables, **PREDICTED, **conditions(plan.units)})
        return pd.DataFrame(rows)

    def contention(self) -> list[dict[str, Any]]:
        """How many times as long a block takes beside another core's, by their kinds; none where fewer than two units
        of the CPU run blocks of both kinds."""
        order = [self.ranking.plans[i].units for i in np.argsort(self.ranking.ms, kind="stable")]
        alone = [units[0] for units in order if len(units) == 1 and units[0] not in self.bench.costs.devices]
        pair = learning.contending(list(dict.fromkeys([*alone, *self.bench.costs.units])), self.planner.model)
        if not pair:
            return []
        found = learning.contention(pair, self.make, self.planner.model)
        fields = {"unit": "x", "better": "lower", "origin": "measured", "statistic": "median", **conditions(pair)}
        notes = ["on " + " and ".join(pair)]
        return [
            {"size": self.size, "form": form, "samples": np.array(ratios), **fields, "notes": notes}
            for form, ratios in found.items()
        ]

    def drawn_streams(self, count: int) -> list[Stream]:
        """Plans drawn at random, executed in turns, beside what the tables expect of them, and what is expected once
        their calls were timed; nothing that was learnt before counts in it."""
        plain = Calibration(self.bench.calibration.contention)
        random = np.random.default_rng([self.seed, *self._at])  # other plans at each size
        order = np.argsort(self.ranking.ms, kind="stable")
        every = [self.ranking.plans[i] for i in order[: len(order) // 2 + 1]]
        one = [self.ranking.plans[i] for i in order if len(self.ranking.plans[i].units) == 1]
        several = [plan for plan in every if len(plan.units) > 1]
        plans = _drawn(one, count // 3, random)
        plans += _drawn(several, count - len(plans), random)
        self.time_calls(plans)
        expected = [self.bench.planner(costs, plain) for costs in (self.bench.tables_alone, self.bench.costs)]
        forms = {plan: self.stream(plan) for plan in plans}
        took = {plan: np.median(ms) / self.bench.count for plan, ms in in_turns(forms, DRAWN_ROUNDS, random).items()}
        found = []
        for planner in expected:
            ranking = planner.rank(*self._at, plans=plans)
            for plan in plans:
                (ms, _, _), _ = self._streamed(planner, ranking, plan)
                traits = planner.traits(plan, *self._at)
                found.append(Stream(self.size, plan.words(), *traits, float(np.log(took[plan] / ms))))
        return found

    def _streamed(self, planner: Planner, ranking: Ranking, plan: Plan) -> tuple[np.ndarray, str]:
        """ms a graph of a stream with the ends of its interval, and where the times of its blocks come from."""
        place = ranking.place(plan)
        found = ranking.table([plan]).iloc[0]
        long_stream = planner.expected_ms(ranking.steps[place])
        ms = planner.simulate(ranking.steps[place], graphs=self.bench.count).total_ms / self.bench.count
        return found[["ms", "ci_low", "ci_high"]].to_numpy(dtype=float) * ms / long_stream, found["origin"]

    def probabilities(self, plans: Sequence[Plan]) -> np.ndarray:
        """In what share of the draws each is the fastest of these plans."""
        fastest = self.ranking.draws[[self.ranking.place(plan) for plan in plans]].argmin(axis=0)
        return np.bincount(fastest, minlength=len(plans)) / len(fastest)

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

    def hand_over(self, *, graphs: int = 24) -> list[float]:
        """ms from the end of a block of the chosen plan to the start of the next on a unit that waits for it, one graph
        at a time; the copy is in the block's own time."""
        gaps: list[float] = []
        for _ in range(graphs if len(self.chosen.blocks) > 1 else 0):
            trace = self.bench.executor(self, self.chosen).burst(1)
            ends = {b: max(s.end_ms for s in trace.segments if s.block == b) for b in range(len(self.chosen.blocks))}
            gaps += [s.start_ms - ends[s.block - 1] for s in trace.segments if s.block > 0]
        return gaps

    def make(self, plan: Plan, places: dict[str, Any]) -> Executor:
        """A plan opened for the graphs of this size, units on the cores `places`."""
        model = self.planner.model
        return Executor(plan, model, self.graphs, self.bench.workers, models=self.bench.models, places=places)

    def _rank(self) -> None:
        self.planner = self.bench.planner()
        self.ranking = self.planner.rank(*self._at, also=self.by_hand)

    def _entrants(self) -> list[Plan]:
        """As few plans as hold the best one in `LIKELY` of the draws, the most probable first."""
        order = np.argsort(-self.ranking.wins, kind="stable")
        enough = int(np.searchsorted(np.cumsum(self.ranking.wins[order]), LIKELY)) + 1
        return [self.ranking.plans[i] for i in order[: min(enough, ENTRANTS)]]


def _drawn(plans: Sequence[Plan], count: int, random: np.random.Generator) -> list[Plan]:
    return [plans[i] for i in random.permutation(len(plans))[:count]]
