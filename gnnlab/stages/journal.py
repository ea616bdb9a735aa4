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

import numpy as np
import pandas as pd

from gnnlab.errors import GnnlabError
from gnnlab.files import write_atomically, write_json
from gnnlab.stages.measurement import Record

JOURNAL, REPORT = "journal.jsonl", "profiling_report.txt"
FILES = {  # the processors of each
    "checkpoint_cpugpu.json": ("CPU", "GPU"),
    "checkpoint_npu.json": ("NPU",),
    "raw_measurements.json": ("CPU", "GPU", "NPU"),
}
KNOWN = ("measured", "wrong")
NUMBERS = ["ms", "ms_low", "ms_high", "std_ms", "parity_error", "took_s"]
COLUMNS = ["key", "layer", "features", "nodes", "edges", "graph", "graph_digest", "first", "last", "stage", "device"]
COLUMNS += ["processor", "precision", "threads", "status", "reason", "samples_ms", *NUMBERS]
COLUMNS += ["chip", "runtime_version", "notes", "written"]
ORDER = ["nodes", "edges", "graph", "fused", "first", "last", "device", "key"]
WITHIN = 0.02  # half-width of an interval over its median


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
    path, fields = folder / JOURNAL, {*COLUMNS, "conditions"}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            each = json.loads(line)
        except ValueError:
            continue
        if isinstance(each, dict) and fields <= each.keys():
            yield each


def known(folder: Path) -> set[str]:
    """The `identity` of every measurement that is known."""
    every = records(folder)
    return {identity(r["key"], r["graph_digest"], r["conditions"]) for r in every if r["status"] in KNOWN}


def identity(key: str, graph_digest: str, conditions: Mapping[str, Any]) -> str:
    """What is measured, and all else that its time depends on, as one text."""
    return json.dumps([key, graph_digest, conditions], sort_keys=True)


def read(folder: Path) -> pd.DataFrame:
    """A row for each measurement: the latest that is known of its key, else the latest failure, with NaN for its times.

    `COLUMNS`, and: size ("1000x2000"), fused (several stages?), n (samples), within (is the interval within 2 %?).
    Times are ms, `took_s` includes loading. Raises `GnnlabError` where there is none.
    """
    frame = pd.DataFrame(records(folder), columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))
    if frame.empty:
        raise GnnlabError(f"no measurements in {folder}; measure first: gnnlab stages --measure")
    frame = frame[frame["graph_digest"] == frame.groupby("key")["graph_digest"].transform("last")]
    frame = frame.sort_values("status", key=lambda status: status.isin(KNOWN), kind="stable")
    frame = frame.drop_duplicates("key", keep="last")
    return frame.assign(
        size=frame["nodes"].astype(str) + "x" + frame["edges"].astype(str),
        fused=frame["first"] != frame["last"],
        n=frame["samples_ms"].map(len),
        within=(frame["ms_high"] - frame["ms_low"]) / 2 <= WITHIN * frame["ms"],
        reason=frame["reason"].fillna(""),
        notes=frame["notes"].map("; ".join),
    ).sort_values(ORDER, ignore_index=True)


# ---- S4's files ------------------------------------------------------------------------------------------------------


def write_files(folder: Path) -> list[str]:
    """Write S4's four files from all that the journal knows; gives a line for each phase of which it knows nothing."""
    frame, lacking = read(folder), []
    for name, processors in FILES.items():
        part = frame[frame["processor"].isin(processors)]
        if part.empty:
            lacking.append(f"{name} is not written: no device of {' or '.join(processors)} was measured")
            continue
        plain = part.astype(object).where(part.notna(), None).set_index("key")  # null where there is no number
        write_json(folder / name, {"written": max(part["written"]), "measurements": plain.to_dict("index")})
    text = report(frame, lacking)
    write_atomically(folder / REPORT, lambda file: file.write(text))
    return lacking


def report(frame: pd.DataFrame, messages: list[str]) -> str:
    """The text of `profiling_report.txt`."""
    from gnnlab.stages import rows

    timed = frame[frame["status"] == "measured"]
    mean = timed.groupby(["stage", "device"], sort=False)["ms"].agg(lambda ms: np.exp(np.log(ms).mean()))
    columns = ["stage", "size", "device", "status", "ms", "ms_low", "ms_high", "n", "within"]
    tables = {
        "Devices": timed[["device", "chip", "runtime_version", "precision", "threads"]].drop_duplicates(),
        "Time in ms, geometric mean over sizes": mean.reset_index(),
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
        text = table.to_string(index=False, float_format="{:.4g}".format, max_colwidth=None)
        lines += ["", title, "-" * len(title), "none" if table.empty else text]
    return "\n".join(lines) + "\n"
