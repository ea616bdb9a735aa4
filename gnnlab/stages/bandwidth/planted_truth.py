"""Latencies of a machine that is made up, whose bandwidth is therefore known: what a method says of it can be checked.

truth = Truth(launch_ms=0.05, bandwidth=Bandwidth.from_mb_s(10_000), gflop_s=310)
cells = latencies(layer, sizes, truth, noise=0.02, seed=0)       # as the table of a campaign has them
sweep(truth, [4096, 2**20], noise=0.02, seed=0)                  # times of copies: the transfer by itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gnnlab.profiling.intervals import order_interval
from gnnlab.stages.bandwidth.measured_hull import Size
from gnnlab.stages.bandwidth.quantities import Bandwidth
from gnnlab.workloads.staged import StagedLayer

SAMPLES = 25
PLANTED = "planted"
Bytes = Callable[[int, int, int], float]  # of stage, nodes, edges


@dataclass(frozen=True)
class Truth:
    """time = launch + bytes / bandwidth + FLOPs / peak. The default is a plain CPU with 10 GB/s."""

    launch_ms: float = 0.05
    bandwidth: Bandwidth = field(default_factory=lambda: Bandwidth(10e9))
    gflop_s: float = 310.0

    def compute_ms(self, flops: float) -> float:
        """All but moving the bytes."""
        return self.launch_ms + flops / self.gflop_s / 1e6


def latencies(
    layer: StagedLayer, sizes: Sequence[Size], truth: Truth, *, noise: float, seed: int, moved: Bytes | None = None
) -> pd.DataFrame:
    """Each stage at each size: unit, first, last, nodes, edges, ms, ms_low, ms_high, true_compute_ms, true_transfer_ms.

    A sample is the true time by exp of a normal with deviation `noise`, and each cell as a whole by another one of a
    third of it. `moved`: bytes that go over the bandwidth, those that a stage reads and writes unless told.
    """
    random, rows = np.random.default_rng(seed), []
    for stage in layer.numbers:
        for nodes, edges in sizes:
            count = moved(stage, nodes, edges) if moved else layer.bytes_moved(stage, nodes, edges)
            transfer = truth.bandwidth.ms(count)
            compute = truth.compute_ms(layer.flops(stage, stage, nodes, edges))
            times = _noisy(random, compute + transfer, noise)
            low, high = order_interval(times)
            rows.append(
                {
                    "unit": PLANTED,
                    "first": stage,
                    "last": stage,
                    "nodes": nodes,
                    "edges": edges,
                    "ms": float(np.median(times)),
                    "ms_low": low,
                    "ms_high": high,
                    "true_compute_ms": compute,
                    "true_transfer_ms": transfer,
                }
            )
    return pd.DataFrame(rows)


def sweep(truth: Truth, sizes_bytes: Sequence[int], *, noise: float, seed: int) -> pd.DataFrame:
    """Copies of so many bytes, each read and written: size_bytes, ms, ms_low, ms_high."""
    random, rows = np.random.default_rng(seed), []
    for size in sizes_bytes:
        times = _noisy(random, truth.launch_ms + truth.bandwidth.ms(2 * size), noise)
        low, high = order_interval(times)
        rows.append({"size_bytes": size, "ms": float(np.median(times)), "ms_low": low, "ms_high": high})
    return pd.DataFrame(rows)


def _noisy(random: np.random.Generator, ms: float, noise: float) -> np.ndarray:
    return ms * np.exp(random.normal(0, noise / 3) + random.normal(0, noise, SAMPLES))
