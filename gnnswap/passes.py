"""FLOPs and bytes of the compiled passes over edges, which torch's dispatcher does not see.

    with watched(note): model(x, edge_index)      # note("multi_aggregate", work) after each pass, on any thread
    passes_of(module)                             # a module of passes, watched within `watched`

Each pass has a formula here, under its name and with its arguments. FLOPs: 1 for an addition, a product, a comparison
or an exponential function, 4 for a softplus, 5 for a softmax. Bytes are a lower bound: each row at the end of an edge
is read once, each result written once, with one or two indices of each edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from gnnswap import backends
from gnnswap.inputs import tensors_in

if TYPE_CHECKING:
    from gnnswap.fused import Rows
    from gnnswap.neighbours import Neighbours


class Work(NamedTuple):
    """FLOPs of a pass, and bytes that it reads and writes."""

    flops: int
    read: int
    written: int


Note = Callable[[str, Work], None]
_NOTES: list[Note] = []


@contextmanager
def watched(note: Note) -> Iterator[None]:
    """Within it `note(name, work)` is called after each pass of this process, on the thread that the pass ran on."""
    _NOTES.append(note)
    try:
        yield
    finally:
        _NOTES.remove(note)


def passes_of(module: ModuleType) -> Any:
    """The module itself, or within `watched` one whose passes are noted."""
    return _Watched(module) if _NOTES else module


def triton_for(x: Tensor) -> Any:
    """As `backends.triton_for`: the passes by Triton for a tensor on a CUDA device, None for any other."""
    module = backends.triton_for(x)
    return module if module is None else passes_of(module)


class _Watched:
    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        run, formula = getattr(self._module, name), FORMULAS.get(name)
        return run if formula is None else partial(_noted, name, run, formula)


def _noted(name: str, run: Callable[..., Any], formula: Callable[..., Work], *given: Any, **named: Any) -> Any:
    result, work = run(*given, **named), formula(*given, **named)
    made = {id(one): one.nbytes for one in tensors_in(result)}  # other passes write to their arguments
    work = work._replace(written=work.written + sum(made.values()))
    for note in list(_NOTES):
        note(name, work)
    return result


# ---- formulas, each with the arguments of its pass -------------------------------------------------------------------


def _work(
    graph: Neighbours,
    flops: int,
    read: Sequence[Tensor | None],
    written: Sequence[Tensor | None] = (),
    ordered: Any = None,
) -> Work:
    """`read`: rows at the ends of edges; `ordered`: not None if each edge has an index of its own row, too."""
    edges, index = graph.num_edges, graph.rowptr.element_size()
    rows = sum(min(one.nbytes, edges * (one.nbytes // max(one.shape[0], 1))) for one in read if one is not None)
    numbers = graph.num_nodes + 1 + edges * (1 if ordered is None else 2)
    return Work(flops, rows + numbers * index, sum(one.nbytes for one in written if one is not None))


def _count(*present: Any) -> int:
    """How many of these are there: not None, and not False."""
    return sum(one is not None and one is not False for one in present)


def _numbers(rows: Rows, y: Tensor) -> int:
    """Of the messages of all edges."""
    return rows.graph.num_edges * y.shape[1]


def _multi_aggregate(rows, y, e, relu, total, squares, least, largest):
    each = _count(e, relu, total, least, largest) + 2 * _count(squares)
    return _work(rows.graph, _numbers(rows, y) * each, [y, e], [total, squares, least, largest], e)


def _ties(rows, y, e, relu, extreme, count):
    return _work(rows.graph, _numbers(rows, y) * (_count(e, relu) + 2), [y, e, extreme], [count], e)


def _multi_aggregate_back(
    summed, rows, y, e, relu, g_total, g_squares, least, g_least, largest, g_largest, into
):  # fmt: skip
    """`summed`: 1 where gradients are added up for each source, 0 where they are the edges' own."""
    uses_messages = _count(relu, g_squares, least, largest) > 0  # the gradient of a sum alone does not
    each = _count(e, relu) * uses_messages + _count(relu) + 2 * _count(g_squares, least, largest)
    each += _count(g_total, g_squares, least, largest) - 1 + summed
    messages = [y, e] if uses_messages else []
    read = [*messages, g_total, g_squares, least, g_least, largest, g_largest]
    return _work(rows.graph, _numbers(rows, y) * each, read, [into], e)


def _softmax_aggregate(rows, y, e, relu, t, out, log_sum, spread):
    each = _count(e, relu) + 7 + 2 * _count(spread)  # t v, largest, less it, exp, their sum, times v, the sum of that
    by_node = rows.graph.num_nodes * y.shape[1] * (3 + 3 * _count(spread))
    return _work(rows.graph, _numbers(rows, y) * each + by_node, [y, e], [out, log_sum, spread], e)


def _softmax_aggregate_back(summed, rows, y, e, relu, t, whole, out, log_sum, g, into):
    each = _count(e, relu) + _count(relu) + 8 + summed
    return _work(rows.graph, _numbers(rows, y) * each, [y, e, out, log_sum, g], [into], e)


def _gated_sum(rows, source, target, e, whole, softplus, out, slope):
    each = 1 + _count(whole) + 2 * _count(e) + 3 + 4 * _count(softplus)  # p and q; the gate, times q, the sum
    if slope is not None:
        each += 4 + _count(whole) * (1 + 2 * _count(softplus))
    return _work(rows.graph, _numbers(rows, out) * each, [source, target, e], [out, slope], e)


def _gated_sum_back(rows, own, others, e, whole, others_whole, softplus, by_target, g, to_own, to_e):
    each = 1 + (_count(whole, others_whole) == 2) + 2 * _count(e) + 7 + _count(whole) + 6 * _count(softplus)
    return _work(rows.graph, _numbers(rows, g) * each, [own, others, e, g], [to_own, to_e], e)


def _film_sum(rows, x, target, out, slope):
    return _work(rows.graph, _numbers(rows, x) * (4 + 4 * _count(slope)), [x, target], [out, slope])


def _film_sum_back(rows, x, target, g, into):
    return _work(rows.graph, _numbers(rows, x) * 5, [x, target, g], [into])


def _edge_rows(rows, source, target, relu, out):
    return _work(rows.graph, _numbers(rows, source) * (1 + _count(relu)), [source, target], [out], out)


def _edge_rows_back(rows, g, out, relu, into):
    return _work(rows.graph, _numbers(rows, g) * (1 + _count(relu)), [g, out if relu else None], [into], g)


def _edge_weighted_sum(rows, x, w, out):
    return _work(rows.graph, _numbers(rows, x) * 2, [x, w], [out], w)


def _edge_weighted_sum_back(rows, x, g, into):
    return _work(rows.graph, _numbers(rows, x), [x, g], [into], into)


def _weighted_sum(x, graph, weight=None):
    return _work(graph, graph.num_edges * x.shape[1] * (1 + _count(weight)), [x, weight])


def _weighted_sum_by_head(values, graph, weight):
    return _work(graph, 2 * weight.numel() * values.shape[2], [values, weight])


def _edge_products(a, b, graph):
    return _work(graph, 2 * graph.num_edges * a.shape[1] * a.shape[2], [a, b])


def _log_sum_exp(scores, graph):
    return _work(graph, 4 * scores.numel() + 2 * graph.num_nodes * scores.shape[1], [scores])


def _scores(kind: str, heads: int, width: int, edge: Tensor | None) -> int:
    """FLOPs of the scores of an edge."""
    return {
        "gat": heads * (2 + _count(edge)),
        "gatv2": heads * width * (4 + _count(edge)),
        "transformer": heads * (2 * width + 1 + _count(edge)),
    }[kind]


def _attend(kind, query, key, values, graph, *, vector=None, edge=None, keep=None, slope=0.2, scale=1.0):
    heads, width = query.shape[1], values.shape[2]
    each = _scores(kind, heads, width, edge) + heads * (5 + _count(keep) + 2 * width)
    return _work(graph, graph.num_edges * each, [query, key, values, vector, edge, keep])


def _attend_back(
    kind, grad, saved, query, key, values, graph, *, vector=None, edge=None, keep=None, slope=0.2, scale=1.0,
    wanted=(True,) * 5,
):  # fmt: skip
    """A pass over targets, and one over sources where keys or values want a gradient. Both compute the attention
    weights and gradients of scores, but for GATv2, whose second pass reads those of the first."""
    (heads, width), edges = grad.shape[1:], graph.num_edges
    numbers = heads * width
    shares = _scores(kind, heads, width, edge) + heads * (4 + 2 * _count(keep)) + 2 * numbers
    ends = {"gat": 2 * heads, "gatv2": 4 * numbers, "transformer": 2 * numbers}[kind]
    each = shares + ends + numbers * (kind == "gatv2" and edge is not None and wanted[4])
    read = [grad, *saved, query, key, values, vector, edge, keep]
    work = _work(graph, edges * each + 2 * graph.num_nodes * numbers, read)
    if not (wanted[2] or (key is not None and wanted[1])):
        return work
    kept = numbers * (3 + _count(edge)) if kind == "gatv2" else shares + ends
    handed = 2 * edges * heads * saved[0].element_size() if kind == "gatv2" else saved[0].nbytes
    again = _work(graph.transposed, edges * (kept + 2 * numbers), read, ordered=True)
    return Work(work.flops + again.flops, work.read + again.read + handed, handed)


FORMULAS: dict[str, Callable[..., Work]] = {
    "multi_aggregate": _multi_aggregate,
    "ties": _ties,
    "multi_aggregate_back": partial(_multi_aggregate_back, 1),
    "multi_aggregate_back_to_edges": partial(_multi_aggregate_back, 0),
    "softmax_aggregate": _softmax_aggregate,
    "softmax_aggregate_back": partial(_softmax_aggregate_back, 1),
    "softmax_aggregate_back_to_edges": partial(_softmax_aggregate_back, 0),
    "gated_sum": _gated_sum,
    "gated_sum_back": _gated_sum_back,
    "film_sum": _film_sum,
    "film_sum_back": _film_sum_back,
    "edge_rows": _edge_rows,
    "edge_rows_back": _edge_rows_back,
    "edge_weighted_sum": _edge_weighted_sum,
    "edge_weighted_sum_back": _edge_weighted_sum_back,
    "weighted_sum": _weighted_sum,
    "weighted_sum_by_head": _weighted_sum_by_head,
    "edge_products": _edge_products,
    "log_sum_exp": _log_sum_exp,
    "attend": _attend,
    "attend_back": _attend_back,
}
