"""Is a message linear in the rows of its sources, and with which weights? It runs on a `ProbeRow` to tell.

    rows = ProbeRow.ones((E, F), x.dtype)
    out = layer.message(x_j=rows, ...)           # the user's own code, once a call
    weight = weight_of(rows, out)                # (E, 1) or (E, F); None: the rows unchanged; or NotLinear is raised

A `ProbeRow` stands for rows (E, F), or (E, H, C) of several heads, and stores their factor so far. It supports only
linear operations: products and quotients with tensors and numbers, sums of such multiples, negation, and joining heads.
It has the shape and type of the rows. Anything else raises `NotLinear`, which is no `Exception`, so that no `except
Exception` in the message hides it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NotLinear(BaseException):
    """An operation of the message on its rows that is not known to be linear; the text names it."""


class NotThisCall(NotLinear):
    """A sparse sum cannot serve these arguments; it may serve others."""


class Trace:
    """The record of one probe: each `ProbeRow` that was made, and the first operation that is not linear."""

    def __init__(self) -> None:
        self.made: list[weakref.ref] = []
        self.refused = ""
        self.recorded = torch.is_grad_enabled()

    def refuse(self, what: str) -> None:
        self.refused = self.refused or what
        raise NotLinear(what)


class ProbeRow(Tensor):
    """Stands for rows of the shape `rows`, multiplied by `factor`, (E, 1), (E, F), (E, H, 1) or (1, E, 1).
    `joined`: heads (E, H, C) were viewed as (E, H C).
    """

    factor: Tensor
    rows: torch.Size
    trace: Trace
    joined: bool

    @staticmethod
    def of(factor: Tensor, rows: torch.Size, trace: Trace, joined: bool = False) -> ProbeRow:
        # on the device "meta", so that what bypasses `__torch_function__` fails; it wants a gradient, so that an
        # autograd function of the user's is noticed by its history
        probe = Tensor._make_subclass(ProbeRow, torch.empty(rows, dtype=factor.dtype, device="meta"), True)
        probe.factor, probe.rows, probe.trace, probe.joined = factor, rows, trace, joined
        trace.made.append(weakref.ref(probe))
        return probe

    @staticmethod
    def ones(rows: Sequence[int], factor: Sequence[int], dtype: torch.dtype, device: torch.device) -> ProbeRow:
        """Rows of this shape, multiplied by ones of the shape `factor`."""
        trace = Trace()
        with torch.inference_mode(False):
            return ProbeRow.of(torch.ones(factor, dtype=dtype, device=device), torch.Size(rows), trace)

    def scaled(self, factor: Tensor) -> ProbeRow:
        """The same rows with another factor, if it fits their shape.

        Within `torch.no_grad()` of the message, or an autograd function of the user's, gradients would differ: that is
        refused.
        """
        if torch.is_grad_enabled() is not self.trace.recorded:
            self.trace.refuse("gradients switched on or off")
        allowed = (self.rows, (*self.rows[:-1], 1), (1, *self.rows[1:-1], 1))
        if factor.dtype != self.factor.dtype or (factor.shape != self.factor.shape and factor.shape not in allowed):
            self.trace.refuse("rows of another type or shape")
        return ProbeRow.of(factor, self.rows, self.trace, self.joined)

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: tuple = (), named: dict | None = None) -> Any:
        handler = _HANDLERS.get(function)
        if handler is None:
            probe = next((one for one in (*args, *(named or {}).values()) if isinstance(one, ProbeRow)), None)
            name = getattr(function, "__name__", str(function))
            if name == "__get__":
                name = f"reading {getattr(getattr(function, '__self__', None), '__name__', 'an attribute')}"
            if probe is None:  # in a list
                raise NotLinear(name)
            probe.trace.refuse(name)
        return handler(*args, **(named or {}))


def weight_of(rows: ProbeRow, out: Any) -> tuple[bool, Tensor | None]:
    """(were heads joined, the weight of each row: None where `out` is the rows themselves).

    Raises:
        NotLinear: `out` is no multiple of the rows, or the message still refers to some of them.
    """
    if rows.trace.refused:
        raise NotLinear(rows.trace.refused)
    if not isinstance(out, ProbeRow) or getattr(out, "trace", None) is not rows.trace:
        raise NotLinear("its result does not follow from the rows alone")
    if torch.is_grad_enabled() is not rows.trace.recorded or not all(map(_is_leaf, (rows, out))):
        raise NotLinear("an autograd function, or gradients switched on or off")
    kept = [one for one in (reference() for reference in rows.trace.made) if one is not None]
    if any(one is not rows and one is not out for one in kept):
        raise NotLinear("it keeps its rows")
    return out.joined, None if out is rows else out.factor


def _is_leaf(probe: ProbeRow) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return probe.grad_fn is None


def _multiplied(one: Any, other: Any) -> Any:
    probe, by = (one, other) if isinstance(one, ProbeRow) else (other, one)
    if isinstance(by, ProbeRow):
        probe.trace.refuse("a product of two rows")
    return probe.scaled(probe.factor * _fitting(probe, by))


def _divided(one: Any, by: Any) -> Any:
    if isinstance(by, ProbeRow):
        by.trace.refuse("a division by rows")
    return one.scaled(one.factor / _fitting(one, by))


def _fitting(probe: ProbeRow, by: Any) -> Any:
    """A number, or a tensor that leaves rows their shape."""
    if isinstance(by, Tensor):
        shape = by.shape
        sizes = zip(reversed(shape), reversed(probe.rows), strict=False)
        fits = len(shape) <= len(probe.rows) and all(size in (1, wanted) for size, wanted in sizes)
        if not fits or type(by) not in (Tensor, nn.Parameter):
            probe.trace.refuse("a product with a tensor of another shape")
    elif not isinstance(by, (int, float)):
        probe.trace.refuse(f"a product with a {type(by).__name__}")
    return by


def _summed(sign: int) -> Callable[[Any, Any], Any]:
    def handler(one: Any, other: Any, *, alpha: float = 1) -> Any:
        probe = one if isinstance(one, ProbeRow) else other
        alike = isinstance(one, ProbeRow) and isinstance(other, ProbeRow)
        if not alike or one.joined != other.joined or one.trace is not other.trace:
            probe.trace.refuse("a sum with what does not follow from the rows")
        return one.scaled(one.factor + sign * alpha * other.factor)

    return handler


def _joined(probe: ProbeRow, *shape: Any) -> Any:
    shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    edges, *rest = probe.rows
    if len(rest) == 2 and shape in ((-1, rest[0] * rest[1]), (edges, -1), (edges, rest[0] * rest[1])):
        return ProbeRow.of(probe.factor, torch.Size((edges, rest[0] * rest[1])), probe.trace, joined=True)
    return probe.trace.refuse("another view")


def _flattened(probe: ProbeRow, start_dim: int = 0, end_dim: int = -1) -> Any:
    if len(probe.rows) == 3 and (start_dim, end_dim) in ((1, -1), (1, 2), (-2, -1)):
        return _joined(probe, -1, probe.rows[1] * probe.rows[2])
    return probe.trace.refuse("another view")


def _dropped(probe: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if training and p and isinstance(probe, ProbeRow):
        probe.trace.refuse("dropout of rows")
    return probe


def _functions(*names: str) -> set[Any]:
    owners = (torch, Tensor, torch._C.TensorBase)
    return {getattr(owner, name) for owner in owners for name in names if hasattr(owner, name)}


_HANDLERS: dict[Any, Callable] = {
    **dict.fromkeys(_functions("mul", "multiply", "__mul__", "__rmul__"), _multiplied),
    **dict.fromkeys(_functions("div", "divide", "true_divide", "__truediv__", "__div__"), _divided),
    **dict.fromkeys(_functions("add", "__add__", "__radd__"), _summed(1)),
    **dict.fromkeys(_functions("sub", "subtract", "__sub__"), _summed(-1)),
    **dict.fromkeys(_functions("neg", "negative", "__neg__"), lambda probe: probe.scaled(-probe.factor)),
    **dict.fromkeys({Tensor.view, Tensor.reshape}, _joined),
    **dict.fromkeys(_functions("flatten"), _flattened),
    F.dropout: _dropped,
    Tensor.size: lambda probe, dim=None: probe.rows if dim is None else probe.rows[dim],
    Tensor.dim: lambda probe: len(probe.rows),
    Tensor.numel: lambda probe: probe.rows.numel(),
    Tensor.__len__: lambda probe: probe.rows[0],
    Tensor.is_floating_point: lambda probe: True,
    Tensor.shape.__get__: lambda probe: probe.rows,
    Tensor.ndim.__get__: lambda probe: len(probe.rows),
    Tensor.dtype.__get__: lambda probe: probe.factor.dtype,
    Tensor.device.__get__: lambda probe: probe.factor.device,
    Tensor.layout.__get__: lambda probe: torch.strided,
    Tensor.is_cuda.__get__: lambda probe: False,
}
