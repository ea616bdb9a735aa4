"""A user's forward with less to do: a mean before the linear layer in place of after it, without results that nothing
uses, without copies that nobody writes to.

`torch.fx` follows the forward and takes the layers of torch and PyG as they are; what it cannot follow stays as it is,
with the reason. The model stays the user's: its forward alone is another, so that parameters keep names and order.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase

from gnnlab.errors import GnnlabError, one_line
from gnnlab.kernels.linears import LINEAR
from gnnlab.rewrite.around import around

_READERS = (*LINEAR, pyg.MessagePassing, _NormBase, nn.LayerNorm)  # make a result of their own of what they take
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, torch.matmul, torch.mm,
               torch.add, torch.mul, torch.cat)  # fmt: skip
_INPLACE = ("setitem", "iadd", "isub", "imul", "itruediv", "ipow", "imatmul")
_COPIES = ("clone", "contiguous")
_INSTALLED = ("torch.", "torch_geometric.")


def mean_first(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, changed, which pools before each linear layer that is followed by nothing but a mean over nodes:
    mean(x W + b) = mean(x) W + b, on a row a graph in place of a row a node. A graph without nodes pools to zeros.

    Raises:
        GnnlabError: the forward cannot be followed, or there is no such place in it; the others below raise the same.
    """
    graph = _followed(model, batch)
    for linear in _means(model, graph):
        _exchange(graph, linear, mean=next(iter(linear.users)))
    return _with_forward(model, graph)


def without_unused(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, changed, which does not compute what neither its output nor anything else uses."""
    graph = _followed(model, batch)
    for node in reversed(_unused(model, graph)):
        graph.erase_node(node)
    return _with_forward(model, graph)


def without_copies(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, changed, without `clone` and `contiguous` before layers and arithmetic, which read alone."""
    graph = _followed(model, batch)
    for node in _copies(model, graph):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    return _with_forward(model, graph)


def places(edit: Callable[[nn.Module, Any], nn.Module], model: nn.Module, batch: Any) -> tuple[str, ...]:
    """What one of the above would change: layers by their paths, functions by their names, "clone of h" for a copy.

    Raises:
        GnnlabError: as it does.
    """
    found = _FOUND[edit](model, _followed(model, batch))
    return tuple(f"{_name(n)} of {n.args[0].name}" if _name(n) in _COPIES else _name(n) for n in found)


class _Follower(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return type(module).__module__.startswith(_INSTALLED)


def _followed(model: nn.Module, batch: Any) -> fx.Graph:
    given = batch if isinstance(batch, dict) else {}
    optional = [p.name for p in inspect.signature(model.forward).parameters.values() if p.default is None]
    if left := [name for name in optional if name not in given]:
        raise GnnlabError(
            f"its forward may take {', '.join(left)}, and what it does then cannot be seen from this call"
        )
    try:
        graph = _Follower(autowrap_functions=(pyg.global_mean_pool,)).trace(model)
    except Exception as error:  # whatever the user's forward does with what stands for a tensor
        raise GnnlabError(f"its forward cannot be followed: {one_line(error)}") from error
    if any("training" in node.kwargs or node.target is nn.functional.dropout for node in graph.nodes):
        raise GnnlabError("its forward asks whether it trains, which would be fixed")
    return graph


def _with_forward(model: nn.Module, graph: fx.Graph) -> nn.Module:
    """`model`, whose forward is that of a graph: the same attributes by the same paths."""
    graph.lint()
    code = type(fx.GraphModule(model, graph, class_name=type(model).__name__)).forward
    return around(model, lambda model, forward, arguments, named: code(model, *arguments, **named), training=True)


def _means(model: nn.Module, graph: fx.Graph) -> list[fx.Node]:
    """Each linear layer of which a mean over nodes alone uses what it gives."""
    found = []
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(model.get_submodule(node.target), LINEAR) and len(node.users) == 1:
            user = next(iter(node.users))
            if _is_mean(user) and user.args[0] is node:
                found.append(node)
    if not found:
        raise GnnlabError("no linear layer is followed by nothing but a mean over nodes")
    return found


def _is_mean(node: fx.Node) -> bool:
    if node.op == "call_function" and node.target is pyg.global_mean_pool:
        return True
    if (node.op, node.target) in (("call_method", "mean"), ("call_function", torch.mean)):
        return 0 in (node.kwargs.get("dim"), *node.args[1:2])
    return False


def _exchange(graph: fx.Graph, linear: fx.Node, mean: fx.Node) -> None:
    rows = linear.args[0]
    mean.args = (rows, *mean.args[1:])
    with graph.inserting_after(mean):
        after = graph.call_module(linear.target, (mean,))
    last = after
    if mean.target is pyg.global_mean_pool:
        belongs = mean.args[1] if len(mean.args) > 1 else mean.kwargs.get("batch")
        with graph.inserting_after(after):
            last = graph.call_function(zero_without_nodes, (after, belongs))
    mean.replace_all_uses_with(last, delete_user_cb=lambda user: user not in (after, last))
    graph.erase_node(linear)


def zero_without_nodes(rows: Tensor, batch: Tensor | None) -> Tensor:
    """`rows` (B, F), zero for each graph that no node of `batch` (N,) belongs to."""
    if batch is None:
        return rows
    return rows * rows.new_zeros(len(rows), 1).index_fill(0, batch, 1)


def _unused(model: nn.Module, graph: fx.Graph) -> list[fx.Node]:
    """Nodes that can be erased, the last first."""
    _writes_nothing(model, graph)
    gone: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output") and all(user in gone for user in node.users):
            gone[node] = None
    if not any(node.op.startswith("call") for node in gone):
        raise GnnlabError("everything that its forward computes is used")
    return list(reversed(gone))


def _copies(model: nn.Module, graph: fx.Graph) -> list[fx.Node]:
    _writes_nothing(model, graph)
    copies = [n for n in graph.nodes if n.op in ("call_method", "call_function") and _name(n) in _COPIES]
    found = [node for node in copies if node.users and all(_reads(model, user) for user in node.users)]
    if not found:
        kept = f"{len(copies)} may be returned or viewed" if copies else "it has none"
        raise GnnlabError(f"no clone or contiguous that is only read: {kept}")
    return found


def _reads(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(model.get_submodule(node.target), _READERS)
    return node.op == "call_function" and node.target in _ARITHMETIC


def _writes_nothing(model: nn.Module, graph: fx.Graph) -> None:
    """A norm that nothing uses still keeps what it has seen in training."""
    for node in graph.nodes:
        writes = bool(node.kwargs.get("inplace")) or "out" in node.kwargs
        if node.op == "call_module":
            parts = list(model.get_submodule(node.target).modules())
            writes = any(getattr(part, "inplace", False) for part in parts)
            writes |= not node.users and any(isinstance(part, _NormBase) for part in parts)
        elif node.op in ("call_method", "call_function"):
            writes |= _name(node).endswith("_") or _name(node) in _INPLACE
        if writes:
            raise GnnlabError(f"its forward writes in place, in {_name(node)}")


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


_FOUND = {mean_first: _means, without_unused: _unused, without_copies: _copies}
