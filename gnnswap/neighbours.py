"""The edges of a graph sorted by target (CSR), for sums over neighbours.

    neighbours = Neighbours.prepare(edge_index, num_nodes)
    aggregation.mean(x, neighbours)

Sorting costs more than a sum over neighbours, so it is done once for a graph. What is derived from it (the transpose,
the graph with self-loops, the graph of attention heads) is computed at its first use and cached with it. Layers find
the sorted graph of plain edges in a `GraphCache`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from scipy.sparse import coo_array
from torch import Tensor

from gnnswap import backends
from gnnswap.cache import MIB, BoundedDict, TensorCache, nbytes_of
from gnnswap.errors import SwapError

SAMPLED = 32  # edges of a graph in its cache key; then all are compared
WEIGHTS_BYTES = 64 * MIB  # of a graph's cache of what was computed from weights of its edges
_INT32 = 2**31 - 1
_MISSING = object()


def index_type(num_nodes: int, num_edges: int) -> torch.dtype:
    """int32 where nodes and edges can be numbered in it: half the bytes of int64 to read."""
    return torch.int32 if max(num_nodes, num_edges) < _INT32 else torch.int64


def group(
    node: Tensor, other: Tensor, num_nodes: int, values: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(rowptr (num_nodes + 1), `other`, `values`), both grouped by `node`; the first two in the type of `node`.

    `node` and `other` (E,): the two ends of each edge, of one type; `values` (E,), of any. Edges of one node keep their
    order. Numbers must be 0 or more, and those of `node` below num_nodes: that is not checked.

    On a CPU this is one counting pass, scipy's conversion of a sparse matrix to compressed rows: a tenth of the time of
    a stable sort. A pass of our own in numba was no faster on one thread (16 ns an edge against 19 at 10 million edges
    on an AMD EPYC), 1.5 times on two, and takes 2 s to compile. On other devices torch sorts.
    """
    if node.device.type != "cpu":
        return _group_by_sort(node, other, num_nodes, values)
    data = torch.empty(node.shape, dtype=torch.int8) if values is None else values  # scipy wants some
    shape = num_nodes, torch.iinfo(node.dtype).max
    matrix = coo_array((data.numpy(), (node.numpy(), other.numpy())), shape=shape)
    matrix.has_canonical_format = True  # edges that come twice stay: nothing is added
    grouped = matrix.tocsr()
    rowptr, other = (torch.from_numpy(part).to(node.dtype) for part in (grouped.indptr, grouped.indices))
    return rowptr, other, None if values is None else torch.from_numpy(grouped.data)


def _group_by_sort(
    node: Tensor, other: Tensor, num_nodes: int, values: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    kind, (node, order) = node.dtype, node.sort(stable=True)
    rowptr = torch.searchsorted(node, torch.arange(num_nodes + 1, device=node.device, dtype=kind))
    return rowptr.to(kind), other.index_select(0, order), None if values is None else values.index_select(0, order)


class _derived:
    """A property that is computed at its first use and cached. Unlike `functools.cached_property` of Python 3.11 it has
    no lock: threads may compute it twice, and all get the same object."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, graph: Any, owner: type) -> Any:
        if graph is None:
            return self
        backends.refuse_capture()
        with torch.inference_mode(False):  # cached values must serve training, too
            made = self.make(graph)
        return graph.__dict__.setdefault(self.name, made)


class Neighbours:
    """The edges of one graph in compressed rows (CSR), one row a target. Immutable; made by `Neighbours.prepare`.

    `rowptr` (N + 1,): the edges of target i are rowptr[i] .. rowptr[i + 1] - 1; `col` (E,): their sources; `row` (E,):
    their targets; `permutation` (E,): where the edge stands in `edges`. int32 where all numbers fit, else int64. N is
    `num_nodes`, the targets; E is `num_edges`; `num_sources` differs from N where the graph is bipartite.

    Rows are targets, as in `adj_t` of PyG. What `EdgeIndex` sorted by column calls row (sources), col (targets) and
    colptr are `col`, `row` and `rowptr` here.
    """

    def __init__(
        self, rowptr: Tensor, col: Tensor, permutation: Tensor | Callable[[], Tensor], num_sources: int
    ) -> None:
        """`permutation` may be a function that computes it when it is first needed: few graphs need it."""
        self.rowptr, self.col, self._permutation = rowptr, col, permutation
        self._sizes(rowptr.shape[0] - 1, num_sources, col)

    def _sizes(self, num_nodes: int, num_sources: int, ends: Tensor) -> None:
        self.num_nodes, self.num_sources, self.num_edges = num_nodes, num_sources, ends.shape[-1]
        self.device, self.dtype = ends.device, ends.dtype
        self._weights = TensorCache(WEIGHTS_BYTES, apart=(Neighbours,))
        self._made: dict[Hashable, Any] = {}

    @classmethod
    def prepare(cls, edge_index: Tensor, num_nodes: int, *, num_sources: int | None = None) -> Neighbours:
        """The neighbours of `edge_index` (2, E), int64 or int32, sources in row 0; sorted by target when first used.

        `num_nodes` targets; `num_sources` sources, by default as many as targets. The edges are copied.

        Raises:
            SwapError: `edge_index` has another shape or type, or names a source outside 0 .. num_sources - 1, or a
                target outside 0 .. num_nodes - 1; `num_nodes` is negative.
        """
        _check_kind(edge_index, num_nodes)
        sources = num_nodes if num_sources is None else num_sources
        with torch.inference_mode(False):
            _check_range(edge_index, num_nodes, sources)
            kind = index_type(max(num_nodes, sources), edge_index.shape[1])
            return _Unsorted(edge_index.detach().to(kind, copy=True), num_nodes, sources)

    @_derived
    def edges(self) -> Tensor:
        """The edges as they were given, (2, E)."""
        edges = torch.stack([self.col, self.row])
        return torch.empty_like(edges).index_copy_(1, self.permutation.long(), edges)

    @property
    def edge_index(self) -> Tensor:
        """The edges as they were given, int64 (2, E)."""
        return self.edges.long()

    @_derived
    def permutation(self) -> Tensor:
        """Where each sorted edge stands in `edges`, (E,)."""
        return self._permutation() if callable(self._permutation) else self._permutation

    @_derived
    def row(self) -> Tensor:
        """The target of each edge, (E,)."""
        nodes = torch.arange(self.num_nodes, dtype=self.dtype, device=self.device)
        return torch.repeat_interleave(nodes, self.degree, output_size=self.num_edges)

    @_derived
    def position(self) -> Tensor:
        """Where each edge given stands among those sorted, (E,): the inverse of `permutation`."""
        return torch.empty_like(self.positions).index_copy_(0, self.permutation.long(), self.positions)

    @_derived
    def positions(self) -> Tensor:
        """0 .. E - 1: the permutation of values that are sorted already."""
        return torch.arange(self.num_edges, dtype=self.dtype, device=self.device)

    @_derived
    def in_order(self) -> bool:
        """Were the edges given sorted by target?"""
        return torch.equal(self.permutation, self.positions)

    @property
    def degree(self) -> Tensor:
        """Edges that end at each target, (N,)."""
        return self.rowptr.diff()

    @property
    def count(self) -> Tensor:
        """The divisor of a mean: `degree`, 1 for targets without edges, (N,)."""
        return self.degree.clamp(min=1)

    @_derived
    def offsets(self) -> Tensor:
        """`rowptr` as int64, (N + 1,)."""
        return self.rowptr.long()

    @_derived
    def transposed(self) -> Neighbours:
        """The same edges sorted by source; its `permutation` gives their positions among those sorted by target."""
        colptr, row, permutation = group(self.col, self.row, self.num_sources, self.positions)
        return Neighbours(colptr, row, permutation, self.num_nodes)

    @property
    def mean_weight(self) -> Tensor:
        """1 / degree of its target for each edge, float64 (E,)."""
        return torch.repeat_interleave(1 / self.degree.double(), self.degree, output_size=self.num_edges)

    @_derived
    def of_edges(self) -> Neighbours:
        """The graph whose sources are the edges, in the order of `col`, each with its target."""
        return Neighbours(self.rowptr, self.positions, self.positions, self.num_edges)

    @_derived
    def of_given_edges(self) -> Neighbours:
        """As `of_edges`, in the order in which they were given."""
        return Neighbours(self.rowptr, self.permutation, self.permutation, self.num_edges)

    @_derived
    def loops(self) -> Tensor:
        """Which of the edges given are self-loops, bool (E,)."""
        return self.edges[0] == self.edges[1]

    @_derived
    def with_self_loops(self) -> Neighbours:
        """The graph with exactly one self-loop for each node: the edges given without loops, then a loop for each node,
        as in `GATConv(add_self_loops=True)`."""
        edges, loops, num_nodes = self.edges, self.loops, self.num_nodes  # `permutation` must not hold this graph
        num_stays, kind = int((~loops).sum()), index_type(num_nodes + 1, self.num_edges + num_nodes)
        nodes = torch.arange(num_nodes, dtype=kind, device=self.device)

        def grouped(given: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
            """(rowptr, numbers of the edges given and of those added, by target)."""
            target = edges[1].to(kind).masked_fill(loops, num_nodes)  # a row that is removed below
            target, numbers = torch.cat([target, nodes]), torch.cat([given.to(kind), own])
            rowptr, numbers, _ = group(target, numbers, num_nodes + 1)
            return rowptr[:-1], numbers[: num_stays + num_nodes]

        def permutation() -> Tensor:
            stays = ~loops
            return grouped(stays.cumsum(0, dtype=kind) - stays.to(kind), nodes + num_stays)[1]

        return Neighbours(*grouped(edges[0], nodes), permutation, num_nodes)

    def heads(self, heads: int, *, shared: bool = False) -> Neighbours:
        """`heads` copies of the graph in one: node i of head h is number i * heads + h.

        The edges of each (target, head) are adjacent, so one sum over neighbours serves all heads, with x (N, heads *
        C) viewed as (N * heads, C). `shared`: the heads read the same sources, x (N, F). Its `permutation` gives the
        position of an edge of a head in weights (E, heads), flat, in the order of this graph's `col`.
        """
        return self if heads == 1 else self.cached(_heads, heads, shared)

    @_derived
    def log_counts(self) -> Tensor:
        """log of the number of edges from j to i, float64 (targets, sources): the mask of a softmax over all nodes. 0
        for targets without edges."""
        pairs = self.row.long() * self.num_sources + self.col
        counts = torch.bincount(pairs, minlength=self.num_nodes * self.num_sources)
        return counts.double().view(self.num_nodes, self.num_sources).log().masked_fill(self.isolated, 0)

    @_derived
    def isolated(self) -> Tensor:
        """Targets without edges, bool (N, 1)."""
        return (self.degree == 0).unsqueeze(1)

    def cast(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor of this graph (`mean_weight`, `log_counts`, ...) in another type, cached."""
        return self.cached(_cast, name, dtype)

    def sorted_weight(self, weight: Tensor) -> Tensor:
        """`weight` (E, ...), one for each edge as it was given, in the order of `col`.

        Weights that want no gradient are sorted once and cached with the graph until their tensor changes.

        Raises:
            SwapError: another number of edges.
        """
        if weight.dim() == 0 or weight.shape[0] != self.num_edges:
            raise SwapError(f"weight must have shape ({self.num_edges},), one an edge, not {tuple(weight.shape)}")
        if weight.requires_grad:  # what is learned changes from step to step
            return Permute.apply(weight, self.permutation, self.position)
        return self.cached_by_weight(weight, _sorted_weight)

    def require(self, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
        """`SwapError` unless `tensor` is floating, of this shape and type, and on the device of the graph.

        -1 in `shape` stands for any size.
        """
        given, fits = type(tensor).__name__, False
        if isinstance(tensor, Tensor):
            given = f"{tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
            fits = tensor.is_floating_point() and dtype in (None, tensor.dtype) and tensor.device == self.device
            fits = fits and tensor.dim() == len(shape)
            fits = fits and all(wanted in (-1, size) for wanted, size in zip(shape, tensor.shape, strict=True))
        if not fits:
            wanted = f"({', '.join(map(str, shape))}), {dtype or 'floating'} on {self.device}"
            raise SwapError(f"{name} must be {wanted}, as these neighbours were prepared, not {given}")

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"Neighbours(nodes={self.num_nodes}, edges={self.num_edges}, {kind}, {self.device})"

    def __deepcopy__(self, memo: dict) -> Neighbours:
        return self  # immutable

    def cached(self, function: Callable, *args: Hashable) -> Any:
        """`function(graph, *args)`, computed once and cached with this graph.

        The key is the function and its arguments, so `function` is one of a module, or a class, never a lambda.

        Raises:
            SwapError: it is not cached yet, and a CUDA graph is being captured.
        """
        made = self._made.get((function, *args), _MISSING)
        if made is _MISSING:
            backends.refuse_capture()
            with torch.inference_mode(False):
                made = function(self, *args)
            made = self._made.setdefault((function, *args), made)  # of two threads that made it, both get one
        return made

    def cached_by_weight(self, weight: Tensor | None, function: Callable, *args: Hashable) -> Any:
        """`function(graph, weight, *args)`, cached with this graph until the weights (E, ...) of its edges change."""
        if weight is None:
            return self.cached(function, None, *args)
        return self._weights.get((weight,), (function, *args), lambda: function(self, weight, *args))

    def of_tensors(self, tensors: Sequence[Tensor], key: Hashable, compute: Callable[[], Any]) -> Any:
        """`compute()`, cached with this graph under `key` until one of the tensors changes. `key` has the function and
        all of its arguments that are no tensors."""
        return self._weights.get(tensors, key, compute)

    def forget(self) -> None:
        """Drop all cached values. Sums refer to their graph, so without this it would live until the next garbage
        collection."""
        self._made.clear()
        self._weights.forget()


class _Unsorted(Neighbours):
    """Neighbours of its own copy of `edges` (2, E), sorted at their first use: a layer may only need the graph with
    self-loops."""

    def __init__(self, edges: Tensor, num_nodes: int, num_sources: int) -> None:
        self.edges = edges
        self._sizes(num_nodes, num_sources, edges)

    @_derived
    def _sorted(self) -> tuple[Tensor, ...]:
        return group(self.edges[1], self.edges[0], self.num_nodes)

    @_derived
    def permutation(self) -> Tensor:
        """Where each sorted edge stands in `edges`, (E,)."""
        return group(self.edges[1], self.positions, self.num_nodes)[1]

    rowptr, col = (_derived(lambda self, part=part: self._sorted[part]) for part in range(2))


class Permute(torch.autograd.Function):
    """values[permutation] of edges, (E, ...); `inverse` is that of `permutation` (E,). Twice differentiable."""

    @staticmethod
    def forward(ctx, values: Tensor, permutation: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse
        return values.index_select(0, permutation)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.inverse), None, None


class GraphCache:
    """The sorted graphs of a model.

    A tensor of edges is recognized as in `TensorCache`, by its identity, version and 64 of its numbers: a write behind
    torch's back that changes few edges may be missed, with the probability stated there. Another tensor is compared
    whole with the cached graph that has as many edges and the same sample of them.

    The least recently used graphs, with all that was derived from them, are dropped where all take more than
    `max_bytes`; the last one used stays, however large. Threads may share a cache.
    """

    def __init__(self, max_bytes: int = 256 * MIB) -> None:
        self.max_bytes = max_bytes
        self._graphs = BoundedDict(max_bytes, nbytes_of, dropped=Neighbours.forget)
        self._lookups = TensorCache(apart=(_Lookup,))  # which hold next to nothing

    def get(self, edge_index: Tensor | Neighbours, num_nodes: int, num_sources: int | None = None) -> Neighbours:
        """The neighbours of `edge_index` (2, E) on `num_nodes` nodes; `Neighbours` are returned as they are.

        `num_sources`: by default as many as targets.

        Raises:
            SwapError: as of `Neighbours.prepare`; or the edges are new, and a CUDA graph is being captured.
        """
        if isinstance(edge_index, Neighbours):
            return edge_index
        sizes = num_nodes, num_nodes if num_sources is None else num_sources
        if not isinstance(edge_index, Tensor):
            _check_kind(edge_index, num_nodes)

        def known() -> _Lookup:
            backends.refuse_capture()
            return _Lookup(_contents_key(edge_index, *sizes))

        lookup = self._lookups.get((edge_index,), sizes, known)
        graph = self._graphs.get(lookup.key)
        if graph is None or graph is not lookup.graph():
            graph = self._by_contents(lookup.key, edge_index, *sizes)
            lookup.graph = weakref.ref(graph)
        return graph

    def _by_contents(self, key: Hashable, edge_index: Tensor, num_nodes: int, num_sources: int) -> Neighbours:
        graph = self._graphs.get(key)
        backends.refuse_capture()
        if graph is None or not _is_of(graph, edge_index, num_nodes, num_sources):
            graph = Neighbours.prepare(edge_index, num_nodes, num_sources=num_sources)
            self._graphs.put(key, graph)
        return graph

    def forget(self) -> None:
        """Drop all graphs and what was derived from them."""
        self._graphs.forget()
        self._lookups.forget()

    def __del__(self) -> None:
        self.forget()

    @property
    def nbytes(self) -> int:
        """Bytes of the graphs in it, with all that was derived from them."""
        return sum(map(nbytes_of, self._graphs.values()))

    def __len__(self) -> int:
        return len(self._graphs)

    def __deepcopy__(self, memo: dict) -> GraphCache:
        return GraphCache(self.max_bytes)

    def __reduce__(self) -> tuple:
        return GraphCache, (self.max_bytes,)


class _Lookup:
    """The key of the graph of a tensor of edges, and the graph itself: the key may belong to another one by now."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.graph: Callable[[], Neighbours | None] = lambda: None  # a weak reference: a graph may go


def _check_kind(edge_index: Tensor, num_nodes: int) -> None:
    if not isinstance(edge_index, Tensor) or edge_index.layout is not torch.strided:
        kind = f"a {edge_index.layout} tensor" if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise SwapError(f"edge_index must be a dense tensor (2, edges), not {kind}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise SwapError(f"edge_index must have shape (2, edges), not {tuple(edge_index.shape)}")
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise SwapError(f"edge_index must be int64 or int32, not {edge_index.dtype}")
    if num_nodes < 0:
        raise SwapError(f"num_nodes must be 0 or more, not {num_nodes}")


def _check_range(edge_index: Tensor, num_nodes: int, num_sources: int) -> None:
    if edge_index.shape[1] == 0:
        return
    low, high = torch.stack(edge_index.aminmax(dim=1)).tolist()
    for name, least, most, count in zip(("source", "target"), low, high, (num_sources, num_nodes), strict=True):
        if least < 0 or most >= count:
            wrong = least if least < 0 else most
            raise SwapError(f"edge_index names {name} {wrong}, allowed are 0..{count - 1} of {count} nodes")


def _contents_key(edge_index: Tensor, num_nodes: int, num_sources: int) -> int:
    """A hash of the sizes of a graph and some of its edges, which differs for most graphs."""
    _check_kind(edge_index, num_nodes)
    edges = edge_index.shape[1]
    some = edge_index.detach()[:, :: max(1, edges // SAMPLED)]
    return hash((edge_index.device, num_nodes, num_sources, edges, *some.flatten().tolist()))


def _is_of(graph: Neighbours, edge_index: Tensor, num_nodes: int, num_sources: int) -> bool:
    if (graph.num_nodes, graph.num_sources, graph.num_edges) != (num_nodes, num_sources, edge_index.shape[1]):
        return False
    return graph.device == edge_index.device and bool((graph.edges == edge_index).all())


def _cast(graph: Neighbours, name: str, dtype: torch.dtype) -> Tensor:
    return getattr(graph, name).to(dtype)


def _sorted_weight(graph: Neighbours, weight: Tensor) -> Tensor:
    return weight.detach().index_select(0, graph.permutation)


def _heads(neighbours: Neighbours, heads: int, shared: bool) -> Neighbours:
    nodes, edges = neighbours.num_nodes, neighbours.num_edges
    sources = neighbours.num_sources * (1 if shared else heads)
    kind = index_type(max(nodes * heads, sources), edges * heads)
    starts, head = neighbours.rowptr[:-1].to(kind), torch.arange(heads, dtype=kind, device=neighbours.device)
    degree = neighbours.degree.to(kind)
    # the edges of head h of node i follow those of all earlier nodes, and of the earlier heads of i
    rowptr = (starts[:, None] * heads + degree[:, None] * head).view(-1)
    rowptr = torch.cat([rowptr, rowptr.new_tensor([edges * heads])])
    counts = rowptr.diff()
    head = torch.repeat_interleave(head.repeat(nodes), counts, output_size=edges * heads)
    shift = starts.repeat_interleave(heads) - rowptr[:-1]
    edge = torch.arange(edges * heads, dtype=kind, device=head.device)
    edge = edge + torch.repeat_interleave(shift, counts, output_size=edges * heads)
    col = neighbours.col.to(kind).index_select(0, edge)
    return Neighbours(rowptr, col if shared else col * heads + head, edge * heads + head, sources)
