"""Several workloads at once: every model on every graph, and each model over a range of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gnnlab.workloads import models
from gnnlab.workloads.graph_transformer import PE_TYPES
from gnnlab.workloads.models import Workload
from gnnlab.workloads.random_graphs import DEGREES

Build = Callable[[Any], tuple[Any, Any]]  # value of the parameter -> model, batch
Plan = dict[tuple[str, str], tuple[Sequence[Any], Build]]


def build_all(
    model_specs: Sequence[str], graph_specs: Sequence[str], *, device: str = "cpu", batch_size: int = 32, **sizes: int
) -> list[Workload]:
    """Every model on every graph, on `device`. `sizes` (hidden_dim, ...) go to graph_transformer alone."""
    return [
        models.build(model, graph, batch_size=batch_size, **_sizes_of(model, sizes)).to(device)
        for model in model_specs
        for graph in graph_specs
    ]


def scaling_plan(
    model_specs: Sequence[str],
    *,
    nodes: Sequence[int],
    edges: Sequence[int],
    layers: Sequence[int],
    encodings: Sequence[str] = PE_TYPES,
    degrees: Sequence[str] = DEGREES,
    average_degree: int = 5,
    device: str = "cpu",
    batch_size: int = 32,
    **sizes: int,
) -> Plan:
    """What to time over what: (model, parameter) -> (values, builder), on random graphs.

    Nodes grow at `average_degree`; edges, layers, encodings and degree distributions vary on a graph in the middle of
    the list of nodes. Layers and encodings are options of graph_transformer; a list that is empty is left out.
    """
    middle = sorted(nodes)[len(nodes) // 2] if nodes else 500
    fixed = {"nodes": middle, "edges": middle * average_degree}
    values = {"nodes": nodes, "edges": edges, "degrees": degrees, "layers": layers, "encoding": encodings}
    plan: Plan = {}
    for model in model_specs:
        for parameter, chosen in values.items():
            if not chosen or (parameter in ("layers", "encoding") and model != "graph_transformer"):
                continue
            options = {"device": device, "batch_size": batch_size, **_sizes_of(model, sizes)}
            plan[model, parameter] = (chosen, partial(_at, model, parameter, fixed, average_degree, options))
    return plan


def _at(
    model: str, parameter: str, fixed: dict[str, int], average_degree: int, options: dict[str, Any], value: Any
) -> tuple[Any, Any]:
    graph: dict[str, Any] = dict(fixed)
    extra = {"layers": {"num_layers": value}, "encoding": {"pe_type": value}}.get(parameter, {})
    if parameter == "nodes":
        graph = {"nodes": value, "edges": value * average_degree}
    elif parameter in ("edges", "degrees"):
        graph[parameter] = value
    spec = "random:" + ",".join(f"{name}={v}" for name, v in graph.items()) + ",seed=42"
    options = options | extra
    workload = models.build(model, spec, **{k: v for k, v in options.items() if k != "device"}).to(options["device"])
    return workload.model, workload.batch


def _sizes_of(model: str, sizes: dict[str, int]) -> dict[str, int]:
    return sizes if model == "graph_transformer" else {}
