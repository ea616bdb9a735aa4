"""The passes of `fused` on a CPU: loops compiled by numba, forward and backward, over the edges of each node.

Compiled code is stored on disk (`NUMBA_CACHE_DIR`, by default beside this file, else the user's cache folder).
Without the flags "nnan" and "ninf" NaN and infinities come out as PyG gives them.
"""

from __future__ import annotations

import math
import os
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numba
import numpy as np
import torch
from numba import prange
from numba.core.caching import FunctionCache
from numba.extending import overload
from torch import Tensor

from gnnswap.fused import Compiled, Rows

try:  # the symbols of OpenMP are torch's, loaded before: one pool of threads, which waits for no other
    from numba.np.ufunc import omppool as _  # noqa: F401

    numba.config.THREADING_LAYER, _TURN = "omp", nullcontext()
except ImportError:  # no libgomp: numba's own pool, which ends a process in which two threads call it at once
    numba.config.THREADING_LAYER, _TURN = "workqueue", threading.Lock()

FLAGGED = {"fastmath": {"contract", "nsz", "arcp"}, "error_model": "numpy"}  # no branch for a division by zero
SMALL = 1 << 17  # numbers that one thread passes over in some 50 us
_PROCESS = os.getpid()  # a pool of threads does not survive a fork, and GNU's ends the process that asks for it


class _Kernel:
    """A function of one block of nodes, run for all: by one thread, or by several, each of which has a block.

    What is small, such as the graphs of a comparison, is run by one thread, so that it needs no second compilation.
    """

    def __init__(self, function: Callable) -> None:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        self.edges = [name for name in names if name in ("ptr", "col", "ids", "row")]  # what it is given of the edges
        self.alone = _compiled(function, f"{function.__name__}_alone", globals())
        names = globals() | {"one_block": self.alone}
        self.several = _compiled(_blocks, f"{function.__name__}_several", names, parallel=True)

    def __call__(self, rows: Rows, *given: Tensor | float | None) -> None:
        first, edges = given[0], rows.graph.num_edges
        given = *given, *_edges_of(rows, self.edges)
        number = np.float32 if first.dtype is torch.float32 else np.float64
        arrays = [
            one.detach().numpy() if isinstance(one, Tensor) else number(one) if type(one) is float else one
            for one in given
        ]
        threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
        if threads == 1 or os.getpid() != _PROCESS or (edges + first.shape[0]) * first.shape[1] < SMALL:
            return self._timed(self.alone, *arrays, 0, 1)
        with _TURN:
            if numba.get_num_threads() != threads:
                numba.set_num_threads(threads)
            self._timed(self.several, threads, *arrays)

    def _timed(self, run: Callable, *arrays: Any) -> None:
        known, misses, start = len(run.overloads), sum(run.stats.cache_misses.values()), time.perf_counter()
        run(*arrays)
        if len(run.overloads) > known:
            Compiled.seconds += time.perf_counter() - start
            Compiled.fresh += sum(run.stats.cache_misses.values()) - misses


def _edges_of(rows: Rows, names: list[str]) -> list[Tensor]:
    """What a function takes of the edges, by the names of its arguments."""
    graph, order, as_given = rows
    if "row" in names:  # a function of single edges, in the order of their features
        source, target = graph.edges if as_given else (graph.col, graph.row)
        found = {"row": target, "col": source}
    else:
        found = {"ptr": graph.rowptr, "col": graph.col, "ids": order}
    return [found[name] for name in names]


def _blocks(blocks, *arrays):
    for block in prange(blocks):
        one_block(*arrays, block, blocks)  # noqa: F821  a global of each copy of this function


class _Store(FunctionCache):
    """Code that cannot be stored or read, on a full disk for instance, is compiled in each process."""

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            Compiled.stored = False


def _compiled(function: Callable, name: str, names: dict[str, Any], **options: bool) -> Callable:
    named = types.FunctionType(function.__code__, names, name)
    named.__qualname__ = name  # by which code on disk is known
    compiled = numba.njit(nogil=True, **FLAGGED, **options)(named)
    try:
        compiled._cache = _Store(named)  # as cache=True does with numba's own
    except RuntimeError:  # no folder that can be written
        Compiled.stored = False
    return compiled


_inner = numba.njit(nogil=True, **FLAGGED)


@_inner
def _first(ptr, block, blocks):
    """The first node of a block: blocks have equally many edges and nodes in sum."""
    nodes = ptr.shape[0] - 1
    wanted = block * (np.int64(ptr[nodes]) + nodes) // blocks
    low, high = 0, nodes
    while low < high:
        middle = (low + high) // 2
        if np.int64(ptr[middle]) + middle < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def _exp(x):
    """e**x, within 2e-7 in float32, by instructions on whole vectors; in float64 that of the C library."""


@overload(_exp)
def _exp_of(x):
    if x == numba.float64:
        return lambda x: math.exp(x)

    def exp(x):  # 2**n * e**r, r within half of log 2; Taylor's series
        x = np.float32(89) if x > np.float32(89) else x
        shifted = x * np.float32(1.44269504) + np.float32(12582912)  # n in its lowest bits
        n = shifted - np.float32(12582912)
        r = x - n * np.float32(0.693359375)
        r = r + n * np.float32(2.12194440e-4)
        p = np.float32(1 / 720) + r * np.float32(1 / 5040)
        p = np.float32(1 / 24) + r * (np.float32(1 / 120) + r * p)
        p = np.float32(1 / 2) + r * (np.float32(1 / 6) + r * p)
        p = np.float32(1) + r * (np.float32(1) + r * p)
        bits = np.float32(shifted).view(np.int32)
        scale = np.int32((bits << np.int32(23)) + np.int32(0x3F800000)).view(np.float32)
        return np.float32(0) if x < np.float32(-87.3) else p * scale

    return exp


def _sigmoid(x):
    """1 / (1 + e**-x)."""


@overload(_sigmoid, jit_options=FLAGGED)
def _sigmoid_of(x):
    if x == numba.float64:
        return lambda x: 1.0 / (1.0 + _exp(-x))
    return lambda x: np.float32(1) / (np.float32(1) + _exp(-x))


def _softplus(x):
    """log(1 + e**x), within 3e-7 in float32; as torch's, x itself from 20 on."""


@overload(_softplus, jit_options=FLAGGED)
def _softplus_of(x):
    if x == numba.float64:
        return lambda x: x if x > 20.0 else math.log1p(math.exp(x))

    def softplus(x):  # log(1 + z) = 2 atanh(z / (2 + z)), its series
        z = _exp(-abs(x))
        s = z / (np.float32(2) + z)
        t = s * s
        p = np.float32(1 / 11) + t * (np.float32(1 / 13) + t * np.float32(1 / 15))
        p = np.float32(1 / 7) + t * (np.float32(1 / 9) + t * p)
        p = np.float32(1) + t * (np.float32(1 / 3) + t * (np.float32(1 / 5) + t * p))
        return (np.float32(0) if x <= np.float32(0) else x) + (s + s) * p

    return softplus


# ---- kernels. `ptr`, `col`: edges grouped by their own node, and the other end of each; `ids`: its row in `e`. What
# stands behind "is not None" is left out where it is None when numba compiles.


@_inner
def _edge(e, k):
    """The row of an edge's own features, where there are any."""
    if e is None:
        return None
    return e[k]


@_inner
def _message(row, edge, relu, f):
    """Entry f of row + edge, with `relu` its positive part."""
    if edge is None:
        return row[f]
    if relu is None:
        return row[f] + edge[f]
    return np.maximum(row[f] + edge[f], row.dtype.type(0))


@_Kernel
def multi_aggregate(y, e, relu, total, squares, least, largest, ptr, col, ids, block, blocks):
    width = y.shape[1]
    for i in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        empty, zero = ptr[i] == ptr[i + 1], y.dtype.type(0)
        if total is not None:
            total[i] = zero
        if squares is not None:
            squares[i] = zero
        if least is not None:
            least[i] = zero if empty else y.dtype.type(np.inf)
        if largest is not None:
            largest[i] = zero if empty else y.dtype.type(-np.inf)
        for k in range(ptr[i], ptr[i + 1]):
            row, edge = y[col[k]], _edge(e, ids[k])
            if total is not None:
                here = total[i]
                for f in range(width):
                    here[f] += _message(row, edge, relu, f)
            if squares is not None:
                here = squares[i]
                for f in range(width):
                    v = _message(row, edge, relu, f)
                    here[f] += v * v
            if least is not None:
                here = least[i]
                for f in range(width):
                    here[f] = np.minimum(here[f], _message(row, edge, relu, f))
            if largest is not None:
                here = largest[i]
                for f in range(width):
                    here[f] = np.maximum(here[f], _message(row, edge, relu, f))


@_Kernel
def ties(y, e, relu, extreme, count, ptr, col, ids, block, blocks):
    """How many messages of each node equal its extreme one."""
    width = y.shape[1]
    for i in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        here, best, zero, one = count[i], extreme[i], y.dtype.type(0), y.dtype.type(1)
        here[:] = zero
        for k in range(ptr[i], ptr[i + 1]):
            row, edge = y[col[k]], _edge(e, ids[k])
            for f in range(width):
                here[f] += one if _message(row, edge, relu, f) == best[f] else zero


@_inner
def _rectified(grad, row, edge, relu, f):
    """The gradient behind entry f of the message; 0 where `relu` holds the message back."""
    if relu is None:
        return grad
    return row.dtype.type(0) if _message(row, edge, relu, f) <= row.dtype.type(0) else grad


@_inner
def _add_extreme(here, row, edge, relu, best, part):
    """Multiplied, so that a gradient of nan stays one, as in torch."""
    for f in range(row.shape[0]):
        extreme = _message(row, edge, relu, f) == best[f]
        sent = part[f] * (row.dtype.type(1) if extreme else row.dtype.type(0))
        here[f] += _rectified(sent, row, edge, relu, f)


@_inner
def _add_gradients(here, row, edge, relu, i, g_total, g_squares, least, g_least, largest, g_largest):
    """Add to `here` what flows back through the message of an edge to node i."""
    width = row.shape[0]
    if g_total is not None:
        part = g_total[i]
        for f in range(width):
            here[f] += _rectified(part[f], row, edge, relu, f)
    if g_squares is not None:
        part = g_squares[i]
        for f in range(width):
            v = _message(row, edge, relu, f)
            here[f] += _rectified((v + v) * part[f], row, edge, relu, f)
    if g_least is not None:
        _add_extreme(here, row, edge, relu, least[i], g_least[i])
    if g_largest is not None:
        _add_extreme(here, row, edge, relu, largest[i], g_largest[i])


@_Kernel
def multi_aggregate_back(
    y, e, relu, g_total, g_squares, least, g_least, largest, g_largest, into, ptr, col, ids, block, blocks
):
    """The gradient of the sources, edges by source."""
    for j in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        into[j] = y.dtype.type(0)
        row, here = y[j], into[j]
        for k in range(ptr[j], ptr[j + 1]):
            edge = _edge(e, ids[k])
            _add_gradients(here, row, edge, relu, col[k], g_total, g_squares, least, g_least, largest, g_largest)


@_Kernel
def multi_aggregate_back_to_edges(
    y, e, relu, g_total, g_squares, least, g_least, largest, g_largest, into, row, col, block, blocks
):
    """The gradient of `e`, whose edges go from `col` to `row`."""
    edges, zero = row.shape[0], y.dtype.type(0)
    for k in range(edges * block // blocks, edges * (block + 1) // blocks):
        here, source, edge = into[k], y[col[k]], e[k]
        for f in range(y.shape[1]):
            here[f] = zero
        _add_gradients(here, source, edge, relu, row[k], g_total, g_squares, least, g_least, largest, g_largest)


@_Kernel
def softmax_aggregate(y, e, relu, t, out, log_sum, spread, ptr, col, ids, block, blocks):
    """Sums of softmax(t v) v; `log_sum`: log of the sums of e**(t v); `spread`: the variance of v by these weights."""
    width, top, total = y.shape[1], np.empty(y.shape[1], y.dtype), np.empty(y.shape[1], y.dtype)
    for i in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        here, zero = out[i], y.dtype.type(0)
        here[:], total[:] = zero, zero
        top[:] = zero if ptr[i] == ptr[i + 1] else y.dtype.type(-np.inf)
        if spread is not None:
            spread[i] = zero
        for k in range(ptr[i], ptr[i + 1]):
            row, edge = y[col[k]], _edge(e, ids[k])
            for f in range(width):
                top[f] = np.maximum(top[f], t * _message(row, edge, relu, f))
        for k in range(ptr[i], ptr[i + 1]):
            row, edge = y[col[k]], _edge(e, ids[k])
            for f in range(width):
                v = _message(row, edge, relu, f)
                weight = _exp(t * v - top[f])
                total[f] += weight
                here[f] += weight * v
            if spread is not None:
                wide = spread[i]
                for f in range(width):
                    v = _message(row, edge, relu, f)
                    wide[f] += _exp(t * v - top[f]) * v * v
        if ptr[i] < ptr[i + 1]:
            for f in range(here.shape[0]):
                here[f] /= total[f]
                log_sum[i, f] = top[f] + np.log(total[f])
                if spread is not None:
                    spread[i, f] = spread[i, f] / total[f] - here[f] * here[f]


@_inner
def _softmax_part(row, edge, relu, t, whole, mean, scale, sent, f):
    v, one = _message(row, edge, relu, f), row.dtype.type(1)
    slope = one + whole * (v - mean[f]) if whole else one  # v may be infinite, and 0 * v not 0
    part = sent[f] * _exp(t * v - scale[f]) * slope
    return _rectified(part, row, edge, relu, f)


@_Kernel
def softmax_aggregate_back(y, e, relu, t, whole, out, log_sum, g, into, ptr, col, ids, block, blocks):
    """As `multi_aggregate_back`, of `softmax_aggregate`."""
    for j in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        into[j] = y.dtype.type(0)
        row, here = y[j], into[j]
        for k in range(ptr[j], ptr[j + 1]):
            i, edge = col[k], _edge(e, ids[k])
            mean, scale, sent = out[i], log_sum[i], g[i]
            for f in range(y.shape[1]):
                here[f] += _softmax_part(row, edge, relu, t, whole, mean, scale, sent, f)


@_Kernel
def softmax_aggregate_back_to_edges(y, e, relu, t, whole, out, log_sum, g, into, row, col, block, blocks):
    """As `multi_aggregate_back_to_edges`, of `softmax_aggregate`."""
    edges = row.shape[0]
    for k in range(edges * block // blocks, edges * (block + 1) // blocks):
        here, source, edge, i = into[k], y[col[k]], e[k], row[k]
        mean, scale, sent = out[i], log_sum[i], g[i]
        for f in range(y.shape[1]):
            here[f] = _softmax_part(source, edge, relu, t, whole, mean, scale, sent, f)


@_inner
def _halves(row):
    """Both halves of a row, each indexed from 0, as the loops over them are vectorized."""
    width = row.shape[0] // 2
    return row[:width], row[width:]


@_inner
def _row_halves(rows, n):
    if rows is None:
        return None, None
    return _halves(rows[n])


@_inner
def _ends(row, whole):
    """What a row adds to p and to q; without `whole` it is for p alone."""
    if whole is None:
        return row, row
    return _halves(row)


@_Kernel
def gated_sum(source, target, e, whole, softplus, out, slope, ptr, col, ids, block, blocks):
    """Sums of sigmoid(p) * q, p and q the halves of source[j] + target[i] + e[k]; without `whole` targets have no q.
    `slope`: their derivative by target[i]."""
    width = out.shape[1]
    for i in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        here, (own_p, own_q), one = out[i], _ends(target[i], whole), out.dtype.type(1)
        here[:] = out.dtype.type(0)
        if slope is not None:
            slope[i] = out.dtype.type(0)
            slope_p, slope_q = _ends(slope[i], whole)
        for k in range(ptr[i], ptr[i + 1]):
            (other_p, other_q), (edge_p, edge_q) = _halves(source[col[k]]), _row_halves(e, ids[k])
            for f in range(width):
                p, q = own_p[f] + other_p[f], other_q[f]
                if whole is not None:
                    q = q + own_q[f]
                if e is not None:
                    p, q = p + edge_p[f], q + edge_q[f]
                gate, by_q = _sigmoid(p), one
                if softplus is not None:
                    if slope is not None:
                        by_q = _sigmoid(q)
                    q = _softplus(q)
                here[f] += gate * q
                if slope is not None:
                    slope_p[f] += gate * (one - gate) * q
                    if whole is not None:
                        slope_q[f] += gate * by_q


@_Kernel
def gated_sum_back(
    own, others, e, whole, others_whole, softplus, by_target, g, to_own, to_e, ptr, col, ids, block, blocks
):
    """The gradient of the rows of one end, from that of the sums; `by_target`: of the targets."""
    width = g.shape[1]
    for n in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        (own_p, own_q), (here_p, here_q), one = _ends(own[n], whole), _ends(to_own[n], whole), own.dtype.type(1)
        to_own[n] = own.dtype.type(0)
        for k in range(ptr[n], ptr[n + 1]):
            (other_p, other_q), (edge_p, edge_q) = _ends(others[col[k]], others_whole), _row_halves(e, ids[k])
            sent, (to_edge_p, to_edge_q) = g[n if by_target else col[k]], _row_halves(to_e, ids[k])
            for f in range(width):
                p, q = own_p[f] + other_p[f], own_q[f]
                if whole is None:
                    q = other_q[f]
                elif others_whole is not None:
                    q = q + other_q[f]
                if e is not None:
                    p, q = p + edge_p[f], q + edge_q[f]
                gate = _sigmoid(p)
                to_q = sent[f] * gate
                if softplus is not None:
                    to_q = to_q * _sigmoid(q)
                    q = _softplus(q)
                to_p = sent[f] * q * gate * (one - gate)
                here_p[f] += to_p
                if whole is not None:
                    here_q[f] += to_q
                if to_e is not None:
                    to_edge_p[f] = to_p
                    to_edge_q[f] = to_q


@_Kernel
def film_sum(x, target, out, slope, ptr, col, block, blocks):
    """Sums of relu(gamma[i] * x[j] + beta[i]); target[i] holds beta[i], then gamma[i]; `slope` as in `gated_sum`."""
    width = x.shape[1]
    for i in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        here, (beta, gamma), zero, one = out[i], _halves(target[i]), x.dtype.type(0), x.dtype.type(1)
        here[:] = zero
        if slope is not None:
            slope[i] = zero
            by_beta, by_gamma = _halves(slope[i])
        for k in range(ptr[i], ptr[i + 1]):
            row = x[col[k]]
            for f in range(width):
                v = gamma[f] * row[f] + beta[f]
                here[f] += np.maximum(v, zero)
                if slope is not None:  # multiplied, as PyG does: infinity held back is nan
                    on = zero if v <= zero else one
                    by_beta[f] += on
                    by_gamma[f] += on * row[f]


@_Kernel
def film_sum_back(x, target, g, into, ptr, col, block, blocks):
    """The gradient of the sources, edges by source."""
    width, zero = x.shape[1], x.dtype.type(0)
    for j in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        into[j] = zero
        row, here = x[j], into[j]
        for k in range(ptr[j], ptr[j + 1]):
            (beta, gamma), sent = _halves(target[col[k]]), g[col[k]]
            for f in range(width):
                here[f] += zero if gamma[f] * row[f] + beta[f] <= zero else sent[f] * gamma[f]


@_Kernel
def edge_rows(source, target, relu, out, ptr, col, ids, block, blocks):
    """source[j] + target[i], with `relu` its positive part, of each edge."""
    width = source.shape[1]
    for i in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        own = target[i]
        for k in range(ptr[i], ptr[i + 1]):
            row, here = source[col[k]], out[ids[k]]
            for f in range(width):
                here[f] = _message(row, own, relu, f)


@_Kernel
def edge_rows_back(g, out, relu, into, ptr, ids, block, blocks):
    """The gradient of the rows of one end; `ids`: where its edges stand."""
    width, zero = g.shape[1], g.dtype.type(0)
    for n in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        into[n] = zero
        here = into[n]
        for k in range(ptr[n], ptr[n + 1]):
            sent, made = g[ids[k]], out[ids[k]]
            for f in range(width):
                here[f] += zero if relu is not None and made[f] <= zero else sent[f]


@_Kernel
def edge_weighted_sum(x, w, out, ptr, col, ids, block, blocks):
    """Sums of x[j] * w[e], entry by entry."""
    width = x.shape[1]
    for i in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        out[i] = x.dtype.type(0)
        here = out[i]
        for k in range(ptr[i], ptr[i + 1]):
            row, scale = x[col[k]], w[ids[k]]
            for f in range(width):
                here[f] += row[f] * scale[f]


@_Kernel
def edge_weighted_sum_back(x, g, into, ptr, col, ids, block, blocks):
    """The gradient of w."""
    width = x.shape[1]
    for i in range(_first(ptr, block, blocks), _first(ptr, block + 1, blocks)):
        sent = g[i]
        for k in range(ptr[i], ptr[i + 1]):
            row, here = x[col[k]], into[ids[k]]
            for f in range(width):
                here[f] = row[f] * sent[f]
