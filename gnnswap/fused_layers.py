"""Kernels of layers whose message is no weight times a row: one fused pass over the edges (`fused`).

GINE, GEN, ResGated, CG, FiLM, PNA, EdgeConv and NNConv, whose matrix for each edge is a sum over a few channels. A
linear layer at the start of a message, over (x_i, x_j, e), is two products on nodes and one on edges, added in the
pass; where the message is nothing else, the part of x_i is added after the aggregation.

Docstrings give each layer as PyG defines it, by the names of its modules, some of which it may lack. AGG is its
aggregation over the edges e = (j -> i). N are the nodes, E the edges, F the features, T the towers of PNA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import utils
from torch_geometric.nn import aggr

from gnnswap import fused
from gnnswap.attention import head_sum
from gnnswap.direct import (
    AGGREGATIONS,
    KERNELS,
    LINEAR,
    Edges,
    LayerKernel,
    Options,
    after_first,
    entered,
    first_of,
    kind_of,
    needs,
    no_options,
    opens,
)
from gnnswap.fused import Compiled
from gnnswap.neighbours import Neighbours

PARTS = {  # of `fused.multi_aggregate`, from which an aggregation is computed; var is mean(v^2) - mean(v)^2
    "sum": ("sum",),
    "mean": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "var": ("sum", "squares"),
    "std": ("sum", "squares"),
}


def compilation() -> list[str]:
    """Seconds that this process spent on compiling kernels or loading compiled ones: lines of a report; maybe none."""
    lines = []
    if Compiled.seconds:
        lines.append(f"numba: {Compiled.seconds:.1f} s, {Compiled.fresh} functions compiled, others loaded from disk")
        if not Compiled.stored:
            lines.append("numba can write to no folder, so each process compiles: set NUMBA_CACHE_DIR to a folder")
    if Compiled.triton_seconds:
        lines.append(f"Triton: {Compiled.triton_seconds:.1f} s to compile kernels or load them from disk")
    return lines


def _prepare(options: Options, graph: Neighbours, values: Tensor | None, dtype: torch.dtype) -> Edges:
    if values is not None and values.requires_grad:  # new in each step, and read once
        return Edges(graph, values, as_given=True)
    return Edges(graph, None if values is None else graph.sorted_weight(values))


def _as_given(options: Options, graph: Neighbours, values: Tensor | None, dtype: torch.dtype) -> Edges:
    return Edges(graph, values)


def _rows_of(edges: Edges, weights: Sequence[Tensor]) -> Tensor | None:
    """Features of edges after the weight and bias for them, if there are any, (E, F)."""
    return F.linear(edges.features, *weights) if weights else edges.features


def _degree(given: Any, x: Tensor) -> Tensor:
    """Edges that end at each node, (N, 1), in a trace, too."""
    if isinstance(given, Edges):
        return given.graph.cast("degree", x.dtype).unsqueeze(1)
    return utils.degree(given.edge_index[1], x.shape[0], x.dtype).unsqueeze(1)


def _aggregated(
    kinds: Sequence[str],
    y: Tensor,
    graph: Neighbours,
    edge: Tensor | None,
    relu: bool,
    as_given: bool = False,
    shift: Tensor | None = None,
) -> list[Tensor]:
    """Each of these aggregations of the messages y[j] + edge (`relu`: relu of that), each (N, F); `shift` as in
    `fused.multi_aggregate`."""
    wanted = dict.fromkeys(name for kind in kinds for name in PARTS[kind])
    made = dict(zip(wanted, fused.multi_aggregate(y, graph, wanted, edge, relu, as_given, shift), strict=True))
    if "mean" in kinds or "squares" in made:
        count = graph.cast("count", y.dtype).unsqueeze(1)
        made["mean"] = made["sum"] / count
    if "squares" in made:
        made["var"] = made["squares"] / count - made["mean"] * made["mean"]
    if "std" in kinds:
        made["std"] = made["var"].clamp(min=1e-5).sqrt().masked_fill(made["var"] <= 1e-5, 0.0)
    return [made[kind] for kind in kinds]


def _weights(linear: nn.Module | None) -> list[Tensor]:
    return [] if linear is None else [p for p in (linear.weight, linear.bias) if p is not None]


def _parts(module: nn.Module) -> list[nn.Module]:
    """The single aggregations in this one."""
    module = module.aggr if type(module) is aggr.DegreeScalerAggregation else module
    return list(module.aggrs) if type(module) is aggr.MultiAggregation else [module]


def _kinds(layer: nn.Module) -> tuple[str, ...]:
    """The aggregations of a layer that may have several."""
    return tuple([AGGREGATIONS.get(type(one), type(one).__name__) for one in _parts(layer.aggr_module)])


def _aggregate_options(layer: nn.Module) -> Options:
    """(aggregations, is relu taken of messages with features, are the weights of a softmax detached)."""
    module = layer.aggr_module
    half = type(module) is aggr.SoftmaxAggregation and module.semi_grad and not module.learn
    return _kinds(layer), not isinstance(layer, pyg.PNAConv), bool(half)


def _aggregate(options: Options, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Tensors: y (N, T, F); for PNA the part of the targets, (N, T, F); for a softmax t (1,); a weight (T F, D) and a
    bias for features of edges."""
    kinds, relu, half = options
    y, *of_edge = tensors
    shift = None if relu else of_edge.pop(0).flatten(1)
    rows, graph = y.flatten(1), edges.graph
    if kinds == ("softmax",):
        t, *of_edge = of_edge
        out = [fused.softmax_aggregate(rows, graph, t, _rows_of(edges, of_edge), relu, half, edges.as_given)]
    else:
        out = _aggregated(kinds, rows, graph, _rows_of(edges, of_edge), relu, edges.as_given, shift)
    return torch.cat(out, dim=1).view(y.shape[0], -1, y.shape[2])


def _gine(layer: pyg.GINEConv, x: Tensor, given: Any) -> Tensor:
    """nn(AGG of relu(x[j] + lin(e)) + (1 + eps) x[i]) (Hu et al. 2020)."""
    weights = _weights(layer.lin) if given.features is not None else []
    out = given.attend(_aggregate, _aggregate_options(layer), [x.unsqueeze(1), *weights]).squeeze(1)
    return layer.nn(out + (1 + layer.eps) * x)


def _gen(layer: pyg.GENConv, x: Tensor, given: Any) -> Tensor:
    """mlp(AGG of (relu(lin_src(x[j]) + lin_edge(e)) + eps) + lin_dst(x[i])) (Li et al. 2020). With features of edges
    eps is added after AGG."""
    y, options, kind = layer.lin_src(x) if hasattr(layer, "lin_src") else x, _aggregate_options(layer), kind_of(layer)
    t = [_temperature(layer.aggr_module, y)] if kind == "softmax" else []
    if given.features is None:
        out = given.attend(_aggregate, options, [(y.relu() + layer.eps).unsqueeze(1), *t]).squeeze(1)
    else:
        weights = _weights(getattr(layer, "lin_edge", None))
        out = given.attend(_aggregate, options, [y.unsqueeze(1), *t, *weights]).squeeze(1)
        degree = _degree(given, y)
        out = out + layer.eps * (degree if kind == "sum" else degree.clamp(max=1))
    if hasattr(layer, "msg_norm"):
        out = layer.msg_norm(x, out)
    return layer.mlp(out + (layer.lin_dst(x) if hasattr(layer, "lin_dst") else x))


def _temperature(softmax: aggr.SoftmaxAggregation, y: Tensor) -> Tensor:
    """t of its softmax, (1,)."""
    return softmax.t if isinstance(softmax.t, Tensor) else y.new_full((1,), softmax.t)


def _gate_options(layer: nn.Module) -> Options:
    """(is the gated value a softplus?)"""
    return (isinstance(layer, pyg.CGConv),)


def _gate(options: Options, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Tensors: of sources (N, 2, F); of targets (N, 2, F), or (N, 1, F) for the gate alone; a weight for edges."""
    source, target, *of_edge = (one.flatten(1) for one in tensors)
    (softplus,), rows = options, _rows_of(edges, of_edge)
    return fused.gated_sum(source, target, edges.graph, rows, softplus, edges.as_given).unsqueeze(1)


def _res_gated(layer: pyg.ResGatedGraphConv, x: Tensor, given: Any) -> Tensor:
    """lin_skip(x[i]) + sum of sigmoid(lin_key(x[i], e) + lin_query(x[j], e)) * lin_value(x[j], e) (Bresson and Laurent
    2017)."""
    key, query, value = layer.lin_key, layer.lin_query, layer.lin_value
    width, inputs = layer.out_channels, x.shape[1]
    weight = torch.cat([query.weight[:, :inputs], value.weight[:, :inputs]])
    bias = None if key.bias is None else torch.cat([query.bias, value.bias])
    both, own = F.linear(x, weight, bias), F.linear(x, key.weight[:, :inputs], key.bias)
    tensors = [both.unflatten(1, (2, width)), own.unsqueeze(1)]
    if given.features is not None:
        of_edges = [key.weight[:, inputs:] + query.weight[:, inputs:], value.weight[:, inputs:]]
        tensors.append(torch.cat(of_edges))
    out = given.attend(_gate, _gate_options(layer), tensors).squeeze(1)
    out = out + layer.lin_skip(x) if layer.root_weight else out
    return out if layer.bias is None else out + layer.bias


def _kept(x: Tensor) -> Tensor:
    """x, or a copy to save for gradients: PyG saves rows of edges, so the caller may write to x before backward."""
    return x.clone() if torch.is_grad_enabled() else x


def _cg(layer: pyg.CGConv, x: Tensor, given: Any) -> Tensor:
    """x[i] + bn(sum of sigmoid(lin_f(z)) * softplus(lin_s(z))), where z = (x[i], x[j], e) (Xie and Grossman 2018)."""
    x = _kept(x)
    width = x.shape[1]
    weight, bias = torch.cat([layer.lin_f.weight, layer.lin_s.weight]), None
    if layer.lin_f.bias is not None:
        bias = torch.cat([layer.lin_f.bias, layer.lin_s.bias])
    target = F.linear(x, weight[:, :width], bias).unflatten(1, (2, width))
    tensors = [F.linear(x, weight[:, width : 2 * width]).unflatten(1, (2, width)), target]
    if given.features is not None:
        tensors.append(weight[:, 2 * width :])
    out = given.attend(_gate, _gate_options(layer), tensors).squeeze(1)
    return (out if layer.bn is None else layer.bn(out)) + x


def _film(layer: pyg.FiLMConv, x: Tensor, given: Any) -> Tensor:
    """relu(gamma * lin_skip(x[i]) + beta) + AGG of relu(gamma * lins[0](x[j]) + beta), where (beta, gamma) is
    film_skip(x[i]) in the first term and films[0](x[i]) in the second (Brockschmidt 2020)."""
    beta, gamma = layer.film_skip(x).split(layer.out_channels, dim=-1)
    own = (gamma * layer.lin_skip(x) + beta).relu()
    out = given.attend(_film_attend, (), [layer.lins[0](x).unsqueeze(1), layer.films[0](x)]).squeeze(1)
    return own + (out / _degree(given, x).clamp(min=1) if kind_of(layer) == "mean" else out)


def _film_attend(options: Options, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    return fused.film_sum(tensors[0].squeeze(1), tensors[1], edges.graph).unsqueeze(1)


def _pna(layer: pyg.PNAConv, x: Tensor, given: Any) -> Tensor:
    """lin of all towers, each post_nn(x[i], scales * AGGs of pre_nn(x[i], x[j], e)) (Corso et al. 2020)."""
    x = _kept(x)
    towers, width = layer.towers, layer.F_in
    weight = torch.stack([one[0].weight for one in layer.pre_nns])  # (T, F, 2 F or 3 F)
    bias = torch.stack([one[0].bias for one in layer.pre_nns])
    of_target, of_source, of_edge = weight[..., :width], weight[..., width : 2 * width], weight[..., 2 * width :]
    if layer.divide_input:
        x = x.view(-1, towers, width)
        target, source = (torch.einsum("ntf,tgf->ntg", x, w) for w in (of_target, of_source))
    else:
        both = F.linear(x, torch.cat([of_target, of_source]).flatten(0, 1))
        target, source = both.view(x.shape[0], 2, towers, width).unbind(1)
        x = x.unsqueeze(1).expand(-1, towers, -1)
    of_edges = []
    if given.features is not None:  # two linear layers in a row are one
        of_edges.append((of_edge @ layer.edge_encoder.weight).flatten(0, 1))
        bias = bias + of_edge @ layer.edge_encoder.bias
    degree = _degree(given, x).unsqueeze(2)
    target = (target + bias).masked_fill(degree == 0, 0.0)  # the part that all messages of a target share
    tensors = [source, target.detach(), *of_edges]
    options = kinds, *_ = _aggregate_options(layer)
    out = given.attend(_aggregate, options, tensors, len(kinds) * towers).view(x.shape[0], len(kinds), towers, width)
    times = {"sum": degree, "var": 0, "std": 0}  # 0 * NaN is NaN, as of PyG
    parts = [one + times.get(kind, 1) * target for kind, one in zip(kinds, out.unbind(1), strict=True)]
    out, scales = torch.cat(parts, dim=2), _scales(layer.aggr_module, degree)
    return layer.lin(torch.cat([_post(one, x[:, at], out[:, at], scales) for at, one in enumerate(layer.post_nns)], 1))


def _post(network: nn.Sequential, x: Tensor, out: Tensor, scales: Tensor) -> Tensor:
    """`network` of x and `out` times each scale. The scales follow the first product, where rows are shorter.

    x (N, F), out (N, K F), scales (N, S, 1).
    """
    first = first_of(network)
    of_x, of_out = first.weight.split([x.shape[1], first.weight.shape[1] - x.shape[1]], dim=1)
    by_scale = of_out.unflatten(1, (-1, out.shape[1])).transpose(0, 1).flatten(0, 1)
    scaled = F.linear(out, by_scale).unflatten(1, (scales.shape[1], -1)) * scales
    return after_first(network, F.linear(x, of_x, first.bias) + scaled.sum(dim=1))


def _scales(scaler: nn.Module, degree: Tensor) -> Tensor:
    """The factors of `DegreeScalerAggregation`, (N, S, 1); degree (N, 1, 1)."""
    some = degree.clamp(min=1)
    scale = {
        "identity": lambda: torch.ones_like(degree),
        "amplification": lambda: (degree + 1).log() / scaler.avg_deg_log,
        "attenuation": lambda: scaler.avg_deg_log / (some + 1).log(),
        "linear": lambda: degree / scaler.avg_deg_lin,
        "inverse_linear": lambda: scaler.avg_deg_lin / some,
    }
    return torch.cat([scale[name]() for name in scaler.scaler], dim=1)


def _pna_opens(layer: pyg.PNAConv) -> list[nn.Module]:
    networks = [*layer.pre_nns, *layer.post_nns]
    modules = [layer.pre_nns, layer.post_nns, *(module for network in networks for module in entered(network))]
    scaler = layer.aggr_module
    modules += [scaler, *scaler.modules()]
    return modules if layer.edge_dim is None else [*modules, layer.edge_encoder]


def _edge_conv(layer: pyg.EdgeConv, x: Tensor, given: Any) -> Tensor:
    """AGG of nn(x[i], x[j] - x[i]) (Wang et al. 2019). The first layer of `nn` runs on nodes, the others on edges
    sorted by target. PyG's code within a trace, where rows of edges have no operator."""
    x = _kept(x)
    if not isinstance(given, Edges):
        return pyg.EdgeConv.forward(layer, x, given.edge_index)
    first, relu = first_of(layer.nn), _relu_behind(layer.nn)
    graph, (own, other) = given.graph, first.weight.split(x.shape[1], dim=1)
    source = F.linear(x, other)
    rows = fused.edge_rows(source, F.linear(x, own, first.bias) - source, graph, bool(relu))
    rows = after_first(layer.nn, rows, 1 + len(relu))
    return _aggregated([kind_of(layer)], rows, graph.of_edges, None, False)[0]


def _relu_behind(network: nn.Module) -> list[nn.Module]:
    """The ReLU behind the first layer of a Sequential, if there is one."""
    behind = list(network)[1:2] if type(network) is nn.Sequential else []
    return [one for one in behind if type(one) is nn.ReLU]


def _edge_conv_opens(layer: pyg.EdgeConv) -> list[nn.Module]:
    return [layer.aggr_module, *entered(layer.nn), *_relu_behind(layer.nn)]


def _nn_conv(layer: pyg.NNConv, x: Tensor, given: Any) -> Tensor:
    """lin(x[i]) + AGG of x[j] W[e] + bias, W[e] = nn(e) as a matrix (Gilmer et al. 2017).

    The last layer of `nn` makes a matrix W[e] = sum_k h[e, k] W[k] for each edge, so the sum of x[j] W[e] over edges
    is sum_k (sum of h[e, k] x[j]) W[k]. Its bias is one more W[k], with h = 1.
    """
    *others, last = _modules_of(layer.nn)
    channels, weight = given.features, last.weight
    for module in others:
        channels = module(channels)
    if last.bias is not None:
        channels = torch.cat([channels, channels.new_ones(channels.shape[0], 1)], dim=1)
        weight = torch.cat([weight, last.bias.unsqueeze(1)], dim=1)
    summed = given.attend(_sum_by_channel, (), [x.unsqueeze(1), channels], channels.shape[1]).flatten(1)
    out = summed @ weight.unflatten(0, (x.shape[1], -1)).permute(2, 0, 1).flatten(0, 1)
    out = out / _degree(given, x).clamp(min=1) if kind_of(layer) == "mean" else out
    out = out + layer.lin(x) if layer.root_weight else out
    return out if layer.bias is None else out + layer.bias


def _modules_of(network: nn.Module) -> list[nn.Module]:
    return list(network) if type(network) is nn.Sequential else [network]


def _nn_conv_opens(layer: pyg.NNConv) -> list[nn.Module]:
    last = _modules_of(layer.nn)[-1]
    return [layer.aggr_module, last] if last is layer.nn else [layer.aggr_module, layer.nn, last]


def _sum_by_channel(options: Options, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Tensors: x (N, 1, F); channels of edges (E, K), as they are given."""
    return head_sum(tensors[0], edges.graph, edges.graph.sorted_weight(tensors[1]))


def _single(layer: nn.Module, *more: str) -> str:
    several = isinstance(layer.aggr_module, aggr.MultiAggregation)
    return "several aggregations" if several else needs(*PARTS, *more)(layer)


def _gen_why_not(layer: pyg.GENConv) -> str:
    if kind_of(layer) in ("var", "std"):
        return f"aggr={layer.aggr!r}"
    t = getattr(layer.aggr_module, "t", 1.0)
    if isinstance(t, Tensor) and t.shape != (1,):
        return "a temperature for each channel"
    return _single(layer, "softmax")


def _pna_why_not(layer: pyg.PNAConv) -> str:
    scaler = layer.aggr_module
    inner = scaler.aggr if type(scaler) is aggr.DegreeScalerAggregation else None
    if inner is None or (isinstance(inner, aggr.MultiAggregation) and inner.mode != "cat"):
        return "its aggregation"
    if any(len(one) != 1 for one in layer.pre_nns):
        return "several layers before the aggregation"
    if any(type(first_of(one)) not in LINEAR for one in (*layer.pre_nns, *layer.post_nns)):
        return "a network that begins with no linear layer"
    if any(getattr(one, "semi_grad", False) for module in _parts(inner) for one in module.modules()):
        return "semi_grad"
    return "" if all(kind in PARTS for kind in _kinds(layer)) else f"aggr={layer.aggr!r}"


def _edge_conv_why_not(layer: pyg.EdgeConv) -> str:
    if type(first_of(layer.nn)) not in LINEAR:
        return "its network begins with no linear layer"
    return _single(layer)


def _nn_conv_why_not(layer: pyg.NNConv) -> str:
    if not isinstance(layer.nn, nn.Module) or type(_modules_of(layer.nn)[-1]) not in LINEAR:
        return "its network ends with no linear layer"
    return needs("sum", "mean")(layer)


def _res_gated_why_not(layer: pyg.ResGatedGraphConv) -> str:
    return needs("sum")(layer) if type(layer.act) is nn.Sigmoid else "another activation"


def _film_why_not(layer: pyg.FiLMConv) -> str:
    if layer.num_relations > 1 or type(layer.act) is not nn.ReLU:
        return "several relations or another activation"
    return needs("sum", "mean")(layer)


def _kernel(
    kind: type[nn.Module], run: Callable, options: Callable, opened: Callable, why: Callable, attend: Any
) -> LayerKernel:
    return LayerKernel(kind, run, _prepare, options, opened, "edge_attr", why, attend)


_GATED = opens("lin_key", "lin_query", "lin_value", "act")
_LAYERS = (
    _kernel(pyg.GINEConv, _gine, _aggregate_options, opens("lin"), _single, _aggregate),
    _kernel(pyg.GENConv, _gen, _aggregate_options, opens("lin_edge"), _gen_why_not, _aggregate),
    _kernel(pyg.PNAConv, _pna, _aggregate_options, _pna_opens, _pna_why_not, _aggregate),
    _kernel(pyg.ResGatedGraphConv, _res_gated, _gate_options, _GATED, _res_gated_why_not, _gate),
    _kernel(pyg.CGConv, _cg, _gate_options, opens("lin_f", "lin_s"), needs("sum"), _gate),
    LayerKernel(pyg.EdgeConv, _edge_conv, _prepare, no_options, _edge_conv_opens, "", _edge_conv_why_not),
    LayerKernel(
        pyg.NNConv, _nn_conv, _as_given, no_options, _nn_conv_opens, "edge_attr", _nn_conv_why_not, _sum_by_channel
    ),
    LayerKernel(pyg.FiLMConv, _film, _prepare, no_options, opens("act"), "", _film_why_not, _film_attend),
)
KERNELS.update({kernel.kind: kernel for kernel in _LAYERS})
