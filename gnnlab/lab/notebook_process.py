"""What a worker does to execute a notebook. Loads nothing of ours."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

LIMITS = {"start_timeout": 120, "iopub_timeout": 60}  # seconds, on a busy machine: of a kernel, and of late outputs


def execute(environment: dict[str, str], bar: str | None, **arguments: Any) -> tuple[str, str, int] | None:
    """`papermill.execute_notebook(**arguments)` with exactly this `environment`; `bar` names one on a terminal.

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
