"""What notebook 04 asks of exported models: which are right, what padding wastes, what sorting the edges costs.

table = matrix(layer, folder, blocks=[(1, 5)])        # exporter x runtime x stage: right, wrong or failed
padding_race(graph, folder, budget_s=1)               # the same layer on one graph, padded to three sizes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data

from gnnlab.optimize.study import Case, Conditions, races, shown
from gnnlab.profiling.timing import measure
from gnnlab.stages.errors import StageError
from gnnlab.stages.export import checking, graph_inputs
from gnnlab.stages.export.artefacts import READY, Artefact, Shelf
from gnnlab.stages.export.checking import ONNXRUNTIME, OPENVINO
from gnnlab.stages.export.export import HANDBUILT, THROUGH_ONNX, export
from gnnlab.stages.export.padding import POLICIES, bucket, crop
from gnnlab.workloads.graphsage import LAYERS, random_inputs
from gnnlab.workloads.staged import StagedLayer

__all__ = ["COMBINATIONS", "matrix", "models", "padding_race", "preparation", "shown", "stages", "waste"]

# exporter, how it sums over targets, runtime: what is held against torch
COMBINATIONS = (
    ("onnx", "index_add", ONNXRUNTIME),
    ("onnx", "index_add", OPENVINO),
    ("onnx", "scatter_add", ONNXRUNTIME),
    ("openvino", "scatter_add", OPENVINO),
    ("openvino", "index_add", OPENVINO),
    (THROUGH_ONNX, "index_add", OPENVINO),
    (HANDBUILT, "bag", OPENVINO),
    (HANDBUILT, "dense", OPENVINO),
    ("onnx-legacy", "index_add", ONNXRUNTIME),
    ("onnx-legacy", "index_add", OPENVINO),
    ("onnx-legacy", "scatter_add", ONNXRUNTIME),
)
RIGHT = "right"
IR_EXPORTERS = ("openvino", THROUGH_ONNX)


def matrix(
    layer: StagedLayer,
    folder: Path,
    *,
    blocks: Sequence[tuple[int, int]] = (),
    combinations: Iterable[tuple[str, str, str]] = COMBINATIONS,
) -> pd.DataFrame:
    """Each stage and block by each exporter in each runtime, on other graphs than the traced one.

    Columns: combination, exporter, form, runtime, stage (`3 REDUCE_SUM`), status (right, wrong, failed), error
    (relative, NaN where there is none), reason. What a combination does not offer has no row.
    """
    shelf, graphs = Shelf(folder), checking.check_graphs(layer)
    rows = []
    for exporter, form, runtime in combinations:
        for block in [*((n, n) for n in layer.numbers), *blocks]:
            try:
                made = export(layer, *block, exporter=exporter, form=form, folder=shelf, graphs=graphs)
            except StageError:  # not offered
                continue
            found = _judged(made, layer, runtime, graphs)
            combination = f"{exporter}, {form}: {runtime.removesuffix(' CPU')}"
            label = {"combination": combination, "exporter": exporter, "form": form}
            rows.append({**label, "runtime": runtime, "stage": stage_label(layer, *block), **found})
    return pd.DataFrame(rows)


def stages(layer: StagedLayer, nodes: int, edges: int) -> pd.DataFrame:
    """The layer's stages at one size.

    Columns: stage, reads, writes, KiB (what it reads and writes), cut KiB (what goes along where the layer is cut
    behind it), MFLOP.
    """
    rows = []
    for stage in layer.stages:
        n = stage.number
        kib = {"KiB": layer.bytes_moved(n, nodes, edges) / 1024, "cut KiB": layer.cut_bytes(n, nodes, edges) / 1024}
        named = {"stage": stage_label(layer, n, n), "reads": ", ".join(stage.reads), "writes": stage.writes}
        rows.append({**named, **kib, "MFLOP": layer.flops(n, n, nodes, edges) / 1e6})
    return pd.DataFrame(rows).round(1)


def stage_label(layer: StagedLayer, first: int, last: int) -> str:
    """`3 REDUCE_SUM`, or `1-5`."""
    return f"{first} {layer.stages[first - 1].name}" if first == last else f"{first}-{last}"


def _judged(
    made: Artefact, layer: StagedLayer, runtime: str, graphs: dict[str, dict[str, np.ndarray]]
) -> dict[str, Any]:
    files = made.files()
    if made.path is None or runtime == checking.native(files):  # judged when it was exported
        status, error, reason = made.status, made.parity_error, made.reason
    else:
        verdict = checking.verdict(made, files, layer, runtime, graphs)
        status, error, reason = verdict.status, verdict.error, verdict.reason
    return {
        "status": RIGHT if status == READY else status,
        "error": np.nan if error is None else error,
        "reason": reason,
    }


def models(artefacts: Sequence[Artefact]) -> pd.DataFrame:
    """What was exported, a row for each exporter and kind of shapes.

    Columns: exporter, shapes, models, files (equal models may share theirs), mib, made (by this run), seconds (that
    those took to export and check), ready.
    """
    rows = []
    kinds = dict.fromkeys((a.exporter, "dynamic" if a.dynamic else "static") for a in artefacts)
    for exporter, shapes in kinds:
        members = [a for a in artefacts if (a.exporter, "dynamic" if a.dynamic else "static") == (exporter, shapes)]
        sizes = {a.path: a.size_bytes for a in members if a.path is not None}
        rows.append(
            {
                "exporter": exporter,
                "shapes": shapes,
                "models": len(members),
                "files": len(sizes),
                "mib": sum(sizes.values()) / 2**20,
                "made": sum(a.fresh for a in members),
                "seconds": sum(a.seconds for a in members if a.fresh),
                "ready": sum(a.ready for a in members),
            }
        )
    return pd.DataFrame(rows)


def waste(layer: StagedLayer, sizes: Iterable[tuple[int, int]]) -> pd.DataFrame:
    """What padding to a bucket adds: for each policy and size the bucket, and the share of it that is padding.

    Columns: policy, size, bucket, waste (%, of the bytes that the stages together read and write).
    """
    rows = []
    for nodes, edges in sizes:
        for policy in POLICIES:
            wide = bucket(nodes, edges, policy)
            own, padded = (sum(layer.bytes_moved(n, *size) for n in layer.numbers) for size in ((nodes, edges), wide))
            row = {"policy": policy, "size": f"{nodes}/{edges}", "bucket": f"{wide[0]}/{wide[1]}"}
            rows.append({**row, "waste": 100 * (1 - own / padded)})
    return pd.DataFrame(rows)


def padding_race(name: str, graph: Data, folder: Path, *, budget_s: float) -> pd.DataFrame:
    """The layer `name` on one graph: models of static shapes, exact and padded, raced against that of dynamic shapes.

    All on OpenVINO's CPU plugin with one thread; the ghost's rows are cropped before results are compared. Padding
    itself is not in the time. A row for each form, as `optimize.study.races` has them, with the `bucket` of each.
    """
    layer = LAYERS[name](graph.num_features)
    with torch.no_grad():
        traced = layer.trace(graph.x.float(), graph.edge_index)
    values = {value: traced[value].numpy() for value in (*layer.inputs, layer.result)}
    nodes, edges = int(graph.num_nodes), int(graph.num_edges)
    wide = {policy: bucket(nodes, edges, policy) for policy in POLICIES}
    forms = {f"static, {policy}": _form(layer, folder, values, size) for policy, size in wide.items()}
    label = {"graph": str(graph.get("name") or "graph"), "size": f"{nodes}/{edges}"}
    case = Case(label, _form(layer, folder, values, None), forms)
    now = Conditions.now()
    table = races([case], budget_s=budget_s, installed=now, ours=now)
    buckets = {f"static, {policy}": f"{size[0]}/{size[1]}" for policy, size in wide.items()}
    return table.assign(bucket=table["form"].map(buckets).fillna(label["size"]))


def _form(layer: StagedLayer, folder: Path, values: dict[str, np.ndarray], size: tuple[int, int] | None) -> Any:
    """The whole layer in OpenVINO, by the first of its exporters that gets it right."""
    made = (export(layer, 1, len(layer.stages), exporter=e, folder=folder, size=size) for e in IR_EXPORTERS)
    ready = next((artefact for artefact in made if artefact.ready), None)
    if ready is None:
        raise StageError(f"{layer.name}: no exporter of {', '.join(IR_EXPORTERS)} gets the whole layer right")
    fed = checking.feeds(ready, layer, values)
    return partial(_cropped, layer, checking.loaded(ready.files(), OPENVINO), fed, values)


def _cropped(layer: StagedLayer, run: checking.Run, fed: dict[str, np.ndarray], values: dict[str, np.ndarray]) -> Any:
    counts = (values["x"].shape[0], values["edge_index"].shape[1])
    return crop(layer, {layer.result: run(fed)[0]}, *counts)[layer.result]


def preparation(sizes: Iterable[tuple[int, int]], *, budget_s: float) -> pd.DataFrame:
    """What the inputs of hand-built models cost before the first sum: sorting the edges, filling the matrix.

    Columns: size, input, ms, ms_low, ms_high, n, samples (n,), notes. Matrices are left out where N is too large for
    one.
    """
    rows = []
    for nodes, edges in sizes:
        values = {name: tensor.numpy() for name, tensor in random_inputs(nodes, edges, 1).items()}
        for name, inputs in (("sorted edges", ("rowptr", "col")), ("adjacency matrix", ("adjacency",))):
            if "adjacency" in inputs and nodes > graph_inputs.DENSE_NODES:
                continue
            found = measure(partial(graph_inputs.prepared, inputs, values), budget_s=budget_s)
            low, high = found.ci_ms
            row = {"size": f"{nodes}/{edges}", "input": name, "ms": found.median_ms, "ms_low": low, "ms_high": high}
            rows.append({**row, "n": found.n, "samples": found.samples_ms, "notes": "; ".join(found.notes)})
    return pd.DataFrame(rows)
