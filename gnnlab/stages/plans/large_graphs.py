"""A graph that is too large for one piece: cut by METIS, its parts streamed through a plan, their results put together.

out = run_in_parts(plan, model, graph, lanes, parts=8, models=folder)        # equals the whole layer's
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gnnlab.stages.plans.costs import Model
from gnnlab.stages.plans.execution import Execution, Graph
from gnnlab.stages.plans.lanes import Lanes
from gnnlab.stages.plans.partition import by_metis
from gnnlab.stages.plans.plans import Plan


def run_in_parts(
    plan: Plan,
    model: Model,
    graph: Graph,
    lanes: Lanes,
    *,
    parts: int,
    models: str | None = None,
    places: Mapping[str, Any] | None = None,
) -> np.ndarray:
    """The layer's result (N, F') on a graph, part by part; units work at once on different parts.

    Raises:
        StageError: METIS is not there, the graph has fewer nodes than parts, or a unit failed.
    """
    cut = by_metis(graph.edge_index, graph.size[0], parts)
    pieces = [Graph(graph.x[part.nodes], part.edge_index) for part in cut]
    width = model.layer.values[model.layer.result].shape(1, 1)[1]
    out = np.empty((graph.size[0], width), np.float32)
    with Execution(plan, model, pieces, lanes, models=models, places=places) as execution:
        for result in execution.run(range(len(cut))):
            part = cut[result.item]
            out[part.own] = result.out[: part.targets]
    return out
