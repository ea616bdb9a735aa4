"""A reader's own model, named `module:factory`: found, built on a graph, its forward bound to fields of the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from gnnlab import user_code
from gnnlab.errors import GnnlabError, one_line, shown

WHOLE_GRAPH = ("data", "graph", "batch")  # names of an only argument that mean the Data itself


def build(spec: str, data: Data, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    """The module that `factory(data, **options)` returns, and the batch that its forward takes.

    The factory is called without the graph if it asks for none: it has no positional argument, or the first has a
    default and is not called data or graph. The module is imported, and the factory called, with the current folder
    on `sys.path`; after that, one forward in eval shows that the model runs.
    Raises `GnnlabError`, in one line, for whatever goes wrong on the way.
    """
    with user_code.importable():
        model = _made(spec, user_code.load(spec), data, options)
    batch = bind(model, data, spec)
    _try(spec, model, batch)
    return model, batch


def build_by(factory: Callable[..., nn.Module], data: Data, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    """As `build`, by a factory that is at hand."""
    spec = getattr(factory, "__name__", "factory")
    model = _made(spec, factory, data, options)
    batch = bind(model, data, spec)
    _try(spec, model, batch)
    return model, batch


def bind(model: nn.Module, data: Data, spec: str) -> Any:
    """What to pass to `model.forward`: a mapping of its arguments to the fields of `data` that have their names.

    A forward takes the whole graph where the only argument that it needs is named data or graph (or batch, if it has
    no other), or where no argument is named like a field. Arguments with a default are left out where the graph has
    no such field; `batch` of a single graph is all zeros.
    """
    named = _arguments(model)
    if named is None:
        return data
    required = [p for p in named if p.default is p.empty]
    held = {p.name: value for p in named if (value := _field(data, p.name)) is not None}
    if len(named) == 1 and named[0].name in WHOLE_GRAPH:
        return data
    if len(required) == 1 and (required[0].name in ("data", "graph") or not held):
        return data
    missing = [p.name for p in required if p.name not in held]
    if missing:
        fields = ", ".join(sorted(set(data.keys()) - {"name"}))
        raise GnnlabError(f"{spec}: forward wants {', '.join(missing)}, which the graph lacks; it has {fields}")
    if any(p.kind is p.POSITIONAL_ONLY for p in named):
        return tuple(held[p.name] for p in required)
    return held


def _arguments(model: nn.Module) -> list[inspect.Parameter] | None:
    """The arguments of `forward` that have a name; None where it takes whatever comes."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return None
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return named if named or not parameters else None


def _field(data: Data, name: str) -> Any:
    if name == "num_nodes":
        return data.num_nodes
    if name == "batch" and data.batch is None:
        return torch.zeros(data.num_nodes, dtype=torch.int64)
    return data.get(name)


def _made(spec: str, factory: Callable[..., Any], data: Data, options: dict[str, Any]) -> nn.Module:
    arguments = (data,) if _wants_graph(factory) else ()
    model = user_code.call(spec, factory, *arguments, **options)
    if not isinstance(model, nn.Module):
        raise GnnlabError(f"{spec} must return a torch.nn.Module, it returned {shown(model)}")
    return model


def _wants_graph(factory: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):
        return True
    first = parameters[0] if parameters else None
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    return first.default is first.empty or first.name in ("data", "graph")


def _try(spec: str, model: nn.Module, batch: Any) -> None:
    """One forward in eval; training flags and random state are as before."""
    training = {module: module.training for module in model.modules()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            model.eval()
            if isinstance(batch, dict):
                model(**batch)
            elif isinstance(batch, tuple):
                model(*batch)
            else:
                model(batch)
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        raise GnnlabError(f"{spec}: its forward raised {one_line(error)}") from error
    finally:
        for module, flag in training.items():
            module.training = flag
