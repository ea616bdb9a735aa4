"""Cells that were predicted more than 10 % off, measured again in fresh processes: was it the model or the machine?

    rows = missed_again(found, models=outputs / "exported_models", processes=5)

Each is measured once in every process, in random order, beside the nearest size of its block that the model was fitted
to. If that one has changed since, the machine has; if the cell comes out off its prediction even after this is taken
out, the model is wrong there. Verdicts are on 95 % intervals over the processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gnnlab.campaign.cells import Cell, Settings
from gnnlab.campaign.measure import at_work
from gnnlab.errors import GnnlabError
from gnnlab.prediction.bandwidth import NEW, WITHIN, BandwidthFindings
from gnnlab.prediction.measured import CONDITIONS
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import CONFIDENCE

MODEL = "model: it comes again, and fitted sizes do not"
DRIFTED = "machine: fitted sizes have changed as much"
ONCE = "machine: the miss does not come again"
SCATTERS = "machine: from process to process on both sides of 10 %"
WHY = (MODEL, DRIFTED, ONCE, SCATTERS)
LEAST_PROCESSES = 3
_KEYS = ["unit", "first", "last", "nodes", "edges"]
Key = tuple[str, int, int, int, int]


def missed(found: BandwidthFindings) -> pd.DataFrame:
    """The cells never fitted that were predicted more than 10 % off."""
    new = found.compared[found.compared["kind"] == NEW]
    return new[np.abs(new["predicted_ms"] / new["ms"] - 1) > WITHIN].reset_index(drop=True)


def missed_again(
    found: BandwidthFindings,
    *,
    models: Path,
    processes: int,
    budget_s: float = 0.1,
    timeout_s: float = 60.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Measured again over predicted, a row for each missed cell: pu, stage, size; its form says why it was missed.

    Raises:
        GnnlabError: fewer than three processes.
    """
    if processes < LEAST_PROCESSES:
        raise GnnlabError(
            f"processes={processes}: at least {LEAST_PROCESSES} are needed to tell what differs between them"
        )
    off = missed(found)
    if off.empty:
        return pd.DataFrame()
    beside = {key: _nearest(found.grid, key) for key in _keys(off)}
    cells = [_cell(found, key) for key in dict.fromkeys([*beside, *beside.values()])]
    settings, random, times = Settings(models=str(models), budget_s=budget_s), np.random.default_rng(seed), []
    for _ in range(processes):
        with at_work(list(dict.fromkeys(cell.unit for cell in cells)), settings, timeout_s, None) as working:
            answers = working([cells[i] for i in random.permutation(len(cells))])
            ms = {tuple(getattr(a.cell, name) for name in _KEYS): a.outcome.median_ms for a in answers}
            times.append({key: found_ms for key, found_ms in ms.items() if found_ms is not None})
    return judged(off, found.grid, beside, times)


def judged(
    off: pd.DataFrame, grid: pd.DataFrame, beside: Mapping[Key, Key], times: Sequence[Mapping[Key, float]]
) -> pd.DataFrame:
    """The rows of `missed_again`, from ms by cell for each process; cells that failed in one have a reason instead."""
    fitted = dict(zip(_keys(grid), grid["ms"], strict=True))
    rows = []
    for key, row in zip(_keys(off), off.to_dict("records"), strict=True):
        named = {name: row[name] for name in ("stage", "size", *CONDITIONS)} | {"pu": row["unit"]}
        other = beside[key]
        if not all(key in each and other in each for each in times):
            rows.append({**named, "form": "measured again", "status": "failed", "reason": "a process gave it no time"})
            continue
        again = np.log([each[key] / row["predicted_ms"] for each in times])
        changed = np.log([each[other] / fitted[other] for each in times])
        plain, relative = (estimates.summary(logs, "mean") for logs in (again, again - changed))
        first = float(np.log(row["ms"] / row["predicted_ms"]))
        ends = {name: float(np.exp(getattr(plain, name))) for name in ("value", "low", "high")}
        notes = [
            f"first {np.exp(first):.2f} of the prediction, then {np.exp(again.min()):.2f} to {np.exp(again.max()):.2f}",
            f"fitted at {other[3]}/{other[4]}: {np.exp(changed.mean()):.2f} of before",
        ]
        form = _why(first, plain.interval, relative.interval)
        rows.append({**named, "form": form, "status": "ok", **ends, "n": len(times), "notes": notes})
    fixed = {"unit": "x", "better": "neither", "origin": "measured", "statistic": "estimate", "interval": CONFIDENCE}
    return pd.DataFrame(rows).assign(**fixed)


def causes(rows: pd.DataFrame) -> dict[str, int]:
    """How many cells were missed for what; those that failed are none of them."""
    return {why: int((rows["form"] == why).sum()) if len(rows) else 0 for why in WHY}


def _why(first: float, again: tuple[float, float], relative: tuple[float, float]) -> str:
    """By the logarithms of measured over predicted: once, again, and again beside a fitted size."""
    if _off(again):
        return MODEL if _off(relative) else DRIFTED
    return SCATTERS if again[0] <= first <= again[1] else ONCE


def _off(interval: tuple[float, float]) -> bool:
    """Is a prediction more than 10 % of the measured time off all over the interval?"""
    return interval[0] > -np.log(1 - WITHIN) or interval[1] < -np.log(1 + WITHIN)


def _nearest(grid: pd.DataFrame, key: Key) -> Key:
    """The fitted cell of the same unit and block whose size is the nearest, on a logarithmic scale."""
    unit, first, last, nodes, edges = key
    same = grid[(grid["unit"] == unit) & (grid["first"] == first) & (grid["last"] == last) & grid["ms"].notna()]
    far = np.hypot(np.log(same["nodes"] / nodes), np.log(same["edges"] / edges))
    return _keys(same.loc[[far.idxmin()]])[0]


def _cell(found: BandwidthFindings, key: Key) -> Cell:
    like = found.grid[found.grid["unit"] == key[0]].iloc[0]
    unit, first, last, nodes, edges = key
    numbers = {"precision": str(like["precision"]), "threads": max(1, int(like["threads"]))}
    return Cell(str(like["layer"]), int(like["features"]), nodes, edges, first, last, unit, **numbers)


def _keys(cells: pd.DataFrame) -> list[Key]:
    return list(cells[_KEYS].itertuples(index=False, name=None))
