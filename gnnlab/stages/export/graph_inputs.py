"""What hand-built models read in place of `edge_index`: the edges sorted by target, or the adjacency matrix.

    values |= prepared(artefact.reads, values)          # once for a graph; sorting is not part of a stage

| input | shape | holds |
|---|---|---|
| `rowptr` | (N + 1), int32 | the edges of target i are rowptr[i] .. rowptr[i + 1] - 1 |
| `col` | (E + 1), int32 | their sources, then a 0 |
| `order` | (E + 1), int32 | where they stand in `edge_index`, then a 0 |
| `adjacency` | (N, N), float32 | how many edges go from column j to row i |

OpenVINO refuses a bag that begins where the indices end, as those of nodes without edges at the end of a graph do, and
ends the last bag there. So there is one more index, and the number E at the end of `rowptr` begins a bag that holds it:
a ghost behind the nodes, whose row nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from gnnlab.kernels.neighbours import Neighbours
from gnnlab.stages.errors import StageError

PREPARED = ("rowptr", "col", "order", "adjacency")
DENSE_NODES = 4096  # an adjacency matrix of 64 MiB


def prepared(names: Iterable[str], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of `PREPARED` that are among `names`, from `edge_index` (2, E) and the rows of `x` (N).

    Raises:
        StageError: a graph without edges, or with too many nodes for a dense matrix.
    """
    wanted = set(names) & set(PREPARED)
    if not wanted:
        return {}
    edge_index, nodes = torch.as_tensor(values["edge_index"]), int(values["x"].shape[0])
    if edge_index.shape[1] == 0:
        raise StageError("a graph without edges has no bags; use the models that read edge_index")
    made = {"adjacency": adjacency(edge_index, nodes)} if "adjacency" in wanted else {}
    if wanted - {"adjacency"}:
        made |= _bags(edge_index, nodes)
    return {name: made[name] for name in wanted}


def adjacency(edge_index: torch.Tensor, nodes: int) -> np.ndarray:
    """Edges from j to i, counted, (N, N) float32. Raises `StageError` above `DENSE_NODES`."""
    if nodes > DENSE_NODES:
        raise StageError(f"a dense adjacency matrix of {nodes} nodes is too large; at most {DENSE_NODES}")
    flat = torch.bincount(edge_index[1] * nodes + edge_index[0], minlength=nodes * nodes)
    return flat.view(nodes, nodes).float().numpy()


def _bags(edge_index: torch.Tensor, nodes: int) -> dict[str, np.ndarray]:
    neighbours = Neighbours.prepare(edge_index, nodes)
    rowptr = neighbours.rowptr.int().numpy()
    ghost = np.zeros(1, np.int32)
    col = np.concatenate([neighbours.col.int().numpy(), ghost])
    order = np.concatenate([neighbours.order.int().numpy(), ghost])
    return {"rowptr": rowptr, "col": col, "order": order}
