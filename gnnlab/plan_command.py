"""`gnnlab plan`: which plan for a graph of some size, and why; or for a graph at hand, and carried out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from rich.table import Table
from rich.text import Text

from gnnlab.lab import discovery
from gnnlab.stages.errors import StageError
from gnnlab.stages.plans import store as plan_store
from gnnlab.stages.plans import study as plan_study
from gnnlab.stages.plans import study_reading as plan_reading
from gnnlab.stages.plans.costs import Shares
from gnnlab.stages.plans.execution import Graph
from gnnlab.stages.plans.lanes import Lanes
from gnnlab.stages.plans.partition import by_ranges
from gnnlab.stages.plans.plans import Plan, parse
from gnnlab.stages.plans.run import carry_out, graph_of
from gnnlab.stages.plans.table_costs import TableCosts

TABLES, MODELS, PLANS = "tables", "exported_models", "plans/compiled_plans.json"
Show = Callable[[object], None]


def run(arguments: Namespace, show: Show) -> int:
    """Print the plan with its reasons; with --execute also what came of it. `show` prints."""
    graph, (nodes, edges) = None, (arguments.nodes, arguments.edges)
    if (arguments.graph is None) == (nodes is None or edges is None) or (arguments.graph and (nodes or edges)):
        raise StageError("which graph? give --nodes and --edges, or --graph, not both")
    if arguments.execute and arguments.graph is None:
        raise StageError("nothing to execute: give a graph, as --graph digits")
    root = discovery.root()
    folder = discovery.output_folder(discovery.parameter_set(arguments.params, root), [], root)
    costs = plan_study.costs(folder / TABLES, arguments.units or ())
    if arguments.graph is not None:
        graph = graph_of(arguments.graph, costs.layer.features)
        nodes, edges = graph.size
    plan = None if arguments.plan is None else parse(arguments.plan)
    plans = _plans(folder, costs, (nodes, edges), arguments.objective, plan, _shares(graph))
    choice = plans.choose(nodes, edges, plan)
    _explain(choice, plans, nodes, edges, show)
    if arguments.execute:
        with Lanes() as lanes:
            done = carry_out(choice.plan, costs, graph, lanes, models=folder / MODELS, parts=arguments.parts)
        show(plan_reading.done(done))
    return 0


def _plans(
    folder: Path, costs: TableCosts, size: tuple[int, int], objective: str, plan: Plan | None, shares: Shares | None
) -> plan_store.Compiled:
    """The compiled plans, where they serve this size; else plans made for it alone."""
    try:
        found, planner = plan_study.kept(folder / PLANS, folder / TABLES, costs, objective=objective)
        if plan is None:
            found.choose(*size)
            return found
    except StageError as error:
        _say(f"planned for this size alone: {error}")
        planner = plan_study.planner(costs, objective=objective, slowdown=_slowdown(folder / PLANS))
    plans = None if plan is None else [plan, *(p for p in planner.candidates if len(p.units) == 1 and p != plan)]
    return plan_store.compile(planner, [size], plans=plans, shares=shares)


def _slowdown(path: Path) -> float:
    """That of units at work at once, as notebook 07 measured it; none where it has not."""
    try:
        return plan_store.read(path).slowdown
    except StageError:
        return 1.0


def _explain(choice: plan_store.Choice, plans: plan_store.Compiled, nodes: int, edges: int, show: Show) -> None:
    show(f"{nodes} nodes, {edges} edges: {choice.plan.words()}")
    show(f"  {choice.plan}")
    show(plan_reading.choice(choice, plans))
    show(_table(plan_reading.choice_table(choice.table), "the plans that it was weighed against"))


def _table(frame: pd.DataFrame, title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in frame:
        table.add_column(str(name), overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def _shares(graph: Graph | None) -> Shares | None:
    """How a graph at hand falls into parts."""
    if graph is None:
        return None
    return lambda ratios: [part.share for part in by_ranges(graph.edge_index, graph.size[0], ratios)]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
