"""Fused messages and sums: one pass over the edges of each node, for messages that are no weight times a row.

Passes are numba's on a CPU, Triton's on a CUDA device (`triton_passes`), with the same names and arguments.

    multi_aggregate(x, graph, ("sum",), edge, relu=True)   # [(N, F)]: sum over the edges (j -> i) of relu(x[j] + edge)
    softmax_aggregate(x, graph, t, edge, relu=True)         # (N, F): sum of softmax(t v) v, where v is that message
    gated_sum(source, target, graph, edge)             # (N, F): sum of sigmoid(p) * q, or of sigmoid(p) * softplus(q)
    film_sum(x, target, graph)                    # (N, F): sum of relu(gamma[i] * x[j] + beta[i])
    edge_weighted_sum(x, edge, graph)                         # (N, F): sum of x[j] * edge, entry by entry
    edge_rows(source, target, graph, relu=True)        # (E, F): relu(source[j] + target[i])

PyG writes and reads a row for each edge three to eight times. Here rows of x and of edges are read once, as they are
added, on edges sorted by target; gradients on edges sorted by source. Each of torch's threads computes a block of
nodes with all of their edges. `plain` of each function is PyG's computation, for derivatives of derivatives.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnswap import backends
from gnnswap.aggregation import Kernel, unrecorded_sum, wide
from gnnswap.errors import SwapError
from gnnswap.neighbours import Neighbours
from gnnswap.passes import passes_of


class Compiled:
    """Seconds that compiling, or loading compiled code, took in this process; how many functions numba compiled, the
    others were loaded; and can it store them on disk?"""

    seconds = triton_seconds = 0.0
    fresh = 0
    stored = True


class Rows(NamedTuple):
    """Edges grouped by one end, in the order of `graph.col`; `permutation` (E,): the position of the features of each,
    which are in the order given where `as_given`, else sorted by target."""

    graph: Neighbours
    permutation: Tensor
    as_given: bool


def passes_for(x: Tensor) -> Any:
    """The passes over edges for tensors on this device; numba is loaded with the first one."""
    return passes_of(backends.triton_for(x) or importlib.import_module("gnnswap.fused_numba"))


def _by_target(graph: Neighbours, as_given: bool) -> Rows:
    return Rows(graph, graph.permutation if as_given else graph.positions, as_given)


def _by_source(graph: Neighbours, as_given: bool) -> Rows:
    back = graph.transposed
    return Rows(back, graph.cached(_given_by_source) if as_given else back.permutation, as_given)


def _given_by_source(graph: Neighbours) -> Tensor:
    return graph.permutation.index_select(0, graph.transposed.permutation)


def _check(graph: Neighbours, rows: Tensor, target: Tensor | None = None, edge: Tensor | None = None) -> None:
    """Check what compiled code does not: `rows` (num_sources, F), `target` (N, F), `edge` (E, F), of one type.

    Raises:
        SwapError: another shape, type or device than these and the graph's, or one that there is no kernel for.
    """
    missing = backends.kernel_missing(rows)
    if missing:
        raise SwapError(f"{missing}: convert, or use PyG's layer")
    width = rows.shape[1]
    graph.require("x", rows, (graph.num_sources, width))
    if target is not None:
        graph.require("target", target, (graph.num_nodes, width), rows.dtype)
    if edge is not None:
        graph.require("edge features", edge, (graph.num_edges, width), rows.dtype)


def _messages(y: Tensor, edge: Tensor | None, graph: Neighbours, relu: bool, as_given: bool) -> tuple[Tensor, Tensor]:
    """(y[source] + edge, with `relu` relu of it, (E, F); the target of each, (E,)), by torch's own operators."""
    source, target = _ends(graph, as_given)
    message = y.index_select(0, source)
    if edge is None:
        return message, target
    return (message + edge).relu() if relu else message + edge, target


def _ends(graph: Neighbours, as_given: bool) -> tuple[Tensor, Tensor]:
    """(sources, targets) of the edges, each (E,), in the order of their features."""
    return tuple(graph.edges) if as_given else (graph.col, graph.row)


def _scattered(message: Tensor, target: Tensor, graph: Neighbours) -> Tensor:
    return message.new_zeros(graph.num_nodes, message.shape[1]).index_add(0, target, message)


def _extreme(message: Tensor, target: Tensor, graph: Neighbours, how: str) -> Tensor:
    index = target.long().unsqueeze(1).expand_as(message)
    zeros = message.new_zeros(graph.num_nodes, message.shape[1])
    return zeros.scatter_reduce(0, index, message, how, include_self=False)


def multi_aggregate(
    y: Tensor,
    graph: Neighbours,
    wanted: Sequence[str],
    edge: Tensor | None = None,
    relu: bool = False,
    as_given: bool = False,
    shift: Tensor | None = None,
) -> list[Tensor]:
    """Aggregations of the messages of each node, in the order of `wanted`: "sum", "squares" (their sum), "min", "max",
    each (N, F), 0 without edges.

    The message is y[j] + edge, with `relu` (and an `edge`) relu of it; `y` (num_sources, F), `edge` (E, F) in the order
    of `graph.col`, or `as_given`. Ties of "min" and "max" share the gradient as in `scatter_reduce`: torch counts an
    extreme of 0 once more, for the zeros that PyG starts from. `shift` (N, F): what the caller adds to each extreme,
    so that their sum is what may be 0.
    """
    _check(graph, y, edge=edge)
    shift = None if shift is None else shift.detach()
    return list(_MultiAggregate.run(y, edge, graph, tuple(wanted), relu, as_given, shift))


class _MultiAggregate(Kernel):
    @staticmethod
    def plain(y, edge, graph, wanted, relu, as_given, shift):
        message, target = _messages(y, edge, graph, relu, as_given)
        shifted = message if shift is None else message + shift.index_select(0, target)
        start = 0 if shift is None else shift.masked_fill(graph.isolated, 0)
        ways = {
            "sum": lambda: _scattered(message, target, graph),
            "squares": lambda: _scattered(message * message, target, graph),
            "min": lambda: _extreme(shifted, target, graph, "amin") - start,
            "max": lambda: _extreme(shifted, target, graph, "amax") - start,
        }
        return tuple(ways[name]() for name in wanted)

    @staticmethod
    def forward(ctx, y, edge, graph, wanted, relu, as_given, shift):
        out = {name: y.new_empty(graph.num_nodes, y.shape[1]) for name in wanted}
        ctx.save_for_backward(y, edge, out.get("min"), out.get("max"))
        ctx.settings = graph, wanted, relu, as_given, shift
        made = map(out.get, ("sum", "squares", "min", "max"))
        passes_for(y).multi_aggregate(_by_target(graph, as_given), *_loop_arguments(y, edge, relu), *made)
        return tuple(out.values())

    @staticmethod
    def back(ctx, *grads):
        (y, edge, least, largest), (graph, wanted, relu, as_given, shift) = ctx.saved_tensors, ctx.settings
        messages = _loop_arguments(y, edge, relu)
        grad = {name: one.contiguous() for name, one in zip(wanted, grads, strict=True)}
        for name, extreme in (("min", least), ("max", largest)):
            if extreme is not None:
                count = torch.empty_like(extreme)
                passes_for(y).ties(_by_target(graph, as_given), *messages, extreme, count)
                grad[name] = grad[name] / count.add_((extreme if shift is None else extreme + shift) == 0)
        given = *messages, grad.get("sum"), grad.get("squares"), least, grad.get("min"), largest, grad.get("max")
        passes = "multi_aggregate_back", "multi_aggregate_back_to_edges"
        return *_back_to_sources(passes, given, ctx.needs_input_grad[1], graph, as_given), *[None] * 5


def _loop_arguments(y: Tensor, edge: Tensor | None, relu: bool) -> tuple[Tensor, Tensor | None, int | None]:
    """(y, edge, 1 or None for `relu`) as the compiled loops take them, which leave out what is None."""
    return y.contiguous(), None if edge is None else edge.contiguous(), 1 if relu and edge is not None else None


def _back_to_sources(
    names: tuple[str, str], given: tuple, of_edges: bool, graph: Neighbours, as_given: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the sources and, with `of_edges`, of the edges; `given` begins with y and edge.

    With `of_edges` the sources' are sums of the edges': a pass by source would write the edges' to scattered rows.
    """
    y, edge, *_ = given
    to_sources, to_edges = (getattr(passes_for(y), name) for name in names)
    if not of_edges:
        to_y = torch.empty_like(y)
        to_sources(_by_source(graph, as_given), *given, to_y)
        return to_y, None
    to_edge = torch.empty_like(edge)
    to_edges(_by_target(graph, as_given), *given, to_edge)
    return unrecorded_sum(to_edge, graph.cached(_edges_by_source, as_given), None), to_edge


def _edges_by_source(graph: Neighbours, as_given: bool) -> Neighbours:
    """The graph from the edges, in the order of their features, to the source of each."""
    back, permutation, _ = _by_source(graph, as_given)
    return Neighbours(back.rowptr, permutation, permutation, graph.num_edges)


def softmax_aggregate(
    y: Tensor,
    graph: Neighbours,
    t: Tensor,
    edge: Tensor | None = None,
    relu: bool = False,
    semi: bool = False,
    as_given: bool = False,
) -> Tensor:
    """Sums of softmax(t v) v over the messages v of each node, (N, F), as `SoftmaxAggregation`; messages as in
    `multi_aggregate`. `t` one number, which may want a gradient; `semi`: the weights are detached."""
    _check(graph, y, edge=edge)
    return _SoftmaxAggregate.run(y, edge, t.detach() if semi else t, graph, relu, semi, as_given)


class _SoftmaxAggregate(Kernel):
    @staticmethod
    def plain(y, edge, t, graph, relu, semi, as_given):
        message, target = _messages(y, edge, graph, relu, as_given)
        score = message.detach() * t if semi else message * t
        top = _extreme(score.detach(), target, graph, "amax").index_select(0, target)
        weight = (score - top).exp()
        total = _scattered(weight, target, graph).index_select(0, target)
        return _scattered(weight / total * message, target, graph)

    @staticmethod
    def forward(ctx, y, edge, t, graph, relu, semi, as_given):
        out, log_sum = (y.new_empty(graph.num_nodes, y.shape[1], dtype=wide(y)) for _ in range(2))
        spread = torch.empty_like(out) if ctx.needs_input_grad[2] else None
        ctx.save_for_backward(y, edge, t, out, log_sum, spread)
        ctx.settings, ctx.number = (graph, relu, semi, as_given), t if backends.triton_for(y) else float(t)
        messages, rows = _loop_arguments(y, edge, relu), _by_target(graph, as_given)
        passes_for(y).softmax_aggregate(rows, *messages, ctx.number, out, log_sum, spread)
        return out.to(y.dtype)

    @staticmethod
    def back(ctx, grad):
        (y, edge, t, out, log_sum, spread), (graph, relu, semi, as_given) = ctx.saved_tensors, ctx.settings
        grad, passes = grad.contiguous(), ("softmax_aggregate_back", "softmax_aggregate_back_to_edges")
        given = *_loop_arguments(y, edge, relu), ctx.number, 0.0 if semi else ctx.number, out, log_sum, grad
        to_t = None
        if spread is not None:
            to_t = (grad * spread).masked_fill(graph.isolated, 0).sum().to(t.dtype).view_as(t)
        return *_back_to_sources(passes, given, ctx.needs_input_grad[1], graph, as_given), to_t, *[None] * 4


def gated_sum(
    source: Tensor,
    target: Tensor,
    graph: Neighbours,
    edge: Tensor | None = None,
    softplus: bool = False,
    as_given: bool = False,
) -> Tensor:
    """Sums of sigmoid(p) * q, or of sigmoid(p) * softplus(q), (N, F): p and q are the halves of source[j] + target[i]
    + edge; `source` (num_sources, 2 F), `target` (N, 2 F), or (N, F) for p alone, `edge` (E, 2 F) as in
    `multi_aggregate`."""
    _check(graph, source, edge=edge)
    width = source.shape[1] // (1 if target.shape[1] == source.shape[1] else 2)
    graph.require("target", target, (graph.num_nodes, width), source.dtype)
    return _GatedSum.run(source, target, edge, graph, softplus, as_given)


class _GatedSum(Kernel):
    @staticmethod
    def plain(source, target, edge, graph, softplus, as_given):
        rows, index = _messages(source, edge, graph, False, as_given)
        p, q = rows.chunk(2, dim=1)
        own = target.index_select(0, index)
        if target.shape[1] == source.shape[1]:
            own, own_q = own.chunk(2, dim=1)
            q = q + own_q
        return _scattered((p + own).sigmoid() * (F.softplus(q) if softplus else q), index, graph)

    @staticmethod
    def forward(ctx, source, target, edge, graph, softplus, as_given):
        out, slope = source.new_empty(graph.num_nodes, source.shape[1] // 2), None
        if ctx.needs_input_grad[1] and not ctx.needs_input_grad[2]:  # else the backward pass visits each edge
            slope = target.new_empty(target.shape)
        ctx.save_for_backward(source, target, edge, slope)
        ctx.settings = graph, softplus, as_given
        source, target, edge = contiguous(source, target, edge)
        options = 1 if target.shape[1] == source.shape[1] else None, 1 if softplus else None
        passes_for(source).gated_sum(_by_target(graph, as_given), source, target, edge, *options, out, slope)
        return out

    @staticmethod
    def back(ctx, grad):
        (*tensors, slope), (graph, softplus, as_given) = ctx.saved_tensors, ctx.settings
        source, target, edge, grad = contiguous(*tensors, grad)
        whole, softplus = 1 if target.shape[1] == source.shape[1] else None, 1 if softplus else None
        of_source, of_target, of_edge = torch.empty_like(source), None, None
        of_sources = source, target, edge, 1, whole, softplus, False
        back = passes_for(source).gated_sum_back
        back(_by_source(graph, as_given), *of_sources, grad, of_source, None)
        if slope is not None:
            of_target = _by_channel(slope, grad)
        elif ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            of_target, of_edge = torch.empty_like(target), torch.empty_like(edge) if ctx.needs_input_grad[2] else None
            of_targets = target, source, edge, whole, 1, softplus, True
            back(_by_target(graph, as_given), *of_targets, grad, of_target, of_edge)
        return of_source, of_target, of_edge, *[None] * 3


def contiguous(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if one is None else one.contiguous() for one in tensors]


def _by_channel(slope: Tensor, grad: Tensor) -> Tensor:
    """`slope` (N, F) or (N, 2 F) times `grad` (N, F)."""
    return (slope.unflatten(1, (-1, grad.shape[1])) * grad.unsqueeze(1)).flatten(1)


def film_sum(x: Tensor, target: Tensor, graph: Neighbours) -> Tensor:
    """Sums of relu(gamma[i] * x[j] + beta[i]), (N, F): `x` (num_sources, F), `target` (N, 2 F) beta and gamma."""
    _check(graph, x)
    graph.require("beta and gamma", target, (graph.num_nodes, 2 * x.shape[1]), x.dtype)
    return _FilmSum.run(x, target, graph)


class _FilmSum(Kernel):
    @staticmethod
    def plain(x, target, graph):
        beta, gamma = target.index_select(0, graph.row).chunk(2, dim=1)
        return _scattered((gamma * x.index_select(0, graph.col) + beta).relu(), graph.row, graph)

    @staticmethod
    def forward(ctx, x, target, graph):
        out = x.new_empty(graph.num_nodes, x.shape[1])
        slope = target.new_empty(target.shape) if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(x, target, slope)
        ctx.settings = (graph,)
        passes_for(x).film_sum(_by_target(graph, False), *contiguous(x, target), out, slope)
        return out

    @staticmethod
    def back(ctx, grad):
        (*tensors, slope), (graph,) = ctx.saved_tensors, ctx.settings
        x, target, grad = contiguous(*tensors, grad)
        of_x = torch.empty_like(x)
        passes_for(x).film_sum_back(_by_source(graph, False), x, target, grad, of_x)
        return of_x, None if slope is None else _by_channel(slope, grad), None


def edge_rows(source: Tensor, target: Tensor, graph: Neighbours, relu: bool = False, as_given: bool = False) -> Tensor:
    """source[j] + target[i], with `relu` relu of it, of each edge in the order of `graph.col` or `as_given`, (E, F):
    `source` (num_sources, F), `target` (N, F)."""
    _check(graph, source, target)
    return _EdgeRows.run(source, target, graph, relu, as_given)


class _EdgeRows(Kernel):
    @staticmethod
    def plain(source, target, graph, relu, as_given):
        sources, targets = _ends(graph, as_given)
        both = source.index_select(0, sources) + target.index_select(0, targets)
        return both.relu() if relu else both

    @staticmethod
    def forward(ctx, source, target, graph, relu, as_given):
        out = source.new_empty(graph.num_edges, source.shape[1])
        ctx.save_for_backward(source, target, out if relu else None)
        ctx.settings = graph, relu, as_given
        given = *contiguous(source, target), 1 if relu else None
        passes_for(source).edge_rows(_by_target(graph, as_given), *given, out)
        return out

    @staticmethod
    def back(ctx, grad):
        (source, target, out), (graph, relu, as_given) = ctx.saved_tensors, ctx.settings
        grad = grad.contiguous()
        of_source, of_target = (grad.new_empty(one.shape) for one in (source, target))
        given = grad, grad if out is None else out, 1 if relu else None
        for into, rows in ((of_source, _by_source(graph, as_given)), (of_target, _by_target(graph, as_given))):
            passes_for(grad).edge_rows_back(rows, *given, into)
        return of_source, of_target, None, None, None


def edge_weighted_sum(x: Tensor, edge: Tensor, graph: Neighbours) -> Tensor:
    """Sums of x[j] * edge, entry by entry, (N, F): `x` (num_sources, F), `edge` (E, F) in the order of the edges
    given."""
    _check(graph, x, edge=edge)
    return _EdgeWeightedSum.run(x, edge, graph)


class _EdgeWeightedSum(Kernel):
    @staticmethod
    def plain(x, edge, graph):
        source, target = graph.edges
        return _scattered(x.index_select(0, source) * edge, target, graph)

    @staticmethod
    def forward(ctx, x, edge, graph):
        out = x.new_empty(graph.num_nodes, x.shape[1])
        ctx.save_for_backward(x, edge)
        ctx.settings = (graph,)
        passes_for(x).edge_weighted_sum(_by_target(graph, True), *contiguous(x, edge), out)
        return out

    @staticmethod
    def back(ctx, grad):
        (graph,) = ctx.settings
        x, edge, grad = contiguous(*ctx.saved_tensors, grad)
        of_x, of_edge = (
            torch.empty_like(one) if ctx.needs_input_grad[at] else None for at, one in enumerate((x, edge))
        )
        if of_x is not None:
            passes_for(x).edge_weighted_sum(_by_source(graph, True), grad, edge, of_x)
        if of_edge is not None:
            passes_for(x).edge_weighted_sum_back(_by_target(graph, True), x, grad, of_edge)
        return of_x, of_edge, None
