"""Export blocks of a layer, each checked before anyone may measure it.

    made = export(layer, 3, 3, exporter="onnx", folder=folder)       # dynamic shapes
    made = export(layer, 6, 6, exporter="openvino", folder=folder, size=(1000, 5000))
    export_all(layer, sizes, folder)                                 # what the stage campaign runs

| exporter | writes | sums over targets by |
|---|---|---|
| `onnx` | ONNX by torch.onnx.export(dynamo=True) | index_add (scatter_add) |
| `openvino` | IR by openvino.convert_model of the torch program | scatter_add (index_add, which it cannot convert) |
| `openvino-onnx` | IR by openvino.convert_model of the ONNX | index_add (scatter_add) |
| `handbuilt` | IR of a graph built by hand, for sums over neighbours | bag (dense) |
| `onnx-legacy` | ONNX by the TorchScript exporter; to be shown, not used | index_add (scatter_add) |

A model that fails or computes something else is an outcome, not an error: its artefact says so.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openvino
import torch

from gnnlab.openvino_core import openvino_core
from gnnlab.stages.errors import StageError
from gnnlab.stages.export import checking, exporters, openvino_graphs
from gnnlab.stages.export.artefacts import FAILED, Artefact, Shelf
from gnnlab.workloads import gat_stages, graphsage, staged
from gnnlab.workloads.graphsage import random_inputs
from gnnlab.workloads.staged import REDUCTIONS, Block, StagedLayer

HANDBUILT, THROUGH_ONNX = "handbuilt", "openvino-onnx"
FORMS = {
    "onnx": REDUCTIONS,
    "openvino": REDUCTIONS[::-1],
    THROUGH_ONNX: REDUCTIONS,
    HANDBUILT: openvino_graphs.FORMS,
    "onnx-legacy": REDUCTIONS,
}  # the first is the default
PLAIN = "plain"  # the form of a block without sums over targets
STATIC = ("openvino", THROUGH_ONNX, HANDBUILT)
TRACED = (11, 29)  # nodes and edges of the graph that exporters see
_VERSIONS = ("torch", "openvino", "onnx", "onnxscript", "onnxruntime")
_CODE = (staged, graphsage, gat_stages, exporters, openvino_graphs, checking)

Graphs = Mapping[str, Mapping[str, Any]]


def export(
    layer: StagedLayer,
    first: int,
    last: int,
    *,
    exporter: str,
    folder: Path | Shelf,
    size: tuple[int, int] | None = None,
    form: str | None = None,
    graphs: Graphs | None = None,
    anew: bool = False,
) -> Artefact:
    """The model of the stages `first`..`last`, from `folder` if it is there unchanged, else exported and checked.

    `size` (nodes, edges) makes every dimension static; without it nodes and edges stay open. `form`: how it sums over
    targets, as in the table above. `graphs`: what it is checked on, `checking.check_graphs` unless told. With `anew` it
    is exported in any case, so that its time is of this call.

    Raises:
        StageError: an exporter, form or size that there is not.
        ModelError: stages that there are not.
    """
    shelf = folder if isinstance(folder, Shelf) else Shelf(folder)
    wanted = _wanted(layer, first, last, exporter, form, size)
    found = None if anew else shelf.get(wanted)
    if found is not None:
        return found
    start = time.perf_counter()
    try:
        files = _files(layer, wanted, shelf)
    except Exception as error:  # whatever a converter raises is the model's fate, not ours
        files, verdict = {}, checking.Verdict(FAILED, checking.reason_of(error))
    else:
        graphs = graphs or checking.check_graphs(layer, size)
        verdict = checking.verdict(wanted, files, layer, checking.native(files), graphs)
    fate = {"status": verdict.status, "reason": verdict.reason, "parity_error": verdict.error}
    return shelf.put(replace(wanted, **fate, seconds=time.perf_counter() - start), files)


def export_all(
    layer: StagedLayer,
    sizes: Sequence[tuple[int, int]],
    folder: Path,
    *,
    blocks: Sequence[tuple[int, int]] = (),
    static_sums: bool = False,
    anew: bool = False,
) -> list[Artefact]:
    """What the stage campaign runs: each stage as ONNX and as IR of dynamic shapes, and as static IR at every size.

    Static ones are for NPUs, so stages that sum over targets, which the study's NPU could not run, are left out unless
    `static_sums`. `blocks`: fused blocks to export as well, dynamic. Blocks that sum over neighbours
    come hand-built, too. With `anew` every model is exported by this call, also one that is there unchanged and one
    that equals another size's.
    """
    shelf = Shelf(folder)
    singles = [(number, number) for number in layer.numbers]
    graphs = checking.check_graphs(layer)
    made = [
        export(layer, *block, exporter=exporter, folder=shelf, graphs=graphs, anew=anew)
        for block in dict.fromkeys([*singles, *blocks])
        for exporter in ("onnx", "openvino", HANDBUILT)
        if exporter != HANDBUILT or _can_be_built(layer, block)
    ]
    for size in dict.fromkeys(sizes):
        graphs = checking.check_graphs(layer, size)
        made += [
            export(layer, *block, exporter="openvino", folder=shelf, size=size, graphs=graphs, anew=anew)
            for block in singles
            if static_sums or not layer.block(*block).reduces
        ]
    return made


def _wanted(
    layer: StagedLayer, first: int, last: int, exporter: str, form: str | None, size: tuple[int, int] | None
) -> Artefact:
    """The artefact as it is asked for, with its key, before anything is made."""
    block, form = layer.block(first, last), _form(exporter, form)
    if size is not None and (exporter not in STATIC or form == "bag" or min(size) < 1):
        raise StageError(
            f"{exporter}, {form}, of size {size}: {', '.join(STATIC)} (dense) can be static, from 1 node and 1 edge"
        )
    if exporter == HANDBUILT:
        reads, sized_by = openvino_graphs.reads(layer, first, last, form), ()
    else:
        form = form if block.reduces else PLAIN
        sized_by = () if size else tuple(name for name in block.reads if name in block.shape_only)
        reads = tuple(name for name in block.reads if size is None or name not in block.shape_only)
    nodes, edges = size or (None, None)
    place = {"layer": layer.name, "features": layer.features, "first": first, "last": last, "nodes": nodes}
    made_of = {"exporter": exporter, "form": form, "reads": reads, "writes": block.writes, "sized_by": sized_by}
    key = _key(block, size, {**place, **made_of})
    return Artefact(key=key, edges=edges, **place, **made_of)


def _form(exporter: str, form: str | None) -> str:
    if exporter not in FORMS:
        raise StageError(f"exporter {exporter!r} is not known; one of {', '.join(FORMS)}")
    if form is not None and form not in FORMS[exporter]:
        raise StageError(f"exporter {exporter}: no form {form!r}; one of {', '.join(FORMS[exporter])}")
    return form or FORMS[exporter][0]


def _key(block: Block, size: tuple[int, int] | None, made_of: dict[str, Any]) -> str:
    """A digest of all that a model is made from. Of a static size only the dimensions that the block has count, so that
    models at different sizes may be one."""
    values = {*block.reads, *block.writes}
    shapes = {} if size is None else {name: block.values[name].shape(*size) for name in sorted(values)}
    made_of = {name: value for name, value in made_of.items() if name != "nodes"}
    made_of |= {"weights": block.fingerprint(), "shapes": shapes, "versions": _versions(), "code": _code()}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _files(layer: StagedLayer, wanted: Artefact, shelf: Shelf) -> exporters.Files:
    size = None if wanted.nodes is None else (wanted.nodes, wanted.edges)
    if wanted.exporter == HANDBUILT:
        return exporters.ir_files(openvino_graphs.build(layer, wanted.first, wanted.last, wanted.form, size))
    if size is not None:
        return exporters.ir_files(_static(layer, wanted, shelf))
    chosen = layer if wanted.form == PLAIN else layer.reduced_by(wanted.form)
    block = chosen.block(wanted.first, wanted.last)
    if wanted.exporter == THROUGH_ONNX:
        return exporters.ir_from_onnx(block, _source(layer, wanted, "onnx", shelf).files()[".onnx"])
    with torch.no_grad():
        values = chosen.trace(**random_inputs(*TRACED, layer.features))
    return exporters.TRACING[wanted.exporter](block, [values[name] for name in block.reads])


def _static(layer: StagedLayer, wanted: Artefact, shelf: Shelf) -> openvino.Model:
    """The dynamic model with every dimension set; what was read for its shape alone is no longer read."""
    dynamic = _source(layer, wanted, wanted.exporter, shelf)
    model = openvino_core().read_model(dynamic.path)
    size = (wanted.nodes, wanted.edges)
    model.reshape({name: list(layer.values[name].shape(*size)) for name in dynamic.reads})
    return exporters.without_inputs(model, dynamic.sized_by)


def _source(layer: StagedLayer, wanted: Artefact, exporter: str, shelf: Shelf) -> Artefact:
    """The dynamic model that another one is made from."""
    form = None if wanted.form == PLAIN else wanted.form
    source = export(layer, wanted.first, wanted.last, exporter=exporter, folder=shelf, form=form)
    if not source.ready:
        raise StageError(f"the model that it is made from is {source.status}: {source.reason}")
    return source


def _can_be_built(layer: StagedLayer, block: tuple[int, int]) -> bool:
    try:
        openvino_graphs.reads(layer, *block, form=openvino_graphs.FORMS[0])
    except StageError:
        return False
    return True


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    return {name: version(name) for name in _VERSIONS}


@lru_cache(maxsize=1)
def _code() -> str:
    digest = hashlib.sha256()
    for module in _CODE:
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()
