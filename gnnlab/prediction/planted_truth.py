"""Planted latencies of made-up machines, whose bandwidth is known: estimates of it can be checked.

truth = Truth(launch_ms=0.05, gb_s=10, gflop_s=310)
sweep(truth, [4096, 2**20], noise=0.02, seed=0)                  # times of copies: the transfer by itself
machines(sizes, fit)                                             # how far off both methods are on 20 of them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gnnlab.campaign.cells import layer_of
from gnnlab.measure.estimates import order_interval
from gnnlab.prediction.copies import CopyCurve
from gnnlab.prediction.predictor import Size
from gnnlab.prediction.regression import Fitted, data_bytes

SAMPLES = 25
CONDITIONS = {"device": "planted machine", "runtime": "planted times", "precision": "float32", "threads": 0}
GB_S = (5.0, 10.0, 40.0)
NOISE = 0.02
SWEEP_BYTES = tuple(4096 * 4**step for step in range(7))
TRANSFORM, FEATURES = 6, 500  # of S4's GraphSAGE


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


def sweep(truth: Truth, sizes_bytes: Sequence[int], *, noise: float, seed: int) -> pd.DataFrame:
    """Copies of so many bytes, each read and written: size_bytes, ms, ms_low, ms_high, n."""
    random = np.random.default_rng(seed)
    times = [noisy(random, truth.launch_ms + truth.moving_ms(2 * size), noise) for size in sizes_bytes]
    return pd.DataFrame(times).assign(size_bytes=list(sizes_bytes))


def noisy(random: np.random.Generator, ms: float, noise: float) -> dict[str, float]:
    """A measurement of `ms`: each sample by exp of a normal with deviation `noise`, all of them by one of a third of
    it; ms, ms_low, ms_high, n."""
    samples = ms * np.exp(random.normal(0, noise / 3) + random.normal(0, noise, SAMPLES))
    low, high = order_interval(samples)
    return {"ms": float(np.median(samples)), "ms_low": low, "ms_high": high, "n": SAMPLES}


def machines(sizes: Sequence[Size], fit: Fitted, count: int = 20) -> dict[str, pd.DataFrame]:
    """Made-up machines of 5, 10 and 40 GB/s, as rows by study: of `planted_bandwidth` the mean error (%) of the
    bandwidth that copies, measured by themselves, recover, over so many sizes of copies as have one; of
    `planted_regression` the planted bandwidth over that of `fit` for TRANSFORM.

    S4's method is taken at its best: latencies follow its own model and its own count of bytes.
    """
    layer, rows, (nodes, edges) = layer_of("sage", FEATURES), [], np.array(sizes).T
    moved = data_bytes(TRANSFORM, nodes, edges, FEATURES)  # (sizes,)
    flops = np.array([layer.flops(TRANSFORM, TRANSFORM, *size) for size in sizes])
    for machine in range(count):
        truth = Truth(gb_s=GB_S[machine % len(GB_S)])
        curve = CopyCurve.fit(sweep(truth, SWEEP_BYTES, noise=NOISE, seed=machine))
        rates = np.array([curve.gb_s(size)[0] for size in SWEEP_BYTES])
        errors = 100 * np.abs(rates[np.isfinite(rates)] / truth.gb_s - 1)
        random, true_ms = np.random.default_rng(machine), truth.compute_ms(flops) + truth.moving_ms(moved)
        slope, _ = fit(moved, np.array([noisy(random, ms, NOISE)["ms"] for ms in true_ms]))
        rows.append((machine, truth.gb_s, errors.mean(), len(errors), truth.gb_s * slope * 1e6))
    table = pd.DataFrame(rows, columns=["machine", "planted_gb_s", "off", "n", "too_low"])
    table = table.assign(origin="simulated", better="lower", interval="none", **CONDITIONS)
    by_copy = table.assign(form="measured copies", value=table["off"], unit="%", statistic="mean")
    by_line = table.assign(form="S4", value=table["too_low"], n=len(sizes), unit="x", statistic="estimate")
    return {"planted_bandwidth": by_copy, "planted_regression": by_line}
