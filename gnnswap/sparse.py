"""x @ weight.T for sparse features, such as word counts: the zeros are left out.

    inputs = SparseInputs()              # the sparse inputs of one model
    sparse_linear(x, weight, inputs.get(x))     # (N, out), as F.linear(x, weight)

An x is examined when the same tensor comes a second time: finding its nonzeros takes as long as two to three dense
products. One that is new in each call, wants a gradient or has too many nonzeros is multiplied as it is.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnswap.aggregation import recorded, transformed
from gnnswap.cache import MIB, TensorCache
from gnnswap.neighbours import Neighbours, index_type
from gnnswap.sums import NeighbourSum, all_finite

SAMPLED_ROWS = 64


class Limits(NamedTuple):
    """Which inputs (N, K) count as sparse.

    On one AVX-512 core with 64 columns of weight the product is 10 to 17 times as fast as the dense one with 1.3 %
    nonzeros, 3 to 4 times with 10 %, 2 times with 20 %; less with wider weights.
    """

    min_numbers: int = 1 << 14  # smaller ones are multiplied before their nonzeros are found
    min_columns: int = 64
    max_nonzeros: float = 0.1  # as a share of all numbers


SEEN = 64  # inputs that came once
USUAL = Limits()
ANY_SIZE = Limits(0, 0, 1.0)  # any x: for tests of equality on small inputs


class SparseInput:
    """A sparse matrix (N, K) as a graph with a weighted edge from column to row for each nonzero: its product with a
    matrix is a sum over neighbours. `sparse` is False where it has too many nonzeros."""

    def __init__(self, x: Tensor, limits: Limits) -> None:
        some = x[:: max(1, x.shape[0] // SAMPLED_ROWS)]
        self.limits = limits
        self.sparse = int(some.count_nonzero()) <= limits.max_nonzeros * some.numel()
        self.total: NeighbourSum | None = None
        if self.sparse:
            self._build(x)

    def _build(self, x: Tensor) -> None:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
            rows = x.detach().to_sparse_csr()
            self.sparse = rows.values().shape[0] <= self.limits.max_nonzeros * x.numel()
            if self.sparse:
                kind = index_type(max(x.shape), rows.values().shape[0])
                rowptr, col = rows.crow_indices().to(kind), rows.col_indices().to(kind)
                places = torch.arange(col.shape[0], dtype=kind)
                self.total = NeighbourSum(Neighbours(rowptr, col, places, x.shape[1]), rows.values())

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x @ weight.T, (N, out); `weight` (out, K) may want a gradient.

        If a weight is NaN or infinite, it is the dense product: 0 times it is NaN.
        """
        if not all_finite(weight):
            return F.linear(x, weight)
        return _Product.apply(weight, x, self.total) if recorded(weight) else self.total(weight.t())


class _Product(torch.autograd.Function):
    """x @ weight.T over the nonzeros of x, which wants no gradient."""

    @staticmethod
    def forward(ctx, weight: Tensor, x: Tensor, total: NeighbourSum) -> Tensor:
        ctx.save_for_backward(x)
        ctx.total = total
        return total(weight.t())

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled() or transformed(grad) or not all_finite(grad):  # differentiated again; 0 * NaN
            return grad.t() @ ctx.saved_tensors[0], None, None
        return ctx.total.transposed(grad).t(), None, None


def _checkpointed() -> bool:
    """Will a checkpoint compute this again? Both passes must do the same, so no x may become sparse in between."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


class SparseInputs:
    """The nonzeros of the sparse inputs of a model; they are dropped with their tensors."""

    def __init__(self, limits: Limits = USUAL, max_bytes: int = 128 * MIB) -> None:
        self.limits = limits
        self._cache = TensorCache(max_bytes)
        self._seen: OrderedDict[int, tuple[weakref.ref, int]] = OrderedDict()  # those that came once

    def get(self, x: Tensor) -> SparseInput | None:
        """The nonzeros of a sparse x (N, K) that comes a second time, else None."""
        if x.requires_grad or x.dim() != 2 or x.shape[1] < self.limits.min_columns:
            return None
        if x.numel() < self.limits.min_numbers or x.is_inference() or torch.compiler.is_compiling():
            return None
        if torch.is_autocast_enabled("cpu") or _checkpointed():
            return None
        if x.layout is not torch.strided or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
            return None
        reference, version = self._seen.get(id(x), (None, None))
        if reference is None or reference() is not x or version != x._version:
            self._seen[id(x)] = weakref.ref(x), x._version
            with suppress(KeyError):  # another thread was there first
                while len(self._seen) > SEEN:
                    self._seen.popitem(last=False)
            return None
        known = self._cache.get((x,), "nonzeros", lambda: SparseInput(x, self.limits))
        return known if known.sparse else None

    def forget(self) -> None:
        self._cache.forget()

    def __len__(self) -> int:
        return len(self._cache)


def sparse_linear(x: Tensor, weight: Tensor, known: SparseInput | None = None) -> Tensor:
    """x @ weight.T, (N, out), without the zeros of x if its nonzeros are `known`."""
    fits = weight.dim() == 2 and x.shape[1] == weight.shape[1] and x.dtype is weight.dtype
    if known is None or not fits or transformed(weight):  # torch raises an error for what does not fit
        return F.linear(x, weight)
    return known.linear(x, weight)
