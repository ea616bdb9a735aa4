"""An own measurement of stages, to hold beside the journal's: perf_counter, own order, own calls of the runtimes.

    python tests/shared/own_measurement.py outputs/quick       # own median over the journal's, for each stage

It uses nothing of gnnlab.stages.measure. A device's stages are called on tensors or arrays that were bound before.
"""

import json
import os
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
ROUNDS = 40


def by_torch(layer, number, values):
    """Stage `number` as torch computes it: (call, result as an array)."""
    stage = layer.stages[number - 1]
    tensors = [values[name] for name in stage.takes]

    def call():
        with torch.inference_mode():
            return stage.module(*tensors)

    return call, lambda result: result.numpy()


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


def model_of(models, features, number):
    """The file of a stage that OpenVINO exported with open shapes; None where there is none."""
    found = sorted(Path(models).glob(f"sage-{features}/{number}/openvino/*/dynamic/model.xml"))
    return found[0] if found else None


def interleaved(calls, rounds=ROUNDS):
    """Median ms of each call by name: in each round all of them, in random order, after three rounds that do not count.

    A call shorter than 0.5 ms is made so often in a sample that the clock's grain vanishes.
    """
    order, times = np.random.default_rng(1), {name: [] for name in calls}
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, round(5e-4 / max(time.perf_counter() - start, 1e-7)))
    for turn in range(rounds + 3):
        for place in order.permutation(len(calls)):
            name = list(calls)[place]
            calls[name]()  # its own values are in the cache, as where it is measured alone
            start = time.perf_counter()
            for _ in range(repeats[name]):
                calls[name]()
            if turn >= 3:
                times[name].append((time.perf_counter() - start) * 1e3 / repeats[name])
    return {name: statistics.median(of) for name, of in times.items()}


def measured(features, size, models=None, rounds=ROUNDS):
    """{(device, stage): (ms, result (N or E, ...))} of the 7 stages at a size (nodes, edges), on one thread."""
    torch.set_num_threads(1)
    layer = sage(features)
    with torch.no_grad():
        values = layer.trace(**random_inputs(*size, features))
    bound = {("torch:CPU", number): by_torch(layer, number, values) for number in layer.numbers}
    for number in layer.numbers:
        if models is not None and (path := model_of(models, features, number)):
            bound["openvino:CPU", number] = by_openvino(path, values)
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
                print(
                    f"{nodes}x{edges} {device} stage {stage}: own {ms:.4f} ms, journal {known:.4f} ms, {ratios[-1]:.2f}"
                )
    if ratios:
        print(f"own over journal: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    if not KEEP_MEMORY.items() <= os.environ.items():  # page faults would be in the time: the sweep's allocator, too
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    main(sys.argv[1] if len(sys.argv) > 1 else "outputs/quick")
