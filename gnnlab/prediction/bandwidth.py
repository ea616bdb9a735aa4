"""What notebook 06 measures in addition to notebook 05, in one call: copies, and sizes that no fit has seen.

    findings = measure(outputs / "tables", stages=outputs / "stages", models=outputs / "exported_models", off_grid=12)
    findings.grid            # the cells that predictions are fitted to
    findings.compared        # sizes never fitted: measured and predicted; and sizes measured a second time
    findings.transfers, findings.predictor

It is a campaign like that of notebook 05, in a folder of its own: each unit in a child process, in random order, known
cells not measured again. Copies are cells of it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab.campaign import campaign
from gnnlab.campaign import table as campaign_table
from gnnlab.campaign.campaign import Finished
from gnnlab.campaign.cell_inputs import RANDOM, layer_of
from gnnlab.campaign.cells import Cell, Settings
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import GnnlabError
from gnnlab.prediction import copies, tables
from gnnlab.prediction.measured import (
    CONDITIONS,
    Size,
    Span,
    blocks_of,
    draw,
    first_cell,
    measured_cells,
    sizes_of,
    time_rows,
)
from gnnlab.prediction.predictor import INTERPOLATED, SIMULATED, TimePredictor
from gnnlab.prediction.transfer import MeasuredTransfers
from gnnlab.profiling.estimates import CONFIDENCE, PREDICTION

MEASURED_IN = "measured"  # folder of the campaign, within that of the tables
NEW, AGAIN = "new", "again"
WITHIN = 0.10  # of the measured time
_CELL = ["unit", "first", "last", "nodes", "edges"]
_EXPECTED = ["predicted_ms", "low_ms", "high_ms"]
COMPARED = ["kind", "stage", "size", *_CELL, "ms", "ms_low", "ms_high", "n", "samples_ms", *CONDITIONS, *_EXPECTED,
            "fitted", "form"]  # fmt: skip


@dataclass(frozen=True)
class BandwidthFindings:
    """What was measured, and what follows; the methods give the rows of the lab's one table.

    `copies`: those through units and plain ones; `chosen`: the unit that stands for each processor.
    """

    grid: pd.DataFrame
    compared: pd.DataFrame
    copies: pd.DataFrame
    transfers: MeasuredTransfers
    chosen: dict[str, str]
    done: Finished

    @cached_property
    def predictor(self) -> TimePredictor:
        """Fitted to the grid. `GnnlabError` where no block has three sizes."""
        return _predictor(self.grid, self.transfers)

    @cached_property
    def entries(self) -> pd.DataFrame:
        """The lookup table."""
        return tables.entries(self.grid, self.transfers, self.chosen)

    @cached_property
    def rates(self) -> pd.DataFrame:
        """The bandwidth table."""
        return tables.bandwidths(self.entries, self.transfers)

    @property
    def sizes(self) -> list[Size]:
        """At which anything was measured that is fitted."""
        return sizes_of(self.grid)

    def copy_times(self) -> pd.DataFrame:
        """ms of copies by size (mib) and unit (form)."""
        return time_rows(self.copies).assign(form=self.copies["unit"])

    def copy_rates(self) -> pd.DataFrame:
        """GB/s of copies by size (mib) and unit (form)."""
        return copies.rates(self.copies, self.transfers)

    def held_out(self) -> pd.DataFrame:
        """Median error (%) at sizes left out of the fit, by unit (pu) and stage."""
        measured = self.grid[self.grid["ms"].notna()].drop_duplicates("unit").set_index("unit")
        return self.predictor.held_out().join(measured[CONDITIONS], on="pu")

    def off_grid(self) -> pd.DataFrame:
        """ms of cells at sizes never fitted, by unit (pu), stage and size: measured, and as it had been predicted."""
        new = self._named(NEW)
        if new.empty:
            return new
        predicted = new.assign(
            form="predicted", value=new["predicted_ms"], low=new["low_ms"], high=new["high_ms"], n=new["fitted"],
            origin=INTERPOLATED, unit="ms", better="lower", statistic="estimate", interval=PREDICTION,
            notes=[f"form: {form}; fitted at {n} sizes" for form, n in zip(new["form"], new["fitted"], strict=True)],
        ).drop(columns="samples_ms")  # fmt: skip
        measured = time_rows(new).assign(form="measured")
        return pd.concat([measured, predicted]).sort_index(kind="stable")

    def off_grid_error(self) -> pd.DataFrame:
        """How far predictions are off at sizes never fitted (% of the measured time), by unit (pu), stage and size.

        The interval is what the measured time leaves open.
        """
        new, again = self._named(NEW), self._named(AGAIN)
        covered = new["ms"].between(new["low_ms"], new["high_ms"])
        notes = [f"{100 * covered.mean():.0f} % of the measured times lie in their 90 % intervals"]
        if len(again):
            share = (np.abs(again["predicted_ms"] / again["ms"] - 1) <= WITHIN).mean()
            notes.append(f"measured again, {100 * share:.0f} % of {len(again)} known cells are within 10 % of before")
        return _errors(new, "predicted", new["predicted_ms"], new["predicted_ms"]).assign(notes="; ".join(notes))

    def repeat_error(self) -> pd.DataFrame:
        """How far a first measurement is off a second one of the same cell (% of the second)."""
        again = self._named(AGAIN)
        return _errors(again, "first measurement", again["low_ms"], again["high_ms"])

    def errors_by_stage(self) -> pd.DataFrame:
        """At sizes never fitted, by stage and unit: cells, shares within 10 % and in the interval, median error (%)."""
        new = self._named(NEW)
        off = 100 * np.abs(new["predicted_ms"] / new["ms"] - 1)
        within = off <= 100 * WITHIN, new["ms"].between(new["low_ms"], new["high_ms"])
        shares = {"off by 10 % at most (%)": 100 * within[0], "in their interval (%)": 100 * within[1]}
        cells = new.assign(cells=1, **shares, **{"median error (%)": off})
        how = {"cells": "sum", **dict.fromkeys(shares, "mean"), "median error (%)": "median"}
        return cells.groupby(["stage", "pu"], sort=False).agg(how).rename_axis(["stage", "processing unit"]).round(3)

    def _named(self, kind: str) -> pd.DataFrame:
        compared = self.compared[self.compared["kind"] == kind].reset_index(drop=True)
        return compared.assign(pu=compared["unit"])


def _errors(compared: pd.DataFrame, form: str, low_ms: pd.Series, high_ms: pd.Series) -> pd.DataFrame:
    """How far expected times are off the measured ones, either way, in percent of these, and between which ends."""
    low, high = low_ms / compared["ms_high"], high_ms / compared["ms_low"]
    off = 100 * np.abs(np.array([compared["predicted_ms"] / compared["ms"], low, high], dtype=float) - 1)
    ends = {"value": off[0], "low": np.where((low <= 1) & (high >= 1), 0.0, off.min(axis=0)), "high": off.max(axis=0)}
    fixed = {"form": form, "unit": "%", "better": "lower", "origin": "measured", "statistic": "estimate"}
    return compared.assign(**ends, **fixed, interval=CONFIDENCE)


def measure(
    folder: Path,
    *,
    stages: Path,
    models: Path,
    names: Sequence[str] = (),
    extra: Sequence[GraphSize] = (),
    off_grid: int = 12,
    again: int = 2,
    points: int = 8,
    processors: Sequence[str] = (),
    budget_s: float = 0.1,
    timeout_s: float = 60.0,
    seed: int = 0,
    cluster: str | None = None,
) -> BandwidthFindings:
    """Measure copies, `extra` sizes for the fit, `off_grid` sizes that are not fitted, and `again` known ones.

    `stages`: the campaign of notebook 05; `names`: its units to take, by default all that were measured (simulated
    ones are kept in any case); `points`: of the sweep of copies; `processors`: as of `tables.processor_units`;
    `cluster`: as of `campaign.measure`.

    Raises:
        GnnlabError: nothing was measured there, a unit has no times there, or the disk refuses.
    """
    cells, like = measured_cells(stages), first_cell(stages)
    chosen = _units(cells, names)
    mine = cells[cells["unit"].isin(chosen)]
    known, on_random = sizes_of(mine), sizes_of(mine[mine["graph"] == RANDOM])
    some = np.random.default_rng(seed).permutation(len(on_random))[:again]
    grid = list(dict.fromkeys([*known, *((size.nodes, size.edges) for size in extra)]))
    asked = {
        "extra": [size for size in grid if size not in known],
        NEW: draw(grid, off_grid, seed),
        AGAIN: [on_random[i] for i in sorted(some)],
    }
    sweep = copies.sweep_sizes(cells, like.features, points)
    wanted = [cell for sizes in asked.values() for unit in chosen for cell in _cells(like, sizes, cells, unit)]
    wanted += copies.identity_cells(like, sweep, chosen, models)
    settings = Settings(models=str(models), budget_s=budget_s)
    with campaign.units_at_work(chosen, settings, timeout_s, cluster) as working:
        done = campaign.run(folder / MEASURED_IN, list(dict.fromkeys(wanted)), working, seed=seed)
        plain = working.call(copies.plain_copies, sweep, like.features, budget_s)
        copied = copies.through_units(measured_cells(folder / MEASURED_IN), sweep)
    copied = pd.concat([copied, plain], ignore_index=True)
    transfers = copies.measured_transfers(copied)
    measured = measured_cells(folder / MEASURED_IN)
    parts = {kind: _at(measured, sizes, blocks_of(cells)) for kind, sizes in asked.items()}
    fitted = pd.concat([cells, parts["extra"]], ignore_index=True)
    fitted = fitted[fitted["unit"].isin(chosen) | (fitted["origin"] == SIMULATED)]
    fitted = fitted.drop(columns="samples_ms").reset_index(drop=True)
    compared = pd.DataFrame(columns=COMPARED)
    if len(parts[NEW]) or len(parts[AGAIN]):  # tables alone need no fit, which takes three sizes
        predictor = _predictor(fitted, transfers)
        compared = [compare(predictor, parts[NEW]), repeats(predictor, cells, parts[AGAIN])]
        compared = pd.concat(compared, ignore_index=True)
    return BandwidthFindings(fitted, compared, copied, transfers, tables.processor_units(fitted, processors), done)


def _predictor(cells: pd.DataFrame, transfers: MeasuredTransfers) -> TimePredictor:
    layer = layer_of(str(cells["layer"].iloc[0]), int(cells["features"].iloc[0]))
    return TimePredictor.fit(layer, cells, transfers)


def _units(cells: pd.DataFrame, names: Sequence[str]) -> list[str]:
    there = list(dict.fromkeys(campaign_table.measured(cells)["unit"]))
    if lacking := [name for name in names if name not in there]:
        raise GnnlabError(
            f"{lacking[0]} was not measured by notebook 05; units with times: {', '.join(there) or 'none'}"
        )
    if not there:
        raise GnnlabError("notebook 05 has measured no unit here, so there is nothing to predict from; see its reasons")
    return list(names) or there


def _cells(like: Cell, sizes: Sequence[Size], cells: pd.DataFrame, unit: str) -> list[Cell]:
    """Cells of a unit at `sizes`, of the blocks that it has times of."""
    blocks = blocks_of(cells[(cells["unit"] == unit) & cells["ms"].notna()])
    named = [GraphSize(*size) for size in sizes]
    conditions = {"precision": like.precision, "threads": like.threads}
    return campaign.cells_of(like.layer, like.features, named, blocks, [unit], **conditions)


def _at(measured: pd.DataFrame, sizes: Sequence[Size], blocks: Sequence[Span]) -> pd.DataFrame:
    """The rows of these sizes and blocks."""
    here, there = set(sizes), set(blocks)
    wanted = [(r.nodes, r.edges) in here and (r.first, r.last) in there for r in measured.itertuples()]
    return measured[np.array(wanted, dtype=bool)]


def compare(predictor: TimePredictor, new: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured: a row (`COMPARED`) for each measured cell of a size that was never fitted and lies
    between others; `fitted`: the sizes that the prediction rests on."""
    cells = _predictable(predictor, new)
    predicted = [predictor.predict(*cell) for cell in cells[_CELL].itertuples(index=False, name=None)]
    times = [[each.time_ms, each.low_ms, each.high_ms] for each in predicted]
    cells = cells.assign(kind=NEW, **pd.DataFrame(times, cells.index, _EXPECTED, dtype=float))
    return cells.loc[np.array([p.origin == INTERPOLATED for p in predicted], dtype=bool), COMPARED]


def repeats(predictor: TimePredictor, cells: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """The same for cells that were measured a second time: their first measurement stands for the prediction."""
    first = cells.loc[cells["ms"].notna(), [*_CELL, "ms", "ms_low", "ms_high"]].set_axis([*_CELL, *_EXPECTED], axis=1)
    return _predictable(predictor, again).merge(first, on=_CELL).assign(kind=AGAIN)[COMPARED]


def _predictable(predictor: TimePredictor, cells: pd.DataFrame) -> pd.DataFrame:
    """The measured cells of blocks that have a fit, with its form and how many sizes it rests on (`fitted`)."""
    timed = campaign_table.measured(cells)
    keys = list(timed[_CELL[:3]].itertuples(index=False, name=None))
    fits = [predictor.fits.get(key) for key in keys]
    fitted = [len(predictor.measured.get(key, ())) for key in keys]
    known = np.array([fit is not None for fit in fits], dtype=bool)
    return timed.assign(form=[fit and fit.form for fit in fits], fitted=fitted)[known]
