"""The outputs folder: a run of a notebook is a folder in it, put in place by one rename.

    outputs/quick/02_optimize_gnn/20261122-101503-004217/     result.json  samples.parquet  notebook.ipynb  figures/

The newest run that passed is the result; earlier ones from the same code, parameters and machine are pooled with it
(`results.runs_of`). A run that failed stands beside them. A run is written elsewhere in the folder first, so wherever a
process ends, the runs before it are there, or the new one, too. A rename cannot replace a folder with something in it:
so each run has a name of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnnlab import files
from gnnlab.errors import GnnlabError

from . import results
from .provenance import Fingerprint
from .results import ResultFile

LAB = "outputs/lab"  # below the repository: what cells write that someone runs one by one
PLACE = "GNNLAB_RUN"  # in the environment of a kernel that the runner started: the folder that its run fills
MARK = ".gnnlab"  # in every outputs folder


def claim(folder: Path) -> None:
    """Make `folder` an outputs folder. Raises `GnnlabError` where it has files in it and is none."""
    mark = folder / MARK
    if mark.exists():
        return
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    foreign = [name for name in names if name != files.LOCK and not name.startswith(f".{MARK}-")]  # half a mark is ours
    if foreign:
        raise GnnlabError(
            f"output_dir {folder} is not empty and is no outputs folder of this gnnlab ({foreign[0]} is there); "
            "choose a new folder or an empty one, or move this one away"
        )
    files.write_atomically(mark, lambda file: file.write("An outputs folder of gnnlab.\n"))


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where missing) for this process.

    Raises `GnnlabError`, before anything is written, where it holds files of someone else or another run.
    """
    claim(folder)
    with files.locked(folder, "runs notebooks into"):
        yield


def for_exploring(root: Path, named: Path) -> Path:
    """Where cells write that someone runs by hand: the folder that they named, or `LAB` where that is the one of a
    parameter set or holds the results of a run.
    """
    sets = {root / "outputs" / path.name for path in (root / "params").iterdir() if path.is_dir()}
    return root / LAB if named in sets or any(named.glob(f"[0-9][0-9]_*/*/{results.RESULT}")) else named


def begin(folder: Path, notebook: str) -> Path:
    """An empty folder for a run of `notebook` to fill; what a killed run left there goes."""
    place = folder / f".{notebook}.new"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def put(place: Path, folder: Path, notebook: str) -> Path:
    """Put a run in place, by one rename; returns where it is then."""
    target = folder / notebook / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    target.parent.mkdir(exist_ok=True)
    place.rename(target)
    return target


def why_again(path: Path, result: ResultFile, now: Fingerprint) -> str | None:
    """Why a notebook runs again: "code changed (profiling/timing.py)", or None when the result at `path` holds."""
    if result.fingerprint.keys() != now.keys():
        return "its last run was not by gnnlab run"
    for name in [results.NOTEBOOK, *[results.SAMPLES] * bool(result.samples_sha256)]:
        if not path.with_name(name).is_file():
            return f"{name} is missing"
    changed = [_changed(part, result.fingerprint.get(part, {}), now[part]) for part in now]
    return "; ".join(clause for clause in changed if clause) or None


def _changed(part: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    absent = object()
    names = sorted(name for name in before.keys() | now.keys() if before.get(name, absent) != now.get(name, absent))
    if not names:
        return None
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return f"{part} changed ({', '.join(names[:2] if more else names)}{more})"
