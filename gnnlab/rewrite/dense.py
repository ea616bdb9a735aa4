"""Layers of PyG on a small graph as products with a dense adjacency, which is kept with the graph.

On a graph of some hundred nodes a layer's products take microseconds, and the way through `propagate` some hundred.
GCNConv, SAGEConv, GINConv and GraphConv with sums or means are then A (x W), with A (N, N) from the edges; edges that
come twice count twice. A call with more than `MOST_NODES` nodes, with edge weights, two kinds of nodes, a sparse
adjacency or under a compiler runs PyG's own code.

Measured with a GCN of two layers, F = 64, 1 thread, times over PyG's, forward, dense beside fast layers: 18 and 2.4 at
34 nodes, 9.0 and 2.5 at 128, 3.7 and 2.7 at 256, 1.8 and 3.2 at 512. For many tiny graphs in one batch, 32 of 20 nodes,
a sum by dense blocks took 34 microseconds and one over edges 12, so there is no such form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnlab.errors import GnnlabError
from gnnlab.kernels.neighbours import GraphCache, Neighbours
from gnnlab.rewrite.around import Run, around
from gnnlab.rewrite.served import plain, watched

MOST_NODES = 256


def places(model: nn.Module, nodes: int) -> tuple[str, ...]:
    """Paths of the layers that `dense_layers` changes, for a graph of so many nodes.

    Raises:
        GnnlabError: there are none, or the graph is too large.
    """
    if nodes > MOST_NODES:
        raise GnnlabError(f"{nodes:,} nodes: dense products pay up to {MOST_NODES}")
    found = _layers(model)
    if not found:
        raise GnnlabError(f"it has no {', '.join(kind.__name__ for kind in _PRODUCTS)} with sums or means")
    return tuple(found)


def dense_layers(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, changed: its layers of these kinds are products on graphs of up to `MOST_NODES` nodes."""
    graphs = GraphCache()
    for layer in _layers(model).values():
        around(layer, _run(_PRODUCTS[type(layer)], graphs), training=True)
    return model


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    return {path: layer for path, layer in model.named_modules() if _known(layer)}


def _known(layer: nn.Module) -> bool:
    if type(layer) not in _PRODUCTS or layer.flow != "source_to_target" or layer.decomposed_layers != 1:
        return False
    return layer.aggr in ("add", "sum", "mean") and not any(getattr(layer, n, False) for n in ("project", "cached"))


def _run(product: Callable[[nn.Module, Tensor, Neighbours], Tensor], graphs: GraphCache) -> Run:
    def run(layer, forward, arguments, named):
        given = dict(zip(("x", "edge_index", "edge_weight", "size"), arguments, strict=False)) | named
        more = [name for name, value in given.items() if value is not None and name not in ("x", "edge_index")]
        x, edges = given.get("x"), given.get("edge_index")
        small = isinstance(x, Tensor) and x.dim() == 2 and 0 < len(x) <= MOST_NODES
        if more or not small or not plain(edges) or watched(layer):
            return forward(*arguments, **named)
        return product(layer, x, graphs.get(edges, len(x)))

    return run


def _gcn(layer: pyg.GCNConv, x: Tensor, graph: Neighbours) -> Tensor:
    key = "gcn", layer.normalize, layer.improved, layer.add_self_loops, x.dtype

    def make() -> Tensor:
        edges, weight = graph.edge_index, torch.ones(graph.num_edges, dtype=x.dtype)
        if layer.normalize:
            edges, weight = gcn_norm(edges, None, len(x), layer.improved, layer.add_self_loops, layer.flow, x.dtype)
        return x.new_zeros(len(x), len(x)).index_put_((edges[1], edges[0]), weight, accumulate=True)

    rows = layer.lin(x)
    adjacency = graph.once(key, make)
    return adjacency @ rows if layer.bias is None else torch.addmm(layer.bias, adjacency, rows)


def _sum(layer: nn.Module, x: Tensor, graph: Neighbours) -> Tensor:
    """The sum over neighbours, or their mean, as the layer has it."""
    return graph.cast("mean_matrix" if layer.aggr == "mean" else "counts", x.dtype) @ x


def _sage(layer: pyg.SAGEConv, x: Tensor, graph: Neighbours) -> Tensor:
    out = layer.lin_l(_sum(layer, x, graph))
    out = out + layer.lin_r(x) if layer.root_weight else out
    return nn.functional.normalize(out, p=2.0, dim=-1) if layer.normalize else out


def _gin(layer: pyg.GINConv, x: Tensor, graph: Neighbours) -> Tensor:
    return layer.nn(_sum(layer, x, graph) + (1 + layer.eps) * x)


def _graph(layer: pyg.GraphConv, x: Tensor, graph: Neighbours) -> Tensor:
    return layer.lin_rel(_sum(layer, x, graph)) + layer.lin_root(x)


_PRODUCTS = {pyg.GCNConv: _gcn, pyg.SAGEConv: _sage, pyg.GINConv: _gin, pyg.GraphConv: _graph}
