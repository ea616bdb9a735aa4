"""Study 5's estimate of bandwidth, as it stands, and what its data can and cannot tell apart.

    found = regress(cells)            # slope and intercept of latency over bytes, by unit and stage
    diagnosis(layer, sizes)           # is there anything in these sizes that tells bandwidth from arithmetic?

The study takes latency = compute + bytes / bandwidth, fits a line through the latencies of a stage over its bytes, and
reads the slope as 1 / bandwidth and the intercept as the compute time. Its bytes are an estimate of what a stage reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import linregress

from gnnlab.stages.bandwidth.measured_hull import Size
from gnnlab.stages.bandwidth.quantities import Bandwidth
from gnnlab.stages.errors import StageError
from gnnlab.workloads.staged import StagedLayer

NUMBER_BYTES = 4  # the study counts numbers; float32
STAGES = range(1, 8)  # its layer, GraphSAGE
FEWEST_SIZES = 3  # a line through two points fits whatever they are
TELLS_APART = 30.0  # condition number above which columns are too collinear to be told apart (Belsley 1980)
DRAWS = 400


def data_bytes(stage: int, nodes: int, edges: int, features: int) -> int:
    """Bytes of a stage as the study estimates them: x and edge_index, messages and edge_index, or x alone.

    Raises:
        StageError: a stage that the study does not have.
    """
    rows, edge_index = nodes * features, 2 * edges
    numbers = {1: rows + edge_index, 2: edges * features + edge_index, 3: edges * features + edge_index,
               4: rows + edge_index, 5: rows + nodes, 6: rows, 7: rows}  # fmt: skip
    if stage not in numbers:
        raise StageError(f"the study estimates no bytes for stage {stage}; it has stages 1..7")
    return NUMBER_BYTES * numbers[stage]


def regress(cells: pd.DataFrame, features: int, *, seed: int = 0) -> pd.DataFrame:
    """A row for each unit and stage with times at three sizes and more.

    Columns: unit, stage, sizes, distinct (different numbers of bytes), slope_ms_per_byte, intercept_ms, r2, mb_s (of
    1 / slope, NaN where the slope is not above 0, for then there is none), intercept_low, intercept_high, slope_low,
    slope_high. The intervals (95 %): latencies drawn within their own, as the study's regression has none.
    """
    rows = []
    if "layer" in cells:
        cells = cells[cells["layer"] == "sage"]  # the study has no other
    alone = cells[(cells["first"] == cells["last"]) & cells["ms"].notna() & cells["first"].isin(STAGES)]
    for (unit, stage), part in alone.groupby(["unit", "first"], sort=False):
        size = np.array([data_bytes(stage, n, e, features) for n, e in zip(part["nodes"], part["edges"], strict=True)])
        if len(part) >= FEWEST_SIZES and len(set(size)) > 1:
            rows.append({"unit": unit, "stage": stage, **_line(size, part, seed)})
    columns = ["unit", "stage", "sizes", "distinct", "slope_ms_per_byte", "slope_low", "slope_high", "intercept_ms",
               "intercept_low", "intercept_high", "r2", "mb_s"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _line(size: np.ndarray, part: pd.DataFrame, seed: int) -> dict[str, Any]:
    times = part["ms"].to_numpy()
    fit = linregress(size, times)
    drawn = np.array([_slope_and_intercept(size, row) for row in draws(part, DRAWS, seed)])
    (slope_low, intercept_low), (slope_high, intercept_high) = np.percentile(drawn, [2.5, 97.5], axis=0)
    return {
        "sizes": len(part),
        "distinct": len(set(size.tolist())),
        "slope_ms_per_byte": float(fit.slope),
        "slope_low": slope_low,
        "slope_high": slope_high,
        "intercept_ms": float(fit.intercept),
        "intercept_low": intercept_low,
        "intercept_high": intercept_high,
        "r2": float(fit.rvalue**2),
        "mb_s": Bandwidth.of(1, fit.slope).mb_s if fit.slope > 0 else np.nan,
    }


def draws(part: pd.DataFrame, count: int, seed: int) -> np.ndarray:
    """Latencies (count, rows) drawn as log-normal within their intervals."""
    spread = np.log(part["ms_high"] / part["ms_low"]).to_numpy() / (2 * 1.96)
    noise = np.random.default_rng(seed).normal(0, 1, (count, len(part)))
    return part["ms"].to_numpy() * np.exp(noise * spread)


def _slope_and_intercept(size: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    centred = size - size.mean()
    slope = float(centred @ times / (centred @ centred))
    return slope, float(times.mean() - slope * size.mean())


def collinearity(sizes: Sequence[Size]) -> dict[str, float]:
    """How far the sizes let nodes and edges be told apart.

    correlation of N and E, its variance inflation 1 / (1 - r**2), the condition number of [1, N, E] with columns of
    length 1, and the share of sizes with fewer edges than nodes.
    """
    table = np.array(sizes, dtype=float)
    flat = len(table) < 2 or np.ptp(table, axis=0).min() == 0
    r = 1.0 if flat else float(np.corrcoef(table.T)[0, 1])
    return {
        "correlation": r,
        "inflation": float("inf") if abs(r) > 1 - 1e-12 else 1 / (1 - r**2),
        "condition": condition(np.column_stack([np.ones(len(table)), table])),
        "fewer_edges": float((table[:, 1] < table[:, 0]).mean()),
    }


def condition(columns: np.ndarray) -> float:
    """Condition number of (rows, columns), each column brought to length 1; infinity where one is made of others."""
    lengths = np.linalg.norm(columns, axis=0)
    if not (lengths > 0).all():
        return float("inf")
    values = np.linalg.svd(columns / lengths, compute_uv=False)
    enough = len(columns) >= columns.shape[1] and values[-1] > 1e-9 * values[0]
    return float(values[0] / values[-1]) if enough else float("inf")


def diagnosis(layer: StagedLayer, sizes: Sequence[Size]) -> pd.DataFrame:
    """For each stage what can be told apart from its latencies at these sizes.

    Columns: stage ("6 TRANSFORM"), distinct (numbers of bytes moved), condition (of [1, bytes, FLOPs]; NaN where it has
    no FLOPs), counted (the study's bytes over those that the stage moves, at the largest size), bandwidth (can it be
    told from arithmetic?), why.
    """
    rows = []
    for stage in layer.stages:
        number = stage.number
        moved = np.array([layer.bytes_moved(number, *size) for size in sizes], dtype=float)
        flops = np.array([layer.flops(number, number, *size) for size in sizes], dtype=float)
        found = condition(np.column_stack([np.ones(len(sizes)), moved, flops])) if flops.any() else np.nan
        study = data_bytes(number, *max(sizes), layer.features) if layer.name == "sage" else np.nan
        why = _why(found, len(set(moved.tolist())))
        rows.append(
            {
                "stage": f"{number} {stage.name}",
                "distinct": len(set(moved.tolist())),
                "condition": found,
                "counted": study / layer.bytes_moved(number, *max(sizes)),
                "bandwidth": not why,
                "why": why or "it does no arithmetic, or not in proportion to its bytes",
            }
        )
    return pd.DataFrame(rows)


def _why(found: float, distinct: int) -> str:
    if distinct < FEWEST_SIZES:
        return f"only {distinct} different numbers of bytes"
    if np.isinf(found):
        return "its arithmetic grows exactly as its bytes do"
    if found > TELLS_APART:
        return f"its arithmetic grows nearly as its bytes do (condition number {found:.0f})"
    return ""
