"""PyG's functions for edges that are sorted: what depends on the graph alone is computed once and kept with it.

    code = rebound(GCNConv.forward)     # the same code; where it says `gcn_norm` it finds the one that keeps

Edges that are not sorted ones go to PyG's function as they are.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch_geometric import utils
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnlab.kernels.attention import segment_softmax
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.rewrite.edges import Edges, edges_of, segment_of


def keeping(function: Callable) -> Callable:
    """`function(edge_index, edge_values, ...) -> (edge_index, edge_values)` whose edges depend on the edges alone."""

    @functools.wraps(function)
    def kept(edge_index: Any, values: Tensor | None = None, *args: Any, **named: Any) -> tuple[Any, Tensor | None]:
        edges = edges_of(edge_index)
        values = named.pop("edge_attr", named.pop("edge_weight", values))
        if edges is None or any(isinstance(a, Tensor) for a in (*args, *named.values())):
            return function(edge_index, values, *args, **named)
        key = (function.__name__, args, tuple(sorted(named.items(), key=lambda item: item[0])))
        made = edges.once((key, "edges"), lambda: _edges(edges.neighbours, function(edges.index, None, *args, **named)))

        def arranged() -> Tensor | None:
            new = function(edges.index, values, *args, **named)[1]
            return None if new is None else made.arranged(new)

        return made.index, edges.kept((key, "values"), values, arranged)

    return kept


def _edges(graph: Neighbours, result: tuple[Tensor, Tensor | None]) -> Edges:
    return Edges.of(Neighbours.prepare(result[0], graph.num_nodes, num_sources=graph.num_sources))


def softmax(
    src: Tensor, index: Tensor | None = None, ptr: Tensor | None = None, num_nodes: int | None = None, dim: int = 0
) -> Tensor:
    """As `torch_geometric.utils.softmax`; `src` (E,) or (E, H) with the targets of sorted edges takes the fast way."""
    edges = None if index is None else segment_of(index)
    if edges is None or dim != 0 or src.dim() not in (1, 2):
        return utils.softmax(src, index, ptr, num_nodes, dim)
    return segment_softmax(src, edges.neighbours)


REPLACED = {
    gcn_norm: keeping(gcn_norm),
    utils.add_self_loops: keeping(utils.add_self_loops),
    utils.add_remaining_self_loops: keeping(utils.add_remaining_self_loops),
    utils.remove_self_loops: keeping(utils.remove_self_loops),
    utils.get_laplacian: keeping(utils.get_laplacian),
    utils.softmax: softmax,
}


def rebound(function: types.FunctionType) -> types.FunctionType:
    """The same code, which finds the functions that keep where it names PyG's."""
    names = function.__globals__
    replaced = {
        name: REPLACED[names[name]]
        for name in function.__code__.co_names
        if isinstance(names.get(name), Callable) and _hashable(names[name]) and names[name] in REPLACED
    }
    if not replaced:
        return function
    made = types.FunctionType(
        function.__code__, {**names, **replaced}, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
