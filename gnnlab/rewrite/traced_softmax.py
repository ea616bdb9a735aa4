"""SoftmaxNode over the edges of each node, found in a functional ATen graph: forward, and what autograd makes of it.

weight = exp(s - max[i]) / (sum[i] + eps)        where max and sum are scattered over the edges of i
grad_s = weight * (grad - sum_i(grad * weight))  which autograd writes with three divisions
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from gnnlab.rewrite.patterns import GatherNode, gather_of, is_tensor, is_zero, scatter_of, strip

aten = torch.ops.aten


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
    found = {node: softmax_of(node) for node in divisions}
    return {node: softmax for node, softmax in found.items() if softmax is not None}


def softmax_of(node: Node) -> SoftmaxNode | None:
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
    made = {}
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        gradient = _gradient_of(node, by_terms)
        if gradient is not None:
            made[node] = gradient
    return made


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
