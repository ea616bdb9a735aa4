"""Do two forms compute the same? Nothing is timed before this says yes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gnnlab.errors import ParityError

RTOL_FLOAT32 = 1e-5  # of the largest magnitude; lower precisions state their own bound
_NEGLIGIBLE = 1e-3  # of the largest gradient


def require_equal(expected: Any, got: Any, tolerance: float = RTOL_FLOAT32, name: str = "candidate") -> float:
    """The relative error of `got` against `expected`; `ParityError` where it is above `tolerance`.

    Tensors, arrays, numbers and nested tuples, lists and mappings of them. The relative error of a tensor is
    max |got - expected| / max |expected|; of a structure it is the largest of its parts.
    """
    error = relative_error(expected, got, name)
    if not error <= tolerance:
        raise ParityError(
            f"{name}: outputs differ from the baseline's by {error:.2e} relative, allowed is {tolerance:.0e}; "
            "only what computes the same is timed"
        )
    return error


def relative_error(expected: Any, got: Any, name: str = "candidate") -> float:
    """Largest relative error over all tensors of two structures; NaN against a number is an infinite error."""
    if expected is None and got is None:
        return 0.0
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        if expected.keys() != got.keys():
            raise ParityError(f"{name}: outputs have the keys {sorted(got)}, the baseline's {sorted(expected)}")
        return max((relative_error(expected[k], got[k], f"{name}[{k!r}]") for k in expected), default=0.0)
    if isinstance(expected, (tuple, list)) and isinstance(got, (tuple, list)):
        if len(expected) != len(got):
            raise ParityError(f"{name}: {len(got)} outputs, the baseline has {len(expected)}")
        pairs = enumerate(zip(expected, got, strict=True))
        return max((relative_error(a, b, f"{name}[{i}]") for i, (a, b) in pairs), default=0.0)
    return _array_error(_array(expected, name), _array(got, name), name)


def gradient_error(expected: Mapping[str, Any], got: Mapping[str, Any], name: str = "candidate") -> float:
    """Largest relative error over gradients by name, each against its own magnitude or a thousandth of the largest one.

    Some gradients are zero but for rounding, as that of the bias of attention keys, which a softmax takes out again;
    against their own magnitude the rounding of two right forms would differ by all of it.
    """
    floor = _NEGLIGIBLE * max((np.abs(_array(g, name)).max(initial=0.0) for g in expected.values()), default=0.0)
    errors = [_array_error(_array(expected[k], name), _array(got[k], name), f"{name}[{k!r}]", floor) for k in expected]
    return max(errors, default=0.0)


def _array(value: Any, name: str) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().double().cpu().numpy() if value.is_floating_point() else value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ParityError(f"{name}: an output of type {type(value).__name__} cannot be compared; return tensors")
    return array.astype(np.float64)


def _array_error(expected: np.ndarray, got: np.ndarray, name: str, floor: float = 0.0) -> float:
    if expected.shape != got.shape:
        raise ParityError(f"{name}: output has shape {got.shape}, the baseline's has {expected.shape}")
    if expected.size == 0:
        return 0.0
    if not np.array_equal(np.isfinite(expected), np.isfinite(got)):
        return float("inf")
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], got[~finite], equal_nan=True):
        return float("inf")
    difference = np.abs(got[finite] - expected[finite]).max(initial=0.0)
    scale = max(np.abs(expected[finite]).max(initial=0.0), floor)
    if scale > 0:
        return float(difference / scale)
    return float("inf") if difference > 0 else 0.0
