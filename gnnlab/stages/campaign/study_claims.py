"""The rows of the ledger that notebook 05 records, each with a reason computed from the numbers.

A row holds the arguments of `Session.claim`. `catalogue` is the claim catalogue: id -> an entry with `claimed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling.goals import reached
from gnnlab.profiling.intervals import statistic_interval
from gnnlab.stages.campaign import fused_race, sizes
from gnnlab.stages.campaign.campaign import Done
from gnnlab.stages.campaign.cells import Cell
from gnnlab.stages.units.unit import Availability

Row = dict[str, Any]
STUDY_CELLS = 210 + 105  # of CPU and GPU, and of the NPU
STAGES = range(1, 8)


def rows(
    done: Done, available: Mapping[str, Availability], raced: pd.DataFrame, catalogue: Mapping[str, Any]
) -> list[Row]:
    return [campaign_hours(done), openvino_fused(raced, catalogue), campaign_minutes(done, available, catalogue)]


def campaign_hours(done: Done) -> Row:
    """Hours for as many cells as the study measured, at the mean time of the cells measured here."""
    took = [answer.took_s for answer in done.answers if answer.outcome.status == "measured"]
    id = "stages.campaign_hours"
    if not took:
        return {"id": id, "measured": None, "why": "needs one usable processing unit; no cell was measured"}
    scale = STUDY_CELLS / 3600
    low, high = statistic_interval(np.mean, took)
    samples = int(np.median([len(a.outcome.samples_ms) for a in done.answers if a.outcome.status == "measured"]))
    why = (
        f"{len(took)} measured cells took {sum(took) / 60:.2f} minutes with loading, parity, second attempts, scaled "
        f"to the study's {STUDY_CELLS}; {samples} samples a cell in the median, the study's are 50 after 10"
    )
    return {
        "id": id,
        "measured": scale * float(np.mean(took)),
        "ci": (scale * low, scale * high),
        "n": len(took),
        "why": why,
    }


def openvino_fused(raced: pd.DataFrame, catalogue: Mapping[str, Any]) -> Row:
    """The least gain of the hand-built graph over the exported one, of all sizes raced."""
    id = "goal.openvino_fused"
    row, sorting = fused_race.worst(raced), fused_race.worst(raced, fused_race.SORTING)
    count = int((raced["form"] == fused_race.BAG).sum())
    ci = (row["ci_low"], row["ci_high"])
    met = reached(row["ratio"], ci, catalogue[id].claimed)
    why = (
        f"{met}: worst of {count} sizes is {row['size']}; interleaved, float32, largest relative error "
        f"{raced['parity_error'].max():.1e}; with the edges sorted at each call {sorting['ratio']:.3g}, on "
        f"{sorting['size']}"
    )
    return {"id": id, "measured": row["ratio"], "ci": ci, "n": int(row["n"]), "why": why, "figure": "openvino_fused"}


def campaign_minutes(done: Done, available: Mapping[str, Availability], catalogue: Mapping[str, Any]) -> Row:
    """Minutes of the cells of every runtime usable here; only where all 7 stages were asked for at all 15 sizes."""
    id = "goal.campaign_minutes"
    usable = [unit for unit, found in available.items() if found.usable]
    asked = {answer.cell for answer in done.answers}
    lacking = [u for u in usable if not _whole(u, asked)]
    if lacking or not usable:
        missing = f"{', '.join(lacking)} not asked for all of them here" if lacking else "no unit is usable here"
        return {
            "id": id,
            "measured": None,
            "why": f"needs the 7 stages at the study's 15 sizes ({missing}); params/full",
        }
    counted = [a for a in done.answers if a.cell.unit in usable and _single(a.cell)]
    minutes, measured = sum(a.took_s for a in counted) / 60, [a for a in counted if a.outcome.status == "measured"]
    wide = sum(any("interval is" in note for note in a.outcome.notes) for a in measured)
    target = catalogue[id].claimed[1]
    why = (
        f"{'met' if minutes <= target else 'missed'}: {len(counted)} cells of {len(usable)} units, {len(measured)} "
        f"measured, {wide} of them marked as wider than 2 %; with loading, parity, second attempts, without exporting"
    )
    return {"id": id, "measured": minutes, "n": len(counted), "why": why}


def record(claim: Callable[..., Any], rows: Sequence[Row]) -> int:
    """Hand every row to `Session.claim`; how many."""
    for row in rows:
        claim(**row)
    return len(rows)


def _whole(unit: str, asked: set[Cell]) -> bool:
    got = {(c.nodes, c.edges, c.first) for c in asked if c.unit == unit and _single(c)}
    return all((size.nodes, size.edges, stage) in got for size in sizes.read(["study"]) for stage in STAGES)


def _single(cell: Cell) -> bool:
    return cell.first == cell.last and cell.first in STAGES
