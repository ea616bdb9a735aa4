"""Rows that are not gathered yet: what `message` of a PyG layer gets in place of `x_j`.

Weighting rows and viewing them by heads stays a note; a sum over the edges of each target then is one bag, which reads
each source row as it adds. Anything else gathers for real, so that a message that does something unforeseen is only
slower, never wrong.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnlab.kernels import aggregation
from gnnlab.kernels.aggregation import segment_sum
from gnnlab.kernels.attention import head_products, head_sum
from gnnlab.rewrite.edges import SOURCE, TARGET, Edges, gather


class _NotGathered:
    """What stands for a tensor that `real` makes when something needs it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in MULTIPLICATIONS and not kwargs and any(isinstance(a, Rows) for a in args):
            lazy = _multiplied(*args)
            if lazy is not NotImplemented:
                return lazy
        return function(*(real(a) for a in args), **{k: real(v) for k, v in (kwargs or {}).items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real(), name)


MULTIPLICATIONS = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)


class Rows(_NotGathered):
    """x[source] or x[target] of each edge, times a weight an edge and head: (E, *tail) of x (nodes, *tail).

    `weight`: None, (E,), or (E, H) where x is (nodes, H, C). `tail` may be (H * C,) after heads were joined.
    """

    def __init__(
        self, x: Tensor, edges: Edges, side: int, weight: Tensor | None = None, tail: tuple[int, ...] | None = None
    ) -> None:
        self.x, self.edges, self.side, self.weight = x, edges, side, weight
        self.tail = tuple(x.shape[1:]) if tail is None else tail
        self._real: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.edges.neighbours.num_edges, *self.tail))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 1 + len(self.tail)

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype

    @property
    def device(self) -> torch.device:
        return self.x.device

    def view(self, *shape: Any) -> Any:
        shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        lazy = _viewed(self, shape)
        return self.real().view(shape) if lazy is NotImplemented else lazy

    def reshape(self, *shape: Any) -> Any:
        return self.view(*shape)

    def real(self) -> Tensor:
        """The rows, gathered. From then on this object is nothing else, in case they are written to."""
        if self._real is None:
            rows = gather(self.x, self.edges, self.side)
            if self.weight is not None:
                weight = self.weight
                rows = rows * weight.view(*weight.shape, *(1,) * (rows.dim() - weight.dim()))
            self._real = rows.reshape(self.shape)
        return self._real

    def __getitem__(self, key: Any) -> Tensor:
        return self.real()[key]

    def __neg__(self) -> Tensor:
        return -self.real()

    def __mul__(self, other: Any) -> Any:
        return torch.mul(self, other) if isinstance(other, (Tensor, Rows)) else self.real() * other

    __rmul__ = __mul__


def _operator(name: str) -> Any:
    def method(self: Rows, other: Any) -> Any:
        return getattr(self.real(), name)(real(other))

    return method


for _name in ("add", "radd", "sub", "rsub", "truediv", "rtruediv", "matmul", "rmatmul", "pow", "gt", "lt", "ge", "le"):
    setattr(Rows, f"__{_name}__", _operator(f"__{_name}__"))


class Pairs(_NotGathered):
    """Rows of the targets times rows of the sources, elementwise; what is wanted is mostly their sum."""

    def __init__(self, targets: Rows, sources: Rows) -> None:
        self.targets, self.sources = targets, sources

    def sum(self, dim: int) -> Tensor:
        """The inner product of each edge (and head): (E,) or (E, H)."""
        if dim not in (-1, self.sources.dim() - 1):
            return self.real().sum(dim)
        query, key = self.targets.x, self.sources.x
        if key.dim() == 3:
            return head_products(query, key, self.sources.edges.neighbours)
        return head_products(query[:, None], key[:, None], self.sources.edges.neighbours)[:, 0]

    def real(self) -> Tensor:
        return self.targets.real() * self.sources.real()


def real(value: Any) -> Any:
    """`value` with every row in it gathered, within lists and tuples, too."""
    if isinstance(value, (Rows, Pairs)):
        return value.real()
    if isinstance(value, (list, tuple)) and any(isinstance(v, (Rows, Pairs, list, tuple)) for v in value):
        return type(value)(real(v) for v in value)
    return value


def summed(rows: Rows, aggr: str) -> Any:
    """The sum or mean over the edges of each target, or NotImplemented where no bag gives it."""
    if aggr not in ("sum", "add", "mean") or rows._real is not None or rows.side != SOURCE:
        return NotImplemented
    if not rows.x.is_floating_point():
        return NotImplemented
    graph, x, weight = rows.edges.neighbours, rows.x, rows.weight
    mean_in = aggr == "mean" and weight is None
    if weight is not None and weight.dim() == 2:
        out = head_sum(x, graph, weight)
    else:
        weight = graph.cast("mean_weight", x.dtype) if mean_in else weight
        out = aggregation.weighted_sum_sorted(x.reshape(x.shape[0], math.prod(x.shape[1:])), graph, weight)
    out = out.view(graph.num_nodes, *rows.tail)
    if aggr == "mean" and not mean_in:
        out = out / rows.edges.count(x.dtype).view(-1, *(1,) * (out.dim() - 1))
    return out


def largest_of(rows: Rows) -> Any:
    """The largest over the edges of each target, (num_nodes, F), or NotImplemented where rows must be gathered for it.

    As `scatter_reduce` with `amax` does, and PyG with it: 0 for targets without edges, and where several sources have
    the largest number, its gradient goes to all of them in equal parts. Where that number is 0, torch counts the 0 that
    PyG lets it start from as one more, whose part is lost; so does this.
    """
    x, graph = rows.x, rows.edges.neighbours
    known = x.dim() == 2 and x.dtype in (torch.float32, torch.float64) and x.numel() > 0 and graph.num_edges > 0
    plain = rows._real is None and rows.side == SOURCE and rows.weight is None
    return _Largest.apply(x, rows.edges) if plain and known and aggregation.has_csr(graph) else NotImplemented


def _multiplied(first: Any, second: Any) -> Any:
    rows, factor = (first, second) if isinstance(first, Rows) else (second, first)
    if rows._real is not None:
        return NotImplemented
    if isinstance(factor, Rows):
        return _paired(rows, factor)
    if type(factor) not in (Tensor, torch.nn.Parameter) or factor.dtype != rows.x.dtype or factor.dim() != rows.dim():
        return NotImplemented
    if factor.shape[0] != rows.shape[0] or math.prod(factor.shape[2:]) != 1:
        return NotImplemented
    if factor.dim() > 1 and factor.shape[1] != 1:
        if rows.x.dim() != 3 or factor.shape[1:] != (rows.x.shape[1], 1):
            return NotImplemented
        weight = factor.squeeze(-1)
    else:
        weight = factor.reshape(-1)
    return Rows(rows.x, rows.edges, rows.side, _product(rows.weight, weight), rows.tail)


def _product(one: Tensor | None, other: Tensor) -> Tensor:
    if one is None or one.dim() == other.dim():
        return other if one is None else one * other
    return one[:, None] * other if one.dim() == 1 else one * other[:, None]


def _paired(one: Rows, other: Rows) -> Any:
    plain = one._real is None and other._real is None and one.weight is None and other.weight is None
    if not plain or one.tail != other.tail or one.x.dtype != other.x.dtype or one.x.dim() not in (2, 3):
        return NotImplemented
    if one.tail != tuple(one.x.shape[1:]) or other.tail != tuple(other.x.shape[1:]) or {one.side, other.side} != {0, 1}:
        return NotImplemented
    return Pairs(one, other) if one.side == TARGET else Pairs(other, one)


def _viewed(rows: Rows, shape: tuple[int, ...]) -> Any:
    tail = tuple(shape[1:])
    if rows._real is not None or shape[0] not in (-1, rows.shape[0]) or -1 in tail or not all(rows.tail):
        return NotImplemented
    if tail == rows.tail:
        return rows
    if math.prod(tail) != math.prod(rows.tail) or rows.x.dim() == 1:
        return NotImplemented
    if rows.weight is None or rows.weight.dim() == 1:
        return Rows(rows.x.reshape(-1, *tail), rows.edges, rows.side, rows.weight)
    return Rows(rows.x, rows.edges, rows.side, rows.weight, tail) if len(tail) == 1 else NotImplemented


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, edges: Edges) -> Tensor:
        graph = edges.neighbours

        def adjacency() -> Tensor:
            return aggregation.csr(graph, torch.ones(graph.num_edges, dtype=x.dtype), torch.int64)

        out = torch.sparse.mm(edges.once(("adjacency", x.dtype), adjacency), x.contiguous(), "amax")
        ctx.edges = edges
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (x, out), edges = ctx.saved_tensors, ctx.edges
        graph, back = edges.neighbours, edges.neighbours.transposed
        sent = (x.index_select(0, graph.col) == out.index_select(0, graph.row)).to(x.dtype)
        share = grad / segment_sum(sent, graph).view_as(grad).add_(out == 0).clamp_(min=1)
        sent.mul_(share.index_select(0, graph.row))
        return segment_sum(sent, back, back.order).view_as(x), None
