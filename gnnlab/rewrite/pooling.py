"""A mean over nodes moved in front of the linear layer before it: mean(x W + b) = mean(x) W + b.

The layer then works on a row a graph instead of a row a node. Found by `torch.fx`, which follows the user's forward and
takes the layers of torch and PyG as they are. A graph without nodes pools to zeros before and after.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, fx, nn

from gnnlab.errors import GnnlabError, one_line

_LINEAR = (nn.Linear, pyg.Linear)
_INSTALLED = ("torch.", "torch_geometric.")


def mean_first(model: nn.Module, batch: Any) -> nn.Module:
    """A module with the parameters of `model` by the same names, which pools before each linear layer that it can.

    Raises:
        GnnlabError: the forward cannot be followed, or there is no such place in it.
    """
    graph = _followed(model, batch)
    places = list(_places(model, graph))
    if not places:
        raise GnnlabError("no linear layer is followed by nothing but a mean over nodes")
    for linear, mean in places:
        _exchange(graph, linear, mean)
    graph.lint()
    made = fx.GraphModule(model, graph, class_name=type(model).__name__)
    if made.state_dict().keys() != model.state_dict().keys():
        raise GnnlabError("parameters that its forward does not use would be lost")
    return made


def places(model: nn.Module, batch: Any) -> tuple[str, ...]:
    """Paths of the linear layers that `mean_first` would take behind the mean. Raises `GnnlabError` as it does."""
    return tuple(linear.target for linear, _ in _places(model, _followed(model, batch)))


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


def _places(model: nn.Module, graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Each linear layer with the mean over nodes that alone uses what it gives."""
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(model.get_submodule(node.target), _LINEAR) and len(node.users) == 1:
            user = next(iter(node.users))
            if _is_mean(user) and user.args[0] is node:
                yield node, user


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
