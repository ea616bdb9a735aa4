"""How many times as fast a form is as its baseline, from the samples of each round, and what all cells come to.

    cells = of_cells(table, rows, among=table.select("gat_layer"), over=["PyG", "torch.compile"])   # one ratio a cell
    summarized(table, "new_graph", "gnnlab", how="worst")                      # a row of the study `new_graph_summary`

The keys of a row of a summary are the arguments that it was made with, so that it can be computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gnnlab.errors import Untestable
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONTROL, Estimate

from .table import Row, Table, of_estimate, row

SUMMARY = "_summary"  # at the end of the name of a study
OR = "; "  # between several names in one key: names hold commas
SAMPLING_NOTES = ("interval is", "noisy", "drift", "the hypervisor", "A/A")  # of a row: its interval says as much


class Cell(NamedTuple):
    """The ratio of one cell, the row of the form that counts there, and of what it was compared with, if anything."""

    ratio: Estimate
    form: Row
    baseline: Row | None
    chosen: bool = False  # on half of the rounds, as the fastest of several


def of_cells(table: Table, rows: Sequence[Row], among: Sequence[Row], over: Sequence[str] = ()) -> list[Cell]:
    """The ratio in each cell that `rows` have, in the order of `among`, the rows of the study.

    Of several forms in a cell the fastest counts, and so it does of several in `over`, the baselines' names (of none
    the race's own). A row that was not compared with anything is a ratio itself.
    Raises `Untestable`: a baseline or samples are not there.
    """
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for each in among:
        cells.setdefault(each.id[1], {})[each.form] = each
    ratios = []
    for keys, cell in cells.items():
        if ours := [each for each in rows if each.id[1] == keys]:
            compared = over or ours[0].baseline
            ratios.append(
                of_cell(table, cell, ours, baselines(cell, over or [ours[0].baseline]))
                if compared
                else Cell(ours[0].estimate, ours[0], None)
            )
    return ratios


def baselines(cell: Mapping[str, Row], names: Sequence[str]) -> list[Row]:
    """The rows to compare with, none of which may be left out. One that failed is none: it does not take these inputs,
    or computes something else."""
    if missing := [name for name in names if name not in cell]:
        study = next(iter(cell.values())).study
        raise Untestable(f"needs {OR.join(missing)} in the same race ({study}); params/full has all")
    rows = [cell[name] for name in names]
    right = [each for each in rows if each.status != "failed"]
    for each in right or rows:
        if each.status != "ok":
            raise Untestable(f"a baseline is not there to compare with; {each.form}: {each.reason}")
    return right


def of_cell(table: Table, cell: Mapping[str, Row], forms: Sequence[Row], over: Sequence[Row]) -> Cell:
    """One cell's ratio; where there is a choice, it is made on every other round and judged on the others. What the A/A
    control shows widens the interval."""
    times = {each.form: table.samples_of(each) for each in (*forms, *over)}
    if any(samples is None for samples in times.values()):
        raise Untestable(f"the samples of {forms[0].study} are not there")
    if len({len(samples) for samples in times.values()}) > 1:
        raise Untestable(f"forms of {forms[0].study} have different numbers of rounds")
    form, baseline = (min(rows, key=lambda each: float(np.median(times[each.form][::2]))) for rows in (forms, over))
    chosen = len(forms) > 1 or len(over) > 1
    judged = slice(1, None, 2) if chosen else slice(None)
    ratio = estimates.ratio(times[baseline.form][judged], times[form.form][judged])
    control = cell.get(CONTROL)
    noise = None if control is None or form.form == CONTROL else table.samples_of(control)
    if noise is not None:
        ratio = ratio.widened(estimates.noise_floor(table.samples_of(cell[control.baseline]), noise))
    return Cell(ratio, form, baseline, chosen)


# ---- what all cells come to -----------------------------------------------------------------------------------------


def summarized(table: Table, study: str, form: str, **keys: Any) -> Row:
    """The row of `<study>_summary` for what the cells of a form come to, with `keys` as `summary` takes them."""
    rows, estimate = summary(table, study, form, **keys)
    first, how = rows[0], keys["how"]
    unit = "share" if how in ("share", "not slower") else "x" if first.ratio is not None else first.unit
    conditions = {name: getattr(first, name) for name in ("origin", "device", "runtime", "precision", "threads")}
    return row(
        study=study + SUMMARY,
        keys=keys,
        form=form,
        statistic="estimate",
        unit=unit,
        better="higher" if unit in ("share", "x") else first.better,
        notes=[f"{how} of {len(rows)} cells", *notes_of(rows)],
        **of_estimate(estimate),
        **conditions,
    )


def summary(
    table: Table,
    study: str,
    form: str,
    *,
    how: str,
    over: str = "",
    within: float | None = None,
    cluster: str | None = None,
    cells: int = 1,
    **where: str | float,
) -> tuple[list[Row], Estimate]:
    """The rows of `form` in a study and what they come to.

    `how` is "worst", "median" or "not slower" (the share of cells that are slower by `within` at most) of the ratios
    (`of_cells`); with the key `cluster`, whose values share a graph or a fit, "mean", "median" or "share" (of values of
    at most `within`) of the values. `over` and `where` hold several names as "PyG; torch.compile". `cells` is how many
    there have to be. Raises `Untestable`.
    """
    among = table.select(study, where={k: v.split(OR) if isinstance(v, str) else v for k, v in where.items()})
    named = [each for each in among if each.form == form]
    rows = [each for each in named if each.status == "ok"]
    if named and not rows:
        raise Untestable(f"{form}: {named[0].reason}")
    if len(rows) < cells:
        raise Untestable(
            f"{len(rows)} of the {cells} cells of {study} that it needs were measured; params/full has all"
        )
    if cluster:
        values, clusters = [each.value for each in rows], [each.keys[cluster] for each in rows]
        return rows, estimates.cluster_bootstrap(values, clusters, how, within)
    ratios = [cell.ratio for cell in of_cells(table, rows, among, over.split(OR) if over else ())]
    if how == "not slower":
        return rows, _not_slower(ratios, 1 / (1 + (within or 0.0)))
    return rows, {"worst": estimates.worst, "median": estimates.middle}[how](ratios)


def notes_of(rows: Sequence[Row]) -> list[str]:
    """What the rows say of themselves, but for the course of their sampling."""
    notes = dict.fromkeys(note for each in rows for note in each.notes)
    return [note for note in notes if not note.startswith(SAMPLING_NOTES)]


def _not_slower(cells: Sequence[Estimate], least: float) -> Estimate:
    """The share of `cells` that reach `least`: from those that surely do to those that might."""
    value = np.mean([cell.value >= least for cell in cells])
    sure = np.mean([cell.low is not None and cell.low >= least for cell in cells])
    possible = np.mean([cell.high is None or cell.high >= least for cell in cells])
    return Estimate(float(value), float(sure), float(possible), len(cells))
