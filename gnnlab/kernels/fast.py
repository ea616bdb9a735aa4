"""The fast form of a layer or of a model that the lab knows, and a model of yours with fast layers in place of its own.

layer = fast(GATConv(64, 128, heads=4))
report = swap(model, (x, edge_index))     # report.model is a copy, report says what was replaced and what not
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import GATConv, SAGEConv
from torch_geometric.nn.conv import MessagePassing

from gnnlab.errors import GnnlabError, one_line
from gnnlab.kernels.layers import FastGATConv, FastSAGEConv, why_not
from gnnlab.kernels.neighbours import GraphCache
from gnnlab.kernels.symptom_encoder import FastSymptomEncoder
from gnnlab.kernels.transformer import FastGraphTransformer
from gnnlab.profiling.context import ProfilingContext, call
from gnnlab.profiling.parity import RTOL_FLOAT32, require_equal
from gnnlab.workloads.graph_transformer import GraphTransformer
from gnnlab.workloads.symptom_gat import SymptomGAT

FORMS = {
    GATConv: FastGATConv.from_pyg,
    SAGEConv: FastSAGEConv.from_pyg,
    SymptomGAT: FastSymptomEncoder.from_model,
    GraphTransformer: FastGraphTransformer.from_model,
}


def fast(module: nn.Module, *options: Any, **named: Any) -> nn.Module:
    """A module that computes what `module` does, from its own parameters, in less time.

    Options are those of the form: `form` (auto|bag|dense) of a GATConv, `precision` (float32|bfloat16) of a SAGEConv.
    A whole model of other layers: `swap`.

    Raises:
        GnnlabError: the lab has no fast form of such a module, or not with its options.
    """
    if type(module) not in FORMS:
        known = ", ".join(kind.__name__ for kind in FORMS)
        raise GnnlabError(f"no fast form of {type(module).__name__}; there is one of {known}. For a model use swap()")
    return FORMS[type(module)](module, *options, **named)


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
        GnnlabError: no layer of the model has a fast form, or the new model does not run on the example.
        ParityError: the outputs differ.
    """
    if not isinstance(model, nn.Module):
        raise GnnlabError(f"swap needs a torch.nn.Module, not {type(model).__name__}")
    found = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, MessagePassing)]
    reasons = {path: why_not(layer) for path, layer in found}
    if all(reasons.values()):
        raise GnnlabError(_nothing_to_do(found, reasons))
    try:
        copied = copy.deepcopy(model)
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        raise GnnlabError(f"{type(model).__name__} cannot be copied: {one_line(error)}") from error
    fast = _replaced(copied)
    error = None if example_batch is None else _verified(model, fast, example_batch, tolerance)
    return SwapReport(
        fast,
        tuple((path, type(layer).__name__) for path, layer in found if reasons[path] is None),
        tuple((path, type(layer).__name__, reasons[path]) for path, layer in found if reasons[path] is not None),
        error,
    )


def _replaced(model: nn.Module) -> nn.Module:
    graphs = GraphCache()
    swapped: dict[nn.Module, nn.Module] = {}  # a layer that stands in two places stays one

    def swapped_layer(layer: nn.Module) -> nn.Module:
        if layer not in swapped:
            swapped[layer] = FORMS[type(layer)](layer)
            swapped[layer].graphs = graphs
        return swapped[layer]

    def known(layer: nn.Module | None) -> bool:
        return isinstance(layer, MessagePassing) and why_not(layer) is None

    if known(model):
        return swapped_layer(model)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if known(child):
                setattr(parent, name, swapped_layer(child))
    return model


def _verified(model: nn.Module, fast: nn.Module, batch: Any, tolerance: float) -> float:
    with torch.no_grad():
        with ProfilingContext(model):
            expected = call(model, batch)
        with ProfilingContext(fast):
            try:
                got = call(fast, batch)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
                raise GnnlabError(f"with fast layers the model fails on the example: {one_line(error)}") from error
    return require_equal(expected, got, tolerance, "model with fast layers")


def _nothing_to_do(found: list[tuple[str, nn.Module]], reasons: dict[str, str | None]) -> str:
    start = "no layer of this model has a fast form (GATConv and SAGEConv of PyG have): "
    if not found:
        return start + "it has no PyG layers"
    return start + "; ".join(f"{_name(path)}: {reasons[path]}" for path, _ in found[:3]) + "; ..." * (len(found) > 3)


def _name(path: str) -> str:
    return path or "the model"
