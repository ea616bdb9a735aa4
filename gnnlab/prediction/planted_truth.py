"""Planted latencies of made-up machines, whose bandwidth is known: estimates of it can be checked.

truth = Truth(launch_ms=0.05, gb_s=10, gflop_s=310)
cells = latencies(layer, sizes, truth, noise=0.02, seed=0)       # as the table of a campaign has them
sweep(truth, [4096, 2**20], noise=0.02, seed=0)                  # times of copies: the transfer by itself
machines(sizes, fit)                                             # how far off both methods are on 20 of them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.prediction import regression
from gnnlab.prediction.copies import CopyCurve
from gnnlab.prediction.predictor import Size
from gnnlab.profiling.estimates import order_interval
from gnnlab.workloads.staged import StagedLayer

SAMPLES = 25
PLANTED = "planted"
CONDITIONS = {"device": "planted machine", "runtime": "planted times", "precision": "float32", "threads": 0}
GB_S = (5.0, 10.0, 40.0)
NOISE = 0.02
SWEEP_BYTES = tuple(4096 * 4**step for step in range(7))
TRANSFORM, FEATURES = 6, 500  # of S4's GraphSAGE
Bytes = Callable[[int, int, int], float]  # of stage, nodes, edges


@dataclass(frozen=True)
class Truth:
    """time = launch + bytes / bandwidth + FLOPs / peak. The default is a plain CPU with 10 GB/s."""

    launch_ms: float = 0.05
    gb_s: float = 10.0
    gflop_s: float = 310.0

    def compute_ms(self, flops: float) -> float:
        """Launch and arithmetic, without moving the bytes."""
        return self.launch_ms + flops / self.gflop_s / 1e6

    def moving_ms(self, moved_bytes: float) -> float:
        return moved_bytes / self.gb_s / 1e6


def latencies(
    layer: StagedLayer, sizes: Sequence[Size], truth: Truth, *, noise: float, seed: int, moved: Bytes | None = None
) -> pd.DataFrame:
    """Each stage at each size: unit, first, last, nodes, edges, ms, ms_low, ms_high, n.

    A sample is the true time by exp of a normal with deviation `noise`, and each cell as a whole by another one of a
    third of it. `moved`: bytes that go over the bandwidth, by default those that a stage reads and writes.
    """
    random, rows, bytes_of = np.random.default_rng(seed), [], moved or layer.bytes_moved
    for stage, (nodes, edges) in product(layer.numbers, sizes):
        true_ms = truth.compute_ms(layer.flops(stage, stage, nodes, edges))
        true_ms += truth.moving_ms(bytes_of(stage, nodes, edges))
        at = {"unit": PLANTED, "first": stage, "last": stage, "nodes": nodes, "edges": edges}
        rows.append({**at, **_measured(random, true_ms, noise)})
    return pd.DataFrame(rows)


def sweep(truth: Truth, sizes_bytes: Sequence[int], *, noise: float, seed: int) -> pd.DataFrame:
    """Copies of so many bytes, each read and written: size_bytes, ms, ms_low, ms_high, n."""
    random = np.random.default_rng(seed)
    times = [_measured(random, truth.launch_ms + truth.moving_ms(2 * size), noise) for size in sizes_bytes]
    return pd.DataFrame(times).assign(size_bytes=list(sizes_bytes))


def _measured(random: np.random.Generator, ms: float, noise: float) -> dict[str, float]:
    samples = ms * np.exp(random.normal(0, noise / 3) + random.normal(0, noise, SAMPLES))
    low, high = order_interval(samples)
    return {"ms": float(np.median(samples)), "ms_low": low, "ms_high": high, "n": SAMPLES}


def machines(sizes: Sequence[Size], fit: regression.Fitted, count: int = 20) -> pd.DataFrame:
    """Made-up machines of 5, 10 and 40 GB/s: machine, planted_gb_s, copies_off (%, the mean error of the bandwidth that
    copies, measured by themselves, recover), n (sizes of copies that have one), line_too_low (planted bandwidth over
    that of `fit` for TRANSFORM).

    S4's method is taken at its best: latencies follow its own model and its own count of bytes.
    """
    layer, rows = layer_of("sage", FEATURES), []

    def moved(stage: int, nodes: int, edges: int) -> float:
        return regression.data_bytes(stage, nodes, edges, FEATURES)

    for machine in range(count):
        truth = Truth(gb_s=GB_S[machine % len(GB_S)])
        curve = CopyCurve.fit(sweep(truth, SWEEP_BYTES, noise=NOISE, seed=machine))
        rates = np.array([curve.gb_s(size)[0] for size in SWEEP_BYTES])
        errors = 100 * np.abs(rates[np.isfinite(rates)] / truth.gb_s - 1)
        cells = latencies(layer, sizes, truth, noise=NOISE, seed=machine, moved=moved)
        cells = cells[cells["first"] == TRANSFORM]
        slope, _ = fit(moved(TRANSFORM, cells["nodes"], cells["edges"]).to_numpy(), cells["ms"].to_numpy())
        off = {"copies_off": errors.mean(), "n": len(errors), "line_too_low": truth.gb_s * slope * 1e6}
        rows.append({"machine": machine, "planted_gb_s": truth.gb_s, **off})
    return pd.DataFrame(rows)
