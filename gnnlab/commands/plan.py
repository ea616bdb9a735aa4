"""Choose which processing unit runs which stages of a layer, and carry it out.

The layer is the lab's own, not a model of yours: of --graph it takes the size and the edges.
Needs the tables that notebook 06 makes from those before it: gnnlab run 04 05 06. Notebook 07 executes plans.

examples:
  gnnlab plan --nodes 4000 --edges 9000
  gnnlab plan --graph digits --execute
  gnnlab plan --graph my_graph.npz --execute --plan "1-5 on fast:CPU, 6-7 on openvino:CPU"
  gnnlab plan --nodes 1000 --edges 9000 --plan "1-7 on fast:CPU and openvino:CPU (0.3, 0.7)"     they share each graph
  gnnlab plan --nodes 1000 --edges 5000 --lookup lookup_table.json --bandwidth bandwidth_table.json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnlab.errors import GnnlabError

from .arguments import add_params, count
from .tables import show, table

if TYPE_CHECKING:
    from rich.table import Table

    from gnnlab.planning.costs import Costs
    from gnnlab.planning.planner import Ranking
    from gnnlab.planning.plans import Plan

TABLES, MODELS = "tables", "exported_models"
LISTED = 6  # of the best plans that are printed
GRAPHS = {"throughput": 16, "latency": 1}  # of the stream that a plan is ranked by


def add_arguments(parser: ArgumentParser) -> None:
    add_params(parser)
    parser.add_argument("--nodes", type=count, metavar="N", help="nodes of the graph")
    parser.add_argument("--edges", type=count, metavar="E", help="edges of the graph")
    parser.add_argument("--graph", metavar="GRAPH", help="a graph: a name, random:..., or a file")
    parser.add_argument("--execute", action="store_true", help="run the layer on the graph by the plan")
    parser.add_argument("--plan", metavar="PLAN", help="in words or as [[units, stages, ratios], ...]; default: best")
    parser.add_argument("--units", nargs="+", metavar="UNIT", help="units to plan with (default: this CPU's runtimes)")
    what = "a lookup table in S4's format, of any machine, instead of notebook 06's"
    parser.add_argument("--lookup", metavar="FILE", help=what)
    parser.add_argument("--bandwidth", metavar="FILE", help="the bandwidth table that belongs to it")
    what = "a stream of graphs, or one graph alone (%(default)s)"
    parser.add_argument("--objective", choices=tuple(GRAPHS), default="throughput", help=what)


def run(arguments: Namespace) -> int:
    """Print the plan with its reasons; with --execute also what came of it."""
    from gnnlab.lab import discovery
    from gnnlab.planning import costs as tables
    from gnnlab.planning.execution import carry_out, size_of
    from gnnlab.planning.planner import Planner
    from gnnlab.planning.plans import parse
    from gnnlab.planning.unit_processes import UnitProcesses
    from gnnlab.workloads import graphs
    from gnnlab.workloads.graphsage import inputs_of

    _check(arguments)
    if arguments.lookup:
        costs = tables.read_costs(Path(arguments.lookup), Path(arguments.bandwidth))
        show(_read(costs, arguments.lookup) + _of_elsewhere(costs))
    else:
        folder = discovery.results_of(arguments.params)
        costs = tables.load_costs(folder / TABLES, arguments.units or ())
        show(_read(costs, folder / TABLES))
    nodes, edges = arguments.nodes, arguments.edges
    if arguments.graph is not None:
        data = graphs.load(arguments.graph)
        show(graphs.read_as(data))
        graph = inputs_of(data, costs.layer.features)
        nodes, edges = size_of(graph)
        counts = "its size and where its edges go" if arguments.execute else "its size alone"
        named = f"the lab's own layer ({costs.layer.name}, {costs.layer.features} features)"
        show(f"Planned is {named}, not a model of yours; of the graph counts {counts}.")
    given = [parse(arguments.plan)] if arguments.plan is not None else []
    ranking = Planner(costs, graphs=GRAPHS[arguments.objective]).rank(nodes, edges, also=given)
    (chosen,) = given or [ranking.chosen]
    show(f"{nodes} nodes, {edges} edges: {chosen.words()}")
    show(f"  {chosen}")
    show(_why(chosen, ranking))
    show(_compared(chosen, ranking))
    if arguments.execute:
        with UnitProcesses(chosen.units) as processes:
            done = carry_out(chosen, costs, graph, processes, folder / MODELS)
        off = f"its result differs from the plain layer's by {done['parity_error']:.1e} relative"
        show(f"Executed on {nodes} nodes and {edges} edges, {done['value']:.3g} ms from its start to its end: {off}.")
    return 0


def _check(arguments: Namespace) -> None:
    """`GnnlabError` where the options do not go together."""
    sized = arguments.nodes is not None and arguments.edges is not None
    if (arguments.graph is None) != sized or (arguments.graph and (arguments.nodes or arguments.edges)):
        raise GnnlabError("which graph? give --nodes and --edges, or --graph, not both")
    if arguments.execute and arguments.graph is None:
        raise GnnlabError("nothing to execute: give a graph, as --graph digits")
    if (arguments.lookup is None) != (arguments.bandwidth is None):
        raise GnnlabError("plans from tables need both of them: --lookup FILE and --bandwidth FILE")
    if arguments.lookup and (arguments.execute or arguments.units):
        named = "--execute" if arguments.execute else "--units"
        raise GnnlabError(f"{named} names units of this machine, --lookup tables of processors; give one of the two")


def _read(costs: Costs, tables: Path | str) -> str:
    """What the tables have."""
    least, most = ("/".join(map(str, size)) for size in (costs.sizes[0], costs.sizes[-1]))
    return f"{tables}: times of {', '.join(costs.units)} at {len(costs.sizes)} sizes, from {least} to {most}."


def _of_elsewhere(costs: Costs) -> str:
    text = " They are of the machine that the table was made on; none was measured here. Stages run one by one."
    if any(time.low_ms == time.high_ms for time in costs.known.values()):
        text += " Some entries have no std_ms: their noise is unknown and in no interval below."
    return text


def _why(chosen: Plan, ranking: Ranking) -> str:
    """Its time, where that comes from, and what the best single unit would take."""
    row, graphs = ranking.table.loc[chosen], ranking.planner.graphs
    of = f"a graph in a stream of {graphs}" if graphs > 1 else "for a graph alone"
    text = (
        f"Expected {_ms(ranking, chosen)} ms {of}, planned for this size; times {row['origin']}. The "
        "interval knows of the tables' errors alone; notebook 07 executes plans and corrects for what they take."
    )
    if row["origin"] == "extrapolated":
        text += " Some sizes lie outside those that were measured: take the times with care, or measure larger ones."
    alone = ranking.one_unit_plans[:1]
    if alone and chosen != alone[0]:
        times = ranking.table.loc[alone[0], "ms"] / row["ms"]
        text += f" The best single unit ({alone[0].words()}) takes {times:.3g} times as long."
        text += " One runtime on all cores may be faster than any plan: notebook 07 races that, too."
    return text


def _compared(chosen: Plan, ranking: Ranking) -> Table:
    """The best plans, the chosen one, the best one-unit plan."""
    best = ranking.table.index[:LISTED]
    plans = sorted({*best, chosen, *ranking.one_unit_plans[:1]}, key=ranking.table["ms"].get)
    cells = []
    for plan in plans:
        mark = ", ".join(["chosen"] * (plan == chosen) + ["one unit"] * (len(plan.units) == 1))
        cells.append((plan.words(), _ms(ranking, plan), mark))
    return table("the plans that it was compared with", ("plan", "ms a graph (90 %)", ""), cells)


def _ms(ranking: Ranking, plan: Plan) -> str:
    row = ranking.table.loc[plan]
    return f"{row['ms']:.3g} ({row['low']:.3g} to {row['high']:.3g})"
