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
    known = {"samples_ms": (ms * np.linspace(1 - half, 1 + half, 25)).tolist(), "ms": ms, "ms_low": ms * (1 - half)}
    known |= {"ms_high": ms * (1 + half), "std_ms": ms * half, "parity_error": 1e-7, "notes": [], "reason": None}
    about = {"status": "measured", "precision": "float32", "chip": "chip", "runtime_version": "runtime 1"}
    return known | about | changes


def missing(status="unavailable", reason="no such device", **changes):
    return without_time(status, reason, **changes)


def leave(folder, *answers, conditions=None, took_s=0.5):
    """A journal of (config, outcome) pairs; gives its frame."""
    folder.mkdir(parents=True, exist_ok=True)
    for asked, found in answers:
        journal.append(folder, record(asked, found, took_s=took_s) | {"conditions": conditions or {}})
    return journal.read(folder)


class Working:
    """Answers each configuration as `of` says, at once, and remembers what it was asked."""

    def __init__(self, of=lambda asked: outcome(asked.nodes * asked.first / 100), settings=None, chip="chip", ms=()):
        self.of, self.asked, self.settings, self.reference_ms = of, [], settings or Settings(), list(ms)
        self.available = dict.fromkeys((TORCH, ORT, FAST, GPU, NPU), Availability(True, chip=chip))

    def call(self, function, *arguments):
        return self.reference_ms.pop(0) if self.reference_ms else [1.0]

    def __call__(self, configs):
        for asked in configs:
            self.asked.append(asked)
            yield record(asked, self.of(asked), took_s=0.5)
