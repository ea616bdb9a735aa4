"""Export blocks of a layer, each checked before anyone may measure it.

    export(layer, 3, 3, exporter="onnx", folder=folder)              # an `Artefact`, of dynamic shapes
    export(layer, 6, 6, exporter="openvino", folder=folder, size=(1000, 5000))
    export_all(layer, sizes, folder)                                 # what the stage campaign runs
    every_combination(layer, folder)                                 # which exporter is right where

| exporter | writes | sums over targets by |
|---|---|---|
| `onnx` | ONNX by torch.onnx.export(dynamo=True) | index_add (scatter_add) |
| `openvino` | IR by openvino.convert_model of the torch program | scatter_add (index_add, which it cannot convert) |
| `openvino-onnx` | IR by openvino.convert_model of the ONNX | index_add (scatter_add) |
| `handbuilt` | IR of a graph built by hand, for sums over neighbours | bag |
| `onnx-legacy` | ONNX by the TorchScript exporter; to be shown, not used | index_add (scatter_add) |

A model that fails or computes something else is an outcome, not an error: its artefact says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import openvino
import pandas as pd
import torch

from gnnlab import machine
from gnnlab.errors import GnnlabError
from gnnlab.export import artefacts, checking, exporters, openvino_graphs
from gnnlab.export.artefacts import FAILED, READY, WRONG, Artefact
from gnnlab.export.checking import ONNXRUNTIME, OPENVINO
from gnnlab.openvino_core import openvino_core
from gnnlab.workloads.graphsage import random_inputs
from gnnlab.workloads.staged import REDUCTIONS, StagedLayer

HANDBUILT, THROUGH_ONNX = "handbuilt", "openvino-onnx"
FORMS = {
    "onnx": REDUCTIONS,
    "openvino": REDUCTIONS[::-1],
    THROUGH_ONNX: REDUCTIONS,
    HANDBUILT: (openvino_graphs.FORM,),
    "onnx-legacy": REDUCTIONS,
}  # the first is the default
PLAIN = "plain"  # the form of a block without sums over targets
CAN_BE_STATIC = ("openvino", THROUGH_ONNX)
TRACED = (11, 29)  # nodes and edges of the graph that exporters see
# exporter, how it sums over targets, runtime: what is held against torch
COMBINATIONS = (
    ("onnx", "index_add", ONNXRUNTIME),
    ("onnx", "index_add", OPENVINO),
    ("onnx", "scatter_add", ONNXRUNTIME),
    ("openvino", "scatter_add", OPENVINO),
    ("openvino", "index_add", OPENVINO),
    (THROUGH_ONNX, "index_add", OPENVINO),
    (HANDBUILT, "bag", OPENVINO),
    ("onnx-legacy", "index_add", ONNXRUNTIME),
    ("onnx-legacy", "index_add", OPENVINO),
    ("onnx-legacy", "scatter_add", ONNXRUNTIME),
)
OUTCOMES = {READY: "ok", WRONG: "failed", FAILED: "unavailable"}  # as statuses of the lab's table
S4_MODELS = (14, 105)  # dynamic and static ones, of which S4 says how long they take


def export(
    layer: StagedLayer,
    first: int,
    last: int,
    *,
    exporter: str,
    folder: Path,
    size: tuple[int, int] | None = None,
    form: str | None = None,
    anew: bool = False,
) -> Artefact:
    """The model of the stages `first`..`last`, from `folder` if it is there, made from the same, else exported and
    checked.

    `size` (nodes, edges) makes every dimension static; without it nodes and edges stay open. `form`: how it sums over
    targets, as in the table above. With `anew` it is exported in any case, so that its time is of this call.

    Raises `GnnlabError`: an exporter, form, size or stages that there are not; or the disk refuses.
    """
    wanted = _wanted(layer, first, last, exporter, form, size)

    def build(empty: Path) -> Artefact:
        try:
            path = _written(layer, wanted, folder, empty)
        except OSError:  # the disk, not the model
            raise
        except Exception as error:  # whatever a converter raises is recorded as the model's failure
            return checking.failed(wanted, error)
        return checking.check(wanted, path, layer, checking.native(path))

    made_from = {
        "block": [wanted.name, wanted.reads, wanted.writes, wanted.sized_by],
        "weights": layer.block(first, last).fingerprint(),
        "versions": machine.versions("torch", "openvino", "onnx", "onnxscript", "onnxruntime"),
    }
    return artefacts.make(folder, wanted, made_from, build, anew=anew)


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

    Static ones are for NPUs, so what sums over targets, which the study's NPU could not run, is left out unless
    `static_sums`. `blocks`: fused blocks to export as well. Blocks that sum over neighbours come hand-built,
    too. With `anew` every model is exported by this call, also one that is there unchanged.
    """
    every = list(dict.fromkeys([*layer.blocks(["stages"]), *blocks]))
    summing = [block for block in every if layer.block(*block).reduces]
    wanted = [(block, exporter, None) for block in every for exporter in ("onnx", "openvino")]
    wanted += [(block, HANDBUILT, None) for block in summing if layer.name == openvino_graphs.LAYER]
    static = every if static_sums else [block for block in every if block not in summing]
    wanted += [(block, "openvino", size) for size in dict.fromkeys(sizes) for block in static]
    return [export(layer, *block, exporter=e, folder=folder, size=size, anew=anew) for block, e, size in wanted]


def every_combination(layer: StagedLayer, folder: Path, *, blocks: Sequence[tuple[int, int]] = ()) -> pd.DataFrame:
    """Each stage and block by each exporter in each runtime, on other graphs than the traced one.

    Rows of the lab's table: form (exporter, how it sums, runtime), stage (`3 REDUCE_SUM`), status (ok; failed: it
    computes something else; unavailable: it cannot be converted or loaded), reason, value (the relative error). What a
    combination does not offer has no row.
    """
    rows = []
    for exporter, form, runtime in COMBINATIONS:
        for block in dict.fromkeys([*layer.blocks(["stages"]), *blocks]):
            try:
                model = export(layer, *block, exporter=exporter, form=form, folder=folder)
            except GnnlabError:  # not offered
                continue
            if model.path and runtime != checking.native(model.path):  # in its own it was checked when it was exported
                model = checking.check(model, model.path, layer, runtime)
            row = {"form": f"{exporter}, {form}: {runtime}", "exporter": exporter, "stage": layer.label(*block)}
            row |= {"status": OUTCOMES[model.status], "reason": model.reason, "parity_error": model.parity_error}
            package = "onnxruntime" if runtime == ONNXRUNTIME else "openvino"
            row["runtime"] = f"{runtime} {machine.version(package)}"
            rows.append({**row, "value": model.parity_error, "n": 1})
    return pd.DataFrame(rows)


def in_words(judged: pd.DataFrame) -> list[str]:
    """What `every_combination` found, a sentence each: which exporters, with which sum over targets, are right in every
    runtime, which compute something else and at which stages, which cannot be converted or loaded."""
    judged = judged.assign(by=judged["form"].str.replace(r", (\w+): .*", r" with \1", regex=True))
    right = [by for by, rows in judged.groupby("by", sort=False) if (rows["status"] == "ok").all()]
    sentences = [f"**Right at every stage, in every runtime that reads it:** {'; '.join(right) or 'none'}."]
    words = {"failed": "Wrong, without an error", "unavailable": "Cannot be converted or loaded"}
    for status, beginning in words.items():
        rows = judged[judged["status"] == status]
        off = rows["parity_error"].max()
        worst = f", off by up to {100 * off:.0f} % of the largest magnitude" if status == "failed" and off > 0 else ""
        stages = rows.groupby("by", sort=False)["stage"].unique().map(", ".join)
        parts = "; ".join(f"{by} (stages {at})" for by, at in stages.items())
        sentences += [f"**{beginning}:** {parts}{worst}."] if parts else []
    return sentences


def inventory(artefacts: Sequence[Artefact]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """How many models, how long one took, and how long as many as S4's took: rows keyed by exporter and shapes.

    Times are of models that this run made and found right; of those that were there already there is none.
    """
    counts, times = [], []
    for exporter, dynamic in dict.fromkeys((a.exporter, a.dynamic) for a in artefacts):
        members = [a for a in artefacts if (a.exporter, a.dynamic) == (exporter, dynamic)]
        key = {"exporter": exporter, "shapes": "dynamic" if dynamic else "static"}
        numbers = [
            ("models", len(members), "models", "neither"),
            ("ready", sum(a.ready for a in members), "models", "higher"),
            ("size on disk", sum(a.size_bytes for a in members) / 2**20, "MiB", "neither"),
        ]
        counts += [key | dict(zip(("form", "value", "unit", "better"), one, strict=True)) for one in numbers]
        seconds = [a.seconds for a in members if a.fresh and a.ready]
        notes = f"a sample for each model; this run made {len(seconds)} of {len(members)} and they are right"
        row = {**key, "form": ", ".join(key.values()), "samples": seconds, "notes": notes, "status": "ok"}
        reason = f"this run made none of {len(members)} that is right; set anew: true"
        times.append(row if seconds else {**row, "status": "unavailable", "reason": reason})
    # the fused blocks and the hand-built graphs, which S4 does not have, do not count
    asked = [a for a in artefacts if a.first == a.last and (a.exporter in ("onnx", "openvino") or not a.dynamic)]
    made = [a for a in asked if a.fresh and a.ready and (a.layer, a.features) == ("sage", 500)]
    dynamic = sum(a.dynamic for a in made)
    total = {"form": "{} dynamic and {} static models".format(*S4_MODELS)}
    if len(asked) == len(made) and (dynamic, len(made) - dynamic) == S4_MODELS:
        notes = "each made and checked once by this run, one after another, static ones from the dynamic ones"
        total |= {"value": sum(a.seconds for a in made) / 60, "n": 1, "notes": notes}
    else:
        reason = (
            f"this run made {dynamic} dynamic and {len(made) - dynamic} static models of sage with 500 features "
            "that are right; params/full makes as many as S4 (sizes: [study], static_sums: true, anew: true)"
        )
        total |= {"status": "unavailable", "reason": reason}
    runtime = ", ".join(f"{name} {machine.version(name)}" for name in ("torch", "openvino", "onnxruntime"))
    counted = {"origin": "counted", "statistic": "count", "interval": "exact", "n": 1, "runtime": runtime}
    measured = {"origin": "measured", "better": "lower", "runtime": runtime}
    return (
        pd.DataFrame(counts).assign(**counted),
        pd.DataFrame(times).assign(**measured, unit="s", statistic="median"),
        pd.DataFrame([total]).assign(**measured, unit="min", statistic="single"),
    )


def on_graph(
    layer: StagedLayer, values: Mapping[str, np.ndarray], folder: Path, size: tuple[int, int] | None = None
) -> Callable[[], np.ndarray]:
    """The whole layer in OpenVINO, dynamic or of a static `size`, on the graph of `values` (all of the layer's).

    It is exported by the first exporter that gets it right. The graph is padded before any call, results are cropped.

    Raises `GnnlabError`: none does.
    """
    whole = 1, len(layer.stages)
    models = (export(layer, *whole, exporter=e, folder=folder, size=size) for e in ("openvino", THROUGH_ONNX))
    ready = next((model for model in models if model.ready), None)
    if ready is None:
        raise GnnlabError(f"{layer.name}: neither openvino nor {THROUGH_ONNX} gets the whole layer right")
    run, feed = checking.loaded(ready.path, OPENVINO), checking.feed_for(ready, layer, values)
    inputs = feed.inputs(values)
    return lambda: feed.outputs(run(inputs))[layer.result]


def _wanted(
    layer: StagedLayer, first: int, last: int, exporter: str, form: str | None, size: tuple[int, int] | None
) -> Artefact:
    """The artefact as it is asked for, before anything is made."""
    block = layer.block(first, last)
    if exporter not in FORMS:
        raise GnnlabError(f"exporter {exporter!r} is not known; one of {', '.join(FORMS)}")
    if form is not None and form not in FORMS[exporter]:
        raise GnnlabError(f"exporter {exporter}: no form {form!r}; one of {', '.join(FORMS[exporter])}")
    form = form or FORMS[exporter][0]
    if size is not None and (exporter not in CAN_BE_STATIC or min(size) < 1):
        raise GnnlabError(
            f"{exporter}, {form}, of size {size}: {', '.join(CAN_BE_STATIC)} can be static, from 1 node, 1 edge"
        )
    if exporter == HANDBUILT:
        reads, sized_by = openvino_graphs.reads(layer, first, last), ()
    else:
        form = form if block.reduces else PLAIN
        sized_by = () if size else tuple(name for name in block.reads if name in block.shape_only)
        reads = tuple(name for name in block.reads if size is None or name not in block.shape_only)
    place = (layer.name, layer.features, first, last, exporter, form, *(size or (None, None)))
    return Artefact(*place, reads, block.writes, sized_by)


def _written(layer: StagedLayer, wanted: Artefact, models: Path, folder: Path) -> Path:
    """The model's file, in `folder`; `models` has the others, which some are made from."""
    size = None if wanted.dynamic else (wanted.nodes, wanted.edges)
    chosen = layer if wanted.form not in REDUCTIONS else layer.reduced_by(wanted.form)
    block = chosen.block(wanted.first, wanted.last)
    if wanted.exporter == HANDBUILT:
        exporters.save(openvino_graphs.build(layer, wanted.first, wanted.last), folder)
    elif size is not None:
        exporters.save(_static(layer, wanted, models), folder)
    elif wanted.exporter == THROUGH_ONNX:
        exporters.ir_from_onnx(block, _source(layer, wanted, "onnx", models).path, folder)
    else:
        with torch.no_grad():
            values = chosen.trace(**random_inputs(*TRACED, layer.features))
        exporters.TRACING[wanted.exporter](block, [values[name] for name in block.reads], folder)
    return next(folder.glob("model.[ox]*"))


def _static(layer: StagedLayer, wanted: Artefact, models: Path) -> openvino.Model:
    """The dynamic model with every dimension set; what was read for its shape alone is no longer read."""
    dynamic = _source(layer, wanted, wanted.exporter, models)
    model = openvino_core().read_model(dynamic.path)
    size = (wanted.nodes, wanted.edges)
    model.reshape({name: list(layer.values[name].shape(*size)) for name in dynamic.reads})
    return exporters.without_inputs(model, dynamic.sized_by)


def _source(layer: StagedLayer, wanted: Artefact, exporter: str, models: Path) -> Artefact:
    """The dynamic model that another one is made from."""
    form = None if wanted.form == PLAIN else wanted.form
    source = export(layer, wanted.first, wanted.last, exporter=exporter, folder=models, form=form)
    if not source.ready:
        raise GnnlabError(f"the model that it is made from is {source.status}: {source.reason}")
    return source
