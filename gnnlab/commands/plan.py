"""`gnnlab plan`: which plan for a graph of some size, and why; or for a graph at hand, and carried out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from gnnlab.errors import GnnlabError
from gnnlab.lab import runner
from gnnlab.planning import store as plan_store
from gnnlab.planning import table_costs
from gnnlab.planning.calibration import Calibration
from gnnlab.planning.costs import Shares
from gnnlab.planning.execution import carry_out
from gnnlab.planning.partition import Graph, by_ranges
from gnnlab.planning.planning import planner_of
from gnnlab.planning.plans import Plan, parse
from gnnlab.planning.read_costs import ReadCosts, read_costs
from gnnlab.planning.store import Choice, Compiled
from gnnlab.planning.table_costs import TableCosts
from gnnlab.planning.unit_workers import UnitWorkers
from gnnlab.workloads import graphs

from .tables import table

TABLES, MODELS, PLANS = "tables", "exported_models", "plans/compiled_plans.json"
LISTED = 6  # plans that are printed beside the chosen one
TIME_OF = {"throughput": "from graph to graph", "latency": "for a graph alone"}
Show = Callable[[object], None]


def run(arguments: Namespace, show: Show) -> int:
    """Print the plan with its reasons; with --execute also what came of it. `show` prints."""
    graph, (nodes, edges) = None, (arguments.nodes, arguments.edges)
    if (arguments.graph is None) == (nodes is None or edges is None) or (arguments.graph and (nodes or edges)):
        raise GnnlabError("which graph? give --nodes and --edges, or --graph, not both")
    if arguments.execute and arguments.graph is None:
        raise GnnlabError("nothing to execute: give a graph, as --graph digits")
    read = _read(arguments)
    folder = None if read else runner.output_folder(arguments.params)
    costs = read or table_costs.load_costs(folder / TABLES, arguments.units or ())
    if arguments.graph is not None:
        graph = Graph.of(graphs.load(arguments.graph), costs.layer.features)
        nodes, edges = graph.size
    plan = None if arguments.plan is None else parse(arguments.plan)
    size = (nodes, edges)
    if read:
        plans = _planned(read, size, arguments.objective, plan, _shares(graph))
        show(_whose(read, arguments.lookup))
    else:
        plans = _plans(folder, costs, size, arguments.objective, plan, _shares(graph))
    choice = plans.choose(nodes, edges, plan)
    if graph is not None:
        counts = "where its edges go" if arguments.execute else "how its edges would be shared out"
        named = f"the lab's own layer ({costs.layer.name}, {costs.layer.features} features)"
        show(f"Planned is {named}, not a model of yours; of the graph counts its size and {counts}.")
    show(f"{nodes} nodes, {edges} edges: {choice.plan.words()}")
    show(f"  {choice.plan}")
    show(_why(choice, plans))
    show(_weighed(choice))
    if arguments.execute:
        with UnitWorkers() as workers:
            model = planner_of(costs).model
            done = carry_out(choice.plan, model, graph, workers, models=folder / MODELS, parts=arguments.parts)
        how = (
            f"{done.ms:.3g} ms from its start to its end"
            if done.parts == 1
            else f"cut by METIS into {done.parts} parts and streamed"
        )
        off = f"its result differs from the plain layer's by {done.parity_error:.1e} relative"
        show(f"Executed once on {done.size[0]} nodes and {done.size[1]} edges, {how}: {off}.")
    return 0


def _plans(
    folder: Path, costs: TableCosts, size: tuple[int, int], objective: str, plan: Plan | None, shares: Shares | None
) -> Compiled:
    """The compiled plans, where they serve this size; else plans made for it alone."""
    calibration = Calibration()  # notebook 07 makes one
    try:
        calibration = plan_store.read(folder / PLANS).calibration
        planner = planner_of(costs, objective=objective, calibration=calibration)
        found = plan_store.read(folder / PLANS, plan_store.fingerprint_of(planner, costs.made_from))
        if plan is None:
            found.choose(*size)
            return found
    except GnnlabError as error:
        print(f"planned for this size alone: {error}", file=sys.stderr, flush=True)
    return _planned(costs, size, objective, plan, shares, calibration)


def _planned(
    costs: TableCosts | ReadCosts,
    size: tuple[int, int],
    objective: str,
    plan: Plan | None,
    shares: Shares | None,
    calibration: Calibration | None = None,
) -> Compiled:
    """Plans for this size alone: all, or the given one beside those of one unit."""
    planner = planner_of(costs, objective=objective, calibration=calibration)
    plans = None if plan is None else [plan, *(p for p in planner.candidates if len(p.units) == 1 and p != plan)]
    return plan_store.compile(planner, [size], plans=plans, shares=shares)


def _read(arguments: Namespace) -> ReadCosts | None:
    """The costs of two files in S4's format, where they are given."""
    if arguments.lookup is None and arguments.bandwidth is None:
        return None
    if arguments.lookup is None or arguments.bandwidth is None:
        raise GnnlabError("plans from tables need both of them: --lookup FILE and --bandwidth FILE")
    if arguments.execute or arguments.units:
        named = "--execute" if arguments.execute else "--units"
        raise GnnlabError(f"{named} names units of this machine, --lookup tables of processors; give one of the two")
    return read_costs(Path(arguments.lookup), Path(arguments.bandwidth))


def _whose(costs: ReadCosts, lookup: str) -> str:
    text = (
        f"Times of {', '.join(costs.units)} read from {lookup}, of the machine that it was made on; none was measured "
        "here. Stages run one by one, as the table has them."
    )
    if not costs.noise_known:
        text += " Some entries have no std_ms: their noise is unknown and in no interval below."
    return text


def _why(choice: Choice, plans: Compiled) -> str:
    """Its time, where that comes from, and what the best single unit would take."""
    sizes = len(plans.classes)
    where = f"looked up between {sizes} compiled sizes" if sizes > 1 else "planned for this size"
    text = (
        f"Expected {_ms(choice.ms, choice.low, choice.high)} ms {TIME_OF[plans.objective]}, {where}; times "
        f"{choice.origin}, {_learnt(plans.calibration)}."
    )
    if choice.origin == "extrapolated":
        text += " Some sizes lie outside those that were measured: take the times with care, or measure larger ones."
    alone = choice.table[choice.table["units"] == 1].head(1).to_dict("records")
    if alone and choice.plan.words() != alone[0]["words"]:
        text += f" The best single unit ({alone[0]['words']}) takes {alone[0]['ms'] / choice.ms:.3g} times as long."
    return text


def _learnt(calibration: Calibration) -> str:
    """What executed plans are behind the interval."""
    if not calibration.streams:
        return "no plan executed yet, so the interval knows of the tables' errors alone (notebook 07 executes some)"
    sizes = len({stream.size for stream in calibration.streams})
    return f"interval by what {len({(s.size, s.plan) for s in calibration.streams})} plans took at {sizes} other sizes"


def _weighed(choice: Choice) -> Table:
    """The plans that it was chosen from: the best, the chosen one, the best one-unit plan."""
    every = choice.table
    alone = every[every["units"] == 1].head(1).index
    shown = every.loc[sorted({*every.head(LISTED).index, *every.index[every["chosen"]], *alone})]
    cells = []
    for row in shown.to_dict("records"):
        mark = ", ".join(["chosen"] * bool(row["chosen"]) + ["one unit"] * (row["units"] == 1))
        cells.append((row["words"], _ms(row["ms"], row["low"], row["high"]), f"{100 * row['regret_p95']:.0f} %", mark))
    columns = ("plan", "ms a graph (90 %)", "regret, 1 draw in 20", "")
    return table("the plans that it was weighed against", columns, cells, boxed=False)


def _ms(middle: float, low: float, high: float) -> str:
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def _shares(graph: Graph | None) -> Shares | None:
    """How a graph at hand falls into parts."""
    if graph is None:
        return None
    return lambda ratios: [part.share for part in by_ranges(graph.edge_index, graph.size[0], ratios)]
