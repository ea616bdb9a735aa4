"""Races held by `study.races` as rows of the lab's one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.optimize.study import BASELINE, CONTROL
from gnnlab.profiling import estimates


def race_rows(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """A row for each form of each cell, fields named as in the one table; for `Lab.record(study, ..., keys=keys)`.

    `table` has the columns of `keys`, form, `rounds` (n, 2) with ms of baseline and form in each round, and where known
    parity_error, notes, `under` (`Conditions`). Forms without rounds have the status "failed", their notes as reason.
    Samples are ms a call, one a round, the same rounds for all forms of a cell.
    """
    rows = []
    for _, cell in table.groupby(list(keys), sort=False, dropna=False):
        timed = {row["form"]: row for row in cell.to_dict("records") if isinstance(row.get("rounds"), np.ndarray)}
        control = timed.get(CONTROL)
        noise = None if control is None else control["rounds"][:, 1]
        if timed:
            first = next(iter(timed.values()))
            rows.append(_row(first, keys, BASELINE, first["rounds"][:, 0]))
        for name, row in timed.items():
            found = estimates.ratio(*row["rounds"].T, None if name == CONTROL else noise)
            over = {"ratio": found.value, "ratio_low": found.low, "ratio_high": found.high, "baseline": BASELINE}
            rows.append({**_row(row, keys, name, row["rounds"][:, 1]), **over})
        rows += [_failed(row, keys) for row in cell.to_dict("records") if row["form"] not in {*timed, BASELINE}]
    return pd.DataFrame(rows)


def _row(row: dict[str, Any], keys: Sequence[str], form: str, samples: np.ndarray) -> dict[str, Any]:
    fields = {**{key: row[key] for key in keys}, "form": form, "samples": samples, "status": "ok", **_times()}
    if form != BASELINE:
        fields |= {"parity_error": row.get("parity_error"), "notes": row.get("notes") or ""}
        if (under := row.get("under")) is not None and not isinstance(under, float):
            fields["threads"] = under.threads
    return fields


def _failed(row: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    said = {"status": "failed", "reason": row.get("notes") or "it has no times"}
    return {**{key: row[key] for key in keys}, "form": row["form"], **said, **_times()}


def _times() -> dict[str, Any]:
    return {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median", "precision": "float32"}
