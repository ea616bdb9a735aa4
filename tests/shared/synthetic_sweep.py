"""Measurements whose times are made up, for the tests of what is made of them; nothing is measured."""

import numpy as np

from gnnlab.stages import journal
from gnnlab.stages.devices import Availability
from gnnlab.stages.measurement import Config, Settings, record, without_time

TORCH, ORT, FAST, GPU, NPU = "torch:CPU", "onnxruntime:CPU", "fast:CPU", "openvino:GPU", "openvino:NPU"


def config(nodes=10, first=1, device=TORCH, *, edges=None, last=None, layer="sage", features=500, **more):
    return Config(layer, features, nodes, 2 * nodes if edges is None else edges, first, last or first, device, **more)


def outcome(ms, half=0.01, **changes):
    """An outcome with 25 samples around `ms`, its interval within `half` of it."""
    times = {"samples_ms": (ms * np.linspace(1 - half, 1 + half, 25)).tolist(), "ms": ms, "std_ms": ms * half}
    times |= {"ms_low": ms * (1 - half), "ms_high": ms * (1 + half), "parity_error": 1e-7}
    return without_time("measured", None, chip="chip", runtime_version="runtime 1") | times | changes


def missing(status="unavailable", reason="no such device"):
    return without_time(status, reason)


def leave(folder, *answers):
    """A journal of (config, outcome) pairs; gives its frame."""
    for asked, found in answers:
        journal.append(folder, record(asked, found, took_s=0.5) | {"conditions": {}})
    return journal.read(folder)


class Working:
    """Answers each configuration as `of` says, at once, and remembers what it was asked."""

    def __init__(self, of=lambda asked: outcome(1.0), settings=None, chip="chip"):
        self.of, self.asked, self.settings = of, [], settings or Settings()
        self.available = dict.fromkeys((TORCH, ORT, FAST, GPU, NPU), Availability(True, chip=chip))

    def call(self, function):
        return [1.0, 1.2]

    def __call__(self, configs):
        for asked in configs:
            self.asked.append(asked)
            yield record(asked, self.of(asked), took_s=0.5)
