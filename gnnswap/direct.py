"""Kernels of common layers: a layer's own parameters, and sums over the prepared graph.

    kernel = kernel_of(type(layer))
    options = kernel.options(layer)                                  # settings of the layer that are no tensors
    prepared = kernel.prepare(options, neighbours, edge_values, x.dtype)
    kernel.run(layer, x, prepared)                                   # what layer(x, edge_index, edge_values) gives

What makes them fast: one segment sum in place of gather and scatter (`sums`); the linear layer before or after the
sum, whichever makes the summed rows shorter; zeros of sparse features left out (`sparse`); attention scores from folded
weights; what depends on the graph alone, such as GCN's norm, computed once. A kernel serves one graph, x (N, F) in a
type that its device has kernels for (`backends`). Every other call runs PyG's own code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import aggr
from torch_geometric.nn.aggr.fused import FusedAggregation

from gnnswap import attention, backends
from gnnswap.aggregation import weighted_sum_sorted
from gnnswap.guards import hooked
from gnnswap.neighbours import Neighbours
from gnnswap.sparse import SparseInput, sparse_linear
from gnnswap.sums import NeighbourMax, NeighbourSum, fixed_sum, gcn_sum, is_dense

LINEAR = (nn.Linear, pyg.Linear)
AGGREGATIONS = {
    aggr.SumAggregation: "sum",
    aggr.MeanAggregation: "mean",
    aggr.MinAggregation: "min",
    aggr.MaxAggregation: "max",
    aggr.VarAggregation: "var",
    aggr.StdAggregation: "std",
    aggr.SoftmaxAggregation: "softmax",
}
# modules inside a layer whose code kernels reproduce: what they open must be of exactly one of these classes
KNOWN = {*LINEAR, *AGGREGATIONS, aggr.MultiAggregation, aggr.DegreeScalerAggregation, FusedAggregation,
         nn.Sequential, nn.ModuleList, pyg.MLP, nn.ReLU, nn.Sigmoid}  # fmt: skip
WIDE_INPUT = 4  # inputs over outputs from which one product for neighbours and node beats two: 1.1x at 4, 1.2x at 22
MOST_RELATION_ROWS = 4  # rows of (node, relation) an edge; beyond it most of RGCN's sums are zeros
DENSE_NUMBERS = 1 << 17  # N x N x H x C up to which GATv2 goes over all pairs of nodes
_IDENTITY = nn.Identity()
Options = tuple  # of numbers, texts, None and tuples of these: compared by value, written as text


@dataclass(frozen=True)
class LayerKernel:
    """The fast implementation of one class of PyG.

    Args:
        kind: the class.
        run: (layer, x, prepared) -> out; reads the layer's parameters and options in each call.
        prepare: (options, neighbours, values, dtype) -> what `run` takes for this graph; None where it cannot serve it.
        options: layer -> the settings, no tensors, that `prepare` and `attend` depend on.
        opened: layer -> the modules inside whose weights `run` reads without calling them.
        values: the argument of the layer's forward with a value for each edge, "" where there is none.
        why_not: layer -> why an option rules the kernel out, "" where none does.
        attend: (options, tensors, edges) -> (N, H, C), the aggregated messages, where `prepare` gives `Edges`; None
            where it gives a sum.
    """

    kind: type[nn.Module]
    run: Callable[[nn.Module, Tensor, Any], Tensor]
    prepare: Callable[[Options, Neighbours, Tensor | None, torch.dtype], Any]
    options: Callable[[nn.Module], Options]
    opened: Callable[[nn.Module], list[nn.Module]]
    values: str
    why_not: Callable[[nn.Module], str]
    attend: Callable[[Options, Sequence[Tensor], Edges], Tensor] | None = None

    @property
    def name(self) -> str:
        return self.kind.__name__

    def prepared(
        self, options: Options, graph: Neighbours, values: Tensor | None, dtype: torch.dtype, sum_kernel: str
    ) -> Any:
        """`prepare`, and a sum with fixed weights by this kernel."""
        made = self.prepare(options, graph, values, dtype)
        return made.by(sum_kernel) if isinstance(made, NeighbourSum) else made

    def takes(self, values: Tensor, x: Tensor, edge_index: Tensor) -> bool:
        """Can these values of edges be served? Weights that are learned change in each step: they cannot."""
        if not self.values or type(values) not in (Tensor, nn.Parameter):
            return False
        if values.dtype not in ((torch.int64, torch.int32) if self.values == "edge_type" else (x.dtype,)):
            return False
        if values.dim() == 0 or values.shape[0] != edge_index.shape[1] or values.device != x.device:
            return False
        return values.dim() <= 2 if self.values == "edge_attr" else values.dim() == 1 and not values.requires_grad


def kernel_of(kind: type[nn.Module]) -> LayerKernel | None:
    """The kernel of this class or of its nearest base that has one. `equivalence` tells whether it is equal there."""
    return next((KERNELS[base] for base in kind.__mro__ if base in KERNELS), None)


def why_not(layer: nn.Module) -> str:
    """Why this layer has no own kernel, in a few words; empty where it has one."""
    kernel = kernel_of(type(layer))
    if kernel is None:
        return "no own kernel"
    if layer.flow != "source_to_target" or layer.decomposed_layers != 1 or getattr(layer, "cached", False):
        return "its flow, decomposed layers or PyG's own cache"
    if any(map(nn.parameter.is_lazy, layer.parameters())):
        return "its weights have no shape before the first call"
    why = kernel.why_not(layer)  # first: `opened` relies on it
    if why:
        return why
    for module in kernel.opened(layer):
        if type(module) not in KNOWN:
            return f"a {type(module).__name__} inside, whose code it does not know"
        if hooked(module):
            return f"hooks of its {type(module).__name__}"
    return ""


def opens(*names: str) -> Callable[[nn.Module], list[nn.Module]]:
    """The modules of a layer that have these names, where it has them, and its aggregation."""

    def opened(layer: nn.Module) -> list[nn.Module]:
        modules = layer._modules
        return [modules[name] for name in (*names, "aggr_module") if modules.get(name) is not None]

    return opened


def kind_of(layer: nn.Module) -> str:
    """The name of its aggregation, such as "sum"; that of its class where no kernel computes it."""
    kind = type(layer.aggr_module)
    return AGGREGATIONS.get(kind, kind.__name__)


def needs(*allowed: str) -> Callable[[nn.Module], str]:
    """Rules out all other aggregations."""

    def why(layer: nn.Module) -> str:
        return "" if kind_of(layer) in allowed else f"aggr={layer.aggr!r}"

    return why


def no_options(layer: nn.Module) -> Options:
    return ()


def _sparse(layer: nn.Module, x: Tensor) -> SparseInput | None:
    """The nonzeros of an x that is mostly zeros; None for any other, and within a trace, where x has no values."""
    return None if torch.compiler.is_compiling() else layer._fast.caches.inputs.get(x)


def _linear(layer: nn.Module, module: nn.Module, x: Tensor) -> Tensor:
    """`module(x)` of a linear layer inside, without the zeros of x."""
    known = _sparse(layer, x)
    if known is None:
        return F.linear(x, module.weight, module.bias)
    return _plus(sparse_linear(x, module.weight, known), module.bias)


# ---- sums of rows ---------------------------------------------------------------------------------------------------


def _gcn_options(layer: pyg.GCNConv) -> Options:
    """(is there a norm, the weight of the self-loops that are added, None without)."""
    loop = 2.0 if layer.improved else 1.0
    return bool(layer.normalize), loop if layer.add_self_loops else None


def _gcn_sum(options: Options, graph: Neighbours, weight: Tensor | None, dtype: torch.dtype) -> NeighbourSum:
    normalize, loop = options
    if not normalize:
        return graph.cached_by_weight(weight, fixed_sum, dtype, False)
    return graph.cached_by_weight(weight, gcn_sum, dtype, loop)


def _aggr_options(layer: nn.Module) -> Options:
    return (kind_of(layer),)


def _aggregation(
    options: Options, graph: Neighbours, weight: Tensor | None, dtype: torch.dtype
) -> NeighbourSum | NeighbourMax:
    (kind,) = options
    if kind == "max":
        return graph.cached(NeighbourMax)
    return graph.cached_by_weight(weight, fixed_sum, dtype, kind == "mean")


def _gcn(layer: pyg.GCNConv, x: Tensor, total: NeighbourSum) -> Tensor:
    weight = layer.lin.weight
    known = _sparse(layer, x)
    if weight.shape[0] <= weight.shape[1] or known is not None:
        return _plus(total(sparse_linear(x, weight, known)), layer.bias)
    return F.linear(total(x), weight, layer.bias)  # rows of x are shorter than those of x W


def _sage(layer: pyg.SAGEConv, x: Tensor, total: NeighbourSum | NeighbourMax) -> Tensor:
    root = layer.lin_r.weight if layer.root_weight else None
    if kind_of(layer) == "max":  # not linear: the maximum comes first
        out = F.linear(total(x), layer.lin_l.weight, layer.lin_l.bias)
        out = out if root is None else torch.addmm(out, x, root.t())
    else:
        out = _neighbours_and_node(layer, x, total, layer.lin_l, root)
    return F.normalize(out, p=2.0, dim=-1) if layer.normalize else out


def _sage_why_not(layer: pyg.SAGEConv) -> str:
    return "a projection before the sum" if layer.project else needs("sum", "mean", "max")(layer)


def _graph(layer: pyg.GraphConv, x: Tensor, total: NeighbourSum) -> Tensor:
    return _neighbours_and_node(layer, x, total, layer.lin_rel, layer.lin_root.weight)


def _le(layer: pyg.LEConv, x: Tensor, total: NeighbourSum) -> Tensor:
    """Sums of weight * (a[j] - b[i]): b[i] is factored out, and the weights of a target are summed."""
    weights = total(x.new_ones(x.shape[0], 1))
    own = _linear(layer, layer.lin2, x).masked_fill(weights == 0, 0.0)  # infinite ones count only where there are edges
    return total(_linear(layer, layer.lin1, x)) - weights * own + _linear(layer, layer.lin3, x)


def _neighbours_and_node(
    layer: nn.Module, x: Tensor, total: NeighbourSum, linear: nn.Module, root: Tensor | None
) -> Tensor:
    """A x W + x R + b, in the order with the shorter rows; weights (out, in)."""
    weight, bias, known = linear.weight, linear.bias, _sparse(layer, x)
    out, width = weight.shape
    if root is not None and out < width and (known is not None or WIDE_INPUT * out <= width):  # x is read once
        both = sparse_linear(x, torch.cat([weight, root]), known)
        return _plus(total(both[:, :out]).add_(both[:, out:]), bias)
    if out < width or known is not None:
        summed = total(sparse_linear(x, weight, known))
        return _plus(summed if root is None else summed.add_(sparse_linear(x, root, known)), bias)
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
    if type(first) not in LINEAR:
        return mlp(_with_own(total(x), x, layer.eps))
    known = _sparse(layer, x)
    if first.weight.shape[0] >= first.weight.shape[1] and known is None:
        return mlp(_with_own(total(x), x, layer.eps))
    rows = sparse_linear(x, first.weight, known)
    return after_first(mlp, _plus(_with_own(total(rows), rows, layer.eps), first.bias))


def _gin_opens(layer: pyg.GINConv) -> list[nn.Module]:
    return [layer.aggr_module, *entered(layer.nn)]


def _with_own(summed: Tensor, x: Tensor, eps: Tensor) -> Tensor:
    return summed.addcmul_(x, 1 + eps)


def _plus(fresh: Tensor, bias: Tensor | None) -> Tensor:
    return fresh if bias is None else fresh.add_(bias)  # autograd saved no fresh sum


def first_of(mlp: nn.Module) -> nn.Module | None:
    """The first module of a Sequential or of PyG's MLP; None for any other."""
    if type(mlp) is nn.Sequential and len(mlp):
        return mlp[0]
    return mlp.lins[0] if type(mlp) is pyg.MLP and not torch.compiler.is_compiling() else None


def entered(mlp: nn.Module) -> list[nn.Module]:
    """The modules that `first_of` and `after_first` do not call: the network and its first linear layer."""
    if type(mlp) is pyg.MLP:
        return [mlp, mlp.lins, mlp.lins[0]]
    if type(mlp) is nn.Sequential:
        return [mlp, *(one for one in [first_of(mlp)] if type(one) in LINEAR)]
    return []


def after_first(mlp: nn.Module, out: Tensor, first: int = 1) -> Tensor:
    """The output of the network after its `first` modules gave `out`."""
    if type(mlp) is nn.Sequential:
        for module in list(mlp)[first:]:
            out = module(out)
        return out
    rest = object.__new__(pyg.MLP)  # the same but for its first linear layer; `copy` takes 40 us
    lins = [_IDENTITY, *list(mlp.lins)[1:]]
    rest.__dict__ = {**mlp.__dict__, "_modules": {**mlp._modules, "lins": lins}}
    return rest(out)


# ---- edges ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    """A graph, and the features of its edges (E, D), if there are any, in the order of `graph.col` or `as_given`.

    `keep` (E, H): the dropout mask of the attention weights, None without dropout.
    """

    graph: Neighbours
    features: Tensor | None = None
    as_given: bool = False
    keep: Tensor | None = None

    def dense(self, values: Tensor) -> bool:
        """Is attention over all pairs of nodes faster, and as precise? On a CPU; elsewhere it would wait for the device
        to say whether all is finite."""
        if self.features is not None or self.keep is not None or not values.is_cpu:
            return False
        return is_dense(self.graph)

    def attend(self, attend: Callable, options: Options, tensors: Sequence[Tensor], rows: int = 1) -> Tensor:
        """`attend(options, tensors, self)`, (N, rows, C). Within a trace `compile_ops.Traced` takes its place."""
        return attend(options, tensors, self)


def _rgcn_options(layer: pyg.RGCNConv) -> Options:
    """(R, is the mean of each relation taken, are edges of no relation left out?)"""
    return layer.num_relations, kind_of(layer) == "mean", layer.num_blocks is not None


def _relations(options: Options, graph: Neighbours, types: Tensor | None, dtype: torch.dtype) -> Edges | None:
    """The graph from nodes to (node, relation): target i * R + r is what relation r sends to node i."""
    count, _, left_out = options
    if types is None or _mostly_empty(graph.num_nodes, count, graph.num_edges):
        return None
    ends = graph.cached_by_weight(types, _by_relation, count, left_out)
    return None if ends is None else Edges(ends)


def _by_relation(graph: Neighbours, types: Tensor, count: int, left_out: bool) -> Neighbours | None:
    source, target = graph.edge_index
    ends = torch.stack([source, target * count + types])
    known = (types >= 0) & (types < count)
    if not known.all():
        if not left_out:
            return None  # PyG raises an error
        ends = ends[:, known]
    return Neighbours.prepare(ends, graph.num_nodes * count, num_sources=graph.num_nodes)


def _mostly_empty(nodes: int, relations: int, edges: int) -> bool:
    return nodes * relations > MOST_RELATION_ROWS * edges


def _rgcn(layer: pyg.RGCNConv, x: Tensor, edges: Any) -> Tensor:
    """sum of A_r x W_r + x R + b: one sum for all relations, then one product."""
    relations, weight = layer.num_relations, layer.weight
    if not isinstance(edges, Edges) and _mostly_empty(x.shape[0], relations, edges.edge_index.shape[1]):
        return pyg.RGCNConv.forward(layer, x, edges.edge_index, edges.features)
    summed = edges.attend(_sum_by_relation, _rgcn_options(layer), [x.unsqueeze(1)], relations)  # (N, R, F)
    if layer.num_blocks is not None:
        blocks = summed.unflatten(2, (layer.num_blocks, -1))
        out = torch.einsum("nrbc,rbcd->nbd", blocks, weight).flatten(1)
    else:
        if layer.num_bases is not None:
            weight = layer.comp @ weight.flatten(1)
        out = summed.flatten(1) @ weight.reshape(summed.shape[1] * summed.shape[2], -1)
    out = out if layer.root is None else torch.addmm(out, x, layer.root)
    return out if layer.bias is None else out + layer.bias


def _sum_by_relation(options: Options, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """The sum or mean over each relation: x (N, 1, F) -> (N, R, F)."""
    (x,), (relations, mean, _) = tensors, options
    total = edges.graph.cached_by_weight(None, fixed_sum, x.dtype, mean)
    return total(x.squeeze(1)).view(x.shape[0], relations, -1)


# ---- attention ------------------------------------------------------------------------------------------------------


def _attention_options(layer: nn.Module) -> Options:
    """(are self-loops added, does the layer take features of edges, H, C, the slope of LeakyReLU)."""
    loops, slope = False, 0.0
    if not isinstance(layer, pyg.TransformerConv):  # which has neither
        loops, slope = bool(layer.add_self_loops), layer.negative_slope
    return loops, layer.edge_dim is not None, layer.heads, layer.out_channels, slope


def _attention_why_not(layer: nn.Module) -> str:
    if isinstance(layer, pyg.GATConv) and layer.lin is None:
        return "two kinds of nodes"
    loops = layer.edge_dim is not None and getattr(layer, "add_self_loops", False)
    if loops and not (isinstance(layer.fill_value, str) and layer.fill_value == "mean"):
        return f"fill_value={layer.fill_value!r}"
    return needs("sum")(layer)


def _with_loops(options: Options, graph: Neighbours, values: Tensor | None, dtype: torch.dtype) -> Edges:
    """If the layer adds self-loops every node has exactly one, whose features are the mean of its incoming edges'."""
    loops, with_features, *_ = options
    looped = graph.with_self_loops if loops else graph
    if not with_features or values is None:
        return Edges(looped)
    features = graph.sorted_weight(values.view(-1, 1) if values.dim() == 1 else values)
    if loops:
        entries, weight = graph.cached(_loop_features)
        features = weighted_sum_sorted(features, entries, weight.to(features.dtype))
    return Edges(looped, features)


def _loop_features(graph: Neighbours) -> tuple[Neighbours, Tensor]:
    """A sparse matrix from the features of edges to those with loops: a graph, and the float64 weights of its edges."""
    nodes, looped = graph.num_nodes, graph.with_self_loops
    stays = (graph.edge_index[0] != graph.edge_index[1]).nonzero().view(-1)  # as given, loops left out
    ends = graph.edge_index[1].index_select(0, stays)
    source = graph.position.long().index_select(0, stays)  # where each stands in `features`
    place = looped.position.long()  # of the edges that stay, then of the loops
    targets = torch.cat([place[: stays.shape[0]], place[stays.shape[0] :].index_select(0, ends)])
    entries = Neighbours.prepare(
        torch.stack([source.repeat(2), targets]), looped.num_edges, num_sources=graph.num_edges
    )
    share = 1 / torch.bincount(ends, minlength=nodes).double().index_select(0, ends)
    return entries, torch.cat([torch.ones_like(share), share]).index_select(0, entries.permutation)


def _with_dropout(layer: nn.Module, x: Tensor, edges: Any) -> Any:
    """In training the dropout mask of the attention weights, drawn in PyG's order: equal seeds draw the same."""
    if not (layer.dropout and layer.training):
        return edges
    graph = edges.graph
    drawn = F.dropout(x.new_ones(graph.num_edges, layer.heads), layer.dropout)
    return dataclasses.replace(edges, keep=drawn.index_select(0, graph.permutation))


def _gat(layer: pyg.GATConv, x: Tensor, edges: Any) -> Tensor:
    heads, width, weight = layer.heads, layer.out_channels, layer.lin.weight
    options, edges = _attention_options(layer), _with_dropout(layer, x, edges)
    vectors = torch.cat([layer.att_src, layer.att_dst])  # (2, H, C)
    of_edges = [_folded(layer.att_edge, weight)[0] for weight in _edge_weight(layer, edges)]
    known = _sparse(layer, x)
    if x.shape[1] <= width and known is None:  # rows of x are shorter than those of a head
        tensors = [x.unsqueeze(1), _folded(vectors, weight), *of_edges]
        out = _projected(layer, edges.attend(_gat_attend, options, tensors, heads))
    else:
        values = sparse_linear(x, weight, known).view(-1, heads, width)
        if backends.triton_for(x):  # cuBLAS takes longer for the gradient of the vectors than all else takes
            vectors = F.linear(x, _folded(vectors, weight).flatten(0, 1))
        out = edges.attend(_gat_attend, options, [values, vectors, *of_edges], heads)
    return _finished(layer, x, out)


def _edge_weight(layer: nn.Module, edges: Any) -> list[Tensor]:
    """[the weight for features of edges], [] where the layer or these edges have none."""
    return [] if layer.edge_dim is None or edges.features is None else [layer.lin_edge.weight]


def _gat_attend(options: Options, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Sums of softmax(LeakyReLU(source[j] + target[i] + vector . e)) * values[j]; tensors: values (N, H or 1, C),
    vectors of source and target (2, H, C), or the scores of each node (N, 2 H); vectors (H, D) for the features
    of edges."""
    (values, vectors, *of_edges), graph = tensors, edges.graph
    *_, slope = options
    if edges.dense(values):
        return attention.dense_pairs(values, vectors, graph, slope)
    source, target = attention.end_scores(values, vectors) if vectors.dim() == 3 else vectors.chunk(2, dim=1)
    of_edges = None if edges.features is None else F.linear(edges.features, of_edges[0])
    out = attention.fused_attention("gat", target, source, values, graph, edge=of_edges, keep=edges.keep, slope=slope)
    if out is not None:
        return out
    if of_edges is None:
        scores = attention.pair_scores(source, target, graph, slope)
    else:
        scores = F.leaky_relu(attention.pair_scores(source, target, graph) + of_edges, slope)
    return attention.attend(scores, values, graph, edges.keep)


def _folded(vectors: Tensor, weight: Tensor) -> Tensor:
    """a . W of each head, (K, H, in): `vectors` (K, H, C), `weight` (H C, in)."""
    return torch.bmm(vectors.transpose(0, 1), weight.view(*vectors.shape[1:], -1)).transpose(0, 1)


def _projected(layer: pyg.GATConv, pooled: Tensor) -> Tensor:
    """W of each head applied after the sum: pooled (N, H, in) -> (N, H, C)."""
    weight = layer.lin.weight
    if layer.heads == 1:
        return F.linear(pooled.squeeze(1), weight).unsqueeze(1)
    weight = weight.view(layer.heads, layer.out_channels, -1)
    return torch.bmm(pooled.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def _gatv2(layer: pyg.GATv2Conv, x: Tensor, edges: Any) -> Tensor:
    shape = -1, layer.heads, layer.out_channels
    edges = _with_dropout(layer, x, edges)
    source = _linear(layer, layer.lin_l, x).view(shape)
    target = source if layer.share_weights else _linear(layer, layer.lin_r, x).view(shape)
    tensors = [source, target, layer.att[0], *_edge_weight(layer, edges)]
    return _finished(layer, x, edges.attend(_gatv2_attend, _attention_options(layer), tensors, layer.heads))


def _gatv2_attend(options: Options, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Sums of softmax(vector . LeakyReLU(source[j] + target[i] + W e)) * source[j]."""
    source, target, vector, *weight = tensors
    *_, slope = options
    if edges.dense(source) and source.shape[0] * source.numel() <= DENSE_NUMBERS:
        return attention.dense_additive(source, target, vector, edges.graph, slope)
    edge = None if edges.features is None else F.linear(edges.features, weight[0]).view(-1, *vector.shape)
    given = {"vector": vector, "edge": edge, "keep": edges.keep, "slope": slope}
    out = attention.fused_attention("gatv2", target, None, source, edges.graph, **given)
    if out is not None:
        return out
    scores = attention.additive_scores(source, target, vector, edges.graph, slope, edge)
    return attention.attend(scores, source, edges.graph, edges.keep)


def _transformer(layer: pyg.TransformerConv, x: Tensor, edges: Any) -> Tensor:
    shape = -1, layer.heads, layer.out_channels
    edges = _with_dropout(layer, x, edges)
    tensors = [_linear(layer, one, x).view(shape) for one in (layer.lin_value, layer.lin_query, layer.lin_key)]
    tensors += _edge_weight(layer, edges)
    out = edges.attend(_transformer_attend, _attention_options(layer), tensors, layer.heads)
    out = out.flatten(1) if layer.concat else out.mean(dim=1)
    if not layer.root_weight:
        return _unsaved(out)
    own = _linear(layer, layer.lin_skip, x)
    if layer.lin_beta is None:
        return out + own
    beta = layer.lin_beta(torch.cat([out, own, out - own], dim=-1)).sigmoid()
    return beta * own + (1 - beta) * out


def _transformer_attend(options: Options, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Sums of softmax(q[i] . (k[j] + W e) / sqrt(C)) * (v[j] + W e), without W e of any edge.

    q . (W e) = (q W) . e, and the sum of alpha W e is W times the sum of alpha e: features e are the sources of a graph
    from edges to targets.
    """
    (value, query, key, *weight), graph = tensors, edges.graph
    *_, heads, width, _ = options
    scale = width**-0.5
    if edges.dense(value):
        return attention.dense_products(value, query, key, graph, scale)
    if edges.features is None:
        out = attention.fused_attention("transformer", query, key, value, graph, keep=edges.keep, scale=scale)
        if out is not None:
            return out
        return attention.attend(attention.head_products(query, key, graph) * scale, value, graph, edges.keep)
    scores = attention.head_products(query, key, graph)
    features, by_head = edges.features.unsqueeze(1), weight[0].view(heads, width, -1)
    of_edges = graph.of_edges
    asked = torch.einsum("nhc,hcd->nhd", query, by_head)
    scores = (scores + attention.head_products(asked, features, of_edges)) * scale
    alpha = attention.segment_softmax(scores, graph)
    alpha = alpha if edges.keep is None else alpha * edges.keep
    summed = attention.head_sum(features, of_edges, alpha)
    return attention.head_sum(value, graph, alpha) + torch.einsum("nhd,hcd->nhc", summed, by_head)


def _finished(layer: nn.Module, x: Tensor, out: Tensor) -> Tensor:
    """Heads (N, H, C) concatenated or averaged, plus residual and bias."""
    out = out.flatten(1) if layer.concat else out.mean(dim=1)
    out = out if getattr(layer, "res", None) is None else out + layer.res(x)
    return _unsaved(out) if layer.bias is None else out + layer.bias


def _unsaved(out: Tensor) -> Tensor:
    """A copy where Triton's attention saved its result for the backward pass: the caller may write to the output."""
    return out.clone() if out.requires_grad and backends.on_gpu(out) else out


def _rows(kind: type[nn.Module], run: Callable, allowed: Sequence[str], *linears: str, values: str = "") -> LayerKernel:
    """The kernel of a layer that sums rows over neighbours, or takes their mean or maximum."""
    return LayerKernel(kind, run, _aggregation, _aggr_options, opens(*linears), values, needs(*allowed))


def _attention(kind: type[nn.Module], run: Callable, attend: Callable, *linears: str) -> LayerKernel:
    prepare, options, opened = _with_loops, _attention_options, opens(*linears)
    return LayerKernel(kind, run, prepare, options, opened, "edge_attr", _attention_why_not, attend)


_TRANSFORMER = ("lin_query", "lin_key", "lin_value", "lin_skip", "lin_edge")
_LAYERS = (
    LayerKernel(pyg.GCNConv, _gcn, _gcn_sum, _gcn_options, opens("lin"), "edge_weight", needs("sum")),
    LayerKernel(pyg.SAGEConv, _sage, _aggregation, _aggr_options, opens("lin_l", "lin_r"), "", _sage_why_not),
    LayerKernel(pyg.GINConv, _gin, _aggregation, _aggr_options, _gin_opens, "", needs("sum")),
    _rows(pyg.GraphConv, _graph, ("sum", "mean"), "lin_rel", "lin_root", values="edge_weight"),
    _rows(pyg.LEConv, _le, ("sum",), "lin1", "lin2", "lin3", values="edge_weight"),
    LayerKernel(
        pyg.RGCNConv, _rgcn, _relations, _rgcn_options, opens(), "edge_type", needs("sum", "mean"), _sum_by_relation
    ),
    _attention(pyg.GATConv, _gat, _gat_attend, "lin", "lin_edge"),
    _attention(pyg.GATv2Conv, _gatv2, _gatv2_attend, "lin_l", "lin_r", "lin_edge"),
    _attention(pyg.TransformerConv, _transformer, _transformer_attend, *_TRANSFORMER),
)
KERNELS: dict[type[nn.Module], LayerKernel] = {kernel.kind: kernel for kernel in _LAYERS}
