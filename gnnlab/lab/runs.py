"""The outputs folder: a run of a notebook is a folder in it, put in place by one rename; how long its results hold.

    outputs/quick/02_optimize_gnn/20261122-101503-004217/     result.json  samples.parquet  notebook.ipynb  figures/

The newest run that passed is the result; earlier ones that were made from the same are pooled with it
(`results.runs_of`). A run that failed stands beside them. A run is written elsewhere in the folder first, so wherever a
process ends, the runs before it are there, or the new one, too. A rename cannot replace a folder with something in it:
so each run has a name of its own.

They hold while nothing has changed that they were made from, which is the fingerprint of a run: parameters, code,
inputs, versions, machine, each by its names, so that a change can be named.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gnnlab
from gnnlab import files, machine, user_code
from gnnlab.errors import GnnlabError

from . import results
from .provenance import PACKAGES
from .results import ResultFile

LAB, QUICK = "outputs/lab", "outputs/quick"  # below the repository: the default of each notebook, and of `gnnlab run`
PLACE = "GNNLAB_RUN"  # in the environment of a kernel that the runner started: the folder that its run fills
MARK = ".gnnlab"  # in every outputs folder
CELLS = "the notebook's code cells"
NOT_CODE = ("__pycache__", "templates")  # templates render results; they do not make them

Fingerprint = dict[str, dict[str, Any]]


def claim(folder: Path) -> None:
    """Make `folder` an outputs folder. Raises `GnnlabError` where it has files in it and is none."""
    mark = folder / MARK
    folder.mkdir(parents=True, exist_ok=True)
    foreign = sorted({path.name for path in folder.iterdir()} - {files.LOCK})
    if foreign and not mark.exists():
        raise GnnlabError(
            f"output_dir {folder} is not empty and is no outputs folder of this gnnlab ({foreign[0]} is there); "
            "choose a new folder or an empty one, or move this one away"
        )
    mark.touch()


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where missing) for this process.

    Raises `GnnlabError`, before anything is written, where it holds files of someone else or another run.
    """
    claim(folder)
    with files.locked(folder, "runs notebooks into"):
        yield


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


# ---- from what it was made -------------------------------------------------------------------------------------------


def fingerprint(notebook: Path, parameters: Mapping[str, Any], needs: Sequence[Path], folder: Path) -> Fingerprint:
    """What the results of a notebook are made from.

    `parameters` are all that it declares; `needs` are the result files that it builds on. Files and modules that
    parameters name are looked for in the working directory, and what lies in `folder`, where the results go, does not
    count.
    """
    here = Path.cwd()
    cells = [cell for cell in json.loads(notebook.read_bytes())["cells"] if cell["cell_type"] == "code"]
    texts = [text for value in parameters.values() for text in (value if isinstance(value, list) else [value])]
    files_of = [path for text in texts if isinstance(text, str) for path in _files_of(text, here)]
    inputs = {path: files.digest(path) for path in files_of if folder not in path.parents}
    return {
        "parameters": dict(parameters),
        "code": {
            **package_code(),
            CELLS: files.digest([["".join(c["source"]), c["metadata"].get("tags")] for c in cells]),
        },
        "inputs": {path.parent.parent.name: files.digest(path) for path in needs}
        | {str(path.relative_to(here) if path.is_relative_to(here) else path): made for path, made in inputs.items()},
        "versions": machine.versions(*PACKAGES),
        "machine": this_machine(),
    }


def package_code() -> dict[str, str]:
    """Digest of every module and data file of this package."""
    package = Path(gnnlab.__file__).parent
    names = [path.relative_to(package) for path in sorted(package.rglob("*")) if path.is_file()]
    code = [name for name in names if not any(part in NOT_CODE or part.startswith(".") for part in name.parts)]
    return {name.as_posix(): files.digest(package / name) for name in code}


def this_machine() -> dict[str, Any]:
    """Processor, cores and accelerators, as far as they are seen without loading a framework."""
    return {
        **machine.about(),
        "accelerators": sorted(map(str, [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev/accel").glob("accel*")])),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _files_of(text: str, here: Path) -> list[Path]:
    """The files that a parameter names: by a path, or as a module in `module:factory`."""
    try:
        if (here / text).is_file():
            return [(here / text).resolve()]
        return user_code.files_of(text.partition(":")[0], here) if re.fullmatch(r"[^\W\d][\w.]*:\w+", text) else []
    except (OSError, ValueError):  # too long for a name, or no name at all
        return []


def why_again(path: Path, result: ResultFile, now: Fingerprint) -> str | None:
    """Why a notebook runs again: "code changed (profiling/timing.py)", or None when the result at `path` holds."""
    if result.fingerprint.keys() != now.keys():
        return "its last run was not by gnnlab run"
    for name in [results.NOTEBOOK, *[results.SAMPLES] * bool(result.rows)]:
        if not path.with_name(name).is_file():
            return f"{name} is missing"
    changed = [_changed(part, result.fingerprint[part], now[part]) for part in now]
    return "; ".join(clause for clause in changed if clause) or None


def _changed(part: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    names = sorted(n for n in before.keys() | now.keys() if n not in before or n not in now or before[n] != now[n])
    if not names:
        return None
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return f"{part} changed ({', '.join(names[:2] if more else names)}{more})"
