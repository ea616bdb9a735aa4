"""Blocks of a layer's stages as models of other runtimes, each checked against torch before it counts.

    export(layer, 3, 3, exporter="onnx", folder=folder)                         # a `Model` of dynamic shapes
    export(layer, 6, 6, exporter="openvino", folder=folder, size=(1000, 5000))  # every dimension is fixed
    export_all(layer, sizes, folder)                                            # what a sweep measures

A model lies in a folder of its name, beside `check.json`: what its check found, what it was made from, and the digests
of its files. What a converter or a runtime refuses is `failed` and not stored; the next call tries again.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from gnnlab import machine
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.files import digest
from gnnlab.stages import devices, padding, runtimes
from gnnlab.stages.converters import HANDBUILT, INDEX_ADD, LAYOUTS, OPENVINO, convert, silence_logs
from gnnlab.workloads.graphsage import random_inputs
from gnnlab.workloads.staged import StageBlock, StagedLayer
from gnnswap import parity
from gnnswap.errors import one_line

if TYPE_CHECKING:
    from gnnlab.stages.measurement import Config

Size = tuple[int, int]  # nodes, edges
Arrays = Mapping[str, np.ndarray]
READY, FAILED, WRONG = "ready", "failed", "wrong"
PLAIN = "plain"  # the layout of a block without sums over targets
CHECK = "check.json"
CHECKED = (37, 90)  # nodes and edges; more edges than nodes, so that targets repeat
READERS = {".onnx": ("ONNX Runtime", "OpenVINO"), ".xml": ("OpenVINO",)}  # of a file; the first checks it
DEVICES = {"ONNX Runtime": "onnxruntime:CPU", "OpenVINO": "openvino:CPU"}


@dataclass(frozen=True)
class Model:
    """One exported block of stages.

    size: nodes and edges of a model of static shapes; None where they are dynamic.
    reads, writes: its inputs and outputs in order; of the inputs in `sized_by` only the number of rows counts.
    status: ready, failed (`reason` says why), or wrong (`parity_error`, its largest relative error, is too large).
    seconds: to export and check it; 0 where it was there.
    """

    layer: str
    features: int
    first: int
    last: int
    exporter: str
    layout: str
    size: Size | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    sized_by: tuple[str, ...] = ()
    status: str = READY
    reason: str | None = None
    parity_error: float | None = None
    path: Path | None = None
    size_bytes: int = 0
    seconds: float = 0.0

    @property
    def ready(self) -> bool:
        return self.status == READY

    @property
    def dynamic(self) -> bool:
        return self.size is None

    @property
    def name(self) -> str:
        """Its folder: "sage-500/3/onnx/scatter_add/dynamic", or ".../1-5/openvino/plain/1000x5000"."""
        stages = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        size = "dynamic" if self.dynamic else f"{self.size[0]}x{self.size[1]}"
        return f"{self.layer}-{self.features}/{stages}/{self.exporter}/{self.layout}/{size}"


def export(
    layer: StagedLayer,
    first: int,
    last: int,
    *,
    exporter: str,
    folder: Path,
    size: Size | None = None,
    layout: str | None = None,
    force: bool = False,
) -> Model:
    """The model of the stages `first`..`last`: from `folder` where it is whole and made from the same, else exported.

    `size` (nodes, edges) fixes every dimension. `layout`: see `converters`. With `force` it is exported anyway.
    Raises `GnnlabError`: there is no such exporter, layout, size or block; or the model cannot be written.
    """
    wanted = _wanted(layer, first, last, exporter, layout, size)
    versions = machine.versions("gnnlab", "torch", "openvino", "onnx", "onnxscript", "onnxruntime")
    weights = layer.block(first, last).fingerprint()
    made_from = {"reads": list(wanted.reads), "weights": weights, "versions": versions}
    place = Path(folder) / wanted.name
    if not force and (kept := _stored(place, made_from)):
        return kept
    source = _source(layer, wanted, folder)
    start = time.perf_counter()
    try:
        if source and not source.ready:
            raise GnnlabError(f"the model that it is made from is {source.status}: {source.reason}")
        with silence_logs():
            converted = convert(layer, wanted, source and source.path)
    except MemoryError:
        raise
    except Exception as error:  # whatever a converter raises is the model's failure
        shutil.rmtree(place, ignore_errors=True)  # made from something else
        return _failed(wanted, error)
    model = _written(converted, wanted, layer, place, made_from)
    return replace(model, seconds=time.perf_counter() - start)


def export_all(
    layer: StagedLayer,
    sizes: Sequence[Size],
    folder: Path,
    *,
    blocks: Sequence[tuple[int, int]] = (),
    static_sums: bool = False,
    force: bool = False,
) -> list[Model]:
    """What a sweep measures: stages and fused `blocks` as ONNX and IR of dynamic shapes, and as static IR of each size.

    Sums over neighbours come hand-built, too. Static models are for NPUs; the study's NPU could not run sums over
    targets, so those are left out unless `static_sums`.
    """
    every = list(dict.fromkeys([*layer.blocks(["stages"]), *blocks]))
    wanted = [(block, name, None) for name in ("onnx", "openvino", HANDBUILT) for block in _of(layer, name, every)]
    static = [block for block in every if static_sums or not layer.block(*block).reduces]
    wanted += [(block, "openvino", size) for size in dict.fromkeys(sizes) for block in static]
    return [export(layer, *block, exporter=e, folder=folder, size=size, force=force) for block, e, size in wanted]


def correctness_map(layer: StagedLayer, folder: Path) -> pd.DataFrame:
    """Each stage by each exporter and layout in each runtime that reads it, as rows of the lab.

    Columns: variant ("onnx, scatter_add: ONNX Runtime"), exporter, layout, stage ("3 REDUCE_SUM"), runtime, value (the
    relative error), status (ok; failed: computes something else; unavailable: not converted or loaded), reason.
    """
    rows, words = [], {READY: "ok", WRONG: "failed", FAILED: "unavailable"}
    for exporter, layouts in LAYOUTS.items():
        readers = READERS[".onnx" if exporter.startswith("onnx") else ".xml"]
        for block, layout, runtime in product(_of(layer, exporter, layer.blocks(["stages"])), layouts, readers):
            model = export(layer, *block, exporter=exporter, layout=layout, folder=folder)
            model = check(model, model.path, layer, runtime) if model.path else model
            row = {
                "variant": f"{exporter}, {layout}: {runtime}",
                "layout": layout,
                "stage": layer.label(*block),
                "n": 1,
            }
            row |= {"status": words[model.status], "value": model.parity_error, "runtime": runtimes.version(runtime)}
            rows.append(asdict(model) | row)
    return pd.DataFrame(rows)


def find(folder: Path, layer: str, features: int, first: int, last: int, exporter: str) -> list[Model]:
    """The ready models of a block by an exporter, in every layout and size. Damaged ones are left out."""
    places = Path(folder).glob(f"{Path(Model(layer, features, first, last, exporter, '*').name).parent}/*/{CHECK}")
    return [model for place in sorted(places) if (model := _stored(place.parent)) and model.ready]


def model_for(device: devices.Device, config: Config, models: Path | str | None) -> Model | None:
    """The model that a device runs for a config, the smallest that holds its size; None where it needs or finds none.

    Raises `Unavailable`: the device runs exported models, and `models`, their folder, is None.
    """
    if device.exporter is None:
        return None
    if models is None:
        raise Unavailable(f"{device.name} runs exported models; name their folder, or run gnnlab stages --export")
    found = find(Path(models), config.layer, config.features, config.first, config.last, device.exporter)
    found = [m for m in found if m.layout == (device.layout or m.layout) and m.dynamic != device.static_shapes]
    found = [m for m in found if m.dynamic or padding.fits(config.nodes, config.edges, m.size)]
    return min(found, key=lambda m: (m.layout == INDEX_ADD, (m.size or ())[::-1]), default=None)


# ---- checked --------------------------------------------------------------------------------------------------------


def check(model: Model, path: Path, layer: StagedLayer, runtime: str | None = None) -> Model:
    """The model with what its file at `path` computes: ready, wrong, or failed where the runtime refuses it.

    It runs on one thread in float32 in `runtime`, by default that of its format, on graphs that its exporter never saw.
    The truth is the block in float64; `parity.error` allows 1e-5, or what torch's own float32 is off.
    """
    device, worst = devices.find(DEVICES[runtime or READERS[path.suffix][0]]), 0.0
    model = replace(model, path=path, status=READY, reason=None)
    try:
        for name, values in check_graphs(layer, model.size).items():
            how = {"nodes": len(values["x"]), "edges": values["edge_index"].shape[1], "threads": 1}
            loaded = device.load(layer, model.first, model.last, model, **how, precision="float32")
            error = _error(loaded.run(values), layer.block(model.first, model.last), values)
            worst = max(worst, float(error))
            if not error <= parity.RTOL_FLOAT32:
                why = error.why or f"off by {error:.2g} of the largest magnitude"
                known = float(error) if np.isfinite(error) else None
                return replace(model, status=WRONG, reason=f"{why} on a graph with {name}", parity_error=known)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # whatever a runtime raises is the model's failure
        return _failed(model, error)
    finally:
        runtimes.read_once.cache_clear()  # memory, and the file that OpenVINO holds open
    return replace(model, parity_error=worst)


@lru_cache(maxsize=2)
def check_graphs(layer: StagedLayer, size: Size | None = None) -> dict[str, Arrays]:
    """Every value of the layer on the graphs that a model has to get right, by what is special about them.

    For a model of static `size` they are smaller, so that it is checked with its padding.
    """
    nodes, edges = CHECKED
    if size:
        nodes, edges = (max(1, count - 1 - count // 8) for count in size)
        edges = edges if nodes < size[0] else size[1]  # no room for a padding node
    with torch.no_grad():
        traced = layer.trace(**random_inputs(nodes, edges, layer.features, seed=7))
    values = {name: tensor.numpy() for name, tensor in traced.items()}
    signed = [name for name, array in values.items() if array.dtype == np.float32 and name != "counts"]
    negative = values | {name: -100 * (np.abs(values[name]) + 1) for name in signed}
    return {"repeated targets and isolated nodes": values, "large negative numbers only": negative}


def _error(got: Arrays, block: StageBlock, values: Arrays) -> parity.Deviation:
    tensors = [torch.from_numpy(values[name]) for name in block.reads]
    with torch.no_grad():
        expected = block(*tensors)
        exact = copy.deepcopy(block).double()(*(t.double() if t.is_floating_point() else t for t in tensors))
    return parity.error(tuple(got.values()), expected, exact)


# ---- asked for, and stored ------------------------------------------------------------------------------------------


def _of(layer: StagedLayer, exporter: str, blocks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of the blocks that an exporter makes: hand-built graphs are sums over neighbours."""
    return [block for block in blocks if exporter != HANDBUILT or layer.block(*block).reduces]


def _wanted(layer: StagedLayer, first: int, last: int, exporter: str, layout: str | None, size: Size | None) -> Model:
    """The model as it is asked for, before anything is made. Raises as `export`."""
    block = layer.block(first, last)
    if exporter not in LAYOUTS:
        raise GnnlabError(f"exporter {exporter!r} is not known; one of {', '.join(LAYOUTS)}")
    layout = layout or LAYOUTS[exporter][0]
    if layout not in LAYOUTS[exporter]:
        raise GnnlabError(f"exporter {exporter}: no layout {layout!r}; one of {', '.join(LAYOUTS[exporter])}")
    if size is not None and (exporter != OPENVINO or min(size) < 1):
        raise GnnlabError(f"{exporter} of size {size}: {OPENVINO} alone can be static, from 1 node, 1 edge")
    reads, sized_by = block.reads, tuple(name for name in block.reads if name in block.shape_only)
    if exporter == HANDBUILT:
        from gnnlab.stages import segment_sums

        reads, sized_by = segment_sums.reads(layer, first, last), ()
    elif size:
        reads, sized_by = tuple(name for name in reads if name not in sized_by), ()
    what = layer.name, layer.features, first, last, exporter, layout if block.reduces else PLAIN
    return Model(*what, size, reads, block.writes, sized_by)


def _source(layer: StagedLayer, wanted: Model, folder: Path) -> Model | None:
    """The dynamic model that a static one is made from."""
    layout = None if wanted.layout == PLAIN else wanted.layout
    how = {"exporter": wanted.exporter, "folder": folder, "layout": layout}
    return None if wanted.dynamic else export(layer, wanted.first, wanted.last, **how)


def _written(converted: Any, wanted: Model, layer: StagedLayer, place: Path, made_from: Mapping[str, Any]) -> Model:
    """The model written, checked, and put in place by one rename; what fails its check is not kept.

    Raises `GnnlabError`: it cannot be written. Of a full disk OpenVINO says RuntimeError.
    """
    name = "model.onnx" if isinstance(converted, bytes) else "model.xml"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".making-", ignore_cleanup_errors=True) as temporary:
            fresh = Path(temporary) / "made"
            fresh.mkdir()
            if isinstance(converted, bytes):
                (fresh / name).write_bytes(converted)
            else:  # weights stay float32
                import openvino

                openvino.save_model(converted, fresh / name, compress_to_fp16=False)
            files = list(fresh.iterdir())
            model = replace(check(wanted, fresh / name, layer), size_bytes=sum(file.stat().st_size for file in files))
            shutil.rmtree(place, ignore_errors=True)
            if model.status == FAILED:
                return replace(model, size_bytes=0)
            facts = {"path": name, "made_from": made_from, "digests": {file.name: digest(file) for file in files}}
            (fresh / CHECK).write_text(json.dumps(asdict(model) | facts, indent=1), encoding="utf-8")
            fresh.rename(place)
    except (OSError, RuntimeError) as error:
        why = f"could not write {place / name} ({one_line(error)})"
        raise GnnlabError(f"{why}; nothing was kept; is the disk full?") from error
    return replace(model, path=place / name)


def _stored(place: Path, made_from: Mapping[str, Any] | None = None) -> Model | None:
    """The model of a folder; None where it was made from something else, or a file is missing or damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        facts = json.loads((place / CHECK).read_text(encoding="utf-8"))
        digests, key = facts.pop("digests"), facts.pop("made_from")
        if made_from in (None, key) and all(digest(place / name) == known for name, known in digests.items()):
            lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
            return Model(**facts | lists | {"path": place / facts["path"]})
    return None


def _failed(model: Model, error: Exception) -> Model:
    """The model, and why: the line that names an operation where there is one, else the first."""
    lines = [line.strip(" -\t") for line in str(error).splitlines()]
    operation = next((line for line in lines if "failed for" in line or "rule found" in line), None)
    reason = one_line(error) if operation is None else f"{type(error).__name__}: {operation}"[:160]
    return replace(model, status=FAILED, reason=reason, parity_error=None, path=None)
