"""Choose which device runs which stages of a layer, and execute the plan.

The layer is the lab's own, not a model of yours: of --graph it takes the size and the edges.
Times come from notebooks 05 and 06 (gnnlab run 04 05 06), or from tables in S4's format. Notebook 07 executes plans.

examples:
  gnnlab plan --nodes 4000 --edges 9000
  gnnlab plan --nodes 4000 --edges 9000 --blocks 3 --objective latency
  gnnlab plan --graph digits --execute
  gnnlab plan --graph digits --execute --plan "1-5 on fast:CPU, 6-7 on openvino:CPU"
  gnnlab plan --nodes 1000 --edges 9000 --plan "1-7 on onnxruntime:CPU and openvino:CPU (0.3, 0.7)"
  gnnlab plan --nodes 1000 --edges 5000 --lookup lookup_table.json --bandwidth bandwidth_table.json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnlab.errors import GnnlabError

from .terminal import add_params, count, number, show, table

if TYPE_CHECKING:
    from rich.table import Table

    from gnnlab.plans.costs import Costs
    from gnnlab.plans.plans import Plan
    from gnnlab.plans.rank import Ranking

LISTED = 6  # of the best plans that are printed
GRAPHS = {"throughput": 16, "latency": 1}  # of the stream that a plan is ranked by


def add_arguments(parser: ArgumentParser) -> None:
    add_params(parser)
    parser.add_argument("--nodes", type=count, metavar="N", help="nodes of the graph")
    parser.add_argument("--edges", type=count, metavar="E", help="edges of the graph")
    parser.add_argument("--graph", metavar="GRAPH", help="a graph: a name, random:..., or a file")
    parser.add_argument("--execute", action="store_true", help="run the layer on the graph by the plan")
    parser.add_argument("--plan", metavar="PLAN", help="in words or as [[devices, stages, ratios], ...]; default: best")
    parser.add_argument("--devices", nargs="+", metavar="DEVICE", help="devices to plan with (default: this CPU's)")
    what = "blocks of a plan, 1 to 7 (%(default)s)"
    parser.add_argument("--blocks", type=number(int, 1, 7, "number from 1 to 7"), default=2, metavar="B", help=what)
    parser.add_argument("--lookup", metavar="FILE", help="a lookup table in S4's format, of any machine")
    parser.add_argument("--bandwidth", metavar="FILE", help="the bandwidth table that belongs to it")
    what = "a stream of graphs, or one graph alone (%(default)s)"
    parser.add_argument("--objective", choices=tuple(GRAPHS), default="throughput", help=what)


def run(arguments: Namespace) -> int:
    """Print the plan with its reasons; with --execute also what came of it."""
    from gnnlab.lab import discovery
    from gnnlab.plans.costs import Costs
    from gnnlab.plans.execute import execute_once
    from gnnlab.plans.plans import parse
    from gnnlab.plans.processes import DeviceProcesses
    from gnnlab.plans.rank import Planner
    from gnnlab.workloads import graphs
    from gnnlab.workloads.graphsage import inputs_of

    _check(arguments)
    if arguments.lookup:
        costs, source = Costs.from_tables(Path(arguments.lookup), Path(arguments.bandwidth)), arguments.lookup
    else:
        source = discovery.results_of(arguments.params)
        costs = Costs.measured(source / "tables", source / "stages", arguments.devices or ())
    nodes, edges = arguments.nodes, arguments.edges
    if arguments.graph is not None:
        data = graphs.load(arguments.graph)
        graph, nodes, edges = inputs_of(data, costs.layer.features), int(data.num_nodes), int(data.num_edges)
        layer = f"the lab's own layer ({costs.layer.name}, {costs.layer.features} features), not for a model of yours"
        show(f"{graphs.read_as(data)}\nThe plan is for {layer}; of the graph it uses the size and the edges alone.")
    show(_known(costs, source, nodes, edges))
    given = [parse(arguments.plan)] if arguments.plan is not None else []
    ranking = Planner(costs, GRAPHS[arguments.objective], max_blocks=arguments.blocks).rank(nodes, edges, also=given)
    chosen = given[0] if given else ranking.chosen
    show(f"{nodes}x{edges}: {chosen.words()}\n  {chosen}\n{_why(chosen, ranking, arguments)}")
    show(_compared(chosen, ranking))
    if arguments.execute:
        with DeviceProcesses(chosen.devices) as processes:
            ms, error = execute_once(chosen, costs, graph, processes, source / "exported_models")
        show(f"Executed once on this graph alone: {ms:.3g} ms; its result is off the layer in float64 by {error:.1e}.")
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
    if arguments.lookup and (arguments.execute or arguments.devices):
        named = "--execute" if arguments.execute else "--devices"
        raise GnnlabError(f"{named} names devices of this machine, --lookup tables of processors; give one of the two")


def _known(costs: Costs, source: Path | str, nodes: int, edges: int) -> str:
    """What there are times of, and what is lacking."""
    timed, sizes = [name for name in costs.devices if costs.blocks(name)], [f"{n}x{e}" for n, e in costs.sizes]
    text = f"{source}: times of {', '.join(timed)}; sizes: {len(sizes)}, from {sizes[0]} to {sizes[-1]}."
    return "\n".join([text, *costs.notes, *(f"{name}: {what}." for name, what in costs.lacking(nodes, edges).items())])


def _why(chosen: Plan, ranking: Ranking, arguments: Namespace) -> str:
    """The expected time and its source, the number of plans compared, and the time of the best single device."""
    graphs, blocks, at = GRAPHS[arguments.objective], arguments.blocks, ranking.table
    of = f"a graph in a stream of {graphs}" if graphs > 1 else "for a graph alone"
    text = f"Expected {_ms(chosen, ranking)} ms {of}; times {at['origin'][chosen]}."
    if at["origin"][chosen] == "extrapolated":
        text += " Some sizes lie outside those that were measured: take the times with care, or measure larger ones."
    text += f" {len(at)} plans of at most {blocks} block{'s' * (blocks > 1)} were compared (--blocks)."
    alone = ranking.one_device_plans[:1]
    if alone and alone[0] != chosen:
        times = at["ms"][alone[0]] / at["ms"][chosen]
        text += f" The best single device ({alone[0].words()}) takes {times:.3g} times as long."
        text += " One runtime on all cores may be faster than any plan: notebook 07 measures that, too."
    return text


def _compared(chosen: Plan, ranking: Ranking) -> Table:
    """The best plans, the chosen one, the best of one device."""
    rows, shown = [], {*ranking.table.index[:LISTED], chosen, *ranking.one_device_plans[:1]}
    for plan in sorted(shown, key=ranking.table["ms"].get):
        mark = ", ".join(["chosen"] * (plan == chosen) + ["one device"] * (len(plan.devices) == 1))
        rows.append((plan.words(), _ms(plan, ranking), mark))
    return table("the plans that it was compared with", ("plan", "ms a graph (90 %)", ""), rows)


def _ms(plan: Plan, ranking: Ranking) -> str:
    return "{ms:.3g} ({low:.3g} to {high:.3g})".format_map(ranking.table.loc[plan])
