"""One notebook, executed by papermill in a child process under one time limit for all its cells.

    ended = execute(notebook, parameters, here=root, place=folder)

The child ends with this process, however that ends; its kernel and what that started end with the child.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from gnnlab import errors, files
from gnnlab.errors import GnnlabError
from gnnlab.worker_process import end_tree

from . import notebook_process, results, runs
from .discovery import Notebook
from .parameters import literal_path
from .results import ResultFile, Status

NO_KERNEL = "run it again when the machine is less busy; if that does not help, `python -m ipykernel_launcher` says why"
LONGEST_REASON = 300  # characters
MARK = "papermill-error-cell-tag"  # of the red lines that papermill adds to a notebook that stopped
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """How a run ended, with a reason of one line unless it passed; `result` is what it wrote, None where it failed."""

    status: Status
    reason: str | None
    seconds: float
    result: ResultFile | None


def execute(
    notebook: Notebook, parameters: Mapping[str, Any], *, here: Path, place: Path, bar: str | None = None
) -> Ended:
    """Execute `notebook` with `parameters` in the working directory `here`; what it makes goes to the folder `place`.

    `bar`: the title of papermill's progress bar on standard error, None for none. A failure, a timeout or a dead kernel
    is a result; only Ctrl-C (`KeyboardInterrupt`) passes through, after the child has ended.
    """
    start = time.monotonic()
    status, reason = run_cells(notebook, parameters, here=here, place=place, bar=bar)
    result, path = None, place / results.RESULT
    if status is Status.PASSED and not path.exists():
        status, reason = Status.FAILED, f"it ended without writing {path.name}; its last cell has to finish the session"
    elif status is Status.PASSED:
        try:
            result = results.read(path)
            status, reason = result.status, result.reason
        except GnnlabError as error:
            status, reason = Status.FAILED, str(error)
    return Ended(status, reason and _short(reason), time.monotonic() - start, result)


def run_cells(
    notebook: Notebook, parameters: Mapping[str, Any], *, here: Path, place: Path, bar: str | None
) -> tuple[Status, str | None]:
    """Execute the cells; the notebook in `place` grows cell by cell. Passed, failed or timeout, and why."""
    written, minutes = place / results.NOTEBOOK, notebook.timeout_minutes
    asked = {"input_path": literal_path(notebook.path), "output_path": literal_path(written), "cwd": str(here)}
    asked |= {"parameters": dict(parameters), "progress_bar": {"desc": bar, "leave": False} if bar else False}
    child = subprocess.Popen(
        [sys.executable, "-m", notebook_process.__name__],
        env={**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", runs.PLACE: str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if bar else subprocess.DEVNULL,
    )
    try:
        answer, _ = child.communicate(json.dumps(asked).encode(), timeout=minutes * 60)
    except subprocess.TimeoutExpired:
        end_tree(child.pid)
        limit = f"{minutes:g} minutes" if minutes >= 1 else f"{minutes * 60:g} seconds"
        return Status.TIMEOUT, f"not done after {limit}; stopped in {_stopped(written)[0]}"
    finally:  # after Ctrl-C, too
        end_tree(child.pid)
        child.communicate()
    if child.returncode == 0:
        return Status.PASSED, None
    stop, error = _stopped(written)
    if error is not None:
        return Status.FAILED, _failure(error, stop)
    kind, _, text = answer.decode(errors="replace").strip().partition(": ")
    if kind == "DeadKernelError":
        return Status.FAILED, f"the kernel died in {stop}"
    if text.startswith("Kernel"):  # before any cell: it did not respond, or died at once
        return Status.FAILED, f"no kernel started ({text}); {NO_KERNEL}"
    return Status.FAILED, f"could not be executed ({kind or f'exit code {child.returncode}'}: {text})"


def _stopped(written: Path) -> tuple[str, Mapping[str, Any] | None]:
    """Where an executed notebook stopped, in words, "cell [3], under 'Scaling'", and the error that a cell put out.

    Takes out the red lines that papermill adds.
    """
    try:
        notebook = nbformat.read(written, as_version=4)
    except (OSError, ValueError):  # never begun, or cut short by a full disk
        written.unlink(missing_ok=True)
        return "cell [0]", None
    cells = [cell for cell in notebook.cells if MARK not in cell.metadata.get("tags", [])]
    if len(cells) < len(notebook.cells):
        notebook.cells = cells
        files.write_atomically(written, lambda file: nbformat.write(notebook, file))
    number, heading, place = 0, "", "cell [0]"
    for cell in cells:
        if cell.cell_type == "markdown" and (headings := _HEADING.findall(cell.source)):
            heading = headings[-1]
        if cell.cell_type == "code" and cell.source.strip():
            if cell.metadata.get("papermill", {}).get("status") == "pending":  # a cell whose kernel died is "completed"
                break
            number += 1
            place = f"cell [{number}]" + (f", under {heading!r}" if heading else "")
            if wrong := [output for output in cell.outputs if output.output_type == "error"]:
                return place, wrong[0]
    return place, None


def _failure(error: Mapping[str, Any], place: str) -> str:
    """The exception's last line and where it was raised; an error of this package speaks for itself."""
    name, value = error["ename"], error["evalue"]
    if hasattr(errors, name) and value:
        return value
    if name == "SystemExit":
        return f"sys.exit({value}) in {place}"
    message = f"{name}: {value}" if value else name
    return f"{_short(message)[: LONGEST_REASON // 2]} ({place})"


def _short(text: str) -> str:
    """Text on one line and not too long, without colours."""
    line = " ".join(_ANSI.sub("", text).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 4] + " ..."
