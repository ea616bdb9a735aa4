"""Blocks of a layer's stages as models of other runtimes, each checked against torch before it counts.

    export(layer, 3, 3, exporter="onnx", folder=folder)                         # a `Model` of dynamic shapes
    export(layer, 6, 6, exporter="openvino", folder=folder, size=(1000, 5000))  # every dimension is fixed
    export_all(layer, sizes, folder)                                            # what a sweep measures

| exporter | gives | layouts of a sum over targets, the default first |
|---|---|---|
| `onnx` | ONNX by torch.onnx.export(dynamo=True) | scatter_add, index_add |
| `openvino` | IR by openvino.convert_model of the torch program | scatter_add, index_add (cannot be converted) |
| `openvino-onnx` | IR by openvino.convert_model of the ONNX | scatter_add, index_add |
| `handbuilt` | IR of a graph built by hand, see `openvino_bags` | segment_sum |
| `onnx-legacy` | ONNX by the TorchScript exporter; to be shown, not used | scatter_add, index_add |

In ONNX index_add becomes ScatterND, whose updates ONNX Runtime adds from several threads without a lock: some sums are
wrong (onnxruntime #23396, #18048). scatter_add becomes ScatterElements, which one thread adds.

A model lies in a folder of its name, beside `check.json`: what its check found, what it was made from, and the digests
of its files. What a converter or a runtime refuses is `failed` and not stored; the next call tries again.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from gnnlab import machine
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.files import digest
from gnnlab.openvino_core import configuration, openvino_core
from gnnlab.stages.padding import InputAdapter
from gnnlab.workloads.graphsage import random_inputs
from gnnlab.workloads.staged import REDUCTIONS, StageBlock, StagedLayer
from gnnswap import parity
from gnnswap.errors import one_line

if TYPE_CHECKING:
    import openvino

    from gnnlab.stages.devices import Device
    from gnnlab.stages.measure import Config

Arrays = Mapping[str, np.ndarray]
Size = tuple[int, int]  # nodes, edges
Run = Callable[[Arrays], list[np.ndarray]]  # from inputs by name to outputs in order
READY, FAILED, WRONG = "ready", "failed", "wrong"
INDEX_ADD, SCATTER_ADD = REDUCTIONS
SEGMENT_SUM, PLAIN = "segment_sum", "plain"  # PLAIN: of a block without sums over targets
ONNX, OPENVINO, THROUGH_ONNX, HANDBUILT, LEGACY = "onnx", "openvino", "openvino-onnx", "handbuilt", "onnx-legacy"
CAN_BE_STATIC = (OPENVINO, THROUGH_ONNX)
IN_ONNXRUNTIME, IN_OPENVINO = "ONNX Runtime", "OpenVINO"
CHECK = "check.json"
TRACED, CHECKED = (11, 29), (37, 90)  # nodes and edges of the graphs that exporters see, and that models are checked on
_NOISY = ("torch.onnx._internal.exporter._registration", "onnx_ir._convenience")


@dataclass(frozen=True)
class Model:
    """One exported block of stages.

    reads, writes: its inputs and outputs in order; of the inputs in `sized_by` only the number of rows counts.
    nodes, edges: the static size; None for dynamic shapes.
    status: ready, failed (`reason` says why), or wrong (`parity_error`, its largest relative error, is too large).
    seconds: to export and check it; 0 where it was there.
    """

    layer: str
    features: int
    first: int
    last: int
    exporter: str
    layout: str
    nodes: int | None
    edges: int | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
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
        return self.nodes is None

    @property
    def stages(self) -> str:
        """`3`, or `1-5`."""
        return _numbers(self.first, self.last)

    @property
    def name(self) -> str:
        """Its folder: "sage-500/3/onnx/scatter_add/dynamic"."""
        size = "dynamic" if self.dynamic else f"{self.nodes}x{self.edges}"
        return f"{self.layer}-{self.features}/{self.stages}/{self.exporter}/{self.layout}/{size}"


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

    Args:
        size: (nodes, edges) fixes every dimension; without it both stay open.
        layout: how it sums over targets, as in the table above.
        force: export it in any case, so that its time is of this call.

    Raises:
        GnnlabError: there is no such exporter, layout, size or block; or the model cannot be written.
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
        converted = _converted(layer, wanted, source)
    except MemoryError:
        raise
    except Exception as error:  # whatever a converter raises is the model's failure
        shutil.rmtree(place, ignore_errors=True)  # made from something else
        return _failed(wanted, error)
    model = _written(converted, place, made_from, lambda path: check(wanted, path, layer))
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

    Sums over neighbours come hand-built, too. Static models are for NPUs. The study's NPU could not run sums over
    targets, so `static_sums` has to ask for those.
    """
    every = list(dict.fromkeys([*layer.blocks(["stages"]), *blocks]))
    summing = [block for block in every if layer.block(*block).reduces]
    wanted = [(block, exporter, None) for block in every for exporter in (ONNX, OPENVINO)]
    wanted += [(block, HANDBUILT, None) for block in summing if layer.name == "sage"]
    static = every if static_sums else [block for block in every if block not in summing]
    wanted += [(block, OPENVINO, tuple(size)) for size in dict.fromkeys(sizes) for block in static]
    return [export(layer, *block, exporter=e, folder=folder, size=size, force=force) for block, e, size in wanted]


def find(folder: Path, layer: str, features: int, first: int, last: int, exporter: str) -> list[Model]:
    """The ready models of a block by an exporter, in every layout and size. Damaged ones are left out."""
    places = Path(folder) / f"{layer}-{features}" / _numbers(first, last) / exporter
    stored = (_stored(path.parent) for path in sorted(places.glob(f"*/*/{CHECK}")))
    return [model for model in stored if model and model.ready]


def model_for(device: Device, config: Config, models: Path | str | None) -> Model | None:
    """The model that a device runs for a config, the smallest that holds its size; None where it needs or finds none.

    Raises `Unavailable`: the device runs exported models, and `models`, their folder, is None.
    """
    if device.exporter is None:
        return None
    if models is None:
        raise Unavailable(f"{device.name} runs exported models; name their folder, or run gnnlab stages --export")
    block = config.layer, config.features, config.first, config.last
    found = [m for m in find(Path(models), *block, device.exporter) if m.layout == (device.layout or m.layout)]
    nodes, edges = config.nodes, config.edges
    if device.static_shapes:  # a padding node is needed where edges are added
        fitting = [m for m in found if m.edges and m.edges >= edges and m.nodes >= nodes + (m.edges > edges)]
    else:
        fitting = [m for m in found if m.dynamic]
    return min(fitting, key=lambda m: (m.layout == INDEX_ADD, m.edges or 0, m.nodes or 0), default=None)


# ---- checked --------------------------------------------------------------------------------------------------------


def check(model: Model, path: Path, layer: StagedLayer, runtime: str | None = None) -> Model:
    """The model with what its file at `path` computes: ready, wrong, or failed where the runtime refuses it.

    It runs on one thread in float32 in `runtime`, by default that of its format, on graphs that its exporter never saw.
    The truth is the block in float64; `parity.error` allows 1e-5, or what torch's own float32 is off.
    """
    worst, size = 0.0, None if model.dynamic else (model.nodes, model.edges)
    try:
        run = _RUNTIMES[runtime or native(path)](path)
        for name, values in check_graphs(layer, size).items():
            error = _error(model, layer, run, values)
            worst = max(worst, float(error))
            if not error <= parity.RTOL_FLOAT32:
                why = error.why or f"off by {error:.2g} of the largest magnitude"
                known = float(error) if np.isfinite(error) else None
                return replace(model, status=WRONG, reason=f"{why} on a graph with {name}", parity_error=known)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # whatever a runtime raises is the model's failure
        return _failed(model, error)
    return replace(model, status=READY, reason=None, parity_error=worst)


def native(path: Path) -> str:
    """The runtime that a file's format belongs to."""
    return IN_ONNXRUNTIME if path.suffix == ".onnx" else IN_OPENVINO


@lru_cache(maxsize=2)
def check_graphs(layer: StagedLayer, size: Size | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Every value of the layer on the graphs that a model has to get right, by what is special about them.

    Those of a static `size` are smaller than it where they can be, so that the model is checked with its padding.
    """
    nodes, edges = size or CHECKED
    if size and nodes > 1:
        nodes, edges = (max(1, count - 1 - count // 8) for count in size)
    with torch.no_grad():
        traced = layer.trace(**random_inputs(nodes, edges, layer.features, seed=7))
    values = {name: tensor.numpy() for name, tensor in traced.items()}
    negative = {
        name: -100 * (np.abs(a) + 1) if a.dtype == np.float32 and name != "counts" else a for name, a in values.items()
    }
    return {"repeated targets and isolated nodes": values, "large negative numbers only": negative}


def correctness_map(layer: StagedLayer, folder: Path) -> pd.DataFrame:
    """Every stage by every exporter, layout and runtime, as rows of the lab.

    Columns: form ("onnx, scatter_add: ONNX Runtime"), exporter, layout, stage ("3 REDUCE_SUM"), status (ok; failed:
    computes something else; unavailable: cannot be converted or loaded), reason, value (its relative error), runtime.
    A stage that an exporter does not offer has no row.
    """
    rows, words = [], {READY: "ok", WRONG: "failed", FAILED: "unavailable"}
    for exporter, layout, runtime in COMBINATIONS:
        for block in layer.blocks(["stages"]):
            try:
                model = export(layer, *block, exporter=exporter, layout=layout, folder=folder)
            except GnnlabError:  # not offered
                continue
            if model.path and runtime != native(model.path):
                model = check(model, model.path, layer, runtime)
            row = {"form": f"{exporter}, {layout}: {runtime}", "exporter": exporter, "layout": layout}
            row |= {"stage": layer.label(*block), "status": words[model.status], "reason": model.reason}
            row |= {"value": model.parity_error, "parity_error": model.parity_error, "n": 1}
            rows.append({**row, "runtime": f"{runtime} {machine.version(runtime.replace(' ', '').lower())}"})
    return pd.DataFrame(rows)


def _error(model: Model, layer: StagedLayer, run: Run, values: Arrays) -> parity.Deviation:
    block = layer.block(model.first, model.last)
    tensors = [torch.from_numpy(values[name]) for name in block.reads]
    with torch.no_grad():
        expected = dict(zip(block.writes, block(*tensors), strict=True))
        exact = copy.deepcopy(block).double()(*(t.double() if t.is_floating_point() else t for t in tensors))
    adapter = InputAdapter(layer, model, values["x"].shape[0], values["edge_index"].shape[1])
    outputs = adapter.outputs(run(adapter.inputs(values)))
    return parity.error(outputs, expected, dict(zip(block.writes, exact, strict=True)))


def _in_openvino(path: Path) -> Run:
    files = [path.read_bytes(), *([path.with_suffix(".bin").read_bytes()] if path.suffix == ".xml" else [])]
    options = configuration("CPU", "float32", threads=1)
    compiled = openvino_core().compile_model(openvino_core().read_model(*files), "CPU", options)
    names = [port.get_names() for port in compiled.inputs]

    def run(arrays: Arrays) -> list[np.ndarray]:
        results = compiled([next(arrays[name] for name in arrays if name in known) for known in names])
        return [results[place] for place in range(len(compiled.outputs))]

    return run


def _in_onnxruntime(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    return lambda arrays: session.run(None, {name: arrays[name] for name in names})


# ---- converted ------------------------------------------------------------------------------------------------------


def _onnx(layer: StagedLayer, model: Model, source: Path | None) -> bytes:
    names = {"input_names": list(model.reads), "output_names": [f"{name}_out" for name in model.writes]}
    program = torch.onnx.export(_program(layer, model), dynamo=True, verbose=False, **names)
    return program.model_proto.SerializeToString()


def _onnx_legacy(layer: StagedLayer, model: Model, source: Path | None) -> bytes:
    block, example = _traced(layer, model)
    outputs = {f"{name}_out": name for name in block.writes}
    values = dict(zip(block.reads, block.reads, strict=True)) | outputs
    axes = {given: {i: f"{given}_{i}" for i in _open_axes(block, name)} for given, name in values.items()}
    names = {"input_names": list(block.reads), "output_names": list(outputs), "dynamic_axes": axes}
    file = BytesIO()
    torch.onnx.export(block, example, file, dynamo=False, **names)
    return file.getvalue()


def _ir(layer: StagedLayer, model: Model, source: Path | None) -> openvino.Model:
    """OpenVINO's IR of the torch program, or of the ONNX file `source`, with the names and widths of the block.

    Tensors inside lose their names: where a device leaves an operation out, they would become those of an input.
    """
    import openvino

    converted = openvino.convert_model(source or _program(layer, model))
    for output in [output for node in converted.get_ops() for output in node.outputs()]:
        output.get_tensor().set_names(set())
    block, shapes = layer.block(model.first, model.last), {}
    for place, name in enumerate(model.reads):
        converted.input(place).get_tensor().set_names({name})
        dims, free = block.values[name].dims, _open_axes(block, name)
        shapes[place] = openvino.PartialShape([-1 if i in free else dim for i, dim in enumerate(dims)])
    converted.reshape(shapes)
    return converted


def _handbuilt(layer: StagedLayer, model: Model, source: Path | None) -> openvino.Model:
    from gnnlab.stages import openvino_bags

    return openvino_bags.build(layer, model.first, model.last)


def _static(layer: StagedLayer, model: Model, source: Path) -> openvino.Model:
    """The dynamic model with every dimension fixed. Inputs that gave a shape alone become constants.

    Folding all constants would do the same and write zeros of a whole result into the file.
    """
    from openvino import opset13

    fixed = openvino_core().read_model(source)
    shapes = {port.get_any_name(): layer.values[port.get_any_name()] for port in fixed.inputs}
    fixed.reshape({name: list(value.shape(model.nodes, model.edges)) for name, value in shapes.items()})
    for parameter in [p for p in fixed.get_parameters() if p.output(0).get_any_name() not in model.reads]:
        shape = np.array(list(parameter.output(0).get_shape()))
        for consumer in [target.get_node() for target in parameter.output(0).get_target_inputs()]:
            if consumer.get_type_name() != "ShapeOf":
                raise GnnlabError(f"{consumer.get_type_name()} looks at the numbers of an input that gives its shape")
            kind = consumer.output(0).get_element_type().to_dtype()
            consumer.output(0).replace(opset13.constant(shape.astype(kind)).output(0))
        fixed.remove_parameter(parameter)
    fixed.validate_nodes_and_infer_types()
    return fixed


@contextmanager
def silence_logs() -> Iterator[None]:
    """No warnings of exporters, whose models are checked, and no telemetry.

    `convert_model` reports each use over the network, unless it takes itself to be in continuous integration.
    """
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels, before = [logger.level for logger in loggers], os.environ.get("CI")
    try:
        os.environ["CI"] = "true"
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        os.environ.pop("CI")
        os.environ.update({} if before is None else {"CI": before})


def _traced(layer: StagedLayer, model: Model) -> tuple[StageBlock, tuple[torch.Tensor, ...]]:
    """The block, and what it reads on a small graph."""
    block = layer.block(model.first, model.last)
    with torch.no_grad():
        values = layer.trace(**random_inputs(*TRACED, layer.features))
    return block, tuple(values[name] for name in block.reads)


def _program(layer: StagedLayer, model: Model) -> torch.export.ExportedProgram:
    block, example = _traced(layer, model)
    shapes = tuple(dict.fromkeys(_open_axes(block, name), torch.export.Dim.DYNAMIC) for name in block.reads)
    with torch.no_grad():
        return torch.export.export(block, example, dynamic_shapes=(shapes,), strict=False)


def _open_axes(block: StageBlock, name: str) -> list[int]:
    """Nodes and edges; of what is read for its number of rows also the width, so that one column is enough."""
    dims = block.values[name].dims
    return [i for i, dim in enumerate(dims) if isinstance(dim, str) or name in block.shape_only]


EXPORTERS: dict[str, Callable[[StagedLayer, Model, Path | None], openvino.Model | bytes]] = {
    ONNX: _onnx,
    OPENVINO: _ir,
    THROUGH_ONNX: _ir,
    HANDBUILT: _handbuilt,
    LEGACY: _onnx_legacy,
}
COMBINATIONS = (
    (ONNX, SCATTER_ADD, IN_ONNXRUNTIME),
    (ONNX, SCATTER_ADD, IN_OPENVINO),
    (ONNX, INDEX_ADD, IN_ONNXRUNTIME),
    (OPENVINO, SCATTER_ADD, IN_OPENVINO),
    (OPENVINO, INDEX_ADD, IN_OPENVINO),
    (THROUGH_ONNX, SCATTER_ADD, IN_OPENVINO),
    (HANDBUILT, SEGMENT_SUM, IN_OPENVINO),
    (LEGACY, SCATTER_ADD, IN_ONNXRUNTIME),
    (LEGACY, INDEX_ADD, IN_ONNXRUNTIME),
    (LEGACY, INDEX_ADD, IN_OPENVINO),
)  # of `correctness_map`
_RUNTIMES: dict[str, Callable[[Path], Run]] = {IN_OPENVINO: _in_openvino, IN_ONNXRUNTIME: _in_onnxruntime}


# ---- asked for, and stored ------------------------------------------------------------------------------------------


def _wanted(layer: StagedLayer, first: int, last: int, exporter: str, layout: str | None, size: Size | None) -> Model:
    """The model as it is asked for, before anything is made. Raises as `export`."""
    block = layer.block(first, last)
    if exporter not in EXPORTERS:
        raise GnnlabError(f"exporter {exporter!r} is not known; one of {', '.join(EXPORTERS)}")
    layouts = (SEGMENT_SUM,) if exporter == HANDBUILT else (SCATTER_ADD, INDEX_ADD)
    if layout is not None and layout not in layouts:
        raise GnnlabError(f"exporter {exporter}: no layout {layout!r}; one of {', '.join(layouts)}")
    if size is not None and (exporter not in CAN_BE_STATIC or min(size) < 1):
        raise GnnlabError(f"{exporter} of size {size}: {', '.join(CAN_BE_STATIC)} can be static, from 1 node, 1 edge")
    layout = layout or layouts[0]
    if exporter == HANDBUILT:
        from gnnlab.stages import openvino_bags

        reads, sized_by = openvino_bags.reads(layer, first, last), ()
    else:
        layout = layout if block.reduces else PLAIN
        sized_by = () if size else tuple(name for name in block.reads if name in block.shape_only)
        reads = tuple(name for name in block.reads if size is None or name not in block.shape_only)
    place = layer.name, layer.features, first, last, exporter, layout, *(size or (None, None))
    return Model(*place, reads, block.writes, sized_by)


def _source(layer: StagedLayer, wanted: Model, folder: Path) -> Model | None:
    """The dynamic model that another one is made from."""
    exporter = {THROUGH_ONNX: ONNX}.get(wanted.exporter) if wanted.dynamic else wanted.exporter
    layout = None if wanted.layout == PLAIN else wanted.layout
    return exporter and export(layer, wanted.first, wanted.last, exporter=exporter, folder=folder, layout=layout)


def _converted(layer: StagedLayer, wanted: Model, source: Model | None) -> openvino.Model | bytes:
    """The model in memory. Whatever a converter raises is raised."""
    if source and not source.ready:
        raise GnnlabError(f"the model that it is made from is {source.status}: {source.reason}")
    convert = EXPORTERS[wanted.exporter] if wanted.dynamic else _static
    chosen = layer.reduced_by(wanted.layout) if wanted.layout in REDUCTIONS else layer
    with silence_logs():
        return convert(chosen, wanted, source and source.path)


def _written(
    converted: openvino.Model | bytes, place: Path, made_from: Mapping[str, Any], checked: Callable[[Path], Model]
) -> Model:
    """The model written, checked, and put in place by one rename; one that failed its check is not kept.

    Raises `GnnlabError`: it cannot be written. Of a full disk OpenVINO says RuntimeError.
    """
    name = "model.onnx" if isinstance(converted, bytes) else "model.xml"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".making-", ignore_cleanup_errors=True) as temporary:
            fresh = Path(temporary) / "made"
            fresh.mkdir()
            _save(converted, fresh / name)
            model = checked(fresh / name)
            files = sorted(fresh.iterdir())
            model = replace(model, size_bytes=sum(file.stat().st_size for file in files))
            facts = {**asdict(model), "path": name, "made_from": made_from}
            facts["digests"] = {file.name: digest(file) for file in files}
            (fresh / CHECK).write_text(json.dumps(facts, indent=1, allow_nan=False), encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            if model.status == FAILED:
                return model
            fresh.rename(place)
    except (OSError, RuntimeError) as error:
        raise GnnlabError(
            f"could not write {place / name} ({one_line(error)}); nothing was kept: full disk?"
        ) from error
    return replace(model, path=place / name)


def _save(converted: openvino.Model | bytes, path: Path) -> None:
    """The file, or files; weights stay float32."""
    if isinstance(converted, bytes):
        path.write_bytes(converted)
    else:
        import openvino

        openvino.save_model(converted, path, compress_to_fp16=False)


def _stored(place: Path, made_from: Mapping[str, Any] | None = None) -> Model | None:
    """The model of a folder; None where it was made from something else, or a file is missing or damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        facts = json.loads((place / CHECK).read_text(encoding="utf-8"))
        digests, key = facts.pop("digests"), facts.pop("made_from")
        lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
        model = Model(**facts | lists | {"path": place / facts["path"]})
        whole = all(digest(place / name) == known for name, known in digests.items())
        if whole and model.path.name in digests and made_from in (None, key):
            return model
    return None


def _failed(model: Model, error: Exception) -> Model:
    """The line of `error` that names an operation where there is one, else its first."""
    lines = [line.strip(" -\t") for line in str(error).splitlines()]
    operation = next((line for line in lines if "failed for" in line or "rule found" in line), None)
    reason = one_line(error) if operation is None else f"{type(error).__name__}: {operation}"[:160]
    return replace(model, status=FAILED, reason=reason, parity_error=None)


def _numbers(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
