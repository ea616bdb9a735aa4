"""The files of notebook 06, written and read back: study 5's two tables, what these lack, times and transfers.

cells = measured_cells(outputs / "stages")          # checked
write(outputs / "tables", cells, transfers)
costs = load_tables(outputs / "tables")             # costs.time_ms("openvino:CPU", 1, 5, 4000, 9000)

lookup_table.json, bandwidth_table.json     in the study's format (`study_tables`)
*.about.json            of each entry: the unit that it is of, origin, interval, diagnosis; and what is left out
times.json              every time that predictions are fitted to; transfers.json: every sweep of copies
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gnnlab.safe_files import write_atomically, write_json
from gnnlab.stages.bandwidth.prediction import Predictor
from gnnlab.stages.bandwidth.study_tables import FIELDS, bandwidths, entries, positive, processor_units
from gnnlab.stages.bandwidth.transfer import Transfers
from gnnlab.stages.campaign import checkpoints
from gnnlab.stages.campaign import table as campaign_table
from gnnlab.stages.campaign.cell_inputs import layer_of
from gnnlab.stages.campaign.cells import Cell, Outcome
from gnnlab.stages.errors import StageError

LOOKUP, BANDWIDTH, TIMES, TRANSFERS = "lookup_table.json", "bandwidth_table.json", "times.json", "transfers.json"
REPORT = "bandwidth_report.txt"
SCHEMA_VERSION = 1
_TIMES = ["unit", "first", "last", "nodes", "edges", "ms", "ms_low", "ms_high", "n", "origin"]
_AGAIN = "run notebooks 05 and 06 again"


class Tables(NamedTuple):
    """What plans are made of: predicted times of blocks, and measured transfers."""

    predictor: Predictor
    transfers: Transfers


def measured_cells(folder: Path) -> pd.DataFrame:
    """The cells of a campaign (`campaign_table.table`, and `graph`), once every one of them is found to make sense.

    Raises:
        StageError: no measurements, another schema, or a cell whose times are no times; one line.
    """
    path = folder / checkpoints.RAW
    found = checkpoints.raw(folder)
    if not isinstance(found, dict):
        raise StageError(f"{path}: measurements are no table of cells; {_AGAIN}")
    for key, row in found.items():
        _check(key, row, path)
    table = campaign_table.table(found)
    return table.assign(graph=[found[key]["cell"]["graph"] for key in table["key"]])


def _check(key: str, row: Any, path: Path) -> None:
    try:
        cell, outcome = Cell(**row["cell"]), Outcome.from_json(row["outcome"])
        row["host"]
    except StageError as error:
        raise StageError(f"{path}, cell {key}: {error}; {_AGAIN}") from None
    except (KeyError, TypeError):
        raise StageError(f"{path}, cell {key}: not as this version writes it; {_AGAIN}") from None
    times = [outcome.median_ms, *(outcome.ci_ms or (None,)), outcome.std_ms]
    if cell.key != key:
        raise StageError(f"{path}: cell {key} says that it is {cell.key}; {_AGAIN}")
    timed = outcome.status in campaign_table.TIMED
    if timed and not (all(map(positive, times[:-1])) and positive(times[-1], zero=True)):
        raise StageError(f"{path}, cell {key}: times of {times} ms, where positive ones are needed; {_AGAIN}")


def first_cell(folder: Path) -> Cell:
    """A cell of a campaign, for what all of them share: layer, features, precision and threads."""
    return Cell(**next(iter(checkpoints.raw(folder).values()))["cell"])


def missing(cells: pd.DataFrame) -> list[str]:
    """A line for each unit that has a time at some sizes of a block and none at others."""
    lines = []
    for (unit, stage), part in cells.groupby(["unit", "stage"], sort=False):
        lacking = part[part["ms"].isna()]
        if 0 < len(lacking) < len(part):
            named = ", ".join(lacking["size"])
            lines.append(f"{unit} has no time for {stage} at {named}: {lacking.iloc[0]['reason'] or 'not measured'}")
    return lines


def write(
    folder: Path,
    cells: pd.DataFrame,
    transfers: Transfers,
    *,
    declared: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write all files but the report, each whole or not at all; returns the rows of both tables.

    Raises:
        StageError: nothing to write; FileError: the disk refuses.
    """
    if cells["ms"].isna().all():
        raise StageError("no cell has a time, so there is no table to write; measure first (notebook 05)")
    chosen = processor_units(cells, declared)
    found = entries(cells, transfers, chosen)
    rates = bandwidths(found, cells, transfers)
    layer, features = str(cells["layer"].iloc[0]), int(cells["features"].iloc[0])
    head = {"schema_version": SCHEMA_VERSION, "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "layer": layer, "features": features}  # fmt: skip
    about = head | {"units": chosen, "lacking": missing(cells)}
    known = rates[rates["mb_s"].notna()]
    write_json(folder / LOOKUP, {r["key"]: {f: r[f] for f in FIELDS} for r in found.to_dict("records")})
    write_json(folder / _about(LOOKUP), about | {"entries": _records(found.drop(columns=list(FIELDS)))})
    write_json(folder / BANDWIDTH, dict(zip(known["key"], known["mb_s"], strict=True)))
    write_json(folder / _about(BANDWIDTH), about | {"entries": _records(rates.drop(columns="mb_s"))})
    times = cells.loc[cells["ms"].notna(), _TIMES]
    write_json(folder / TIMES, head | {"times": json.loads(times.to_json(orient="records", double_precision=15))})
    write_json(folder / TRANSFERS, head | transfers.to_json())
    return found, rates


def _about(name: str) -> str:
    return name.replace(".json", ".about.json")


def _records(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """By key; NaN becomes null."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return {row["key"]: {name: value for name, value in row.items() if name != "key"} for row in rows}


def write_report(folder: Path, text: str) -> Path:
    path = folder / REPORT
    write_atomically(path, lambda file: file.write(text))
    return path


def load_tables(folder: Path, *, refuse_outside: bool = False) -> Tables:
    """What `write` wrote, ready to predict. `refuse_outside`: sizes outside the measured hull raise when asked for.

    Raises:
        StageError: a file is missing, damaged, of another version, or holds a time that is none.
    """
    times, transfers = (_read(folder / name) for name in (TIMES, TRANSFERS))
    try:
        table = pd.DataFrame(times["times"], columns=_TIMES)
        layer = layer_of(times["layer"], int(times["features"]))
        numbers = table[["first", "last", "nodes", "edges", "ms", "ms_low", "ms_high"]].astype(float)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StageError(f"{folder / TIMES} is not as this version writes it; {_AGAIN}") from None
    bad = ~(np.isfinite(numbers) & (numbers > 0)).all(axis=1)
    if bad.any():
        row = table[bad].iloc[0]
        where = f"{row['unit']}, stages {row['first']}-{row['last']} at {row['nodes']}/{row['edges']}"
        raise StageError(f"{folder / TIMES}: {where} takes {row['ms']} ms; a positive time is needed, {_AGAIN}")
    found = Transfers.from_json(transfers)
    return Tables(Predictor.fit(layer, table, found.through, refuse_outside=refuse_outside), found)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise StageError(f"could not read {path}: {error.strerror or error}; run notebook 06 first") from None
    except (ValueError, RecursionError):
        raise StageError(f"{path} is damaged; {_AGAIN}") from None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        given = data.get("schema_version") if isinstance(data, dict) else type(data).__name__
        raise StageError(f"{path} has schema {given!r}, this version reads {SCHEMA_VERSION}; {_AGAIN}")
    return data
