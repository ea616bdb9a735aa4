"""Your model with the layers that have a fast form replaced by it, and the proof that it computes the same.

report = swap(model, (x, edge_index))
fast = report.model
print(report)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import GATConv
from torch_geometric.nn.conv import MessagePassing

from gnnlab.kernels.errors import OptimizeError
from gnnlab.kernels.graph_cache import GraphCache
from gnnlab.kernels.layers import FastGATConv, FastSAGEConv, why_not
from gnnlab.profiling.context import ProfilingContext, call
from gnnlab.profiling.parity import RTOL_FLOAT32, require_equal


@dataclass(frozen=True)
class SwapReport:
    """The new model, what was replaced in it and what was not. Paths are those of `named_modules`, "" the model."""

    model: nn.Module
    replaced: tuple[tuple[str, str], ...]  # path, class
    kept: tuple[tuple[str, str, str], ...]  # path, class, why
    parity_error: float | None = None  # largest relative difference of the outputs; None: no example to verify with

    def __str__(self) -> str:
        lines = [f"replaced {_name(path)} ({kind})" for path, kind in self.replaced]
        lines += [f"kept {_name(path)} ({kind}): {why}" for path, kind, why in self.kept]
        error = self.parity_error
        lines.append("outputs not compared: no example given" if error is None else f"outputs differ by {error:.1e}")
        return "\n".join(lines)


def swap(model: nn.Module, example_batch: Any = None, *, tolerance: float = RTOL_FLOAT32) -> SwapReport:
    """A copy of `model` in which every GATConv and SAGEConv that has a fast form is replaced by it.

    `example_batch` is what the model is called with: a tuple is spread, a mapping gives keywords, anything else is one
    argument. On it both models must give the same in eval mode, within `tolerance` relative to the largest output.
    Parameters keep their names, so checkpoints load into either model; the layers share the graphs that they prepared.

    Raises:
        OptimizeError: no layer of the model has a fast form, or the new model does not run on the example.
        ParityError: the outputs differ.
    """
    if not isinstance(model, nn.Module):
        raise OptimizeError(f"swap needs a torch.nn.Module, not {type(model).__name__}")
    found = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, MessagePassing)]
    reasons = {path: why_not(layer) for path, layer in found}
    if all(reasons.values()):
        raise OptimizeError(_nothing_to_do(found, reasons))
    fast = _replaced(_copied(model))
    error = None if example_batch is None else _verified(model, fast, example_batch, tolerance)
    return SwapReport(
        fast,
        tuple((path, type(layer).__name__) for path, layer in found if reasons[path] is None),
        tuple((path, type(layer).__name__, reasons[path]) for path, layer in found if reasons[path] is not None),
        error,
    )


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        raise OptimizeError(f"{type(model).__name__} cannot be copied: {_one_line(error)}") from error


def _replaced(model: nn.Module) -> nn.Module:
    graphs = GraphCache()
    swapped: dict[nn.Module, nn.Module] = {}  # a layer that stands in two places stays one

    def fast(layer: nn.Module) -> nn.Module:
        if layer not in swapped:
            kind = FastGATConv if type(layer) is GATConv else FastSAGEConv
            swapped[layer] = kind.from_pyg(layer)
            swapped[layer].graphs = graphs
        return swapped[layer]

    def known(layer: nn.Module | None) -> bool:
        return isinstance(layer, MessagePassing) and why_not(layer) is None

    if known(model):
        return fast(model)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if known(child):
                setattr(parent, name, fast(child))
    return model


def _verified(model: nn.Module, fast: nn.Module, batch: Any, tolerance: float) -> float:
    with torch.no_grad():
        with ProfilingContext(model):
            expected = call(model, batch)
        with ProfilingContext(fast):
            try:
                got = call(fast, batch)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
                raise OptimizeError(f"with fast layers the model fails on the example: {_one_line(error)}") from error
    return require_equal(expected, got, tolerance, "model with fast layers")


def _nothing_to_do(found: list[tuple[str, nn.Module]], reasons: dict[str, str | None]) -> str:
    start = "no layer of this model has a fast form (GATConv and SAGEConv of PyG have): "
    if not found:
        return start + "it has no PyG layers"
    return start + "; ".join(f"{_name(path)}: {reasons[path]}" for path, _ in found[:3]) + "; ..." * (len(found) > 3)


def _name(path: str) -> str:
    return path or "the model"


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"
