"""What notebook 06 measures beside the campaign of notebook 05, in one call: copies, and sizes that no fit has seen.

    study = measure(outputs / "tables", stages=outputs / "stages", models=outputs / "exported_models", off_grid=12)
    study.grid            # the cells that predictions are fitted to
    study.compared        # sizes never fitted: measured beside predicted; and sizes measured a second time
    study.transfers, study.predictor

It is a campaign like that of notebook 05, in a folder of its own: each unit in a child process, in random order, with
canaries, journaled, known cells not measured again. Copies are stage 2 of GraphSAGE, the identity, at sizes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling import timing
from gnnlab.stages.bandwidth import measured_hull, tables
from gnnlab.stages.bandwidth.measured_hull import Size
from gnnlab.stages.bandwidth.prediction import INTERPOLATED, SIMULATED, Predictor
from gnnlab.stages.bandwidth.transfer import PLAIN_COPY, Curve, Transfers, base, copier, sums_only
from gnnlab.stages.campaign import campaign
from gnnlab.stages.campaign import table as campaign_table
from gnnlab.stages.campaign import wanted_cells as campaign_cells
from gnnlab.stages.campaign.campaign import Done
from gnnlab.stages.campaign.cell_inputs import RANDOM, layer_of, model_for, values_of
from gnnlab.stages.campaign.cells import Cell, Settings
from gnnlab.stages.campaign.local_units import LocalUnits
from gnnlab.stages.campaign.sizes import Size as NamedSize
from gnnlab.stages.errors import StageError
from gnnlab.stages.export.export import export
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.torch_units import cpu_name
from gnnlab.stages.units.unit import Unit

IDENTITY, IDENTITY_STAGE = "sage", 2
LEAST_BYTES = 4096
_NODES = 2  # of the graph of a copy, which the identity does not look at
MEASURED_IN = "measured"  # folder of the campaign, within that of the tables
NEW, AGAIN = "new", "again"
WITHIN = 0.10  # of the measured time


@dataclass(frozen=True)
class Study:
    """What was measured, and what follows. `copies`: as `copies_of`, those through units and plain ones."""

    grid: pd.DataFrame
    compared: pd.DataFrame
    copies: pd.DataFrame
    transfers: Transfers
    predictor: Predictor
    done: Done


def measure(
    folder: Path,
    *,
    stages: Path,
    models: Path,
    names: Sequence[str] = (),
    extra: Sequence[NamedSize] = (),
    off_grid: int = 12,
    again: int = 2,
    points: int = 8,
    visits: int = 1,
    budget_s: float = 0.1,
    timeout_s: float = 60.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Study:
    """Measure copies, `extra` sizes for the fit, `off_grid` sizes that are not fitted, and `again` known ones.

    `stages`: the campaign of notebook 05; `names`: its units to take, all that were measured unless told (simulated
    ones are kept in any case); `points`: of the sweep of copies; `visits`: times that each cell is measured, on passes
    of their own.

    Raises:
        StageError: nothing was measured there, a unit has no times there, or the disk refuses.
    """
    cells, like = tables.measured_cells(stages), tables.first_cell(stages)
    chosen = _units(cells, names)
    known = sizes_of(cells[cells["unit"].isin(chosen)])
    grid = list(dict.fromkeys([*known, *((size.nodes, size.edges) for size in extra)]))
    new = measured_hull.draw(grid, off_grid, seed)
    repeated = _some(sizes_of(cells[cells["unit"].isin(chosen) & (cells["graph"] == RANDOM)]), again, seed)
    asked = {"extra": [s for s in grid if s not in known], NEW: new, AGAIN: repeated}
    blocks = _blocks(cells)
    sweep = sweep_sizes(cells, like.features, points)
    wanted = [
        cell
        for sizes in asked.values()
        for unit in chosen
        for cell in _cells(like, sizes, _blocks(cells[(cells["unit"] == unit) & cells["ms"].notna()]), unit)
    ]
    settings = Settings(models=str(models), budget_s=budget_s)
    copiers = [unit for unit in chosen if not sums_only(unit)]
    _export_identity(dict.fromkeys([*copiers, *map(base, chosen)]), like.features, models, sweep)
    wanted += [_identity(like, edges, unit) for edges in sweep for unit in copiers]
    with LocalUnits(chosen, settings, timeout_s) as local:
        plan = campaign_cells.plan(list(dict.fromkeys(wanted)), settings, local.available)
        done = campaign.run(folder / MEASURED_IN, plan, local, visits=visits, seed=seed, say=say)
    found = tables.measured_cells(folder / MEASURED_IN)
    again_found = _at(found, repeated, blocks)
    on_grid = pd.concat([both_times(cells, again_found), _at(found, asked["extra"], blocks)], ignore_index=True)
    on_grid = on_grid[on_grid["unit"].isin(chosen) | (on_grid["origin"] == SIMULATED)]
    on_grid = on_grid.drop(columns="samples_ms").reset_index(drop=True)  # some cells are of two measurements
    copies = copies_of(found, sweep)
    plain = _plain_copies(sweep, like, budget_s)
    transfers = _transfers(copies, plain, chosen, like, sweep, models, budget_s)
    predictor = Predictor.fit(layer_of(like.layer, like.features), on_grid, transfers.through)
    compared = pd.concat([compare(predictor, _at(found, new, blocks)), repeats(predictor, cells, again_found)])
    compared = compared.reset_index(drop=True)
    return Study(on_grid, compared, pd.concat([copies, plain], ignore_index=True), transfers, predictor, done)


def need_times(stages: Path, skip: Callable[[str], None]) -> None:
    """Go on if notebook 05 has measured a cell; else `skip`, with what its units say. Raises as `measured_cells`."""
    cells = tables.measured_cells(stages)
    if campaign_table.measured(cells).empty:
        reasons = dict.fromkeys(cells["unit"] + ": " + cells["reason"])
        skip(f"notebook 05 has measured nothing here: {'; '.join(reasons)}")


def sizes_of(cells: pd.DataFrame) -> list[Size]:
    """Sizes at which anything has a time, each once."""
    timed = cells[cells["ms"].notna()]
    return list(dict.fromkeys(zip(timed["nodes"].tolist(), timed["edges"].tolist(), strict=True)))


def _units(cells: pd.DataFrame, names: Sequence[str]) -> list[str]:
    there = list(dict.fromkeys(campaign_table.measured(cells)["unit"]))
    if lacking := [name for name in names if name not in there]:
        raise StageError(
            f"{lacking[0]} was not measured by notebook 05; units with times: {', '.join(there) or 'none'}"
        )
    if not there:
        raise StageError("notebook 05 has measured no unit here, so there is nothing to predict from; see its reasons")
    return list(names) or there


def _some(sizes: Sequence[Size], count: int, seed: int) -> list[Size]:
    chosen = np.random.default_rng(seed).permutation(len(sizes))[:count]
    return [sizes[i] for i in sorted(chosen)]


def _blocks(cells: pd.DataFrame) -> list[tuple[int, int]]:
    return list(dict.fromkeys(zip(cells["first"].tolist(), cells["last"].tolist(), strict=True)))


def _cells(like: Cell, sizes: Sequence[Size], blocks: Sequence[tuple[int, int]], unit: str) -> list[Cell]:
    named = [NamedSize(*size) for size in sizes]
    conditions = {"precision": like.precision, "threads": like.threads}
    return campaign_cells.cells(like.layer, like.features, named, blocks, [unit], **conditions)


def _at(found: pd.DataFrame, sizes: Sequence[Size], blocks: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """The rows of these sizes and blocks."""
    here, there = (set(sizes), set(blocks))
    kept = [(r.nodes, r.edges) in here and (r.first, r.last) in there for r in found.itertuples()]
    return found[np.array(kept, dtype=bool)]


CONDITIONS = ["device", "runtime_version", "precision", "threads"]
COMPARED = ["kind", "unit", "stage", "size", "nodes", "edges", "first", "last", "ms", "ms_low", "ms_high",
            "n", "samples_ms", *CONDITIONS, "predicted_ms", "low_ms", "high_ms", "error", "within", "covered", "wide",
            "form", "fitted"]  # fmt: skip
_CELL = ["unit", "first", "last", "nodes", "edges"]


def both_times(cells: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """The cells, those that were measured a second time with the mean of both and an interval that holds both."""
    second = campaign_table.measured(again).set_index(_CELL)
    merged = cells.copy()
    at = [key in second.index for key in cells[_CELL].itertuples(index=False, name=None)]
    at = np.array(at, dtype=bool) & cells["ms"].notna().to_numpy()
    if at.any():
        other = second.loc[list(cells.loc[at, _CELL].itertuples(index=False, name=None))]
        for name, join in (("ms", np.mean), ("ms_low", np.min), ("ms_high", np.max), ("std_ms", np.max), ("n", np.sum)):
            merged.loc[at, name] = join([cells.loc[at, name].to_numpy(), other[name].to_numpy()], axis=0)
    return merged


def compare(predictor: Predictor, new: pd.DataFrame) -> pd.DataFrame:
    """Predicted beside measured: a row for each measured cell of a size that was never fitted and lies between others.

    Columns: kind (`new`), unit, stage, size, nodes, edges, first, last, ms, ms_low, ms_high, n and samples_ms (of the
    measured time), its conditions, predicted_ms, low_ms, high_ms, error (predicted / measured - 1), within (10 %),
    covered (is the measured time in the interval?), wide (is its own interval wider than 10 %?), form, fitted (sizes
    that the prediction rests on).
    """
    rows = []
    for row in campaign_table.measured(new).itertuples():
        key = (row.unit, row.first, row.last)
        if key in predictor.fits:
            found = predictor.predict(*key, row.nodes, row.edges)
            if found.origin == INTERPOLATED:
                rows.append(_held_against(NEW, row, (found.time_ms, found.low_ms, found.high_ms), predictor))
    return pd.DataFrame(rows, columns=COMPARED)


def repeats(predictor: Predictor, cells: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """The same for cells that were measured a second time: their first measurement stands for the prediction."""
    first = {key: (ms, low, high) for *key, ms, low, high in _timed(cells) for key in [tuple(key)]}
    rows = []
    for row in campaign_table.measured(again).itertuples():
        key = (row.unit, row.first, row.last, row.nodes, row.edges)
        if key in first and key[:3] in predictor.fits:
            rows.append(_held_against(AGAIN, row, first[key], predictor))
    return pd.DataFrame(rows, columns=COMPARED)


def _timed(cells: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
    return cells.loc[cells["ms"].notna(), [*_CELL, "ms", "ms_low", "ms_high"]].itertuples(index=False, name=None)


def _held_against(kind: str, row: Any, expected: tuple[float, float, float], predictor: Predictor) -> dict[str, Any]:
    middle, low, high = expected
    kept = {name: getattr(row, name) for name in COMPARED[1 : COMPARED.index("predicted_ms")]}
    return {
        "kind": kind,
        **kept,
        "predicted_ms": middle,
        "low_ms": low,
        "high_ms": high,
        "error": middle / row.ms - 1,
        "within": abs(middle / row.ms - 1) <= WITHIN,
        "covered": low <= row.ms <= high,
        "wide": (row.ms_high - row.ms_low) / 2 > WITHIN * row.ms,
        "form": predictor.fits[row.unit, row.first, row.last].form,
        "fitted": len(predictor.measured[row.unit, row.first, row.last]),
    }


def sweep_sizes(cells: pd.DataFrame, features: int, points: int) -> list[int]:
    """Edges of the copies: from 4 KiB to the most that any cell reads and writes, evenly on a logarithmic scale."""
    layer = layer_of(cells["layer"].iloc[0], int(cells["features"].iloc[0]))
    most = max(layer.block(r.first, r.last).bytes_moved(r.nodes, r.edges) for r in cells.itertuples()) / 2
    row_bytes = 4 * features
    sizes = np.geomspace(max(LEAST_BYTES, row_bytes), max(most, 4 * LEAST_BYTES, 4 * row_bytes), points)
    return [int(edges) for edges in np.unique(np.maximum(1, np.rint(sizes / row_bytes)))]


def _identity(like: Cell, edges: int, unit: str) -> Cell:
    stage = (IDENTITY_STAGE, IDENTITY_STAGE)
    return Cell(IDENTITY, like.features, _NODES, edges, *stage, unit, like.precision, like.threads)


def _export_identity(names: Iterable[str], features: int, models: Path, sweep: Sequence[int]) -> None:
    """Its model for each runtime that needs one, of each size where shapes are fixed; what is there stays."""
    layer, stage = layer_of(IDENTITY, features), (IDENTITY_STAGE, IDENTITY_STAGE)
    for unit in map(units.find, names):
        if unit.exporter is not None:
            for size in [(_NODES, edges) for edges in sweep] if unit.static_shapes else [None]:
                export(layer, *stage, exporter=unit.exporter, folder=models, size=size)


COPIES = ["unit", "size_bytes", "ms", "ms_low", "ms_high", "n", "samples_ms", *CONDITIONS]


def copies_of(found: pd.DataFrame, sweep: Sequence[int]) -> pd.DataFrame:
    """The copies among the cells: unit, size_bytes, ms, ms_low, ms_high, n, samples_ms, and their conditions."""
    kept = found[(found["nodes"] == _NODES) & found["edges"].isin(sweep) & found["ms"].notna()]
    kept = kept.assign(size_bytes=4 * kept["edges"] * kept["features"])
    return kept[COPIES].sort_values(["unit", "size_bytes"], kind="stable", ignore_index=True)


def _plain_copies(sweep: Sequence[int], like: Cell, budget_s: float) -> pd.DataFrame:
    """Copies by numpy from array to array, as `copies_of` gives those through units."""
    buffer = np.empty((max(sweep), like.features), np.float32)
    found = _swept(sweep, like.features, budget_s, lambda edges: _plain(buffer[:edges]))
    about = {"device": cpu_name(), "runtime_version": f"numpy {np.__version__}", "precision": "float32", "threads": 1}
    return found.assign(unit=PLAIN_COPY, **about)[COPIES]


def _transfers(
    copies: pd.DataFrame,
    plain: pd.DataFrame,
    chosen: Sequence[str],
    like: Cell,
    sweep: Sequence[int],
    models: Path,
    budget_s: float,
) -> Transfers:
    fitted = {unit: Curve.fit(part) for unit, part in copies.groupby("unit", sort=False) if len(part) > 1}
    through = {unit: fitted[copier(unit)] for unit in chosen if copier(unit) in fitted}
    kinds = {unit: units.find(unit) for unit in chosen}
    buffer = np.empty((max(sweep), like.features), np.float32)
    sources = {unit: base(unit) for unit in chosen if kinds[unit].processor == "CPU"}
    handed: dict[str, Curve] = {}
    for source in dict.fromkeys(sources.values()):
        made = partial(_out_of, units.find(source), like, models, buffer)
        handed[source] = Curve.fit(_swept(sweep[::2] if len(sweep) > 4 else sweep, like.features, budget_s, made))
    out_of = {unit: handed[source] for unit, source in sources.items()}
    separate = frozenset(unit for unit in chosen if kinds[unit].processor != "CPU")
    return Transfers(Curve.fit(plain), through, out_of, separate)


Copy = tuple[Callable[[Any], Any], Callable[[], Any], Callable[[], None]]  # the copy, what it copies, the end


def _swept(sweep: Sequence[int], features: int, budget_s: float, make: Callable[[int], Copy]) -> pd.DataFrame:
    """size_bytes, ms, ms_low, ms_high, n, samples_ms"""
    rows: list[Mapping[str, Any]] = []
    for edges in sweep:
        copy, source, close = make(edges)
        try:
            found = timing.measure(copy, setup=source, budget_s=budget_s / 2)
        finally:
            close()
        low, high = found.ci_ms
        row = {"size_bytes": 4 * edges * features, "ms": found.median_ms, "ms_low": low, "ms_high": high}
        rows.append({**row, "n": found.n, "samples_ms": found.samples_ms})
    return pd.DataFrame(rows)


def _plain(target: np.ndarray) -> Copy:
    source = np.ones_like(target)
    return (lambda array: np.copyto(target, array)), (lambda: source), (lambda: None)


def _out_of(unit: Unit, like: Cell, models: Path, buffer: np.ndarray, edges: int) -> Copy:
    """A copy of what a unit has just written. Raises `StageError` where that is not what it was given."""
    cell = _identity(like, edges, unit.name)
    values, layer, model = values_of(cell), layer_of(IDENTITY, like.features), model_for(unit, cell, str(models))
    at = {"nodes": cell.nodes, "edges": edges, "threads": like.threads, "precision": like.precision}
    loaded = unit.load(layer, IDENTITY_STAGE, IDENTITY_STAGE, model, **at)
    target = buffer[:edges]

    def run() -> np.ndarray:
        (written,) = loaded.run(values).values()
        return written

    np.copyto(target, run())
    if not np.allclose(target, values["x_j"], rtol=0, atol=1e-5 * float(np.abs(values["x_j"]).max())):
        loaded.close()
        raise StageError(f"{unit.name}: a copy of {edges} rows through it is not what it was given")
    return (lambda array: np.copyto(target, array)), run, loaded.close
