"""Parity (numerical equivalence): the relative error of two results. gnnswap and gnnlab compare results only here.

    error(got, expected) <= RTOL_FLOAT32
    error(got, expected, truth)                                   # `truth` is `expected`, computed in float64
    error(got, expected, floor=GRADIENT_FLOOR * largest(expected))    # gradients by name

The error of a tensor is max |got - expected| / max |expected|, that of a structure is the largest of its tensors'.
If the exact result is known (`truth`), the tolerance of a tensor is `rtol` of its largest magnitude, or `FP32_SLACK`
times the error of `expected` in float32, whichever is larger.

Importing this module calls torch.exp on eight numbers: the first multi-threaded exp of a process can be inexact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

RTOL_FLOAT32 = 1e-5  # of the largest magnitude of a tensor; lower precisions state their own
FP32_SLACK = 8  # times the error of the original's float32
GRADIENT_FLOOR = 1e-3  # of the largest gradient: a smaller one is compared at this scale
EPSILON = 2.0**-23  # relative distance of neighbouring numbers in float32
NOTHING_FINITE = "the baseline gives no finite number, so nothing can be compared"
torch.zeros(8).exp()  # the first of this process


class Deviation(float):
    """A relative error.

    of: the name of the tensor that is furthest off, or that cannot be compared; "" where all are equal.
    why: one line, where the results cannot be compared (the error is infinite); else "".
    """

    def __new__(cls, value: float, of: str = "", why: str = "") -> Deviation:
        self = super().__new__(cls, value)
        self.of, self.why = of, why
        return self


def error(
    got: Any, expected: Any, truth: Any = None, *, floor: float = 0.0, rtol: float = RTOL_FLOAT32, name: str = ""
) -> Deviation:
    """The largest relative error over all tensors of two structures. They are equal where it is at most `rtol`.

    NaN and infinity are equal where both have them, infinity of the same sign; any other is an infinite error. So are
    other keys, lengths, shapes, types, and an `expected` without one finite number, each with its `why`.

    Args:
        got, expected: tensors, arrays, numbers, None, and nested tuples, lists and mappings of them.
        truth: `expected` in float64, of the same structure, to compare with. A tensor that is zero in both is compared
            at the scale of the rounding of the largest one.
        floor: the least magnitude at which a tensor is compared. Some gradients are zero but for rounding, such as that
            of the bias of attention keys: their relative error means nothing.
        rtol: the tolerance to which an error with a `truth` is scaled.
        name: prefix of the names of tensors.
    """
    try:
        tensors = list(_pairs(got, expected, name))
        exact = [None] * len(tensors) if truth is None else [each for _, each, _ in _pairs(truth, expected, name)]
    except _NotComparable as problem:
        return Deviation(math.inf, *problem.args)
    wanted = [array for _, _, array in tensors]
    scale = 0.0 if truth is None else largest(wanted)
    worst = Deviation(0.0)
    for (of, one, other), true in zip(tensors, exact, strict=True):
        off = _error(one, other, true, floor, rtol, scale)
        if off > worst:
            worst = Deviation(off, of)
    if not worst and any(array.size for array in wanted) and not any(np.isfinite(array).any() for array in wanted):
        return Deviation(math.inf, tensors[0][0], NOTHING_FINITE)
    return worst


def largest(values: Any) -> float:
    """The largest finite magnitude in a structure; 0 where there is none."""
    arrays = (array for _, array, _ in _pairs(values, values, ""))
    return max((float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in arrays), default=0.0)


class _NotComparable(Exception):
    """(the name of a part, why it cannot be compared)."""


def _pairs(got: Any, expected: Any, name: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(name, got, expected) of each tensor, in float64."""
    if got is None and expected is None:
        return
    if isinstance(got, Mapping) and isinstance(expected, Mapping):
        if got.keys() != expected.keys():
            odd = ", ".join(sorted(map(str, got.keys() ^ expected.keys())))
            raise _NotComparable(name or "the output", f"only one of it and the baseline has the keys {odd}")
        for key in expected:
            yield from _pairs(got[key], expected[key], f"{name}[{key!r}]" if name else str(key))
    elif isinstance(got, (tuple, list)) and isinstance(expected, (tuple, list)):
        if len(got) != len(expected):
            raise _NotComparable(name or "the output", f"{len(got)} outputs, the baseline has {len(expected)}")
        for place, (one, other) in enumerate(zip(got, expected, strict=True)):
            yield from _pairs(one, other, f"{name}[{place}]" if name else f"output {place}")
    else:
        name = name or "the output"
        one, other = _array(got, name), _array(expected, name)
        if one.shape != other.shape:
            raise _NotComparable(name, f"output has shape {one.shape}, the baseline's has {other.shape}")
        yield name, one, other


def _array(value: Any, name: str) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().double().cpu().numpy() if value.is_floating_point() else value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise _NotComparable(name, f"an output of type {type(value).__name__} cannot be compared; return tensors")
    return array.astype(np.float64, copy=False)


def _error(
    got: np.ndarray, expected: np.ndarray, truth: np.ndarray | None, floor: float, rtol: float, scale: float
) -> float:
    """Of one tensor; `scale` is the largest magnitude of all."""
    exact = expected if truth is None else truth
    finite = np.isfinite(got) & np.isfinite(expected) & np.isfinite(exact)
    if not finite.all():
        if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
            return math.inf
        got, expected, exact = got[finite], expected[finite], exact[finite]
    off = float(np.abs(got - exact).max(initial=0.0))
    own = 0.0 if truth is None else float(np.abs(expected - exact).max(initial=0.0))
    if truth is not None and not own and not exact.any():  # terms that cancel in this order, and not in another
        own = EPSILON * scale
    magnitude = max(float(np.abs(exact).max(initial=0.0)), floor, FP32_SLACK * own / rtol)
    return off / magnitude if magnitude else (math.inf if off else 0.0)
