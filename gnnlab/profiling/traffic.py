"""The least bytes that one operator call can move: each input read once, each output written once.

An expanded tensor is as small as its source. A gather reads no more of its source than it gathers, and a scatter in
place touches no more of its target than it scatters. What only fills or copies does not read its target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .dispatch import span_bytes, tensors_in, written

_RANDOM = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_")
_WRITES_ONLY = frozenset(("copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_", *_RANDOM))


def traffic(kind: str, func: torch._ops.OpOverload, bound: Mapping[str, Any], output: Any) -> tuple[int, int, int]:
    """(bytes read, bytes written, bytes of memory touched) by the call of an operator of the given kind.

    `bound` are its arguments by name. Memory that is both read and written in place is touched once.
    """
    targets = written(func, bound)
    outputs = {argument.name for argument in func._schema.arguments if argument.is_out}
    unread = targets if func._schema.name.split("::")[1] in _WRITES_ONLY else outputs
    read, changed, in_place, seen = 0, 0, 0, set()
    for name, value in bound.items():
        for tensor in tensors_in(value):
            size = _touched(kind, name, tensor, bound, output, name in targets)
            if name in targets:
                changed += size
                in_place += 0 if name in unread else size
            if name not in unread and kind != "fill" and _place(tensor) not in seen:
                seen.add(_place(tensor))
                read += size
    changed += sum(map(span_bytes, _fresh(func, output)))
    return read, changed, read + changed - in_place


def scattered(bound: Mapping[str, Any]) -> tuple[int, torch.dtype] | None:
    """(elements that a scattering operator scatters, their type); None where it scatters a number."""
    given = (bound.get(name) for name in ("src", "source", "values", "grad_output", "data", "weights", "grad"))
    source = next((value for value in given if isinstance(value, torch.Tensor)), None)
    if source is None:
        return None
    if "src" in bound:  # `scatter_add` reads as much of its source as the index is long in each dimension
        return bound["index"].numel(), source.dtype
    return source.numel(), source.dtype


def _place(tensor: torch.Tensor) -> Any:
    """The same for two tensors over the same elements."""
    strided = tensor.layout is torch.strided
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if strided else id(tensor)


def _fresh(func: torch._ops.OpOverload, output: Any) -> Iterator[torch.Tensor]:
    """The results that are no alias of an argument."""
    returns = func._schema.returns
    results = output if len(returns) > 1 else (output,)
    for declared, result in zip(returns, results, strict=False):
        if declared.alias_info is None:
            yield from tensors_in(result)


def _touched(kind: str, name: str, tensor: torch.Tensor, bound: Mapping[str, Any], output: Any, target: bool) -> int:
    """Bytes of an argument that the operator has to touch."""
    size = span_bytes(tensor)
    if kind == "gather" and name in ("self", "weight"):
        return min(size, output.numel() * output.element_size())
    if kind == "bag" and name == "weight":
        return min(size, bound["indices"].numel() * tensor.shape[-1] * tensor.element_size())
    if kind == "scatter" and (target or name in ("src", "source")):
        source = scattered(bound)
        return min(size, source[0] * tensor.element_size()) if source else size
    return size
