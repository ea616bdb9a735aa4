"""What a node of a functional ATen graph is, in the words of message passing: a gather, a scatter, work on single rows.

Each function looks at one node and says what it found, or None at the first thing that is not as it has to be. Of
several nodes is a softmax over the edges of each node, forward, and what autograd makes of it:

    weight = exp(s - max[i]) / (sum[i] + eps)        where max and sum are scattered over the edges of i
    grad_s = weight * (grad - sum_i(grad * weight))  which autograd writes with three divisions
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

INDEX_TYPES = (torch.int64, torch.int32)
SAME = (aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh.default)
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
ZEROS = (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)
COMPARISONS = {aten.eq, aten.ne, aten.gt, aten.ge, aten.lt, aten.le, aten.argmax, aten.argmin}
SCATTERS = (
    aten.scatter_add.default,
    aten.index_add.default,
    aten.index_put.default,
    aten._unsafe_index_put.default,
    aten.scatter_reduce.two,
)
POINTWISE = {  # and not tagged as such
    aten.leaky_relu_backward.default, aten.elu_backward.default, aten.hardtanh_backward.default,
    aten.softplus_backward.default, aten.hardswish.default, aten.hardswish_backward.default,
    aten.mish_backward.default, aten.hardsigmoid_backward.default,
}  # fmt: skip
REDUCTIONS = (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)


class GatherNode(NamedTuple):
    """x[index], rows of `x` by a list of nodes (E)."""

    x: Node
    index: Node


class Scatter(NamedTuple):
    """`values` (E, ...) reduced into the rows `index` (E) of `base` (N, ...): "sum", "mean" or "max"."""

    base: Node
    index: Node
    values: Node
    kind: str


class Product(NamedTuple):
    """A gather times weights that are alike along all or all but the first dimension of a row; `heads` 1 or more."""

    gather: GatherNode
    weights: tuple[tuple[Node, bool], ...]  # node, divides
    heads: int | torch.SymInt


def value(node: Node) -> Tensor:
    """The tensor without memory that stands for a node's result: its shape and type."""
    return node.meta["val"]


def is_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), Tensor)


def same_size(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Are two sizes equal for every graph, as far as the trace knows?"""
    return statically_known_true(a == b)


def same_sizes(a: tuple, b: tuple) -> bool:
    return len(a) == len(b) and all(same_size(one, other) for one, other in zip(a, b, strict=True))


def strip(node: Node) -> Node:
    """The node behind copies, and views that change no shape."""
    while node.op == "call_function" and is_tensor(node):
        if node.target not in (*SAME, *VIEWS, aten.expand.default):
            break
        inner = node.args[0]
        if value(inner).dtype != value(node).dtype or not same_sizes(value(inner).shape, value(node).shape):
            break
        node = inner
    return node


def index_of(node: Node) -> Node | None:
    """The list of nodes (E) behind an index of any shape (E, ...) that is alike along each row."""
    if not is_tensor(node) or value(node).dtype not in INDEX_TYPES:
        return None
    node = strip(node)
    while value(node).dim() > 1:
        if node.op != "call_function":
            return None
        inner = node.args[0]
        if node.target == aten.expand.default:
            if value(inner).dim() != value(node).dim():
                return None
        elif node.target not in (*VIEWS, aten.unsqueeze.default) or not _single(node):
            return None
        if value(inner).dim() == 0 or not same_size(value(inner).shape[0], value(node).shape[0]):
            return None
        node = strip(inner)
    return node if value(node).dim() == 1 else None


def _single(node: Node) -> bool:
    return all(same_size(size, 1) for size in value(node).shape[1:])


def gather_of(node: Node) -> GatherNode | None:
    """The gather that a node is."""
    node = strip(node)
    if node.op != "call_function":
        return None
    if node.target == aten.index.Tensor:
        x, (index, *more) = node.args
        return None if more or index is None else _gather(x, index)
    if node.target == aten.index_select.default and _first(node.args[1], node):
        return _gather(node.args[0], node.args[2])
    if node.target == aten.gather.default and _first(node.args[1], node):
        x, _, index = node.args[:3]
        if same_sizes(value(index).shape[1:], value(x).shape[1:]):
            return _gather(x, index_of(index))
    return None


def _gather(x: Node, index: Node | None) -> GatherNode | None:
    if index is None or value(index).dim() != 1 or value(index).dtype not in INDEX_TYPES or value(x).dim() == 0:
        return None
    return GatherNode(x, strip(index))


def _first(dim: int, node: Node) -> bool:
    return value(node).dim() > 0 and dim % value(node).dim() == 0


def scatter_of(node: Node) -> Scatter | None:
    """The scatter that a node is."""
    if node.op != "call_function" or node.target not in SCATTERS:
        return None
    base = node.args[0]
    if node.target in (aten.index_put.default, aten._unsafe_index_put.default):
        indices, values, *accumulate = node.args[1:]
        index = indices[0] if len(indices) == 1 and accumulate == [True] else None
        return _scatter(base, index, values, "sum")
    dim, index, values = node.args[1:4]
    if not _first(dim, base):
        return None
    if node.target == aten.index_add.default:
        return _scatter(base, index, values, "sum") if node.kwargs.get("alpha", 1) == 1 else None
    if not same_sizes(value(index).shape, value(values).shape):
        return None
    kind = "sum" if node.target == aten.scatter_add.default else _reduction(node, base)
    return _scatter(base, index, values, kind)


def _reduction(node: Node, base: Node) -> str | None:
    kind = {"sum": "sum", "mean": "mean", "amax": "max"}.get(node.args[4])
    with_base = node.args[5] if len(node.args) > 5 else node.kwargs.get("include_self", True)
    alone = is_zero(base) and not with_base
    return kind if alone or (kind == "sum" and with_base) else None


def is_zero(node: Node) -> bool:
    """Is a node a tensor of zeros?"""
    return node.target in ZEROS or (node.target == aten.full.default and node.args[1] == 0)


def _scatter(base: Node, index: Node | None, values: Node, kind: str | None) -> Scatter | None:
    index = None if index is None else index_of(index)
    if index is None or kind is None or not is_tensor(values) or not value(values).is_floating_point():
        return None
    rows = value(values).shape
    fits = same_sizes(rows[1:], value(base).shape[1:]) and len(rows) > 0 and same_size(rows[0], value(index).shape[0])
    return Scatter(base, index, values, kind) if fits and value(values).dtype == value(base).dtype else None


def product_of(node: Node) -> Product | None:
    """The gather times weights that a node is, so that a sum over it is a weighted sum."""
    factors = list(_factors(strip(node), False))
    gathers = [found for factor, divides in factors if not divides and (found := _whole(factor, node))]
    for gather, factor in gathers:
        weights = tuple(pair for pair in factors if pair[0] is not factor)
        if len(weights) == len(factors) - 1 and (heads := _heads(weights, node)) is not None:
            return Product(gather, weights, heads)
    return None


def _factors(node: Node, divides: bool) -> Iterator[tuple[Node, bool]]:
    if node.target == aten.mul.Tensor and all(is_tensor(arg) for arg in node.args):
        for arg in node.args:
            yield from _factors(strip(arg), divides)
    elif node.target == aten.div.Tensor and all(is_tensor(arg) for arg in node.args):
        yield from _factors(strip(node.args[0]), divides)
        yield from _factors(strip(node.args[1]), not divides)
    else:
        yield node, divides


def _whole(factor: Node, product: Node) -> tuple[GatherNode, Node] | None:
    found = gather_of(factor)
    fits = found is not None and same_sizes(value(factor).shape, value(product).shape)
    return (found, factor) if fits and value(factor).dtype == value(product).dtype else None


def _heads(weights: tuple[tuple[Node, bool], ...], product: Node) -> int | torch.SymInt | None:
    """1 if all weights are one number an edge, the number of heads if one a head, None for anything else."""
    rows, heads = value(product).shape, 1
    for weight, _ in weights:
        shape = value(weight).shape
        if len(shape) != len(rows) or not same_size(shape[0], rows[0]) or value(weight).dtype != value(product).dtype:
            return None
        wide = [dim for dim in range(1, len(shape)) if not same_size(shape[dim], 1)]
        if wide == [1] and len(shape) == 3 and same_size(shape[1], rows[1]):
            heads = rows[1]
        elif wide:
            return None
    return heads


def dot_of(node: Node) -> tuple[GatherNode, GatherNode] | None:
    """The two gathers whose rows' scalar products a node is."""
    if node.target != aten.sum.dim_IntList or not is_tensor(node.args[0]):
        return None
    product = strip(node.args[0])
    dims = [dim % value(product).dim() for dim in node.args[1] or ()]
    if dims != [value(product).dim() - 1] or dims == [0] or product.target != aten.mul.Tensor:
        return None
    found = [_whole(strip(arg), product) if is_tensor(arg) else None for arg in product.args]
    return None if None in found or "dtype" in node.kwargs else (found[0][0], found[1][0])


def rows_of(node: Node) -> list[Node] | None:
    """The arguments whose k-th rows alone make the k-th row of a node; None if other rows matter, or may.

    Products of matrices are left out: their last bits depend on where a row stands. So are comparisons, which such bits
    would turn over.
    """
    if node.op != "call_function" or not is_tensor(node) or value(node).dim() == 0:
        return None
    if any(isinstance(arg, Node) for arg in node.kwargs.values()):
        return None
    if node.target in SAME or node.target == aten._to_copy.default:
        return [node.args[0]]
    if _reshapes_rows(node) or _reduces_rows(node):
        return [node.args[0]]
    if node.target == aten.cat.default:
        parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
        return None if dim % value(node).dim() == 0 else list(parts)
    if not is_pointwise(node.target) or any(isinstance(arg, list | tuple) for arg in node.args):
        return None
    return [arg for arg in node.args if is_tensor(arg) and carries_rows(arg, node)]


def is_pointwise(target: Any) -> bool:
    """Is an operator one of each number by itself, the same in each call, and no comparison?"""
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    known = torch.Tag.pointwise in target.tags or target in POINTWISE
    return known and target.overloadpacket not in COMPARISONS


def carries_rows(arg: Node, node: Node) -> bool:
    """Does an argument of a pointwise node have a row for each row of the node, and is not repeated for it?"""
    shape = value(arg).shape
    return len(shape) == value(node).dim() and not same_size(shape[0], 1)


def _reshapes_rows(node: Node) -> bool:
    if not node.args or not is_tensor(node.args[0]) or value(node.args[0]).dim() == 0:
        return False
    before, after = value(node.args[0]), value(node)
    if not same_size(before.shape[0], after.shape[0]):
        return False
    if node.target in VIEWS:
        return True
    if node.target == aten.expand.default:
        return before.dim() == after.dim()
    if node.target == aten.unsqueeze.default:
        return node.args[1] % after.dim() != 0
    if node.target in (aten.squeeze.dim, aten.select.int, aten.slice.Tensor):
        return len(node.args) > 1 and node.args[1] % before.dim() != 0
    return False


def _reduces_rows(node: Node) -> bool:
    if node.target not in REDUCTIONS or len(node.args) < 2 or not node.args[1]:
        return False
    return all(dim % value(node.args[0]).dim() != 0 for dim in node.args[1])


class SoftmaxNode(NamedTuple):
    """The softmax of `scores` (E, ...) over the edges that end at the same node of `index` (E)."""

    scores: Node
    index: Node
    terms: Node  # exp of the scores
    total: Node  # their sum, gathered for each edge


class SoftmaxGradient(NamedTuple):
    """The gradient of the scores of a softmax whose result is `weight`, from `grad`, that of the weight."""

    grad: Node
    weight: Node
    index: Node


def softmaxes_of(graph: Graph) -> dict[Node, SoftmaxNode]:
    """Each node that is a softmax over edges."""
    divisions = graph.find_nodes(op="call_function", target=aten.div.Tensor)
    return {node: softmax for node in divisions if (softmax := _softmax_of(node))}


def _softmax_of(node: Node) -> SoftmaxNode | None:
    """The softmax that a division is."""
    if not all(map(is_tensor, node.args)):
        return None
    terms, total = map(strip, node.args)
    shift, sums = _shift_of(terms), gather_of(total)
    if shift is None or sums is None:
        return None
    scores, index = shift
    scattered = scatter_of(_without_eps(strip(sums.x)))
    fits = scattered is not None and scattered.kind == "sum" and is_zero(scattered.base)
    if not fits or strip(scattered.values) is not terms or {scattered.index, sums.index} != {index}:
        return None
    return SoftmaxNode(scores, index, terms, total)


def _shift_of(terms: Node) -> tuple[Node, Node] | None:
    """(s, i) where `terms` is exp(s - max over the edges of i)."""
    shifted = strip(terms.args[0]) if terms.target == aten.exp.default else None
    if shifted is None or shifted.target != aten.sub.Tensor or shifted.kwargs or not all(map(is_tensor, shifted.args)):
        return None
    scores, largest = strip(shifted.args[0]), gather_of(shifted.args[1])
    scattered = None if largest is None else scatter_of(strip(largest.x))
    if scattered is None or scattered.kind != "max" or strip(scattered.values) is not scores:
        return None
    return (scores, largest.index) if scattered.index is largest.index else None


def _without_eps(node: Node) -> Node:
    tiny = node.target == aten.add.Tensor and isinstance(node.args[1], float) and 0 <= node.args[1] <= 1e-12
    return strip(node.args[0]) if tiny else node


def gradients_of(graph: Graph, found: dict[Node, SoftmaxNode]) -> dict[Node, SoftmaxGradient]:
    """Each node that is the gradient of the scores of one of these softmaxes."""
    by_terms = {softmax.terms: (node, softmax) for node, softmax in found.items()}
    products = graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    return {node: gradient for node in products if (gradient := _gradient_of(node, by_terms))}


def _gradient_of(node: Node, by_terms: dict[Node, tuple[Node, SoftmaxNode]]) -> SoftmaxGradient | None:
    """`node` as ((grad / total) + sum_i(-grad * (weight / total))) * terms."""
    if not all(map(is_tensor, node.args)):
        return None
    for inner, terms in (map(strip, node.args), map(strip, reversed(node.args))):
        if terms not in by_terms or inner.target != aten.add.Tensor or inner.kwargs or len(inner.all_input_nodes) != 2:
            continue
        weight, softmax = by_terms[terms]
        for direct, back in (map(strip, inner.args), map(strip, reversed(inner.args))):
            grad = _divided(direct, softmax.total)
            sums = gather_of(back)
            if grad is not None and sums is not None and _is_expected(sums, grad, weight, softmax):
                return SoftmaxGradient(grad, weight, softmax.index)
    return None


def _divided(node: Node, by: Node) -> Node | None:
    fits = node.target == aten.div.Tensor and all(map(is_tensor, node.args)) and strip(node.args[1]) is by
    return strip(node.args[0]) if fits else None


def _is_expected(sums: GatherNode, grad: Node, weight: Node, softmax: SoftmaxNode) -> bool:
    """Is `sums` the sum over edges of -grad * (weight / total)?"""
    scattered = scatter_of(strip(sums.x))
    if scattered is None or scattered.kind != "sum" or not is_zero(scattered.base):
        return False
    product = strip(scattered.values)
    if {scattered.index, sums.index} != {softmax.index} or product.target != aten.mul.Tensor:
        return False
    if not all(map(is_tensor, product.args)):
        return False
    minus, share = map(strip, product.args)
    negated = minus.target == aten.neg.default and strip(minus.args[0]) is grad
    return negated and _divided(share, softmax.total) is strip(weight)
