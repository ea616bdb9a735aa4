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

`peer_forms` are what a user of OpenVINO tries first: the whole layer as one model, placed and overlapped by the
runtime. HETERO and AUTO have every device that OpenVINO sees here; streams are what its throughput hint makes of this
CPU. The lab's hand-built model of the layer is run in the same ways. Threads are OpenVINO's own choice, as a user would
leave it: the plans beside them have all cores, too, while a plan of one unit has one core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
import pandas as pd

from gnnlab import machine
from gnnlab.campaign.cells import Cell, Settings, measure, model_for
from gnnlab.campaign.sizes import GraphSize
from gnnlab.export.padding import Feed
from gnnlab.measure import timing
from gnnlab.measure.race import RTOL_FLOAT32, require_equal
from gnnlab.openvino_core import HINTS, openvino_core
from gnnlab.planning.costs import Costs
from gnnlab.planning.execution import Executor, Tensors, carry_out, plain, size_of
from gnnlab.planning.planner import Planner, conditions
from gnnlab.planning.plans import Plan, parse
from gnnlab.planning.steps import flow
from gnnlab.planning.unit_processes import UnitProcesses
from gnnlab.prediction.predictor import EXTRAPOLATED, INTERPOLATED, MEASURED, Prediction
from gnnlab.units import registry
from gnnlab.workloads.graphsage import inputs_of, random_inputs

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from gnnlab.workloads.staged import StagedLayer

GRAPHS = 3  # different random ones of a stream, in turn
ONE_UNIT_WITHIN = 1.5  # one-unit plans within so many times the best of them are raced
CALIBRATION_ROUNDS = 5  # streams of each plan of a calibration
CALL_BUDGET_S = 0.1  # for the time of a call by itself
EXPORTED, HAND_BUILT = "openvino:CPU", "openvino-handbuilt:CPU"
PEERS = {  # forms of `peer_forms`: the unit whose model of all stages it runs, on which devices, with which hint
    "HETERO": (EXPORTED, "HETERO:{all}", "LATENCY"),
    "AUTO": (EXPORTED, "AUTO:{all}", "LATENCY"),
    "throughput streams": (EXPORTED, "CPU", "THROUGHPUT"),
    "hand-built, all cores": (HAND_BUILT, "CPU", "LATENCY"),
    "hand-built, throughput streams": (HAND_BUILT, "CPU", "THROUGHPUT"),
}


class Bench(AbstractContextManager):
    """The units of `costs` at work. `costs` grows by what is measured on the way, `trials` by the sizes tried; `count`:
    graphs of a stream; `seed`: of orders and of plans drawn; `options`: fields of `Planner`."""

    def __init__(self, costs: Costs, models: Path | str, *, count: int = 8, seed: int = 0, **options: Any) -> None:
        self.costs = self.tables_alone = costs
        self.models, self.count, self.seed, self.options = str(models), count, seed, {"graphs": count, **options}
        self.calibration: pd.DataFrame | None = None
        self.processes = UnitProcesses(costs.units)
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
        self.calibration = pd.concat([Trial(self, size).drawn_streams(drawn) for size in sizes], ignore_index=True)
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
        return carry_out(plan, self.costs, inputs_of(graph, self.costs.layer.features), self.processes, self.models)


class Trial:
    """Plans at one size, those `by_hand` among them. `by_tables`: ranked before anything was measured at this size,
    `ranking`: with what was since. `candidates`: what the ranking and the reader propose; `contenders`: what is raced,
    these and others."""

    def __init__(self, bench: Bench, size: GraphSize, by_hand: Sequence[Plan] = ()) -> None:
        self.bench, self.size, self.nodes, self.edges = bench, str(size), size.nodes, size.edges
        self.by_hand = tuple(by_hand)
        self.graphs = [
            random_inputs(size.nodes, size.edges, bench.costs.layer.features, seed) for seed in range(GRAPHS)
        ]
        self.candidates: list[Plan] = []
        self.contenders: list[Plan] = []
        self._executors: dict[Plan, Executor] = {}
        tables = replace(bench.planner(), costs=bench.tables_alone)
        self.by_tables = self.ranking = tables.rank(self.nodes, self.edges, self.by_hand)

    def propose(self, near: float = 1.2, most: int = 6, others: int = 1) -> None:
        """Set `candidates`: plans within `near` times the best expected time, `most` at most, the best of one unit, and
        those by hand. Set `contenders`, the best of one unit first: these, one-unit plans near it, and `others` drawn
        from the better half, so that the ranking is not judged by its winners alone. All their calls are timed."""
        for _ in range(2):  # with the calls of the first timed, others may be near the best
            ms = self.ranking.table["ms"]
            best = ms.index[ms <= near * ms.iloc[0]][:most]
            self.candidates = list(dict.fromkeys([*best, *self.ranking.one_unit_plans[:1], *self.by_hand]))
            self.time_calls(self.candidates)
        ranking, ms = self.ranking, self.ranking.table["ms"]
        alone = [plan for plan in ranking.one_unit_plans if ms[plan] <= ONE_UNIT_WITHIN * ms[ranking.one_unit]]
        plans = list(dict.fromkeys([ranking.one_unit, *self.candidates, *alone]))
        half = [plan for plan in ms.index[: len(ms) // 2 + 1] if plan not in plans]
        self.contenders = plans + _drawn(half, others, np.random.default_rng(self.bench.seed))
        self.time_calls(self.contenders)

    def time_calls(self, plans: Sequence[Plan]) -> None:
        """Measure the calls of these plans by themselves in the processes that plans use, where the tables only predict
        them, and rank anew."""
        bench, costs = self.bench, self.bench.costs
        known = dict(costs.known)
        for call in sorted({call for plan in plans for work in self.ranking.works[plan] for call in work.calls}):
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
            self.ranking = bench.planner().rank(self.nodes, self.edges, self.by_hand)

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
        fitted = "yes" if (self.nodes, self.edges) in self.bench.tables_alone.sizes else "no"
        return pd.concat([rows, before], axis=1).assign(size=self.size, fitted=fitted)

    def drawn_streams(self, count: int) -> pd.DataFrame:
        """Plans drawn at random, executed in turns (`planner.CALIBRATION`): what they took over what the tables expect
        of them, and over what is expected once their calls were timed."""
        random = np.random.default_rng([self.bench.seed, self.nodes, self.edges])  # other plans at each size
        half = self.ranking.table.index[: len(self.ranking.table) // 2 + 1]
        plans = _drawn(self.ranking.one_unit_plans, count // 2, random)
        plans += _drawn([plan for plan in half if len(plan.units) > 1], count - len(plans), random)
        self.time_calls(plans)
        streams = {plan: self.stream(plan) for plan in plans}
        options = {"least": CALIBRATION_ROUNDS, "seed": self.bench.seed, "control": len(streams) < 2}
        raced = timing.race(streams, budget_s=0.0, **options)
        self.close()
        ms = np.array([raced[plan].median_ms for plan in plans]) / self.bench.count
        about = pd.DataFrame({"size": self.size, "several": [len(plan.units) > 1 for plan in plans]})
        expected = [ranking.table.loc[plans].reset_index() for ranking in (self.by_tables, self.ranking)]
        each = [about.assign(timed=table["origin"] == MEASURED, ratio=ms / table["ms"]) for table in expected]
        return pd.concat(each, ignore_index=True)

    def chart(self, plan: Plan) -> pd.DataFrame:
        """The same stream predicted and executed, for a Gantt chart: panel, unit, graph, start_ms, end_ms, origin."""
        executed = self.executor(plan).stream([place % GRAPHS for place in range(self.bench.count)])
        predicted = self.ranking.stream(plan).assign(panel="predicted", origin="simulated")
        return pd.concat([predicted, executed.assign(panel="executed", origin="measured")], ignore_index=True)


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


# ---- OpenVINO's own ways ---------------------------------------------------------------------------------------------


def peer_forms(
    layer: StagedLayer, graphs: Sequence[Tensors], models: Path | str, count: int
) -> dict[str, Callable[[], np.ndarray]]:
    """`PEERS` as forms: `count` graphs in turn, the last result; those are left out whose model of the whole layer was
    not exported. What each makes of every graph has been held against the plain layer.

    Raises:
        GnnlabError: a result differs.
    """
    nodes, edges = size_of(graphs[0])
    named = [{name: tensor.numpy() for name, tensor in graph.items()} for graph in graphs]
    devices = ",".join(sorted(openvino_core().available_devices, key=lambda name: name.startswith("CPU")))
    forms, options = {}, {"INFERENCE_PRECISION_HINT": HINTS["float32"]}
    for name, (unit, device, hint) in PEERS.items():
        cell = Cell(layer.name, layer.features, nodes, edges, 1, len(layer.stages), unit)
        artefact = model_for(registry.find(unit), cell, str(models))
        if artefact is None or not artefact.ready:
            continue
        feeds = [Feed(layer, artefact, nodes, edges).inputs(values) for values in named]
        hints = options | {"PERFORMANCE_HINT": hint}
        compiled = openvino_core().compile_model(artefact.path, device.format(all=devices), hints)
        run = partial(_streamed if hint == "THROUGHPUT" else _in_turn, compiled, feeds, nodes)
        for place, graph in enumerate(graphs):
            require_equal(plain(layer, graph), run(place + 1), RTOL_FLOAT32, name)
        forms[name] = partial(run, count)
    return forms


def conditions_of(form: str) -> dict[str, Any]:
    """What a plan, by its words, or one of `PEERS` computes under, as fields of a row."""
    if form in PEERS:
        return {
            "runtime": f"OpenVINO {machine.version('openvino')}",
            "precision": "float32",
            "threads": machine.cores(),
        }
    return conditions(parse(form).units)


def _in_turn(compiled: ov.CompiledModel, feeds: Sequence[dict[str, np.ndarray]], nodes: int, count: int) -> np.ndarray:
    """One graph after the other, as a user calls a compiled model. Rows behind the nodes are a hand-built model's."""
    request = compiled.create_infer_request()
    for place in range(count):
        request.infer(feeds[place % len(feeds)], share_inputs=True, share_outputs=True)
    return np.array(request.get_output_tensor().data[:nodes])


def _streamed(compiled: ov.CompiledModel, feeds: Sequence[dict[str, np.ndarray]], nodes: int, count: int) -> np.ndarray:
    """As many requests at once as the hint asks for."""
    last: list[np.ndarray] = []
    queue = ov.AsyncInferQueue(compiled)
    queue.set_callback(lambda request, keep: keep and last.append(np.array(request.get_output_tensor().data)))
    for place in range(count):
        queue.start_async(feeds[place % len(feeds)], place == count - 1, share_inputs=True)
    queue.wait_all()
    return last[0][:nodes]
