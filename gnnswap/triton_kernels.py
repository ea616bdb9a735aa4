"""The loops of `triton_passes`, in Triton. A program takes one piece of a row and a block of channels or heads.

    pieces (P, 4): row, first edge, end, slot. A row of few edges is one piece and is written at once (slot -1). Longer
    rows are cut: each piece writes a line of `part`, and a second kernel adds the lines of a row in a fixed order.
    Nothing is atomic, so equal inputs give equal bits.

Rows are targets, or sources in most backward passes. `other` (E): the other end of each edge. `order` (E): where the
edge's own features stand; None: where the edge itself stands. ACC is the type of sums: float32, for float64 float64.
Arguments that are None are left out when a kernel is compiled. Widths are constants, so that loads are 16 bytes wide;
the sizes of a graph are not. Comparisons are written so that NaN and infinities come out as torch gives them: a
positive part is `where(v <= 0, 0, v)`, which keeps NaN.
"""

import triton
import triton.language as tl

GAT, GATV2, TRANSFORMER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
SUM, LEAST, LARGEST = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


# ---- rows, edges and loads -------------------------------------------------------------------------------------------


@triton.jit
def _piece(pieces, number):
    """(row, first edge, end, slot) of a piece."""
    at = pieces + tl.cast(number, tl.int64) * 4
    return tl.load(at).to(tl.int64), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3).to(tl.int64)


@triton.jit
def _edges(first, end, other, order, BLOCK_E: tl.constexpr):
    """(which edges of a tile exist, their other ends, where their features stand), each (BLOCK_E,)."""
    e = first + tl.arange(0, BLOCK_E)
    there = e < end
    at = e.to(tl.int64)
    n = at
    if other is not None:
        n = tl.load(other + e, mask=there, other=0).to(tl.int64)
    if order is not None:
        at = tl.load(order + e, mask=there, other=0).to(tl.int64)
    return there, n, at


@triton.jit
def _channels(W: tl.constexpr, BLOCK_W: tl.constexpr):
    """(channels of this program, which of them exist)."""
    f = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    return f, f < W


@triton.jit
def _heads(H: tl.constexpr, C: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr):
    """(heads of this program, which exist, channels, which exist, which entries of both exist)."""
    h, c = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    return h, h < H, c, c < C, (h < H)[:, None] & (c < C)[None, :]


@triton.jit
def _load(x, n, f, mask, W: tl.constexpr, ACC: tl.constexpr):
    """x[n, f], 0 where masked: rows n (A,), channels f (B,), mask (A, B)."""
    return tl.load(x + n[:, None] * W + f[None, :], mask=mask, other=0.0).to(ACC)


@triton.jit
def _load_heads(x, n, line, mask, W: tl.constexpr, ACC: tl.constexpr):
    """x[n, line], 0 where masked: rows n (A,), entries `line` (H, C), mask (A, H, C)."""
    return tl.load(x + n[:, None, None] * W + line[None, :, :], mask=mask, other=0.0).to(ACC)


@triton.jit
def _keep(out, part, row, slot, W: tl.constexpr, at, mask, value):
    """Store what a piece adds up to: in its row of `out`, or in its line of `part` where the row has more pieces."""
    if part is None or slot < 0:
        tl.store(out + row * W + at, value.to(out.dtype.element_ty), mask=mask)
    else:
        tl.store(part + slot * W + at, value, mask=mask)


@triton.jit
def _extreme(tile, HOW: tl.constexpr):
    """The least or largest entry of each column; NaN where one is NaN."""
    wrong = tile != tile
    if HOW == LEAST:
        best = tl.min(tl.where(wrong, float("inf"), tile), 0)
    else:
        best = tl.max(tl.where(wrong, float("-inf"), tile), 0)
    return tl.where(tl.max(wrong.to(tl.int32), 0) > 0, float("nan"), best)


@triton.jit
def _finite(top):
    """What is taken off scores whose largest is `top`: nothing where all are -inf, for -inf - -inf is NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def fold(
    out, part, hub_row, hub_ptr,
    ACC: tl.constexpr, W: tl.constexpr, HOW: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Rows of several pieces: the sums, least or largest entries of their lines of `part` (slots, W)."""
    hub = tl.program_id(0)
    f, some = _channels(W, BLOCK_W)
    first, end = tl.load(hub_ptr + hub), tl.load(hub_ptr + hub + 1)
    start = 0.0
    if HOW == LEAST:
        start = float("inf")
    if HOW == LARGEST:
        start = float("-inf")
    total = tl.full([BLOCK_S, BLOCK_W], start, ACC)
    for slot in range(first, end, BLOCK_S):
        s = slot + tl.arange(0, BLOCK_S)
        both = (s < end)[:, None] & some[None, :]
        value = tl.load(part + s.to(tl.int64)[:, None] * W + f[None, :], mask=both, other=start)
        if HOW == SUM:
            total += value
        elif HOW == LEAST:
            total = tl.minimum(total, value, propagate_nan=tl.PropagateNan.ALL)
        else:
            total = tl.maximum(total, value, propagate_nan=tl.PropagateNan.ALL)
    result = tl.sum(total, 0) if HOW == SUM else _extreme(total, HOW)
    tl.store(out + tl.load(hub_row + hub).to(tl.int64) * W + f, result.to(out.dtype.element_ty), mask=some)


# ---- sums and products -----------------------------------------------------------------------------------------------


@triton.jit
def weighted_sum(
    out, part, x, weight, made, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, H: tl.constexpr, C: tl.constexpr, SHARED: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """out[i] = sum of weight[e] * x[j], (N, W), W = H C, a weight for C channels; SHARED: all heads read C of x.

    `made` (E, W), as `x`: entries count where it is positive or NaN.
    """
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    total = tl.zeros([BLOCK_E, BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, j, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        value = _load(x, j, f % C, both, C, ACC) if SHARED else _load(x, j, f, both, W, ACC)
        if made is not None:
            value = tl.where(_load(made, j, f, both, W, ACC) <= 0, 0.0, value)
        if weight is not None:
            if H == 1:
                value *= tl.load(weight + at, mask=there, other=0.0).to(ACC)[:, None]
            else:
                value *= _load(weight, at, f // C, both, H, ACC)
        total += value
    _keep(out, part, row, slot, W, f, some, tl.sum(total, 0))


@triton.jit
def edge_products(
    out, a, b, pieces, other,
    ACC: tl.constexpr, H: tl.constexpr, C: tl.constexpr, SHARED: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[e, h] = a[i, h] . b[j, h]; SHARED: b has one row for all heads."""
    row, begin, end, _ = _piece(pieces, tl.program_id(0))
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    for first in range(begin, end, BLOCK_E):
        there, j, at = _edges(first, end, other, None, BLOCK_E)
        total = tl.zeros([BLOCK_E, BLOCK_H], ACC)
        for start in range(0, C, BLOCK_C):
            c = start + tl.arange(0, BLOCK_C)
            some = (h < H)[:, None] & (c < C)[None, :]
            line = h[:, None] * C + c[None, :]
            own = tl.load(a + row * (H * C) + line, mask=some, other=0.0).to(ACC)
            whole = there[:, None, None] & some[None, :, :]
            if SHARED:
                theirs = _load_heads(b, j, c[None, :], there[:, None, None] & (c < C)[None, None, :], C, ACC)
            else:
                theirs = _load_heads(b, j, line, whole, H * C, ACC)
            total += tl.sum(tl.where(whole, theirs * own[None, :, :], 0.0), 2)
        both = there[:, None] & (h < H)[None, :]
        tl.store(out + at[:, None] * H + h[None, :], total.to(out.dtype.element_ty), mask=both)


@triton.jit
def edge_rows(
    out, source, target, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, RELU: tl.constexpr, PRODUCT: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """out[e] = source[j] + target[i], RELU: its positive part; PRODUCT: source[j] * target[i]."""
    row, begin, end, _ = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    own = tl.load(target + row * W + f, mask=some, other=0.0).to(ACC)[None, :]
    for first in range(begin, end, BLOCK_E):
        there, j, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        value = _load(source, j, f, both, W, ACC)
        if PRODUCT:
            value *= own
        else:
            value += own
        if RELU:
            value = tl.where(value <= 0, 0.0, value)
        tl.store(out + at[:, None] * W + f[None, :], value.to(out.dtype.element_ty), mask=both)


# ---- sums, squares and extremes of messages y[j] + e -----------------------------------------------------------------


@triton.jit
def _message(y, edge, j, at, f, of_row, of_edge, W: tl.constexpr, RELU: tl.constexpr, ACC: tl.constexpr):
    """y[j] + edge[at], RELU: its positive part. Rounded to the type of y: it must equal an extreme that was stored."""
    value = _load(y, j, f, of_row, W, ACC)
    if edge is not None:
        value = (value + _load(edge, at, f, of_edge, W, ACC)).to(y.dtype.element_ty).to(ACC)
    if RELU:
        value = tl.where(value <= 0, 0.0, value)
    return value


@triton.jit
def _ends(row, n, own, both, BY_TARGET: tl.constexpr):
    """((sources, their mask), (targets, their mask)): the row itself, (1,), and the other ends, (BLOCK_E,)."""
    here = row + tl.zeros([1], tl.int64)
    if BY_TARGET:
        j, j_mask, i, i_mask = n, both, here, own
    else:
        j, j_mask, i, i_mask = here, own, n, both
    return j, j_mask, i, i_mask


@triton.jit
def multi_aggregate(
    total, squares, least, largest, part_total, part_squares, part_least, part_largest, y, edge, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, RELU: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Of the messages of each target: their sum, that of their squares, the least, the largest; 0 without edges."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    add, add_squares = tl.zeros([BLOCK_E, BLOCK_W], ACC), tl.zeros([BLOCK_E, BLOCK_W], ACC)
    low = tl.full([BLOCK_E, BLOCK_W], float("inf"), ACC)
    high = tl.full([BLOCK_E, BLOCK_W], float("-inf"), ACC)
    for first in range(begin, end, BLOCK_E):
        there, j, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        value = _message(y, edge, j, at, f, both, both, W, RELU, ACC)
        if total is not None:
            add += value
        if squares is not None:
            add_squares += value * value
        if least is not None:
            low = tl.minimum(low, tl.where(both, value, float("inf")), propagate_nan=tl.PropagateNan.ALL)
        if largest is not None:
            high = tl.maximum(high, tl.where(both, value, float("-inf")), propagate_nan=tl.PropagateNan.ALL)
    if total is not None:
        _keep(total, part_total, row, slot, W, f, some, tl.sum(add, 0))
    if squares is not None:
        _keep(squares, part_squares, row, slot, W, f, some, tl.sum(add_squares, 0))
    if least is not None:
        _keep(least, part_least, row, slot, W, f, some, tl.where(begin < end, _extreme(low, LEAST), 0.0))
    if largest is not None:
        _keep(largest, part_largest, row, slot, W, f, some, tl.where(begin < end, _extreme(high, LARGEST), 0.0))


@triton.jit
def ties(
    count, part, y, edge, extreme, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, RELU: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """How many messages of each target equal its extreme one."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    best = tl.load(extreme + row * W + f, mask=some, other=0.0).to(ACC)[None, :]
    total = tl.zeros([BLOCK_E, BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, j, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        value = _message(y, edge, j, at, f, both, both, W, RELU, ACC)
        total += tl.where(both & (value == best), 1.0, 0.0)
    _keep(count, part, row, slot, W, f, some, tl.sum(total, 0))


@triton.jit
def multi_aggregate_back(
    into, part, to_edge, y, edge, g_total, g_squares, least, g_least, largest, g_largest, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, RELU: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradient of y in `into`, rows are sources; or, where there is one, that of the edges in `to_edge`, rows are
    targets. Extremes are multiplied by 1 or 0, so that a gradient of NaN stays one, as in torch."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    total = tl.zeros([BLOCK_E, BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, n, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        j, j_mask, i, i_mask = _ends(row, n, some[None, :], both, to_edge is not None)
        value = _message(y, edge, j, at, f, j_mask, both, W, RELU, ACC)
        sent = tl.zeros([BLOCK_E, BLOCK_W], ACC)
        if g_total is not None:
            sent += _load(g_total, i, f, i_mask, W, ACC)
        if g_squares is not None:
            sent += (value + value) * _load(g_squares, i, f, i_mask, W, ACC)
        if g_least is not None:
            best = value == _load(least, i, f, i_mask, W, ACC)
            sent += _load(g_least, i, f, i_mask, W, ACC) * tl.where(best, 1.0, 0.0)
        if g_largest is not None:
            best = value == _load(largest, i, f, i_mask, W, ACC)
            sent += _load(g_largest, i, f, i_mask, W, ACC) * tl.where(best, 1.0, 0.0)
        if RELU:
            sent = tl.where(value <= 0, 0.0, sent)
        if to_edge is not None:
            tl.store(to_edge + at[:, None] * W + f[None, :], sent.to(to_edge.dtype.element_ty), mask=both)
        else:
            total += tl.where(both, sent, 0.0)
    if to_edge is None:
        _keep(into, part, row, slot, W, f, some, tl.sum(total, 0))


# ---- softmax of messages ---------------------------------------------------------------------------------------------


@triton.jit
def _keep_softmax(
    out, log_sum, spread, row, total, wide, weight, top, empty, at, some, W: tl.constexpr,
):  # fmt: skip
    """The mean of the messages by their weights, their variance, and the logarithm of the sum of the weights."""
    weight = tl.where(empty, 1.0, weight)
    logarithm = tl.where(empty, 0.0, top + tl.log(weight))
    tl.store(log_sum + row * W + at, logarithm.to(log_sum.dtype.element_ty), mask=some)
    if out is not None:
        mean = total / weight
        tl.store(out + row * W + at, mean.to(out.dtype.element_ty), mask=some)
        if spread is not None:
            tl.store(spread + row * W + at, (wide / weight - mean * mean).to(spread.dtype.element_ty), mask=some)


@triton.jit
def softmax_aggregate(
    out, log_sum, spread, part, part_wide, part_weight, part_top, y, edge, t, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, RELU: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Sums of softmax(t v) v of the messages v, `log_sum`: log of the sums of exp(t v), `spread`: the variance of v by
    these weights. `t` (1,), None: 1. All three are 0 without edges."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    top = tl.full([BLOCK_W], float("-inf"), ACC)
    weight, total, wide = tl.zeros([BLOCK_W], ACC), tl.zeros([BLOCK_W], ACC), tl.zeros([BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, j, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        value = _message(y, edge, j, at, f, both, both, W, RELU, ACC)
        score = value
        if t is not None:
            score = value * tl.load(t).to(ACC)
        score = tl.where(both, score, float("-inf"))
        largest = _extreme(score, LARGEST)
        now = tl.maximum(top, largest, propagate_nan=tl.PropagateNan.ALL)
        share, less = tl.exp(score - _finite(now)[None, :]), tl.exp(top - _finite(now))
        weight = weight * less + tl.sum(share, 0)
        if out is not None:
            total = total * less + tl.sum(share * value, 0)
        if spread is not None:
            wide = wide * less + tl.sum(share * value * value, 0)
        top = now
    if part_weight is None or slot < 0:
        _keep_softmax(out, log_sum, spread, row, total, wide, weight, top, begin == end, f, some, W)
    else:
        tl.store(part_weight + slot * W + f, weight, mask=some)
        tl.store(part_top + slot * W + f, top, mask=some)
        if out is not None:
            tl.store(part + slot * W + f, total, mask=some)
        if spread is not None:
            tl.store(part_wide + slot * W + f, wide, mask=some)


@triton.jit
def fold_softmax(
    out, log_sum, spread, part, part_wide, part_weight, part_top, hub_row, hub_ptr,
    ACC: tl.constexpr, W: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """`softmax_aggregate` of rows of several pieces."""
    hub = tl.program_id(0)
    f, some = _channels(W, BLOCK_W)
    first, end = tl.load(hub_ptr + hub), tl.load(hub_ptr + hub + 1)
    top = tl.full([BLOCK_W], float("-inf"), ACC)
    weight, total, wide = tl.zeros([BLOCK_W], ACC), tl.zeros([BLOCK_W], ACC), tl.zeros([BLOCK_W], ACC)
    for slot in range(first, end, BLOCK_S):
        s = slot + tl.arange(0, BLOCK_S)
        both = (s < end)[:, None] & some[None, :]
        n = s.to(tl.int64)
        theirs = tl.where(both, _load(part_top, n, f, both, W, ACC), float("-inf"))
        now = tl.maximum(top, _extreme(theirs, LARGEST), propagate_nan=tl.PropagateNan.ALL)
        more, less = tl.exp(theirs - _finite(now)[None, :]), tl.exp(top - _finite(now))
        weight = weight * less + tl.sum(more * _load(part_weight, n, f, both, W, ACC), 0)
        if out is not None:
            total = total * less + tl.sum(more * _load(part, n, f, both, W, ACC), 0)
        if spread is not None:
            wide = wide * less + tl.sum(more * _load(part_wide, n, f, both, W, ACC), 0)
        top = now
    row = tl.load(hub_row + hub).to(tl.int64)
    _keep_softmax(out, log_sum, spread, row, total, wide, weight, top, first == end, f, some, W)


@triton.jit
def softmax_aggregate_back(
    into, part, to_edge, y, edge, numbers, out, log_sum, grad, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, RELU: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """As `multi_aggregate_back`, of `softmax_aggregate`. `numbers` (2,): t, and t again or, for weights that let no
    gradient through, 0."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    t, whole = tl.load(numbers).to(ACC), tl.load(numbers + 1).to(ACC)
    total = tl.zeros([BLOCK_E, BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, n, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        j, j_mask, i, i_mask = _ends(row, n, some[None, :], both, to_edge is not None)
        value = _message(y, edge, j, at, f, j_mask, both, W, RELU, ACC)
        mean, shift = _load(out, i, f, i_mask, W, ACC), _load(log_sum, i, f, i_mask, W, ACC)
        sent = (
            _load(grad, i, f, i_mask, W, ACC)
            * tl.exp(t * value - shift)
            * tl.where(whole == 0, 1.0, 1.0 + whole * (value - mean))
        )
        if RELU:
            sent = tl.where(value <= 0, 0.0, sent)
        if to_edge is not None:
            tl.store(to_edge + at[:, None] * W + f[None, :], sent.to(to_edge.dtype.element_ty), mask=both)
        else:
            total += tl.where(both, sent, 0.0)
    if to_edge is None:
        _keep(into, part, row, slot, W, f, some, tl.sum(total, 0))


# ---- gates and modulated messages ------------------------------------------------------------------------------------


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _softplus(x, SERIES: tl.constexpr):
    """log(1 + exp(x)); as torch's, x itself from 20 on."""
    z = tl.exp(-tl.abs(x))
    if SERIES:  # log(1 + z) = 2 atanh(z / (2 + z)), its series: the fast logarithm is inexact near 1
        s = z / (2.0 + z)
        u = s * s
        p = 1 / 11 + u * (1 / 13 + u * (1 / 15))
        p = 1 / 7 + u * (1 / 9 + u * p)
        p = 1.0 + u * (1 / 3 + u * (1 / 5 + u * p))
        small = (s + s) * p
    else:  # Kahan's: what 1 + z rounds off is made good by the quotient
        u = 1.0 + z
        small = tl.where(u == 1.0, z, tl.log(u) * (z / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(x > 20.0, x, tl.where(x <= 0.0, 0.0, x) + small)


@triton.jit
def _halves(x, n, f, mask, W: tl.constexpr, WHOLE: tl.constexpr, ACC: tl.constexpr):
    """What rows add to p and to q: the halves of rows of 2 W; without WHOLE, rows of W, they are for p alone."""
    if WHOLE:
        p, q = _load(x, n, f, mask, 2 * W, ACC), _load(x + W, n, f, mask, 2 * W, ACC)
    else:
        p, q = _load(x, n, f, mask, W, ACC), 0.0
    return p, q


@triton.jit
def _gate(own, here, own_mask, others, n, edge, at, f, both, W: tl.constexpr, WHOLE: tl.constexpr,
          OTHERS_WHOLE: tl.constexpr, SOFTPLUS: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """(sigmoid(p), q or softplus(q), the derivative of that by q) of each edge."""
    p, q = _halves(own, here, f, own_mask, W, WHOLE, ACC)
    other_p, other_q = _halves(others, n, f, both, W, OTHERS_WHOLE, ACC)
    p, q = p + other_p, q + other_q
    if edge is not None:
        edge_p, edge_q = _halves(edge, at, f, both, W, True, ACC)
        p, q = p + edge_p, q + edge_q
    by_q = 1.0
    if SOFTPLUS:
        by_q = _sigmoid(q)
        q = _softplus(q, tl.float32 == ACC)
    return _sigmoid(p), q, by_q


@triton.jit
def gated_sum(
    out, slope, part, part_slope, source, target, edge, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr, SOFTPLUS: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Sums of sigmoid(p) * q, p and q the halves of source[j] + target[i] + edge[e], without WHOLE targets have no q;
    SOFTPLUS: of sigmoid(p) * softplus(q). `slope`, as `target`: their derivative by target[i]."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    here, own_mask = row + tl.zeros([1], tl.int64), some[None, :]
    total = tl.zeros([BLOCK_E, BLOCK_W], ACC)
    by_p, by_q = tl.zeros([BLOCK_E, BLOCK_W], ACC), tl.zeros([BLOCK_E, BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, j, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        gate, q, rise = _gate(
            target, here, own_mask, source, j, edge, at, f, both, W, WHOLE, True, SOFTPLUS, ACC
        )  # fmt: skip
        total += tl.where(both, gate * q, 0.0)
        if slope is not None:
            by_p += tl.where(both, gate * (1.0 - gate) * q, 0.0)
            if WHOLE:
                by_q += tl.where(both, gate * rise, 0.0)
    _keep(out, part, row, slot, W, f, some, tl.sum(total, 0))
    if slope is not None:
        if WHOLE:
            _keep(slope, part_slope, row, slot, 2 * W, f, some, tl.sum(by_p, 0))
            _keep(slope, part_slope, row, slot, 2 * W, f + W, some, tl.sum(by_q, 0))
        else:
            _keep(slope, part_slope, row, slot, W, f, some, tl.sum(by_p, 0))


@triton.jit
def gated_sum_back(
    to_own, part, to_edge, own, others, edge, grad, pieces, other, order,
    ACC: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr, OTHERS_WHOLE: tl.constexpr, SOFTPLUS: tl.constexpr,
    BY_TARGET: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradient of the rows of one end, BY_TARGET of the targets, and of the edges' features where wanted."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    here, own_mask = row + tl.zeros([1], tl.int64), some[None, :]
    of_p, of_q = tl.zeros([BLOCK_E, BLOCK_W], ACC), tl.zeros([BLOCK_E, BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, n, at = _edges(first, end, other, order, BLOCK_E)
        both = there[:, None] & some[None, :]
        gate, q, rise = _gate(
            own, here, own_mask, others, n, edge, at, f, both, W, WHOLE, OTHERS_WHOLE, SOFTPLUS, ACC
        )  # fmt: skip
        sent = _load(grad, here, f, own_mask, W, ACC) if BY_TARGET else _load(grad, n, f, both, W, ACC)
        to_p, to_q = sent * q * gate * (1.0 - gate), sent * gate * rise
        of_p += tl.where(both, to_p, 0.0)
        if WHOLE:
            of_q += tl.where(both, to_q, 0.0)
        if to_edge is not None:
            line = to_edge + at[:, None] * (2 * W) + f[None, :]
            tl.store(line, to_p.to(to_edge.dtype.element_ty), mask=both)
            tl.store(line + W, to_q.to(to_edge.dtype.element_ty), mask=both)
    if WHOLE:
        _keep(to_own, part, row, slot, 2 * W, f, some, tl.sum(of_p, 0))
        _keep(to_own, part, row, slot, 2 * W, f + W, some, tl.sum(of_q, 0))
    else:
        _keep(to_own, part, row, slot, W, f, some, tl.sum(of_p, 0))


@triton.jit
def film_sum(
    out, slope, part, part_slope, x, target, pieces, other,
    ACC: tl.constexpr, W: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Sums of relu(gamma[i] * x[j] + beta[i]); target[i] holds beta[i], then gamma[i]; `slope` as in `gated_sum`."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    beta, gamma = _halves(target, row + tl.zeros([1], tl.int64), f, some[None, :], W, True, ACC)
    total = tl.zeros([BLOCK_E, BLOCK_W], ACC)
    by_beta, by_gamma = tl.zeros([BLOCK_E, BLOCK_W], ACC), tl.zeros([BLOCK_E, BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, j, _ = _edges(first, end, other, None, BLOCK_E)
        both = there[:, None] & some[None, :]
        value = _load(x, j, f, both, W, ACC)
        message = gamma * value + beta
        total += tl.where(both, tl.where(message <= 0, 0.0, message), 0.0)
        if slope is not None:  # multiplied, as PyG does: 0 * infinity is NaN
            on = tl.where(both, tl.where(message <= 0, 0.0, 1.0), 0.0)
            by_beta += on
            by_gamma += on * value
    _keep(out, part, row, slot, W, f, some, tl.sum(total, 0))
    if slope is not None:
        _keep(slope, part_slope, row, slot, 2 * W, f, some, tl.sum(by_beta, 0))
        _keep(slope, part_slope, row, slot, 2 * W, f + W, some, tl.sum(by_gamma, 0))


@triton.jit
def film_sum_back(
    into, part, x, target, grad, pieces, other,
    ACC: tl.constexpr, W: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The gradient of the sources; rows are sources."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    f, some = _channels(W, BLOCK_W)
    own = tl.load(x + row * W + f, mask=some, other=0.0).to(ACC)[None, :]
    total = tl.zeros([BLOCK_E, BLOCK_W], ACC)
    for first in range(begin, end, BLOCK_E):
        there, i, _ = _edges(first, end, other, None, BLOCK_E)
        both = there[:, None] & some[None, :]
        beta, gamma = _halves(target, i, f, both, W, True, ACC)
        sent = tl.where(gamma * own + beta <= 0, 0.0, _load(grad, i, f, both, W, ACC) * gamma)
        total += tl.where(both, sent, 0.0)
    _keep(into, part, row, slot, W, f, some, tl.sum(total, 0))


# ---- attention -------------------------------------------------------------------------------------------------------


@triton.jit
def _leaky(x, slope: tl.constexpr):
    return tl.where(x > 0, x, x * slope)


@triton.jit
def _score(query, key, vector, edge, of_edge, edge_mask, slope: tl.constexpr, scale: tl.constexpr, KIND: tl.constexpr,
           ACC: tl.constexpr):  # fmt: skip
    """(scores of edges (E, H), what LeakyReLU was applied to: GAT (E, H), GATv2 (E, H, C))."""
    pair = tl.sum(key * query, 2) * scale if KIND == TRANSFORMER else key + query
    if edge is not None:
        pair += tl.load(edge + of_edge, mask=edge_mask, other=0.0).to(ACC)
    score = pair
    if KIND == GAT:
        score = _leaky(pair, slope)
    if KIND == GATV2:
        score = tl.sum(_leaky(pair, slope) * vector[None, :, :], 2)
    return score, pair


@triton.jit
def _row_of(x, row, h, head, line, some, H: tl.constexpr, C: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr):
    """One row of queries or keys: (1, H) for GAT, else (1, H, C)."""
    if KIND == GAT:
        own = tl.load(x + row * H + h, mask=head, other=0.0).to(ACC)[None, :]
    else:
        own = tl.load(x + row * (H * C) + line, mask=some, other=0.0).to(ACC)[None, :, :]
    return own


@triton.jit
def _score_edges(own, key, values, along, edge, j, at, there, h, head, c, channel, line, some, H: tl.constexpr,
                 C: tl.constexpr, KIND: tl.constexpr, SHARED: tl.constexpr, slope: tl.constexpr, scale: tl.constexpr,
                 ACC: tl.constexpr):  # fmt: skip
    """(values, keys, scores and pairs (`_score`) of the edges of one target). SHARED: all heads read one row."""
    both, whole = there[:, None] & head[None, :], there[:, None, None] & some[None, :, :]
    if SHARED:
        value = _load_heads(values, j, c[None, :], there[:, None, None] & channel[None, None, :], C, ACC)
    else:
        value = _load_heads(values, j, line, whole, H * C, ACC)
    theirs, of_edge, edge_mask = value, at[:, None] * H + h[None, :], both
    if KIND == GAT:
        theirs = _load(key, j, h, both, H, ACC)
    elif KIND == GATV2:
        of_edge, edge_mask = at[:, None, None] * (H * C) + line[None, :, :], whole
    else:
        theirs = _load_heads(key, j, line, whole, H * C, ACC)
    score, pair = _score(own, theirs, along, edge, of_edge, edge_mask, slope, scale, KIND, ACC)
    return value, theirs, score, pair


@triton.jit
def attend(
    out, log_sum, part, part_weight, part_top, query, key, values, vector, edge, keep, pieces, other,
    ACC: tl.constexpr, H: tl.constexpr, C: tl.constexpr, KIND: tl.constexpr, SHARED: tl.constexpr, slope: tl.constexpr,
    scale: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[i, h] = sum of softmax(score)[e, h] * values[j, h]; log_sum[i, h]: log of the sum of exp(score).

    An online softmax: the largest score so far is subtracted; where it grows, the sums so far are scaled down.
    """
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    h, head, c, channel, some = _heads(H, C, BLOCK_H, BLOCK_C)
    line = h[:, None] * C + c[None, :]
    own, along = _row_of(query, row, h, head, line, some, H, C, KIND, ACC), None
    if KIND == GATV2:
        along = tl.load(vector + line, mask=some, other=0.0).to(ACC)
    top = tl.full([BLOCK_H], float("-inf"), ACC)
    weight = tl.zeros([BLOCK_H], ACC)
    total = tl.zeros([BLOCK_H, BLOCK_C], ACC)
    for first in range(begin, end, BLOCK_E):
        there, j, at = _edges(first, end, other, None, BLOCK_E)
        both = there[:, None] & head[None, :]
        value, _, score, _ = _score_edges(own, key, values, along, edge, j, at, there, h, head, c, channel, line, some,
                                          H, C, KIND, SHARED, slope, scale, ACC)  # fmt: skip
        score = tl.where(both, score, float("-inf"))
        now = tl.maximum(top, tl.max(score, 0))
        share, less = tl.exp(score - _finite(now)[None, :]), tl.exp(top - _finite(now))
        weight = weight * less + tl.sum(share, 0)
        if keep is not None:
            share *= tl.load(keep + at[:, None] * H + h[None, :], mask=both, other=0.0).to(ACC)
        total = total * less[:, None] + tl.sum(share[:, :, None] * value, 0)
        top = now
    if part is None or slot < 0:
        _keep_attention(out, log_sum, row, total, weight, top, begin == end, h, head, line, some, H, C)
    else:
        tl.store(part + slot * (H * C) + line, total, mask=some)
        tl.store(part_weight + slot * H + h, weight, mask=head)
        tl.store(part_top + slot * H + h, top, mask=head)


@triton.jit
def _keep_attention(out, log_sum, row, total, weight, top, empty, h, head, line, some, H: tl.constexpr,
                    C: tl.constexpr):  # fmt: skip
    weight = tl.where(empty, 1.0, weight)
    tl.store(out + row * (H * C) + line, (total / weight[:, None]).to(out.dtype.element_ty), mask=some)
    tl.store(log_sum + row * H + h, tl.where(empty, 0.0, top + tl.log(weight)), mask=head)


@triton.jit
def fold_attend(
    out, log_sum, part, part_weight, part_top, hub_row, hub_ptr,
    ACC: tl.constexpr, H: tl.constexpr, C: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """`attend` of rows of several pieces."""
    hub = tl.program_id(0)
    h, head, _, _, some = _heads(H, C, BLOCK_H, BLOCK_C)
    line = h[:, None] * C + tl.arange(0, BLOCK_C)[None, :]
    first, end = tl.load(hub_ptr + hub), tl.load(hub_ptr + hub + 1)
    top = tl.full([BLOCK_H], float("-inf"), ACC)
    weight = tl.zeros([BLOCK_H], ACC)
    total = tl.zeros([BLOCK_H, BLOCK_C], ACC)
    for slot in range(first, end, BLOCK_S):
        s = slot + tl.arange(0, BLOCK_S)
        n, there = s.to(tl.int64), s < end
        both = there[:, None] & head[None, :]
        theirs = tl.where(both, _load(part_top, n, h, both, H, ACC), float("-inf"))
        now = tl.maximum(top, tl.max(theirs, 0))
        more, less = tl.exp(theirs - _finite(now)[None, :]), tl.exp(top - _finite(now))
        weight = weight * less + tl.sum(more * _load(part_weight, n, h, both, H, ACC), 0)
        value = _load_heads(part, n, line, there[:, None, None] & some[None, :, :], H * C, ACC)
        total = total * less[:, None] + tl.sum(more[:, :, None] * value, 0)
        top = now
    row = tl.load(hub_row + hub).to(tl.int64)
    _keep_attention(out, log_sum, row, total, weight, top, first == end, h, head, line, some, H, C)


@triton.jit
def _score_gradient(score, shift, wanted, mean, keep, by_head, both, ACC: tl.constexpr):
    """(attention weights after dropout, gradients of the scores), each (E, H): with a = exp(score - shift) these are a
    keep and a (keep wanted - mean)."""
    share = tl.where(both, tl.exp(score - shift), 0.0)
    kept = share
    if keep is not None:
        factor = tl.load(keep + by_head, mask=both, other=0.0).to(ACC)
        wanted, kept = wanted * factor, share * factor
    return kept, tl.where(both, share * (wanted - mean), 0.0)


@triton.jit
def _leaky_back(pair, grad, slope: tl.constexpr):
    return tl.where(pair > 0, grad, grad * slope)


@triton.jit
def _keep_row(out, part, row, slot, h, head, line, some, total, H: tl.constexpr, C: tl.constexpr, KIND: tl.constexpr):
    """`_keep` for a gradient of queries or keys."""
    if KIND == GAT:
        _keep(out, part, row, slot, H, h, head, total)
    else:
        _keep(out, part, row, slot, H * C, line, some, total)


@triton.jit(do_not_specialize=["P"])
def attend_back_to_targets(
    to_query, part, to_vector, to_edge, expected, shares, steeps, grad, out, log_sum, query, key, values, vector, edge,
    keep, pieces, other, P,
    ACC: tl.constexpr, H: tl.constexpr, C: tl.constexpr, KIND: tl.constexpr, SHARED: tl.constexpr, slope: tl.constexpr,
    scale: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, vector and edges. With a = softmax(score) and d[e, h] = grad[i, h] . values[j, h], the
    score's gradient is a (keep d - m), where m[i, h] = grad[i, h] . out[i, h]. For the pass over sources: `expected`
    (N, H) is m; of GATv2 `shares`, `steeps` (E, H) are a keep and the score's gradient. Programs take turns with the P
    pieces; `to_vector` has a line for each program."""
    h, head, c, channel, some = _heads(H, C, BLOCK_H, BLOCK_C)
    line = h[:, None] * C + c[None, :]
    along = None
    if KIND == GATV2:
        along = tl.load(vector + line, mask=some, other=0.0).to(ACC)
    of_vector = tl.zeros([BLOCK_H, BLOCK_C], ACC)
    for number in range(tl.program_id(0), P, tl.num_programs(0)):
        row, begin, end, slot = _piece(pieces, number)
        sent = tl.load(grad + row * (H * C) + line, mask=some, other=0.0).to(ACC)
        mean = tl.sum(sent * tl.load(out + row * (H * C) + line, mask=some, other=0.0).to(ACC), 1)
        shift = tl.load(log_sum + row * H + h, mask=head, other=0.0)
        own = _row_of(query, row, h, head, line, some, H, C, KIND, ACC)
        of_query = tl.zeros([BLOCK_H] if KIND == GAT else [BLOCK_H, BLOCK_C], ACC)
        for first in range(begin, end, BLOCK_E):
            there, j, at = _edges(first, end, other, None, BLOCK_E)
            both, whole = there[:, None] & head[None, :], there[:, None, None] & some[None, :, :]
            by_head = at[:, None] * H + h[None, :]
            value, theirs, score, pair = _score_edges(own, key, values, along, edge, j, at, there, h, head, c, channel,
                                                      line, some, H, C, KIND, SHARED, slope, scale, ACC)  # fmt: skip
            wanted = tl.sum(value * sent[None, :, :], 2)
            kept, steep = _score_gradient(score, shift[None, :], wanted, mean[None, :], keep, by_head, both, ACC)
            if KIND == GAT:
                steep = _leaky_back(pair, steep, slope)
                of_query += tl.sum(steep, 0)
            elif KIND == GATV2:
                of_vector += tl.sum(steep[:, :, None] * _leaky(pair, slope), 0)
                of_pair = _leaky_back(pair, steep[:, :, None], slope)
                of_query += tl.sum(of_pair, 0)
            else:
                of_query += tl.sum(steep[:, :, None] * theirs, 0)
            if to_edge is not None:
                if KIND == GATV2:
                    of_entry = (of_pair * along[None, :, :]).to(to_edge.dtype.element_ty)
                    tl.store(to_edge + at[:, None, None] * (H * C) + line[None, :, :], of_entry, mask=whole)
                else:
                    tl.store(to_edge + by_head, steep.to(to_edge.dtype.element_ty), mask=both)
            if shares is not None:
                tl.store(shares + by_head, kept, mask=both)
                tl.store(steeps + by_head, steep, mask=both)
        if expected is not None:
            tl.store(expected + row * H + h, mean, mask=head)
        if to_query is not None:
            if KIND == GATV2:
                of_query *= along
            if KIND == TRANSFORMER:
                of_query *= scale
            _keep_row(to_query, part, row, slot, h, head, line, some, of_query, H, C, KIND)
    if to_vector is not None:
        tl.store(to_vector + tl.program_id(0).to(tl.int64) * (H * C) + line, of_vector, mask=some)


@triton.jit
def attend_back_to_sources(
    to_key, to_values, part_key, part_values, expected, shares, steeps, grad, log_sum, query, key, values, vector, edge,
    keep, pieces, other, order,
    ACC: tl.constexpr, H: tl.constexpr, C: tl.constexpr, KIND: tl.constexpr, SHARED: tl.constexpr, slope: tl.constexpr,
    scale: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values, rows are sources; of GATv2, whose keys are its values, both in `to_values`. With
    SHARED one program has all heads."""
    row, begin, end, slot = _piece(pieces, tl.program_id(0))
    h, head, c, channel, some = _heads(H, C, BLOCK_H, BLOCK_C)
    line = h[:, None] * C + c[None, :]
    along = None
    if SHARED:
        value = tl.load(values + row * C + c, mask=channel, other=0.0).to(ACC)[None, None, :]
    else:
        value = tl.load(values + row * (H * C) + line, mask=some, other=0.0).to(ACC)[None, :, :]
    if KIND == GATV2:
        along = tl.load(vector + line, mask=some, other=0.0).to(ACC)
    else:
        own = _row_of(key, row, h, head, line, some, H, C, KIND, ACC)
    of_key = tl.zeros([BLOCK_H] if KIND == GAT else [BLOCK_H, BLOCK_C], ACC)
    of_values = tl.zeros([BLOCK_H, BLOCK_C], ACC)
    for first in range(begin, end, BLOCK_E):
        there, i, at = _edges(first, end, other, order, BLOCK_E)
        both, whole = there[:, None] & head[None, :], there[:, None, None] & some[None, :, :]
        by_head = at[:, None] * H + h[None, :]
        sent = _load_heads(grad, i, line, whole, H * C, ACC)
        if KIND == GATV2:
            pair = value + _load_heads(query, i, line, whole, H * C, ACC)
            if edge is not None:
                pair += _load_heads(edge, at, line, whole, H * C, ACC)
            kept, steep = _load(shares, at, h, both, H, ACC), _load(steeps, at, h, both, H, ACC)
            of_key += tl.sum(_leaky_back(pair, steep[:, :, None], slope), 0)
        else:
            asked = _load(query, i, h, both, H, ACC) if KIND == GAT else _load_heads(query, i, line, whole, H * C, ACC)
            score, pair = _score(asked, own, along, edge, by_head, both, slope, scale, KIND, ACC)
            shift, mean = _load(log_sum, i, h, both, H, ACC), _load(expected, i, h, both, H, ACC)
            kept, steep = _score_gradient(score, shift, tl.sum(sent * value, 2), mean, keep, by_head, both, ACC)
            if KIND == GAT:
                of_key += tl.sum(_leaky_back(pair, steep, slope), 0)
            else:
                of_key += tl.sum(steep[:, :, None] * asked, 0)
        of_values += tl.sum(kept[:, :, None] * sent, 0)
    if KIND == GATV2:
        of_values += of_key * along
    if to_key is not None:
        if KIND == TRANSFORMER:
            of_key *= scale
        _keep_row(to_key, part_key, row, slot, h, head, line, some, of_key, H, C, KIND)
    if to_values is not None:
        if SHARED:
            _keep(to_values, part_values, row, slot, C, c, channel, tl.sum(of_values, 0))
        else:
            _keep(to_values, part_values, row, slot, H * C, line, some, of_values)
