"""The cells of a notebook, executed by papermill in a worker under one time limit for all of them.

    with Worker(keep_memory=False) as worker:                # for any number of notebooks: it loads papermill once
        status, reason = execute(worker, notebook.path, folder, parameters, timeout_s=600)

Each notebook has a kernel of its own. The worker and its kernel end with this process, however that ends. In the worker
nothing else of ours is loaded.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnnlab import errors
from gnnlab.worker import Worker

NOT_A_CELL = (
    "the executed notebook shows how far it came; where no kernel starts, `python -m ipykernel_launcher` says why"
)
LONGEST_REASON = 300  # characters
LIMITS = {"start_timeout": 120, "iopub_timeout": 60}  # seconds, on a busy machine: of a kernel, and of late outputs
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def execute(
    worker: Worker,
    path: Path,
    output: Path,
    parameters: Mapping[str, Any],
    timeout_s: float,
    bar: str | None = None,
    **environment: str,
) -> tuple[str, str | None]:
    """Execute the notebook at `path` with `parameters` in the working directory, its kernel in this environment and
    `environment`; the notebook `output` grows cell by cell. `bar` is the title of a progress bar on the terminal.

    Returns "passed", "failed" or "timeout", and why. Only Ctrl-C (`KeyboardInterrupt`) passes through, after the worker
    has ended.
    """
    asked = {"input_path": _literal(path), "output_path": _literal(output), "parameters": dict(parameters), "bar": bar}
    asked |= {"cwd": str(Path.cwd()), "environment": {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", **environment}}
    answer = worker.call(f"{__name__}:in_worker", asked, timeout_s=timeout_s)
    if answer.status == "timeout":
        limit = f"{timeout_s / 60:g} minutes" if timeout_s >= 60 else f"{timeout_s:g} seconds"
        return "timeout", f"not done after {limit}; the executed notebook shows how far it came"
    if answer.status == "done":
        return ("failed", _failure(*answer.value)) if answer.value else ("passed", None)
    return "failed", short(f"could not be executed ({answer.reason}); {NOT_A_CELL}")


def in_worker(environment: dict[str, str], bar: str | None, **arguments: Any) -> tuple[str, str, int] | None:
    """`papermill.execute_notebook(**arguments)` with exactly this `environment`.

    Returns the error of a cell: its class, its text and the number of the cell; None where all cells ran.
    """
    from papermill import PapermillExecutionError, execute_notebook

    os.environ.clear()
    os.environ.update(environment)
    logging.disable(logging.CRITICAL)
    progress: Any = False
    with suppress(OSError):  # no terminal, no bar
        if bar:
            screen = Path("CONOUT$" if os.name == "nt" else "/dev/tty").open("w")  # noqa: SIM115  to the process' end
            progress = {"desc": bar, "leave": False, "file": screen}
    options = {"kernel_name": "python3", "language": "python", "coalesce_streams": True, "store_widget_state": False}
    try:
        execute_notebook(**arguments, **options, **LIMITS, progress_bar=progress)
    except PapermillExecutionError as error:
        return error.ename, error.evalue, error.exec_count


def _literal(path: Path) -> str:
    """A path for papermill, which reads braces in it as fields to fill in."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _failure(name: str, text: str, cell: int) -> str:
    """The exception's text and the cell that raised it; an error of this package speaks for itself."""
    if hasattr(errors, name) and text:
        return short(text)
    if name == "SystemExit":
        return f"sys.exit({text}) in cell [{cell}]"
    return f"{short(f'{name}: {text}' if text else name)[: LONGEST_REASON // 2]} (cell [{cell}])"


def short(text: str) -> str:
    """Text on one line and not too long, without colours."""
    line = " ".join(_ANSI.sub("", text).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 4] + " ..."
