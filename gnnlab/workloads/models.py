"""`build("symptom_gat", "digits")`: a model, the graph that it works on, and the batch that is passed to it."""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, one_line, shown
from gnnlab.workloads import graphs, user_models
from gnnlab.workloads.graph_transformer import GraphTransformer
from gnnlab.workloads.symptom_gat import SymptomGAT


@dataclass
class Workload:
    """What is measured: `model(**batch)` where the batch is a plain mapping, `model(*batch)` where it is a tuple,
    else `model(batch)`."""

    name: str  # symptom_gat, graph_transformer, or module:factory
    graph_name: str
    graph: Data
    model: nn.Module  # from `build`: on the CPU and in training mode, as torch makes it
    batch: Any

    @property
    def label(self) -> str:
        """For titles and tables: `symptom_gat on digits`."""
        return f"{self.name} on {self.graph_name}"

    def to(self, device: str | torch.device) -> Workload:
        """The same workload with its model and batch on `device`; the graph stays, and the model moves in place.

        Raises `GnnlabError` where torch has no such device here.
        """
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            raise GnnlabError(f"device {shown(device)} cannot be used here: {one_line(error)}") from error
        return replace(self, model=self.model.to(device), batch=_moved(self.batch, device))

    def describe(self) -> dict[str, int | float]:
        """Sizes for a table: nodes, edges, mean_degree, features, parameters."""
        graph = graphs.describe(self.graph)
        sizes = {name: graph[name] for name in ("nodes", "edges", "degree_mean", "features") if name in graph}
        return sizes | {"parameters": sum(p.numel() for p in self.model.parameters())}


def build(
    model_spec: str | Callable[..., nn.Module],
    graph_spec: str | Path | Data,
    *,
    batch_size: int = 32,
    seed: int = 0,
    **options: Any,
) -> Workload:
    """The workload of a built-in model, or of a user's own (`module:factory`, or the factory), on a graph that
    `graphs.load` takes.

    Weights are drawn on the CPU with `seed`, and torch's random state is left as it was. `batch_size` is the number of
    rows that symptom_gat gives; the other models take the graph. Options go to the constructor or the factory; those
    that are `None` count as not given. Raises `GnnlabError`, in one line.

    >>> build("graph_transformer", "digits", num_layers=2).label
    'graph_transformer on digits'
    """
    if not callable(model_spec) and (not isinstance(model_spec, str) or not _is_known(model_spec)):
        near = difflib.get_close_matches(str(model_spec), BUILT_IN, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise GnnlabError(
            f"{shown(model_spec)} is no model{hint}: {', '.join(BUILT_IN)} or module:factory are understood"
        )
    if not isinstance(batch_size, int) or batch_size < 1:
        raise GnnlabError(f"batch_size must be an integer of 1 or more, got {shown(batch_size)}")
    graph = graphs.load(graph_spec)
    options = {name: value for name, value in options.items() if value is not None}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if callable(model_spec):
            model, batch = user_models.build_by(model_spec, graph, options)
            model_spec = getattr(model_spec, "__name__", "factory")
        elif model_spec in BUILT_IN:
            model, batch = BUILT_IN[model_spec](graph, batch_size, options)
        else:
            model, batch = user_models.build(model_spec, graph, options)
    return Workload(model_spec, graph.name, graph, model, batch)


def _is_known(spec: str) -> bool:
    return spec in BUILT_IN or ":" in spec


def _moved(value: Any, device: str | torch.device) -> Any:
    if isinstance(value, Data):
        return copy.copy(value).to(device)  # PyG's own `to` writes into the object
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_moved(part, device) for part in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _symptom_gat(graph: Data, batch_size: int, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    _known("symptom_gat", SymptomGAT.__init__, options)
    return SymptomGAT.from_graph(graph), {"batch_size": batch_size}


def _graph_transformer(graph: Data, batch_size: int, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    _known("graph_transformer", GraphTransformer.__init__, options)
    model = GraphTransformer.from_graph(graph, **options)
    return model, model.prepare(graph)


BUILT_IN: dict[str, Callable[[Data, int, dict[str, Any]], tuple[nn.Module, Any]]] = {
    "symptom_gat": _symptom_gat,
    "graph_transformer": _graph_transformer,
}


def _known(name: str, constructor: Callable[..., None], options: dict[str, Any]) -> None:
    allowed = [p.name for p in inspect.signature(constructor).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in allowed:
            near = difflib.get_close_matches(option, allowed, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise GnnlabError(f"{name} has no option {shown(option)}{hint}; it has {', '.join(allowed) or 'none'}")
