"""Study 5's two tables in its own format, made of measured cells and copies, and read back from whoever wrote them.

    lookup_table.json       {"1000,1000,CPU,1": {"compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"}}
    bandwidth_table.json    {"CPU_stage1": MB/s}

A processing unit of the study is a processor; the lab has several units on one. An entry is of one unit, the best of
its processor or the one that was named; simulated ones only where named.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.stages.bandwidth.transfer import Transfers, copier, lent
from gnnlab.stages.campaign import table as campaign_table
from gnnlab.stages.campaign.cell_inputs import layer_of
from gnnlab.stages.errors import StageError
from gnnlab.stages.units import registry as units

FIELDS = ("compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms")
PROCESSORS = ("CPU", "GPU", "NPU")


def processor_units(cells: pd.DataFrame, declared: Mapping[str, str] | None = None) -> dict[str, str]:
    """The unit that stands for each processor: the one declared, else of those measured the one that has times of most
    single stages and sizes, and of these the one that takes least.

    Raises:
        StageError: a declared unit has no times, or is of another processor.
    """
    alone = cells[cells["ms"].notna() & ~cells["fused"]]
    chosen = {}
    for processor, part in alone[alone["origin"] == campaign_table.MEASURED].groupby("processor", sort=False):
        totals = part.groupby("unit", sort=False)["ms"].agg(["size", "sum"])
        chosen[processor] = str(totals.sort_values(["size", "sum"], ascending=[False, True]).index[0])
    for processor, unit in (declared or {}).items():
        if processor not in PROCESSORS or units.find(unit).processor != processor:
            raise StageError(f"{unit} as {processor}: it is a unit of the {units.find(unit).processor}; name another")
        if unit not in set(alone["unit"]):
            raise StageError(f"{unit} as {processor}: no stage was measured on it; units with times: "
                             f"{', '.join(dict.fromkeys(alone['unit']))}")  # fmt: skip
        chosen[processor] = unit
    return {processor: chosen[processor] for processor in PROCESSORS if processor in chosen}


def declared(texts: Sequence[str]) -> dict[str, str]:
    """["GPU=simulated:GPU"] as {"GPU": "simulated:GPU"}. Raises `StageError` for a text that is not so."""
    pairs = [text.partition("=") for text in texts]
    if bad := [text for text, (name, _, unit) in zip(texts, pairs, strict=True) if name not in PROCESSORS or not unit]:
        raise StageError(f"{bad[0]!r} names no unit for a processor; write {' or '.join(PROCESSORS)}=unit")
    return {name: unit for name, _, unit in pairs}


def entries(cells: pd.DataFrame, transfers: Transfers, chosen: Mapping[str, str]) -> pd.DataFrame:
    """The lookup table as rows: key, processor, unit, stage, nodes, edges, the four fields, low_ms, high_ms, origin,
    diagnosis.

    transfer: a copy, through that unit, of the bytes that the stage reads and writes, without its launch, and no more
    than the whole; compute: what remains of the measured time.
    """
    rows = []
    for processor, unit in chosen.items():
        part = cells[(cells["unit"] == unit) & ~cells["fused"] & cells["ms"].notna()]
        for row in part.itertuples():
            moved = layer_of(row.layer, row.features).bytes_moved(row.first, row.nodes, row.edges)
            curve = transfers.through.get(unit)
            copy_ms = curve.moving_ms(moved) if curve else 0.0
            transfer = min(copy_ms, row.ms)
            rows.append(
                {
                    "key": f"{row.nodes},{row.edges},{processor},{row.first}",
                    "processor": processor,
                    "unit": unit,
                    "stage": row.first,
                    "nodes": row.nodes,
                    "edges": row.edges,
                    "compute_time_ms": row.ms - transfer,
                    "transfer_time_ms": transfer,
                    "total_time_ms": row.ms,
                    "std_ms": row.std_ms,
                    "low_ms": row.ms_low,
                    "high_ms": row.ms_high,
                    "origin": row.origin,
                    "diagnosis": _diagnosed(unit, curve is not None, copy_ms, row.ms),
                }
            )
    return pd.DataFrame(rows)


def _diagnosed(unit: str, measured: bool, copy_ms: float, total_ms: float) -> str:
    if not measured:
        return "no copies through this unit were measured: all of it is under compute"
    if copy_ms >= total_ms:
        return "takes no longer than a copy of its bytes: no compute beside it can be told"
    return "measured copy taken off" if not lent(unit) else f"a copy through {copier(unit)} taken off: {lent(unit)}"


def bandwidths(found: pd.DataFrame, cells: pd.DataFrame, transfers: Transfers) -> pd.DataFrame:
    """The bandwidth table as rows: key, processor, unit, stage, mb_s, mb_s_low, mb_s_high (NaN where it cannot be
    told), size_bytes, why. Of a copy, through that unit and no other, of as many bytes as the stage moves, in the
    geometric mean over its sizes."""
    rows = []
    layer = layer_of(cells["layer"].iloc[0], int(cells["features"].iloc[0]))
    for (processor, unit, stage), part in found.groupby(["processor", "unit", "stage"], sort=False):
        moved = [layer.bytes_moved(stage, n, e) for n, e in zip(part["nodes"], part["edges"], strict=True)]
        size = float(np.exp(np.mean(np.log(moved)))) / 2
        curve = None if lent(unit) else transfers.through.get(unit)
        ends = curve.bandwidth_interval(size) if curve else None
        row = {"key": f"{processor}_stage{stage}", "processor": processor, "unit": unit, "stage": stage}
        numbers = (np.nan,) * 3 if ends is None else (curve.bandwidth(size).mb_s, *(end.mb_s for end in ends))
        lacking = lent(unit) or "no copies through it were measured"
        why = "" if ends else "launch and noise hide the bandwidth of a copy of this size" if curve else lacking
        rows.append({**row, **dict(zip(("mb_s", "mb_s_low", "mb_s_high"), numbers, strict=True)),
                     "size_bytes": size, "why": why})  # fmt: skip
    return pd.DataFrame(rows)


def read_lookup(path: Path) -> dict[str, dict[str, float]]:
    """A lookup table in the study's format, whoever wrote it, once it is found to be whole.

    Raises:
        StageError: another format, a time that is none, or a cell that is missing: a stage that one of the table's
            processors has at some of its sizes only; one line.
    """
    found = _read_study(path, r"(\d+),(\d+),(CPU|GPU|NPU),(\d+)", "nodes,edges,PU,stage", _fields, _whole)
    if not found:
        raise StageError(f"{path} is empty; measure first (notebook 05)")
    return found


def read_bandwidth(path: Path) -> dict[str, float]:
    """A bandwidth table in the study's format: MB/s by "PU_stageN"; empty where none could be told.

    Raises `StageError` for anything else, one line.
    """
    return _read_study(path, r"(CPU|GPU|NPU)_stage(\d+)", "PU_stageN", positive, lambda keys: None)


def _fields(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == set(FIELDS)
        and all(positive(value[name], zero=name != "total_time_ms") for name in FIELDS)
    )


def _whole(keys: Sequence[tuple[str, ...]]) -> str | None:
    """The first cell that is missing."""
    sizes = {(n, e, pu) for n, e, pu, _ in keys}
    for n, e, pu, stage in sorted({(n, e, pu, s) for n, e, pu in sizes for _, _, other, s in keys if other == pu}):
        if (n, e, pu, stage) not in set(keys):
            return f"{n},{e},{pu},{stage}"
    return None


def _read_study(
    path: Path, pattern: str, form: str, good: Callable[[Any], bool], whole: Callable[[Any], str | None]
) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise StageError(f"could not read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise StageError(f"{path} is no JSON") from None
    if not isinstance(data, dict):
        raise StageError(f'{path} is no table; entries by "{form}" are needed')
    keys = {key: re.fullmatch(pattern, key, re.ASCII) for key in data}
    if strange := [key for key, match in keys.items() if match is None]:
        raise StageError(f'{path}: key {strange[0]!r} is not understood; write "{form}"')
    if bad := [key for key, value in data.items() if not good(value)]:
        needed = "positive MB/s" if "_" in form else f"{', '.join(FIELDS)}, none of them negative or NaN"
        raise StageError(f"{path}, {bad[0]}: {str(data[bad[0]])[:120]}; it needs {needed}")
    if lacking := whole([match.groups() for match in keys.values()]):
        raise StageError(f"{path} lacks {lacking}, which it has at other sizes; measure it (notebook 05)")
    return data


def positive(value: Any, zero: bool = False) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return number and (value > 0 or (zero and value == 0))
