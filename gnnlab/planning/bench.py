"""Plans tried out on this machine: how much units slow each other down, what every plan is expected to take, streams.

    with Bench(load_costs(tables), models=folder / "exported_models") as bench:
        trial = bench.at(GraphSize(1000, 5000), by_hand=[plan])     # contention, then every plan ranked with it
        trial.stream(trial.ranking.chosen)                     # a form: `count` graphs in, the last result out
        trial.predicted([plan])                                # what the same stream was expected to take

All plans run on the same workers, one for each unit. A plan's time is that of a stream of `count` graphs from the
first that enters to the last that leaves, over `count`; its prediction is that of the same stream, simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnnlab.campaign.sizes import GraphSize
from gnnlab.planning import store
from gnnlab.planning.execution import Executed, Executor, carry_out
from gnnlab.planning.partition import Graph
from gnnlab.planning.planning import PREDICTED, Planner, Ranking, conditions, planner_of
from gnnlab.planning.plans import Block, Plan
from gnnlab.planning.simulation import Trace
from gnnlab.planning.table_costs import TableCosts
from gnnlab.planning.unit_workers import UnitWorkers
from gnnlab.profiling.parity import RTOL_FLOAT32, require_equal

if TYPE_CHECKING:
    from torch_geometric.data import Data

GRAPHS = 3  # different ones of a stream, in turn
ROUNDS = 12  # of measuring contention
SHORTLIST, REFINEMENTS = 6, 3  # plans whose calls are measured, and how often the ranking is made anew
GUESSED = ("interpolated", "extrapolated")


class Bench:
    """The units of `costs` at work. `costs` grows by what is measured on the way, `trials` by the sizes tried; `count`:
    graphs of a stream; `options`: those of `planner_of`."""

    def __init__(self, costs: TableCosts, models: Path | str, *, count: int = 8, **options: Any) -> None:
        self.costs = self.tables_alone = costs
        self.models, self.count, self.options = str(models), count, options
        self.workers = UnitWorkers()
        self.workers.start(costs.units)
        self.trials: dict[str, Trial] = {}
        self._open, self._streams = {}, ExitStack()  # executors by size and plan, of one size at a time

    def __enter__(self) -> Bench:
        return self

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

    @property
    def slowdown(self) -> float:
        """Of units at work at once, over all sizes."""
        return float(np.median([trial.slowdown for trial in self.trials.values()] or [1.0]))

    def planner(self, costs: TableCosts | None = None, slowdown: float | None = None) -> Planner:
        slowdown = self.slowdown if slowdown is None else slowdown
        return planner_of(costs or self.costs, slowdown=slowdown, **self.options)

    def at(self, size: GraphSize, by_hand: Sequence[Plan] = ()) -> Trial:
        """How much units slow each other down at this size, and all plans ranked with it, `by_hand` among them.

        Raises:
            GnnlabError: times are missing, a plan breaks a rule, or a unit failed.
        """
        return Trial(self, size, by_hand)

    def carry_out(self, plan: Plan, graph: Data, parts: int = 1) -> Executed:
        """Run the layer on a graph by a plan, cut into `parts` where it is large; see `execution.carry_out`."""
        found = Graph.of(graph, self.costs.layer.features)
        return carry_out(plan, self.planner().model, found, self.workers, models=self.models, parts=parts)

    def compiled(self, path: Path) -> store.Compiled:
        """Plans for the sizes of the tables, kept at `path`; made anew unless they were made from the same."""
        return store.compiled(path, self.planner(), self.costs.sizes, self.costs.made_from)


class Trial:
    """One size. `pair`: the units whose contention was measured, none where fewer than two run the whole layer on the
    CPU; `ratios`: how many times as long their work took beside each other as alone, by rounds."""

    def __init__(self, bench: Bench, size: GraphSize, by_hand: Sequence[Plan]) -> None:
        self.bench, self.size = bench, str(size)
        self.graphs = _graphs(size, bench.costs.layer.features)
        self._seen: dict[Plan, dict[str, tuple[str, Trace]]] = {}
        bench.close_streams()
        at = (size.nodes, size.edges)
        self.pair = _pair(bench.planner(slowdown=1.0).rank(*at), bench.costs.devices)
        self.ratios = self._contention() if self.pair else ()
        self.slowdown = max(1.0, float(np.median(self.ratios))) if self.pair else 1.0
        self._refine(at, by_hand)
        self.planner = bench.planner(slowdown=self.slowdown)
        self.ranking = self.planner.rank(*at, also=by_hand)
        self._before = bench.planner(bench.tables_alone, self.slowdown)
        self.fitted = at in set(bench.tables_alone.sizes)
        bench.trials[self.size] = self

    @property
    def chosen(self) -> Plan:
        return self.ranking.chosen

    def contention(self) -> pd.DataFrame:
        """How many times as long work takes while another core works, as a row; none where it was not measured."""
        fields = {"unit": "x", "better": "lower", "origin": "measured", "statistic": "median"}
        row = {"size": self.size, "form": " beside ".join(self.pair), "samples": np.array(self.ratios)}
        return pd.DataFrame([{**row, **fields, **conditions(self.pair)}] if self.pair else [])

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
        """ms a graph that were expected of the stream, as rows; in columns of their own what the tables alone expected
        before anything was measured at this size (table_low, table_high), and whether they have it (fitted)."""
        before = self._before.rank(self.ranking.nodes, self.ranking.edges, plans=plans)
        rows = []
        for plan in plans:
            (value, low, high), origin = self._streamed(self.planner, self.ranking, plan)
            (_, table_low, table_high), _ = self._streamed(self._before, before, plan)
            found = {"value": value, "low": low, "high": high, "n": self.ranking.draws.shape[1]}
            tables = {"table_low": table_low, "table_high": table_high, "fitted": "yes" if self.fitted else "no"}
            notes = [f"times of blocks {origin}", "a simulated stream"]
            key = {"size": self.size, "form": plan.words(), "notes": notes}
            rows.append({**key, **found, **tables, **PREDICTED, **conditions(plan.units)})
        return pd.DataFrame(rows)

    def _streamed(self, planner: Planner, ranking: Ranking, plan: Plan) -> tuple[np.ndarray, str]:
        """ms a graph of a stream with the ends of its interval, and where the times of its blocks come from."""
        found = ranking.table([plan]).iloc[0]
        ms = planner.simulate(ranking.steps[ranking.place(plan)], graphs=self.bench.count).total_ms / self.bench.count
        return found[["ms", "ci_low", "ci_high"]].to_numpy(dtype=float) * ms / found["ms"], found["origin"]

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
            steps = self.ranking.steps[self.ranking.place(plan)]
            simulated = self.planner.simulate(steps, graphs=self.bench.count)
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
        model = self.bench.planner(slowdown=1.0).model
        return Executor(plan, model, self.graphs, self.bench.workers, models=self.bench.models, places=places)

    def _contention(self, graphs: int = 2) -> tuple[float, ...]:
        """Both units run the whole layer, in turns and at once, each pinned to a core of its own."""
        stages = len(self.bench.costs.layer.stages)
        with ExitStack() as stack:
            made = [self.make(Plan((Block((u,), 1, stages),)), {u: i}) for i, u in enumerate(self.pair)]
            pair = [stack.enter_context(executor) for executor in made]
            for executor in pair:
                executor.burst(len(self.graphs))
            ratios = []
            for _ in range(ROUNDS):
                alone = [_per_graph(executor.burst(graphs)) for executor in pair]
                counts = [max(2, round(graphs * max(alone) / ms)) for ms in alone]
                both = _at_once([partial(e.burst, n) for e, n in zip(pair, counts, strict=True)])
                ratios.append(float(np.prod(np.divide([_per_graph(t) for t in both], alone)) ** 0.5))
        return tuple(ratios)

    def _refine(self, at: tuple[int, int], by_hand: Sequence[Plan]) -> None:
        """Measure the calls of the best plans at the sizes that these plans make of the graph.

        Parts of a graph often lie outside the sizes of the tables. So predictions say which plans are worth a closer
        look, and the calls of those are measured by themselves; what that brings to the top is looked at, too.
        """
        bench = self.bench
        for _ in range(REFINEMENTS):
            costs, ranking = bench.costs, bench.planner(slowdown=self.slowdown).rank(*at, also=by_hand)
            looked_at = dict.fromkeys([*ranking.top(SHORTLIST), *by_hand])
            steps = [s for plan in looked_at for group in ranking.steps[ranking.place(plan)] for s in group]
            calls = {(s.unit, c.first, c.last, c.nodes, c.edges) for s in steps for c in s.calls}
            todo = [call for call in sorted(calls) if call not in costs.measured and costs.origin(*call) in GUESSED]
            if not todo:
                break
            bench.costs = costs.with_measured(todo, bench.workers.measure, bench.models)


def _graphs(size: GraphSize, features: int) -> list[Graph]:
    """Different random graphs of one size, the same for the same numbers."""
    from gnnlab.workloads.graphsage import random_inputs

    made = [random_inputs(size.nodes, size.edges, features, seed=seed) for seed in range(GRAPHS)]
    return [Graph(g["x"].numpy(), g["edge_index"].numpy()) for g in made]


def _pair(ranking: Ranking, devices: frozenset[str]) -> tuple[str, ...]:
    """The two units of the CPU that run the whole layer fastest by themselves; empty where there are no two."""
    order = np.argsort(ranking.ms, kind="stable")
    alone = [ranking.plans[i].units[0] for i in order if len(ranking.plans[i].units) == 1]
    on_cpu = [unit for unit in alone if unit not in devices]
    return tuple(on_cpu[:2]) if len(on_cpu) > 1 else ()


def _per_graph(trace: Trace) -> float:
    """ms of work on a graph, median over the stream."""
    return float(np.median([segment.end_ms - segment.start_ms for segment in trace.segments]))


def _at_once(works: Sequence[Callable[[], Trace]]) -> list[Trace]:
    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(lambda work: work(), works))
