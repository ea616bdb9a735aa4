"""Run time: a graph comes, its size is looked up among the compiled plans, the plan is carried out.

graph = graph_of("digits", features=500)
done = carry_out(compiled.choose(*graph.size).plan, costs, graph, lanes, models=folder / "exported_models")
done.out, done.parity_error, done.ms
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gnnlab.profiling.parity import relative_error
from gnnlab.stages.plans.costs import Model
from gnnlab.stages.plans.execution import Execution, Graph
from gnnlab.stages.plans.lanes import Lanes
from gnnlab.stages.plans.large_graphs import run_in_parts
from gnnlab.stages.plans.plans import Plan
from gnnlab.stages.plans.table_costs import TableCosts


@dataclass(frozen=True, eq=False)
class Done:
    """`out` (N, F') and how far it is from the plain layer's, relative. `ms`: of one run, loading left out unless the
    graph was cut into `parts`."""

    plan: Plan
    size: tuple[int, int]
    parts: int
    out: np.ndarray
    parity_error: float
    ms: float


def carry_out(plan: Plan, costs: TableCosts, graph: Graph, lanes: Lanes, *, models: Path | str, parts: int = 1) -> Done:
    """Run the layer on a graph by a plan; in `parts` the graph is cut, and its parts are streamed.

    Raises:
        StageError: a unit cannot run its block, or failed; the graph has fewer nodes than parts.
    """
    model = Model(costs.layer, costs, frozenset(costs.simulated))
    start = time.perf_counter()
    if parts > 1:
        out = run_in_parts(plan, model, graph, lanes, parts=parts, models=str(models))
        ms = (time.perf_counter() - start) * 1e3
    else:
        with Execution(plan, model, [graph], lanes, models=str(models)) as execution:
            execution.burst(1)
            result = next(execution.run([0]))
        out, ms = result.out, (result.left_s - result.entered_s) * 1e3
    with torch.no_grad():
        expected = costs.layer.run(torch.from_numpy(graph.x), torch.from_numpy(graph.edge_index)).numpy()
    return Done(plan, graph.size, parts, out, relative_error(expected, out, str(plan)), ms)


def graph_of(spec: str, features: int) -> Graph:
    """A graph by name, recipe or file, with features of the layer's width: its own, or drawn ones.

    Raises:
        GraphError: no such graph; StageError: it has no edges.
    """
    from gnnlab.workloads import graphs
    from gnnlab.workloads.graphsage import random_inputs

    found = graphs.load(spec)
    own = found.x is not None and found.x.shape[1] == features
    x = found.x.float() if own else random_inputs(int(found.num_nodes), 0, features)["x"]
    return Graph(np.ascontiguousarray(x.numpy()), np.ascontiguousarray(found.edge_index.numpy()))
