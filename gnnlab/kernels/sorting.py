"""Edges grouped by a node: what preparing a graph, its transpose and its self-loops come down to.

On a CPU one counting pass (scipy's conversion of compressed rows to compressed columns, whose time is linear) takes a
third to a seventh of the time of a stable sort and gives the same. On other devices torch sorts.
"""

from __future__ import annotations

import torch
from scipy.sparse import csr_array
from torch import Tensor

_INT32 = 2**31 - 1


def index_type(num_nodes: int, num_edges: int) -> torch.dtype:
    """int32 where nodes and edges can be numbered in it: half the bytes of int64 to read."""
    return torch.int32 if max(num_nodes, num_edges) < _INT32 else torch.int64


def group(node: Tensor, other: Tensor, num_nodes: int, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(rowptr (num_nodes + 1), `other` grouped by `node`, order), all of type `kind`.

    `node` and `other` (E,): the two ends of each edge; edge `order[k]` of those given stands at place k. Edges of one
    node keep their order. Every number of `node` must be within 0 .. num_nodes - 1: that is not checked.
    """
    if node.device.type != "cpu":
        return _group_by_sort(node, other, num_nodes, kind)
    starts = torch.arange(node.shape[0] + 1, dtype=kind)  # one compressed row an edge, with one entry
    rowptr, order, other = _flip(starts, node.to(kind), other.to(kind), num_nodes)
    return rowptr, other, order


def transpose(rowptr: Tensor, col: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """(colptr (num_cols + 1), row of each entry grouped by column, order) of compressed rows, in their type."""
    kind = rowptr.dtype
    if rowptr.device.type != "cpu":
        return _group_by_sort(col, rows(rowptr, col.shape[0]), num_cols, kind)
    return _flip(rowptr, col, torch.arange(col.shape[0], dtype=kind), num_cols)


def rows(rowptr: Tensor, num_edges: int) -> Tensor:
    """The row of each entry of compressed rows, (E,) in the type of `rowptr`."""
    nodes = torch.arange(rowptr.shape[0] - 1, dtype=rowptr.dtype, device=rowptr.device)
    return repeated(nodes, rowptr.diff(), num_edges)


def repeated(values: Tensor, counts: Tensor, total: int) -> Tensor:
    """Each of `values` as many times as its count says, (total,)."""
    if values.device.type == "cpu":  # twice as fast as torch's
        return torch.from_numpy(values.numpy().repeat(counts.numpy()))
    return torch.repeat_interleave(values, counts, output_size=total)


def _flip(rowptr: Tensor, col: Tensor, data: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """(colptr, row of each entry, data of each entry) of compressed rows, in their type; repeated entries stay."""
    parts = data.numpy(), col.numpy(), rowptr.numpy()
    flipped = csr_array(parts, shape=(rowptr.shape[0] - 1, num_cols)).tocsc()
    colptr, row, data = map(torch.from_numpy, (flipped.indptr, flipped.indices, flipped.data))
    return colptr.to(rowptr.dtype), row.to(rowptr.dtype), data


def _group_by_sort(node: Tensor, other: Tensor, num_nodes: int, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    node, order = node.sort(stable=True)
    nodes = torch.arange(num_nodes + 1, device=node.device, dtype=node.dtype)
    rowptr = torch.searchsorted(node.contiguous(), nodes)
    return rowptr.to(kind), other.index_select(0, order).to(kind), order.to(kind)
