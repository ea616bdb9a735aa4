"""Sums, products, extremes and attention over neighbours on a CUDA device, forward and backward, by Triton.

    weighted_sum(x, graph, weight)                            # (N, F): sum of weight[e] x[j] over the edges (j -> i)
    edge_products(a, b, graph)                                # (E, H): a[i, h] . b[j, h]
    out, saved = attend("gat", query, key, values, graph)     # (N, H, C): sum of softmax(score) values[j]
    attend_back("gat", grad, saved, query, key, values, graph, wanted=(True, True, True, False, False))

and the passes of `fused`, by the names and arguments of `fused_numba`. Tensors are plain ones of one device: float32,
float16, bfloat16 or float64; sums are float32, for float64 float64. Equal inputs give equal bits. The kernels stand in
`triton_kernels`; no E x H x C numbers are in memory, and but for `pieces`, made once a graph, nothing waits for the
device, so that a CUDA graph can capture each call. Where TRITON_INTERPRET=1 stood in the environment before triton was
imported, the same kernels run on a CPU, slowly.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnnswap import triton_kernels as kernels
from gnnswap.aggregation import wide
from gnnswap.fused import Compiled, Rows, contiguous
from gnnswap.neighbours import Neighbours

MOST_EDGES = 256  # of a piece of a row
TILE = 1024  # numbers of one array that a warp has in registers, 32 a thread
BACK_TILE = 512  # of passes that have more arrays at once, as backward ones do
MOST_CHANNELS = 512  # of a head, whose row attention has in registers
MOST_SHARED = 4096  # numbers of all heads, where one program has them all
FOLDED = 16  # lines of parts that are read at once
VECTOR_PROGRAMS = 8192  # most programs of a pass that leaves a line for the gradient of a vector
FEW = 1024  # pieces, below which a tile of another size would be no faster
KINDS = {"gat": 0, "gatv2": 1, "transformer": 2}
SUM, LEAST, LARGEST = 0, 1, 2
INTERPRETED = not isinstance(kernels.fold, triton.runtime.JITFunction)
OPTIONS = {"enable_fp_fusion": True}  # Triton 3.9 warns without it
_compiled: dict[tuple, Any] = {}


# ---- launching -------------------------------------------------------------------------------------------------------


def launch(
    kernel: Any,
    grid: tuple[int, int],
    tensors: Sequence[Tensor | None],
    constants: Sequence[Any],
    *,
    numbers: tuple[int, ...] = (),
    warps: int = 1,
) -> None:
    """Run a kernel, whose arguments are `tensors`, `numbers`, the type of sums, and `constants`, in this order.

    kernel[grid](...) binds, specializes and hashes all arguments in each call. So what it compiled is kept, under all
    that the code depends on, and called with the addresses of the tensors: a sum takes 27 us of an H100's host, where
    an embedding bag takes 23 and an addition 12.
    """
    if 0 in grid:
        return
    device = next(one for one in tensors if one is not None).get_device()
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(kernel, grid, tensors, constants, numbers=numbers, warps=warps)
    addresses = [None if one is None else one.data_ptr() for one in tensors]
    aligned = tuple([one is None or one % 16 == 0 for one in addresses])
    types = tuple([None if one is None else one.dtype for one in tensors])
    key = id(kernel), device, warps, types, True if all(aligned) else aligned, *constants
    compiled = _compiled.get(key)
    if compiled is None:
        precise, start = tl.float64 if torch.float64 in types else tl.float32, time.perf_counter()
        made = kernel[grid](*tensors, *numbers, precise, *constants, num_warps=warps, **OPTIONS)
        if not INTERPRETED:
            _compiled[key] = made
            Compiled.triton_seconds += time.perf_counter() - start
    else:
        compiled[(*grid, 1)](*addresses, *numbers, None, *constants)


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _power(size: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << max(size - 1, 0).bit_length()


# ---- pieces ----------------------------------------------------------------------------------------------------------


class Pieces(NamedTuple):
    """The rows of a graph, cut into pieces of at most `MOST_EDGES` edges; what one program takes."""

    pieces: Tensor  # (P, 4): row, first edge, end, slot; slot -1: the row has no other piece
    hub_row: Tensor  # (K,): rows of several pieces
    hub_ptr: Tensor  # (K + 1,): their slots
    slots: int
    usual: int  # a power of two that the edges of most pieces do not exceed, at least 4

    @property
    def count(self) -> int:
        return self.pieces.shape[0]


def pieces(graph: Neighbours) -> Pieces:
    """The pieces of a graph, cached; making them waits for the device."""
    return graph.cached(_pieces)


def _pieces(graph: Neighbours) -> Pieces:
    """Pieces of hubs come first, so that none is begun last."""
    device, rowptr = graph.device, graph.rowptr.long()
    count = ((rowptr.diff() + (MOST_EDGES - 1)) // MOST_EDGES).clamp(min=1)
    row = torch.repeat_interleave(count)
    nth = torch.arange(row.shape[0], device=device) - (count.cumsum(0) - count).index_select(0, row)
    first = rowptr.index_select(0, row) + nth * MOST_EDGES
    end = torch.minimum(first + MOST_EDGES, rowptr.index_select(0, row + 1))
    hub = count.index_select(0, row) > 1
    slot = torch.where(hub, hub.cumsum(0) - 1, -1)
    made = torch.stack([row, first, end, slot], dim=1)
    made = made.index_select(0, (~hub).to(torch.int8).sort(stable=True).indices)
    hub_row = (count > 1).nonzero().view(-1)
    hub_ptr = torch.nn.functional.pad(count.index_select(0, hub_row).cumsum(0), (1, 0))
    # a tile may reach some edges behind the end of a piece
    kind = torch.int32 if max(graph.num_nodes, graph.num_edges) < 2**31 - 2**16 else torch.int64
    made, hub_row, hub_ptr = (one.to(kind).contiguous() for one in (made, hub_row, hub_ptr))
    usual = max(4, _power(_blocks(graph.num_edges, max(1, made.shape[0]))))
    if made.shape[0] < FEW:  # kernels of all small graphs are compiled once
        usual = 8
    return Pieces(made, hub_row, hub_ptr, int(hub.sum()), usual)


# ---- tiles -----------------------------------------------------------------------------------------------------------


@functools.cache
def _flat(width: int, usual: int, tile: int) -> tuple[int, int]:
    """(edges, channels) of a tile of rows of this width. Where rows have few edges, most of a larger one is masked."""
    channels = min(128, _power(width))
    return min(32, usual, tile // channels), channels


@functools.cache
def _of_heads(heads: int, channels: int, shared: bool, tile: int, usual: int) -> tuple[tuple[int, int, int], int]:
    """((edges, heads, channels) of a tile, warps): a program has some heads, all of them where they share values."""
    width, every = _power(channels), _power(heads)
    some = every if shared else min(every, max(1, 256 // width))
    warps = max(1, min(8, some * width // 256))
    return (min(16, usual, max(1, tile * warps // (some * width))), some, width), warps


def _part(out: Tensor | None, cut: Pieces) -> Tensor | None:
    """A row of `out` for each piece of a hub; None where there are no hubs, or no `out`."""
    return None if out is None or cut.slots == 0 else out.new_empty((cut.slots, *out.shape[1:]), dtype=wide(out))


def _fold(out: Tensor | None, part: Tensor | None, cut: Pieces, how: int = SUM) -> None:
    if part is None:
        return
    width = part[0].numel()
    block = min(128, _power(width))
    grid = cut.hub_row.shape[0], _blocks(width, block)
    launch(kernels.fold, grid, (out, part, cut.hub_row, cut.hub_ptr), (width, how, FOLDED, block))


def _by_row(
    kernel: Any, cut: Pieces, width: int, tensors: Sequence[Tensor | None], *constants: Any, tile: int = TILE
) -> None:
    """Run a kernel of rows of one width; its constants begin with the width and end with the tile."""
    edges, channels = _flat(width, cut.usual, tile)
    launch(kernel, (cut.count, _blocks(width, channels)), tensors, (width, *constants, edges, channels))


# ---- sums and products -----------------------------------------------------------------------------------------------


def weighted_sum(x: Tensor, graph: Neighbours, weight: Tensor | None = None) -> Tensor:
    """out[i] = sum over the edges (j -> i) of weight[e] x[j], (N, F).

    `x` (num_sources, F); `weight` (E,) in the order of `graph.col`; None: 1.
    """
    return _sum(x, graph, weight, x.new_empty(graph.num_nodes, x.shape[1]), 1)


def weighted_sum_by_head(values: Tensor, graph: Neighbours, weight: Tensor) -> Tensor:
    """out[i, h] = sum over the edges (j -> i) of weight[e, h] values[j, h], (N, H, C).

    `values` (num_sources, H, C), or (num_sources, 1, C) where the heads share them; `weight` (E, H) in the order of
    `graph.col`.
    """
    heads, width = weight.shape[1], values.shape[2]
    out = values.new_empty(graph.num_nodes, heads, width)
    _sum(values, graph, weight, out, heads, shared=values.shape[1] < heads)
    return out


def _sum(
    x: Tensor,
    graph: Neighbours,
    weight: Tensor | None,
    out: Tensor,
    heads: int,
    *,
    made: Tensor | None = None,
    shared: bool = False,
    other: Tensor | None = None,
    order: Tensor | None = None,
) -> Tensor:
    """Sums into `out`; `other`: which rows of x are added, by default those of the sources."""
    cut, width = pieces(graph), out.shape[1:].numel()
    part, (x, weight, made) = _part(out, cut), contiguous(x, weight, made)
    tensors = out, part, x, weight, made, cut.pieces, graph.col if other is None else other, order
    _by_row(kernels.weighted_sum, cut, width, tensors, heads, max(1, width // max(1, heads)), shared)
    _fold(out, part, cut)
    return out


def edge_products(a: Tensor, b: Tensor, graph: Neighbours) -> Tensor:
    """a[i, h] . b[j, h] of each edge (j -> i), (E, H) in the order of `graph.col`.

    `a` (N, H, C); `b` (num_sources, H, C), or (num_sources, 1, C) where the heads share it.
    """
    (heads, width), cut = a.shape[1:], pieces(graph)
    out = a.new_empty(graph.num_edges, heads)
    channels = min(128, _power(width))
    some = min(_power(heads), 128 // channels)
    edges = min(32, cut.usual, TILE // (some * channels))
    tensors = out, *contiguous(a, b), cut.pieces, graph.col
    constants = heads, width, b.shape[1] < heads, edges, some, channels
    launch(kernels.edge_products, (cut.count, _blocks(heads, some)), tensors, constants)
    return out


def log_sum_exp(scores: Tensor, graph: Neighbours) -> Tensor:
    """log of the sum of exp(score) over the edges of each target, (N, H); 0 without edges.

    `scores` (E, H) in the order of `graph.col`; -inf is allowed. The result is float32, that of float64 float64.
    """
    log_sum = scores.new_empty((graph.num_nodes, scores.shape[1]), dtype=wide(scores))
    _softmax(graph, scores, None, None, None, None, log_sum, None, None, None)
    return log_sum


# ---- attention -------------------------------------------------------------------------------------------------------


def takes_heads(heads: int, channels: int, shared: bool) -> bool:
    """Do the rows of a head fit into registers? `shared`: the heads share their values, so one program has them all."""
    return channels <= MOST_CHANNELS and (not shared or _power(heads) * _power(channels) <= MOST_SHARED)


def attend(
    kind: str,
    query: Tensor,
    key: Tensor | None,
    values: Tensor,
    graph: Neighbours,
    *,
    vector: Tensor | None = None,
    edge: Tensor | None = None,
    keep: Tensor | None = None,
    slope: float = 0.2,
    scale: float = 1.0,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """out[i, h] = sum over the edges (j -> i) of keep[e, h] softmax(score)[e, h] values[j, h], (N, H, C); 0 without
    edges. With it what `attend_back` needs: log of the sums of exp(score), (N, H), and the result in the type of sums,
    which in float32 is the result itself.

    kind "gat": score LeakyReLU(key[j] + query[i] + edge[e]); `query` (N, H), `key` (num_sources, H), `edge` (E, H).
    "gatv2": vector . LeakyReLU(values[j] + query[i] + edge[e]); `query` (N, H, C), no key, `vector` (H, C), `edge`
    (E, H, C). "transformer": scale key[j] . query[i] + edge[e]; `query` (N, H, C), `key` (num_sources, H, C), `edge`
    (E, H). `values` (num_sources, H, C), for "gat" and "transformer" also (num_sources, 1, C), which the heads share;
    `edge` and `keep` (E, H), in the order of `graph.col`, may be None.
    """
    (heads, width), cut = (query.shape[1], values.shape[2]), pieces(graph)
    shared = values.shape[1] < heads
    tile, warps = _of_heads(heads, width, shared, TILE, cut.usual)
    out = values.new_empty((graph.num_nodes, heads, width), dtype=wide(values))
    log_sum = out.new_empty(graph.num_nodes, heads)
    parts = _part(out, cut), _part(log_sum, cut), _part(log_sum, cut)
    given = contiguous(query, key, values, vector, edge, keep)
    constants = heads, width, KINDS[kind], shared, float(slope), float(scale), *tile
    tensors = out, log_sum, *parts, *given, cut.pieces, graph.col
    launch(kernels.attend, (cut.count, _blocks(heads, tile[1])), tensors, constants, warps=warps)
    if cut.slots:
        tensors = out, log_sum, *parts, cut.hub_row, cut.hub_ptr
        grid = cut.hub_row.shape[0], _blocks(heads, tile[1])
        launch(kernels.fold_attend, grid, tensors, (heads, width, *tile), warps=warps)
    return out.to(values.dtype), (log_sum, out)


def attend_back(
    kind: str,
    grad: Tensor,
    saved: Sequence[Tensor],
    query: Tensor,
    key: Tensor | None,
    values: Tensor,
    graph: Neighbours,
    *,
    vector: Tensor | None = None,
    edge: Tensor | None = None,
    keep: Tensor | None = None,
    slope: float = 0.2,
    scale: float = 1.0,
    wanted: Sequence[bool] = (True,) * 5,
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, values, vector and edge from `grad` (N, H, C), that of the sums; None where there
    is none or it is not `wanted`. `saved`: what `attend` gave for the other arguments.

    Two passes: one over targets, one over sources. What the second needs of an edge is computed again; of GATv2, whose
    scores cost most, the first pass leaves it, (E, H) twice.
    """
    log_sum, out = saved
    grad, query, key, values, vector, edge, keep = contiguous(grad, query, key, values, vector, edge, keep)
    heads, width = out.shape[1:]
    given = query, key, values, vector, edge, keep
    to = [
        torch.empty_like(one) if one is not None and asked else None
        for one, asked in zip(given[:5], wanted, strict=True)
    ]
    to_query, to_key, to_values, to_vector, to_edge = to
    cut, shared, handed = pieces(graph), values.shape[1] < heads, kind == "gatv2"
    tile, warps = _of_heads(heads, width, shared, BACK_TILE, cut.usual)
    grid = cut.count, _blocks(heads, tile[1])
    lines = None
    if to_vector is not None:
        grid = min(grid[0], VECTOR_PROGRAMS), grid[1]
        lines = log_sum.new_empty(grid[0], heads, width)
    expected = None if handed else torch.empty_like(log_sum)
    shares, steeps = (log_sum.new_empty(graph.num_edges, heads) if handed else None for _ in range(2))
    part = _part(to_query, cut)
    outs = to_query, part, lines, to_edge, expected, shares, steeps
    tensors = *outs, grad, out, log_sum, *given, cut.pieces, graph.col
    constants = heads, width, KINDS[kind], shared, float(slope), float(scale)
    launch(
        kernels.attend_back_to_targets, grid, tensors, (*constants, *tile), numbers=(cut.count,), warps=warps
    )  # fmt: skip
    _fold(to_query, part, cut)
    if lines is not None:
        to_vector = lines.sum(0).to(vector.dtype)
    if to_key is not None or to_values is not None:
        tensors = expected, shares, steeps, grad, log_sum, *given
        _attend_back_to_sources(to_key, to_values, tensors, graph.transposed, constants)
    return to_query, to_key, to_values, to_vector, to_edge


def _attend_back_to_sources(
    to_key: Tensor | None,
    to_values: Tensor | None,
    tensors: Sequence[Tensor | None],
    back: Neighbours,
    constants: tuple,
) -> None:
    (heads, width, _, shared, *_), cut = constants, pieces(back)
    tile, warps = _of_heads(heads, width, shared, BACK_TILE, cut.usual)
    parts, grid = (_part(to_key, cut), _part(to_values, cut)), (cut.count, _blocks(heads, tile[1]))
    tensors = to_key, to_values, *parts, *tensors, cut.pieces, back.col, back.permutation
    launch(kernels.attend_back_to_sources, grid, tensors, (*constants, *tile), warps=warps)
    _fold(to_key, parts[0], cut)
    _fold(to_values, parts[1], cut)


# ---- the passes of `fused`: results go into the tensors given; see `fused_numba` for what each computes --------------


def multi_aggregate(
    rows: Rows,
    y: Tensor,
    e: Tensor | None,
    relu: int | None,
    total: Tensor | None,
    squares: Tensor | None,
    least: Tensor | None,
    largest: Tensor | None,
) -> None:
    cut, width, outs = pieces(rows.graph), y.shape[1], (total, squares, least, largest)
    parts = [_part(out, cut) for out in outs]
    tensors = *outs, *parts, *contiguous(y, e), cut.pieces, rows.graph.col, rows.permutation
    tile = TILE if sum(out is not None for out in outs) == 1 else BACK_TILE
    _by_row(kernels.multi_aggregate, cut, width, tensors, bool(relu), tile=tile)
    for out, part, how in zip(outs, parts, (SUM, SUM, LEAST, LARGEST), strict=True):
        _fold(out, part, cut, how)


def ties(rows: Rows, y: Tensor, e: Tensor | None, relu: int | None, extreme: Tensor, count: Tensor) -> None:
    cut, width = pieces(rows.graph), y.shape[1]
    part = _part(count, cut)
    tensors = count, part, *contiguous(y, e, extreme), cut.pieces, rows.graph.col, rows.permutation
    _by_row(kernels.ties, cut, width, tensors, bool(relu))
    _fold(count, part, cut)


def multi_aggregate_back(
    rows: Rows, y: Tensor, e: Tensor | None, relu: int | None, *moments: Tensor | None, of_edges: bool = False
) -> None:
    """`moments`: g_total, g_squares, least, g_least, largest, g_largest, and where the result goes."""
    *moments, into = moments
    _back(kernels.multi_aggregate_back, rows, (y, e, *moments), bool(relu), into, of_edges)


def multi_aggregate_back_to_edges(*given: Any) -> None:
    """As `multi_aggregate_back`, rows by target."""
    multi_aggregate_back(*given, of_edges=True)


def _back(kernel: Any, rows: Rows, given: Sequence[Tensor | None], relu: bool, into: Tensor, of_edges: bool) -> None:
    cut, width = pieces(rows.graph), into.shape[1]
    part = None if of_edges else _part(into, cut)
    outs = (None, None, into) if of_edges else (into, part, None)
    tensors = *outs, *contiguous(*given), cut.pieces, rows.graph.col, rows.permutation
    _by_row(kernel, cut, width, tensors, relu, tile=BACK_TILE)
    _fold(into, part, cut)


def softmax_aggregate(
    rows: Rows,
    y: Tensor,
    e: Tensor | None,
    relu: int | None,
    t: float | Tensor,
    out: Tensor,
    log_sum: Tensor,
    spread: Tensor | None,
) -> None:
    """`t`: a number, or a tensor of one, which the host need not know."""
    _softmax(rows.graph, y, e, bool(relu), _numbers(y, t), out, log_sum, spread, rows.graph.col, rows.permutation)


def _softmax(
    graph: Neighbours,
    y: Tensor,
    e: Tensor | None,
    relu: bool | None,
    t: Tensor | None,
    out: Tensor | None,
    log_sum: Tensor,
    spread: Tensor | None,
    other: Tensor | None,
    order: Tensor | None,
) -> None:
    cut, width = pieces(graph), y.shape[1]
    parts = [_part(one, cut) for one in (out, spread, log_sum, log_sum)]
    tensors = out, log_sum, spread, *parts, *contiguous(y, e), t, cut.pieces, other, order
    _by_row(kernels.softmax_aggregate, cut, width, tensors, bool(relu))
    if cut.slots:
        block = min(128, _power(width))
        tensors = out, log_sum, spread, *parts, cut.hub_row, cut.hub_ptr
        grid = cut.hub_row.shape[0], _blocks(width, block)
        launch(kernels.fold_softmax, grid, tensors, (width, max(1, FOLDED // 4), block))


def _numbers(y: Tensor, *numbers: float | Tensor) -> Tensor:
    """The numbers on the device of y, in the type of sums: as arguments of a kernel they would be float32. Filled by
    the device, so that a CUDA graph can capture it."""
    made = y.new_empty(len(numbers), dtype=wide(y))
    for at, number in enumerate(numbers):
        if isinstance(number, Tensor):
            made[at : at + 1].copy_(number.detach().reshape(1))
        else:
            made[at : at + 1].fill_(number)
    return made


def softmax_aggregate_back(
    rows: Rows,
    y: Tensor,
    e: Tensor | None,
    relu: int | None,
    t: float | Tensor,
    whole: float | Tensor,
    out: Tensor,
    log_sum: Tensor,
    g: Tensor,
    into: Tensor,
    of_edges: bool = False,
) -> None:
    given = y, e, _numbers(y, t, whole), out, log_sum, g
    _back(kernels.softmax_aggregate_back, rows, given, bool(relu), into, of_edges)


def softmax_aggregate_back_to_edges(*given: Any) -> None:
    """As `softmax_aggregate_back`, rows by target."""
    softmax_aggregate_back(*given, of_edges=True)


def gated_sum(
    rows: Rows,
    source: Tensor,
    target: Tensor,
    e: Tensor | None,
    whole: int | None,
    softplus: int | None,
    out: Tensor,
    slope: Tensor | None,
) -> None:
    cut, width = pieces(rows.graph), out.shape[1]
    part, part_slope = _part(out, cut), _part(slope, cut)
    given = *contiguous(source, target, e), cut.pieces, rows.graph.col, rows.permutation
    tensors = out, slope, part, part_slope, *given
    _by_row(kernels.gated_sum, cut, width, tensors, bool(whole), bool(softplus), tile=BACK_TILE)
    _fold(out, part, cut)
    _fold(slope, part_slope, cut)


def gated_sum_back(
    rows: Rows,
    own: Tensor,
    others: Tensor,
    e: Tensor | None,
    whole: int | None,
    others_whole: int | None,
    softplus: int | None,
    by_target: bool,
    g: Tensor,
    to_own: Tensor,
    to_e: Tensor | None,
) -> None:
    cut = pieces(rows.graph)
    part = _part(to_own, cut)
    given = *contiguous(own, others, e, g), cut.pieces, rows.graph.col, rows.permutation
    options = bool(whole), bool(others_whole), bool(softplus), bool(by_target)
    _by_row(kernels.gated_sum_back, cut, g.shape[1], (to_own, part, to_e, *given), *options, tile=BACK_TILE // 2)
    _fold(to_own, part, cut)


def film_sum(rows: Rows, x: Tensor, target: Tensor, out: Tensor, slope: Tensor | None) -> None:
    cut, width = pieces(rows.graph), x.shape[1]
    part, part_slope = _part(out, cut), _part(slope, cut)
    given = *contiguous(x, target), cut.pieces, rows.graph.col
    _by_row(kernels.film_sum, cut, width, (out, slope, part, part_slope, *given))
    _fold(out, part, cut)
    _fold(slope, part_slope, cut)


def film_sum_back(rows: Rows, x: Tensor, target: Tensor, g: Tensor, into: Tensor) -> None:
    cut, width = pieces(rows.graph), x.shape[1]
    part = _part(into, cut)
    tensors = into, part, *contiguous(x, target, g), cut.pieces, rows.graph.col
    _by_row(kernels.film_sum_back, cut, width, tensors)
    _fold(into, part, cut)


def edge_rows(rows: Rows, source: Tensor, target: Tensor, relu: int | None, out: Tensor) -> None:
    _per_edge(rows, source, target, out, bool(relu), False)


def _per_edge(rows: Rows, source: Tensor, target: Tensor, out: Tensor, relu: bool, product: bool) -> None:
    cut = pieces(rows.graph)
    tensors = out, *contiguous(source, target), cut.pieces, rows.graph.col, rows.permutation
    _by_row(kernels.edge_rows, cut, source.shape[1], tensors, relu, product)


def edge_rows_back(rows: Rows, g: Tensor, out: Tensor, relu: int | None, into: Tensor) -> None:
    _sum(g, rows.graph, None, into, 1, made=out if relu else None, other=rows.permutation)


def edge_weighted_sum(rows: Rows, x: Tensor, w: Tensor, out: Tensor) -> None:
    _sum(x, rows.graph, w, out, w.shape[1], order=rows.permutation)


def edge_weighted_sum_back(rows: Rows, x: Tensor, g: Tensor, into: Tensor) -> None:
    _per_edge(rows, x, g, into, False, True)
