"""Direct forms of layers whose message no weight of an edge can express: one pass over the edges (`fused`).

GINE, GEN, ResGated, CG, FiLM, PNA and EdgeConv; and NNConv, whose matrix for each edge is a sum over a few channels, by
the sums of attention. A linear layer at the start of a message, over (x_i, x_j, e), is two
products on nodes and one on edges, added in the pass; where it is all there is, what it makes of x_i is added behind
the aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import utils
from torch_geometric.nn import aggr

from gnnswap import fused
from gnnswap.attention import head_sum
from gnnswap.direct import Edges, Form, after_first, first_of, hooked, plain_linear
from gnnswap.fused import Compiled
from gnnswap.neighbours import Neighbours

MOMENTS = {  # what an aggregation is made of
    aggr.SumAggregation: ("sum",),
    aggr.MeanAggregation: ("sum",),
    aggr.MinAggregation: ("min",),
    aggr.MaxAggregation: ("max",),
    aggr.VarAggregation: ("sum", "squares"),
    aggr.StdAggregation: ("sum", "squares"),
}


def compilation() -> list[str]:
    """What compiling the passes has cost this process, a line for a report; no line where nothing was compiled."""
    if not Compiled.seconds:
        return []
    if not Compiled.stored:
        where = "again in each process: no folder can be written, NUMBA_CACHE_DIR names another"
    else:
        where = f"{Compiled.fresh} compiled here and stored for later processes" if Compiled.fresh else "read from disk"
    return [f"compiled passes over edges: {Compiled.seconds:.1f} s, {where}"]


def _prepare(layer: nn.Module, graph: Neighbours, values: Tensor | None, dtype: torch.dtype) -> Edges:
    if values is not None and values.requires_grad:  # made anew in each step, and read once
        return Edges(graph, values, as_given=True)
    return Edges(graph, None if values is None else graph.sorted_weight(values))


def _as_given(layer: nn.Module, graph: Neighbours, values: Tensor | None, dtype: torch.dtype) -> Edges:
    return Edges(graph, values)


def _rows_of(edges: Edges, weights: Sequence[Tensor]) -> Tensor | None:
    """Features of edges after the weight and bias for them, if there are any, (E, F)."""
    return F.linear(edges.features, *weights) if weights else edges.features


def _degree(given: Any, x: Tensor) -> Tensor:
    """Edges that end at each node, (N, 1), in a trace, too."""
    if isinstance(given, Edges):
        return given.graph.cast("degree", x.dtype).unsqueeze(1)
    return utils.degree(given.edge_index[1], x.shape[0], x.dtype).unsqueeze(1)


def aggregated(
    kinds: Sequence[nn.Module], y: Tensor, graph: Neighbours, edge: Tensor | None, relu: bool, as_given: bool = False
) -> list[Tensor]:
    """What each of these aggregations makes of the messages y[j] + edge (`relu`: their positive part), each (N, F)."""
    wanted = dict.fromkeys(name for kind in kinds for name in MOMENTS.get(type(kind), ()))
    made = dict(zip(wanted, fused.moments(y, graph, wanted, edge, relu, as_given), strict=True)) if wanted else {}
    count = graph.once(("count", y.dtype), lambda: graph.degree.clamp(min=1).to(y.dtype).unsqueeze(1))
    if "squares" in made:
        made["mean"] = made["sum"] / count
        made["var"] = made["squares"] / count - made["mean"] * made["mean"]

    def of(kind: nn.Module) -> Tensor:
        if isinstance(kind, aggr.SoftmaxAggregation):
            t = kind.t if isinstance(kind.t, Tensor) else y.new_tensor([kind.t])
            return fused.softened(y, graph, t, edge, relu, kind.semi_grad, as_given)
        if isinstance(kind, aggr.MeanAggregation):
            return made["mean"] if "mean" in made else made["sum"] / count
        if isinstance(kind, aggr.StdAggregation):
            return made["var"].clamp(min=1e-5).sqrt().masked_fill(made["var"] <= 1e-5, 0.0)
        return made["var"] if isinstance(kind, aggr.VarAggregation) else made[MOMENTS[type(kind)][0]]

    return [of(kind) for kind in kinds]


def _weights(linear: nn.Module | None) -> list[Tensor]:
    return [] if linear is None else [p for p in (linear.weight, linear.bias) if p is not None]


def _kinds(module: nn.Module) -> list[nn.Module]:
    return list(module.aggrs) if isinstance(module, aggr.MultiAggregation) else [module]


def _aggregate(layer: nn.Module, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Tensors: y (N, T, F); of edges a weight (T F, D) and a bias."""
    y, *of_edge = tensors
    kinds = _kinds(getattr(layer.aggr_module, "aggr", layer.aggr_module))
    relu = isinstance(layer, (pyg.GINEConv, pyg.GENConv))
    out = aggregated(kinds, y.flatten(1), edges.graph, _rows_of(edges, of_edge), relu, edges.as_given)
    return torch.cat(out, dim=1).view(y.shape[0], -1, y.shape[2])


def _gine(layer: pyg.GINEConv, x: Tensor, given: Any) -> Tensor:
    out = given.attend(layer, [x.unsqueeze(1), *_weights(layer.lin)]).squeeze(1)
    return layer.nn(out + (1 + layer.eps) * x)


def _gen(layer: pyg.GENConv, x: Tensor, given: Any) -> Tensor:
    if not isinstance(given, Edges) and isinstance(getattr(layer.aggr_module, "t", None), nn.Parameter):
        return layer._original.forward(layer, x, given.edge_index, given.features)  # its gradient has no operator
    y = layer.lin_src(x) if hasattr(layer, "lin_src") else x
    if given.features is None:
        out = given.attend(layer, [(y.relu() + layer.eps).unsqueeze(1)]).squeeze(1)
    else:
        degree = _degree(given, y)
        shift = degree if isinstance(layer.aggr_module, aggr.SumAggregation) else degree.clamp(max=1)
        out = given.attend(layer, [y.unsqueeze(1), *_weights(getattr(layer, "lin_edge", None))]).squeeze(1)
        out = out + layer.eps * shift
    if hasattr(layer, "msg_norm"):
        out = layer.msg_norm(y if not hasattr(layer, "lin_src") else x, out)
    return layer.mlp(out + (layer.lin_dst(x) if hasattr(layer, "lin_dst") else x))


def _gate(layer: nn.Module, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Tensors: of sources (N, 2, F); of targets (N, 2, F), or what goes to the gate, (N, 1, F); of edges a weight."""
    source, target, *of_edge = (one.flatten(1) for one in tensors)
    softplus, rows = isinstance(layer, pyg.CGConv), _rows_of(edges, of_edge)
    return fused.gated(source, target, edges.graph, rows, softplus, edges.as_given).unsqueeze(1)


def _res_gated(layer: pyg.ResGatedGraphConv, x: Tensor, given: Any) -> Tensor:
    key, query, value = layer.lin_key, layer.lin_query, layer.lin_value
    width, inputs = layer.out_channels, x.shape[1]
    weight = torch.cat([query.weight[:, :inputs], value.weight[:, :inputs]])
    bias = None if key.bias is None else torch.cat([query.bias, value.bias])
    both, own = F.linear(x, weight, bias), F.linear(x, key.weight[:, :inputs], key.bias)
    tensors = [both.unflatten(1, (2, width)), own.unsqueeze(1)]
    if given.features is not None:
        of_edges = [key.weight[:, inputs:] + query.weight[:, inputs:], value.weight[:, inputs:]]
        tensors.append(torch.cat(of_edges))
    out = given.attend(layer, tensors).squeeze(1)
    out = out + layer.lin_skip(x) if layer.root_weight else out
    return out if layer.bias is None else out + layer.bias


def _cg(layer: pyg.CGConv, x: Tensor, given: Any) -> Tensor:
    width = x.shape[1]
    weight, bias = torch.cat([layer.lin_f.weight, layer.lin_s.weight]), None
    if layer.lin_f.bias is not None:
        bias = torch.cat([layer.lin_f.bias, layer.lin_s.bias])
    target = F.linear(x, weight[:, :width], bias).unflatten(1, (2, width))
    tensors = [F.linear(x, weight[:, width : 2 * width]).unflatten(1, (2, width)), target]
    if given.features is not None:
        tensors.append(weight[:, 2 * width :])
    out = given.attend(layer, tensors).squeeze(1)
    return (out if layer.bn is None else layer.bn(out)) + x


def _film(layer: pyg.FiLMConv, x: Tensor, given: Any) -> Tensor:
    beta, gamma = layer.film_skip(x).split(layer.out_channels, dim=-1)
    own = (gamma * layer.lin_skip(x) + beta).relu()
    out = given.attend(layer, [layer.lins[0](x).unsqueeze(1), layer.films[0](x)]).squeeze(1)
    return own + (out / _degree(given, x).clamp(min=1) if layer.aggr == "mean" else out)


def _modulate(layer: nn.Module, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    return fused.modulated(tensors[0].squeeze(1), tensors[1], edges.graph).unsqueeze(1)


def _pna(layer: pyg.PNAConv, x: Tensor, given: Any) -> Tensor:
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
    tensors = [source]
    if given.features is not None:  # two linear layers in a row are one
        tensors.append((of_edge @ layer.edge_encoder.weight).flatten(0, 1))
        bias = bias + of_edge @ layer.edge_encoder.bias
    kinds = _kinds(layer.aggr_module.aggr)
    out = given.attend(layer, tensors, len(kinds) * towers).view(x.shape[0], len(kinds), towers, width)
    degree = _degree(given, x).unsqueeze(2)
    target = (target + bias) * degree.clamp(max=1)  # of what a target adds to all of its messages
    shifts = {aggr.SumAggregation: degree, aggr.VarAggregation: None, aggr.StdAggregation: None}
    parts = [_shifted(one, target, shifts.get(type(kind), 1)) for kind, one in zip(kinds, out.unbind(1), strict=True)]
    out, scales = torch.cat(parts, dim=2), _scales(layer.aggr_module, degree)
    return layer.lin(torch.cat([_post(one, x[:, at], out[:, at], scales) for at, one in enumerate(layer.post_nns)], 1))


def _post(network: nn.Sequential, x: Tensor, out: Tensor, scales: Tensor) -> Tensor:
    """Its first layer is over x and `out` times each scale: the scales go behind the product, where rows are shorter.

    x (N, F), out (N, K F), scales (N, S, 1).
    """
    first = first_of(network)
    of_x, of_out = first.weight.split([x.shape[1], first.weight.shape[1] - x.shape[1]], dim=1)
    by_scale = of_out.unflatten(1, (-1, out.shape[1])).transpose(0, 1).flatten(0, 1)
    scaled = F.linear(out, by_scale).unflatten(1, (scales.shape[1], -1)) * scales
    return after_first(network, F.linear(x, of_x, first.bias) + scaled.sum(dim=1))


def _shifted(out: Tensor, target: Tensor, factor: Tensor | int | None) -> Tensor:
    if factor is None:
        return out
    return out + factor * target


def _scales(scaler: nn.Module, degree: Tensor) -> Tensor:
    """What `DegreeScalerAggregation` multiplies by, (N, S, 1); degree (N, 1, 1)."""
    some = degree.clamp(min=1)
    scale = {
        "identity": lambda: torch.ones_like(degree),
        "amplification": lambda: (degree + 1).log() / scaler.avg_deg_log,
        "attenuation": lambda: scaler.avg_deg_log / (some + 1).log(),
        "linear": lambda: degree / scaler.avg_deg_lin,
        "inverse_linear": lambda: scaler.avg_deg_lin / some,
    }
    return torch.cat([scale[name]() for name in scaler.scaler], dim=1)


def _edge_conv(layer: pyg.EdgeConv, x: Tensor, given: Any) -> Tensor:
    """The first layer of `nn`, over (x_i, x_j - x_i), on nodes; the others on edges, which stand sorted by target."""
    if not isinstance(given, Edges):
        return layer._original.forward(layer, x, given.edge_index)
    first = first_of(layer.nn)
    graph, (own, other) = given.graph, first.weight.split(x.shape[1], dim=1)
    second = layer.nn[1] if type(layer.nn) is nn.Sequential and len(layer.nn) > 1 else None
    relu = type(second) is nn.ReLU and not hooked(second)
    rows = fused.pairs(F.linear(x, other), F.linear(x, own - other, first.bias), graph, relu)
    rows = after_first(layer.nn, rows, 1 + relu)
    return aggregated([layer.aggr_module], rows, graph.of_edges, None, False)[0]


def _nn_conv(layer: pyg.NNConv, x: Tensor, given: Any) -> Tensor:
    """The last layer of `nn` makes a matrix W[e] = sum of h[e, k] W[k] for each edge: of x[j] W[e] the sums over edges
    are those of h[e, k] x[j], times W[k]. Its bias is one more W[k], of an h that is 1."""
    *others, last = _modules_of(layer.nn)
    channels, weight = given.features, last.weight
    for module in others:
        channels = module(channels)
    if last.bias is not None:
        channels = torch.cat([channels, channels.new_ones(channels.shape[0], 1)], dim=1)
        weight = torch.cat([weight, last.bias.unsqueeze(1)], dim=1)
    summed = given.attend(layer, [x.unsqueeze(1), channels], channels.shape[1]).flatten(1)
    out = summed @ weight.unflatten(0, (x.shape[1], -1)).permute(2, 0, 1).flatten(0, 1)
    out = out / _degree(given, x).clamp(min=1) if layer.aggr == "mean" else out
    out = out + layer.lin(x) if layer.root_weight else out
    return out if layer.bias is None else out + layer.bias


def _modules_of(network: nn.Module) -> list[nn.Module]:
    return list(network) if type(network) is nn.Sequential else [network]


def _sum_by_channel(layer: nn.Module, tensors: Sequence[Tensor], edges: Edges) -> Tensor:
    """Tensors: x (N, 1, F); channels of edges (E, K), as they are given."""
    return head_sum(tensors[0], edges.graph, edges.graph.sorted_weight(tensors[1]))


def _aggregation(layer: nn.Module, *allowed: type[nn.Module]) -> str:
    module = getattr(layer.aggr_module, "aggr", layer.aggr_module)
    return "" if all(type(one) in allowed for one in _kinds(module)) else f"aggr={layer.aggr!r}"


def _single(layer: nn.Module, *more: type[nn.Module]) -> str:
    several = isinstance(layer.aggr_module, aggr.MultiAggregation)
    return "several aggregations" if several else _aggregation(layer, *MOMENTS, *more)


def _gen_why_not(layer: pyg.GENConv) -> str:
    if getattr(layer.aggr_module, "channels", 1) != 1:
        return "a temperature for each channel"
    return _single(layer, aggr.SoftmaxAggregation) or (
        "aggr='var'" if type(layer.aggr_module) in (aggr.VarAggregation, aggr.StdAggregation) else ""
    )


def _pna_why_not(layer: pyg.PNAConv) -> str:
    scaler = layer.aggr_module
    inner = scaler.aggr if isinstance(scaler, aggr.DegreeScalerAggregation) else None
    if inner is None or (isinstance(inner, aggr.MultiAggregation) and inner.mode != "cat"):
        return "its aggregation"
    if any(len(one) != 1 for one in layer.pre_nns):
        return "several layers before the aggregation"
    if any(hooked(one) or not plain_linear(one[0]) for one in (*layer.pre_nns, *layer.post_nns)):
        return "hooks of its networks"
    if any(getattr(one, "semi_grad", False) for module in _kinds(inner) for one in module.modules()):
        return "half a gradient"
    return _aggregation(layer, *MOMENTS)


def _edge_conv_why_not(layer: pyg.EdgeConv) -> str:
    first = first_of(layer.nn)
    if first is None or not plain_linear(first):
        return "its network begins with no linear layer"
    return _single(layer)


def _nn_conv_why_not(layer: pyg.NNConv) -> str:
    network = layer.nn
    if not isinstance(network, nn.Module) or hooked(network) or not plain_linear(_modules_of(network)[-1]):
        return "its network ends with no linear layer"
    return _aggregation(layer, aggr.SumAggregation, aggr.MeanAggregation)


def _res_gated_why_not(layer: pyg.ResGatedGraphConv) -> str:
    return _sum_alone(layer) if isinstance(layer.act, nn.Sigmoid) else "another activation"


def _film_why_not(layer: pyg.FiLMConv) -> str:
    if layer.num_relations > 1 or not isinstance(layer.act, nn.ReLU):
        return "several relations or another activation"
    return _aggregation(layer, aggr.SumAggregation, aggr.MeanAggregation)


def _sum_alone(layer: nn.Module) -> str:
    return _aggregation(layer, aggr.SumAggregation)


_LINEARS = ("lin_key", "lin_query", "lin_value")
FORMS: dict[type[nn.Module], Form] = {
    pyg.GINEConv: Form(_gine, _prepare, ("lin",), "edge_attr", _single, _aggregate),
    pyg.GENConv: Form(_gen, _prepare, ("lin_edge",), "edge_attr", _gen_why_not, _aggregate),
    pyg.PNAConv: Form(_pna, _prepare, ("edge_encoder",), "edge_attr", _pna_why_not, _aggregate),
    pyg.EdgeConv: Form(_edge_conv, _prepare, (), "", _edge_conv_why_not),
    pyg.ResGatedGraphConv: Form(_res_gated, _prepare, _LINEARS, "edge_attr", _res_gated_why_not, _gate),
    pyg.NNConv: Form(_nn_conv, _as_given, (), "edge_attr", _nn_conv_why_not, _sum_by_channel),
    pyg.CGConv: Form(_cg, _prepare, ("lin_f", "lin_s"), "edge_attr", _sum_alone, _gate),
    pyg.FiLMConv: Form(_film, _prepare, (), "", _film_why_not, _modulate),
}
