"""One notebook, executed by papermill in a worker under one time limit for all its cells.

    result = execute(notebook, parameters, blank, folder)

The worker and its kernel end with this process, however that ends.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnlab import errors
from gnnlab.errors import GnnlabError
from gnnlab.worker import Worker

from . import notebook_process, results, runs
from .discovery import Notebook
from .parameters import literal_path
from .results import ResultFile, Status

NOT_A_CELL = (
    "the executed notebook shows how far it came; where no kernel starts, `python -m ipykernel_launcher` says why"
)
LONGEST_REASON = 300  # characters
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def execute(
    notebook: Notebook, parameters: Mapping[str, Any], blank: ResultFile, place: Path, bar: str | None = None
) -> ResultFile:
    """Execute `notebook` with `parameters` in the working directory; what it makes goes to the folder `place`.

    Returns, and writes, what the notebook wrote; where it did not pass, `blank` with the status and a reason of one
    line. `bar` is the title of papermill's progress bar on the terminal. A failure, a timeout or a dead kernel is a
    result; only Ctrl-C (`KeyboardInterrupt`) passes through, after the worker has ended.
    """
    start, path = time.monotonic(), place / results.RESULT
    status, reason = run_cells(notebook, parameters, place, bar)
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
    notebook: Notebook, parameters: Mapping[str, Any], place: Path, bar: str | None
) -> tuple[Status, str | None]:
    """Execute the cells; the notebook in `place` grows cell by cell. Passed, failed or timeout, and why."""
    minutes = notebook.timeout_minutes
    environment = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", runs.PLACE: str(place)}
    asked = {"input_path": literal_path(notebook.path), "output_path": literal_path(place / results.NOTEBOOK)}
    asked |= {"cwd": str(Path.cwd()), "parameters": dict(parameters), "environment": environment, "bar": bar}
    with Worker(keep_memory=False) as worker:
        answer = worker.call(f"{notebook_process.__name__}:execute", asked, timeout_s=minutes * 60)
    if answer.status == "timeout":
        limit = f"{minutes:g} minutes" if minutes >= 1 else f"{minutes * 60:g} seconds"
        return Status.TIMEOUT, f"not done after {limit}; the executed notebook shows how far it came"
    if answer.status == "done":
        return (Status.FAILED, _failure(*answer.value)) if answer.value else (Status.PASSED, None)
    return Status.FAILED, f"could not be executed ({answer.reason}); {NOT_A_CELL}"


def _failure(name: str, text: str, cell: int) -> str:
    """The exception's text and the cell that raised it; an error of this package speaks for itself."""
    if hasattr(errors, name) and text:
        return text
    if name == "SystemExit":
        return f"sys.exit({text}) in cell [{cell}]"
    message = f"{name}: {text}" if text else name
    return f"{_short(message)[: LONGEST_REASON // 2]} (cell [{cell}])"


def _short(text: str) -> str:
    """Text on one line and not too long, without colours."""
    line = " ".join(_ANSI.sub("", text).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 4] + " ..."
