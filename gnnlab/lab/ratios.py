"""How many times as fast a variant is as its baseline, from the samples of each round, and what all cells come to.

cells = of_cells(table, rows, among=table.select("gat_layer"), over=["PyG", "torch.compile"])   # one ratio a cell
summarized(table, "new_graph", "gnnlab", how="worst")                      # a row of the study `new_graph_summary`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gnnlab.errors import Untestable
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONTROL, Estimate

from .table import Row, Table, of_estimate, row

SUMMARY = "_summary"  # at the end of the name of a study
OR = "; "  # between several names in one key: names hold commas
OPTIONS = ("how", "over", "within", "cluster", "cells")  # of a summary; its other keys say which cells count
SAMPLING_NOTES = ("interval is", "noisy", "drift", "the hypervisor", "A/A")  # of a row: its interval says as much


class Cell(NamedTuple):
    """The ratio of one cell, the row of the variant that counts there, and of what it was compared with, if
    anything."""

    ratio: Estimate
    variant: Row
    baseline: Row | None


def usable(rows: Iterable[Row], variants: Sequence[str], cells: int = 1) -> list[Row]:
    """Those of `rows` that are of these variants and have a value. Raises `Untestable`: none has, or they lie in fewer
    than `cells` cells."""
    named = [each for each in rows if each.variant in variants]
    found = [each for each in named if each.status == "ok"]
    if named and not found:
        raise Untestable(f"{named[0].variant}: {named[0].reason}")
    if (there := len({each.id[1] for each in found})) < cells:
        wanted = " or ".join(variants)
        raise Untestable(f"{there} of the {cells} cells of {wanted} that it needs were measured; params/full has all")
    return found


def of_cells(table: Table, rows: Sequence[Row], among: Sequence[Row], over: Sequence[str] = ()) -> list[Cell]:
    """The ratio in each cell that `rows` have, in the order of `among`, the rows of the study.

    Of several variants in a cell the fastest counts, and so it does of several in `over`, the baselines' names (of none
    the race's own). A row that was not compared with anything is a ratio itself.
    Raises `Untestable`: a baseline or samples are not there.
    """
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for each in among:
        cells.setdefault(each.id[1], {})[each.variant] = each
    ratios = []
    for keys, cell in cells.items():
        if variants := [each for each in rows if each.id[1] == keys]:
            names = over or [variants[0].baseline]
            compared = names != [None]
            ratios.append(
                _of_cell(table, cell, variants, names) if compared else Cell(variants[0].estimate, variants[0], None)
            )
    return ratios


def _of_cell(table: Table, cell: Mapping[str, Row], variants: Sequence[Row], over: Sequence[str]) -> Cell:
    """One cell's ratio; where there is a choice, it is made on every other round and judged on the others. What the A/A
    control shows widens the interval. A baseline that failed is none, for it computes something else; no other may be
    left out."""
    study = variants[0].study
    if missing := [name for name in over if name not in cell]:
        raise Untestable(f"needs {OR.join(missing)} in the same race ({study}); params/full has all")
    named = [cell[name] for name in over]
    baselines = [each for each in named if each.status != "failed"] or named
    if lost := [each for each in baselines if each.status != "ok"]:
        raise Untestable(f"a baseline is not there to compare with; {lost[0].variant}: {lost[0].reason}")
    times = {each.variant: table.samples_of(each) for each in (*variants, *baselines)}
    rounds = {0 if samples is None else len(samples) for samples in times.values()}
    if 0 in rounds or len(rounds) > 1:
        raise Untestable(f"the samples of {study} are not there, or not of the same rounds")
    variant, baseline = (
        min(rows, key=lambda row: float(np.median(times[row.variant][::2]))) for rows in (variants, baselines)
    )
    judged = slice(1, None, 2) if len(variants) > 1 or len(baselines) > 1 else slice(None)
    if np.min([times[baseline.variant], times[variant.variant]]) <= 0:
        raise Untestable(f"samples of {study} are not above 0, and so have no ratio")
    ratio = estimates.ratio(times[baseline.variant][judged], times[variant.variant][judged])
    control = cell.get(CONTROL)
    noise = None if control is None or variant.variant == CONTROL else table.samples_of(control)
    if noise is not None:
        of = None if control.baseline not in cell else table.samples_of(cell[control.baseline])
        if of is None or len(of) != len(noise) or np.min([of, noise]) <= 0:
            raise Untestable(f"the {CONTROL} control of {study} is not of the same rounds as its baseline")
        ratio = ratio.widened(estimates.noise_floor(of, noise))
    return Cell(ratio, variant, baseline)


def summarized(table: Table, study: str, variant: str, **keys: Any) -> Row:
    """The row of `<study>_summary` for what the cells of a variant come to; its keys are `keys`, so that it can be
    computed again.

    `how` is "worst", "median" or "not slower" (the share of cells that are slower by `within` at most) of the ratios
    (`of_cells`); with the key `cluster`, whose values share a graph or a fit, "mean", "median" or "share" (of values of
    at most `within`) of the values. `cells` is how many there have to be. Other keys select cells, and they and `over`
    hold several names as "PyG; torch.compile". Raises `Untestable`.
    """
    how, over, within, cluster, cells = map(keys.get, OPTIONS)
    where = {k: v.split(OR) if isinstance(v, str) else v for k, v in keys.items() if k not in OPTIONS}
    among = table.select(study, where=where)
    rows = usable(among, [variant], cells or 1)
    first = rows[0]
    unit = "share" if how in ("share", "not slower") else "x" if first.ratio is not None else first.unit
    if cluster:
        values, clusters = [each.value for each in rows], [each.keys[cluster] for each in rows]
        estimate = estimates.cluster_bootstrap(values, clusters, how, within)
    else:
        ratios = [cell.ratio for cell in of_cells(table, rows, among, over.split(OR) if over else ())]
        of = {"worst": estimates.worst, "median": estimates.middle, "not slower": lambda of: _not_slower(of, within)}
        estimate = of[how](ratios)
    conditions = {name: getattr(first, name) for name in ("origin", "device", "runtime", "precision", "threads")}
    return row(
        study=study + SUMMARY,
        keys=keys,
        variant=variant,
        statistic="estimate",
        unit=unit,
        better="higher" if unit in ("share", "x") else first.better,
        notes=[f"{how} of {len(rows)} cells", *notes_of(rows)],
        **of_estimate(estimate),
        **conditions,
    )


def notes_of(rows: Sequence[Row]) -> list[str]:
    """What the rows say of themselves, but for the course of their sampling."""
    notes = dict.fromkeys(note for each in rows for note in each.notes)
    return [note for note in notes if not note.startswith(SAMPLING_NOTES)]


def _not_slower(cells: Sequence[Estimate], within: float | None) -> Estimate:
    """The share of `cells` that are slower by `within` at most: from those that surely are to those that might be."""
    least = 1 / (1 + (within or 0.0))
    value = np.mean([cell.value >= least for cell in cells])
    sure = np.mean([cell.low is not None and cell.low >= least for cell in cells])
    possible = np.mean([cell.high is None or cell.high >= least for cell in cells])
    return Estimate(float(value), float(sure), float(possible), len(cells))
