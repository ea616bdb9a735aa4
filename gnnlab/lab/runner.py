"""Runs notebooks: in dependency order, with strict parameters, and only those that have to run.

    outcomes = run(["01"], "quick")
    outcomes = run(["02"], "full", runs=5)      # five times, each in a kernel of its own; the runs are samples

A run that passed is put in place whole (`runs.put`); a failure, a timeout, Ctrl-C or a kill leaves earlier results as
they were. papermill alone gives the same notebook: the runner adds convenience, never a meaning.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from gnnlab import machine
from gnnlab.errors import GnnlabError

from . import discovery, execution, parameters, provenance, results
from . import runs as folders
from .discovery import Notebook
from .results import ResultFile, Status
from .text import duration


@dataclass(frozen=True)
class NotebookRun:
    """How a notebook ended. `out_path` is the executed notebook, of a failed run too; None where none was written."""

    notebook: str
    status: Status
    reason: str | None
    seconds: float = 0.0
    out_path: Path | None = None
    ran: bool = True  # False: its earlier results still hold, or it was skipped before it started


def run(
    numbers: Sequence[str] = (),
    params_set: str = "quick",
    *,
    force: bool = False,
    runs: int = 1,
    overrides: Sequence[tuple[str, str]] = (),
    root: Path | None = None,
    console: Console | None = None,
) -> list[NotebookRun]:
    """Run the notebooks `numbers` (none: all) with a parameter set, and render the site of its results after each.

    Every parameter file is checked before anything executes or is written: `GnnlabError`, one line.
    Notebooks whose parameters, code, inputs, versions and machine are those of their last run are not run again unless
    `force`. Each is run until there are `runs` runs of it, each in a kernel of its own; all
    count. `overrides` are (name, text) pairs as from a command line. Files and modules that parameters
    name are looked for in the current folder; with a `root` in that. Ctrl-C keeps what is done and passes through.
    """
    base = root.resolve() if root else discovery.root()
    every = discovery.notebooks(base)
    chosen = discovery.select(every, numbers)
    params = discovery.parameter_set(params_set, base)
    given = discovery.read_parameters(chosen, params, overrides, every=list(every.values()))
    folder = discovery.output_folder(params, given.values(), base)
    with folders.only_run(folder):
        from .report import build_site  # nbconvert, heavy

        here = base if root else Path.cwd()
        width = max(len(notebook.name) for notebook in chosen)
        job = _Job(base, here, params, folder, given, every, console or Console(), width)
        page = None
        try:
            for notebook in chosen:
                job.settle(notebook, runs, force)
                if job.outcomes[notebook.name].ran:
                    page = build_site(folder)  # what is done can be read while the others run
        except KeyboardInterrupt:
            job.say(f"stopped; {len(job.outcomes)} of {len(chosen)} notebooks are done; run again to go on")
            raise
        page = page or build_site(folder)
        job.say(f"report: {page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page}")
    return list(job.outcomes.values())


def exit_code(outcomes: Sequence[NotebookRun]) -> int:
    """1 when a notebook failed or timed out, else 0."""
    return int(any(outcome.status in (Status.FAILED, Status.TIMEOUT) for outcome in outcomes))


def output_folder(params_set: str, root: Path | None = None) -> Path:
    """The folder of the results of a parameter set; raises `GnnlabError` where nothing has been run with it."""
    base = root.resolve() if root else discovery.root()
    params = discovery.parameter_set(params_set, base)
    files = [notebook.parameters_in(params) for notebook in discovery.notebooks(base).values()]
    given = [parameters.load_yaml(file) for file in files if file.exists()]
    folder = discovery.output_folder(params, given, base)
    if not folder.is_dir():
        raise GnnlabError(f"there are no results in {folder}; run gnnlab run --params {params_set} first")
    return folder


@dataclass
class _Job:
    """The notebooks of one run: what they share, how each ended, and the lines that are printed of them."""

    root: Path
    here: Path  # what paths and modules of the user's are relative to
    params: Path  # the folder of the parameter set
    folder: Path  # of the results
    given: Mapping[str, dict[str, Any] | None]
    every: Mapping[str, Notebook]
    console: Console
    width: int  # of the longest name, so that the columns align
    outcomes: dict[str, NotebookRun] = field(default_factory=dict)

    def settle(self, notebook: Notebook, wanted: int, force: bool) -> None:
        """Skip a notebook, keep its earlier results, or run it until there are `wanted` runs; a line for each."""
        name = notebook.name
        if reason := self.cannot_run(notebook):
            return self.ended(NotebookRun(name, Status.SKIPPED, reason, ran=False))
        path, failed = results.newest(self.folder, name)
        before = path and results.read(path)
        changed = before and folders.why_again(path, before, self.fingerprint(notebook))
        done = 0 if before is None or changed else len(results.runs_of(self.folder, name)[0].get(name, []))
        if force:
            last, why = done + wanted, "forced"
        elif failed:
            last, why = max(wanted, done + 1), "runs again: its last run did not pass"
        elif done >= wanted or (done and before.status is Status.SKIPPED):
            when = f"{datetime.fromisoformat(before.started).astimezone():%Y-%m-%d %H:%M}"
            reason = (
                f"{done} runs, " * (done > 1) + f"unchanged since {when}: parameters, code, inputs, versions, machine"
            )
            reason = f"{before.reason} ({reason})" if before.reason else reason
            executed = path.with_name(results.NOTEBOOK)
            return self.ended(NotebookRun(name, before.status, reason, before.seconds, executed, ran=False))
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
        if self.given[notebook.name] is None:
            return f"{self.params.name} has no {notebook.parameters_in(self.params).name}"
        for number in notebook.needs:
            need = self.every[number].name
            path, _ = results.newest(self.folder, need)
            if need in self.outcomes and self.outcomes[need].status is not Status.PASSED:
                return f"it needs {need}, which is {self.outcomes[need].status}"
            if path is None or results.read(path).status is not Status.PASSED:
                params = self.params.name if self.params.parent == self.root / "params" else self.params
                usual = self.folder == self.root / "outputs" / self.params.name
                into = "" if usual else f" -p output_dir {self.values(notebook)['output_dir']}"
                return f"run {number} first: gnnlab run {number} --params {params}{into}"
        return None

    def values(self, notebook: Notebook) -> dict[str, Any]:
        """Every parameter of a notebook, and where its results go."""
        below = self.folder.is_relative_to(self.root)
        folder = self.folder.relative_to(self.root) if below else self.folder
        return parameters.check({**self.given[notebook.name], "output_dir": folder.as_posix()}, notebook.declared)

    def fingerprint(self, notebook: Notebook) -> folders.Fingerprint:
        """From what a run of the notebook would be made now."""
        needs = [results.newest(self.folder, self.every[number].name)[0] for number in notebook.needs]
        return folders.fingerprint(notebook.path, self.values(notebook), needs, here=self.here, folder=self.folder)

    def run_once(self, notebook: Notebook, about: str) -> NotebookRun:
        """Run a notebook, and put its run in place, with from what it was made, or with the reason of its failure."""
        if busy := machine.warning():
            self.say(busy)
        name, started, values = notebook.name, datetime.now(UTC), self.values(notebook)
        made_from = self.fingerprint(notebook)  # before it runs: code may change meanwhile
        place = folders.begin(self.folder, name)
        bar = name.ljust(self.width) if self.console.is_terminal else None
        if bar is None:
            self.say(f"{name.ljust(self.width)}  running  {about}")
        given = {parameter: values[parameter] for parameter in {"output_dir", *self.given[name]}}
        ended = execution.execute(notebook, given, here=self.here, place=place, bar=bar)
        result = ended.result or ResultFile(
            run=uuid.uuid4().hex,
            notebook=name,
            params_set=self.params.name,
            status=ended.status,
            reason=ended.reason,
            parameters=values,
            environment=provenance.system(),
            started=started.isoformat(timespec="seconds"),
            seconds=ended.seconds,
        )
        results.write(place / results.RESULT, result.model_copy(update={"fingerprint": made_from}))
        executed = folders.put(place, self.folder, name) / results.NOTEBOOK
        return NotebookRun(name, ended.status, ended.reason, ended.seconds, executed if executed.exists() else None)

    # ---- the lines that a run prints --------------------------------------------------------------------------------

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


COLOURS = {Status.PASSED: "green", Status.SKIPPED: "yellow", Status.FAILED: "red", Status.TIMEOUT: "red"}
