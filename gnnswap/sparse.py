"""x @ weight.T for features that are mostly zeros, such as bags of words: the zeros are left out.

    times(x, weight)       # (N, out), as F.linear(x, weight)

An x is looked at when it comes a second time, the same tensor and unchanged: finding its nonzeros takes as long as two
to three dense products. One that is new in each call, wants a gradient or has more nonzeros than `MOST_NONZEROS` is
multiplied as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnswap.cache import TensorCache
from gnnswap.neighbours import Neighbours, index_type
from gnnswap.sums import NeighbourSum

# up to this share of nonzeros they are multiplied alone; measured with one AVX-512 core at 64 columns of weight: 10 to
# 17 times as fast as the dense product at 1.3 %, 3 to 4 times at 10 %, 2 times at 20 %, less where weights are wide
MOST_NONZEROS = 0.1
FEWEST_NUMBERS = 1 << 14  # smaller inputs are multiplied before the nonzeros are found
FEWEST_COLUMNS = 64
SAMPLED_ROWS = 64
_limits = FEWEST_NUMBERS, FEWEST_COLUMNS, MOST_NONZEROS


class Features:
    """A matrix (N, K) that is mostly zeros, as a graph: an edge from column to row with each of its nonzeros as weight,
    so that its product with a matrix is a sum over neighbours. Made when asked for."""

    def __init__(self, x: Tensor) -> None:
        some = x[:: max(1, x.shape[0] // SAMPLED_ROWS)]
        self.sparse = int(some.count_nonzero()) <= _limits[2] * some.numel()
        self.calls = 0
        self.total: NeighbourSum | None = None

    def prepare(self, x: Tensor) -> None:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
            rows = x.detach().to_sparse_csr()
            self.sparse = rows.values().shape[0] <= _limits[2] * x.numel()
            if self.sparse:
                kind = index_type(max(x.shape), rows.values().shape[0])
                rowptr, col = rows.crow_indices().to(kind), rows.col_indices().to(kind)
                places = torch.arange(col.shape[0], dtype=kind)
                self.total = NeighbourSum(Neighbours(rowptr, col, places, x.shape[1]), rows.values(), x.dtype)

    def product(self, weight: Tensor) -> Tensor:
        """x @ weight.T, (N, out); `weight` (out, K) may want a gradient."""
        return self.total(weight.t())


_SEEN = TensorCache(8)


def features_of(x: Tensor) -> Features | None:
    """The nonzeros of an x that comes a second time and is mostly zeros, else None."""
    if (
        torch.compiler.is_compiling()
        or x.requires_grad
        or x.shape[1] < _limits[1]
        or x.numel() < _limits[0]
        or x.is_inference()
    ):
        return None
    if x.layout is not torch.strided or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return None
    features = _SEEN.get((x,), "features", lambda: Features(x))
    features.calls += 1
    if not features.sparse or features.calls == 1:
        return None
    if features.total is None:
        features.prepare(x)
    return features if features.sparse else None


def times(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T, (N, out), without the zeros of x where they are known."""
    features = features_of(x)
    if features is None or x.shape[1] != weight.shape[1]:  # torch says that they do not fit
        return F.linear(x, weight)
    return features.product(weight)


@contextmanager
def of_any_size() -> Iterator[None]:
    """Inside, any x has its nonzeros taken alone, whatever its size and their share: for trials on small inputs."""
    global _limits
    before, _limits = _limits, (0, 0, 1.0)
    try:
        yield
    finally:
        _limits = before
