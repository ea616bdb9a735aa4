"""What a user of OpenVINO tries first: the whole layer as one model, placed and overlapped by the runtime.

    forms = peer_forms(layer, trial.graphs, models, count=8)       # by the names of `comparison.PEERS`
    forms["AUTO"]()                                                # `count` graphs in, the last result out

HETERO and AUTO have every device that OpenVINO sees here; streams are what its throughput hint makes of this CPU.
Threads are OpenVINO's own choice, as a user would leave it: the plans that they are raced with have all cores, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from gnnlab import machine
from gnnlab.campaign.cell_inputs import model_for
from gnnlab.campaign.cells import Cell
from gnnlab.export.padding import Feed
from gnnlab.openvino_core import HINTS, openvino_core
from gnnlab.planning.comparison import PEERS
from gnnlab.planning.execution import Tensors, plain, size_of
from gnnlab.profiling.races import RTOL_FLOAT32, require_equal
from gnnlab.units import registry
from gnnlab.workloads.staged import StagedLayer

_UNIT = "openvino:CPU"  # whose exported model of all stages they run


def peer_forms(
    layer: StagedLayer, graphs: Sequence[Tensors], models: Path | str, count: int
) -> dict[str, Callable[[], np.ndarray]]:
    """HETERO, AUTO and throughput streams as forms: `count` graphs in turn, the last result; none where the whole layer
    was not exported. What each makes of every graph has been held against the plain layer.

    Raises:
        GnnlabError: a result differs.
    """
    nodes, edges = size_of(graphs[0])
    cell = Cell(layer.name, layer.features, nodes, edges, 1, len(layer.stages), _UNIT)
    artefact = model_for(registry.find(_UNIT), cell, str(models))
    if artefact is None or not artefact.ready:
        return {}
    named = ({name: tensor.numpy() for name, tensor in graph.items()} for graph in graphs)
    feeds = [Feed(layer, artefact, nodes, edges).inputs(values) for values in named]
    devices = ",".join(sorted(openvino_core().available_devices, key=lambda name: name.startswith("CPU")))
    ways = ((f"HETERO:{devices}", "LATENCY"), (f"AUTO:{devices}", "LATENCY"), ("CPU", "THROUGHPUT"))
    forms, options = {}, {"INFERENCE_PRECISION_HINT": HINTS["float32"]}
    for name, (device, hint) in zip(PEERS, ways, strict=True):
        compiled = openvino_core().compile_model(artefact.path, device, options | {"PERFORMANCE_HINT": hint})
        run = partial(_streamed if hint == "THROUGHPUT" else _in_turn, compiled, feeds)
        for place, graph in enumerate(graphs):
            require_equal(plain(layer, graph), run(place + 1), RTOL_FLOAT32, name)
        forms[name] = partial(run, count)
    return forms


def conditions_of() -> dict[str, Any]:
    """What they compute under, as fields of a row."""
    return {"runtime": f"OpenVINO {machine.version('openvino')}", "precision": "float32", "threads": machine.cores()}


def _in_turn(compiled: ov.CompiledModel, feeds: Sequence[dict[str, np.ndarray]], count: int) -> np.ndarray:
    """One graph after the other, as a user calls a compiled model."""
    request = compiled.create_infer_request()
    for place in range(count):
        request.infer(feeds[place % len(feeds)], share_inputs=True, share_outputs=True)
    return np.array(request.get_output_tensor().data)


def _streamed(compiled: ov.CompiledModel, feeds: Sequence[dict[str, np.ndarray]], count: int) -> np.ndarray:
    """As many requests at once as the hint asks for."""
    last: list[np.ndarray] = []
    queue = ov.AsyncInferQueue(compiled)
    queue.set_callback(lambda request, keep: keep and last.append(np.array(request.get_output_tensor().data)))
    for place in range(count):
        queue.start_async(feeds[place % len(feeds)], place == count - 1, share_inputs=True)
    queue.wait_all()
    return last[0]
