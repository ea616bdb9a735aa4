"""One notebook, executed by papermill in a kernel of this interpreter, under one time limit for all its cells.

ended = execute(notebook, parameters, root=root, staged=outputs.stage(folder, notebook.name), on_progress=print)
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.utils import ensure_event_loop
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError
from papermill.execute import ERROR_MARKER_TAG
from traitlets import default

from gnnlab import errors, files
from gnnlab.errors import GnnlabError

from . import outputs, results
from .discovery import Notebook
from .results import ResultFile, Status

START_TIMEOUT_S = 120  # of a kernel; a virus scanner may read every file of the environment first
NO_KERNEL = "run it again when the machine is less busy; if that does not help, `python -m ipykernel_launcher` says why"
OUTPUT_TIMEOUT_S = 60  # for the last outputs of a cell, on a busy machine
LONGEST_REASON = 300  # characters
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)


@dataclass
class Progress:
    """How far a notebook is: code cells, the number of the one that runs, and the heading that it stands under.

    Follows a run through nbclient's hooks, and shares out the time that is left.
    """

    deadline: float  # of all cells together, by the monotonic clock
    on_progress: Callable[[Progress], None]
    done: int = 0
    total: int = 0
    cell: int = 0
    heading: str = ""

    @property
    def place(self) -> str:
        """The cell that runs, in words: "cell [3], under 'Scaling'"."""
        return f"cell [{self.cell}]" + (f", under {self.heading!r}" if self.heading else "")

    def seconds_left(self, cell: Any) -> float:
        return max(self.deadline - time.monotonic(), 0.01)  # 0 would mean: no limit

    def notebook_starts(self, notebook: nbformat.NotebookNode) -> None:
        self.total = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
        self.on_progress(self)

    def cell_starts(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        if cell.cell_type == "markdown" and (headings := _HEADING.findall(cell.source)):
            self.heading = headings[-1]
        if cell.cell_type == "code" and cell.source.strip():
            self.cell = self.done + 1
        self.on_progress(self)

    def cell_ended(self, cell: nbformat.NotebookNode, cell_index: int, execute_reply: Any) -> None:
        self.done += 1
        self.on_progress(self)


@dataclass(frozen=True)
class Ended:
    """How a run ended, with a reason of one line unless it passed.

    `result` is what it left in its folder: None unless it passed, or skipped itself with a reason.
    """

    status: Status
    reason: str | None
    seconds: float
    result: ResultFile | None


def execute(
    notebook: Notebook,
    parameters: Mapping[str, Any],
    *,
    here: Path,
    staged: Path,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Ended:
    """Execute `notebook` with `parameters` in the working directory `here`; what it makes waits in `staged`.

    A failure, a timeout or a dead kernel is a result; only Ctrl-C (`KeyboardInterrupt`) passes through, after the
    kernel was shut down.
    """
    start, executed = time.monotonic(), staged / notebook.path.name
    at = Progress(start + notebook.timeout_minutes * 60, on_progress)
    status, reason = run_cells(notebook, parameters, at, here=here, staged=staged)
    try:
        clean(executed)
    except (OSError, ValueError):  # never begun, or cut short by a full disk
        executed.unlink(missing_ok=True)
    result, path = None, staged / f"{notebook.name}.json"
    if status is Status.PASSED and not path.exists():
        status, reason = Status.FAILED, f"it ended without writing {path.name}; its last cell has to finish the session"
    elif status is Status.PASSED:
        try:
            result = results.read(path)
            status, reason = result.status, result.reason
        except GnnlabError as error:
            status, reason = Status.FAILED, str(error)
    if status not in (Status.PASSED, Status.SKIPPED):
        result, reason = None, reason or "the notebook gives no reason"
    return Ended(status, reason and _short(reason), time.monotonic() - start, result)


def run_cells(
    notebook: Notebook, parameters: Mapping[str, Any], at: Progress, *, here: Path, staged: Path
) -> tuple[Status, str | None]:
    """Execute the cells; the notebook in `staged` grows cell by cell. Passed, failed or timeout, and why."""
    written, kernel = staged / notebook.path.name, _kernel_manager({outputs.STAGED: str(staged)})
    for logger in ("papermill", "asyncio"):  # what they would print is in the reason already
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    try:
        papermill.execute_notebook(
            _literal(notebook.path),
            _literal(written),
            parameters=dict(parameters),
            kernel_name="python3",
            language="python",
            progress_bar=False,
            cwd=here,
            start_timeout=START_TIMEOUT_S,
            iopub_timeout=OUTPUT_TIMEOUT_S,
            coalesce_streams=True,
            store_widget_state=False,
            kernel_manager_class=kernel,
            timeout_func=at.seconds_left,
            on_notebook_start=at.notebook_starts,
            on_cell_start=at.cell_starts,
            on_cell_executed=at.cell_ended,
        )
        return Status.PASSED, None
    except KeyboardInterrupt:  # that the kernel of the tasks in Jupyter's event loop is gone is no news
        ensure_event_loop().set_exception_handler(lambda loop, context: None)
        raise
    except CellTimeoutError as error:
        if time.monotonic() < at.deadline:
            return Status.FAILED, f"the outputs of {at.place} did not arrive ({error})"
        minutes = notebook.timeout_minutes
        limit = f"{minutes:g} minutes" if minutes >= 1 else f"{minutes * 60:g} seconds"
        return Status.TIMEOUT, f"not done after {limit}; stopped in {at.place}"
    except PapermillExecutionError as error:
        return Status.FAILED, _failure(error, at)
    except DeadKernelError:
        causes = {None: "", -9: " (killed by the system, as when memory runs out)"}
        cause = causes.get(kernel.exit_code, f" (exit code {kernel.exit_code})")
        return Status.FAILED, f"the kernel died in {at.place}{cause}"
    except OSError as error:
        return Status.FAILED, f"could not write {written}: {error.strerror or error}"
    except Exception as error:  # whatever else Jupyter raises: this notebook failed, the others still run
        if str(error).startswith("Kernel"):  # before any cell: it did not respond, or died at once
            return Status.FAILED, f"no kernel started ({error}); {NO_KERNEL}"
        return Status.FAILED, f"could not be executed ({type(error).__name__}: {error})"


def clean(written: Path) -> None:
    """Take out of a notebook the red lines that papermill adds to one that stopped."""
    notebook = nbformat.read(written, as_version=4)
    cells = [cell for cell in notebook.cells if ERROR_MARKER_TAG not in cell.metadata.get("tags", [])]
    if len(cells) < len(notebook.cells):
        notebook.cells = cells
        files.write_atomically(written, lambda file: nbformat.write(notebook, file))


def _short(text: str) -> str:
    """Text on one line and not too long, without colours."""
    line = " ".join(_ANSI.sub("", text).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 4] + " ..."


def _kernel_manager(told: Mapping[str, str]) -> type[AsyncKernelManager]:
    """A manager that starts kernels of this interpreter, whatever kernelspecs are installed, with a silent terminal and
    `told` in their environment."""

    class ThisInterpreter(AsyncKernelManager):
        exit_code: int | None = None  # of the kernel's process, once it has ended

        @default("kernel_spec_manager")
        def _no_installed_kernelspecs(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])  # ipykernel's own spec is left: it names sys.executable

        async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
            options["env"] = {**(options.get("env") or os.environ), **told}
            await super()._async_launch_kernel(kernel_cmd, **options, stdout=DEVNULL, stderr=DEVNULL)

        async def cleanup_resources(self, restart: bool = False) -> None:
            process = getattr(self.provisioner, "process", None)
            type(self).exit_code = process.poll() if process else None
            await super().cleanup_resources(restart)

    return ThisInterpreter


def _failure(error: PapermillExecutionError, at: Progress) -> str:
    """The exception's last line and where it was raised; an error of this package speaks for itself."""
    if hasattr(errors, error.ename) and error.evalue:
        return error.evalue
    if error.ename == "SystemExit":
        return f"sys.exit({error.evalue}) in {at.place}"
    message = f"{error.ename}: {error.evalue}" if error.evalue else error.ename
    return f"{_short(message)[: LONGEST_REASON // 2]} ({at.place})"


def _literal(path: Path) -> str:
    """A path for papermill, which reads braces in it as fields to fill in."""
    return str(path).replace("{", "{{").replace("}", "}}")
