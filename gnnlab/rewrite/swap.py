"""A model of yours with fast layers in place of its own.

report = swap(model, (x, edge_index))     # report.model is a copy, report says what was replaced and what not

Beside it, what others would write today for a layer or model of PyG on one graph, the forms that it is raced with:

forms = peers(GCNConv(64, 64), edge_index, num_nodes, ["EdgeIndex", "sparse CSR", "torch.compile"])
forms["PyG, EdgeIndex"](x)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.utils import to_torch_csr_tensor

from gnnlab.errors import GnnlabError, one_line
from gnnlab.kernels.neighbours import GraphCache
from gnnlab.profiling.context import ProfilingContext, call
from gnnlab.profiling.races import RTOL_FLOAT32, require_equal
from gnnlab.rewrite import zoo
from gnnlab.rewrite.served import serve


class TiledAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` that goes by tiles where no attention weights are asked for.

    Attention of all nodes to all others, as GPS has it: in inference torch's takes a path that makes a matrix of nodes
    by nodes in memory, and with a mask, also one that masks nothing, adds to it. What it does in training,
    `scaled_dot_product_attention` in tiles, is several times as fast.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        nested = any(getattr(one, "is_nested", False) for one in (query, key, value))
        if not (need_weights or nested or torch.compiler.is_compiling() or torch.jit.is_tracing()):
            if key_padding_mask is not None and key_padding_mask.dtype is torch.bool and not key_padding_mask.any():
                key_padding_mask = None
            if query is key and key is value:  # a query of its own rules out the path with the matrix
                query = query.view_as(query)
        return super().forward(query, key, value, key_padding_mask, need_weights, attn_mask, **named)


@dataclass(frozen=True)
class SwapReport:
    """The new model, what was replaced in it and what was not. Paths are those of `named_modules`, "" the model."""

    model: nn.Module
    replaced: tuple[tuple[str, str, str], ...]  # path, class, mechanism: one of zoo.MEANING
    kept: tuple[tuple[str, str, str], ...]  # path, class, why
    parity_error: float | None = None  # largest relative difference of the outputs; None: nothing to compare

    def __str__(self) -> str:
        lines = [f"replaced {_name(path)} ({kind}): {zoo.MEANING[how]}" for path, kind, how in self.replaced]
        lines += [f"kept {_name(path)} ({kind}): {why}" for path, kind, why in self.kept]
        if not self.replaced:
            return "\n".join([*lines, "nothing to replace" if lines else "nothing to replace: no layers of PyG"])
        error = self.parity_error
        lines.append("outputs not compared: no example given" if error is None else f"outputs differ by {error:.1e}")
        return "\n".join(lines)


def swap(model: nn.Module, example: Any = None) -> SwapReport:
    """A copy of `model` in which every layer of PyG that has a fast form (`zoo.ZOO`) takes it.

    `example` is what the model is called with: a tuple is spread, a mapping gives keywords, anything else is one
    argument. On it both models must give the same in eval mode, within 1e-5 relative to the largest output.
    Parameters keep their names, so checkpoints load into either model; the layers share the graphs that they prepared.
    A model without such layers is given back as it is, with the reasons. Gradients of gradients are refused.

    Raises:
        GnnlabError: this is no model, it cannot be copied, or the new one does not run on the example.
        ParityError: the outputs differ.
    """
    if not isinstance(model, nn.Module):
        raise GnnlabError(f"swap needs a torch.nn.Module, not {type(model).__name__}")
    found = [
        (path, layer, *zoo.mechanism(layer))
        for path, layer in model.named_modules()
        if isinstance(layer, (MessagePassing, nn.MultiheadAttention))
    ]
    replaced = tuple((path, type(layer).__name__, how) for path, layer, how, _ in found if how != zoo.NONE)
    kept = tuple((path, type(layer).__name__, why) for path, layer, how, why in found if how == zoo.NONE)
    if not replaced:
        return SwapReport(model, replaced, kept)
    fast = _replaced(model, {path: how for path, _, how in replaced})
    return SwapReport(fast, replaced, kept, None if example is None else _verified(model, fast, example))


def _replaced(model: nn.Module, mechanisms: dict[str, str]) -> nn.Module:
    try:
        copied = copy.deepcopy(model)
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        raise GnnlabError(f"{type(model).__name__} cannot be copied: {one_line(error)}") from error
    graphs = GraphCache()
    for path, how in mechanisms.items():
        layer = copied.get_submodule(path)
        if how == zoo.TILED:
            layer.__class__ = TiledAttention
            continue
        serve(layer, graphs, zoo.form(layer), gathers=how in (zoo.PART, zoo.SORTED))
    return copied


def _verified(model: nn.Module, fast: nn.Module, example: Any) -> float:
    with torch.no_grad():
        with ProfilingContext(model):
            expected = call(model, example)
        with ProfilingContext(fast):
            try:
                got = call(fast, example)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
                raise GnnlabError(f"with fast layers the model fails on the example: {one_line(error)}") from error
    return require_equal(expected, got, RTOL_FLOAT32, "model with fast layers")


def _name(path: str) -> str:
    return path or "the model"


PEERS = ("EdgeIndex", "sparse CSR", "torch.compile")


class OnGraph(nn.Module):
    """A layer on one graph, and its edge features where it takes some: called with the features x (N, F) alone."""

    def __init__(self, layer: nn.Module, edges: object, edge_attr: Tensor | None = None) -> None:
        super().__init__()
        self.layer, self.edges = layer, edges
        self.more = {} if edge_attr is None else {"edge_attr": edge_attr}

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, self.edges, **self.more)


def peers(
    layer: nn.Module,
    edge_index: Tensor,
    num_nodes: int,
    which: Sequence[str] = PEERS,
    edge_attr: Tensor | None = None,
) -> dict[str, nn.Module]:
    """ "PyG" on `edge_index` (2, E), then those of `which`, then "gnnlab" with its fast layers; all have one's weights.

    Structure is prepared here, not in the calls: `EdgeIndex` is sorted by target, and a row of the CSR adjacency holds
    the sources of a target. An adjacency has no repeated edges and no `edge_attr` (E, D); where the layer sees them,
    results differ.

    Raises:
        GnnlabError: `which` names another peer.
    """
    if unknown := set(which) - set(PEERS):
        raise GnnlabError(f"{', '.join(sorted(unknown))}: no such peer; there are {', '.join(PEERS)}")
    shape = (num_nodes, num_nodes)
    forms: dict[str, nn.Module] = {"PyG": OnGraph(layer, edge_index, edge_attr)}
    if "EdgeIndex" in which:
        edges, order = EdgeIndex(edge_index, sparse_size=shape).sort_by("col")
        forms["PyG, EdgeIndex"] = OnGraph(layer, edges, None if edge_attr is None else edge_attr[order])
    if "sparse CSR" in which:
        forms["PyG, sparse CSR"] = OnGraph(layer, to_torch_csr_tensor(edge_index.flip(0), size=shape), edge_attr)
    if "torch.compile" in which:
        # by itself: all are compiled from one code, and after eight of those torch would run the ninth uncompiled
        compiled = torch.compile(OnGraph(layer, edge_index, edge_attr), dynamic=False, isolate_recompiles=True)
        forms["torch.compile"] = compiled
    fast = swap(layer).model
    return forms | {"gnnlab": OnGraph(fast if fast is not layer else copy.copy(layer), edge_index, edge_attr)}
