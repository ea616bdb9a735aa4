"""Is a fast model the user's model? Outputs, and gradients of each parameter, on the user's graph and on others.

    user = load("my_models:make", "digits", train=False)
    check(user)                            # refuses what cannot be compared
    cases = reference(user)                # before anything is made fast
    compare(fast_model, user, cases).equal

Tolerance: `gnnswap.parity` with a `truth`, the user's own model in float64 where it can compute in that.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError
from gnnlab.measure.conditions import Conditions
from gnnlab.measure.race import BaselineOutput, comparable, directions
from gnnlab.measure.restore import ProfilingContext
from gnnlab.measure.tensors import device_of
from gnnlab.workloads import models
from gnnswap import parity
from gnnswap.errors import OneLineError, one_line, quoted
from gnnswap.inputs import bind, call, in_float64, tensors_in
from gnnswap.parity import Deviation

RANDOM = 1e-3  # relative; threads that add in another order differ by less
ALLOWED = parity.RTOL_FLOAT32
YOUR_GRAPH, INPUTS = "your graph", "your inputs"
SAME_SIZE = "other edges, same size"
HARD = "isolated nodes, repeated edges, self-loops"
AGAIN = "your graph again"
FEW = (YOUR_GRAPH, INPUTS, SAME_SIZE, HARD, AGAIN)  # for what is compiled again for each size, in a minute
_OTHERS = {  # nodes, edges
    HARD: (37, 91),
    "no edges": (11, 0),
    "one node with a self-loop": (1, 1),
    "a larger graph": (211, 1400),
}
Values = dict[str, Tensor]


# ---- the user's model -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UserModel:
    """A model of the user's, on a graph or on `given` inputs, of which `data` holds what has a name. With `train` it is
    in training mode with every dropout rate at 0, so that two passes can be compared; else it is in eval mode."""

    spec: str
    data: Data
    model: nn.Module
    batch: Any
    train: bool
    given: bool = False
    read: Sequence[str] = ()  # a line each: the graph or the inputs, and the model


def load(spec: str, graph: str, train: bool, device: str | None = None) -> UserModel:
    """The model of `module:factory` on what `models.build` takes for a graph; turns dropout off in this process.

    Both are moved to `device` where one is named. The graph in `data` stays.

    Raises:
        GnnlabError: in one line, for whatever cannot be built or called.
    """
    if ":" not in spec:
        raise GnnlabError(
            f"{quoted(spec)} is no module:factory; write a function that makes your model, as my_models:make"
        )
    if train:
        nn.functional.dropout = torch.dropout = _no_dropout
    made = models.build(spec, graph)
    made = made if device is None else made.to(device)
    context = ProfilingContext(made.model.train(train), disable_dropout=train, eval_mode=not train)
    context.__enter__()  # never left: the process is this model's alone
    return UserModel(spec, made.graph, made.model, made.batch, train, graph.startswith(models.INPUTS), made.read)


def _no_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return input


def check(user: UserModel) -> None:
    """Can the model be measured and compared? Raises `GnnlabError`: its output is no tensor or not finite, it is random
    in eval mode (to be trained, also beyond dropout), it changes its weights or inputs in eval mode."""
    with torch.no_grad():
        for train in sorted({False, user.train}):
            user.model.train(train)
            before = {name: (tensor, tensor._version) for name, tensor in _state(user).items()}
            first, after = _outputs(user), _state(user)
            changed = [
                name for name, (t, version) in before.items() if after.get(name) is not t or t._version != version
            ]
            if changed and not train:
                raise GnnlabError(
                    f"{user.spec}: its forward changes {changed[0]} in eval mode, so that no two calls compute the "
                    "same; write to a copy"
                )
            if (apart := comparable(_outputs(user), first, user.spec)) > RANDOM:
                mode = "training mode, with dropout at 0" if train else "eval mode"
                raise GnnlabError(
                    f"{user.spec} is random in {mode}: two calls differ by {apart:.1g} relative; make it depend on "
                    "self.training, or fix what it draws"
                )


def _state(user: UserModel) -> dict[str, Tensor]:
    """Weights, buffers and tensors that go in, by names for a reader."""
    tensors = [*user.model.named_parameters(), *user.model.named_buffers()]
    fields = user.batch if isinstance(user.batch, Mapping) else user.data.to_dict()
    inputs = {f"its argument {name}": value for name, value in fields.items() if isinstance(value, Tensor)}
    return {f"its weight {name}": value for name, value in tensors} | inputs


def _outputs(user: UserModel) -> list[Tensor]:
    """Copies of the tensors that the model returns."""
    leaves = [leaf for leaf in pytree.tree_leaves(call(user.model, user.batch)) if leaf is not None]
    foreign = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    if foreign or not leaves:
        what = f"{type(foreign[0]).__name__} {quoted(foreign[0])}" if foreign else "no tensor"
        raise GnnlabError(
            f"{user.spec}: its forward returns {what}; a tensor, or tuples, lists and dicts of tensors are needed"
        )
    if not all(leaf.isfinite().all() for leaf in leaves):
        raise GnnlabError(
            f"{user.spec}: its output holds NaN or infinity, which agrees with anything; look at that first"
        )
    return [leaf.clone() for leaf in leaves]


# ---- the graphs of a check ------------------------------------------------------------------------------------------


def graphs(user: UserModel) -> dict[str, Data]:
    """The user's graph, and random ones whose nodes and edges carry features of its nodes and edges, by what is special
    about them. Only the user's where the model has a layer with `cached=True`, which keeps the first graph, and where
    inputs were given."""
    data = user.data
    if user.given:
        return {INPUTS: data}
    if any(getattr(module, "cached", False) is True for module in user.model.modules()):
        return {YOUR_GRAPH: data}
    draw = torch.Generator().manual_seed(0)
    sizes = {SAME_SIZE: (data.num_nodes, data.num_edges), **_OTHERS}
    drawn = {name: _drawn(data, *size, draw) for name, size in sizes.items()}
    together = _drawn(data, 45, 160, draw)
    together.batch = torch.arange(45) // 20 + (torch.arange(45) >= 40)  # graphs of 20, 20, none and 5 nodes
    return {YOUR_GRAPH: data, **drawn, "four graphs, one without nodes": together, AGAIN: data}


def _drawn(data: Data, nodes: int, edges: int, draw: torch.Generator) -> Data:
    pairs = torch.randint(max(1, nodes - nodes // 6), (2, edges), generator=draw)
    pairs[:, edges // 2 : edges // 2 + edges // 8] = pairs[:, : edges // 8]  # repeated
    pairs[1, : edges // 16] = pairs[0, : edges // 16]  # self-loops
    rows = torch.randint(data.num_nodes, (nodes,), generator=draw)
    columns = torch.randint(data.num_edges, (edges,), generator=draw)
    # self-loops at one node carry the same features: of several that differ, PyG's add_remaining_self_loops takes any
    of_loop, loops = torch.randint(data.num_edges, (nodes,), generator=draw), pairs[0] == pairs[1]
    columns[loops] = of_loop[pairs[0, loops]]
    made = Data(num_nodes=nodes)
    for name, value in data:
        if name in ("ptr", "batch", "num_nodes"):
            continue
        if name == "edge_index":
            value = pairs
        elif isinstance(value, Tensor) and data.is_node_attr(name):
            value = value[rows]
        elif isinstance(value, Tensor) and data.is_edge_attr(name):
            value = value[columns]
        made[name] = value
    return made


# ---- the check ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What the user's model gives of `batch`, the `BaselineOutput`, or why it does not take it."""

    batch: Any
    given: BaselineOutput | None = None
    why: str = ""


@dataclass(frozen=True)
class EquivalenceResult:
    """`error`: the largest over all tensors, relative to what it is compared with; at most `ALLOWED` where it passed.

    `passed`: graphs on which it did. `wrong`: graphs with what was off, or how the fast variant failed. `skipped`:
    graphs that the user's own model does not take, with why.
    """

    error: float
    passed: tuple[str, ...]
    wrong: dict[str, str]
    skipped: dict[str, str]

    @property
    def equal(self) -> bool:
        return bool({YOUR_GRAPH, INPUTS} & {*self.passed}) and not self.wrong


def reference(user: UserModel) -> dict[str, Case]:
    """What the model, which was called before, gives on each of the `graphs`."""
    cases: dict[str, Case] = {}
    _in_float64(user, user.batch)  # not compared: a first call
    where = device_of(user.model, user.batch)
    for name, graph in graphs(user).items():
        if name == AGAIN:
            cases[name] = cases[YOUR_GRAPH]
            continue
        try:
            batch = user.batch
            if graph is not user.data:
                batch = bind(user.model, graph, user.spec)
                if where.type != "cpu":  # where an index out of range would end the process, and not only raise
                    values(copy.deepcopy(user.model).cpu(), batch, user.train)
                batch = models.converted(batch, lambda tensor: tensor.to(where))
            own = partial(values, user.model, batch, user.train)
            error = partial(_error, _in_float64(user, batch))
            cases[name] = Case(batch, BaselineOutput(own, user.spec, error, warm=True))
        except Exception as problem:  # of the user's model, on a graph that is none of theirs
            cases[name] = Case(None, why=one_line(problem))
    return cases


def compare(
    variant: nn.Module, user: UserModel, cases: Mapping[str, Case], names: Collection[str] | None = None
) -> EquivalenceResult:
    """A fast variant, which was called before, against the reference: in all cases or in those of some `names`
    alone."""
    worst, passed, wrong, skipped = 0.0, [], {}, {}
    for name, case in cases.items():
        if names is not None and name not in names:
            continue
        if case.given is None:
            skipped[name] = case.why
            continue
        try:
            error = case.given.error_of(partial(values, variant, case.batch, user.train), ALLOWED)
        except OneLineError as problem:
            wrong[name] = one_line(problem)
        except Exception as problem:  # whatever a compiler raises
            wrong[name] = f"it fails, {one_line(problem)},"
        else:
            if error <= ALLOWED:
                worst = max(worst, error)
                passed.append(name)
            else:
                wrong[name] = f"{error.of}: {error.why}" if error.why else f"{error.of} is off by {error:.1e}"
    return EquivalenceResult(worst, tuple(passed), wrong, skipped)


def values(model: nn.Module, batch: Any, train: bool) -> Values:
    """Every tensor that the model gives, and with `train` the gradient of each parameter under a fixed direction."""
    with (
        Conditions.now().applied(),
        torch.set_grad_enabled(train),
    ):  # in training a variant may leave threads of its own
        outputs = list(tensors_in(call(model, batch)))
        tensors = {f"output {place}": output for place, output in enumerate(outputs)}
        if train:
            tensors |= gradients(model, outputs)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def gradients(model: nn.Module, outputs: list[Tensor]) -> dict[str, Tensor]:
    """The gradient of each parameter that has one, of the outputs along directions that follow from their shapes."""
    ends = [output for output in outputs if output.requires_grad]
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not ends or not named:
        raise GnnlabError("no output depends on a parameter that wants a gradient: there is nothing to train")
    grads = torch.autograd.grad(ends, list(named.values()), directions(ends), allow_unused=True)
    return {f"gradient of {name}": g for name, g in zip(named, grads, strict=True) if g is not None}


def _error(truth: Values | None, got: Values, own: Values, name: str) -> Deviation:
    """The largest error of a tensor of the user's, in which a variant may give more gradients than the model."""
    found = parity.error({of: got[of] for of in own if of in got}, own, own if truth is None else truth)
    # a model may give NaN alone on a graph that was drawn: a variant that gives the same is not wrong
    return Deviation(0.0) if found.why == parity.NOTHING_FINITE else found


def _in_float64(user: UserModel, batch: Any) -> Values | None:
    """What the user's model gives in float64; None where it cannot."""
    try:
        return values(copy.deepcopy(user.model).double(), in_float64(batch), user.train)
    except Exception:  # modules may refuse to be copied, or make float32 tensors of their own
        return None
