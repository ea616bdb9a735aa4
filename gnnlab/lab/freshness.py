"""Whether the results of a notebook still hold: what they were made from, and the record of it in `runs.json`.

A fingerprint has five parts, each a mapping so that a change can be named: parameters, code, inputs, versions, machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

import gnnlab
from gnnlab import files, machine
from gnnlab.errors import GnnlabError

from . import results
from .table import Strict

PARTS = ("parameters", "code", "inputs", "versions", "machine")
NOT_CODE = ("__pycache__", "templates")  # templates render results; they do not make them
CELLS = "the notebook's code cells"
RUNS = "runs.json"
SCHEMA = 2

Fingerprint = dict[str, dict[str, Any]]


class Run(Strict):
    """The last passed or skipped run of a notebook."""

    status: Literal["passed", "skipped"]
    reason: str | None = None
    finished: str  # ISO 8601, UTC
    seconds: float = Field(ge=0)
    result_digest: str  # of NN_name.json
    fingerprint: Fingerprint

    @property
    def when(self) -> str:
        """Local time, to the minute."""
        return f"{datetime.fromisoformat(self.finished).astimezone():%Y-%m-%d %H:%M}"


class Runs(Strict):
    """`runs.json` of a results folder."""

    schema_version: Literal[2] = SCHEMA
    runs: dict[str, Run] = Field(default_factory=dict)


# ---- the record -----------------------------------------------------------------------------------------------------


def read_runs(folder: Path) -> tuple[Runs, str | None]:
    """The record of a results folder, and a message where it is of no use here: then it is set aside, not deleted."""
    path = folder / RUNS
    try:
        return Runs.model_validate_json(path.read_bytes()), None
    except FileNotFoundError:
        return Runs(), None
    except ValidationError as error:
        first = error.errors()[0]
        written = first["input"] if first["loc"] == ("schema_version",) else None
        if isinstance(written, int):
            why, what = "other", f"was written by another version of gnnlab (schema {written}, this one is {SCHEMA})"
        else:
            why, what = "damaged", f"is damaged ({first['msg']})"
        kept = files.set_aside(path, why)
        return Runs(), f"{path} {what}; it was set aside as {kept.name} and its notebooks run again"
    except OSError as error:
        raise GnnlabError(f"could not read {path}: {error.strerror or error}") from None


def write_runs(folder: Path, runs: Runs) -> None:
    """Write the record, atomically. Raises `GnnlabError`."""
    files.write_json(folder / RUNS, runs.model_dump(mode="json"))


def record(result: results.ResultFile, path: Path, fingerprint: Fingerprint, seconds: float) -> Run:
    """The record of a run that has just ended with the result file at `path`."""
    return Run(
        status=result.status.value,
        reason=result.reason,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        result_digest=files.digest(path),
        fingerprint=fingerprint,
    )


def why_again(name: str, folder: Path, run: Run, now: Fingerprint) -> str | None:
    """Why a notebook has to run again: "code changed (profiling/timing.py)", or None when its results still hold."""
    lost = _lost(name, folder, run)
    if lost:
        return lost
    changed = [_changed(part, run.fingerprint.get(part, {}), now[part]) for part in PARTS]
    return "; ".join(clause for clause in changed if clause) or None


def _lost(name: str, folder: Path, run: Run) -> str | None:
    """Which output is not as the run left it."""
    path = folder / f"{name}.json"
    try:
        if files.digest(path) != run.result_digest:
            return f"{path.name} is not as the run left it"
    except OSError:
        return f"{path.name} is missing"
    result, samples = results.read(path), results.samples_path(path)
    figures = [file for figure in result.figures for file in (figure.png, figure.svg)]
    for file in (f"{name}.ipynb", *figures, *([samples.name] if result.samples_sha256 else [])):
        if not (folder / file).is_file():
            return f"{file} is missing"
    if result.samples_sha256 and results.sha256(samples) != result.samples_sha256:
        return f"{samples.name} is not the one that {path.name} names"
    return None


def _changed(part: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    absent = object()
    names = sorted(name for name in before.keys() | now.keys() if before.get(name, absent) != now.get(name, absent))
    if not names:
        return None
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return f"{part} changed ({', '.join(names[:2] if more else names)}{more})"


# ---- the fingerprint ------------------------------------------------------------------------------------------------


def surroundings() -> Fingerprint:
    """The parts of a fingerprint that all notebooks of a run share: code, versions, machine."""
    return {"code": package_code(), "versions": versions(), "machine": this_machine()}


def fingerprint(
    notebook: Path,
    parameters: Mapping[str, Any],
    needs: Sequence[Path],
    shared: Fingerprint,
    *,
    root: Path,
    folder: Path,
) -> Fingerprint:
    """What the results of a notebook are made from.

    `parameters` are all that it declares; `needs` are the result files that it builds on; `shared` comes from
    `surroundings`. Files and modules that parameters name are read relative to `root`, and what lies in `folder`,
    where the results go, does not count.
    """
    return {
        "parameters": dict(parameters),
        "code": {**shared["code"], CELLS: _cells(notebook)},
        "inputs": {
            **{path.name: _digest(path) for path in needs},
            **{
                path.relative_to(root).as_posix() if root in path.parents else str(path): _digest(path)
                for value in parameters.values()
                for text in (value if isinstance(value, list) else [value])
                for path in (_named(text, root) if isinstance(text, str) else [])
                if folder not in path.parents
            },
        },
        "versions": shared["versions"],
        "machine": shared["machine"],
    }


def package_code() -> dict[str, str]:
    """Digest of every module and data file of this package."""
    package = Path(gnnlab.__file__).parent
    found = (path for path in sorted(package.rglob("*")) if path.is_file())
    return {
        path.relative_to(package).as_posix(): _digest(path)
        for path in found
        if not any(part in NOT_CODE or part.startswith(".") for part in path.relative_to(package).parts)
    }


def versions() -> dict[str, str]:
    """Versions of Python and of what this package requires, where installed."""
    try:
        requirements = importlib.metadata.requires("gnnlab") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return machine.versions()
    return machine.versions(*(re.match(r"[\w.-]+", line).group() for line in requirements if "extra ==" not in line))


def this_machine() -> dict[str, Any]:
    """Processor, cores and accelerators, as far as they are seen without loading a framework."""
    return {
        **machine.about(),
        "accelerators": [*_nvidia(), *sorted(map(str, Path("/dev/accel").glob("accel*")))],
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _nvidia() -> list[str]:
    """NVIDIA GPUs by name, or by device file where the driver's tool does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool:
        try:
            listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=True)
            return [line.strip() for line in listed.stdout.splitlines() if line.startswith("GPU ")]
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            pass  # no driver, or one that hangs: the device files, if any, tell
    return sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))


def _cells(notebook: Path) -> str:
    cells = [cell for cell in json.loads(notebook.read_bytes())["cells"] if cell["cell_type"] == "code"]
    tagged = [["".join(cell["source"]), cell["metadata"].get("tags", [])] for cell in cells]
    return files.digest(tagged)


def _named(text: str, root: Path) -> list[Path]:
    """The files that a parameter names: by a path, or as a module in `module:factory`."""
    try:
        if (root / text).is_file():
            return [(root / text).resolve()]
        if not re.fullmatch(r"[^\W\d][\w.]*:\w+", text):
            return []
        module = root.joinpath(*text.partition(":")[0].split("."))
        file = module.with_name(f"{module.name}.py")
        return [path.resolve() for path in ([file] if file.is_file() else sorted(module.rglob("*.py")))]
    except (OSError, ValueError):  # too long for a name, or no name at all
        return []


def _digest(path: Path) -> str:
    """Of its content; says so where it cannot be read."""
    try:
        return files.digest(path)
    except OSError as error:
        return f"unreadable: {error.strerror}"
