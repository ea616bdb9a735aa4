"""OpenVINO graphs built by hand for blocks of a SAGE layer that sum over neighbours, and what they read.

- `bag`: one EmbeddingBagOffsets over sorted edges, which takes the means itself where the block does. Where it begins
  with the gather, x goes straight into the sums and the E x F messages are never in memory. Dynamic shapes, without
  weights: with them the CPU plugin wants static ones. The sums or means that it writes have a row more than there are
  nodes; cutting it off is left to a view of the result, because a slice in the graph copies all others.
- `dense`: one product with the adjacency matrix, as GraNNite (arXiv 2502.06921) has it for NPUs. Dynamic or static.

In place of `edge_index` they read what `prepared` makes, once for a graph:

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
import openvino as ov
import torch
from openvino import opset13 as op
from openvino import opset15

from gnnlab.errors import GnnlabError
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.workloads.staged import StagedLayer

FORMS = ("bag", "dense")
GATHER, MESSAGE, SUM, COUNT, NORMALIZE, TRANSFORM, ACTIVATE = range(1, 8)
INDICES = ("rowptr", "col", "order")
PREPARED = (*INDICES, "adjacency")
DENSE_NODES = 4096  # an adjacency matrix of 64 MiB


def reads(layer: StagedLayer, first: int, last: int, form: str) -> tuple[str, ...]:
    """The inputs of the graph of this block, in order.

    Raises:
        GnnlabError: a block that needs no hand-built graph, or a form that it cannot have.
    """
    if layer.name != "sage" or form not in FORMS:
        raise GnnlabError(f"{layer.name} as {form}: hand-built graphs are {' and '.join(FORMS)} of a sage layer")
    sums, counts = first <= SUM <= last, first <= COUNT <= last
    if not sums and not counts:
        raise GnnlabError(f"stages {first}-{last} sum over no neighbours; export them by openvino or onnx")
    if form == "dense" and sums and first > GATHER:
        raise GnnlabError(
            f"stages {first}-{last} as dense: the product with the adjacency begins with the gather, stage 1"
        )
    block = layer.block(first, last)
    graph = ["adjacency"] if form == "dense" else ["rowptr"]
    if form == "bag" and sums:
        graph.append("col" if first == GATHER else "order")
    kept = [name for name in block.reads if name != "edge_index" and name not in block.shape_only]
    return (*kept, *graph)


def build(layer: StagedLayer, first: int, last: int, form: str, size: tuple[int, int] | None = None) -> ov.Model:
    """The graph of the stages `first`..`last`; its inputs are `reads(...)`. `size` (nodes, edges) makes it static.

    Raises:
        GnnlabError: as `reads`; or bags of static size.
    """
    names = reads(layer, first, last, form)
    if form == "bag" and size is not None:
        raise GnnlabError("bags have dynamic shapes; for static ones take the form dense or another exporter")
    nodes, edges = size or (-1, -1)
    types = {name: np.int32 if name in INDICES else np.float32 for name in names}
    given = {name: op.parameter(_shape(layer, name, nodes, edges), types[name], name=name) for name in names}
    known: dict[str, ov.Node] = dict(given)
    for number in range(first, last + 1):
        if number >= SUM:
            known[layer.stages[number - 1].writes] = _stage(number, known, layer, first, form)
    results = [known[name] for name in layer.block(first, last).writes]
    model = ov.Model(results, [given[name] for name in names], f"{layer.name} {first}-{last} {form}")
    for place, name in enumerate(names):
        model.input(place).get_tensor().set_names({name})
    return model


def prepared(names: Iterable[str], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of `PREPARED` that are among `names`, from `edge_index` (2, E) and the rows of `x` (N).

    Raises:
        GnnlabError: a graph without edges, or with too many nodes for a dense matrix.
    """
    wanted = set(names) & set(PREPARED)
    if not wanted:
        return {}
    edge_index, nodes = torch.as_tensor(values["edge_index"]), int(values["x"].shape[0])
    if edge_index.shape[1] == 0:
        raise GnnlabError("a graph without edges has no bags; use the models that read edge_index")
    made = {"adjacency": adjacency(edge_index, nodes)} if "adjacency" in wanted else {}
    if indices := wanted & set(INDICES):
        neighbours = Neighbours.prepare(edge_index, nodes)
        made |= {name: getattr(neighbours, name).int().numpy() for name in indices}
    # the ghost's index, behind those of the edges
    return {name: np.append(a, np.int32(0)) if name in ("col", "order") else a for name, a in made.items()}


def adjacency(edge_index: torch.Tensor, nodes: int) -> np.ndarray:
    """Edges from j to i, counted, (N, N) float32. Raises `GnnlabError` above `DENSE_NODES`."""
    if nodes > DENSE_NODES:
        raise GnnlabError(f"a dense adjacency matrix of {nodes} nodes is too large; at most {DENSE_NODES}")
    flat = torch.bincount(edge_index[1] * nodes + edge_index[0], minlength=nodes * nodes)
    return flat.view(nodes, nodes).float().numpy()


def _stage(number: int, known: dict[str, ov.Node], layer: StagedLayer, first: int, form: str) -> ov.Node:
    """What a stage from the sum on writes, in a block that begins with stage `first`."""
    bags = form == "bag" and first <= SUM  # then means are those of bags, with the ghost's row
    if number == SUM:
        return _bags(known, first, "sum") if bags else op.matmul(known["adjacency"], known["x"], False, False)
    if number == COUNT:
        return _degree(known, form)
    if number == NORMALIZE:
        if bags:
            return _bags(known, first, "mean")
        counts = op.maximum(known["counts"], op.constant(np.array(1, np.float32)))
        return op.divide(known["sums"], op.unsqueeze(counts, op.constant(np.array(1, np.int32))))
    if number == ACTIVATE:
        return op.relu(known["hidden"])
    module = layer.stages[TRANSFORM - 1].module
    own = op.matmul(known["x"], op.constant(module.lin_r.weight.numpy()), False, True)
    means = _slice(known["means"], 0, -1) if bags else known["means"]
    mean = op.matmul(means, op.constant(module.lin_l.weight.numpy()), False, True)
    return op.add(op.add(mean, op.constant(module.lin_l.bias.numpy())), own)


def _bags(known: dict[str, ov.Node], first: int, reduction: str) -> ov.Node:
    """Sums or means over neighbours, (N + 1, F); of empty bags 0. The last row is the ghost's."""
    rows, index = ("x", "col") if first == GATHER else ("x_j" if first == MESSAGE else "messages", "order")
    return opset15.embedding_bag_offsets(known[rows], known[index], known["rowptr"], reduction=reduction)


def _degree(known: dict[str, ov.Node], form: str) -> ov.Node:
    """Edges into each node, (N) float32."""
    if form == "dense":
        return op.reduce_sum(known["adjacency"], np.array([1], np.int32), False)
    rowptr = known["rowptr"]
    return op.convert(op.subtract(_slice(rowptr, 1, 2**31 - 1), _slice(rowptr, 0, -1)), "f32")


def _slice(vector: ov.Node, start: int, stop: int) -> ov.Node:
    bounds = (np.array([number], np.int32) for number in (start, stop, 1, 0))
    return op.slice(vector, *(op.constant(bound) for bound in bounds))


def _shape(layer: StagedLayer, name: str, nodes: int, edges: int) -> list[int]:
    if name in INDICES:
        return [-1]
    return [nodes, nodes] if name == "adjacency" else list(layer.values[name].shape(nodes, edges))
