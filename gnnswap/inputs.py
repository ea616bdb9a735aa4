"""A model's inputs: PyG's `Data` by the names of forward's arguments, tuples, mappings, single tensors."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from gnnswap.errors import SwapError

NAMED = ("x", "edge_index", "edge_weight", "edge_attr")  # what a forward of **kwargs alone is given
WHOLE_GRAPH = ("data", "graph", "batch")  # names of an only argument that mean the Data itself


def call(model: Callable[..., Any], batch: Any) -> Any:
    """Call `model` with `batch`: a tuple or list is spread, a mapping gives keywords, anything else is one argument.

    A PyG `Data` or `Batch` is one argument: it is no mapping.
    """
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch)


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists, tuples, mappings, dataclasses, modules (parameters, buffers) and PyG's `Data`."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, nn.Module):
        yield from (*tree.parameters(), *tree.buffers())
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors_in(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from tensors_in(value)
    elif hasattr(tree, "to_dict"):  # PyG's Data, HeteroData and Batch
        yield from tensors_in(tree.to_dict())
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        yield from tensors_in(list(vars(tree).values()))


def bind(model: nn.Module, data: Any, spec: str) -> Any:
    """The inputs of `model.forward`: a mapping of its arguments to the fields of `data` with the same names.

    Of a `HeteroData`, x and x_dict are the x of each type of node. What is no graph is returned unchanged. So is a
    graph whose forward needs one argument named data or graph (or batch, if it has no other), or none named like a
    field. Arguments with a default are left out if the graph has no such field; `batch` of a single graph is zeros.
    A forward of keywords alone is given `NAMED`, and what torch.compile or DataParallel wraps, its own arguments.

    Raises:
        SwapError: the graph lacks a required argument; it names `spec`, the model.
    """
    parameters = parameters_of(model.forward)
    named = [p for p in parameters or () if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if parameters and not named and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        for inner in ("_orig_mod", "module"):  # of torch.compile, and of DataParallel
            if isinstance(getattr(model, inner, None), nn.Module):
                return bind(getattr(model, inner), data, spec)
        if is_graph(data) and len(parameters) == 1:
            return {name: value for name in NAMED if (value := _field(data, name)) is not None}
    if not is_graph(data) or parameters is None or (parameters and not named):  # it takes whatever comes
        return data
    required = [p for p in named if p.default is p.empty]
    fields = {p.name: value for p in named if (value := _field(data, p.name)) is not None}
    if len(named) == 1 and named[0].name in WHOLE_GRAPH:
        return data
    if len(required) == 1 and (required[0].name in ("data", "graph") or not fields):
        return data
    missing = [p.name for p in required if p.name not in fields]
    if missing:
        known = ", ".join(sorted(set(data.keys()) - {"name"}))
        raise SwapError(f"{spec}: forward wants {', '.join(missing)}, which the graph lacks; it has {known}")
    return fields


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Its parameters; None if it has no signature, as some builtins."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _field(data: Any, name: str) -> Any:
    if isinstance(data, sys.modules["torch_geometric.data.hetero_data"].HeteroData):
        return data.collect(name.removesuffix("_dict"), allow_empty=True) or None
    if name == "num_nodes":
        return data.num_nodes
    if name == "batch" and data.batch is None:
        return torch.zeros(data.num_nodes, dtype=torch.int64)
    return data.get(name)


def cloned(inputs: Any) -> Any:
    """The same inputs with copies of their tensors, leaves that want gradients where the originals do."""
    return _of_tensors(inputs, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))


def in_float64(inputs: Any) -> Any:
    """The same inputs with every floating tensor in float64, leaves that want gradients where the originals do."""
    return of_floats(inputs, torch.Tensor.double)


def of_floats(inputs: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same inputs with `change(tensor)` for every floating tensor, leaves as in `in_float64`."""

    def one(tensor: torch.Tensor) -> torch.Tensor:
        return change(tensor.detach()).requires_grad_(tensor.requires_grad) if tensor.is_floating_point() else tensor

    return _of_tensors(inputs, one)


def _of_tensors(inputs: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def one(value: Any) -> Any:
        if is_graph(value):
            return copy.copy(value).apply(one)
        return change(value) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(one, inputs)


def is_graph(value: Any) -> bool:
    """Is it a graph of PyG? Does not import PyG, which takes seconds and is imported with any graph."""
    loaded = sys.modules.get("torch_geometric.data.data")
    return loaded is not None and isinstance(value, loaded.BaseData)


_SEQUENTIAL = "torch_geometric.nn.sequential_"


@contextmanager
def guarded_sequential() -> Iterator[None]:
    """Restores PyG's Sequential at its end, without the models that were made within.

    PyG names the module of a model's forward by `random`, so two models drawn with one seed would share the first
    one's; and it writes that forward into the class, where other models find it.
    """
    from torch_geometric.nn import Sequential  # loading PyG takes seconds

    forward, before = Sequential.forward, _forwards()
    try:
        yield
    finally:
        Sequential.forward = forward
        _forwards()
        sys.modules.update(before)


def _forwards() -> dict[str, ModuleType]:
    """The modules of PyG's Sequential with the forward of one model each, taken out of `sys.modules`."""
    names = [name for name in list(sys.modules) if name.startswith(_SEQUENTIAL)]
    return {name: sys.modules.pop(name) for name in names}
