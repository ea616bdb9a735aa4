"""Weighted sums over neighbours, as segment sums.

    neighbours = Neighbours.prepare(edge_index, num_nodes)
    weighted_sum(x, neighbours, weight)     # out[i] = sum over the edges (j -> i) of weight[edge] * x[j]
    mean(x, neighbours)                     # out[i] = mean over the edges (j -> i) of x[j], 0 where there are none

In shapes N is `num_nodes`, the targets, E the edges, F the features, H the heads. `x` has a row for each source.

PyG gathers a row for each edge, multiplies, and scatters: E x F numbers are written and read three times. Here one
segment sum (torch's `embedding_bag`) reads each source row as it adds, so only x and the result move. The backward pass
is the same sum over the transposed graph, and a dot product for each edge where weights want gradients.

Derivatives of any order are right: backward passes call functions that are differentiable themselves, or, in a subclass
of `Kernel`, differentiate `plain`, the same computation by torch's own operators. torch's transforms (vmap, forward
mode, ...) always get the plain computation, as they do not see into kernels.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.nn import functional as F

from gnnswap.neighbours import Neighbours
from gnnswap.passes import triton_for

CHUNK_NUMBERS = 1 << 18  # of products per edge that a thread has in memory: 1 MiB of float32, within the cache
SAMPLED_WIDTH = 8  # torch's sampled product takes 4 to 16 times as long for float32 rows of 2 to 7 numbers as for 8


def transformed(*tensors: Tensor | None) -> bool:
    """Is a transform of torch.func or forward mode under way, or is one of these a batch (`is_grads_batched`)?"""
    if _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return True
    for one in tensors:  # noqa: SIM110  asked in each call: a generator takes three times as long
        if one is not None and _functorch.is_legacy_batchedtensor(one):
            return True
    return False


def recorded(*tensors: Tensor | None) -> bool:
    """Does autograd record what is computed from these?"""
    if torch.is_grad_enabled():
        for one in tensors:
            if one is not None and one.requires_grad:
                return True
    return False


def wide(x: Tensor) -> torch.dtype:
    """The type in which numbers of x are added: at least float32."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


class Kernel(torch.autograd.Function):
    """An autograd function with a plain version in torch's own operators, for derivatives of derivatives.

    A subclass has `forward(ctx, *inputs)`, `back(ctx, *grads)`, its fast backward pass, and `plain(*inputs)`. The first
    inputs are tensors or None; `forward` saves them unchanged, before other tensors, and sets `ctx.settings` to the
    other inputs. Call it by `run`.
    """

    @classmethod
    def run(cls, *inputs: Any) -> Any:
        """The result: of `forward`, with `back` for gradients; of `plain` where a transform of torch is under way."""
        tensors = (one for one in inputs if isinstance(one, Tensor))
        return cls.plain(*inputs) if transformed(*tensors) else cls.apply(*inputs)

    @classmethod
    def backward(cls, ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs: by `back`; by `plain_back` where they are differentiated again or within a
        transform."""
        if torch.is_grad_enabled() or transformed(*grads):
            return cls.plain_back(ctx, *grads)
        return cls.back(ctx, *grads)

    @classmethod
    def plain_back(cls, ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of `plain`, differentiable where autograd records."""
        again, wanted = torch.is_grad_enabled(), ctx.needs_input_grad
        with torch.enable_grad():
            tensors = ctx.saved_tensors[: len(wanted) - len(ctx.settings)]
            # views: where one input was computed from another, the gradient must not flow on to that
            tensors = [None if one is None else one.view_as(one) for one in tensors]
            outs = cls.plain(*tensors, *ctx.settings)
        differentiated = [one for one, needed in zip(tensors, wanted, strict=False) if needed]
        found = iter(torch.autograd.grad(outs, differentiated, grads, create_graph=again, allow_unused=True))
        return tuple(next(found) if needed else None for needed in wanted)


def weighted_sum(x: Tensor, neighbours: Neighbours, weight: Tensor | None = None) -> Tensor:
    """out[i] = sum over the edges (j -> i) of weight[edge] * x[j].

    `x` (num_sources, F), floating; `weight` (E,), of its type, in the order of `edge_index`, None: ones; the result is
    (num_nodes, F), in the type of `x`. Both may want gradients. In bf16 and fp16 sums are kept in float32. Weights that
    want none are sorted once and kept with the graph (`Neighbours.sorted_weight`).

    Raises:
        SwapError: `x` or `weight` has another shape or type than these, or is on another device than the graph.
    """
    neighbours.require("x", x, (neighbours.num_sources, -1))
    if weight is not None:
        neighbours.require("weight", weight, (neighbours.num_edges,), x.dtype)
        weight = (
            weight.index_select(0, neighbours.permutation) if transformed(weight) else neighbours.sorted_weight(weight)
        )
    return weighted_sum_sorted(x, neighbours, weight)


def mean(x: Tensor, neighbours: Neighbours) -> Tensor:
    """out[i] = mean over the edges (j -> i) of x[j], 0 where there are none; shapes and errors as in `weighted_sum`."""
    neighbours.require("x", x, (neighbours.num_sources, -1))
    return weighted_sum_sorted(x, neighbours, neighbours.cast("mean_weight", x.dtype))


def weighted_sum_sorted(x: Tensor, neighbours: Neighbours, weight: Tensor | None) -> Tensor:
    """`weighted_sum` with weights in the order of `neighbours.col`, without checks."""
    if transformed(x, weight):
        rows = x.index_select(0, neighbours.col)
        return scattered(rows if weight is None else rows * weight.unsqueeze(1), neighbours)
    return _WeightedSum.apply(x, weight, neighbours) if recorded(x, weight) else unrecorded_sum(x, neighbours, weight)


def scattered(values: Tensor, neighbours: Neighbours) -> Tensor:
    """The sums over the edges of each target, (N, ...), of values (E, ...) in the order of `neighbours.col`."""
    return values.new_zeros(neighbours.num_nodes, *values.shape[1:]).index_add(0, neighbours.row, values)


def unrecorded_sum(x: Tensor, neighbours: Neighbours, weight: Tensor | None) -> Tensor:
    """`weighted_sum_sorted` without autograd."""
    if x.numel() == 0:
        return x.new_zeros(neighbours.num_nodes, x.shape[1])
    passes = triton_for(x)
    if passes is not None:
        return passes.weighted_sum(x.detach(), neighbours, None if weight is None else weight.detach())
    return embedding_bag_sum(x, neighbours, weight)


def embedding_bag_sum(x: Tensor, neighbours: Neighbours, weight: Tensor | None) -> Tensor:
    """`unrecorded_sum` by torch's `embedding_bag`."""
    if x.requires_grad:  # else embedding_bag prepares for a gradient and takes twice as long
        x = x.detach()
    # without the checks of F.embedding_bag, which cost as much as a small graph; mode 0 is the sum
    return torch.embedding_bag(
        x.contiguous(), neighbours.col, neighbours.rowptr, False, 0, False, weight, include_last_offset=True
    )[0]


def edge_products(a: Tensor, b: Tensor, neighbours: Neighbours) -> Tensor:
    """a[target] . b[source] for each edge, (E,) in the order of `neighbours.col`; a (N, F), b (num_sources, F).

    The E x F products are in memory only where autograd records the call. Else torch's sampled product or a Triton
    kernel sums them as it makes them; where there is neither, they are made in pieces that fit into the cache.
    """
    if recorded(a, b) or transformed(a, b):
        return (a.index_select(0, neighbours.row) * b.index_select(0, neighbours.col)).sum(1)
    passes = triton_for(a)
    if passes is not None:
        return passes.edge_products(a.detach().unsqueeze(1), b.detach().unsqueeze(1), neighbours).squeeze(1)
    precise = a.is_cpu and a.dtype in (torch.float32, torch.float64)
    if precise and has_csr(neighbours):
        if 1 < a.shape[1] < SAMPLED_WIDTH and a.dtype is torch.float32:
            a, b = (F.pad(one, (0, SAMPLED_WIDTH - one.shape[1])) for one in (a, b))
        edges = csr(neighbours, a.new_zeros(neighbours.num_edges), neighbours.col.dtype)
        return torch.sparse.sampled_addmm(edges, a.contiguous(), b.t(), beta=0.0, out=edges).values()
    step = max(1, CHUNK_NUMBERS // max(a.shape[1], 1))
    out = a.new_empty(neighbours.num_edges)
    for start in range(0, neighbours.num_edges, step):
        piece = slice(start, start + step)
        product = a.index_select(0, neighbours.row[piece]).mul_(b.index_select(0, neighbours.col[piece]))
        torch.sum(product, dim=1, out=out[piece])
    return out


def segment_sum(values: Tensor, neighbours: Neighbours, order: Tensor | None = None) -> Tensor:
    """The sum of `values` (E,) or (E, H) over the edges of each target, (N,) or (N, H); 0 without edges.

    The values are in the order of `neighbours.col`; or in any, and `order` (E,) has their positions.
    """
    if recorded(values) or transformed(values):
        return scattered(values if order is None else values.index_select(0, order), neighbours)
    if values.shape[0] == 0 or values.numel() == 0:
        return values.new_zeros(neighbours.num_nodes, *values.shape[1:])
    passes = triton_for(values)
    if passes is not None:
        if order is not None and order is not neighbours.permutation:
            values, order = values.index_select(0, order), None
        rows = neighbours.of_edges if order is None else neighbours.of_given_edges
        summed = passes.weighted_sum(values.detach().reshape(values.shape[0], -1), rows)
        return summed.view(-1, *values.shape[1:])
    precise = values.dtype in (torch.float32, torch.float64)  # in others segment_reduce adds in the type of the values
    if precise and values.shape[1:].numel() == 1:
        values = values if order is None else values.index_select(0, order)
        return torch.segment_reduce(values, "sum", offsets=neighbours.offsets, unsafe=True)
    order = neighbours.positions if order is None else order
    rows = values.reshape(values.shape[0], -1)
    summed = torch.embedding_bag(rows, order, neighbours.rowptr, False, 0, False, None, include_last_offset=True)[0]
    return summed.view(-1, *values.shape[1:])


def segment_max(values: Tensor, neighbours: Neighbours) -> Tensor:
    """The largest of `values` (E,) or (E, H) over the edges of each target, (N,) or (N, H); -inf without edges.

    The values are in the order of `neighbours.col`.
    """
    if values.numel() == 0:
        return values.new_full((neighbours.num_nodes, *values.shape[1:]), -torch.inf)
    return torch.segment_reduce(values.contiguous(), "max", offsets=neighbours.offsets, unsafe=True)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor | None, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return unrecorded_sum(x, neighbours, weight)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        neighbours: Neighbours = ctx.neighbours
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            back = neighbours.transposed
            weight = None if weight is None else weight.index_select(0, back.permutation)
            grad_x = weighted_sum_sorted(grad, back, weight)
        if ctx.needs_input_grad[1]:
            grad_weight = edge_products(grad, x, neighbours)
        return grad_x, grad_weight, None


def has_csr(neighbours: Neighbours) -> bool:
    """Can torch hold the graph as a sparse matrix? With more edges than pairs of nodes it cuts the indices."""
    return neighbours.num_edges <= neighbours.num_nodes * neighbours.num_sources


def csr(neighbours: Neighbours, values: Tensor, index: torch.dtype) -> Tensor:
    """The graph as torch's sparse matrix (N, num_sources) with indices of the type `index`, int32 or int64.

    `values` (E,) are in the order of `neighbours.col`.
    """
    _warn_of_csr()
    places = neighbours.rowptr.to(index), neighbours.col.to(index)
    size = (neighbours.num_nodes, neighbours.num_sources)
    return torch.sparse_csr_tensor(*places, values, size=size, check_invariants=False)


@functools.cache
def _warn_of_csr() -> None:
    """torch warns once in a process that sparse CSR is in beta; here that is suppressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.zeros(1, 1).to_sparse_csr()
