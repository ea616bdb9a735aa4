"""Is a fast model the user's model? Outputs, and gradients of each parameter, on the user's graph and on others.

    user = load("my_models:make", "digits", train=False)
    check(user)                                  # refuses what cannot be compared
    write_reference(user, folder)                # before anything is made fast
    compare(fast_model, user, folder).equal

The reference is computed in float32 and, where the model can, in float64. A tensor may be off from the exact one by
1e-5 of its largest magnitude, or by 8 times as much as the user's own float32 is: a gradient that is zero but for
rounding is compared with the rounding, and one that is zero to the bit with that of the largest tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, one_line, shown
from gnnlab.profiling.context import Conditions, ProfilingContext, call
from gnnlab.profiling.dispatch import tensors_in
from gnnlab.profiling.races import RTOL_FLOAT32, directions, relative_error
from gnnlab.workloads import models

RANDOM = 1e-3  # relative; threads that add in another order differ by less
ALLOWED = RTOL_FLOAT32  # of the largest magnitude of a tensor
ROUNDING = 8  # times the user's own, where that is more
YOURS, INPUTS = "your graph", "your inputs"
SAME_SIZE = "other edges, same size"
HARD = "isolated nodes, repeated edges, self-loops"
AGAIN = "your graph again"
FEW = (YOURS, INPUTS, SAME_SIZE, HARD, AGAIN)  # for what is compiled anew for each size, in a minute
_OTHERS = {  # nodes, edges
    HARD: (37, 91),
    "no edges": (11, 0),
    "one node with a self-loop": (1, 1),
    "a larger graph": (211, 1400),
}


# ---- the user's model -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UserModel:
    """A model of the user's, on a graph, or on `given` inputs, of which `data` holds those that have a name. With
    `train` it is in training mode with every dropout rate at 0, so that two passes can be compared; else in eval mode.
    """

    spec: str
    data: Data
    model: nn.Module
    batch: Any
    train: bool
    given: bool = False


def load(spec: str, graph: str, train: bool) -> UserModel:
    """The model of `module:factory` on what `models.build` takes for a graph; turns dropout off in this process.

    Raises:
        GnnlabError: in one line, for whatever cannot be built or called.
    """
    if ":" not in spec:
        raise GnnlabError(
            f"{shown(spec)} is no module:factory; write a function that makes your model, as my_models:make"
        )
    if train:
        nn.functional.dropout = torch.dropout = _no_dropout
    made = models.build(spec, graph)
    context = ProfilingContext(made.model.train(train), disable_dropout=train, eval_mode=not train)
    context.__enter__()  # never left: the process is this model's alone
    return UserModel(spec, made.graph, made.model, made.batch, train, graph.startswith(models.INPUTS))


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
            for name, (tensor, version) in before.items():
                if not train and (after.get(name) is not tensor or tensor._version != version):
                    raise GnnlabError(
                        f"{user.spec}: its forward changes {name} in eval mode, so that no two calls compute the same; "
                        "write to a copy"
                    )
            if (apart := relative_error(first, _outputs(user))) > RANDOM:
                mode = "training mode, with dropout at 0" if train else "eval mode"
                raise GnnlabError(
                    f"{user.spec} is random in {mode}: two calls differ by {apart:.1g} relative; make it depend on "
                    "self.training, or fix what it draws"
                )


def _state(user: UserModel) -> dict[str, Tensor]:
    """Weights, buffers and tensors that go in, by names for a reader."""
    held = dict(user.model.named_parameters()) | dict(user.model.named_buffers())
    fields = user.batch if isinstance(user.batch, Mapping) else user.data.to_dict()
    inputs = {f"its argument {name}": value for name, value in fields.items() if isinstance(value, Tensor)}
    return {f"its weight {name}": value for name, value in held.items()} | inputs


def _outputs(user: UserModel) -> list[Tensor]:
    """Copies of the tensors that the model returns."""
    leaves = [leaf for leaf in pytree.tree_leaves(call(user.model, user.batch)) if leaf is not None]
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise GnnlabError(
                f"{user.spec}: its forward returns {type(leaf).__name__} {shown(leaf)}; a tensor, or tuples, lists and "
                "dicts of tensors are needed"
            )
    if not leaves:
        raise GnnlabError(f"{user.spec}: its forward returns no tensor; nothing can be compared")
    if not all(leaf.isfinite().all() for leaf in leaves):
        raise GnnlabError(
            f"{user.spec}: its output holds NaN or infinity, which agrees with anything; look at that first"
        )
    return [leaf.clone() for leaf in leaves]


# ---- the graphs of a proof ------------------------------------------------------------------------------------------


def graphs(user: UserModel) -> dict[str, Any]:
    """The user's graph, and random ones whose nodes and edges carry features of its nodes and edges, by what is special
    about them. Only the user's where the model has a layer with `cached=True`, which keeps the first graph. Only the
    inputs where they were given."""
    data = user.data
    if user.given:
        return {INPUTS: user.batch}
    if any(getattr(module, "cached", False) is True for module in user.model.modules()):
        return {YOURS: data}
    draw = torch.Generator().manual_seed(0)
    sizes = {SAME_SIZE: (data.num_nodes, data.num_edges), **_OTHERS}
    drawn = {name: _drawn(data, *size, draw) for name, size in sizes.items()}
    together = _drawn(data, 45, 160, draw)
    together.batch = torch.arange(45) // 20 + (torch.arange(45) >= 40)  # graphs of 20, 20, none and 5 nodes
    return {YOURS: data, **drawn, "four graphs, one without nodes": together, AGAIN: data}


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


# ---- the proof ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proof:
    """`error`: the largest over all tensors, relative to what it is compared with; at most `ALLOWED` where it held.

    `held`: graphs on which it did. `wrong`: graphs with what was off, or how the fast form failed. `skipped`: graphs
    that the user's own model does not take, with why.
    """

    error: float
    held: tuple[str, ...]
    wrong: dict[str, str]
    skipped: dict[str, str]

    @property
    def equal(self) -> bool:
        return bool({YOURS, INPUTS} & set(self.held)) and not self.wrong


def write_reference(user: UserModel, folder: Path) -> None:
    """What the model gives on each of the `graphs`, as `folder`/number.npz; where it fails on one, the reason."""
    for number, graph in enumerate(graphs(user).values()):
        try:
            found = values(user.model, graph, user.spec, user.train)
        except Exception as error:  # of the user's model, on a graph that is none of theirs
            found = {"reason": np.array(one_line(error))}
        else:
            exact = _exact(user, graph)
            found |= {f"exact {name}": array for name, array in exact.items() if name in found}
        np.savez(folder / f"{number}.npz", **found)


def compare(form: nn.Module, user: UserModel, folder: Path, names: Collection[str] | None = None) -> Proof:
    """A fast form against the reference in `folder`, on all graphs or on those of some `names` alone."""
    worst, held, wrong, skipped = 0.0, [], {}, {}
    for number, (name, graph) in enumerate(graphs(user).items()):
        if names is not None and name not in names:
            continue
        with np.load(folder / f"{number}.npz") as file:
            reference = dict(file)
        if "reason" in reference:
            skipped[name] = str(reference["reason"])
            continue
        try:
            got = values(form, graph, user.spec, user.train)
        except Exception as error:  # whatever a compiler raises
            wrong[name] = f"it fails, {one_line(error)},"
            continue
        error, of = difference(reference, got)
        if error <= ALLOWED:
            worst = max(worst, error)
            held.append(name)
        else:
            wrong[name] = f"{of} is off by {error:.1e}"
    return Proof(worst, tuple(held), wrong, skipped)


def values(model: nn.Module, graph: Any, spec: str, train: bool) -> dict[str, np.ndarray]:
    """Every tensor that the model gives, and with `train` the gradient of each parameter under a fixed direction."""
    batch = models.bind(model, graph, spec)
    with Conditions.now().applied(), torch.set_grad_enabled(train):  # in training a form may leave threads of its own
        outputs = list(tensors_in(call(model, batch)))
        found = {f"output {place}": output for place, output in enumerate(outputs)}
        if train:
            found |= gradients(model, outputs)
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def gradients(model: nn.Module, outputs: list[Tensor]) -> dict[str, Tensor]:
    """The gradient of each parameter that has one, of the outputs along directions that follow from their shapes."""
    ends = [output for output in outputs if output.requires_grad]
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not ends or not named:
        raise GnnlabError("no output depends on a parameter that wants a gradient: there is nothing to train")
    found = torch.autograd.grad(ends, list(named.values()), directions(ends), allow_unused=True)
    return {f"gradient of {name}": g for name, g in zip(named, found, strict=True) if g is not None}


def difference(reference: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> tuple[float, str]:
    """The largest error of a tensor, and which it is; infinite where one is missing or of another shape."""
    worst, of = 0.0, ""
    largest = max((np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in reference.values()), default=0.0)
    for name in (name for name in reference if not name.startswith("exact ")):
        if name not in got or got[name].shape != reference[name].shape:
            return float("inf"), f"{name} ({'missing' if name not in got else 'of another shape'})"
        error = _error(reference[name], reference.get(f"exact {name}"), got[name], float(largest))
        if not error <= worst:
            worst, of = error, name
    return worst, of


def _error(own: np.ndarray, exact: np.ndarray | None, got: np.ndarray, largest: float) -> float:
    truth = own if exact is None else exact
    own, got, truth = (array.astype(np.float64) for array in (own, got, truth))
    if not (np.isfinite(own) == np.isfinite(got)).all():
        return float("inf")
    finite = np.isfinite(own) & np.isfinite(truth)
    if not np.array_equal(own[~finite], got[~finite], equal_nan=True):
        return float("inf")
    own, got, truth = own[finite], got[finite], truth[finite]
    off, rounding = (np.abs(array - truth).max(initial=0.0) for array in (got, own))
    if not truth.any() and not rounding:  # zero, as it cancels in the user's order: in another one to the last bit
        rounding = np.finfo(np.float32).eps * largest
    scale = max(np.abs(truth).max(initial=0.0), ROUNDING * rounding / ALLOWED)
    return 0.0 if off == 0 else float(off / scale) if scale else float("inf")


def _exact(user: UserModel, graph: Any) -> dict[str, np.ndarray]:
    """The user's own `values` in float64; nothing where the model cannot."""
    wide = models.converted(graph, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    try:
        return values(copy.deepcopy(user.model).double(), wide, user.spec, user.train)
    except Exception:  # a module that cannot be copied, a forward that makes float32 tensors of its own
        return {}
