"""Choose which processing unit runs which stages of a layer, and carry it out.

The layer is the lab's own, not a model of yours: of --graph it takes the size and the edges.
Needs the tables of notebook 06; notebook 07 executes plans.

examples:
  gnnlab plan --nodes 4000 --edges 9000
  gnnlab plan --graph digits --execute
  gnnlab plan --graph my_graph.npz --execute --parts 8       cut by METIS, its parts streamed
  gnnlab plan --nodes 1000 --edges 9000 --plan "1-5 on fast:CPU, 6-7 on openvino:CPU"
  gnnlab plan --nodes 1000 --edges 5000 --lookup lookup_table.json --bandwidth bandwidth_table.json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnlab.errors import GnnlabError

from .arguments import add_params, count, graph_or_file
from .tables import show, table

if TYPE_CHECKING:
    from rich.table import Table

    from gnnlab.planning.planning import Ranking
    from gnnlab.planning.plans import Plan
    from gnnlab.planning.read_costs import ReadCosts

TABLES, MODELS = "tables", "exported_models"
LISTED = 6  # of the best plans that are printed
TIME_OF = {"throughput": "from graph to graph", "latency": "for a graph alone"}


def add_arguments(parser: ArgumentParser) -> None:
    add_params(parser)
    parser.add_argument("--nodes", type=count, metavar="N", help="nodes of the graph")
    parser.add_argument("--edges", type=count, metavar="E", help="edges of the graph")
    parser.add_argument("--graph", type=graph_or_file, metavar="GRAPH", help="a graph: a name, random:..., or a file")
    parser.add_argument("--execute", action="store_true", help="run the layer on the graph by the plan")
    parser.add_argument("--parts", type=count, default=1, metavar="N", help="cut the graph into parts (%(default)s)")
    parser.add_argument("--plan", metavar="PLAN", help="in words or as [[units, stages, ratios], ...]; default: best")
    parser.add_argument("--units", nargs="+", metavar="UNIT", help="units to plan with (default: this CPU's runtimes)")
    parser.add_argument(
        "--lookup", metavar="FILE", help="a lookup table in S4's format, of any machine, instead of notebook 06's"
    )
    parser.add_argument("--bandwidth", metavar="FILE", help="the bandwidth table that belongs to it")
    parser.add_argument(
        "--objective",
        choices=tuple(TIME_OF),
        default="throughput",
        help="a stream of graphs, or one graph alone (%(default)s)",
    )


def run(arguments: Namespace) -> int:
    """Print the plan with its reasons; with --execute also what came of it."""
    from gnnlab.lab import runner
    from gnnlab.planning import table_costs
    from gnnlab.planning.execution import carry_out
    from gnnlab.planning.partition import Graph, by_ranges
    from gnnlab.planning.planning import planner_of
    from gnnlab.planning.plans import parse
    from gnnlab.planning.unit_workers import UnitWorkers
    from gnnlab.workloads import graphs

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
    given = None if arguments.plan is None else parse(arguments.plan)
    if read:
        show(_source(read, arguments.lookup))

    def shares(ratios: Sequence[float]) -> list[float]:
        """How the graph at hand falls into parts."""
        return [part.share for part in by_ranges(graph.edge_index, nodes, ratios)]

    planner = planner_of(costs, objective=arguments.objective)
    plans = given and [given, *(plan for plan in planner.candidates if len(plan.units) == 1 and plan != given)]
    ranking = planner.rank(nodes, edges, plans=plans, shares=graph and shares)
    chosen = given or ranking.chosen
    if graph is not None:
        counts = "where its edges go" if arguments.execute else "how its edges would be shared out"
        named = f"the lab's own layer ({costs.layer.name}, {costs.layer.features} features)"
        show(f"Planned is {named}, not a model of yours; of the graph counts its size and {counts}.")
    show(f"{nodes} nodes, {edges} edges: {chosen.words()}")
    show(f"  {chosen}")
    show(_why(chosen, ranking, arguments.objective))
    show(_compared(chosen, ranking))
    if arguments.execute:
        with UnitWorkers() as workers:
            done = carry_out(chosen, planner.model, graph, workers, models=folder / MODELS, parts=arguments.parts)
        how = (
            f"{done.ms:.3g} ms from its start to its end"
            if done.parts == 1
            else f"cut by METIS into {done.parts} parts and streamed"
        )
        off = f"its result differs from the plain layer's by {done.parity_error:.1e} relative"
        show(f"Executed once on {done.size[0]} nodes and {done.size[1]} edges, {how}: {off}.")
    return 0


def _read(arguments: Namespace) -> ReadCosts | None:
    """The costs of two files in S4's format, where they are given."""
    from gnnlab.planning.read_costs import read_costs

    if arguments.lookup is None and arguments.bandwidth is None:
        return None
    if arguments.lookup is None or arguments.bandwidth is None:
        raise GnnlabError("plans from tables need both of them: --lookup FILE and --bandwidth FILE")
    if arguments.execute or arguments.units:
        named = "--execute" if arguments.execute else "--units"
        raise GnnlabError(f"{named} names units of this machine, --lookup tables of processors; give one of the two")
    return read_costs(Path(arguments.lookup), Path(arguments.bandwidth))


def _source(costs: ReadCosts, lookup: str) -> str:
    text = (
        f"Times of {', '.join(costs.units)} read from {lookup}, of the machine that it was made on; none was measured "
        "here. Stages run one by one, as the table has them."
    )
    if not costs.noise_known:
        text += " Some entries have no std_ms: their noise is unknown and in no interval below."
    return text


def _why(chosen: Plan, ranking: Ranking, objective: str) -> str:
    """Its time, where that comes from, and what the best single unit would take."""
    (row,) = ranking.table([chosen]).to_dict("records")
    text = (
        f"Expected {_ms(row)} ms {TIME_OF[objective]}, planned for this size; times {row['origin']}. The interval "
        "knows of the tables' errors alone; notebook 07 executes plans and corrects for what they take."
    )
    if row["origin"] == "extrapolated":
        text += " Some sizes lie outside those that were measured: take the times with care, or measure larger ones."
    if any(len(plan.units) == 1 for plan in ranking.plans) and chosen != ranking.one_unit:
        times = ranking.ms[ranking.place(ranking.one_unit)] / row["ms"]
        text += f" The best single unit ({ranking.one_unit.words()}) takes {times:.3g} times as long."
    return text


def _compared(chosen: Plan, ranking: Ranking) -> Table:
    """The best plans, the chosen one, the best one-unit plan."""
    from gnnlab.planning.plans import parse

    cells = []
    for row in ranking.table(list(dict.fromkeys([chosen, *ranking.top(LISTED)]))).to_dict("records"):
        plan = parse(row["plan"])
        mark = ", ".join(["chosen"] * (plan == chosen) + ["one unit"] * (len(plan.units) == 1))
        cells.append((row["words"], _ms(row), mark))
    columns = ("plan", "ms a graph (90 %)", "")
    return table("the plans that it was compared with", columns, cells)


def _ms(row: Mapping[str, Any]) -> str:
    return f"{row['ms']:.3g} ({row['ci_low']:.3g} to {row['ci_high']:.3g})"
