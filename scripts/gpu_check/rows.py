"""Rows: what is measured, statistics of samples, the lower bound of bytes, and the file of results. No torch here."""

from __future__ import annotations

import json
import math
import os
import statistics
from functools import partial
from pathlib import Path
from typing import NamedTuple

PARTS = ("tests", "prepare", "kernels", "captured", "compiled", "large", "notebooks")
MODES = ("forward", "training")
BASELINES = ("PyG", "EdgeIndex", "CSR", "torch.compile")
ATTENTION = ("GAT", "GATv2", "Transformer")
LAYERS = ("GCN", "SAGE", "GIN", *ATTENTION, "GINE")
HEADS, EDGE_FEATURES = 8, 16
LEAST_ROUNDS = 6  # with fewer samples a median has no 95 % interval
DIFFERENCE = 1e-3  # in float32; beyond it a variant computes something else than PyG as called


class Size(NamedTuple):
    """Nodes, edges, and features of a node before and after the layer."""

    nodes: int
    edges: int
    inputs: int
    outputs: int


SIZES = {  # in the order in which they are measured
    "arxiv": Size(169_343, 1_166_243, 128, 128),
    "20k": Size(20_000, 127_000, 64, 64),
    "cora": Size(2_708, 10_556, 64, 64),
    "products": Size(2_449_029, 61_859_140, 100, 64),
}
TINY = {
    "arxiv": Size(20, 60, 16, 16),
    "20k": Size(12, 30, 8, 16),
    "cora": Size(6, 12, 8, 8),
    "products": Size(16, 50, 12, 8),
}

LARGEST = ("products",)  # sizes that take most of the time, measured last
LARGE = ("arxiv", "products")  # sizes at which kernels take the time, not their launches


def interval(values: list[float]) -> tuple[float, float] | None:
    """95 % interval of the median by order statistics, which asks nothing of the distribution; None below six values.

    With k values cut off at each end it covers the median with probability 1 - 2 P(B <= k), B binomial (n, 1/2).
    """
    n = len(values)
    if n < LEAST_ROUNDS:
        return None
    tail, cut = 0.0, -1
    while tail + math.comb(n, cut + 1) / 2**n <= 0.025:
        cut += 1
        tail += math.comb(n, cut) / 2**n
    in_order = sorted(values)
    return in_order[cut], in_order[n - 1 - cut]


def estimate(values: list[float]) -> dict:
    """Median and 95 % interval of samples, as the fields of a row."""
    low, high = interval(values) or (None, None)
    return {"median": statistics.median(values), "low": low, "high": high, "n": len(values)}


def finite(value: float) -> float | None:
    """A number that JSON can hold; None for infinity and NaN."""
    return value if math.isfinite(value) else None


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def gain(row: dict, baselines: list[dict]) -> dict | None:
    """How many times as fast `row` is as the fastest of `baselines` in the same rounds; None where there are none.

    The fastest is chosen again in every round, which favours the baselines.
    """
    if not baselines or "rounds_ms" not in row:
        return None
    best = [min(times) for times in zip(*(one["rounds_ms"] for one in baselines), strict=True)]
    return estimate([theirs / own for theirs, own in zip(best, row["rounds_ms"], strict=True)])


def bytes_moved(layer: str, size: Size, mode: str, itemsize: int) -> int:
    """Bytes that a layer has to move if it keeps nothing in a cache and stores nothing for an edge.

    Node features, edges (int64) and features of edges are read once and outputs written once; what an edge gathers of
    its other end is read once for each edge. Training adds the same for the gradients: that of the output is read,
    that of x written, x and edges are read again, and each edge gathers what its gradients need. Products of matrices,
    parameters and what lies between two steps on nodes count nothing, so it is a lower bound without a cache.
    """
    nodes, edges, inputs, outputs = size
    summed = inputs if layer in ("SAGE", "GIN", "GINE") else outputs  # numbers in a gathered row
    gathered = {"GAT": outputs + HEADS, "Transformer": 2 * outputs}.get(layer, summed)
    back = {"GAT": 2 * outputs + 2 * HEADS, "GATv2": 2 * outputs, "Transformer": 3 * outputs, "GINE": 2 * inputs}
    attributes = edges * EDGE_FEATURES if layer == "GINE" else 0
    numbers = nodes * (inputs + outputs) + attributes + edges * gathered
    indices = 2 * edges * 8
    if mode == "forward":
        return numbers * itemsize + indices
    numbers += nodes * (2 * inputs + outputs) + attributes + edges * back.get(layer, summed)
    return numbers * itemsize + 2 * indices


def save(folder: Path, results: dict) -> None:
    """Write gpu_check.json, one row a line, whole or not at all."""
    dumps = partial(json.dumps, allow_nan=False)
    fields = []
    for name, value in results.items():
        rows = isinstance(value, list) and value
        text = "[\n  " + ",\n  ".join(map(dumps, value)) + "\n ]" if rows else dumps(value)
        fields.append(f" {json.dumps(name)}: {text}")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"gpu_check.{os.getpid()}.tmp"
    temporary.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")
    temporary.replace(folder / "gpu_check.json")


def load(folder: Path) -> dict:
    """The results in gpu_check.json."""
    return json.loads((folder / "gpu_check.json").read_text(encoding="utf-8"))
