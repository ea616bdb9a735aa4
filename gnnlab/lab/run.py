"""Runs notebooks with papermill: in the order of their numbers, with strict parameters, in an environment of their own.

    outcomes = run(["01"], "quick")
    outcomes = run(["02"], "full", runs=5)      # five times, each in a kernel of its own; the runs are samples

A run is put in place whole; a failure, a timeout, Ctrl-C or a kill leaves earlier results as they were. papermill alone
gives the same notebook: this adds convenience, never a meaning.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.text import Text

import gnnlab
import gnnswap
from gnnlab import errors, files, machine
from gnnlab.errors import GnnlabError

from . import discovery, results
from .discovery import Notebook, Request
from .results import ResultFile, Status
from .text import duration

COLOURS = {Status.PASSED: "green", Status.SKIPPED: "yellow", Status.FAILED: "red", Status.TIMEOUT: "red"}
OPEN_FILES = 256  # a kernel's channels, libraries and caches take up to 100 of them
LONGEST_REASON = 300  # characters
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class NotebookRun:
    """How a notebook ended."""

    notebook: str
    status: Status
    reason: str | None
    seconds: float = 0.0
    ran: bool = True  # False: it could not start, or its results are there (`missing`)


def run(
    numbers: Sequence[str] = (),
    params_set: str = "quick",
    *,
    missing: bool = False,
    runs: int = 1,
    overrides: Sequence[tuple[str, str]] = (),
    console: Console | None = None,
) -> list[NotebookRun]:
    """Run the notebooks `numbers` (none: all) with a parameter set, and render the site of its results after each.

    Every parameter file is checked before anything executes or is written: `GnnlabError`, one line. Each notebook runs
    `runs` times, each in a kernel of its own; with `missing` only one that has no passed run with these parameters.
    `overrides` are (name, text) pairs as from a command line. Files and modules that parameters name are looked for in
    the current folder. Ctrl-C and SIGTERM keep what is done and pass through as `KeyboardInterrupt`.
    """
    request = discovery.request(numbers, params_set, overrides)
    _needs_open_files()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the kernel ends and no half run stays
    with results.only_run(request.folder), tempfile.TemporaryDirectory() as name:
        if os.path.expanduser("~") == "~":  # noqa: PTH111  a user whom the system does not know; Jupyter needs a home
            os.environ |= {"HOME": name, "USER": "gnnlab"}
        from .report import build_site  # nbconvert, heavy

        job, page = _Job(request, console or Console(), Path(name)), None
        try:
            for notebook in request.chosen:
                job.settle(notebook, runs, missing)
                page = build_site(request.folder) if job.outcomes[notebook.name].ran else page
        except KeyboardInterrupt:
            done = f"stopped; {len(job.outcomes)} of {len(request.chosen)} notebooks are done"
            job.say(f"{done}; the same command with --missing goes on")
            raise
        page = page or build_site(request.folder)
        job.say(f"report: {page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page}")
    return list(job.outcomes.values())


def _needs_open_files() -> None:
    """Raises `GnnlabError` where the system allows fewer open files than a notebook needs."""
    if sys.platform != "win32":
        import resource

        if 0 <= (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < OPEN_FILES:  # -1: none
            raise GnnlabError(f"only {limit} files may be open at once; notebooks need {OPEN_FILES}: `ulimit -n 1024`")


@dataclass
class _Job:
    """The notebooks of one run: how each ended, and the lines that are printed of them."""

    request: Request
    console: Console
    scratch: Path
    outcomes: dict[str, NotebookRun] = field(default_factory=dict)

    def settle(self, notebook: Notebook, runs: int, missing: bool) -> None:
        """Skip a notebook, keep its earlier results, or run it so many times; a line for each."""
        if reason := self.cannot_run(notebook):
            return self.ended(NotebookRun(notebook.name, Status.SKIPPED, reason, ran=False))
        values = self.request.values(notebook)
        if missing:
            for path, result in results.readable(self.request.folder, notebook.name):
                if result.status is Status.PASSED and result.parameters == values:
                    reason = f"not missing: {path.parent.relative_to(self.request.folder)}"
                    return self.ended(NotebookRun(notebook.name, result.status, reason, ran=False))
        for number in range(1, runs + 1):
            if not self.console.is_terminal:  # there papermill's bar says it
                place = f"  run {number} of {runs}" if runs > 1 else ""
                self.say(f"{notebook.name.ljust(self.width)}  running{place}")
            self.ended(outcome := self.run_once(notebook, values))
            if outcome.status is not Status.PASSED:
                break

    def cannot_run(self, notebook: Notebook) -> str | None:
        """Why a notebook cannot run: no parameter file, or a need without results."""
        params = self.request.params
        if self.request.given[notebook.name] is None:
            return f"{params.name} has no {notebook.name}.yaml"
        for number in notebook.needs:
            need = self.request.every[number].name
            path, _ = results.newest(self.request.folder, need)
            if need in self.outcomes and self.outcomes[need].status is not Status.PASSED:
                return f"it needs {need}, which is {self.outcomes[need].status}"
            if path is None or results.read(path).status is not Status.PASSED:
                name = params.name if params.parent == self.request.root / "params" else params
                return f"run {number} first: gnnlab run {number} --params {name}"
        return None

    def run_once(self, notebook: Notebook, values: Mapping[str, Any]) -> NotebookRun:
        """Run a notebook, and put its run in place: what it wrote itself, or the reason why it did not pass."""
        if busy := machine.warning():
            self.say(busy)
        name, source = notebook.name, made_from(notebook, values)  # code may change while it runs
        result = ResultFile.begun(name, self.request.params.name, dict(values))
        given = {parameter: values[parameter] for parameter in {"output_dir", *self.request.given[name]}}
        bar = name.ljust(self.width) if self.console.is_terminal else None
        with results.Place(self.request.folder) as place:
            path, executed = place.path / results.RESULT, place.path / results.NOTEBOOK
            limit_s = notebook.timeout_minutes * 60
            settings = {results.PLACE: str(place.path)}
            status, reason = execute(notebook.path, executed, given, limit_s, settings, self.scratch, bar)
            if status == Status.PASSED and path.exists():
                result = results.read(path).model_copy(update={"started": result.started})
                status, reason = result.status, result.reason
            elif status == Status.PASSED:
                status = Status.FAILED
                reason = f"it ended without writing {path.name}; its last cell has to call finish"
            result = result.ended(status, reason, made_from=source)
            results.write(path, result)
            place.put(name)
        return NotebookRun(name, result.status, result.reason, result.seconds)

    # ---- the lines that a run prints --------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Of the longest name, so that the columns align."""
        return max(len(notebook.name) for notebook in self.request.chosen)

    def say(self, text: str | Text) -> None:
        """One line, never wrapped, and nothing in it read as markup."""
        self.console.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)

    def ended(self, outcome: NotebookRun) -> None:
        """The line of a notebook that is done: "01_profile_bottlenecks  passed   41 s"."""
        self.outcomes[outcome.notebook] = outcome
        word = (outcome.status.ljust(7), COLOURS[outcome.status])
        notes = [duration(outcome.seconds) if outcome.ran else "", outcome.reason]
        self.say(Text.assemble(outcome.notebook.ljust(self.width), "  ", word, "  ", "  ".join(filter(None, notes))))


def made_from(notebook: Notebook, values: Mapping[str, Any]) -> str:
    """A digest of the code of a run, which is this package and the notebook, and of the files that parameters name: by
    a path, or as a module in `module:factory`, below the current folder. Runs of other code are not pooled.
    """
    texts = [text for value in values.values() for text in (value if isinstance(value, list) else [value])]
    words = [text for text in texts if isinstance(text, str)]
    words += [text.partition(":")[0].replace(".", "/") + ".py" for text in words]
    inputs = [Path(word) for word in words if os.path.isfile(word)]  # noqa: PTH113  Path's raises for long names
    code = [path for package in (gnnlab, gnnswap) for path in sorted(Path(package.__file__).parent.rglob("*.py"))]
    return files.digest(notebook.path, *inputs, *code)


# ---- the cells ------------------------------------------------------------------------------------------------------


def execute(
    path: Path,
    output: Path,
    parameters: Mapping[str, Any],
    timeout_s: float,
    settings: Mapping[str, str],
    scratch: Path,
    bar: str | None = None,
) -> tuple[str, str | None]:
    """Execute the notebook at `path` with `parameters` in the current folder, within `timeout_s` seconds for all cells;
    the notebook `output` grows cell by cell. `settings` are added to its kernel's environment, `scratch` is an empty
    folder for what the kernel reads instead of the user's own. `bar` is the title of a progress bar on the terminal.

    Returns "passed", "failed" or "timeout", and why. Only Ctrl-C (`KeyboardInterrupt`) passes through.
    """
    from papermill import PapermillExecutionError, execute_notebook

    for name in ("papermill", "traitlets"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    (scratch / "matplotlibrc").touch()
    own = {"IPYTHONDIR": str(scratch / "ipython"), "MATPLOTLIBRC": str(scratch / "matplotlibrc"), "MPLBACKEND": ""}
    own["PYTHONOPTIMIZE"] = ""  # a contract of a notebook is an assert
    codes: list[int] = []
    kernel, log = _kernel({**own, **settings}, scratch, codes), scratch / "kernel.log"
    so_far = "the executed notebook shows how far it came"
    free, ends = psutil.virtual_memory().available / 2**30, time.monotonic() + timeout_s
    try:
        execute_notebook(
            _literal(path),
            _literal(output),
            dict(parameters),
            cwd=str(Path.cwd()),
            kernel_name="python3",
            language="python",
            kernel_manager_class=kernel,
            timeout_func=lambda cell: max(ends - time.monotonic(), 0.1),
            progress_bar={"desc": bar, "leave": False} if bar else False,
            coalesce_streams=True,
            store_widget_state=False,
            start_timeout=120,  # seconds, on a busy machine; and for late outputs:
            iopub_timeout=60,
        )
    except PapermillExecutionError as error:
        return "failed", _failure(error.ename, error.evalue, error.exec_count)
    except TimeoutError:
        limit = f"{timeout_s / 60:g} minutes" if timeout_s >= 60 else f"{timeout_s:g} seconds"
        return "timeout", f"not done after {limit}; {so_far}"
    except Exception as error:  # of whatever runs notebooks: a kernel that dies or does not start, a disk that is full
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        said = [line.strip() for line in lines if line.strip() and "WARN" not in line]
        last = f"it last said: {said[-1]}" if said else so_far
        if not codes:
            return "failed", _short(f"could not be executed ({type(error).__name__}: {error}); {last}")
        if codes[0] != -9:
            way = f"signal {-codes[0]}" if codes[0] < 0 else f"exit code {codes[0]}"
            return "failed", _short(f"the kernel died ({way}); {last}")
        killed = f"the kernel was killed (signal 9): most often the system had too little memory ({free:.1f} GiB free"
        return "failed", f"{killed} at its start); close other programs, or choose smaller sizes"
    return "passed", None


def _kernel(settings: Mapping[str, str], scratch: Path, codes: list[int]) -> type:
    """A kernel manager for papermill: of this Python, whatever kernels the user has installed, in this environment and
    `settings`. What the kernel prints beside its cells goes to `scratch/kernel.log`, the exit code of one that died to
    `codes`.
    """
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Kernel(AsyncKernelManager):
        kernel_spec = KernelSpec(**get_kernel_dict(), env=dict(settings))

        def _connection_file_default(self) -> str:
            return str(scratch / "kernel.json")

        async def start_kernel(self, **options: Any) -> None:
            with (scratch / "kernel.log").open("w") as log:
                await super().start_kernel(stdout=log, stderr=log, **options)

        async def is_alive(self) -> bool:
            code = await self.provisioner.poll() if self.has_kernel else None
            codes.extend([] if code is None else [code])
            return await super().is_alive()

    return Kernel


def _literal(path: Path) -> str:
    """A path for papermill, which reads braces in it as fields to fill in."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _failure(name: str, text: str, cell: int) -> str:
    """The exception's text and the cell that raised it; an error of this package speaks for itself."""
    if hasattr(errors, name) and text:
        return _short(text)
    if name == "SystemExit":
        return f"sys.exit({text}) in cell [{cell}]"
    return f"{_short(f'{name}: {text}' if text else name)[: LONGEST_REASON // 2]} (cell [{cell}])"


def _short(text: str) -> str:
    """Text on one line and not too long, without colours."""
    line = " ".join(_ANSI.sub("", text).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 4] + " ..."
