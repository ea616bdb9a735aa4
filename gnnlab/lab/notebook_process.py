"""What a worker does to execute a notebook. Loads nothing of ours."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

LIMITS = {"start_timeout": 120, "iopub_timeout": 60}  # seconds, on a busy machine: of a kernel, and of late outputs


def papermill(environment: dict[str, str], bar: str | None, **arguments: Any) -> None:
    """`papermill.execute_notebook(**arguments)` with exactly this `environment`; a `bar` of this name on a terminal."""
    from papermill import execute_notebook

    os.environ.clear()
    os.environ.update(environment)
    logging.disable(logging.CRITICAL)
    progress: Any = False
    with suppress(OSError):  # no terminal, no bar
        if bar:
            screen = Path("CONOUT$" if os.name == "nt" else "/dev/tty").open("w")  # noqa: SIM115  to the end of the process
            progress = {"desc": bar, "leave": False, "file": screen}
    options = {"kernel_name": "python3", "language": "python", "coalesce_streams": True, "store_widget_state": False}
    execute_notebook(**arguments, **options, **LIMITS, progress_bar=progress)
