"""Runs notebooks with papermill: in the order of their numbers, with strict parameters, in an environment of their own.

    run(["01"], "quick")
    run(["02"], "full", runs=5)      # five times, each in a kernel of its own; the runs are samples

A run is put in place whole; a failure, a timeout, Ctrl-C or a kill leaves earlier results as they were. papermill alone
gives the same notebook: this adds convenience, never a meaning.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import gnnlab
import gnnswap
from gnnlab import errors, files, machine
from gnnlab.errors import GnnlabError

from . import discovery, results
from .discovery import RunRequest
from .results import ResultFile, Status
from .text import duration

WIDTH = max(map(len, discovery.NAMES))  # so that columns align
LOG = "kernel.log"
OPEN_FILES = 256  # a kernel's channels, libraries and caches take up to 100 of them


def run(
    numbers: Sequence[str] = (),
    params_set: str = "quick",
    *,
    missing: bool = False,
    runs: int = 1,
    overrides: Sequence[tuple[str, str]] = (),
) -> dict[str, Status]:
    """Run the notebooks `numbers` (none: all) with a parameter set, and render the site of its results after each; how
    each ended, by its number.

    Every parameter is checked before anything executes or is written: `GnnlabError`, one line. Each notebook runs
    `runs` times; with `missing` only one that has no passed run with these parameters. `overrides` are (name, text)
    pairs. Ctrl-C and SIGTERM keep what is done and pass through as `KeyboardInterrupt`.
    """
    request = discovery.request(numbers, params_set, overrides)
    if sys.platform != "win32":
        import resource

        if 0 <= (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < OPEN_FILES:  # -1: none
            raise GnnlabError(f"only {limit} files may be open at once; notebooks need {OPEN_FILES}: `ulimit -n 1024`")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the kernel ends and no half run stays
    statuses: dict[str, Status] = {}
    with results.only_run(request.folder), tempfile.TemporaryDirectory() as scratch:
        if os.path.expanduser("~") == "~":  # noqa: PTH111  a user whom the system does not know; Jupyter needs a home
            os.environ |= {"HOME": scratch, "USER": "gnnlab"}
        from .report import build_site  # nbconvert, heavy

        try:
            for notebook in request.chosen:
                if left_out := _left_out(request, notebook, statuses, missing):
                    statuses[notebook.stem[:2]] = left_out[0]
                    _say(notebook, *left_out)
                    continue
                for turn in range(1, runs + 1):
                    _say(notebook, "running", f"run {turn} of {runs}" if runs > 1 else None)
                    result = _run_once(request, notebook, Path(scratch))
                    statuses[notebook.stem[:2]] = result.status
                    _say(notebook, result.status, duration(result.seconds), result.reason)
                    if result.status is not Status.PASSED:
                        break
                build_site(request.folder, notebook.stem)
        except KeyboardInterrupt:
            done = f"stopped; {len(statuses)} of {len(request.chosen)} notebooks are done"
            print(f"{done}; the same command with --missing goes on")
            raise
        print(f"report: {build_site(request.folder)}")
    return statuses


def _say(notebook: Path, word: str, *notes: str | None) -> None:
    """ "01_profile_bottlenecks  passed   41 s"."""
    print("  ".join([notebook.stem.ljust(WIDTH), word.ljust(7), *filter(None, notes)]).rstrip(), flush=True)


def _left_out(
    request: RunRequest, notebook: Path, statuses: Mapping[str, Status], missing: bool
) -> tuple[Status, str] | None:
    """The status of a notebook that cannot run, or with `missing` need not, and why."""
    if not (request.params / f"{notebook.stem}.yaml").exists():
        return Status.SKIPPED, f"{request.params.name} has no {notebook.stem}.yaml"
    for number in discovery.about(notebook).get("needs", ()):
        path, now = results.newest(request.folder, f"{number}_*")[0], statuses.get(number, Status.PASSED)
        if now is not Status.PASSED or path is None or results.read(path).status is not Status.PASSED:
            first = f"gnnlab run {number} --params {request.params_set}"
            return Status.SKIPPED, f"it needs notebook {number}, which has not passed: {first}"
    for path, result in results.readable(request.folder, notebook.stem) if missing else ():
        if result.status is Status.PASSED and result.parameters == request.values[notebook.stem]:
            return Status.PASSED, f"not missing: {path.parent.relative_to(request.folder)}"
    return None


def _run_once(request: RunRequest, notebook: Path, scratch: Path) -> ResultFile:
    """Run a notebook, and put its run in place: what it wrote itself, or the reason why it did not pass."""
    if busy := machine.warning():
        print(busy)
    values, limit_s = request.values[notebook.stem], 60 * discovery.about(notebook).get("timeout_minutes", 60)
    result, source = ResultFile.start(notebook.stem, request.params.name, values), made_from(notebook, values)
    with results.place(request.folder) as place:
        path = place / results.RESULT
        status, reason = execute(notebook, place / results.NOTEBOOK, values, limit_s, scratch)
        if status is Status.PASSED and path.exists():
            result = results.read(path).model_copy(update={"started": result.started})
            status, reason = result.status, result.reason
        elif status is Status.PASSED:
            status, reason = Status.FAILED, f"it ended without writing {path.name}; its last cell has to call finish"
        result = result.finish(status, reason, made_from=source)
        results.write(path, result)
        results.put(place, notebook.stem)
    return result


def made_from(notebook: Path, values: Mapping[str, Any]) -> str:
    """A digest of the code of a run, which is this package and the notebook, and of the files that parameters name: by
    a path, or as a module in `module:factory`, below the current folder. Runs of other code are not pooled.
    """
    texts = [text for value in values.values() for text in (value if isinstance(value, list) else [value])]
    words = [text for text in texts if isinstance(text, str)]
    words += [text.partition(":")[0].replace(".", "/") + ".py" for text in words]
    inputs = [Path(word) for word in words if os.path.isfile(word)]  # noqa: PTH113  Path's raises for long names
    code = [path for package in (gnnlab, gnnswap) for path in sorted(Path(package.__file__).parent.rglob("*.py"))]
    return files.digest(notebook, *inputs, *code)


def execute(
    path: Path, output: Path, parameters: Mapping[str, Any], timeout_s: float, scratch: Path
) -> tuple[Status, str | None]:
    """Execute the notebook at `path` with `parameters` in the current folder, within `timeout_s` seconds for all cells;
    the notebook `output` grows cell by cell, and what the run writes lies beside it. `scratch` is a folder for what the
    kernel reads instead of the user's own. Returns how it ended and why; only `KeyboardInterrupt` passes through.
    """
    from papermill import PapermillExecutionError, execute_notebook

    for name in ("papermill", "traitlets", "asyncio"):  # the last tells of a kernel that was stopped
        logging.getLogger(name).setLevel(logging.CRITICAL)
    kernel, ends = _kernel(output.parent, scratch), time.monotonic() + timeout_s
    free_gib, how_far = psutil.virtual_memory().available / 2**30, "the executed notebook shows how far it came"
    try:
        execute_notebook(
            *(str(file).replace("{", "{{").replace("}", "}}") for file in (path, output)),  # braces are fields there
            dict(parameters),
            kernel_name="python3",
            language="python",
            kernel_manager_class=kernel,
            timeout_func=lambda cell: max(ends - time.monotonic(), 0.1),
            progress_bar={"desc": path.stem.ljust(WIDTH), "leave": False} if sys.stderr.isatty() else False,
            coalesce_streams=True,
            store_widget_state=False,
            start_timeout=120,  # seconds, on a busy machine; and for late outputs:
            iopub_timeout=60,
        )
        return Status.PASSED, None
    except TimeoutError:
        return Status.TIMEOUT, f"not done after {duration(timeout_s)}; {how_far}"
    except PapermillExecutionError as error:  # one of this package speaks for itself
        reason = error.evalue if hasattr(errors, error.ename) else ""
        reason = reason or f"cell [{error.exec_count}]: {error.ename}: {error.evalue}"
    except Exception as error:  # of whatever runs notebooks: a kernel that dies or does not start, a disk that is full
        reason = f"could not be executed ({type(error).__name__}: {error})"
        if type(error).__name__ == "DeadKernelError":
            reason = (
                f"the kernel died: most often the system has too little memory ({free_gib:.1f} GiB were free at its "
            )
            reason += "start); close other programs, or choose smaller sizes"
        lines = (scratch / LOG).read_text(errors="replace").splitlines()
        said = [line for line in lines if line.strip() and "WARN" not in line]
        reason += f"; it last said: {said[-1]}" if said else f"; {how_far}"
    return Status.FAILED, textwrap.shorten(reason, 300, placeholder=" ...")


def _kernel(folder: Path, scratch: Path) -> type:
    """A kernel manager for papermill: of this Python, whatever kernels the user has installed, in an environment
    without the user's settings. What its kernel prints beside its cells goes to a file in `scratch`.
    """
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    for name in ("matplotlibrc", LOG):
        (scratch / name).touch()
    own = {"IPYTHONDIR": str(scratch / "ipython"), "MATPLOTLIBRC": str(scratch / "matplotlibrc"), "MPLBACKEND": ""}
    own |= {"PYTHONOPTIMIZE": "", results.PLACE: str(folder)}  # a contract of a notebook is an assert

    class Kernel(AsyncKernelManager):
        kernel_spec = KernelSpec(**get_kernel_dict(), env=own)

        async def start_kernel(self, **options: Any) -> None:
            with (scratch / LOG).open("w") as log:
                await super().start_kernel(stdout=log, stderr=log, **options)

    return Kernel
