"""Plans executed on this machine: how much units slow each other down, what handing over takes, which plan is fastest.

    with Bench(costs, graphs, lanes, models=folder / "exported_models") as bench:
        held = bench.contention("openvino:CPU", "onnxruntime:CPU")
        raced = bench.race(planner, ranking, plans, count=8, budget_s=5)

All plans run on the same lanes, one process for each unit. A plan's time is that of a stream of `count` graphs from the
first that enters to the last that leaves, over `count`; its prediction is that of the same stream, simulated.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling import estimates, timing
from gnnlab.profiling.intervals import median_interval
from gnnlab.profiling.parity import relative_error
from gnnlab.stages.errors import StageError
from gnnlab.stages.plans.costs import Model
from gnnlab.stages.plans.execution import Execution, Graph
from gnnlab.stages.plans.lanes import Lanes
from gnnlab.stages.plans.planning import Planner, Ranking
from gnnlab.stages.plans.plans import Block, Plan
from gnnlab.stages.plans.simulation import Trace
from gnnlab.stages.plans.table_costs import TableCosts

CONTROL = "A/A"
ROUNDS = 12  # of measuring contention; of a race at least, so that half of them have an interval


@dataclass(frozen=True)
class Held:
    """How much longer work takes while another core works, by rounds; `pair`: the units it was measured with."""

    ratios: tuple[float, ...]
    pair: tuple[str, str]

    @property
    def ratio(self) -> float:
        return float(np.median(self.ratios))

    @property
    def ci(self) -> tuple[float, float]:
        return median_interval(self.ratios)

    @property
    def slowdown(self) -> float:
        """What a machine is planned with: no less than 1."""
        return max(1.0, self.ratio)


class Bench:
    """Plans opened on the same lanes for a stream of these graphs; each plan is loaded once."""

    def __init__(self, costs: TableCosts, graphs: Sequence[Graph], lanes: Lanes, *, models: Path | str) -> None:
        self.costs, self.graphs, self.lanes, self.models = costs, list(graphs), lanes, str(models)
        self.model = Model(costs.layer, costs, frozenset(costs.simulated))
        self._stack = ExitStack()
        self._open: dict[tuple, Execution] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def execution(self, plan: Plan, places: Mapping[str, Any]) -> Execution:
        key = (plan, tuple(sorted(places.items())))
        if key not in self._open:
            made = Execution(plan, self.model, self.graphs, self.lanes, models=self.models, places=places)
            self._open[key] = self._stack.enter_context(made)
        return self._open[key]

    def contention(self, first: str, second: str, *, graphs: int = 2, rounds: int = ROUNDS) -> Held:
        """Both run the whole layer, in turns and at once, each pinned to a core of its own."""
        self.lanes.start([first, second])
        stages = len(self.costs.layer.stages)
        pair = [self.execution(Plan((Block((u,), 1, stages),)), {u: i}) for i, u in enumerate((first, second))]
        for execution in pair:
            execution.burst(len(self.graphs))
        ratios = []
        for _ in range(rounds):
            alone = [_per_graph(execution.burst(graphs)) for execution in pair]
            counts = [max(2, round(graphs * max(alone) / ms)) for ms in alone]
            both = _at_once([partial(e.burst, n) for e, n in zip(pair, counts, strict=True)])
            ratios.append(float(np.prod(np.divide([_per_graph(t) for t in both], alone)) ** 0.5))
        return Held(tuple(ratios), (first, second))

    def hand_over(self, plan: Plan, places: Mapping[str, Any], *, graphs: int = 24) -> list[float]:
        """ms between the end of a block and the start of the next on a unit that waits for it, one graph at a time."""
        execution, gaps = self.execution(plan, places), []
        for _ in range(graphs):
            trace = execution.burst(1)
            ends = {b: max(s.end_ms for s in trace.segments if s.block == b) for b in range(len(plan.blocks))}
            gaps += [s.start_ms - ends[s.block - 1] for s in trace.segments if s.block > 0]
        return gaps

    def race(
        self,
        planner: Planner,
        ranking: Ranking,
        plans: Sequence[Plan],
        *,
        count: int = 8,
        budget_s: float = 5.0,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Streams of `count` graphs through each plan, interleaved, each plan's result first held against the others'.

        The first plan is the baseline. Columns: those of `predictions`, and units (names), chosen, baseline, ms,
        ms_low, ms_high (per graph), n, samples (ms per graph, one a round), control (those of the baseline run a second
        time in each round), ratio (baseline's time over this one's), ci_low, ci_high (what the control shows beyond 1
        is in them), error (predicted over executed, less 1), parity_error, notes, noise (the baseline over itself),
        noise_low, noise_high.
        """
        if len(plans) < 2:
            raise StageError(f"a race of {len(plans)} plans; at least two are needed")
        opened = {}
        for plan in plans:
            steps = ranking.steps[ranking.place(plan)]
            opened[plan] = self.execution(plan, planner.places(steps))
            opened[plan].burst(len(self.graphs))  # every graph once: what a runtime does at its first call is no stream
        forms = {str(plan): partial(execution.last, count) for plan, execution in opened.items()}
        base, *rest = forms
        options = {"control": True, "budget_s": budget_s, "seed": seed, "least": ROUNDS}
        found = timing.race(forms[base], {name: forms[name] for name in rest}, **options)
        return _raced(predictions(planner, ranking, plans, count), ranking, plans, found, count)

    def parity(self, plan: Plan, places: Mapping[str, Any]) -> float:
        """The largest relative error of a plan's results against the plain layer, over the graphs of the stream."""
        import torch

        errors = []
        for result in self.execution(plan, places).run(range(len(self.graphs))):
            graph = self.graphs[result.graph]
            with torch.no_grad():
                expected = self.costs.layer.run(torch.from_numpy(graph.x), torch.from_numpy(graph.edge_index))
            errors.append(relative_error(expected.numpy(), result.out, str(plan)))
        return max(errors)


def _per_graph(trace: Trace) -> float:
    """ms of work on a graph, median over the stream."""
    return float(np.median([segment.end_ms - segment.start_ms for segment in trace.segments]))


def _at_once(works: Sequence[Any]) -> list[Trace]:
    found: list[Any] = [None] * len(works)

    def run(place: int) -> None:
        try:
            found[place] = works[place]()
        except StageError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed := [result for result in found if isinstance(result, StageError)]:
        raise failed[0]
    return found


def predictions(planner: Planner, ranking: Ranking, plans: Sequence[Plan], count: int) -> pd.DataFrame:
    """Streams of `count` graphs as the ranking expects them: plan, words, predicted_ms per graph, predicted_low,
    predicted_high (90 %), draws, origin (of the times of blocks)."""
    table, rows = ranking.table(plans).set_index("plan"), []
    for plan in plans:
        found = table.loc[str(plan)]
        streamed = planner.simulate(ranking.steps[ranking.place(plan)], graphs=count).total_ms / count
        scale = streamed / found["ms"]
        ends = {"predicted_low": found["ci_low"] * scale, "predicted_high": found["ci_high"] * scale}
        about = {"draws": ranking.draws.shape[1], "origin": found["origin"]}
        rows.append({"plan": str(plan), "words": plan.words(), "predicted_ms": streamed, **ends, **about})
    return pd.DataFrame(rows)


def _raced(
    predicted: pd.DataFrame,
    ranking: Ranking,
    plans: Sequence[Plan],
    found: Mapping[str, timing.Comparison],
    count: int,
) -> pd.DataFrame:
    rows, control = [], found[CONTROL]
    base, again = (np.array(timed.samples_ms) / count for timed in (control.baseline, control.candidate))
    for plan in plans:
        first = plan == plans[0]
        compared = control if first else found[str(plan)]
        ms = base if first else np.array(compared.candidate.samples_ms) / count
        low, high = median_interval(ms)
        ratio = estimates.ratio(base, ms, None if first else again)
        rows.append(
            {
                "units": plan.units,
                "chosen": plan == ranking.chosen,
                "baseline": first,
                "ms": float(np.median(ms)),
                "ms_low": low,
                "ms_high": high,
                "n": len(ms),
                "samples": ms,
                "control": again,
                "ratio": ratio.value,
                "ci_low": ratio.low,
                "ci_high": ratio.high,
                "parity_error": 0.0 if first else compared.parity_error,
                "notes": "; ".join(compared.notes),
                "noise": control.ratio,
                "noise_low": control.ci[0],
                "noise_high": control.ci[1],
            }
        )
    raced = pd.concat([predicted, pd.DataFrame(rows)], axis=1)
    return raced.assign(error=raced["predicted_ms"] / raced["ms"] - 1)


def gantt(planner: Planner, ranking: Ranking, plan: Plan, executed: Trace) -> pd.DataFrame:
    """The same stream predicted and executed: panel, unit, stages, graph, start_ms, end_ms, origin."""
    predicted = planner.simulate(ranking.steps[ranking.place(plan)], graphs=len(executed.left))
    rows = []
    for panel, trace, origin in (("predicted", predicted, "simulated"), ("executed", executed, "measured")):
        for s in trace.segments:
            block = plan.blocks[s.block]
            stages = f"{block.first}-{block.last}" if block.last > block.first else f"{block.first}"
            at = {"start_ms": s.start_ms, "end_ms": s.end_ms, "origin": origin}
            rows.append({"panel": panel, "unit": s.unit, "stages": stages, "graph": s.graph, **at})
    return pd.DataFrame(rows).sort_values(["panel", "start_ms"], ascending=[False, True], ignore_index=True)
