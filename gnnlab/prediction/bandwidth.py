"""What notebook 06 measures in addition to notebook 05, in one call: copies, and sizes that no fit has seen.

    measured = measure(outputs / "tables", stages=outputs / "stages", models=outputs / "exported_models", off_grid=12)
    copy_studies(measured.copies)         # rows for `lab.record`, by study
    predictor = TimePredictor.fit(layer, measured.grid, MeasuredTransfers.fit(measured.copies))
    scores(predictor, measured)           # rows, too: predicted beside measured, at sizes left out and never fitted

It is a campaign like that of notebook 05, in a folder of its own: each unit in a child process, in random order, known
cells not measured again. Copies are cells of it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gnnlab.campaign import campaign, checkpoints
from gnnlab.campaign import table as campaign_table
from gnnlab.campaign.cells import RANDOM, Cell, Settings
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import GnnlabError
from gnnlab.measure.estimates import CONFIDENCE, PREDICTION, cluster_bootstrap
from gnnlab.prediction import copies
from gnnlab.prediction.copies import CONDITIONS
from gnnlab.prediction.predictor import (
    BLOCK,
    INTERPOLATED,
    Size,
    TimePredictor,
    between,
    inside_hull,
)

MEASURED_IN = "measured"  # folder of the campaign, within that of the tables
WITHIN = 0.10  # of the measured time
_CELL = [*BLOCK, "nodes", "edges"]
_EXPECTED = ["predicted_ms", "predicted_low_ms", "predicted_high_ms"]
COMPARED = ["pu", "stage", "size", *_CELL, "ms", "ms_low", "ms_high", "n", "samples_ms", *CONDITIONS, *_EXPECTED,
            "fitted"]  # fmt: skip


class Measurements(NamedTuple):
    """`grid`: the cells that predictions are fitted to; `new`: cells at sizes never fitted; `again`: cells of the grid,
    measured a second time; `copies`: through units and plain ones (`copies.COPIES`); what the campaign has to say."""

    grid: pd.DataFrame
    new: pd.DataFrame
    again: pd.DataFrame
    copies: pd.DataFrame
    messages: tuple[str, ...]


def measured_cells(folder: Path) -> pd.DataFrame:
    """The cells of a campaign: the columns of `campaign.table.table`; device, runtime and threads as rows have them.

    Raises:
        GnnlabError: there are no measurements, or they are of another version; one line.
    """
    table = campaign_table.table(checkpoints.raw(folder))
    return table.assign(
        device=table["processor"] + " " + table["device"],
        runtime=table["runtime_version"],
        threads=table["threads"].where(table["processor"] == "CPU", 0),
    )


def need_times(stages: Path, skip: Callable[[str], None]) -> None:
    """Call `skip` with the reasons of the units where notebook 05 has measured no cell."""
    cells = measured_cells(stages)
    if campaign_table.measured(cells).empty:
        skip(f"notebook 05 has measured nothing here: {campaign_table.reasons(cells)}")


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
    budget_s: float = 0.1,
    timeout_s: float = 60.0,
    seed: int = 0,
    cluster: str | None = None,
) -> Measurements:
    """Measure copies, `extra` sizes for the fit, `off_grid` sizes that are not fitted, and `again` known ones.

    `stages`: the campaign of notebook 05; `names`: its units to take, by default all that were measured; `points`: of
    the sweep of copies; `cluster`: as of `campaign.measure`.

    Raises:
        GnnlabError: nothing was measured there, a unit has no times there, or the disk refuses.
    """
    cells, like = measured_cells(stages), Cell(**next(iter(checkpoints.raw(stages).values()))["cell"])
    there = list(dict.fromkeys(campaign_table.measured(cells)["unit"]))
    chosen = list(dict.fromkeys(names)) or there
    lacking = [name for name in chosen if name not in there]
    if lacking or not there:
        what = f"{lacking[0]} was not measured by notebook 05" if lacking else "notebook 05 has measured no unit here"
        raise GnnlabError(f"{what}; units with times: {', '.join(there) or 'none, see its reasons'}")
    mine = cells[cells["unit"].isin(chosen)]
    known, on_random = sizes_of(mine), sizes_of(mine[mine["graph"] == RANDOM])
    more = [size for size in dict.fromkeys((each.nodes, each.edges) for each in extra) if size not in known]
    new = draw([*known, *more], off_grid, seed)
    repeated = [on_random[place] for place in sorted(np.random.default_rng(seed).permutation(len(on_random))[:again])]
    sweep = copies.sweep_sizes(cells, points)
    blocks = mine.loc[mine["ms"].notna(), BLOCK].drop_duplicates().to_dict("records")
    sizes = dict.fromkeys([*more, *new, *repeated])
    wanted = [replace(like, nodes=n, edges=e, graph=RANDOM, **block) for block in blocks for n, e in sizes]
    wanted += copies.identity_cells(like, sweep, chosen, models)
    settings = Settings(models=str(models), budget_s=budget_s)
    with campaign.units_at_work(chosen, settings, timeout_s, cluster) as working:
        done = campaign.run(folder / MEASURED_IN, wanted, working, seed=seed)
        plain = working.call(copies.plain_copies, sweep, like.features, budget_s)
    measured = measured_cells(folder / MEASURED_IN)
    grid = pd.concat([mine, _at(measured, more)], ignore_index=True).drop(columns="samples_ms")
    copied = pd.concat([copies.through_units(measured, sweep), plain], ignore_index=True)
    parts = (campaign_table.measured(_at(measured, sizes)) for sizes in (new, repeated))
    return Measurements(grid, *parts, copied, done.messages)


def sizes_of(cells: pd.DataFrame) -> list[Size]:
    """Sizes at which anything has a time, each once."""
    timed = cells.loc[cells["ms"].notna(), ["nodes", "edges"]]
    return list(timed.drop_duplicates().itertuples(index=False, name=None))


def draw(sizes: Sequence[Size], count: int, seed: int) -> list[Size]:
    """`count` sizes at random inside the hull, none of them measured; fewer where the hull has no more of them.

    Uniform in log N and log E.
    """
    logs = np.log(np.array(sorted(set(sizes)), dtype=float))  # (sizes, 2)
    drawn = np.random.default_rng(seed).uniform(logs.min(axis=0), logs.max(axis=0), (400 * max(count, 1), 2))
    rounded = np.rint(np.exp(drawn)).astype(int)
    inside = dict.fromkeys(map(tuple, rounded[inside_hull(sizes, rounded)].tolist()))
    return [size for size in inside if size not in set(sizes)][:count]


def _at(measured: pd.DataFrame, sizes: Sequence[Size]) -> pd.DataFrame:
    """The rows of these sizes."""
    return measured[[size in sizes for size in zip(measured["nodes"], measured["edges"], strict=True)]]


# ---- rows for `Lab.record`, by study ---------------------------------------------------------------------------------


def copy_studies(copied: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Of `Measurements.copies`, by size (mib): `copy_times`, ms with their samples, and `copies`, GB/s."""
    return {"copy_times": time_rows(copied, copied["unit"]), "copies": copies.rates(copied)}


def scores(predictor: TimePredictor, measured: Measurements) -> dict[str, pd.DataFrame]:
    """How far predictions are off, by pu and stage: `held_out`, at sizes left out of the fit; and by size, too:
    `off_grid` and `off_grid_error`, at sizes never fitted, and `repeat_error`, of a second measurement."""
    new, repeated = compare(predictor, measured.new), repeats(measured.grid, measured.again)
    return {
        "held_out": held_out_rows(predictor, measured.grid),
        "off_grid": off_grid_rows(new),
        "off_grid_error": off_grid_error_rows(new, repeated),
        "repeat_error": repeat_error_rows(repeated),
    }


def compare(predictor: TimePredictor, new: pd.DataFrame) -> pd.DataFrame:
    """Cells at sizes never fitted that lie between others, of blocks that have a fit: `COMPARED`, with the interval of
    the prediction (90 %). `fitted`: the sizes that it rests on."""
    rows = []
    for cell in new.to_dict("records"):
        if (key := tuple(cell[name] for name in BLOCK)) in predictor.coefficients:
            *times, origin = astuple(predictor.predict(*key, cell["nodes"], cell["edges"]))
            if origin == INTERPOLATED:
                about = {"pu": cell["unit"], "fitted": len(predictor.measured[key])}
                rows.append({**cell, **about, **dict(zip(_EXPECTED, times, strict=True))})
    return pd.DataFrame(rows, columns=COMPARED)


def repeats(grid: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """The same for cells that were measured a second time: their first measurement stands for the prediction."""
    first = grid[[*_CELL, "ms", "ms_low", "ms_high"]].dropna().set_axis([*_CELL, *_EXPECTED], axis=1)
    return again.merge(first, on=_CELL).assign(pu=lambda cells: cells["unit"], fitted=1)[COMPARED]


def time_rows(cells: pd.DataFrame, form: str | pd.Series) -> pd.DataFrame:
    """Measured times with their samples."""
    fixed = {"origin": "measured", "unit": "ms", "better": "lower", "statistic": "median", "interval": CONFIDENCE}
    names = {"ms": "value", "ms_low": "low", "ms_high": "high", "samples_ms": "samples"}
    return cells.drop(columns="unit").rename(columns=names).assign(form=form, **fixed)


def held_out_rows(predictor: TimePredictor, grid: pd.DataFrame) -> pd.DataFrame:
    """The median error (%) at sizes left out of the fit, by unit (pu) and stage, under the conditions of the unit.

    What was left out together is one sample, so the interval is over these groups, from three on.
    """
    rows = []
    for (unit, first, last), left_out in predictor.left_out.groupby(BLOCK, sort=False):
        errors = between(left_out)
        median = cluster_bootstrap(100 * np.abs(np.expm1(errors["error"])), errors["group"].tolist(), "median")
        where = "between the others" if errors["inside"].all() else "beyond the others"
        at = {"pu": unit, "stage": predictor.layer.label(first, last), "block": (first != last, first, last)}
        ends = {} if median.low is None else {"low": max(median.low, 0.0), "high": median.high}
        ends |= {"value": median.value, "n": median.n, "notes": f"sizes left out: {len(errors)}, {where}"}
        rows.append({**at, **ends})
    fixed = {"form": "predicted", "unit": "%", "better": "lower", "origin": "measured", "statistic": "median"}
    conditions = grid[grid["ms"].notna()].drop_duplicates("unit").set_index("unit")[CONDITIONS]
    rows = pd.DataFrame(rows).sort_values("block", kind="stable", ignore_index=True)
    return rows.assign(**fixed, interval=CONFIDENCE).join(conditions, on="pu")


def off_grid_rows(compared: pd.DataFrame) -> pd.DataFrame:
    """ms of cells at sizes never fitted: measured, and as predicted."""
    names = dict(zip(_EXPECTED, ("value", "low", "high"), strict=True))
    fixed = {"form": "predicted", "origin": INTERPOLATED, "statistic": "estimate", "interval": PREDICTION}
    predicted = compared.drop(columns=["samples_ms", "n"]).rename(columns=names | {"fitted": "n"})
    predicted = predicted.assign(**fixed, unit="ms", better="lower")
    return pd.concat([time_rows(compared, "measured"), predicted]).sort_index(kind="stable")


def off_grid_error_rows(compared: pd.DataFrame, repeated: pd.DataFrame) -> pd.DataFrame:
    """How far predictions are off at sizes never fitted (% of the measured time); the interval is what the measured
    time leaves open. Notes: the share of times in their intervals, and how far known cells agree with themselves."""
    covered = compared["ms"].between(compared["predicted_low_ms"], compared["predicted_high_ms"])
    notes = [f"{100 * covered.mean():.0f} % of the measured times lie in their 90 % intervals"]
    if len(repeated):
        share = ((repeated["predicted_ms"] / repeated["ms"] - 1).abs() <= WITHIN).mean()
        notes.append(f"measured again, {100 * share:.0f} % of {len(repeated)} known cells are within 10 % of before")
    predicted = compared["predicted_ms"]
    return _errors(compared, predicted, predicted).assign(form="predicted", notes="; ".join(notes))


def repeat_error_rows(repeated: pd.DataFrame) -> pd.DataFrame:
    """How far a first measurement is off a second one of the same cell (% of the second)."""
    ends = repeated["predicted_low_ms"], repeated["predicted_high_ms"]
    return _errors(repeated, *ends).assign(form="first measurement")


def _errors(compared: pd.DataFrame, low_ms: pd.Series, high_ms: pd.Series) -> pd.DataFrame:
    """How far expected times are off the measured ones, either way, in percent of these, and between which ends."""
    low, high = low_ms / compared["ms_high"], high_ms / compared["ms_low"]
    off = 100 * np.abs(np.array([compared["predicted_ms"] / compared["ms"], low, high], dtype=float) - 1)
    ends = {"value": off[0], "low": np.where((low <= 1) & (high >= 1), 0.0, off.min(axis=0)), "high": off.max(axis=0)}
    fixed = {"unit": "%", "better": "lower", "origin": "measured", "statistic": "estimate", "interval": CONFIDENCE}
    return compared.assign(**ends, **fixed)
