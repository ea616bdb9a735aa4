"""What a model is called with: PyG's `Data` by the names of forward's arguments, tuples, mappings, single tensors."""

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
    """What to pass to `model.forward`: a mapping of its arguments to the fields of `data` that have their names.

    Of a `HeteroData`, x and x_dict are what each kind of node has by that name. What is no graph is passed as it is. A
    forward takes the whole graph where the only argument that it needs is named data or graph (or batch, if it has
    no other), or where no argument is named like a field. Arguments with a default are left out where the graph has
    no such field; `batch` of a single graph is all zeros.
    """
    parameters = parameters_of(model.forward)
    named = [p for p in parameters or () if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not is_graph(data) or parameters is None or (parameters and not named):  # it takes whatever comes
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
        raise SwapError(f"{spec}: forward wants {', '.join(missing)}, which the graph lacks; it has {fields}")
    return held


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Its parameters; None where it has no signature, as some builtins."""
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
    """The same inputs with tensors of their own, leaves that want gradients where they did."""

    def one(value: Any) -> Any:
        if is_graph(value):
            return copy.copy(value).apply(one)
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return pytree.tree_map(one, inputs)


def in_float64(inputs: Any) -> Any:
    """The same inputs with every floating tensor in float64, leaves that want gradients where they were some."""
    return of_floats(inputs, torch.Tensor.double)


def of_floats(inputs: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def one(value: Any) -> Any:
        if is_graph(value):
            return copy.copy(value).apply(one)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return change(value.detach()).requires_grad_(value.requires_grad)

    return pytree.tree_map(one, inputs)


def is_graph(value: Any) -> bool:
    """Is it a graph of PyG? PyG takes seconds to load; whoever has a graph has loaded it."""
    loaded = sys.modules.get("torch_geometric.data.data")
    return loaded is not None and isinstance(value, loaded.BaseData)


_SEQUENTIAL = "torch_geometric.nn.sequential_"


@contextmanager
def guarded_sequential() -> Iterator[None]:
    """After it, PyG's Sequential is as it was, and knows no model that was made within.

    It names the module of a model's forward by `random`, so that two models drawn with one seed would share the first
    one's; and it writes that forward into its class, where other models find it.
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
