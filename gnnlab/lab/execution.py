"""One notebook, executed by papermill in a kernel of this interpreter, under one time limit for all its cells."""

from __future__ import annotations

import builtins
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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

import gnnlab
from gnnlab import safe_files

from .results import Status

START_TIMEOUT_S = 120  # of a kernel; a virus scanner may read every file of the environment first
OUTPUT_TIMEOUT_S = 60  # for the last outputs of a cell, on a busy machine
LONGEST_REASON = 300  # characters
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FRAME = re.compile(r"^File (.+?):\d+, in ", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)


@dataclass
class Progress:
    """How far a notebook is: code cells, the number of the one that runs, and the heading that it stands under."""

    done: int = 0
    total: int = 0
    cell: int = 0
    heading: str = ""

    @property
    def place(self) -> str:
        """The cell that runs, in words: "cell [3], under 'Scaling'"."""
        return f"cell [{self.cell}]" + (f", under {self.heading!r}" if self.heading else "")


@dataclass(frozen=True)
class Execution:
    """How it ended: `passed` when every cell ran, `failed` or `timeout` with a reason of one line."""

    status: Status
    reason: str | None
    seconds: float


def execute(
    notebook: Path,
    written: Path,
    parameters: Mapping[str, Any],
    *,
    root: Path,
    timeout_s: float,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Execution:
    """Execute `notebook` with `parameters` in the working directory `root`; `written` grows cell by cell.

    A failure, a timeout or a dead kernel is a result; only Ctrl-C (`KeyboardInterrupt`) passes through, after the
    kernel was shut down.
    """
    watch = _Watch(time.monotonic() + timeout_s, on_progress)
    kernel = _kernel_manager()
    start = time.monotonic()
    try:
        with _quiet("papermill", "asyncio"):
            papermill.execute_notebook(
                _literal(notebook),
                _literal(written),
                parameters=dict(parameters),
                kernel_name="python3",
                language="python",
                progress_bar=False,
                cwd=root,
                start_timeout=START_TIMEOUT_S,
                iopub_timeout=OUTPUT_TIMEOUT_S,
                coalesce_streams=True,
                store_widget_state=False,
                kernel_manager_class=kernel,
                timeout_func=watch.seconds_left,
                on_notebook_start=watch.notebook_starts,
                on_cell_start=watch.cell_starts,
                on_cell_executed=watch.cell_ended,
            )
        status, reason = Status.PASSED, None
    except KeyboardInterrupt:
        _forget_tasks()
        raise
    except CellTimeoutError as error:
        status, reason = _timeout(watch, timeout_s, error)
    except PapermillExecutionError as error:
        status, reason = Status.FAILED, _failure(error, watch.progress)
    except DeadKernelError:
        status, reason = Status.FAILED, f"the kernel died in {watch.progress.place}{_cause(kernel.exit_code)}"
    except OSError as error:
        status, reason = Status.FAILED, f"could not write {written}: {error.strerror or error}"
    except Exception as error:  # whatever else Jupyter raises: this notebook failed, the others still run
        status, reason = Status.FAILED, f"could not be executed ({type(error).__name__}: {error})"
    return Execution(status, one_line(reason) if reason else None, time.monotonic() - start)


def clean(written: Path) -> None:
    """Take out of a notebook what papermill adds to one that stopped: red lines, the mark of `sys.exit(0)`."""
    notebook = nbformat.read(written, as_version=4)
    cells = [cell for cell in notebook.cells if ERROR_MARKER_TAG not in cell.metadata.get("tags", [])]
    exits = [cell for cell in cells if any(_is_quiet_exit(output) for output in cell.get("outputs", []))]
    for cell in exits:
        cell.outputs = [
            output for output in cell.outputs if output.output_type != "error" and output.get("name") != "stderr"
        ]
        cell.metadata.papermill["exception"] = notebook.metadata.papermill["exception"] = None
    if exits or len(cells) < len(notebook.cells):
        notebook.cells = cells
        safe_files.write_atomically(written, lambda file: nbformat.write(notebook, file))


def _is_quiet_exit(output: nbformat.NotebookNode) -> bool:
    return output.get("ename") == "SystemExit" and output.evalue in ("", "0")


def one_line(text: str) -> str:
    """Text on one line and not too long, without colours."""
    line = " ".join(_ANSI.sub("", text).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 4] + " ..."


@dataclass
class _Watch:
    """Follows a run through nbclient's hooks, and shares out the time that is left."""

    deadline: float
    on_progress: Callable[[Progress], None]
    progress: Progress = field(default_factory=Progress)

    def seconds_left(self, cell: Any) -> float:
        return max(self.deadline - time.monotonic(), 0.01)  # 0 would mean: no limit

    def notebook_starts(self, notebook: nbformat.NotebookNode) -> None:
        self.progress.total = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
        self.on_progress(self.progress)

    def cell_starts(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        if cell.cell_type == "markdown" and (headings := _HEADING.findall(cell.source)):
            self.progress.heading = headings[-1]
        if cell.cell_type == "code" and cell.source.strip():
            self.progress.cell = self.progress.done + 1
        self.on_progress(self.progress)

    def cell_ended(self, cell: nbformat.NotebookNode, cell_index: int, execute_reply: Any) -> None:
        self.progress.done += 1
        self.on_progress(self.progress)


def _kernel_manager() -> type[AsyncKernelManager]:
    """A manager that starts kernels of this interpreter, whatever kernelspecs are installed, with a silent terminal."""

    class ThisInterpreter(AsyncKernelManager):
        exit_code: int | None = None  # of the kernel's process, once it has ended

        @default("kernel_spec_manager")
        def _no_installed_kernelspecs(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])  # ipykernel's own spec is left: it names sys.executable

        async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
            await super()._async_launch_kernel(kernel_cmd, **options, stdout=DEVNULL, stderr=DEVNULL)

        async def cleanup_resources(self, restart: bool = False) -> None:
            process = getattr(self.provisioner, "process", None)
            type(self).exit_code = process.poll() if process else None
            await super().cleanup_resources(restart)

    return ThisInterpreter


def _timeout(watch: _Watch, timeout_s: float, error: CellTimeoutError) -> tuple[Status, str]:
    if time.monotonic() < watch.deadline:
        return Status.FAILED, f"the outputs of {watch.progress.place} did not arrive ({error})"
    limit = f"{timeout_s / 60:g} minutes" if timeout_s >= 60 else f"{timeout_s:g} seconds"
    return Status.TIMEOUT, f"not done after {limit}; stopped in {watch.progress.place}"


def _failure(error: PapermillExecutionError, progress: Progress) -> str:
    """The exception's last line and where it was raised; an error of this package speaks for itself."""
    if _is_ours(error):
        return error.evalue
    if error.ename == "SystemExit":
        return f"sys.exit({error.evalue}) in {progress.place}"
    message = f"{error.ename}: {error.evalue}" if error.evalue else error.ename
    return f"{one_line(message)[: LONGEST_REASON // 2]} ({progress.place})"


def _is_ours(error: PapermillExecutionError) -> bool:
    """Whether the exception is an input error that this package raised, meant for the reader."""
    if not error.ename.endswith("Error") or hasattr(builtins, error.ename) or not error.evalue:
        return False
    files = _FRAME.findall(_ANSI.sub("", "\n".join(error.traceback)))
    return bool(files) and Path(files[-1]).expanduser().is_relative_to(Path(gnnlab.__file__).parent)


def _cause(exit_code: int | None) -> str:
    """Why a kernel died, as far as the exit code of its process tells."""
    if exit_code is None:
        return ""
    if exit_code >= 0:
        return f" (exit code {exit_code if exit_code < 256 else hex(exit_code)})"
    if exit_code == -9:  # SIGKILL
        return " (killed by the system, as when memory runs out)"
    return f" (signal {-exit_code}, a crash in native code)"


def _forget_tasks() -> None:
    """Let the tasks that Ctrl-C left in Jupyter's event loop end in silence: that their kernel is gone is no news."""
    ensure_event_loop().set_exception_handler(lambda loop, context: None)


def _literal(path: Path) -> str:
    """A path for papermill, which reads braces in it as fields to fill in."""
    return str(path).replace("{", "{{").replace("}", "}}")


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """What these loggers would print is in the reason already."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
