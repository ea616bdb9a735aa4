"""Runs notebooks: in the order of their numbers, with strict parameters, and only those that have to run.

    outcomes = run(["01"], "quick")
    outcomes = run(["02"], "full", runs=5)      # five times, each in a kernel of its own; the runs are samples

A run is put in place whole (`runs.put`); a failure, a timeout, Ctrl-C or a kill leaves earlier results as they were.
papermill alone gives the same notebook: the runner adds convenience, never a meaning.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gnnlab import machine
from gnnlab.errors import GnnlabError

from . import discovery, execution, parameters, provenance, results
from . import runs as folders
from .discovery import Notebook, Request
from .results import ResultFile, Status
from .text import duration

COLOURS = {Status.PASSED: "green", Status.SKIPPED: "yellow", Status.FAILED: "red", Status.TIMEOUT: "red"}


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
    with folders.only_run(request.folder):
        from .report import build_site  # nbconvert, heavy

        job = _Job(request, console or Console())
        page = None
        try:
            for notebook in request.chosen:
                job.settle(notebook, runs, force)
                if job.outcomes[notebook.name].ran:
                    page = build_site(request.folder)  # what is done can be read while the others run
        except KeyboardInterrupt:
            job.say(f"stopped; {len(job.outcomes)} of {len(request.chosen)} notebooks are done; run again to go on")
            raise
        page = page or build_site(request.folder)
        job.say(f"report: {page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page}")
    return list(job.outcomes.values())


def exit_code(outcomes: Sequence[NotebookRun]) -> int:
    """1 when a notebook failed or timed out, else 0."""
    return int(any(outcome.status in (Status.FAILED, Status.TIMEOUT) for outcome in outcomes))


def output_folder(params_set: str) -> Path:
    """The folder of the results of a parameter set; raises `GnnlabError` where nothing has been run with it."""
    base = discovery.root()
    params = discovery.parameter_set(params_set, base)
    files = [notebook.parameters_in(params) for notebook in discovery.notebooks(base).values()]
    folder = discovery.output_folder(params, [parameters.load_yaml(file) for file in files if file.exists()], base)
    if not folder.is_dir():
        raise GnnlabError(f"there are no results in {folder}; run gnnlab run --params {params_set} first")
    return folder


@dataclass
class _Job:
    """The notebooks of one run: how each ended, and the lines that are printed of them."""

    request: Request
    console: Console
    outcomes: dict[str, NotebookRun] = field(default_factory=dict)

    def settle(self, notebook: Notebook, wanted: int, force: bool) -> None:
        """Skip a notebook, keep its earlier results, or run it until there are `wanted` runs; a line for each."""
        name, folder = notebook.name, self.request.folder
        if reason := self.cannot_run(notebook):
            return self.ended(NotebookRun(name, Status.SKIPPED, reason, ran=False))
        path, failed = results.newest(folder, name)
        before = path and results.read(path)
        changed = before and folders.why_again(path, before, self.made_from(notebook))
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
            outcome = self.run_once(notebook, about)
            if outcome.status is not Status.PASSED and number > 1:
                outcome = replace(outcome, reason=f"{place}: {outcome.reason}; the runs before it stand")
            self.ended(outcome, about)
            if outcome.status is not Status.PASSED:
                break

    def cannot_run(self, notebook: Notebook) -> str | None:
        """Why a notebook cannot run: no parameter file, or a need without results."""
        params, folder, root = self.request.params, self.request.folder, self.request.root
        if self.request.given[notebook.name] is None:
            return f"{params.name} has no {notebook.parameters_in(params).name}"
        for number in notebook.needs:
            need = self.request.every[number].name
            path, _ = results.newest(folder, need)
            if need in self.outcomes and self.outcomes[need].status is not Status.PASSED:
                return f"it needs {need}, which is {self.outcomes[need].status}"
            if path is None or results.read(path).status is not Status.PASSED:
                name = params.name if params.parent == root / "params" else params
                usual = folder == root / "outputs" / params.name
                into = "" if usual else f" -p output_dir {self.request.values(notebook)['output_dir']}"
                return f"run {number} first: gnnlab run {number} --params {name}{into}"
        return None

    def made_from(self, notebook: Notebook) -> folders.Fingerprint:
        """What a run of the notebook would be made from now."""
        folder, every = self.request.folder, self.request.every
        needs = [results.newest(folder, every[number].name)[0] for number in notebook.needs]
        return folders.fingerprint(notebook.path, self.request.values(notebook), needs, folder)

    def run_once(self, notebook: Notebook, about: str) -> NotebookRun:
        """Run a notebook, and put its run in place, with from what it was made, or with the reason of its failure."""
        if busy := machine.warning():
            self.say(busy)
        name, folder, values = notebook.name, self.request.folder, self.request.values(notebook)
        title = name.ljust(self.width)
        if not self.console.is_terminal:
            self.say(f"{title}  running  {about}")
        blank = ResultFile(
            run=uuid.uuid4().hex,
            notebook=name,
            params_set=self.request.params.name,
            status=Status.FAILED,
            parameters=values,
            fingerprint=self.made_from(notebook),  # before it runs: code may change meanwhile
            environment=provenance.system(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=0,
        )
        given = {parameter: values[parameter] for parameter in {"output_dir", *self.request.given[name]}}
        place, bar = folders.begin(folder, name), title if self.console.is_terminal else None
        result = execution.execute(notebook, given, blank, place, bar)
        folders.put(place, folder, name)
        return NotebookRun(name, result.status, result.reason, result.seconds)

    # ---- the lines that a run prints --------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Of the longest name, so that the columns align."""
        return max(len(notebook.name) for notebook in self.request.chosen)

    def say(self, text: str | Text) -> None:
        """One line, never wrapped, and nothing in it read as markup."""
        self.console.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)

    def ended(self, outcome: NotebookRun, about: str = "") -> None:
        """The line of a notebook that is done: "01_profile_bottlenecks  passed   41 s"; on a terminal also why it ran,
        which a log says at the start.
        """
        self.outcomes[outcome.notebook] = outcome
        word = (outcome.status.ljust(7), COLOURS[outcome.status])
        took = duration(outcome.seconds) if outcome.ran else ""
        notes = [took, outcome.reason, about if self.console.is_terminal else ""]
        self.say(Text.assemble(outcome.notebook.ljust(self.width), "  ", word, "  ", "  ".join(filter(None, notes))))
