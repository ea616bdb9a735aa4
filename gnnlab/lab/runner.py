"""Runs notebooks: in the order of their numbers, with strict parameters, and only those that have to run.

    outcomes = run(["01"], "quick")
    outcomes = run(["02"], "full", runs=5)      # five times, each in a kernel of its own; the runs are samples

A run is put in place whole (`results.put`); a failure, a timeout, Ctrl-C or a kill leaves earlier results as they were.
They hold while nothing has changed that they were made from, which is the fingerprint of a run: parameters, code,
inputs, versions, machine. papermill alone gives the same notebook: the runner adds convenience, never a meaning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import gnnlab
from gnnlab import files, machine, user_code
from gnnlab.worker import Worker

from . import discovery, execution, parameters, provenance, results
from .discovery import Notebook, Request
from .results import ResultFile, Status
from .text import duration

COLOURS = {Status.PASSED: "green", Status.SKIPPED: "yellow", Status.FAILED: "red", Status.TIMEOUT: "red"}
NOT_CODE = {"__pycache__", "templates"}  # templates render results; they do not make them


@dataclass(frozen=True)
class NotebookRun:
    """How a notebook ended."""

    notebook: str
    status: Status
    reason: str | None
    seconds: float = 0.0
    ran: bool = True  # False: its earlier results still hold, or it was skipped before it started


def run(
    numbers: Sequence[str] = (),
    params_set: str = "quick",
    *,
    force: bool = False,
    runs: int = 1,
    overrides: Sequence[tuple[str, str]] = (),
    console: Console | None = None,
) -> list[NotebookRun]:
    """Run the notebooks `numbers` (none: all) with a parameter set, and render the site of its results after each.

    Every parameter file is checked before anything executes or is written: `GnnlabError`, one line.
    Notebooks whose parameters, code, inputs, versions and machine are those of their last run are not run again unless
    `force`. Each is run until there are `runs` runs of it, each in a kernel of its own; all
    count. `overrides` are (name, text) pairs as from a command line. Files and modules that parameters
    name are looked for in the current folder. Ctrl-C keeps what is done and passes through.
    """
    request = discovery.request(numbers, params_set, overrides)
    with results.only_run(request.folder):
        from .report import build_site  # nbconvert, heavy

        with ThreadPoolExecutor(1) as rendering, Worker(keep_memory=False) as worker:
            job = _Job(request, worker, console or Console())
            pages = []
            try:
                for notebook in request.chosen:
                    job.settle(notebook, runs, force)
                    if job.outcomes[notebook.name].ran:  # it can be read while the next one starts
                        pages.append(rendering.submit(build_site, request.folder))
            except KeyboardInterrupt:
                job.say(f"stopped; {len(job.outcomes)} of {len(request.chosen)} notebooks are done; run again to go on")
                raise
            page = [page.result() for page in pages][-1] if pages else build_site(request.folder)
        job.say(f"report: {page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page}")
    return list(job.outcomes.values())


def exit_code(outcomes: Sequence[NotebookRun]) -> int:
    """1 when a notebook failed or timed out, else 0."""
    return int(any(outcome.status in (Status.FAILED, Status.TIMEOUT) for outcome in outcomes))


@dataclass
class _Job:
    """The notebooks of one run: how each ended, and the lines that are printed of them."""

    request: Request
    worker: Worker
    console: Console
    outcomes: dict[str, NotebookRun] = field(default_factory=dict)

    def settle(self, notebook: Notebook, wanted: int, force: bool) -> None:
        """Skip a notebook, keep its earlier results, or run it until there are `wanted` runs; a line for each."""
        name, folder = notebook.name, self.request.folder
        if reason := self.cannot_run(notebook):
            return self.ended(NotebookRun(name, Status.SKIPPED, reason, ran=False))
        path, failed = results.newest(folder, name)
        before = path and results.read(path)
        changed = before and why_again(before.fingerprint, self.made_from(notebook))
        done = 0 if before is None or changed else len(results.runs_of(folder, name)[0].get(name, []))
        if force:
            last, why = done + wanted, "forced"
        elif failed:
            last, why = max(wanted, done + 1), "runs again: its last run did not pass"
        elif done >= wanted or (done and before.status is Status.SKIPPED):
            when = f"{datetime.fromisoformat(before.started).astimezone():%Y-%m-%d %H:%M}"
            count = f"{done} runs, " if done > 1 else ""
            reason = f"{count}unchanged since {when}: parameters, code, inputs, versions, machine"
            reason = f"{before.reason} ({reason})" if before.reason else reason
            return self.ended(NotebookRun(name, before.status, reason, before.seconds, ran=False))
        else:
            last, why = wanted, f"runs again: {changed}" if changed else "" if before else "first run"
        for number in range(done + 1, last + 1):
            place = f"run {number} of {last}" if last > 1 else ""
            about = ", ".join(filter(None, (place, why if number == done + 1 else "")))
            if not self.console.is_terminal:  # there papermill's bar says it
                self.say(f"{name.ljust(self.width)}  running  {about}")
            outcome = self.run_once(notebook)
            self.ended(outcome)
            if outcome.status is not Status.PASSED:
                break

    def cannot_run(self, notebook: Notebook) -> str | None:
        """Why a notebook cannot run: no parameter file, or a need without results."""
        params = self.request.params
        if self.request.given[notebook.name] is None:
            return f"{params.name} has no {notebook.parameters_in(params).name}"
        for number in notebook.needs:
            need = self.request.every[number].name
            path, _ = results.newest(self.request.folder, need)
            if need in self.outcomes and self.outcomes[need].status is not Status.PASSED:
                return f"it needs {need}, which is {self.outcomes[need].status}"
            if path is None or results.read(path).status is not Status.PASSED:
                name = params.name if params.parent == self.request.root / "params" else params
                return f"run {number} first: gnnlab run {number} --params {name}"
        return None

    def made_from(self, notebook: Notebook) -> dict[str, str]:
        """What a run of the notebook would be made from now."""
        folder, every = self.request.folder, self.request.every
        needs = [results.newest(folder, every[number].name)[0] for number in notebook.needs]
        return fingerprint(notebook, self.request.values(notebook), needs, folder)

    def run_once(self, notebook: Notebook) -> NotebookRun:
        """Run a notebook, and put its run in place, with from what it was made: what it wrote itself, or the reason why
        it did not pass.
        """
        if busy := machine.warning():
            self.say(busy)
        name, folder, values = notebook.name, self.request.folder, self.request.values(notebook)
        made_from = self.made_from(notebook)  # code may change while it runs
        result = ResultFile.begun(name, self.request.params.name, values)
        given = {parameter: values[parameter] for parameter in {"output_dir", *self.request.given[name]}}
        place = results.begin(folder, name)
        path, limit_s = place / results.RESULT, notebook.timeout_minutes * 60
        kernel, bar = {results.PLACE: str(place)}, name.ljust(self.width) if self.console.is_terminal else None
        executed = place / results.NOTEBOOK
        status, reason = execution.execute(self.worker, notebook.path, executed, given, limit_s, bar, **kernel)
        if status == Status.PASSED and path.exists():
            result = results.read(path).model_copy(update={"started": result.started})
            status, reason = result.status, result.reason
        elif status == Status.PASSED:
            status, reason = Status.FAILED, f"it ended without writing {path.name}; its last cell has to call finish"
        result = result.ended(status, reason, fingerprint=made_from)
        results.write(path, result)
        results.put(place, folder, name)
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


# ---- from what a run was made ----------------------------------------------------------------------------------------


def fingerprint(notebook: Notebook, values: Mapping[str, Any], needs: Sequence[Path], folder: Path) -> dict[str, str]:
    """From what the results of a notebook are made: a digest of each part.

    `values` are all its parameters; `needs` are the result files that it builds on. Files and modules that parameters
    name are looked for in the working directory, and what lies in `folder`, where the results go, does not count. Code
    is that of the package, but for what only renders, the notebook's code cells, and the examples that these name.
    """
    package, here = Path(gnnlab.__file__).parent, Path.cwd()
    names = sorted(path.relative_to(package) for path in package.rglob("*.*"))
    code = [name.as_posix() for name in names if not NOT_CODE & {*name.parts}]
    cells = [cell["source"] for cell in parameters.notebook(notebook.path)["cells"] if cell["cell_type"] == "code"]
    shown = [path for path in sorted(notebook.path.parents[1].glob("examples/*.py")) if path.stem in str(cells)]
    texts = [text for value in values.values() for text in (value if isinstance(value, list) else [value])]
    inputs = [path for text in texts if isinstance(text, str) for path in _files_of(text, here)]
    accelerators = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev/accel").glob("accel*")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "parameters": files.digest(dict(values)),
        "code": files.digest(code, *(package / name for name in code), *shown, ["".join(source) for source in cells]),
        "inputs": files.digest(*needs, *(path for path in inputs if folder not in path.parents)),
        "versions": files.digest(machine.versions(*provenance.PACKAGES)),
        "machine": files.digest(machine.about(), sorted(map(str, accelerators)), visible),
    }


def _files_of(text: str, here: Path) -> list[Path]:
    """The files that a parameter names: by a path, or as a module in `module:factory`."""
    try:
        if (here / text).is_file():
            return [(here / text).resolve()]
        return user_code.files_of(text.partition(":")[0], here) if re.fullmatch(r"[^\W\d][\w.]*:\w+", text) else []
    except (OSError, ValueError):  # too long for a name, or no name at all
        return []


def why_again(before: Mapping[str, Any], now: Mapping[str, str]) -> str | None:
    """Why a notebook runs again: "code and inputs changed", or None when its result holds."""
    if before.keys() != now.keys():
        return "its last run was not by gnnlab run"
    changed = [part for part in now if before[part] != now[part]]
    return f"{' and '.join(changed)} changed" if changed else None
