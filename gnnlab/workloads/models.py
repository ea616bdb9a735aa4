"""`build("symptom_gat", "digits")`: a model, the graph that it works on, and the batch that is passed to it.

A user's model may be given what its forward takes instead of a graph: `build("mine:make", "inputs:mine:molecules")`.
"""

from __future__ import annotations

import copy
import inspect
import random
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData, size_repr

from gnnlab import user_code
from gnnlab.errors import GnnlabError, meant, whole_numbers
from gnnlab.workloads import graphs
from gnnlab.workloads.graph_transformer import GraphTransformer
from gnnlab.workloads.symptom_gat import SymptomGAT
from gnnswap.errors import OneLineError, one_line, quoted
from gnnswap.inputs import bind, guarded_sequential, parameters_of, tensors_in

INPUTS = "inputs:"  # before module:function, in place of a graph


@dataclass
class Workload:
    """What is measured: `model(**batch)` where the batch is a plain mapping, `model(*batch)` where it is a tuple,
    else `model(batch)`."""

    name: str  # symptom_gat, graph_transformer, or module:factory
    graph_name: str
    graph: BaseData  # of given inputs: those that are no graph by the names of forward's arguments
    model: nn.Module  # from `build`: in training mode and where it was made, as torch has it
    batch: Any
    spec: str = ""  # of the graph or the inputs, from which other processes make them again

    @property
    def label(self) -> str:
        """For titles and tables: `symptom_gat on digits`."""
        return f"{self.name} on {self.graph_name}"

    @property
    def read(self) -> list[str]:
        """What was read, a line each: the graph, or the inputs with their shapes, and the model."""
        of_a_function = self.spec.startswith(INPUTS)
        given = f"{self.graph_name}: {shapes(self.batch)}" if of_a_function else graphs.read_as(self.graph)
        parameters = list(self.model.parameters())
        kinds = " and ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters}))
        numbers = f"{sum(p.numel() for p in parameters):,} parameters in {len(parameters)} tensors"
        return [given, f"{self.name}: {type(self.model).__name__}, {numbers}{', ' * bool(kinds)}{kinds}"]

    def to(self, device: str | torch.device) -> Workload:
        """The same workload with its model and batch on `device`; the graph stays, and the model moves in place.

        Raises `GnnlabError` where torch has no such device here.
        """
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            raise GnnlabError(f"device {quoted(device)} cannot be used here: {one_line(error)}") from error
        return replace(self, model=self.model.to(device), batch=converted(self.batch, lambda t: t.to(device)))


def build(
    model_spec: str | Callable[..., nn.Module],
    graph_spec: str | Path | Data,
    *,
    batch_size: int = 32,
    seed: int = 0,
    **options: Any,
) -> Workload:
    """The workload of a built-in model, or of a user's own (`module:factory`, or the factory), on a graph that
    `graphs.load` takes ("edges.csv+nodes.csv": with a table of its nodes), or on what the function of
    "inputs:module:function" returns (`given_inputs`).

    Weights and inputs are drawn with `seed`, and random states are left as they were. `batch_size` is the
    number of rows that symptom_gat gives; the other models take the graph. Options go to the constructor or the
    factory; those that are `None` count as not given. Raises `GnnlabError`, in one line.

    >>> build("graph_transformer", "digits", num_layers=2).label
    'graph_transformer on digits'
    """
    kind = BUILT_IN.get(model_spec) if isinstance(model_spec, str) else None
    if kind is None and not callable(model_spec) and ":" not in str(model_spec):
        known = f"{', '.join(BUILT_IN)} or module:factory are understood"
        raise GnnlabError(f"{quoted(model_spec)} is no model{meant(model_spec, BUILT_IN)}: {known}")
    whole_numbers(1, batch_size=batch_size)
    function = graph_spec.removeprefix(INPUTS) if str(graph_spec).startswith(INPUTS) else None
    if function is not None and kind is not None:
        raise GnnlabError(f"{model_spec} takes a graph; inputs of a function are for a model of your own")
    data = _graph(graph_spec) if function is None else given_inputs(function, seed)
    options = {name: value for name, value in options.items() if value is not None}
    with _seeded(seed):
        if kind is None:
            name, model, batch = user_model(model_spec, data, options)
        else:
            name, model = model_spec, user_code.call(model_spec, kind.from_graph, data, **options)
            batch = {"batch_size": batch_size} if kind is SymptomGAT else model.prepare(data)
    if function is None:
        return Workload(name, data.name, data, model, batch, str(graph_spec))
    return Workload(name, function, _by_names(model, batch, data), model, batch, graph_spec)


def _graph(spec: str | Path | Data) -> Data:
    edges, plus, nodes = spec.rpartition("+") if isinstance(spec, str) else ("", "", "")
    return graphs.load(edges, nodes=nodes) if plus and Path(nodes).is_file() else graphs.load(spec)


def build_each(
    model_specs: Sequence[str | Callable[..., nn.Module]], graph_specs: Sequence[str | Path | Data]
) -> tuple[list[Workload], list[tuple[str, str, str]]]:
    """The workloads of each model on each graph, or on the inputs of an "inputs:module:function" in a graph's place.

    One that cannot be built costs the others nothing: (model, graph or inputs, why) is listed beside.
    Raises `GnnlabError` if all fail.
    """
    workloads, failed = [], []
    for model_spec, graph in product(model_specs, graph_specs):
        try:
            workloads.append(build(model_spec, graph))
        except OneLineError as error:
            failed.append((str(model_spec), str(graph).removeprefix(INPUTS), str(error)))
    if failed and not workloads:
        raise GnnlabError("; ".join(why for *_, why in failed))
    return workloads, failed


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Inside, torch, numpy and `random` draw from `seed`; after it, from where they were."""
    states = random.getstate(), np.random.get_state()
    with user_code.forked_random(seed):
        try:
            np.random.seed(seed)
            random.seed(seed)
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def shapes(inputs: Any) -> str:
    """What a model is called with, on one line, as PyG shows a Data: "x=[9, 4], edge_index=[2, 30]"."""
    if isinstance(inputs, Mapping):
        parts = [f"{n}={{{shapes(v)}}}" if isinstance(v, Mapping) else size_repr(n, v) for n, v in inputs.items()]
    elif isinstance(inputs, tuple | list):
        parts = [size_repr("", value).removeprefix("=") for value in inputs]
    else:
        parts = [str(list(inputs.shape) if isinstance(inputs, torch.Tensor) else inputs)]
    return " ".join(", ".join(parts).split())


def converted(batch: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of what a model is called with, `to` applied to each tensor in it."""

    def one(part: Any) -> Any:
        if isinstance(part, BaseData):
            return copy.copy(part).apply(to)  # which writes into the object
        return to(part) if isinstance(part, torch.Tensor) else part

    return pytree.tree_map(one, batch)


BUILT_IN = {"symptom_gat": SymptomGAT, "graph_transformer": GraphTransformer}


# ---- the user's own -------------------------------------------------------------------------------------------------


def user_model(spec: str | Callable[..., nn.Module], data: Any, options: dict[str, Any]) -> tuple[str, nn.Module, Any]:
    """The name, the module that `factory(data, **options)` returns, and the batch that its forward takes of `data`: a
    graph, or what `given_inputs` gives. The batch is where the module is.

    The factory is called without the graph if it asks for none: it has no positional argument, or the first has a
    default and is not called data or graph. The module is imported, and the factory called, with the current folder
    on `sys.path`; after that, one forward in eval shows that the model runs.
    Raises `GnnlabError`, in one line, for whatever goes wrong on the way.
    """
    name = getattr(spec, "__name__", "factory") if callable(spec) else spec
    with user_code.importable(), guarded_sequential():
        factory = spec if callable(spec) else user_code.load(spec)
        model = user_code.call(name, factory, *((data,) if _wants_graph(factory) else ()), **options)
        if not isinstance(model, nn.Module):
            raise GnnlabError(f"{name} must return a torch.nn.Module, it returned {quoted(model)}")
    batch = bind(model, data, name)
    where = next((tensor.device for tensor in tensors_in(model)), torch.device("cpu"))
    if where.type != "cpu":  # the factory made it there
        batch = converted(batch, lambda tensor: tensor.to(where))
    _try(name, model, batch)
    return name, model, batch


def given_inputs(spec: str, seed: int = 0) -> Any:
    """What the function `module:function` returns: what a forward takes, as a tuple, a mapping of its arguments, one
    tensor, or any data object of PyG (`Data`, `HeteroData`, a `Batch` of molecules). It is called with `seed`.

    Raises `GnnlabError`, in one line: there is no such function, it raises, or it returns something else.
    """
    with user_code.importable(), _seeded(seed):
        inputs = user_code.call(spec, user_code.load(spec))
    if not isinstance(inputs, tuple | list | dict | torch.Tensor | BaseData):
        raise GnnlabError(
            f"{spec} must return what forward takes, as a tuple, a dict by the names of its arguments, a tensor, a "
            f"Data or a HeteroData; it returned {quoted(inputs)}"
        )
    return tuple(inputs) if isinstance(inputs, list) else inputs


def _by_names(model: nn.Module, batch: Any, given: Any) -> BaseData:
    """Given inputs as a graph to read sizes from: tensors by the names of forward's arguments where they are no graph.
    Without an `edge_index` it has no edges."""
    if isinstance(given, BaseData):
        return given
    try:
        parts = batch if isinstance(batch, dict) else inspect.signature(model.forward).bind(*batch).arguments
    except (TypeError, ValueError):
        parts = {}
    graph = Data(**{name: value for name, value in parts.items() if isinstance(value, torch.Tensor)})
    with warnings.catch_warnings():  # PyG warns where it reads the number of nodes from the edges, as is meant
        warnings.simplefilter("ignore")
        graph.num_nodes = graph.num_nodes or 0
    return graph


def _wants_graph(factory: Callable[..., Any]) -> bool:
    """Its first argument is positional, and has no default or is called data or graph."""
    parameters = parameters_of(factory)
    if not parameters:
        return parameters is None
    first = parameters[0]
    wanted = first.default is first.empty or first.name in ("data", "graph")
    return wanted and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)


def _try(spec: str, model: nn.Module, batch: Any) -> None:
    """One forward in eval; training flags and random state are as before."""
    training = {module: module.training for module in model.modules()}
    by_name = isinstance(batch, dict)
    inputs = () if by_name else batch if isinstance(batch, tuple) else (batch,)
    try:
        with user_code.guarded(f"{spec}: its forward raised"), user_code.forked_random(), torch.no_grad():
            given = model.eval()(*inputs, **(batch if by_name else {}))
    finally:
        for module, flag in training.items():
            module.training = flag
    if given is None or isinstance(given, Coroutine | Generator | AsyncGenerator):
        if isinstance(given, Coroutine):
            given.close()  # else Python warns that it was never awaited
        raise GnnlabError(f"{spec}: its forward must return tensors, it returned {type(given).__name__}")
