"""OpenVINO graphs built by hand for blocks of a SAGE layer that sum over neighbours, and what they read.

One EmbeddingBagOffsets over sorted edges takes the sums, or the means where the block does. Where it begins with the
gather, x goes straight into the sums and the E x F messages are never in memory. Shapes are dynamic: with weights the
CPU plugin wants static ones. Sums and means have a row more than there are nodes; a view of the result cuts it off,
because a slice in the graph copies all others.

In place of `edge_index` the graphs read what `preprocess` makes, once for a graph:

| input | shape | holds |
|---|---|---|
| `rowptr` | (N + 1), int32 | the edges of target i are rowptr[i] .. rowptr[i + 1] - 1 |
| `col` | (E + 1), int32 | their sources, then a 0 |
| `order` | (E + 1), int32 | where they stand in `edge_index`, then a 0 |

OpenVINO refuses a segment that begins where the indices end, as those of nodes without edges at the end of a graph do.
So there is one more index, and E at the end of `rowptr` begins a segment that holds it: a padding node's, whose row
nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as op
from openvino import opset15

from gnnlab.errors import GnnlabError
from gnnlab.workloads.staged import StagedLayer
from gnnswap.neighbours import Neighbours

GATHER, MESSAGE, SUM, COUNT, NORMALIZE, TRANSFORM, ACTIVATE = range(1, 8)
INDICES = ("rowptr", "col", "order")


def reads(layer: StagedLayer, first: int, last: int) -> tuple[str, ...]:
    """The inputs of the graph of a block, in order. Raises `GnnlabError`: a block that needs no hand-built graph."""
    block = layer.block(first, last)
    if not block.reduces:
        raise GnnlabError(f"stages {first}-{last} sum over no neighbours; export them by openvino or onnx")
    kept = [name for name in block.reads if name != "edge_index" and name not in block.shape_only]
    return *kept, "rowptr", *(["col" if first == GATHER else "order"] if first <= SUM <= last else [])


def build(layer: StagedLayer, first: int, last: int) -> ov.Model:
    """The graph of the stages `first`..`last`, of dynamic shapes; its inputs are `reads(...)`, whose errors it has."""
    names, block = reads(layer, first, last), layer.block(first, last)
    known: dict[str, ov.Node] = {}
    for name in names:
        shape, dtype = ([-1], np.int32) if name in INDICES else (list(layer.values[name].shape(-1, -1)), np.float32)
        known[name] = op.parameter(shape, dtype, name=name)
    inputs = list(known.values())
    for number in range(max(first, SUM), last + 1):
        known[layer.stages[number - 1].writes] = _stage(number, known, layer, first)
    model = ov.Model([known[name] for name in block.writes], inputs, f"{layer.name} {first}-{last}")
    for place, name in enumerate(names):
        model.input(place).get_tensor().set_names({name})
    return model


def preprocess(names: Iterable[str], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of `INDICES` that are among `names`, from `edge_index` (2, E) and the rows of `x` (N).

    Raises `GnnlabError`: a graph without edges.
    """
    edge_index, nodes = torch.as_tensor(values["edge_index"]), int(values["x"].shape[0])
    if edge_index.shape[1] == 0:
        raise GnnlabError("a graph without edges has nothing to sum; use the models that read edge_index")
    neighbours = Neighbours.prepare(edge_index, nodes)
    sorted_by = {"rowptr": neighbours.rowptr, "col": neighbours.col, "order": neighbours.permutation}
    arrays = {name: sorted_by[name].int().numpy() for name in names if name in INDICES}
    return {name: a if name == "rowptr" else np.append(a, np.int32(0)) for name, a in arrays.items()}


def _stage(number: int, known: dict[str, ov.Node], layer: StagedLayer, first: int) -> ov.Node:
    """What a stage from the sum on writes, in a block that begins with stage `first`."""
    padded = first <= SUM  # then means have the padding node's row
    if number == SUM:
        return _segment_sum(known, first, "sum")
    if number == COUNT:  # edges into each node, (N) float32
        return op.convert(op.subtract(_slice(known["rowptr"], 1, 2**31 - 1), _slice(known["rowptr"], 0, -1)), "f32")
    if number == NORMALIZE and padded:
        return _segment_sum(known, first, "mean")
    if number == NORMALIZE:
        return op.divide(known["sums"], op.unsqueeze(op.maximum(known["counts"], np.float32(1)), 1))
    if number == ACTIVATE:
        return op.relu(known["hidden"])
    module = layer.stages[TRANSFORM - 1].module
    means = _slice(known["means"], 0, -1) if padded else known["means"]
    mean = op.add(op.matmul(means, module.lin_l.weight.numpy(), False, True), module.lin_l.bias.numpy())
    return op.add(mean, op.matmul(known["x"], module.lin_r.weight.numpy(), False, True))


def _segment_sum(known: dict[str, ov.Node], first: int, reduction: str) -> ov.Node:
    """Sums or means over neighbours, (N + 1, F); of no edges 0. The last row is the padding node's."""
    rows, index = ("x", "col") if first == GATHER else ("x_j" if first == MESSAGE else "messages", "order")
    return opset15.embedding_bag_offsets(known[rows], known[index], known["rowptr"], reduction=reduction)


def _slice(vector: ov.Node, start: int, stop: int) -> ov.Node:
    return op.slice(vector, [start], [stop], [1], [0])
