"""What is known of the stages: a journal that each measurement is added to, and S4's files, written from it.

    frame = read(outputs / "stages")      # a row for each measurement that was ever asked for
    write_files(outputs / "stages")

| file | holds |
|---|---|
| `journal.jsonl` | a line of JSON for each measurement, on the disk before the next begins; the one file that is read |
| `checkpoint_cpugpu.json`, `checkpoint_npu.json` | S4's two phases: all that is known, whatever was asked last |
| `raw_measurements.json` | both, every sample of every measurement |
| `profiling_report.txt` | for reading: what was measured, what could not be, and why |

A measurement is known once it was measured or found wrong. Of several with one key the latest counts; a failure that
comes later hides no time. Where a graph's file changed, what was measured of the old one no longer counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.files import write_atomically, write_json

JOURNAL, RAW, REPORT = "journal.jsonl", "raw_measurements.json", "profiling_report.txt"
CHECKPOINTS = {"checkpoint_cpugpu.json": ("CPU", "GPU"), "checkpoint_npu.json": ("NPU",)}
KNOWN = ("measured", "wrong")
REMEDY = "measure first: gnnlab stages --measure"
CONFIG = ("layer", "features", "nodes", "edges", "graph", "graph_digest", "first", "last", "device", "threads")
OUTCOME = ("status", "reason", "samples_ms", "ms", "ms_low", "ms_high", "std_ms", "parity_error", "precision", "chip")
OUTCOME += ("runtime_version", "notes")
ABOUT = ("key", "stage", "processor", "took_s", "written")
NUMBERS = dict.fromkeys(("ms", "ms_low", "ms_high", "std_ms", "parity_error", "took_s"), float)
ORDER = ["nodes", "edges", "graph", "fused", "first", "last", "device", "key"]
WITHIN = 0.02  # half-width of an interval over its median
Record = dict[str, Any]


def append(folder: Path, record: Record) -> None:
    """Add a line: it is in the file when this returns. Raises `GnnlabError` where the disk refuses."""
    written = datetime.now(UTC).isoformat(timespec="seconds")
    line = "\n" + json.dumps({**record, "written": written}, allow_nan=False)  # ends a line that a kill cut off
    try:
        with (folder / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        what = f"could not write {folder / JOURNAL}: {error.strerror or error}"
        raise GnnlabError(f"{what}; what was measured before is kept, the same command goes on") from error


def records(folder: Path) -> Iterator[Record]:
    """The whole lines of the journal, the oldest first. One that was cut off or lacks a field is left out."""
    path = folder / JOURNAL
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            each = json.loads(line)
            _ = each["conditions"], [each[n] for n in ABOUT], [each["outcome"][n] for n in OUTCOME]
            _ = [each["config"][n] for n in CONFIG]
        except (ValueError, LookupError, TypeError):
            continue
        yield each


def known(folder: Path) -> set[str]:
    """The `identity` of every measurement that is known."""
    return {identity(r["config"], r["conditions"]) for r in records(folder) if r["outcome"]["status"] in KNOWN}


def identity(config: Mapping[str, Any], conditions: Mapping[str, Any]) -> str:
    """A configuration, and all else that its time depends on, as one text."""
    return json.dumps([config, conditions], sort_keys=True)


def read(folder: Path) -> pd.DataFrame:
    """A row for each measurement: the latest that is known of its key, else the latest failure, with NaN for its times.

    Columns: `ABOUT`, `CONFIG`, `OUTCOME`; size ("1000x2000"), fused (several stages?), n (samples), within (is the
    interval within 2 %?). Times are ms, `took_s` includes loading. Raises `GnnlabError` where there is none.
    """
    latest: dict[str, Record] = {}
    for each in records(folder):
        before = latest.get(each["key"], each)
        changed = each["config"]["graph_digest"] != before["config"]["graph_digest"]
        if changed or each["outcome"]["status"] in KNOWN or before["outcome"]["status"] not in KNOWN:
            latest[each["key"]] = each
    if not latest:
        raise GnnlabError(f"no measurements in {folder}; {REMEDY}")
    frame = pd.DataFrame([_row(each) for each in latest.values()])
    half = (frame["ms_high"] - frame["ms_low"]) / 2
    return frame.assign(
        size=[f"{nodes}x{edges}" for nodes, edges in zip(frame["nodes"], frame["edges"], strict=True)],
        fused=frame["first"] != frame["last"],
        n=frame["samples_ms"].map(len),
        within=half <= WITHIN * frame["ms"],
    ).sort_values(ORDER, ignore_index=True)


def _row(record: Record) -> dict[str, Any]:
    about = {name: record[name] for name in ABOUT}
    values = about | {n: record["config"][n] for n in CONFIG} | {n: record["outcome"][n] for n in OUTCOME}
    values |= {name: float("nan") if values[name] is None else float(values[name]) for name in NUMBERS}
    return values | {"reason": values["reason"] or "", "notes": "; ".join(values["notes"])}


# ---- S4's files ------------------------------------------------------------------------------------------------------


def write_files(folder: Path) -> list[str]:
    """Write S4's four files from all that the journal knows; gives a line for each phase of which it knows nothing."""
    frame, lacking = read(folder), []
    for name, processors in CHECKPOINTS.items():
        part = frame[frame["processor"].isin(processors)]
        if part.empty:
            lacking.append(f"{name} is not written: no device of {' or '.join(processors)} was measured")
        else:
            write_json(folder / name, _file(part))
    write_json(folder / RAW, _file(frame))
    text = report(frame, lacking)
    write_atomically(folder / REPORT, lambda file: file.write(text))
    return lacking


def _file(frame: pd.DataFrame) -> dict[str, Any]:
    """Measurements by S4's key; null where there is no number."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return {"written": max(frame["written"]), "measurements": {row.pop("key"): row for row in rows}}


def report(frame: pd.DataFrame, messages: list[str]) -> str:
    """The text of `profiling_report.txt`."""
    from gnnlab.stages import rows

    timed = frame[frame["status"] == "measured"]
    statistics = {"mean": rows.geometric, "least": "min", "most": "max", "sizes": "size"}
    columns = ["stage", "size", "device", "status", "ms", "ms_low", "ms_high", "n", "within"]
    tables = {
        "Devices": timed[["device", "chip", "runtime_version", "precision", "threads"]].drop_duplicates(),
        "Time in ms, geometric mean over sizes": timed.groupby(["stage", "device"], sort=False)["ms"].agg(**statistics),
        "Every measurement in ms, 95 % interval (within: 2 %)": frame[columns],
        "On the CPU, times as fast as the baseline": rows.gain_rows(frame),
        "Stages one by one over fused": rows.sum_rows(frame),
        "What could not be measured, and why": rows.gaps(frame),
    }
    counts = ", ".join(f"{count} {status}" for status, count in frame["status"].value_counts().items())
    layers = ", ".join(dict.fromkeys(frame["layer"] + "-" + frame["features"].astype(str)))
    lines = ["GNN stage profile", "=" * 17, *messages, f"layer and width {layers}"]
    lines += [f"sizes (nodes x edges) {', '.join(frame['size'].unique())}"]
    lines += [f"{counts}; {int(timed['within'].sum())} with an interval within 2 %"]
    for title, table in tables.items():
        table = table.reset_index() if table.index.names != [None] else table
        text = table.to_string(index=False, float_format="{:.4g}".format, max_colwidth=None)
        lines += ["", title, "-" * len(title), "none" if table.empty else text]
    return "\n".join(lines) + "\n"
