"""Measured copies: through each unit, as cells of a campaign, and in this process plain and out of a unit's results.

The identity is stage 2 of GraphSAGE, so the same children, checks and journal serve as for the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab import machine
from gnnlab.campaign.cell_inputs import layer_of, load, values_of
from gnnlab.campaign.cells import Cell
from gnnlab.errors import GnnlabError
from gnnlab.export.export import export
from gnnlab.prediction.measured import CONDITIONS
from gnnlab.prediction.transfer import NOT_TOLD, PLAIN_COPY, CopyCurve, MeasuredTransfers, base, copier, lent, sums_only
from gnnlab.profiling import timing
from gnnlab.profiling.estimates import CONFIDENCE
from gnnlab.units import registry as units
from gnnlab.units.unit import Unit

IDENTITY, STAGE = "sage", 2
LEAST_BYTES = 4096
NODES = 2  # of the graph of a copy, which the identity does not look at
COPIES = ["unit", "size_bytes", "mib", "ms", "ms_low", "ms_high", "n", "samples_ms", *CONDITIONS]
Result = Callable[[], np.ndarray]


def sweep_sizes(cells: pd.DataFrame, features: int, points: int) -> list[int]:
    """Edges of the copies: from 4 KiB to the most that any cell reads and writes, evenly on a logarithmic scale."""
    layer = layer_of(cells["layer"].iloc[0], int(cells["features"].iloc[0]))
    most = max(layer.block(r.first, r.last).bytes_moved(r.nodes, r.edges) for r in cells.itertuples()) / 2
    row_bytes = 4 * features
    sizes = np.geomspace(max(LEAST_BYTES, row_bytes), max(most, 4 * LEAST_BYTES, 4 * row_bytes), points)
    return [int(edges) for edges in np.unique(np.maximum(1, np.rint(sizes / row_bytes)))]


def identity_cells(like: Cell, sweep: Sequence[int], chosen: Sequence[str], models: Path) -> list[Cell]:
    """A cell for each size and unit that copies, once the identity is exported for its runtime."""
    copiers = [unit for unit in chosen if not sums_only(unit)]
    export_identity(dict.fromkeys([*copiers, *map(base, chosen)]), like.features, models, sweep)
    return [_identity(like, edges, unit) for edges in sweep for unit in copiers]


def _identity(like: Cell, edges: int, unit: str) -> Cell:
    return Cell(IDENTITY, like.features, NODES, edges, STAGE, STAGE, unit, like.precision, like.threads)


def export_identity(names: Iterable[str], features: int, models: Path, sweep: Sequence[int]) -> None:
    """Its model for each runtime that needs one, of each size where shapes are fixed; what is there stays."""
    for unit in map(units.find, names):
        if unit.exporter is not None:
            for size in [(NODES, edges) for edges in sweep] if unit.static_shapes else [None]:
                layer = layer_of(IDENTITY, features)
                export(layer, STAGE, STAGE, exporter=unit.exporter, folder=models, size=size)


def through_units(found: pd.DataFrame, sweep: Sequence[int]) -> pd.DataFrame:
    """The copies among measured cells: unit, size_bytes, mib, ms, ms_low, ms_high, n, samples_ms, conditions."""
    kept = found[(found["nodes"] == NODES) & found["edges"].isin(sweep) & found["ms"].notna()]
    kept = _sized(kept.assign(size_bytes=4 * kept["edges"] * kept["features"]))
    return kept[COPIES].sort_values(["unit", "size_bytes"], kind="stable", ignore_index=True)


def plain_copies(sweep: Sequence[int], features: int, budget_s: float) -> pd.DataFrame:
    """Copies by numpy from array to array, as `through_units` gives those through units."""
    found = _swept(sweep, features, budget_s, lambda edges: nullcontext(np.ones((edges, features), np.float32).view))
    about = {"device": f"CPU {machine.processor()}", "runtime": f"numpy {np.__version__}"}
    return _sized(found.assign(unit=PLAIN_COPY, precision="float32", threads=1, **about))[COPIES]


def measured_transfers(
    copies: pd.DataFrame, like: Cell, chosen: Sequence[str], sweep: Sequence[int], models: Path, budget_s: float
) -> MeasuredTransfers:
    """Of `copies` through units and plain ones; what units of this memory hand on is measured here, at some sizes."""
    fitted = {unit: CopyCurve.fit(part) for unit, part in copies.groupby("unit", sort=False) if len(part) > 1}
    through = {unit: fitted[copier(unit)] for unit in chosen if copier(unit) in fitted}
    separate = frozenset(unit for unit in chosen if units.find(unit).processor != "CPU")
    some, handed = sweep[::2] if len(sweep) > 4 else sweep, {}
    for source in dict.fromkeys(base(unit) for unit in chosen if unit not in separate):
        results = partial(results_of, units.find(source), like, models)
        handed[source] = CopyCurve.fit(_swept(some, like.features, budget_s, results))
    out_of = {unit: handed[base(unit)] for unit in chosen if unit not in separate}
    return MeasuredTransfers(fitted[PLAIN_COPY], through, out_of, separate)


def _sized(copies: pd.DataFrame) -> pd.DataFrame:
    return copies.assign(mib=(copies["size_bytes"] / 2**20).round(4))


def _swept(
    sweep: Sequence[int], features: int, budget_s: float, source: Callable[[int], AbstractContextManager[Result]]
) -> pd.DataFrame:
    """Copies of what `source` gives into an array that is there: size_bytes, ms, ms_low, ms_high, n, samples_ms."""
    rows, buffer = [], np.empty((max(sweep), features), np.float32)
    for edges in sweep:
        with source(edges) as written:
            found = timing.measure(partial(np.copyto, buffer[:edges]), setup=written, budget_s=budget_s / 2)
        low, high = found.ci_ms
        row = {"size_bytes": 4 * edges * features, "ms": found.median_ms, "ms_low": low, "ms_high": high}
        rows.append({**row, "n": found.n, "samples_ms": found.samples_ms})
    return pd.DataFrame(rows)


@contextmanager
def results_of(unit: Unit, like: Cell, models: Path, edges: int) -> Iterator[Result]:
    """A function that lets the unit write its result anew. Raises `GnnlabError` where that is not what it was given."""
    cell = _identity(like, edges, unit.name)
    values = values_of(cell)
    loaded, given = load(unit, cell, str(models), like.precision), values["x_j"]

    def written() -> np.ndarray:
        (result,) = loaded.run(values).values()
        return result

    try:
        if not np.allclose(written(), given, rtol=0, atol=1e-5 * float(np.abs(given).max())):
            raise GnnlabError(f"{unit.name}: a copy of {edges} rows through it is not what it was given")
        yield written
    finally:
        loaded.close()


# ---- as rows ---------------------------------------------------------------------------------------------------------


def rates(copies: pd.DataFrame, transfers: MeasuredTransfers) -> pd.DataFrame:
    """GB/s of the copies by size (mib) and unit (form). No unit has the number of another one: one that is lent the
    copies of another says so in place of a number, under that one's conditions."""
    curves = {**transfers.through, PLAIN_COPY: transfers.plain}
    parts = []
    for unit, curve in curves.items():
        why = "" if unit == PLAIN_COPY else lent(unit)
        part = copies[copies["unit"] == (copier(unit) if why else unit)]
        none = (np.nan,) * 3
        found = [none if why else curve.gb_s(size) for size in part["size_bytes"]]
        value, low, high = np.array(found).reshape(-1, 3).T
        status = np.where(np.isnan(value), "unavailable", "ok")
        parts.append(part.assign(form=unit, value=value, low=low, high=high, status=status, reason=why or NOT_TOLD))
    fixed = {"unit": "GB/s", "better": "higher", "statistic": "estimate", "interval": CONFIDENCE, "origin": "measured"}
    found = pd.concat(parts).assign(**fixed)
    return found.assign(reason=found["reason"].where(found["status"] != "ok"))
