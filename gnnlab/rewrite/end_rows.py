"""A linear layer at the start of a message, over rows of both ends of each edge, computed on nodes: what is gathered is
its result.

    message(cat([x_i, x_j - x_i]))      # with rows of `EndRows`: two products on nodes, then one pass over edges

For messages of anybody's own; `propagate` tries it where no sum serves. `EndRows` stands for x_i or x_j, or a sum of
them, and for what `torch.cat` makes of these and of features of edges. A linear layer over it is two products on nodes
and one on features; anything else that touches it gets the rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnlab.kernels.neighbours import Neighbours

Part = tuple[Tensor | None, Tensor | None]  # rows of targets (N, F) and of sources: an edge has the sum of its ends'


class EndRows:
    """Rows of edges (E, F), as given: blocks of columns, each a `Part`, or rows of edges as they are. `linears`: one
    entry for each linear layer that was computed on nodes, in a list that all rows of a call share."""

    def __init__(self, graph: Neighbours, linears: list, *blocks: Part | Tensor) -> None:
        self.graph, self.linears, self.blocks = graph, linears, blocks
        self._made: Tensor | None = None

    def made(self) -> Tensor:
        """The rows, (E, F)."""
        if self._made is None:
            source, target = self.graph.edge_index
            rows = [
                block
                if isinstance(block, Tensor)
                else sum(
                    one.index_select(0, end)
                    for one, end in zip(block, (target, source), strict=True)
                    if one is not None
                )
                for block in self.blocks
            ]
            self._made = torch.cat(rows, dim=1) if len(rows) > 1 else rows[0]
        return self._made

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """What a linear layer makes of the rows, (E, out); `weight` (out, F)."""
        from gnnlab.kernels import one_pass  # imports numba

        widths = [block.shape[1] if isinstance(block, Tensor) else _some(block).shape[1] for block in self.blocks]
        ends: list[Tensor | None] = [None, None]
        of_edges = None
        for block, part in zip(self.blocks, weight.split(widths, dim=1), strict=True):
            if isinstance(block, Tensor):
                of_edges = _plus(of_edges, F.linear(block, part))
                continue
            ends = [
                _plus(end, None if one is None else F.linear(one, part)) for end, one in zip(ends, block, strict=True)
            ]
        self.linears.append(weight.shape)
        target, source = ends
        target = _plus(target, bias)
        if source is None:
            source = weight.new_zeros(self.graph.num_sources, weight.shape[0])
        if target is None or target.dim() == 1:
            target = weight.new_zeros(self.graph.num_nodes, weight.shape[0]) + (0 if target is None else target)
        rows = one_pass.pairs(source, target, self.graph, as_given=True)
        return rows if of_edges is None else rows + of_edges

    def _joined(self, other: Any, sign: int) -> Any:
        """Its sum or difference with other rows of ends."""
        if not (isinstance(other, EndRows) and len(self.blocks) == len(other.blocks) == 1):
            return NotImplemented
        mine, others = self.blocks[0], other.blocks[0]
        if isinstance(mine, Tensor) or isinstance(others, Tensor) or _some(mine).shape[1] != _some(others).shape[1]:
            return NotImplemented
        signed = [None if one is None else sign * one for one in others]
        return EndRows(self.graph, self.linears, tuple(_plus(a, b) for a, b in zip(mine, signed, strict=True)))

    def __add__(self, other: Any) -> Any:
        joined = self._joined(other, 1)
        return self.made() + _rows(other) if joined is NotImplemented else joined

    def __sub__(self, other: Any) -> Any:
        joined = self._joined(other, -1)
        return self.made() - _rows(other) if joined is NotImplemented else joined

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made(), name)

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: tuple = (), named: dict | None = None) -> Any:
        named = named or {}
        if function is F.linear and isinstance(args[0], EndRows):
            return args[0].linear(*args[1:], **named)
        if function is torch.cat and _last(*args[1:], **named) and all(map(_can_be_joined, args[0])):
            first = next(one for one in args[0] if isinstance(one, EndRows))
            blocks = [block for one in args[0] for block in (one.blocks if isinstance(one, EndRows) else [one])]
            return cls(first.graph, first.linears, *blocks)
        return function(*_rows(args), **{name: _rows(value) for name, value in named.items()})


def _operator(name: str) -> Callable:
    return lambda self, *others: getattr(self.made(), name)(*map(_rows, others))


for _name in (
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "radd",
    "rsub",
    "matmul",
    "pow",
    "neg",
    "getitem",
    "len",
    "gt",
    "lt",
):
    setattr(EndRows, f"__{_name}__", _operator(f"__{_name}__"))


def _some(part: Part) -> Tensor:
    return part[0] if part[0] is not None else part[1]


def _plus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _last(dim: int = 0) -> bool:
    return dim in (-1, 1)


def _can_be_joined(one: Any) -> bool:
    return isinstance(one, EndRows) or (isinstance(one, Tensor) and one.dim() == 2)


def _rows(value: Any) -> Any:
    """The same with rows in place of what stands for them."""
    if isinstance(value, EndRows):
        return value.made()
    return type(value)(map(_rows, value)) if type(value) in (tuple, list) else value


def of_arguments(graph: Neighbours, names: Sequence[str], arguments: dict[str, Any]) -> dict[str, EndRows]:
    """`EndRows` for each of the arguments `names` of a message, "x_i" or "x_j", that are rows of nodes (N, F)."""
    made: dict[str, EndRows] = {}
    linears: list = []
    for name in names:
        given = arguments.get(name[:-2])
        at = 0 if name.endswith("_j") else 1
        x = given[at] if isinstance(given, (tuple, list)) else given
        if name.endswith(("_i", "_j")) and isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point():
            made[name] = EndRows(graph, linears, (x, None) if at else (None, x))
    return made
