"""Fast forms of the layers that most people use, each a function of the layer, x and the prepared graph.

    form = FORMS[type(layer)]
    graph = form.prepare(layer, neighbours, edge_values, x.dtype)
    form.run(layer, x, graph)           # what layer(x, edge_index, edge_values) gives, from the layer's own parameters

What makes them fast: one bag in place of gather and scatter (`sums`); the product behind the sum or before it,
whichever makes the summed rows shorter; zeros of bags of words left out (`sparse`); attention scores from
folded weights; what depends on the graph alone, such as the norm of GCN, computed once. A form covers one graph, x (N,
F) in float32 or float64 on a CPU; every other call goes to PyG's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F

from gnnswap import attention
from gnnswap.aggregation import weighted_sum_sorted
from gnnswap.neighbours import Neighbours
from gnnswap.sparse import features_of, times
from gnnswap.sums import Largest, NeighbourSum, fixed_sum, gcn_sum, is_dense

LINEAR = (nn.Linear, pyg.Linear)
# from so many times more inputs than outputs on, one product for neighbours and node beats two: 1.1 times at 4 times as
# many, 1.2 at 22, behind at 1
WIDE_INPUT = 4
MOST_RELATION_ROWS = 4  # (node, relation) an edge, beyond which most of what RGCN's relations send is zeros
DENSE_NUMBERS = 1 << 16  # of all pairs of nodes and channels, up to which GATv2 makes them
_IDENTITY = nn.Identity()


@dataclass(frozen=True)
class Form:
    """`run(layer, x, graph)` -> out; `prepare(layer, neighbours, values, dtype)` -> the `graph` that it takes.

    `attend(layer, tensors, edges)` -> (N, H, C), where `graph` is `Edges`: what the layer makes of its neighbours.
    `linears`: attributes with linear layers whose weights `run` reads by itself. `values`: the argument of the layer's
    forward that has a value an edge, "" where there is none. `why_not(layer)`: why an option rules the form out.
    """

    run: Callable[[nn.Module, Tensor, Any], Tensor]
    prepare: Callable[[nn.Module, Neighbours, Tensor | None, torch.dtype], Any]
    linears: tuple[str, ...]
    values: str
    why_not: Callable[[nn.Module], str]
    attend: Callable[[nn.Module, Sequence[Tensor], Edges], Tensor] | None = None

    def takes(self, values: Tensor, x: Tensor, edge_index: Tensor) -> bool:
        """Can these values of edges be served? Weights that are learned change in each step: they cannot."""
        if not self.values or type(values) not in (Tensor, nn.Parameter):
            return False
        if values.dtype not in ((torch.int64, torch.int32) if self.values == "edge_type" else (x.dtype,)):
            return False
        if values.dim() == 0 or values.shape[0] != edge_index.shape[1]:
            return False
        return values.dim() <= 2 if self.values == "edge_attr" else values.dim() == 1 and not values.requires_grad


def form_of(kind: type[nn.Module]) -> Form | None:
    """The form of this class or of the nearest one that it comes from; whether it is equal there, a trial tells."""
    return next((FORMS[base] for base in kind.__mro__ if base in FORMS), None)


def why_not(layer: nn.Module) -> str:
    """Why this layer has no direct form, in a few words; empty where it has one."""
    form = form_of(type(layer))
    if form is None:
        return "no direct form"
    if layer.flow != "source_to_target" or layer.decomposed_layers != 1 or getattr(layer, "cached", False):
        return "its flow, decomposed layers or PyG's own cache"
    if any(map(nn.parameter.is_lazy, layer.parameters())):
        return "its weights have no shape before the first call"
    if not all(plain_linear(module) for module in linears_of(layer, form)):
        return "a linear layer of another class"
    return form.why_not(layer)


def linears_of(layer: nn.Module, form: Form) -> list[nn.Module]:
    """The linear layers that the form reads the weights of."""
    modules = layer._modules
    return [modules[name] for name in form.linears if modules.get(name) is not None]


def plain_linear(module: nn.Module) -> bool:
    """Is this a linear layer of torch or PyG with nothing hooked in?"""
    return type(module) in LINEAR and not hooked(module)


def hooked(module: nn.Module) -> bool:
    """Are there hooks that a call of the module would run?"""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _gcn_sum(layer: pyg.GCNConv, graph: Neighbours, weight: Tensor | None, dtype: torch.dtype) -> NeighbourSum:
    if not layer.normalize:
        return _fixed_sum(graph, weight, dtype)
    loop = (2.0 if layer.improved else 1.0) if layer.add_self_loops else None
    return graph.of_weight(weight, ("gcn", loop, dtype), lambda: gcn_sum(graph, weight, dtype, loop))


def _fixed_sum(graph: Neighbours, weight: Tensor | None, dtype: torch.dtype, mean: bool = False) -> NeighbourSum:
    return graph.of_weight(weight, ("sum", mean, dtype), lambda: fixed_sum(graph, weight, dtype, mean))


def _sum_or_mean(
    layer: nn.Module, graph: Neighbours, weight: Tensor | None, dtype: torch.dtype
) -> NeighbourSum | Largest:
    if layer.aggr == "max":
        return graph.once("largest", lambda: Largest(graph))
    return _fixed_sum(graph, weight, dtype, layer.aggr == "mean")


def _gcn(layer: pyg.GCNConv, x: Tensor, total: NeighbourSum) -> Tensor:
    weight = layer.lin.weight
    if weight.shape[0] <= weight.shape[1] or features_of(x) is not None:
        return _plus(total(times(x, weight)), layer.bias)
    return F.linear(total(x), weight, layer.bias)  # rows of x are shorter than those of x W


def _sage(layer: pyg.SAGEConv, x: Tensor, total: NeighbourSum | Largest) -> Tensor:
    root = layer.lin_r.weight if layer.root_weight else None
    if layer.aggr == "max":  # not linear: the maximum comes first
        out = F.linear(total(x), layer.lin_l.weight, layer.lin_l.bias)
        out = out if root is None else torch.addmm(out, x, root.t())
    else:
        out = _neighbours_and_node(x, total, layer.lin_l.weight, layer.lin_l.bias, root)
    return F.normalize(out, p=2.0, dim=-1) if layer.normalize else out


def _graph(layer: pyg.GraphConv, x: Tensor, total: NeighbourSum) -> Tensor:
    rel = layer.lin_rel
    return _neighbours_and_node(x, total, rel.weight, rel.bias, layer.lin_root.weight)


def _le(layer: pyg.LEConv, x: Tensor, total: NeighbourSum) -> Tensor:
    """Sums of weight * (a[j] - b[i]): b[i] is the same for all edges of a target, and their weights are summed once."""
    out = total(_linear(layer.lin1, x)) - total(x.new_ones(x.shape[0], 1)) * _linear(layer.lin2, x)
    return out + _linear(layer.lin3, x)


def _neighbours_and_node(
    x: Tensor, total: NeighbourSum, weight: Tensor, bias: Tensor | None, root: Tensor | None
) -> Tensor:
    """A x W + x R + b, in the order with the shorter rows; `weight`, `root` (out, in)."""
    out, width = weight.shape
    sparse = features_of(x) is not None
    if root is not None and out < width and (sparse or WIDE_INPUT * out <= width):  # one product reads x once
        both = times(x, torch.cat([weight, root]))
        return _plus(total(both[:, :out]).add_(both[:, out:]), bias)
    if out < width or sparse:
        summed = total(times(x, weight))
        return _plus(summed if root is None else summed.add_(times(x, root)), bias)
    summed = total(x)
    targets = None if root is None else total.targets
    if targets is not None:  # many nodes have no edges: they are left out of the product
        return F.linear(x, root, bias).index_add(0, targets, F.linear(summed.index_select(0, targets), weight))
    summed = F.linear(summed, weight, bias)
    return summed if root is None else torch.addmm(summed, x, root.t())


def _gin(layer: pyg.GINConv, x: Tensor, total: NeighbourSum) -> Tensor:
    """nn(A x + (1 + eps) x); where `nn` begins with a linear layer that makes rows shorter, that comes first."""
    mlp = layer.nn
    first = first_of(mlp)
    if first is None or not plain_linear(first):
        return mlp(_with_own(total(x), x, layer.eps))
    if first.weight.shape[0] >= first.weight.shape[1] and features_of(x) is None:
        return mlp(_with_own(total(x), x, layer.eps))
    rows = times(x, first.weight)
    return after_first(mlp, _plus(_with_own(total(rows), rows, layer.eps), first.bias))


def first_of(mlp: nn.Module) -> nn.Module | None:
    """The module that a Sequential or PyG's MLP begins with; None of another one, or where it is hooked."""
    if hooked(mlp):
        return None
    if type(mlp) is nn.Sequential and len(mlp):
        return mlp[0]
    return mlp.lins[0] if type(mlp) is pyg.MLP and not torch.compiler.is_compiling() else None


def after_first(mlp: nn.Module, out: Tensor, first: int = 1) -> Tensor:
    """What the modules behind the `first` ones make of `out`."""
    if type(mlp) is nn.Sequential:
        for module in list(mlp)[first:]:
            out = module(out)
        return out
    rest = object.__new__(pyg.MLP)  # the same but for its first linear layer; `copy` takes 40 us
    lins = [_IDENTITY, *list(mlp.lins)[1:]]
    rest.__dict__ = {**mlp.__dict__, "_modules": {**mlp._modules, "lins": lins}}
    return rest(out)


def _with_own(summed: Tensor, x: Tensor, eps: Tensor) -> Tensor:
    return summed.addcmul_(x, 1 + eps)


def _relations(layer: pyg.RGCNConv, graph: Neighbours, types: Tensor | None, dtype: torch.dtype) -> Edges | None:
    """The graph from nodes to (node, relation): number i * R + r is what relation r sends to node i."""
    count = layer.num_relations
    if types is None or graph.num_nodes * count > MOST_RELATION_ROWS * graph.num_edges:
        return None

    def make() -> Edges | None:
        if bool(((types < 0) | (types >= count)).any()):  # PyG leaves them out
            return None
        source, target = graph.edge_index
        ends = torch.stack([source, target * count + types])
        return Edges(Neighbours.prepare(ends, graph.num_nodes * count, num_sources=graph.num_nodes))

    return graph.of_weight(types, ("relations", count), make)


def _rgcn(layer: pyg.RGCNConv, x: Tensor, edges: Edges) -> Tensor:
    """sum of A_r x W_r + x R + b: one sum for all relations, then one product."""
    relations, weight = layer.num_relations, layer.weight
    summed = edges.attend(layer, [x.unsqueeze(1)], relations)  # (N, R, F)
    if layer.num_blocks is not None:
        blocks = summed.unflatten(2, (layer.num_blocks, -1))
        out = torch.einsum("nrbc,rbcd->nbd", blocks, weight).flatten(1)
    else:
        if layer.num_bases is not None:
            weight = layer.comp @ weight.flatten(1)
        out = summed.flatten(1) @ weight.reshape(summed.shape[1] * summed.shape[2], -1)
    out = out if layer.root is None else torch.addmm(out, x, layer.root)
    return out if layer.bias is None else out + layer.bias


def _rgcn_attend(layer: pyg.RGCNConv, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """What each relation sends: x (N, 1, F) -> (N, R, F)."""
    (x,) = tensors
    total = _fixed_sum(edges.graph, None, x.dtype, layer.aggr == "mean")
    return total(x.squeeze(1)).view(x.shape[0], layer.num_relations, -1)


def _plus(fresh: Tensor, bias: Tensor | None) -> Tensor:
    return fresh if bias is None else fresh.add_(bias)  # nobody saved what a sum has just made


@dataclass(frozen=True)
class Edges:
    """A graph, and the features of its edges (E, D), if there are any, in the order of `graph.col` or `as_given`.

    `attend(layer, tensors)` -> (N, H, C): what the layer makes of its neighbours, from tensors that it made of x and
    its weights; `rows` is H where the layer has no `heads`.
    """

    graph: Neighbours
    features: Tensor | None = None
    as_given: bool = False

    def attend(self, layer: nn.Module, tensors: Sequence[Tensor], rows: int = 1) -> Tensor:
        return layer._form.attend(layer, tensors, self)


def _with_loops(layer: nn.Module, graph: Neighbours, values: Tensor | None, dtype: torch.dtype) -> Edges:
    """Where the layer wants it, every node gets exactly one self-loop, with the mean of the features that it got."""
    loops = getattr(layer, "add_self_loops", False)
    looped = graph.looped if loops else graph
    if layer.edge_dim is None or values is None:
        return Edges(looped)
    features = graph.sorted_weight(values.view(-1, 1) if values.dim() == 1 else values)
    return Edges(looped, _fill_loops(features, graph, looped) if loops else features)


def _fill_loops(features: Tensor, graph: Neighbours, looped: Neighbours) -> Tensor:
    """Features (E, D) of `graph`, for the edges of `looped`: a loop has the mean of the edges that end at its node."""
    entries, weight = graph.once("filled loops", lambda: _filled(graph, looped))
    return weighted_sum_sorted(features, entries, weight.to(features.dtype))


def _filled(graph: Neighbours, looped: Neighbours) -> tuple[Neighbours, Tensor]:
    """A graph from the edges to those with loops, and the weight of each of its entries, float64."""
    nodes = graph.num_nodes
    stays = (graph.edge_index[0] != graph.edge_index[1]).nonzero().view(-1)  # as given, loops left out
    ends = graph.edge_index[1].index_select(0, stays)
    source = graph.place.long().index_select(0, stays)  # where each stands in `features`
    place = looped.place.long()  # of the edges that stay, then of the loops
    targets = torch.cat([place[: stays.shape[0]], place[stays.shape[0] :].index_select(0, ends)])
    entries = Neighbours.prepare(
        torch.stack([source.repeat(2), targets]), looped.num_edges, num_sources=graph.num_edges
    )
    share = 1 / torch.bincount(ends, minlength=nodes).double().index_select(0, ends)
    return entries, torch.cat([torch.ones_like(share), share]).index_select(0, entries.order)


def _gat(layer: pyg.GATConv, x: Tensor, edges: Edges) -> Tensor:
    heads, width, weight = layer.heads, layer.out_channels, layer.lin.weight
    vectors = torch.cat([layer.att_src, layer.att_dst])  # (2, H, C)
    of_edges = [] if layer.edge_dim is None else [_folded(layer.att_edge, layer.lin_edge.weight)]
    if x.shape[1] <= width and features_of(x) is None:  # rows of x are shorter than those of a head
        both = F.linear(x, _folded(vectors, weight))
        out = _projected(layer, edges.attend(layer, [x.unsqueeze(1), both, *of_edges]))
    else:
        values = times(x, weight)
        block = torch.diag_embed(vectors.transpose(1, 2), dim1=1, dim2=3).permute(1, 2, 0, 3)  # (H, C, 2, H)
        both = values @ block.reshape(values.shape[1], -1)
        out = edges.attend(layer, [values.view(-1, heads, width), both, *of_edges])
    return _finished(layer, x, out)


def _gat_attend(layer: pyg.GATConv, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Sums of softmax(LeakyReLU(source[j] + target[i] + vector . e)) * values[j]; tensors: values (N, H or 1, C), the
    scores of both ends (N, 2 H), vectors (H, D) for the features of edges."""
    (values, both, *of_edges), graph = tensors, edges.graph
    source, target = both.split(layer.heads, dim=1)
    if _is_dense(layer, edges):
        pairs = target.t().unsqueeze(2) + source.t().unsqueeze(1)
        return _attended_densely(F.leaky_relu(pairs, layer.negative_slope), values, graph)
    if edges.features is None:
        scores = attention.pair_scores(source, target, graph, layer.negative_slope)
    else:
        scores = attention.pair_scores(source, target, graph) + F.linear(edges.features, of_edges[0])
        scores = F.leaky_relu(scores, layer.negative_slope)
    return attention.attend(scores, values, graph, _dropout_mask(layer, scores, graph))


def _folded(vectors: Tensor, weight: Tensor) -> Tensor:
    """a . W of each head, (K H, in): `vectors` (K, H, C), `weight` (H C, in)."""
    heads, width = vectors.shape[1:]
    return (vectors.transpose(0, 1) @ weight.view(heads, width, -1)).transpose(0, 1).reshape(-1, weight.shape[1])


def _is_dense(layer: nn.Module, edges: Edges) -> bool:
    """Is the graph small, so that attention over all pairs of nodes, masked, takes a few calls and less time?"""
    return edges.features is None and not (layer.dropout and layer.training) and is_dense(edges.graph)


def _attended_densely(scores: Tensor, values: Tensor, graph: Neighbours) -> Tensor:
    """`scores` (H, N, N) of all pairs (target, source), `values` (N, H or 1, C) -> (N, H, C); an edge that comes k
    times adds log k to its score."""
    alpha = (scores + graph.cast("log_counts", scores.dtype)).softmax(dim=-1)
    if graph.once("some isolated", lambda: bool(graph.isolated.any())):
        alpha = alpha.masked_fill(graph.isolated, 0)
    return (alpha @ values.transpose(0, 1)).transpose(0, 1)


def _projected(layer: pyg.GATConv, pooled: Tensor) -> Tensor:
    """W of each head applied to rows of x that were summed before it; pooled (N, H, in) -> (N, H, C)."""
    weight = layer.lin.weight.view(layer.heads, layer.out_channels, -1)
    if layer.heads == 1:
        return F.linear(pooled.squeeze(1), weight[0]).unsqueeze(1)
    return torch.bmm(pooled.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def _gatv2(layer: pyg.GATv2Conv, x: Tensor, edges: Edges) -> Tensor:
    shape = -1, layer.heads, layer.out_channels
    source = _linear(layer.lin_l, x).view(shape)
    target = source if layer.share_weights else _linear(layer.lin_r, x).view(shape)
    of_edges = [] if layer.edge_dim is None else [layer.lin_edge.weight]
    return _finished(layer, x, edges.attend(layer, [source, target, layer.att[0], *of_edges]))


def _gatv2_attend(layer: pyg.GATv2Conv, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Sums of softmax(vector . LeakyReLU(source[j] + target[i] + W e)) * source[j]."""
    source, target, vector, *weight = tensors
    if _is_dense(layer, edges) and source.shape[0] * source.numel() <= DENSE_NUMBERS:
        pairs = F.leaky_relu(target.unsqueeze(1) + source, layer.negative_slope)  # (N, N, H, C)
        return _attended_densely((pairs * vector).sum(-1).permute(2, 0, 1), source, edges.graph)
    edge = None if edges.features is None else F.linear(edges.features, weight[0]).view(-1, *vector.shape)
    scores = attention.additive_scores(source, target, vector, edges.graph, layer.negative_slope, edge)
    return attention.attend(scores, source, edges.graph, _dropout_mask(layer, scores, edges.graph))


def _transformer(layer: pyg.TransformerConv, x: Tensor, edges: Edges) -> Tensor:
    shape = -1, layer.heads, layer.out_channels
    tensors = [_linear(linear, x).view(shape) for linear in (layer.lin_value, layer.lin_query, layer.lin_key)]
    tensors += [] if layer.edge_dim is None else [layer.lin_edge.weight]
    out = edges.attend(layer, tensors)
    out = out.flatten(1) if layer.concat else out.mean(dim=1)
    if not layer.root_weight:
        return out
    own = _linear(layer.lin_skip, x)
    if layer.lin_beta is None:
        return out + own
    beta = layer.lin_beta(torch.cat([out, own, out - own], dim=-1)).sigmoid()
    return beta * own + (1 - beta) * out


def _transformer_attend(layer: pyg.TransformerConv, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Sums of softmax(q[i] . (k[j] + W e) / sqrt(C)) * (v[j] + W e), without W e of any edge.

    q . (W e) = (q W) . e, and the sum of alpha W e is W times the sum of alpha e: features e are the sources of a graph
    from edges to targets.
    """
    (value, query, key, *weight), graph = tensors, edges.graph
    scale = layer.out_channels**-0.5
    if _is_dense(layer, edges):
        return _attended_densely(query.transpose(0, 1) @ key.permute(1, 2, 0) * scale, value, graph)
    scores = attention.head_products(query, key, graph)
    if edges.features is None:
        scores = scores * scale
        return attention.attend(scores, value, graph, _dropout_mask(layer, scores, graph))
    features, by_head = edges.features.unsqueeze(1), weight[0].view(layer.heads, layer.out_channels, -1)
    of_edges = graph.of_edges
    asked = torch.einsum("nhc,hcd->nhd", query, by_head)
    scores = (scores + attention.head_products(asked, features, of_edges)) * scale
    alpha = attention.segment_softmax(scores, graph)
    keep = _dropout_mask(layer, alpha, graph)
    alpha = alpha if keep is None else alpha * keep
    summed = attention.head_sum(features, of_edges, alpha)
    return attention.head_sum(value, graph, alpha) + torch.einsum("nhd,hcd->nhc", summed, by_head)


def _linear(module: nn.Module, x: Tensor) -> Tensor:
    out = times(x, module.weight)
    return out if module.bias is None else out + module.bias


def _dropout_mask(layer: nn.Module, scores: Tensor, graph: Neighbours) -> Tensor | None:
    """What the softmax (E, H) is multiplied with in training; drawn in PyG's order, so equal seeds draw the same."""
    if not (layer.dropout and layer.training):
        return None
    drawn = F.dropout(scores.new_ones(graph.num_edges, layer.heads), layer.dropout)
    return drawn.index_select(0, graph.order)


def _finished(layer: nn.Module, x: Tensor, out: Tensor) -> Tensor:
    """Heads (N, H, C) joined or averaged, the residual and the bias added."""
    out = out.flatten(1) if layer.concat else out.mean(dim=1)
    out = out if getattr(layer, "res", None) is None else out + layer.res(x)
    return out if layer.bias is None else out + layer.bias


def _needs(*allowed: str) -> Callable[[nn.Module], str]:
    return lambda layer: "" if layer.aggr in allowed else f"aggr={layer.aggr!r}"


def _sage_why_not(layer: pyg.SAGEConv) -> str:
    if layer.project:
        return "a projection before the sum"
    return _needs("add", "sum", "mean", "max")(layer)


def _attention_why_not(layer: nn.Module) -> str:
    if layer.aggr not in ("add", "sum"):
        return f"aggr={layer.aggr!r}"
    if isinstance(layer, pyg.GATConv) and layer.lin is None:
        return "two kinds of nodes"
    loops = layer.edge_dim is not None and getattr(layer, "add_self_loops", False)
    return f"fill_value={layer.fill_value!r}" if loops and layer.fill_value != "mean" else ""


_TRANSFORMER = ("lin_query", "lin_key", "lin_value", "lin_skip", "lin_edge")
FORMS: dict[type[nn.Module], Form] = {
    pyg.GCNConv: Form(_gcn, _gcn_sum, ("lin",), "edge_weight", _needs("add", "sum")),
    pyg.SAGEConv: Form(_sage, _sum_or_mean, ("lin_l", "lin_r"), "", _sage_why_not),
    pyg.GINConv: Form(_gin, _sum_or_mean, (), "", _needs("add", "sum")),
    pyg.GraphConv: Form(_graph, _sum_or_mean, ("lin_rel", "lin_root"), "edge_weight", _needs("add", "sum", "mean")),
    pyg.LEConv: Form(_le, _sum_or_mean, ("lin1", "lin2", "lin3"), "edge_weight", _needs("add", "sum")),
    pyg.RGCNConv: Form(_rgcn, _relations, (), "edge_type", _needs("add", "sum", "mean"), _rgcn_attend),
    pyg.GATConv: Form(_gat, _with_loops, ("lin", "lin_edge"), "edge_attr", _attention_why_not, _gat_attend),
    pyg.GATv2Conv: Form(
        _gatv2, _with_loops, ("lin_l", "lin_r", "lin_edge"), "edge_attr", _attention_why_not, _gatv2_attend
    ),
    pyg.TransformerConv: Form(
        _transformer, _with_loops, _TRANSFORMER, "edge_attr", _attention_why_not, _transformer_attend
    ),
}
