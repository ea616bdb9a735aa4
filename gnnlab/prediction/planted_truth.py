"""Planted latencies of made-up machines, whose bandwidth is known: estimates of it can be checked.

truth = Truth(launch_ms=0.05, gb_s=10, gflop_s=310)
cells = latencies(layer, sizes, truth, noise=0.02, seed=0)       # as the table of a campaign has them
sweep(truth, [4096, 2**20], noise=0.02, seed=0)                  # times of copies: the transfer by itself
copies, s4 = machines(sizes, fit)                                # rows: how far off both methods are on 20 of them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.prediction import regression
from gnnlab.prediction.measured import Size
from gnnlab.prediction.transfer import CopyCurve
from gnnlab.profiling.estimates import order_interval
from gnnlab.workloads.staged import StagedLayer

SAMPLES = 25
PLANTED = "planted"
CONDITIONS = {"device": "planted machine", "runtime": "planted times", "precision": "float32", "threads": 0}
COPIES = "measured copies"
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
        truly = truth.compute_ms(layer.flops(stage, stage, nodes, edges))
        truly += truth.moving_ms(bytes_of(stage, nodes, edges))
        at = {"unit": PLANTED, "first": stage, "last": stage, "nodes": nodes, "edges": edges}
        rows.append({**at, **_seen(random, truly, noise)})
    return pd.DataFrame(rows)


def sweep(truth: Truth, sizes_bytes: Sequence[int], *, noise: float, seed: int) -> pd.DataFrame:
    """Copies of so many bytes, each read and written: size_bytes, ms, ms_low, ms_high, n."""
    random = np.random.default_rng(seed)
    times = [_seen(random, truth.launch_ms + truth.moving_ms(2 * size), noise) for size in sizes_bytes]
    return pd.DataFrame(times).assign(size_bytes=list(sizes_bytes))


def _seen(random: np.random.Generator, ms: float, noise: float) -> dict[str, float]:
    samples = ms * np.exp(random.normal(0, noise / 3) + random.normal(0, noise, SAMPLES))
    low, high = order_interval(samples)
    return {"ms": float(np.median(samples)), "ms_low": low, "ms_high": high, "n": SAMPLES}


def machines(sizes: Sequence[Size], fit: regression.Fitted, count: int = 20) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two frames of rows, by machine and planted_gb_s: the error (%) of the bandwidth that copies, measured by
    themselves, recover, mean over the sizes that tell one; and how many times too low that of `fit` is for TRANSFORM.

    S4's method is taken at its best: latencies follow its own model and its own count of bytes.
    """
    layer, copies, s4 = layer_of("sage", FEATURES), [], []
    for machine in range(count):
        truth = Truth(gb_s=GB_S[machine % len(GB_S)])
        key = {"machine": machine, "planted_gb_s": truth.gb_s}
        curve = CopyCurve.fit(sweep(truth, SWEEP_BYTES, noise=NOISE, seed=machine))
        found = np.array([curve.gb_s(size)[0] for size in SWEEP_BYTES])
        errors = 100 * np.abs(found[np.isfinite(found)] / truth.gb_s - 1)
        copies.append({**key, "value": errors.mean(), "n": len(errors), "worst": errors.max()})
        cells = latencies(
            layer, sizes, truth, noise=NOISE, seed=machine,
            moved=lambda stage, nodes, edges: regression.data_bytes(stage, nodes, edges, FEATURES),
        )  # fmt: skip
        part = cells[cells["first"] == TRANSFORM]
        moved_bytes = regression.data_bytes(TRANSFORM, part["nodes"], part["edges"], FEATURES)
        line = regression.line(*(c.to_numpy() for c in (moved_bytes, part["ms"], part["ms_low"], part["ms_high"])), fit)
        status = {"status": "unavailable", "reason": line.why} if line.why else {}
        s4.append({**key, "value": truth.gb_s / line.gb_s[0], "n": line.n, "notes": f"R2 {line.r2:.4f}", **status})
    fixed = {"origin": "simulated", "better": "lower", "interval": "none", **CONDITIONS}
    found, lines = pd.DataFrame(copies), pd.DataFrame(s4)
    note = (
        f"worst size {found['worst'].max():.2g} %; S4's method, given its own model, is {lines['value'].min():.3g} to "
    )
    note += f"{lines['value'].max():.3g} times too low for TRANSFORM"
    return (
        found.assign(form=COPIES, unit="%", statistic="mean", notes=note, **fixed),
        lines.assign(form=regression.S4, unit="x", statistic="estimate", **fixed),
    )
