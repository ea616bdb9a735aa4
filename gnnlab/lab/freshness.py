"""Whether the results of a notebook still hold: what they were made from, and the record of it in `runs.json`.

A fingerprint has five parts, each a mapping so that a change can be named: parameters, code, inputs, versions, machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

import gnnlab
from gnnlab import safe_files

from . import results
from .table import Strict

PARTS = ("parameters", "code", "inputs", "versions", "machine")
NOT_CODE = ("__pycache__", "templates")  # templates render results; they do not make them
CELLS = "the notebook's code cells"
RUNS = "runs.json"

Fingerprint = dict[str, dict[str, Any]]


class Further(Strict):
    """A run before the latest, with the same fingerprint: its files in `runs/` with their digests."""

    run: str
    files: dict[str, str]


class Run(Strict):
    """The last passed or skipped run of a notebook."""

    run: str = ""  # of the result file; records of old have none
    status: Literal["passed", "skipped"]
    reason: str | None = None
    finished: str  # ISO 8601, UTC
    seconds: float = Field(ge=0)
    result_digest: str  # of NN_name.json
    fingerprint: Fingerprint
    further: list[Further] = Field(default_factory=list)

    @property
    def when(self) -> str:
        """Local time, to the minute."""
        return f"{datetime.fromisoformat(self.finished).astimezone():%Y-%m-%d %H:%M}"


class Runs(Strict):
    """`runs.json` of a results folder."""

    schema_version: Literal[1] = 1
    runs: dict[str, Run] = Field(default_factory=dict)


# ---- the record -----------------------------------------------------------------------------------------------------


def read_runs(folder: Path) -> tuple[Runs, str | None]:
    """The record of a results folder, and a message where it was damaged: then it is set aside, not deleted."""
    path = folder / RUNS
    try:
        return Runs.model_validate_json(path.read_bytes()), None
    except FileNotFoundError:
        return Runs(), None
    except ValidationError as error:
        first = error.errors()[0]
        kept = set_aside(path, "damaged")
        message = f"{path} is damaged ({first['msg']}); it was set aside as {kept.name} and its notebooks run again"
        return Runs(), message
    except OSError as error:
        raise results.ResultError(f"could not read {path}: {error.strerror or error}") from None


def write_runs(folder: Path, runs: Runs) -> None:
    """Write the record, atomically. Raises `FileError`."""
    safe_files.write_json(folder / RUNS, runs.model_dump(mode="json"))


def record(
    result: results.ResultFile, path: Path, fingerprint: Fingerprint, seconds: float, further: Sequence[Further] = ()
) -> Run:
    """The record of a run that has just ended with the result file at `path`; `further` are runs before it."""
    return Run(
        run=result.run,
        status=result.status.value,
        reason=result.reason,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        result_digest=digest(path.read_bytes()),
        fingerprint=fingerprint,
        further=list(further),
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
    result = folder / f"{name}.json"
    try:
        content = result.read_bytes()
        if digest(content) != run.result_digest:
            return f"{result.name} is not as the run left it"
        fields = json.loads(content)
        figures = [figure[kind] for figure in fields.get("figures", []) for kind in ("png", "svg")]
        sha256 = fields.get("samples_sha256")
    except OSError:
        return f"{result.name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{result.name} is damaged"
    samples = results.samples_path(result)
    wanted = [f"{name}.ipynb", *figures, *([samples.name] if sha256 else [])]
    missing = [file for file in wanted if not (folder / file).is_file()]
    if missing:
        return f"{missing[0]} is missing"
    if sha256 and hashlib.sha256(samples.read_bytes()).hexdigest() != sha256:
        return f"{samples.name} is not the one that {result.name} names"
    return None


def _changed(part: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    names = sorted(name for name in before.keys() | now.keys() if _missing(before, name) != _missing(now, name))
    if not names:
        return None
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return f"{part} changed ({', '.join(names[:2] if more else names)}{more})"


def _missing(values: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    return (values[name],) if name in values else ()


def set_aside(path: Path, why: str) -> Path:
    """Give a file that may be someone's work a name under which nothing reads it: "runs.json.damaged-1"."""
    number = 1
    while (kept := path.with_name(f"{path.name}.{why}-{number}")).exists():
        number += 1
    return path.replace(kept)


# ---- the fingerprint ------------------------------------------------------------------------------------------------


def surroundings() -> Fingerprint:
    """The parts of a fingerprint that all notebooks of a run share: code, versions, machine."""
    return {"code": package_code(), "versions": versions(), "machine": machine()}


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
            **{path.name: digest_file(path) for path in needs},
            **{_label(path, root): digest_file(path) for path in _user_files(parameters, root, folder)},
        },
        "versions": shared["versions"],
        "machine": shared["machine"],
    }


def package_code() -> dict[str, str]:
    """Digest of every module and data file of this package."""
    package = Path(gnnlab.__file__).parent
    files = (path for path in sorted(package.rglob("*")) if path.is_file())
    return {
        path.relative_to(package).as_posix(): digest_file(path)
        for path in files
        if not any(part in NOT_CODE or part.startswith(".") for part in path.relative_to(package).parts)
    }


def versions() -> dict[str, str]:
    """Versions of Python and of what this package requires, where installed."""
    try:
        requirements = importlib.metadata.requires("gnnlab") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        requirements = ["torch", "torch-geometric", "numpy", "scipy", "openvino", "onnx"]
    names = [re.match(r"[\w.-]+", line).group() for line in requirements if "extra ==" not in line]
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores and accelerators, as far as they are seen without loading a framework."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "accelerators": [*_nvidia(), *sorted(map(str, Path("/dev/accel").glob("accel*")))],
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:  # not Linux
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


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
    return digest(json.dumps(tagged).encode())


def _user_files(parameters: Mapping[str, Any], root: Path, folder: Path) -> Iterator[Path]:
    """Files that parameters name: paths, and modules given as `module:factory`."""
    for value in parameters.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield from (path for path in _named(text, root) if folder not in path.parents)


def _named(text: str, root: Path) -> list[Path]:
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


def _label(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if root in path.parents else str(path)


def digest_file(path: Path) -> str:
    """Of its content; says so where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        return f"unreadable: {error.strerror}"


def digest(content: bytes) -> str:
    """32 hexadecimal digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:32]
