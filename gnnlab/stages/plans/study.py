"""What notebook 07 asks: the tables as costs, a planner of this machine, plans worth executing, machines one has not.

costs = plan_study.costs(folder, units)                  # the tables of notebook 06
planner = plan_study.planner(costs, slowdown=held.slowdown)
ranking = planner.rank(1000, 5000)
plan_study.contenders(ranking)
plan_study.scenarios(costs, "openvino:CPU", 1000, 5000)
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from gnnlab.stages.bandwidth.tables import TIMES, TRANSFERS, load_tables
from gnnlab.stages.campaign.sizes import Size
from gnnlab.stages.errors import StageError
from gnnlab.stages.plans import store as plan_store
from gnnlab.stages.plans.bench import Bench, Held, gantt, predictions
from gnnlab.stages.plans.costs import Model
from gnnlab.stages.plans.execution import Graph
from gnnlab.stages.plans.lanes import Lanes
from gnnlab.stages.plans.planning import Planner, Ranking
from gnnlab.stages.plans.plans import Plan, Space
from gnnlab.stages.plans.simulation import Machine
from gnnlab.stages.plans.table_costs import TableCosts
from gnnlab.stages.units import registry as known_units

SHORTLIST, LOOKS = 6, 3  # plans looked at more closely, and how often
SLOW_TO_LOAD = ("torch-compiled:CPU",)  # compiles each call for half a minute: only where it is named
GUESSED = ("interpolated", "extrapolated")
NEAR = 1.5  # one-unit plans up to so many times the best one's predicted time are worth executing


def costs(folder: Path, units: Sequence[str] = ()) -> TableCosts:
    """The tables of notebook 06 in `folder`, for those of `units` that have times; none named: this CPU's runtimes.

    Raises:
        StageError: the tables are missing, damaged or of another schema, a unit is not known, or none has times.
    """
    predictor, transfers = load_tables(folder)
    wanted = [known_units.find(u).name for u in units] or [u for u in predictor.units if _is_cpu(u)]
    chosen = tuple(unit for unit in predictor.units if unit in wanted)  # in one order, however they were named
    if not chosen:
        raise StageError(
            f"no times of {', '.join(wanted) or 'a runtime of this CPU'} in {folder}; it has those of "
            f"{', '.join(predictor.units)} (notebooks 05 and 06 measure the others)"
        )
    return TableCosts(predictor.layer, predictor, transfers, chosen)


def compiled(path: Path, tables: Path, made: Planner, sizes: Sequence[tuple[int, int]]) -> plan_store.Compiled:
    """The plans kept at `path`, if they were made from the same; else they are compiled for `sizes` and kept there."""
    fingerprint = _fingerprint(tables, made)
    try:
        found = plan_store.read(path, fingerprint)
        if {(c.nodes, c.edges) for c in found.classes} == set(sizes):
            return found
    except StageError:  # missing, damaged or stale: all the same to who can make it anew
        pass
    found = plan_store.compile(made, sizes, fingerprint=fingerprint)
    plan_store.write(path, found)
    return found


def kept(path: Path, tables: Path, costs: TableCosts, **options: Any) -> tuple[plan_store.Compiled, Planner]:
    """The plans kept at `path` and the planner that made them, with the slowdown that was measured then.

    Raises:
        StageError: they are missing, damaged, or were made from other tables, units or code.
    """
    made = planner(costs, slowdown=plan_store.read(path).slowdown, **options)
    return plan_store.read(path, _fingerprint(tables, made)), made


def _fingerprint(tables: Path, made: Planner) -> str:
    digests = {name: hashlib.sha256((tables / name).read_bytes()).hexdigest() for name in (TIMES, TRANSFERS)}
    return plan_store.of(made, digests)


def _is_cpu(unit: str) -> bool:
    found = known_units.find(unit)
    return found.processor == "CPU" and found.origin == "measured" and unit not in SLOW_TO_LOAD


def planner(
    costs: TableCosts,
    *,
    slowdown: float = 1.0,
    objective: str = "throughput",
    ratios: Sequence[float] = (0.3, 0.5, 0.7),
    max_blocks: int = 2,
    cores: int | None = None,
    draws: int = 400,
    seed: int = 0,
) -> Planner:
    """Plans of these units on this machine, where any two that are no NPU may share a graph."""
    sharing = [frozenset(pair) for pair in itertools.combinations(costs.units, 2) if _may_share(*pair)]
    stages = len(costs.layer.stages)
    unable = {
        u: set(range(1, stages + 1)) - {s for a, b in costs.blocks(u) for s in range(a, b + 1)} for u in costs.units
    }
    space = Space(costs.units, stages, unable, tuple(sharing), tuple(ratios))
    machine = Machine(cores or core_count(), costs.devices, slowdown)
    return Planner(
        Model(costs.layer, costs, frozenset(costs.simulated)), space, machine, objective, max_blocks, draws, seed
    )


def _may_share(first: str, second: str) -> bool:
    return "NPU" not in {known_units.find(unit).processor for unit in (first, second)}


def core_count() -> int:
    """Cores that this process may use."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count() or 1


def stream(nodes: int, edges: int, features: int, count: int = 3) -> list[Graph]:
    """So many different random graphs of one size, the same for the same numbers."""
    from gnnlab.workloads.graphsage import random_inputs

    made = [random_inputs(nodes, edges, features, seed=seed) for seed in range(count)]
    return [Graph(g["x"].numpy(), g["edge_index"].numpy()) for g in made]


def contenders(ranking: Ranking, *, top: int = 2, others: int = 1, seed: int = 0) -> list[Plan]:
    """Plans worth executing: the best one-unit plan, the chosen one, the `top` by expected time, near one-unit plans.

    And `others` drawn from the better half, so that predictions are not judged by winners alone.
    """
    order = np.argsort(ranking.ms, kind="stable")
    one_unit = [ranking.plans[i] for i in order if len(ranking.plans[i].units) == 1]
    least = ranking.ms[ranking.place(one_unit[0])] if one_unit else np.inf
    near = [plan for plan in one_unit if ranking.ms[ranking.place(plan)] <= NEAR * least]
    first = [ranking.one_unit, ranking.chosen, *(ranking.plans[i] for i in order[:top]), *near]
    half = [ranking.plans[i] for i in order[: len(order) // 2 + 1] if ranking.plans[i] not in first]
    drawn = np.random.default_rng(seed).permutation(len(half))[:others]
    return list(dict.fromkeys([*first, *(half[i] for i in drawn)]))


def scenarios(costs: TableCosts, host: str, nodes: int, edges: int, **options: Any) -> pd.DataFrame:
    """The chosen plan of a CPU unit beside a simulated GPU and NPU, and what becomes of it where something changes.

    Columns: scenario, plan, words, ms, ci_low, ci_high, probability, origin, gain, one_unit (in words), one_unit_ms,
    one_unit_low, one_unit_high.
    """
    base = replace(costs, units=(host,), _known={}).with_simulated()
    cases = {
        "as published": base,
        "half the bandwidth": base.with_bandwidth(0.5),
        "an NPU that runs stages 3 and 4": base.with_simulated(npu_cannot=()),
    }
    rows = []
    for name, changed in cases.items():
        ranking = planner(changed, **options).rank(nodes, edges)
        table = ranking.table().set_index("plan")
        row, alone = table.loc[str(ranking.chosen)], table.loc[str(ranking.one_unit)]
        kept = row[["words", "ms", "ci_low", "ci_high", "probability", "origin"]].to_dict()
        single = {"one_unit": "words", "one_unit_ms": "ms", "one_unit_low": "ci_low", "one_unit_high": "ci_high"}
        kept |= {new: alone[old] for new, old in single.items()}
        rows.append({"scenario": name, "plan": row.name, **kept, "gain": alone["ms"] / row["ms"]})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Studied:
    """What was measured, by size ("1000/5000"): contention, rankings, races of plans, streams of the chosen plan, gaps.

    `costs`: with what was measured on the way; `raced`: as `Bench.race` gives it, with a column size; `by_tables`: what
    the tables alone, before any call was measured at a size, predict of the same streams, as `bench.predictions` and
    with columns size, fitted (do the tables have times at that size?); `charts`: as `gantt`; `gaps_ms`: of handing on,
    all sizes.
    """

    costs: TableCosts
    held: Mapping[str, Held]
    planners: Mapping[str, Planner]
    rankings: Mapping[str, Ranking]
    raced: pd.DataFrame
    by_tables: pd.DataFrame
    charts: Mapping[str, pd.DataFrame]
    gaps_ms: tuple[float, ...]

    @property
    def slowdown(self) -> float:
        return float(np.median([held.slowdown for held in self.held.values()] or [1.0]))


def measure(
    costs: TableCosts,
    sizes: Sequence[Size],
    lanes: Lanes,
    *,
    models: Path | str,
    count: int = 8,
    top: int = 2,
    others: int = 1,
    budget_s: float = 5.0,
    seed: int = 0,
    **options: Any,
) -> Studied:
    """At each size: how much units slow each other down, all plans ranked with it, the best of them measured and raced.

    `count`: graphs of a stream, `options`: of `planner`.

    Raises:
        StageError: no sizes, times are missing, or a unit failed.
    """
    if not sizes:
        raise StageError("no sizes to plan for; give at least one")
    lanes.start(list(costs.units))
    tables_alone, known = costs, set(costs.sizes)
    held, planners, rankings, raced, by_tables, charts, gaps = {}, {}, {}, [], [], {}, []
    for size in sizes:
        name, graphs = str(size), stream(size.nodes, size.edges, costs.layer.features)
        with Bench(costs, graphs, lanes, models=models) as bench:
            if pair := _pair(planner(costs, seed=seed, **options).rank(size.nodes, size.edges), costs.devices):
                held[name] = bench.contention(*pair)
            slowdown = held[name].slowdown if pair else 1.0
            costs = refined(costs, size, models=models, slowdown=slowdown, seed=seed, **options)
            planners[name] = made = planner(costs, slowdown=slowdown, seed=seed, **options)
            rankings[name] = ranking = made.rank(size.nodes, size.edges)
            plans = contenders(ranking, top=top, others=others, seed=seed)
            raced.append(bench.race(made, ranking, plans, count=count, budget_s=budget_s, seed=seed).assign(size=name))
            before = planner(tables_alone, slowdown=slowdown, seed=seed, **options)
            guessed = predictions(before, before.rank(size.nodes, size.edges, plans=plans), plans, count)
            by_tables.append(guessed.assign(size=name, fitted=(size.nodes, size.edges) in known))
            places = made.places(ranking.steps[ranking.place(ranking.chosen)])
            charts[name] = gantt(made, ranking, ranking.chosen, bench.execution(ranking.chosen, places).burst(count))
            if len(ranking.chosen.blocks) > 1:
                gaps += bench.hand_over(ranking.chosen, places)
    every = (pd.concat(frames, ignore_index=True) for frames in (raced, by_tables))
    return Studied(costs, held, planners, rankings, *every, charts, tuple(gaps))


def refined(costs: TableCosts, size: Size, *, models: Path | str, count: int = SHORTLIST, **options: Any) -> TableCosts:
    """The costs with the calls of the best plans measured at the sizes that these plans make of the graph.

    Parts of a graph often lie outside the sizes of the tables. So predictions say which plans are worth a closer look,
    and the calls of those are measured by themselves; what that brings to the top is looked at, too, a few times over.
    """
    for _ in range(LOOKS):
        ranking = planner(costs, **options).rank(size.nodes, size.edges)
        steps = [step for plan in ranking.top(count) for group in ranking.steps[ranking.place(plan)] for step in group]
        calls = {(step.unit, c.first, c.last, c.nodes, c.edges) for step in steps for c in step.calls}
        todo = [call for call in sorted(calls) if call not in costs.measured and costs.origin(*call) in GUESSED]
        if not todo:
            break
        costs = costs.with_measured(todo, models)
    return costs


def _pair(ranking: Ranking, devices: frozenset[str]) -> tuple[str, str] | None:
    """The two units of the CPU that run the whole layer fastest by themselves; None where there are no two."""
    order = np.argsort(ranking.ms, kind="stable")
    alone = [ranking.plans[i].units[0] for i in order if len(ranking.plans[i].units) == 1]
    on_cpu = [unit for unit in alone if unit not in devices]
    return (on_cpu[0], on_cpu[1]) if len(on_cpu) > 1 else None
