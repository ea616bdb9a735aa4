"""A linear layer at the start of a message is pushed down from edges to nodes: its results are gathered.

    message(cat([x_i, x_j - x_i]))      # with `DeferredRows`: two products on nodes, then one pass over edges

For the user's own messages, where no sparse sum serves. `DeferredRows` stands for x_i or x_j, sums of them, and
`torch.cat` of these and of features of edges. A linear layer over it is two products on nodes and one on features; any
other operation gets the rows themselves. Once these rows were written to, hooked, or left in a way in which they could
be, they alone count, in every operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnswap import fused
from gnnswap.neighbours import Neighbours
from gnnswap.probe import NotLinear

# rows of targets (N, F), of sources, and of edges (E, F) as given: an edge has the sum of those that there are
Block = tuple[Tensor | None, Tensor | None, Tensor | None]
# Python's operators on tensors, all that torch defines but those below
OPERATORS = {
    name
    for name in vars(Tensor).keys() | vars(Tensor.__base__).keys()
    if name.startswith("__") and callable(getattr(Tensor, name)) and name not in vars(object)
}
OPERATORS |= {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
OPERATORS -= {
    "__add__",
    "__sub__",
    "__torch_function__",
    "__torch_dispatch__",
    "__setstate__",
    "__weakref__",
    "__dict__",
}
IN_PLACE = {name for name in OPERATORS if name.startswith("__i") and hasattr(Tensor, f"__{name[3:]}")}
# attributes of the rows by which nobody can change them unnoticed; results that share their memory share its version
READ = {"shape", "size", "dtype", "device", "ndim", "layout", "numel", "is_cuda", "is_floating_point", "requires_grad",
        "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "abs", "add", "chunk", "clamp", "contiguous",
        "div", "double", "exp", "expand", "float", "gather", "half", "index_select", "log", "matmul", "max", "mean",
        "min", "mul", "norm", "permute", "pow", "relu", "reshape", "sigmoid", "softmax", "split", "sqrt", "square",
        "squeeze", "sub", "sum", "t", "tanh", "to", "transpose", "type_as", "unsqueeze", "view"}  # fmt: skip


class Trace:
    """Shared by all rows of a call: the number of linear layers computed on nodes, and the rows that were made."""

    def __init__(self) -> None:
        self.linears = 0
        self.made: list[weakref.ref] = []

    def kept(self, rows: Iterable[DeferredRows]) -> bool:
        """Does the message still refer to rows beside these?"""
        own = [*map(id, rows)]
        return any(one() is not None and id(one()) not in own for one in self.made)


class DeferredRows:
    """Rows of edges (E, F), in the order given, as blocks of columns."""

    def __init__(self, graph: Neighbours, trace: Trace, *blocks: Block) -> None:
        self.graph, self.trace, self.blocks = graph, trace, blocks
        self._rows: Tensor | None = None
        self._version: int | None = None  # of the rows as they were made; None where they may change unnoticed
        self._mode = _gradient_mode()
        trace.made.append(weakref.ref(self))

    @property
    def deferred(self) -> bool:
        """Do the blocks still say what the rows are?

        Raises:
            NotLinear: gradients are recorded otherwise than where the rows were made: within `torch.no_grad`, or the
                forward of a function of autograd. These rows would have other gradients than the layer's own.
        """
        if _gradient_mode() != self._mode:
            raise NotLinear("gradients of its rows are turned on or off within it")
        return self._rows is None or (self._version is not None and self._rows._version == self._version)

    def rows(self) -> Tensor:
        """The rows themselves, (E, F). Raises as `deferred`."""
        if self.deferred and self._rows is None:
            self._rows = self._gathered()
            self._version = None if self._rows.is_inference() else self._rows._version
        return self._rows

    def _gathered(self) -> Tensor:
        source, target = self.graph.edge_index
        blocks = []
        for at_target, at_source, at_edge in self.blocks:
            rows = None if at_target is None else at_target.index_select(0, target)
            rows = _plus(rows, None if at_source is None else at_source.index_select(0, source))
            blocks.append(_plus(rows, at_edge))
        return torch.cat(blocks, dim=1) if len(blocks) > 1 else blocks[0]

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`F.linear` of the rows, (E, out); `weight` (out, F)."""
        self.trace.linears += 1
        sums: Block = (None, None, None)
        for block, part in zip(self.blocks, weight.split(list(map(_width, self.blocks)), dim=1), strict=True):
            products = [None if one is None else F.linear(one, part) for one in block]
            sums = tuple(map(_plus, sums, products))
        target, source, of_edges = sums
        if source is None:
            source = weight.new_zeros(self.graph.num_sources, weight.shape[0])
        if target is None:
            target = weight.new_zeros(self.graph.num_nodes, weight.shape[0])
        return _plus(fused.edge_rows(source, _plus(target, bias), self.graph, as_given=True), of_edges)

    def _joined(self, other: Any, sign: int) -> DeferredRows | None:
        """Its sum or difference with other `DeferredRows`; None with anything else."""
        alike = isinstance(other, DeferredRows) and len(self.blocks) == len(other.blocks) == 1
        if not alike or _width(self.blocks[0]) != _width(other.blocks[0]) or not (self.deferred and other.deferred):
            return None
        signed = [None if one is None else sign * one for one in other.blocks[0]]
        return DeferredRows(self.graph, self.trace, tuple(map(_plus, self.blocks[0], signed)))

    def __add__(self, other: Any) -> Any:
        joined = self._joined(other, 1)
        return self.rows() + _rows(other) if joined is None else joined

    def __sub__(self, other: Any) -> Any:
        joined = self._joined(other, -1)
        return self.rows() - _rows(other) if joined is None else joined

    def __getattr__(self, name: str) -> Any:
        rows = self.rows()
        if name not in READ:
            self._version = None
        return getattr(rows, name)

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: tuple = (), named: dict | None = None) -> Any:
        named = named or {}
        if function is F.linear and isinstance(args[0], DeferredRows) and args[0].deferred:
            return args[0].linear(*args[1:], **named)
        if function is torch.cat and _last(*args[1:], **named) and all(map(_joins, args[0])):
            first = next(one for one in args[0] if isinstance(one, DeferredRows))
            blocks = (one.blocks if isinstance(one, DeferredRows) else [(None, None, one)] for one in args[0])
            return cls(first.graph, first.trace, *chain.from_iterable(blocks))
        return function(*_rows(args), **{name: _rows(value) for name, value in named.items()})

    def dim(self) -> int:
        return 2


def _operator(name: str) -> Callable:
    def operator(self: DeferredRows, *others: Any) -> Any:
        result = getattr(self.rows(), name)(*map(_rows, others))
        if name in ("__array__", "__dlpack__"):
            self._version = None
        return self if name in IN_PLACE else result

    return operator


for _name in OPERATORS:
    setattr(DeferredRows, _name, _operator(_name))


def _width(block: Block) -> int:
    return next(one.shape[1] for one in block if one is not None)


def _plus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _gradient_mode() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _joins(one: Any) -> bool:
    """May it be a block of columns of rows that are deferred?"""
    return one.dim() == 2 and (not isinstance(one, DeferredRows) or one.deferred)


def _last(dim: int = 0) -> bool:
    return dim in (-1, 1)


def _rows(value: Any) -> Any:
    """The same with the rows themselves in place of `DeferredRows`."""
    if isinstance(value, DeferredRows):
        return value.rows()
    return type(value)(map(_rows, value)) if type(value) in (tuple, list) else value


def of_arguments(graph: Neighbours, names: Sequence[str], arguments: dict[str, Any]) -> dict[str, DeferredRows]:
    """`DeferredRows` for each of the arguments `names` of a message, "x_i" or "x_j", that are rows of nodes (N, F)."""
    ends: dict[str, DeferredRows] = {}
    trace = Trace()
    for name in names:
        given, at_target = arguments.get(name[:-2]), name.endswith("_i")
        x = given[at_target] if isinstance(given, (tuple, list)) else given
        if name.endswith(("_i", "_j")) and isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point():
            # a copy is saved for gradients: PyG saves rows of edges, so the caller may write to x before backward
            x = x.clone() if torch.is_grad_enabled() else x
            ends[name] = DeferredRows(graph, trace, (x, None, None) if at_target else (None, x, None))
    return ends
