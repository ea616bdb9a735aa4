"""One notebook, executed by papermill in a worker under one time limit for all its cells.

    result = execute(notebook, parameters, blank, here=root, place=folder)

The worker and its kernel end with this process, however that ends.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat

from gnnlab import errors, files
from gnnlab.errors import GnnlabError
from gnnlab.worker import Worker

from . import notebook_process, results, runs
from .discovery import Notebook
from .parameters import literal_path
from .results import ResultFile, Status

NO_KERNEL = "run it again when the machine is less busy; if that does not help, `python -m ipykernel_launcher` says why"
LONGEST_REASON = 300  # characters
MARK = "papermill-error-cell-tag"  # of the red lines that papermill adds to a notebook that stopped
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)


def execute(
    notebook: Notebook,
    parameters: Mapping[str, Any],
    blank: ResultFile,
    *,
    here: Path,
    place: Path,
    bar: str | None = None,
) -> ResultFile:
    """Execute `notebook` with `parameters` in the working directory `here`; what it makes goes to the folder `place`.

    Returns, and writes, what the notebook wrote; where it did not pass, `blank` with the status and a reason of one
    line. `bar` is the title of papermill's progress bar on the terminal. A failure, a timeout or a dead kernel is a
    result; only Ctrl-C (`KeyboardInterrupt`) passes through, after the worker has ended.
    """
    start, path = time.monotonic(), place / results.RESULT
    status, reason = run_cells(notebook, parameters, here=here, place=place, bar=bar)
    result = blank
    if status is Status.PASSED and not path.exists():
        status, reason = Status.FAILED, f"it ended without writing {path.name}; its last cell has to finish the session"
    elif status is Status.PASSED:
        try:
            result = results.read(path)
            status, reason = result.status, result.reason
        except GnnlabError as error:
            status, reason = Status.FAILED, str(error)
    changes = {"status": status, "reason": reason and _short(reason), "seconds": round(time.monotonic() - start, 1)}
    result = result.model_copy(update={**changes, "fingerprint": blank.fingerprint})
    results.write(path, result)
    return result


def run_cells(
    notebook: Notebook, parameters: Mapping[str, Any], *, here: Path, place: Path, bar: str | None
) -> tuple[Status, str | None]:
    """Execute the cells; the notebook in `place` grows cell by cell. Passed, failed or timeout, and why."""
    written, minutes = place / results.NOTEBOOK, notebook.timeout_minutes
    environment = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", runs.PLACE: str(place)}
    asked = {"input_path": literal_path(notebook.path), "output_path": literal_path(written), "cwd": str(here)}
    asked |= {"parameters": dict(parameters), "environment": environment, "bar": bar}
    with Worker(keep_memory=False) as worker:
        answer = worker.call(f"{notebook_process.__name__}:papermill", asked, timeout_s=minutes * 60)
    if answer.status == "done":
        return Status.PASSED, None
    stop, error = _stopped(written)
    if answer.status == "timeout":
        limit = f"{minutes:g} minutes" if minutes >= 1 else f"{minutes * 60:g} seconds"
        return Status.TIMEOUT, f"not done after {limit}; stopped in {stop}"
    if error is not None:
        return Status.FAILED, _failure(error, stop)
    kind, _, text = answer.reason.partition(": ")
    if kind == "DeadKernelError":
        return Status.FAILED, f"the kernel died in {stop}"
    if text.startswith("Kernel"):  # before any cell: it did not respond, or died at once
        return Status.FAILED, f"no kernel started ({text}); {NO_KERNEL}"
    return Status.FAILED, f"could not be executed ({answer.reason})"


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
