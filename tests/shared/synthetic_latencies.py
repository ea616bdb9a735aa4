"""Made-up machines whose bandwidth is known: time = launch + bytes / bandwidth + FLOPs / peak."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from gnnlab.bandwidth.copies import PLAIN_COPY
from gnnlab.measure.estimates import order_interval
from gnnlab.stages import measure
from gnnlab.stages.devices import Availability
from gnnlab.stages.sizes import layer_of, read

STUDY = [size[:2] for size in read(["study"])]
DEVICE = "torch:CPU"
FEATURES, SAMPLES = 64, 25
SMALL = layer_of("sage", FEATURES)
SIZES = [(n, e) for n in (100, 200, 400) for e in (400, 800, 1600, 3200)]
BLOCKS = [*((n, n) for n in SMALL.numbers), (1, 5)]


@dataclass(frozen=True)
class Truth:
    """The default is a plain CPU with 10 GB/s."""

    launch_ms: float = 0.05
    gb_s: float = 10.0
    gflop_s: float = 310.0

    def compute_ms(self, flops):
        """Launch and arithmetic, without moving the bytes."""
        return self.launch_ms + flops / self.gflop_s / 1e6

    def moving_ms(self, moved_bytes):
        return moved_bytes / self.gb_s / 1e6


TRUTH = Truth(launch_ms=0.02)


def noisy(random, ms, noise):
    """A measurement of `ms`: each sample off by `noise`, all of them by a third of it; ms, ms_low, ms_high, n."""
    samples = ms * np.exp(random.normal(0, noise / 3) + random.normal(0, noise, SAMPLES))
    low, high = order_interval(samples)
    return {"ms": float(np.median(samples)), "ms_low": low, "ms_high": high, "n": SAMPLES}


def copies(sizes_bytes, truth=TRUTH, *, noise=0.0, seed=0, device=PLAIN_COPY):
    """Copies of so many bytes, each read and written."""
    random = np.random.default_rng(seed)
    times = [noisy(random, truth.launch_ms + truth.moving_ms(2 * size), noise) for size in sizes_bytes]
    return pd.DataFrame(times).assign(size_bytes=list(sizes_bytes), device=device)


def latencies(layer, sizes=STUDY, truth=Truth(), *, noise=0.0, seed=0, moved=None):
    """Each stage at each size, by `moved(stage, nodes, edges)` bytes, by default those that it reads and writes."""
    random, moved = np.random.default_rng(seed), moved or layer.bytes_moved

    def row(stage, at):
        ms = truth.compute_ms(layer.flops(stage, stage, *at)) + truth.moving_ms(moved(stage, *at))
        about = {"device": DEVICE, "first": stage, "last": stage, "nodes": at[0], "edges": at[1]}
        return about | noisy(random, ms, noise)

    return pd.DataFrame([row(*each) for each in product(layer.numbers, sizes)])


def configs(sizes=SIZES, blocks=BLOCKS, devices=(DEVICE,), **conditions):
    asked = product(sizes, blocks, devices)
    return [measure.Config("sage", FEATURES, *size, *block, name, **conditions) for size, block, name in asked]


def outcome(config, ms=None):
    """The time of a block on a machine of `TRUTH`; ONNX Runtime takes twice as long as torch, and copies as fast."""
    at = config.first, config.last, config.nodes, config.edges
    block = SMALL.block(*at[:2])
    ms = ms or TRUTH.compute_ms(SMALL.flops(*at)) + TRUTH.moving_ms(block.bytes_moved(*at[2:]))
    ms *= 2 if config.device == "onnxruntime:CPU" and config.first != 2 else 1
    samples = (ms * np.linspace(0.995, 1.005, SAMPLES)).tolist()
    times = {"samples_ms": samples, "ms": ms, "ms_low": samples[0], "ms_high": samples[-1], "std_ms": 0.003 * ms}
    about = {"parity_error": 0.0, "precision": config.precision, "chip": "synthetic", "runtime_version": "1"}
    return {"status": "measured", "reason": None, "notes": [], **times, **about}


class SyntheticDevices(AbstractContextManager):
    """Answers as `LocalDevices` does, at once, with `answer(config)`."""

    def __init__(self, names, settings=None, cluster=None, answer=outcome):
        self.settings, self.answer = settings or measure.Settings(), answer
        self.available = {name: Availability(True, chip="synthetic", version="1") for name in names}

    def call(self, function, *arguments):
        return [1.0] * SAMPLES

    def __call__(self, configs):
        for config in configs:
            yield measure.record(config, self.answer(config))

    def __exit__(self, *exception):
        pass


def leave(folder, asked=None, answer=outcome):
    """A folder as notebook 05 leaves it."""
    asked = configs() if asked is None else asked
    measure.run(folder, asked, SyntheticDevices({config.device for config in asked}, answer=answer))
    return folder
