"""An own measurement of stages, to hold beside the journal's: perf_counter, own order, own calls of the runtimes.

    python tests/shared/own_measurement.py outputs/quick       # own median over the journal's, for each stage

It uses nothing of gnnlab.stages.measure. A device's stages are called on tensors or arrays that were bound before.
"""

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import openvino
import torch

from gnnlab.child import KEEP_MEMORY
from gnnlab.workloads.graphsage import random_inputs, sage

SIZES = ((1000, 1000), (1000, 10000), (10000, 10000))
WARM_UP = 3  # rounds that do not count


def by_torch(stage, values):
    """A stage as torch computes it: (call, result as an array)."""
    tensors = [values[name] for name in stage.takes]
    return torch.inference_mode()(lambda: stage.module(*tensors)), lambda result: result.numpy()


def by_openvino(path, values):
    """A model on one thread of OpenVINO's CPU plugin, its inputs bound: (call, result as an array)."""
    threads = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
    fixed = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", **threads}
    compiled = openvino.Core().compile_model(str(path), "CPU", fixed)
    request, kept = compiled.create_infer_request(), []
    for port in compiled.inputs:
        array, wanted = values[port.any_name].numpy(), port.partial_shape
        if wanted.rank.get_length() == 2 and wanted[1].is_static:  # one column where the shape is all that counts
            array = array[:, : wanted[1].get_length()]
        kept.append(np.ascontiguousarray(array))
        request.set_tensor(port, openvino.Tensor(kept[-1], shared_memory=True))
    return lambda: request.infer(share_outputs=True), lambda _: (request.get_output_tensor().data, kept)[0]


def interleaved(calls, rounds):
    """Median ms of each call by name: in each round all of them, in random order.

    A call shorter than 0.5 ms is made so often in a sample that the clock's grain vanishes.
    """
    order, times, repeats = random.Random(1), {name: [] for name in calls}, dict.fromkeys(calls, 1)
    for turn in range(WARM_UP + rounds):
        for name in order.sample(list(calls), len(calls)):
            calls[name]()  # its own values are in the cache, as where it is measured alone
            start = time.perf_counter()
            for _ in range(repeats[name]):
                calls[name]()
            times[name].append((time.perf_counter() - start) * 1e3 / repeats[name])
            repeats[name] = max(1, round(0.5 / times[name][-1])) if turn < WARM_UP else repeats[name]
    return {name: statistics.median(of[WARM_UP:]) for name, of in times.items()}


def measured(features, size, models, rounds=40):
    """{(device, stage): (ms, result (N or E, ...))} of the 7 stages at a size (nodes, edges), on one thread.
    OpenVINO has those that it exported with open shapes into the folder `models`."""
    torch.set_num_threads(1)
    layer, bound = sage(features), {}
    with torch.no_grad():
        values = layer.trace(**random_inputs(*size, features))
    for stage in layer.stages:
        bound["torch:CPU", stage.number] = by_torch(stage, values)
        for path in sorted(Path(models).glob(f"sage-{features}/{stage.number}/openvino/*/dynamic/model.xml"))[:1]:
            bound["openvino:CPU", stage.number] = by_openvino(path, values)
    ms = interleaved({name: call for name, (call, _) in bound.items()}, rounds)
    return {name: (ms[name], np.array(result(call()))) for name, (call, result) in bound.items()}


def main(outputs):
    """Prints own median, the journal's and their ratio for each size, device and stage."""
    raw = json.loads((Path(outputs) / "stages/raw_measurements.json").read_text(encoding="utf-8"))["measurements"]
    ratios = []
    for nodes, edges in SIZES:
        for (device, stage), (ms, _) in measured(500, (nodes, edges), Path(outputs) / "exported_models").items():
            if known := raw.get(f"{nodes},{edges},{device},{stage}", {}).get("ms"):
                ratios.append(ms / known)
                times = f"own {ms:.4f} ms, journal {known:.4f} ms, {ratios[-1]:.2f}"
                print(f"{nodes}x{edges} {device} stage {stage}: {times}")
    if ratios:
        print(f"own over journal: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    if not KEEP_MEMORY.items() <= os.environ.items():  # page faults would be in the time: the sweep's allocator, too
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    main(sys.argv[1] if len(sys.argv) > 1 else "outputs/quick")
