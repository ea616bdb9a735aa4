"""Measured copies: through each unit, as cells of a campaign, and plain ones in this process.

The identity is stage 2 of GraphSAGE, so the same children, checks and journal serve as for the stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab import machine
from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.campaign.cells import Cell
from gnnlab.export.export import export
from gnnlab.prediction.measured import CONDITIONS
from gnnlab.prediction.transfer import HIDDEN, PLAIN_COPY, CopyCurve, MeasuredTransfers
from gnnlab.profiling import timing
from gnnlab.profiling.estimates import CONFIDENCE
from gnnlab.units import registry as units
from gnnlab.units.torch_units import FastUnit

IDENTITY, STAGE = "sage", 2
LEAST_BYTES = 4096
NODES = 2  # of the graph of a copy, which the identity does not look at
COPIES = ["unit", "size_bytes", "mib", "ms", "ms_low", "ms_high", "n", "samples_ms", *CONDITIONS]


def sweep_sizes(cells: pd.DataFrame, features: int, points: int) -> list[int]:
    """Edges of the copies: from 4 KiB to the most that any cell reads and writes, evenly on a logarithmic scale."""
    layer = layer_of(cells["layer"].iloc[0], int(cells["features"].iloc[0]))
    most = max(layer.block(r.first, r.last).bytes_moved(r.nodes, r.edges) for r in cells.itertuples()) / 2
    row_bytes = 4 * features
    sizes = np.geomspace(max(LEAST_BYTES, row_bytes), max(most, 4 * LEAST_BYTES, 4 * row_bytes), points)
    return [int(edges) for edges in np.unique(np.maximum(1, np.rint(sizes / row_bytes)))]


def identity_cells(like: Cell, sweep: Sequence[int], chosen: Sequence[str], models: Path) -> list[Cell]:
    """A cell for each size and unit that has the identity, once that is exported for its runtime."""
    copying = [unit for unit in chosen if not sums_only(unit)]
    export_identity(copying, like.features, models, sweep)
    about = like.precision, like.threads
    return [
        Cell(IDENTITY, like.features, NODES, edges, STAGE, STAGE, unit, *about) for edges in sweep for unit in copying
    ]


def sums_only(unit: str) -> bool:
    """Has a unit only blocks that sum over neighbours, and so no identity?"""
    processing_unit = units.find(unit)
    return isinstance(processing_unit, FastUnit) or processing_unit.exporter == "handbuilt"


def export_identity(names: Iterable[str], features: int, models: Path, sweep: Sequence[int]) -> None:
    """Its model for each runtime that needs one, of each size where shapes are fixed; what is there stays."""
    for unit in map(units.find, names):
        if unit.exporter is not None:
            for size in [(NODES, edges) for edges in sweep] if unit.static_shapes else [None]:
                layer = layer_of(IDENTITY, features)
                export(layer, STAGE, STAGE, exporter=unit.exporter, folder=models, size=size)


def through_units(measured: pd.DataFrame, sweep: Sequence[int]) -> pd.DataFrame:
    """The copies among measured cells: unit, size_bytes, mib, ms, ms_low, ms_high, n, samples_ms, conditions."""
    swept = measured[(measured["nodes"] == NODES) & measured["edges"].isin(sweep) & measured["ms"].notna()]
    swept = _sized(swept.assign(size_bytes=4 * swept["edges"] * swept["features"]))
    return swept[COPIES].sort_values(["unit", "size_bytes"], kind="stable", ignore_index=True)


def plain_copies(sweep: Sequence[int], features: int, budget_s: float) -> pd.DataFrame:
    """Copies by numpy from array to array, as `through_units` gives those through units."""
    rows = []
    for edges in sweep:
        source = np.ones((edges, features), np.float32)
        timed = timing.measure(partial(np.copyto, np.empty_like(source), source), budget_s=budget_s / 2)
        low, high = timed.ci_ms
        row = {"size_bytes": source.nbytes, "ms": timed.median_ms, "ms_low": low, "ms_high": high}
        rows.append({**row, "n": timed.n, "samples_ms": timed.samples_ms})
    about = {"device": f"CPU {machine.processor()}", "runtime": f"numpy {np.__version__}"}
    return _sized(pd.DataFrame(rows).assign(unit=PLAIN_COPY, precision="float32", threads=1, **about))[COPIES]


def measured_transfers(copies: pd.DataFrame) -> MeasuredTransfers:
    """The curves of `copies` through units and of plain ones."""
    curves = {unit: CopyCurve.fit(part) for unit, part in copies.groupby("unit", sort=False) if len(part) > 1}
    return MeasuredTransfers(curves.pop(PLAIN_COPY), curves)


def _sized(copies: pd.DataFrame) -> pd.DataFrame:
    return copies.assign(mib=(copies["size_bytes"] / 2**20).round(4))


# ---- as rows ---------------------------------------------------------------------------------------------------------


def rates(copies: pd.DataFrame, transfers: MeasuredTransfers) -> pd.DataFrame:
    """GB/s of the copies by size (mib) and unit (form)."""
    parts = []
    for unit, curve in {**transfers.through, PLAIN_COPY: transfers.plain}.items():
        part = copies[copies["unit"] == unit]
        value, low, high = np.array([curve.gb_s(size) for size in part["size_bytes"]]).reshape(-1, 3).T
        parts.append(part.assign(form=unit, value=value, low=low, high=high))
    rows = pd.concat(parts)
    hidden = rows["value"].isna()
    status = {"status": np.where(hidden, "unavailable", "ok"), "reason": pd.Series(HIDDEN, rows.index).where(hidden)}
    fixed = {"unit": "GB/s", "better": "higher", "statistic": "estimate", "interval": CONFIDENCE, "origin": "measured"}
    return rows.assign(**status, **fixed)
