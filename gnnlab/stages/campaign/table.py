"""The measurements of a campaign as a table, and what follows from it: winners, sums against fused blocks, gaps.

    cells = table(checkpoints.raw(folder))
    winners(cells)            # which unit is fastest at which stage, by how much

A cell that has no time has none in the table either: what stands beside it, as a CPU's figure, has columns of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling.roofline import Ceilings
from gnnlab.profiling.sampling import LEAST_SAMPLES, TARGET, half_width
from gnnlab.stages.campaign.cell_inputs import layer_of
from gnnlab.stages.errors import StageError
from gnnlab.stages.units import registry as units

MEASURED = "measured"
TIMED = (MEASURED, "simulated")


def table(measurements: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each cell, by stage, size and unit.

    Columns: key, layer, features, size, nodes, edges, first, last, fused, stage ("3 REDUCE_SUM"), unit,
    processor, origin, status, ms, ms_low, ms_high, std_ms, n, samples_ms (n,), within (is the interval within 2 %?),
    parity_error, precision, threads, device, runtime_version, host, reason, notes; of cells without a time the numbers
    are NaN.

    Raises:
        StageError: there are no measurements.
    """
    if not measurements:
        raise StageError("no measurements; measure first: gnnlab stages --measure")
    rows = [_row(key, found["cell"], found["outcome"], found["host"]) for key, found in measurements.items()]
    found = pd.DataFrame(rows)
    order = ["nodes", "edges", "fused", "first", "last"]
    return found.sort_values(order, kind="stable", ignore_index=True)


def _row(key: str, cell: Mapping[str, Any], outcome: Mapping[str, Any], host: str) -> dict[str, Any]:
    unit, samples = units.find(cell["unit"]), outcome["samples_ms"]
    median, ci = outcome["median_ms"], outcome["ci_ms"] or (np.nan, np.nan)
    timed = outcome["status"] in TIMED
    numbers = f"{cell['first']}-{cell['last']}" if cell["first"] != cell["last"] else f"{cell['first']}"
    block = layer_of(cell["layer"], cell["features"]).block(cell["first"], cell["last"])
    return {
        "key": key,
        "layer": cell["layer"],
        "features": cell["features"],
        "size": f"{cell['nodes']}/{cell['edges']}",
        "nodes": cell["nodes"],
        "edges": cell["edges"],
        "first": cell["first"],
        "last": cell["last"],
        "fused": cell["first"] != cell["last"],
        "stage": f"{numbers} {block.name}",
        "unit": cell["unit"],
        "processor": unit.processor,
        "origin": unit.origin,
        "status": outcome["status"],
        "ms": median if timed else np.nan,
        "ms_low": ci[0],
        "ms_high": ci[1],
        "std_ms": outcome["std_ms"] if timed else np.nan,
        "n": len(samples),
        "samples_ms": tuple(samples),
        "within": timed and within(median, ci, len(samples)),
        "parity_error": outcome["parity_error"],
        "precision": outcome["precision"],
        "threads": outcome["threads"],
        "device": outcome["device"],
        "runtime_version": outcome["runtime_version"],
        "host": host,
        "reason": outcome["reason"] or "",
        "notes": "; ".join(outcome["notes"]),
    }


def within(median: float, ci: tuple[float, float], n: int) -> bool:
    """Is the interval of `n` samples within 2 % of their median?"""
    return n >= LEAST_SAMPLES and half_width(median, ci) <= TARGET


def measured(cells: pd.DataFrame) -> pd.DataFrame:
    return cells[cells["status"] == MEASURED]


def timed(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with a time, measured or simulated."""
    return cells[cells["status"].isin(TIMED)]


def drawn(cells: pd.DataFrame) -> pd.DataFrame:
    """Every cell of the units that have a time at all: what a heat map can show."""
    return cells[cells["unit"].isin(timed(cells)["unit"])]


def roofed(cells: pd.DataFrame, ceilings: Ceilings) -> pd.DataFrame:
    """Cells measured on this machine's CPU, against its ceilings.

    Adds bytes (what the block reads and writes), flops, bound_ms = max(bytes / bandwidth at that working set, FLOPs /
    peak), reached = bound_ms / ms with reached_low and reached_high. A block in the caches, and one whose result is a
    view of its input, may pass 1: the bound is that of a copy.
    """
    kept = measured(cells)
    kept = kept[kept["processor"] == "CPU"].copy()
    bounds = [_bound(row, ceilings) for row in kept.itertuples()]
    kept[["bytes", "flops", "bound_ms"]] = np.array(bounds, dtype=float).reshape(-1, 3)
    for name, time in (("reached", "ms"), ("reached_low", "ms_high"), ("reached_high", "ms_low")):
        kept[name] = kept["bound_ms"] / kept[time]
    return kept


def _bound(row: Any, ceilings: Ceilings) -> tuple[float, float, float]:
    layer = layer_of(row.layer, row.features)
    moved = layer.block(row.first, row.last).bytes_moved(row.nodes, row.edges)
    flops = layer.flops(row.first, row.last, row.nodes, row.edges)
    memory_ms = moved / ceilings.bandwidth_gb_s(moved) / 1e6
    return moved, flops, max(memory_ms, flops / ceilings.gemm_gflop_s / 1e6)


def winners(cells: pd.DataFrame) -> pd.DataFrame:
    """For each stage the CPU's fastest unit and the next one, of those that were measured at all sizes.

    Columns: stage, unit, next, ratio (time of the next over that of the fastest, geometric mean over the sizes),
    ci_low, ci_high, sizes, spread (slowest unit over fastest). Cells are measured one by one, in random order, so the
    interval is made of those of the cells, in quadrature.
    """
    rows = []
    kept = measured(cells)
    for stage, part in kept[kept["processor"] == "CPU"].groupby("stage", sort=False):
        wide = part.pivot(index="size", columns="unit", values="ms").dropna(axis="columns").pipe(np.log)
        means = wide.mean().sort_values()
        if len(means) < 2:
            continue
        best, second = means.index[:2]
        low, high = _log_interval(part, best, second)
        ratio = float(means[second] - means[best])
        found = {
            "ratio": ratio,
            "ci_low": ratio - low,
            "ci_high": ratio + high,
            "spread": means.iloc[-1] - means.iloc[0],
        }
        named = {"stage": stage, "unit": best, "next": second, "sizes": len(wide)}
        rows.append(named | {name: float(np.exp(value)) for name, value in found.items()})
    return pd.DataFrame(rows)


def _log_interval(part: pd.DataFrame, best: str, second: str) -> tuple[float, float]:
    """How far below and above the mean log ratio of two units over the sizes may lie."""
    ends = {unit: part[part["unit"] == unit] for unit in (best, second)}
    down = {unit: np.log(rows["ms"] / rows["ms_low"]).to_numpy() for unit, rows in ends.items()}
    up = {unit: np.log(rows["ms_high"] / rows["ms"]).to_numpy() for unit, rows in ends.items()}
    sizes = len(down[best])
    low = float(np.linalg.norm(np.concatenate([down[second], up[best]]))) / sizes
    return low, float(np.linalg.norm(np.concatenate([up[second], down[best]]))) / sizes


def relative(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells measured on the CPU with `times`: how many times as long as the fastest unit at that stage and size.

    Where no CPU was measured, all cells with a time.
    """
    kept = measured(cells)
    kept = kept[kept["processor"] == "CPU"]
    kept = timed(cells) if kept.empty else kept
    return kept.assign(times=kept["ms"] / kept.groupby(["stage", "size"])["ms"].transform("min"))


def sums(cells: pd.DataFrame) -> pd.DataFrame:
    """Stages by themselves, added up, over the same stages fused. Only where all of them have a time on that unit.

    Columns: size, unit, stage (the block), origin, ratio (above 1, fusing pays), ci_low, ci_high, sum_ms, fused_ms, n
    (the least of their samples), device, runtime, precision, threads (of the CPU). The interval goes from the sum's low
    end over the block's high end to the opposite, which holds 95 % at the least.
    """
    rows = []
    for (size, unit), part in timed(cells).groupby(["size", "unit"], sort=False):
        alone = part[part["first"] == part["last"]].set_index("first")
        for fused in part[part["first"] != part["last"]].itertuples():
            numbers = list(range(fused.first, fused.last + 1))
            if not set(numbers) <= set(alone.index):
                continue
            named = {"size": size, "unit": unit, "stage": fused.stage, "origin": fused.origin}
            where = {"device": f"{fused.processor} {fused.device}", "runtime": fused.runtime_version}
            where |= {"precision": fused.precision, "threads": fused.threads if fused.processor == "CPU" else 0}
            rows.append({**named, **_sum(alone.loc[numbers], fused), **where})
    return pd.DataFrame(rows, columns=_SUMS)


_SUMS = ["size", "unit", "stage", "origin", "ratio", "ci_low", "ci_high", "sum_ms", "fused_ms", "n", "device",
         "runtime", "precision", "threads"]  # fmt: skip


def _sum(alone: pd.DataFrame, fused: Any) -> dict[str, float]:
    total = float(alone["ms"].sum())
    below = float(np.linalg.norm(alone["ms"] - alone["ms_low"]))
    above = float(np.linalg.norm(alone["ms_high"] - alone["ms"]))
    ends = {"ci_low": (total - below) / fused.ms_high, "ci_high": (total + above) / fused.ms_low}
    n = min(int(alone["n"].min()), fused.n)
    return {"ratio": total / fused.ms, **ends, "sum_ms": total, "fused_ms": fused.ms, "n": n}


def gaps(cells: pd.DataFrame) -> pd.DataFrame:
    """What could not be measured, and why: unit, status, reason, cells, stages."""
    lacking = cells[~cells["status"].isin(TIMED)]
    lacking = lacking.sort_values("unit", kind="stable")
    grouped = lacking.groupby(["unit", "status", "reason"], sort=False)
    rows = [
        {"unit": u, "status": s, "reason": r, "cells": len(part), "stages": ", ".join(_numbers(part))}
        for (u, s, r), part in grouped
    ]
    return pd.DataFrame(rows, columns=["unit", "status", "reason", "cells", "stages"])


def _numbers(part: pd.DataFrame) -> Sequence[str]:
    order = ["fused", "first", "last"]
    pairs = part[order].drop_duplicates().sort_values(order)[["first", "last"]].itertuples(index=False)
    return [str(first) if first == last else f"{first}-{last}" for first, last in pairs]


def beside(cells: pd.DataFrame) -> pd.DataFrame:
    """Each cell without a time, and beside it the fastest time that a CPU took for it, as a CPU's figure.

    Columns: size, stage, unit, status, cpu_unit, cpu_ms, cpu_low, cpu_high (NaN where no CPU unit was measured either).
    """
    lacking = cells[~cells["status"].isin(TIMED)]
    on_cpu = measured(cells)
    on_cpu = on_cpu[on_cpu["processor"] == "CPU"].sort_values("ms").drop_duplicates(["size", "stage"])
    figures = on_cpu[["size", "stage", "unit", "ms", "ms_low", "ms_high"]]
    figures = figures.set_axis(["size", "stage", "cpu_unit", "cpu_ms", "cpu_low", "cpu_high"], axis="columns")
    return lacking[["size", "stage", "unit", "status"]].merge(figures, on=["size", "stage"], how="left")
