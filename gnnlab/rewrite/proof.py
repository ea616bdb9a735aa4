"""Is a fast model the user's model? Outputs, and gradients of each parameter, on the user's graph and on others.

The reference is computed in a process in which nothing was made fast, in float32 and, where the model can, in float64.
A tensor may be off from the exact one by 1e-5 of its largest magnitude, or by 8 times as much as the user's own float32
is: a gradient that is zero but for rounding is compared with the rounding, and one that is zero to the bit with that of
the largest tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, one_line
from gnnlab.profiling.context import Conditions, call
from gnnlab.profiling.dispatch import tensors_in
from gnnlab.profiling.races import RTOL_FLOAT32, directions
from gnnlab.workloads import models

YOURS = "your graph"
ALLOWED = RTOL_FLOAT32  # of the largest magnitude of a tensor
ROUNDING = 8  # times the user's own, where that is more
SAME_SIZE = "other edges, same size"
HARD = "isolated nodes, repeated edges, self-loops"
AGAIN = "your graph again"
FEW = (YOURS, SAME_SIZE, HARD, AGAIN)  # for what is made anew for each size, in a minute
_OTHERS = {  # nodes, edges
    HARD: (37, 91),
    "no edges": (11, 0),
    "one node with a self-loop": (1, 1),
    "a larger graph": (211, 1400),
}


def graphs(data: Data, only_yours: bool = False) -> dict[str, Data]:
    """The graphs of a proof, by what is special about them: `data`, and others whose nodes and edges carry what those
    of `data` do, drawn at random. With `only_yours` none of these."""
    if only_yours:
        return {YOURS: data}
    draw = torch.Generator().manual_seed(0)
    sizes = {SAME_SIZE: (data.num_nodes, data.num_edges), **_OTHERS}
    found = {YOURS: data} | {name: _drawn(data, *size, draw) for name, size in sizes.items()}
    together = _drawn(data, 45, 160, draw)
    together.batch = torch.arange(45) // 20 + (torch.arange(45) >= 40)  # graphs of 20, 20, none and 5 nodes
    return found | {"four graphs, one without nodes": together, AGAIN: data}


def _drawn(data: Data, nodes: int, edges: int, draw: torch.Generator) -> Data:
    made = Data(num_nodes=nodes)
    rows = torch.randint(data.num_nodes, (nodes,), generator=draw)
    columns = torch.randint(data.num_edges, (edges,), generator=draw)
    for name, value in data:
        if name in ("ptr", "batch", "num_nodes"):
            continue
        if name == "edge_index":
            value = torch.randint(max(1, nodes - nodes // 6), (2, edges), generator=draw)
            value[:, edges // 2 : edges // 2 + edges // 8] = value[:, : edges // 8]  # repeated
            value[1, : edges // 16] = value[0, : edges // 16]  # self-loops
        elif isinstance(value, Tensor) and data.is_node_attr(name):
            value = value[rows]
        elif isinstance(value, Tensor) and data.is_edge_attr(name):
            value = value[columns]
        made[name] = value
    return made


@dataclass(frozen=True)
class Proof:
    """`error`: the largest over all tensors, relative to what it is compared with; at most `ALLOWED` where it held.

    `held`: graphs on which it did. `wrong`: graphs with what was off. `refused`: graphs that the fast form refuses and
    the user's model takes, with why. `skipped`: graphs that the user's own model does not take.
    """

    error: float
    held: tuple[str, ...]
    wrong: dict[str, str]
    refused: dict[str, str]
    skipped: dict[str, str]

    @property
    def holds_on_yours(self) -> bool:
        """Is it right on the user's graph and on other edges of its size, and wrong there on none?"""
        return YOURS in self.held and not {YOURS, SAME_SIZE, AGAIN} & (self.wrong.keys() | self.refused)


def write_reference(model: nn.Module, data: Data, spec: str, train: bool, folder: Path, only_yours: bool) -> None:
    """What `model` gives on each of the `graphs`, as `folder`/number.npz; where it takes a graph not, the reason."""
    double = _double(model)
    for number, graph in enumerate(graphs(data, only_yours).values()):
        try:
            found = values(model, graph, spec, train)
        except Exception as error:  # of the user's model, on a graph that is none of theirs
            found = {"reason": np.array(one_line(error))}
        else:
            exact = _exact(double, graph, spec, train)
            found |= {f"exact {name}": array for name, array in exact.items() if name in found}
        np.savez(folder / f"{number}.npz", **found)


def compare(
    model: nn.Module,
    data: Data,
    spec: str,
    train: bool,
    folder: Path,
    only_yours: bool,
    names: Collection[str] | None = None,
) -> Proof:
    """A fast `model` against the reference in `folder`, on all graphs or on those of some `names` alone."""
    worst, held, wrong, refused, skipped = 0.0, [], {}, {}, {}
    for number, (name, graph) in enumerate(graphs(data, only_yours).items()):
        if names is not None and name not in names:
            continue
        with np.load(folder / f"{number}.npz") as file:
            reference = dict(file)
        if "reason" in reference:
            skipped[name] = str(reference["reason"])
            continue
        try:
            got = values(model, graph, spec, train)
        except Exception as error:  # whatever a runtime raises
            refused[name] = one_line(error)
            continue
        error, of = difference(reference, got)
        if error <= ALLOWED:
            worst = max(worst, error)
            held.append(name)
        else:
            wrong[name] = f"{of} is off by {error:.1e}"
    return Proof(worst, tuple(held), wrong, refused, skipped)


def values(model: nn.Module, graph: Data, spec: str, train: bool) -> dict[str, np.ndarray]:
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


def _double(model: nn.Module) -> nn.Module | None:
    try:
        return copy.deepcopy(model).double()
    except Exception:  # modules may refuse in any way
        return None


def _exact(double: nn.Module | None, graph: Data, spec: str, train: bool) -> dict[str, np.ndarray]:
    """The same in float64; nothing where the model cannot."""
    if double is None:
        return {}
    wide = copy.copy(graph)
    for name, value in graph:
        if isinstance(value, Tensor) and value.is_floating_point():
            wide[name] = value.double()
    try:
        return values(double, wide, spec, train)
    except Exception:  # a forward that makes float32 tensors of its own
        return {}
